"""A keeper: pages, lists, writes that count once they are on the disk, and who is told."""

from typing import Any

import pytest

from anabranch.core import registry_keeper
from anabranch.core.changes import (
    Change,
    CreateStream,
    DeleteStream,
    SetPermission,
    encode_change,
    unpack_page,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import StreamPart, show
from anabranch.core.machine import Effect, Notice, Send, Store, Stored
from anabranch.core.messages import (
    ChainChanged,
    ChainHead,
    ChainList,
    ChainPage,
    HeadList,
    ListChains,
    ListHeads,
    ReadChain,
    Status,
    Written,
)
from anabranch.core.messages.registry import MAX_LISTED, MAX_PAGE_CHANGES, NETWORK
from anabranch.core.registry_keeper import MAX_SKEW_MS, RegistryKeeper
from anabranch.core.rendezvous import trackers_for
from chains import (
    COPIER,
    ENTRIES,
    NET,
    OWNER,
    SECOND,
    STREAM,
    THIRD,
    Disk,
    Writer,
    heights,
    network_rows,
    stream_rows,
)
from machines import KEYS, NODES, SIGNERS, START

ANN, BEN = NODES[1:3]


def keeper(*rows: list[tuple[str, int, bytes]]) -> Any:
    """Make a keeper with these chains beside the network's."""
    every = [*network_rows(*ENTRIES), *(row for some in rows for row in some)]
    return RegistryKeeper(NET, KEYS.verify, every)


def read(
    kept: Any, chain: str, after: int = 0, head: bytes = b"", sender: bytes = ANN
) -> ChainPage:
    [send] = kept.receive(sender, ReadChain(7, chain, after, head))
    assert send.to == sender
    return send.message


def write(kept: Any, change: bytes, sender: bytes = ANN, ticket: int = 1) -> list[Effect]:
    kept.check(change)
    return kept.write(sender, ticket, change, START)


def changed(writer: Writer) -> ChainChanged:
    """What those who read a chain are told."""
    return ChainChanged(writer.chain, writer.history.height, writer.history.head)


# --- Reading --------------------------------------------------------------------------------


def test_a_chain_is_read_in_pages() -> None:
    writer = Writer().add(CreateStream(), *(SetPermission(NODES[5], 1 + i % 2) for i in range(150)))
    kept = keeper(writer.rows())
    seen: list[bytes] = []
    while True:
        page = read(kept, STREAM, len(seen), writer.history.head_at(len(seen)) or b"")
        assert (page.ticket, page.height, page.head) == (7, 151, writer.history.head)
        assert page.after == len(seen)
        changes = unpack_page(page.changes)
        seen += changes
        if len(seen) == page.height:
            break
        assert len(changes) == MAX_PAGE_CHANGES
    assert seen == writer.changes


def test_who_has_other_changes_is_told_all() -> None:
    writer = Writer().add(CreateStream())
    other = writer.fork().add(SetPermission(BEN, 1))
    writer.add(SetPermission(ANN, 1), SetPermission(ANN, 2))
    kept = keeper(writer.rows())
    assert heights(read(kept, STREAM, 2, writer.history.head_at(2) or b"")) == (2, 1, 3)
    for after, head in ((2, other.history.head), (2, b""), (9, other.history.head)):
        assert heights(read(kept, STREAM, after, head)) == (0, 3, 3)


def test_what_there_is_nothing_of_is_said_to_be_empty() -> None:
    kept = keeper()
    assert read(kept, STREAM) == ChainPage(7, STREAM, 0, 0, NET)
    assert heights(read(kept, STREAM, 5)) == (0, 0, 0)
    assert heights(read(kept, NETWORK)) == (0, 2, 2)
    assert kept.state(STREAM) is None
    with pytest.raises(RemoteError, match="chain-name"):
        kept.receive(ANN, ReadChain(1, "nonsense"))


def test_streams_that_exist_are_listed_by_prefix_and_in_pages() -> None:
    names = [f"{show(OWNER.node)}/s{at:03}" for at in range(120)]
    rows = [row for name in names for row in stream_rows(name)]
    kept = keeper(rows, stream_rows(STREAM, DeleteStream()))
    [first] = kept.receive(ANN, ListChains(3))
    assert first == Send(ANN, ChainList(3, tuple(names[:MAX_LISTED]), True))
    [rest] = kept.receive(ANN, ListChains(4, "", names[MAX_LISTED - 1]))
    assert rest == Send(ANN, ChainList(4, tuple(names[MAX_LISTED:]), False))
    some = kept.receive(ANN, ListChains(5, names[10][:-1]))
    assert some == [Send(ANN, ChainList(5, tuple(names[10:20])))]
    assert kept.receive(ANN, ListChains(6, "0xff")) == [Send(ANN, ChainList(6))]
    assert kept.receive(ANN, ListChains(6, names[5], names[9])) == [Send(ANN, ChainList(6))]
    assert kept.streams() == names


def test_heads_are_listed_in_pages_unless_all_are_the_same() -> None:
    names = [f"{show(OWNER.node)}/s{at:03}" for at in range(120)]
    gone = stream_rows(STREAM, DeleteStream())
    kept = keeper([row for name in names for row in stream_rows(name)], gone)
    twin = keeper(gone, [row for name in reversed(names) for row in stream_rows(name)])
    every = [STREAM, NETWORK, *names]  # a chain that was deleted goes on
    every.sort()
    assert kept.chains() == every
    [first] = kept.receive(COPIER, ListHeads(3))
    assert [head.chain for head in first.message.heads] == every[:MAX_LISTED]
    assert (first.message.more, first.message.same) == (True, False)
    [rest] = kept.receive(COPIER, ListHeads(4, every[MAX_LISTED - 1], b"?" * 32))
    assert [head.chain for head in rest.message.heads] == every[MAX_LISTED:]
    assert not rest.message.more
    network = kept.history(NETWORK)
    assert rest.message.heads[-1] == ChainHead(NETWORK, 2, network.head)
    assert kept.receive(COPIER, ListHeads(5, "", twin.digest)) == [
        Send(COPIER, HeadList(5, same=True))
    ]


def test_the_directory_follows_the_chains() -> None:
    kept = keeper(stream_rows())
    settings = kept.directory(StreamPart(STREAM, 0))
    assert settings.trackers == trackers_for(StreamPart(STREAM, 0), ENTRIES)
    assert kept.directory(StreamPart(STREAM, 1)) is None
    assert kept.directory(StreamPart(SECOND, 0)) is None


def test_other_messages_are_not_for_keepers() -> None:
    with pytest.raises(RemoteError, match="not-for-keepers"):
        keeper().receive(ANN, Status(StreamPart(STREAM, 0), 0))


# --- Writing --------------------------------------------------------------------------------


def test_a_change_counts_once_it_is_on_the_disk() -> None:
    kept, writer = keeper(), Writer()
    change = writer.next(CreateStream())
    assert write(kept, change) == [Store(1, STREAM, 1, change)]
    assert heights(read(kept, STREAM)) == (0, 0, 0)
    assert kept.streams() == []
    assert kept.stored(Stored(1)) == [
        Send(ANN, Written(1, 1)),
        Send(ANN, changed(writer.take(change))),  # it has read the chain
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
    kept, history = keeper(rows), Writer().add(CreateStream(public=3)).history

    def problem(action: Any, signer: Any = OWNER, at: float = START) -> str:
        change = Change(STREAM, history.tips, 2, signer.node, int(at * 1000), (action,))
        [send] = write(kept, encode_change(change, NET, signer.sign))
        assert send.message.height == 0
        return send.message.problem

    assert problem(DeleteStream(), SIGNERS[4]) == "forbidden: this needs the right to delete"
    assert problem(CreateStream()).startswith("exists")
    for off_s in (-1, 1):
        at = START + off_s * (MAX_SKEW_MS / 1000 + 1)
        assert problem(DeleteStream(), at=at).startswith("clock: ")
    assert kept.history(STREAM).height == 1


def test_it_knows_when_an_author_knew_more() -> None:
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    later = writer.next(SetPermission(BEN, 1))
    assert keeper().is_behind(later)
    assert keeper(writer.rows()[:1]).is_behind(later)
    assert not keeper(writer.rows()).is_behind(later)
    assert not keeper(writer.take(later).rows()).is_behind(later)
    [refused] = write(keeper(), later)
    assert refused.message.problem.startswith("stale")


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
    stranger = SIGNERS[5]
    theirs = Writer(f"{show(stranger.node)}/new").next(CreateStream(), signer=stranger)
    [refused] = write(kept, theirs)
    assert refused.message.problem.startswith("full")
    more = Writer().add(CreateStream(public=3)).next(DeleteStream())
    assert write(kept, more) == [Store(1, STREAM, 2, more)]
    own = Writer(SECOND).next(CreateStream())  # the network's owner is not kept out by others
    assert write(kept, own) == [Store(2, SECOND, 1, own)]


# --- The disk -------------------------------------------------------------------------------


def test_what_was_stored_makes_the_same_keeper_again() -> None:
    kept, disk, writer = keeper(), Disk(), Writer()
    for action in (CreateStream(public=3), SetPermission(ANN, 31), DeleteStream(), CreateStream()):
        disk.settle(write(kept, writer.next(action)), kept.stored)
        writer.add(action)
    again = keeper(disk.rows)
    assert vars(kept.state(STREAM)) == vars(again.state(STREAM))
    assert kept.digest == again.digest
    assert (again.history(STREAM).height, again.streams()) == (4, [STREAM])


def test_a_damaged_store_is_refused_with_its_place() -> None:
    rows = stream_rows(STREAM, SetPermission(ANN, 1))
    for bad in (rows[1:], [rows[0], rows[0]], [("nonsense", 1, rows[0][2])]):
        with pytest.raises(LocalError, match="stored registry is damaged"):
            keeper(bad)
    with pytest.raises(LocalError, match="another network's: change 1 of network"):
        RegistryKeeper(bytes(32), KEYS.verify, network_rows())


# --- Who is told ----------------------------------------------------------------------------


def test_who_reads_a_chain_is_told_until_its_link_ends() -> None:
    kept, disk, writer = keeper(), Disk(), Writer()
    for sender in (ANN, BEN, ANN):
        read(kept, STREAM, sender=sender)
    effects = disk.settle(write(kept, writer.next(CreateStream()), OWNER.node), kept.stored)
    writer.add(CreateStream())
    assert effects[1:] == [Send(ANN, changed(writer)), Send(BEN, changed(writer))]
    kept.link(ANN, False)
    kept.link(NODES[7], False)
    effects = disk.settle(write(kept, writer.next(DeleteStream()), OWNER.node), kept.stored)
    writer.add(DeleteStream())
    assert effects[1:] == [Send(BEN, changed(writer))]
    kept.link(BEN, False)
    assert kept.sizes()["watches"][0] == 0


def test_who_compares_heads_is_told_of_all_chains_but_not_of_what_it_gave() -> None:
    kept, disk, writer = keeper(), Disk(), Writer()
    for tracker in (COPIER, THIRD):
        kept.receive(tracker, ListHeads(1))
    effects = disk.settle(write(kept, writer.next(CreateStream()), COPIER), kept.stored)
    writer.add(CreateStream())
    told = [Send(COPIER, changed(writer)), Send(THIRD, changed(writer))]
    assert effects == [Send(COPIER, Written(1, 1)), *told]
    given = writer.add(DeleteStream()).changes[-1]
    effects = disk.settle(kept.copy(COPIER, STREAM, given), kept.stored)
    assert effects == [Send(THIRD, changed(writer))]
