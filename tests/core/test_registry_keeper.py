"""A keeper: pages, lists, writes that count once they are on the disk, and who is told."""

from typing import Any

import pytest

from anabranch.core import registry_keeper
from anabranch.core.changes import (
    Change,
    CreateStream,
    DeleteStream,
    SetPermission,
    SetTrackers,
    encode_change,
    unpack_page,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import StreamPart, show
from anabranch.core.machine import Effect, Notice, Send, Store, Stored
from anabranch.core.messages import (
    ChainChanged,
    ChainList,
    ChainPage,
    ListChains,
    ReadChain,
    Status,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import MAX_LISTED, MAX_PAGE_CHANGES, NETWORK
from anabranch.core.registry import StreamState
from anabranch.core.registry_keeper import MAX_SKEW_MS, MAX_WATCHED, RegistryKeeper
from anabranch.core.rendezvous import trackers_for
from chains import (
    COPIER,
    ENTRIES,
    GENESIS,
    NET,
    OWNER,
    SECOND,
    STREAM,
    WRITER,
    Disk,
    Writer,
    heights,
    network_rows,
    stream_rows,
)
from machines import KEYS, NODES, SIGNERS, START

ANN, BEN = NODES[1:3]


def keeper(*rows: list[tuple[str, int, bytes]], me: bytes = WRITER) -> Any:
    """Make a keeper with these chains beside the network's."""
    every = [*network_rows(*ENTRIES), *(row for some in rows for row in some)]
    return RegistryKeeper(me, NET, KEYS.verify, every)


def hear(kept: Any, sender: bytes, message: Any, at: float = START) -> list[Effect]:
    return kept.receive(sender, message, at)


def read(kept: Any, chain: str, after: int = 0, sender: bytes = ANN) -> ChainPage:
    [send] = hear(kept, sender, ReadChain(7, chain, after))
    assert send.to == sender
    return send.message


def write(kept: Any, change: bytes, sender: bytes = ANN, ticket: int = 1) -> list[Effect]:
    return hear(kept, sender, WriteChange(ticket, change))


# --- Reading --------------------------------------------------------------------------------


def test_a_chain_is_read_in_pages() -> None:
    writer = Writer().add(CreateStream(), *(SetPermission(NODES[5], 1 + i % 2) for i in range(150)))
    kept = keeper(writer.rows())
    seen: list[bytes] = []
    while True:
        page = read(kept, STREAM, len(seen))
        assert (page.ticket, page.height, page.head) == (7, 151, writer.state.head)
        changes = unpack_page(page.changes)
        seen += changes
        if len(seen) == page.height:
            break
        assert len(changes) == MAX_PAGE_CHANGES
    assert seen == writer.changes


def test_what_there_is_nothing_of_is_said_to_be_empty() -> None:
    kept = keeper()
    assert read(kept, STREAM) == ChainPage(7, STREAM, 0, 0, NET)
    assert heights(read(kept, STREAM, 5)) == (5, 0, 0)
    assert heights(read(kept, NETWORK)) == (0, 2, 2)
    assert kept.state(STREAM) is None
    with pytest.raises(RemoteError, match="chain-name"):
        hear(kept, ANN, ReadChain(1, "nonsense"))


def test_streams_that_exist_are_listed_by_prefix_and_in_pages() -> None:
    names = [f"{show(OWNER.node)}/s{at:03}" for at in range(120)]
    rows = [row for name in names for row in stream_rows(name)]
    kept = keeper(rows, stream_rows(STREAM, DeleteStream()))
    [first] = hear(kept, ANN, ListChains(3))
    assert first == Send(ANN, ChainList(3, tuple(names[:MAX_LISTED]), True))
    [rest] = hear(kept, ANN, ListChains(4, "", names[MAX_LISTED - 1]))
    assert rest == Send(ANN, ChainList(4, tuple(names[MAX_LISTED:]), False))
    some = hear(kept, ANN, ListChains(5, names[10][:-1]))
    assert some == [Send(ANN, ChainList(5, tuple(names[10:20])))]
    assert hear(kept, ANN, ListChains(6, "0xff")) == [Send(ANN, ChainList(6))]
    assert hear(kept, ANN, ListChains(6, names[5], names[9])) == [Send(ANN, ChainList(6))]
    assert kept.streams() == names


def test_the_directory_follows_the_chains() -> None:
    kept = keeper(stream_rows())
    settings = kept.directory(StreamPart(STREAM, 0))
    assert settings.trackers == trackers_for(StreamPart(STREAM, 0), ENTRIES)
    assert kept.directory(StreamPart(STREAM, 1)) is None
    assert kept.directory(StreamPart(SECOND, 0)) is None


def test_other_messages_are_not_for_keepers() -> None:
    with pytest.raises(RemoteError, match="not-for-keepers"):
        hear(keeper(), ANN, Status(StreamPart(STREAM, 0), 0))


# --- Writing --------------------------------------------------------------------------------


def test_a_change_counts_once_it_is_on_the_disk() -> None:
    kept, writer = keeper(), Writer()
    change = writer.next(CreateStream())
    assert write(kept, change) == [Store(1, STREAM, 1, change)]
    assert heights(read(kept, STREAM)) == (0, 0, 0)
    assert kept.streams() == []
    assert kept.stored(Stored(1)) == [
        Send(ANN, Written(1, 1)),
        Send(ANN, ChainChanged(STREAM, 1)),  # it has read the chain
    ]
    assert heights(read(kept, STREAM)) == (0, 1, 1)
    assert kept.streams() == [STREAM]


def test_what_the_disk_refuses_did_not_happen() -> None:
    kept, change = keeper(), Writer().next(CreateStream())
    write(kept, change)
    problem = "the disk is full"
    assert kept.stored(Stored(1, problem)) == [
        Notice(None, "disk", problem),
        Send(ANN, Written(1, 0, "disk: the disk is full")),
    ]
    assert (kept.state(STREAM), kept.sizes()["chains"][0]) == (None, 1)
    assert write(kept, change) == [Store(2, STREAM, 1, change)]


def test_of_two_who_write_at_once_the_second_waits_and_is_stale() -> None:
    kept = keeper(stream_rows())
    writer = Writer().add(CreateStream(public=3))
    one, two = writer.next(SetPermission(ANN, 1)), writer.next(SetPermission(BEN, 1))
    assert write(kept, one, ANN, 5) == [Store(1, STREAM, 2, one)]
    assert write(kept, two, BEN, 6) == []
    assert kept.sizes()["changes in line"][0] == 2
    assert kept.stored(Stored(1)) == [
        Send(ANN, Written(5, 2)),
        Send(BEN, Written(6, 0, "stale: read the chain and try again")),
    ]
    assert kept.sizes()["changes in line"][0] == 0


def test_one_who_waits_in_line_behind_its_own_change_is_served() -> None:
    kept, writer = keeper(), Writer()
    first = writer.next(CreateStream())
    second = writer.add(CreateStream()).next(SetPermission(BEN, 1))
    write(kept, first, ANN, 1)
    assert write(kept, second, ANN, 2) == []
    assert kept.stored(Stored(1)) == [Send(ANN, Written(1, 1)), Store(2, STREAM, 2, second)]
    assert kept.stored(Stored(2)) == [Send(ANN, Written(2, 2))]


def test_chains_do_not_wait_for_each_other() -> None:
    kept = keeper()
    one, two = Writer().next(CreateStream()), Writer(SECOND).next(CreateStream())
    assert write(kept, one) == [Store(1, STREAM, 1, one)]
    assert write(kept, two) == [Store(2, SECOND, 1, two)]
    assert kept.stored(Stored(2)) == [Send(ANN, Written(1, 1))]
    assert kept.streams() == [SECOND]


def test_a_change_that_is_asked_for_twice_is_written_once() -> None:
    kept, change = keeper(), Writer().next(CreateStream())
    write(kept, change, ANN, 1)
    assert write(kept, change, ANN, 2) == []
    assert kept.stored(Stored(1)) == [Send(ANN, Written(1, 1)), Send(ANN, Written(2, 1))]
    assert write(kept, change, ANN, 3) == [Send(ANN, Written(3, 1))]


def test_problems_say_what_to_do() -> None:
    rows = stream_rows()
    kept, writer = keeper(rows), Writer().add(CreateStream(public=3))
    state = writer.state

    def problem(action: Any, signer: Any = OWNER, at: float = START) -> str:
        change = Change(STREAM, 2, state.head, signer.node, int(at * 1000), action)
        [send] = write(kept, encode_change(change, NET, signer.sign))
        assert send.message.height == 0
        return send.message.problem

    assert problem(DeleteStream(), SIGNERS[4]) == "forbidden: this needs the right to delete"
    assert problem(CreateStream()).startswith("exists")
    for off_s in (-1, 1):
        at = START + off_s * (MAX_SKEW_MS / 1000 + 1)
        assert problem(DeleteStream(), at=at).startswith("clock: ")
    assert kept.state(STREAM).height == 1


def test_what_no_honest_author_sends_costs_the_link() -> None:
    kept = keeper()
    with pytest.raises(RemoteError, match="change-malformed"):
        write(kept, b"x" * 100)
    good = Writer().next(CreateStream())
    with pytest.raises(RemoteError, match="change-forged"):
        write(kept, good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(RemoteError, match="change-forged"):
        write(kept, Writer(network=bytes(32)).next(CreateStream()))
    assert kept.sizes()["chains"][0] == 1


def test_only_the_first_tracker_writes() -> None:
    change = Writer().next(CreateStream())
    [refused] = write(keeper(me=COPIER), change)
    assert refused.message.problem.startswith("not-the-writer")
    alone = RegistryKeeper(COPIER, NET, KEYS.verify, network_rows())
    assert alone.is_writer  # nobody has been named yet
    assert not RegistryKeeper(COPIER, NET, KEYS.verify, network_rows(), first=False).is_writer
    named = Writer(NETWORK).next(SetTrackers(ENTRIES))
    [store] = write(alone, named)
    assert alone.stored(Stored(store.token)) == [Send(ANN, Written(1, 2))]
    assert not alone.is_writer


def test_a_line_that_is_full_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_keeper, "MAX_IN_LINE", 2)
    kept, change = keeper(), Writer().next(CreateStream())
    write(kept, change)
    write(kept, change)
    [refused] = write(kept, change)
    assert refused.message.problem.startswith("busy")
    kept.stored(Stored(1))
    assert write(kept, change) == [Send(ANN, Written(1, 1))]


def test_a_keeper_that_is_full_takes_no_new_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keeper(stream_rows())
    monkeypatch.setattr(registry_keeper, "MAX_CHAINS", 2)
    [refused] = write(kept, Writer(SECOND).next(CreateStream()))
    assert refused.message.problem.startswith("full")
    more = Writer().add(CreateStream(public=3)).next(DeleteStream())
    assert write(kept, more) == [Store(1, STREAM, 2, more)]


# --- Copying --------------------------------------------------------------------------------


def test_copies_are_stored_in_order_and_told_to_those_who_read_here() -> None:
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    kept = keeper(me=COPIER)
    read(kept, STREAM, sender=BEN)
    one, two = writer.changes
    assert kept.copy(STREAM, one) == [Store(1, STREAM, 1, one)]
    assert kept.copy(STREAM, two) == []
    assert kept.is_storing(STREAM)
    assert kept.stored(Stored(1)) == [Send(BEN, ChainChanged(STREAM, 1)), Store(2, STREAM, 2, two)]
    assert kept.stored(Stored(2)) == [Send(BEN, ChainChanged(STREAM, 2))]
    assert not kept.is_storing(STREAM)
    assert kept.copy(STREAM, two) == []  # it has that one


def test_after_a_copy_that_failed_those_behind_it_are_dropped() -> None:
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    kept = keeper(me=COPIER)
    for change in writer.changes:
        kept.copy(STREAM, change)
    assert kept.stored(Stored(1, "broken")) == [Notice(None, "disk", "broken")]
    assert (kept.state(STREAM), kept.sizes()["copies in line"][0]) == (None, 0)


def test_the_genesis_record_is_copied_like_a_change() -> None:
    kept: Any = RegistryKeeper(COPIER, NET, KEYS.verify, first=False)
    assert kept.copy(NETWORK, b"not it") == []
    assert kept.copy(NETWORK, GENESIS) == [Store(1, NETWORK, 1, GENESIS)]
    assert kept.state(NETWORK) is None
    kept.stored(Stored(1))
    assert kept.network_state.genesis.owner == OWNER.node


def test_room_for_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_keeper, "MAX_IN_LINE", 1)
    kept = keeper(me=COPIER)
    assert kept.has_room
    [store] = kept.copy(STREAM, Writer().next(CreateStream()))
    assert not kept.has_room
    kept.stored(Stored(store.token))
    assert kept.has_room


# --- The disk -------------------------------------------------------------------------------


def test_what_was_stored_makes_the_same_keeper_again() -> None:
    kept, disk, writer = keeper(), Disk(), Writer()
    for action in (CreateStream(public=3), SetPermission(ANN, 31), DeleteStream(), CreateStream()):
        disk.settle(write(kept, writer.next(action)), kept.stored)
        writer.add(action)
    again = keeper(disk.rows)
    one, two = kept.state(STREAM), again.state(STREAM)
    assert isinstance(two, StreamState)
    assert vars(one) == vars(two)
    assert (two.height, again.streams()) == (4, [STREAM])


def test_a_damaged_store_is_refused_with_its_place() -> None:
    rows = stream_rows(STREAM, SetPermission(ANN, 1))
    for bad in (rows[1:], [rows[0], rows[0]], [("nonsense", 1, rows[0][2])]):
        with pytest.raises(LocalError, match="stored registry is damaged"):
            keeper(bad)
    with pytest.raises(LocalError, match="another network's: change 1 of network"):
        RegistryKeeper(WRITER, bytes(32), KEYS.verify, network_rows())


# --- Who is told ----------------------------------------------------------------------------


def test_who_reads_a_chain_is_told_until_its_link_ends() -> None:
    kept, disk, writer = keeper(), Disk(), Writer()
    for sender in (ANN, BEN, ANN):
        read(kept, STREAM, sender=sender)
    effects = disk.settle(write(kept, writer.next(CreateStream()), OWNER.node), kept.stored)
    told = ChainChanged(STREAM, 1)
    assert effects[1:] == [Send(ANN, told), Send(BEN, told)]
    kept.link(ANN, False)
    kept.link(NODES[7], False)
    writer.add(CreateStream())
    effects = disk.settle(write(kept, writer.next(DeleteStream()), OWNER.node), kept.stored)
    assert effects[1:] == [Send(BEN, ChainChanged(STREAM, 2))]
    kept.link(BEN, False)
    assert kept.sizes()["watches"][0] == 0


def test_a_node_is_told_of_so_many_chains_and_a_tracker_of_all() -> None:
    kept = keeper()
    for node in (ANN, COPIER):
        for at in range(MAX_WATCHED + 10):
            read(kept, f"{STREAM}/{at}", sender=node)
    assert kept.sizes()["chains a node watches"][0] == MAX_WATCHED + 10
    assert kept.sizes()["watches"][0] == 2 * MAX_WATCHED + 10
    assert kept.sizes()["chains"][0] == 1  # what does not exist takes no place among what does
    disk, first = Disk(), Writer(f"{STREAM}/0")
    effects = disk.settle(write(kept, first.next(CreateStream()), BEN), kept.stored)
    assert effects[1:] == [Send(COPIER, ChainChanged(f"{STREAM}/0", 1))]


def test_watches_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_keeper, "MAX_WATCHES", 1)
    kept = keeper()
    read(kept, STREAM, sender=ANN)
    read(kept, STREAM, sender=BEN)
    assert kept.sizes()["watches"][0] == 1
