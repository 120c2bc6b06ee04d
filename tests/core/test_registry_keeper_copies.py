"""A keeper takes what other trackers have: in order, wherever it belongs, and nothing else."""

from typing import Any

import pytest

from anabranch.core import history, registry_keeper
from anabranch.core.changes import CreateStream, SetPermission
from anabranch.core.errors import RemoteError
from anabranch.core.machine import Disconnect, Notice, Send, Store, Stored
from anabranch.core.messages import ChainChanged, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_keeper import RegistryKeeper
from chains import (
    COPIER,
    ENTRIES,
    GENESIS,
    NET,
    OWNER,
    SECOND,
    STREAM,
    THIRD,
    Disk,
    Writer,
    network_rows,
)
from machines import KEYS, NODES, SIGNERS, START

ANN, BEN = NODES[1:3]


def keeper(*rows: list[tuple[str, int, bytes]]) -> Any:
    """Make a keeper with these chains beside the network's."""
    every = [*network_rows(*ENTRIES), *(row for some in rows for row in some)]
    return RegistryKeeper(NET, KEYS.verify, every)


def changed(writer: Writer) -> ChainChanged:
    """What those who read a chain are told."""
    return ChainChanged(writer.chain, writer.history.height, writer.history.head)


def test_copies_are_stored_in_order_and_told_to_those_who_read_here() -> None:
    writer = Writer().add(CreateStream())
    first = changed(writer)
    writer.add(SetPermission(ANN, 1))
    kept = keeper()
    kept.receive(BEN, ReadChain(1, STREAM))
    one, two = writer.changes
    assert kept.copy(COPIER, STREAM, one) == [Store(1, STREAM, 1, one)]
    assert kept.copy(COPIER, STREAM, two) == []
    assert kept.is_storing(STREAM)
    assert kept.stored(Stored(1)) == [Send(BEN, first), Store(2, STREAM, 2, two)]
    assert kept.stored(Stored(2)) == [Send(BEN, changed(writer))]
    assert not kept.is_storing(STREAM)
    assert kept.copy(COPIER, STREAM, two) == []  # it has that one


def test_a_branch_is_added_to_what_was_written_meanwhile() -> None:
    writer = Writer().add(CreateStream())
    other = writer.fork().add(SetPermission(BEN, 1))
    kept, disk = keeper(writer.rows()), Disk()
    mine = writer.next(SetPermission(ANN, 1))
    disk.settle(kept.write(ANN, 1, mine, START), kept.stored)
    effects = kept.copy(COPIER, STREAM, other.changes[1])
    assert effects == [Store(2, STREAM, 3, other.changes[1])]
    disk.settle(effects, kept.stored)
    both = writer.take(mine, other.changes[1])
    assert kept.history(STREAM).head == both.history.head
    assert set(kept.state(STREAM).permissions) == {ANN, BEN}
    again = keeper(Writer().add(CreateStream()).rows(), disk.rows)
    assert again.history(STREAM).head == both.history.head


def test_after_a_copy_that_failed_those_behind_it_are_dropped() -> None:
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    kept = keeper()
    for change in writer.changes:
        kept.copy(COPIER, STREAM, change)
    assert kept.stored(Stored(1, "broken")) == [Notice(None, "disk", "broken")]
    assert (kept.state(STREAM), kept.sizes()["copies in line"][0]) == (None, 0)


def test_who_gives_us_what_does_not_fit_loses_its_link_and_the_others_do_not() -> None:
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1), SetPermission(ANN, 2))
    one, two, three = writer.changes
    kept, disk = keeper(), Disk()
    fault = [Notice(None, "fault", f"orphan from {THIRD.hex()}"), Disconnect(THIRD, "orphan")]
    assert kept.copy(THIRD, STREAM, two) == fault
    [store] = kept.copy(COPIER, STREAM, one)
    for sender, change in ((THIRD, three), (THIRD, three), (COPIER, two)):
        assert kept.copy(sender, STREAM, change) == []
    effects = disk.settle([store], kept.stored)
    assert effects == fault  # once
    assert kept.history(STREAM).height == 2
    assert kept.sizes()["copies in line"][0] == 0


def test_a_chain_that_is_full_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = SIGNERS[5]
    writer = Writer().add(CreateStream(), SetPermission(helper.node, 4))
    kept, more = keeper(writer.rows()), writer.fork()
    more.add(SetPermission(ANN, 2), signer=helper)
    monkeypatch.setattr(history, "MAX_CHANGES", 2)
    [notice] = kept.copy(COPIER, STREAM, more.changes[2])
    assert (notice.kind, kept.sizes()["copies in line"][0]) == ("registry-full", 0)
    own = writer.fork().add(SetPermission(helper.node, 0)).changes[2]
    assert type(kept.copy(COPIER, STREAM, own)[0]) is Store


def test_a_copy_is_of_the_chain_it_is_read_from_and_signed() -> None:
    kept, change = keeper(), Writer().next(CreateStream())
    kept.check_copy(STREAM, change)
    kept.check_copy(NETWORK, GENESIS)
    with pytest.raises(RemoteError, match="wrong-chain"):
        kept.check_copy(SECOND, change)
    with pytest.raises(RemoteError, match="change-forged"):
        kept.check_copy(STREAM, change[:-1] + bytes([change[-1] ^ 1]))
    with pytest.raises(RemoteError, match="change-malformed"):
        kept.check_copy(NETWORK, b"no genesis")


def test_the_genesis_record_is_copied_like_a_change() -> None:
    kept: Any = RegistryKeeper(NET, KEYS.verify)
    assert kept.copy(COPIER, NETWORK, GENESIS) == [Store(1, NETWORK, 1, GENESIS)]
    assert kept.state(NETWORK) is None
    kept.stored(Stored(1))
    assert kept.network_state.genesis.owner == OWNER.node


def test_room_for_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_keeper, "MAX_IN_LINE", 1)
    kept = keeper()
    assert kept.has_room
    [store] = kept.copy(COPIER, STREAM, Writer().next(CreateStream()))
    assert not kept.has_room
    kept.stored(Stored(store.token))
    assert kept.has_room
    monkeypatch.setattr(registry_keeper, "MAX_COPIED_CHAINS", 2)
    [notice] = kept.copy(COPIER, SECOND, Writer(SECOND).next(CreateStream()))
    assert notice.kind == "registry-full"
