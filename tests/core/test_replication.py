"""Trackers that copy from each other: everything, at once, and again after whatever went wrong."""

import pytest

from anabranch.core import replication
from anabranch.core.changes import (
    CreateStream,
    DeleteStream,
    SetPermission,
    SetTrackers,
    TrackerEntry,
)
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Connect, Notice
from anabranch.core.messages import Contact, Instruction, ListHeads, ReadChain, Status
from anabranch.core.messages.registry import NETWORK
from anabranch.core.replication import ANSWER_S, COMPARE_AGAIN_S, COMPARE_EVERY_S
from anabranch.core.tracker import QUIET_S
from chains import (
    COPIER,
    ENTRIES,
    SECOND,
    STREAM,
    THIRD,
    WRITER,
    Disk,
    Writer,
    heights,
    network_rows,
    stream_rows,
)
from machines import NODES
from tracker_world import Rows, World

ANN, BEN = NODES[1:3]
COMPARED_S = COMPARE_EVERY_S * 1.25


def first_and_new(*rows: Rows) -> World:
    """Make a tracker with these chains, and another that knows nothing but where that one is."""
    world = World()
    world.add(WRITER, [*network_rows(*ENTRIES[:2]), *(row for some in rows for row in some)])
    world.add(COPIER, [], ENTRIES[0].contact)
    return world


def agree(world: World) -> bool:
    return len({node.keeper.digest for node in world.nodes.values()}) == 1


def test_a_new_tracker_copies_everything_and_serves_when_the_other_is_gone() -> None:
    long = [SetPermission(NODES[5], 1 + at % 2) for at in range(150)]
    world = first_and_new(stream_rows(STREAM, *long), stream_rows(SECOND))
    copier, disk = world.nodes[COPIER], world.disks[COPIER]
    assert agree(world)
    assert copier.keeper.streams() == [STREAM, SECOND]
    assert len(disk.rows) == 2 + 151 + 1
    world.isolate(WRITER)
    world.join(ANN, COPIER)
    for chain in (NETWORK, STREAM, SECOND):
        theirs = world.nodes[WRITER].keeper.history(chain)
        [page] = world.say(ANN, COPIER, ReadChain(1, chain))
        assert (page.height, page.head) == (theirs.height, theirs.head)
    part = StreamPart(STREAM, 0)
    world.say(ANN, COPIER, Status(part, 0))
    world.wait(QUIET_S)
    assert world.told(ANN)[-1] == Instruction(part, 1)


def test_it_starts_from_its_own_disk_when_nobody_is_there() -> None:
    rows = first_and_new(stream_rows()).disks[COPIER].rows
    world = World()
    copier = world.add(COPIER, rows, ENTRIES[0].contact)
    assert copier.keeper.streams() == [STREAM]
    world.join(ANN, COPIER)
    assert [heights(p) for p in world.say(ANN, COPIER, ReadChain(1, STREAM))] == [(0, 1, 1)]
    assert [heights(p) for p in world.say(ANN, COPIER, ReadChain(1, SECOND))] == [(0, 0, 0)]


def test_a_new_stream_is_copied_at_once() -> None:
    world = first_and_new()
    world.write(Writer(), CreateStream())
    assert agree(world)
    world.isolate(WRITER)
    assert world.nodes[COPIER].keeper.streams() == [STREAM]


def test_what_it_did_not_hear_of_is_found_by_comparing_heads() -> None:
    world = first_and_new(stream_rows())
    wire = frozenset((WRITER, COPIER))
    world.wires.remove(wire)
    names = [f"{STREAM}/{at:03}" for at in range(230)]
    for name in names:
        world.write(Writer(name), CreateStream())
        world.wait(0.05)  # as fast as one key may write for long
    world.write(Writer().add(CreateStream(public=3)), DeleteStream())
    world.wires.add(wire)
    assert world.nodes[COPIER].keeper.streams() == [STREAM]
    world.wait(COMPARED_S)
    assert world.nodes[COPIER].keeper.streams() == names
    assert agree(world)


def test_a_copy_that_could_not_be_stored_is_read_again() -> None:
    world = World()
    world.add(WRITER, [*network_rows(*ENTRIES[:2]), *stream_rows(STREAM, SetPermission(ANN, 1))])
    disk = world.disks[COPIER] = Disk()
    disk.problem = "the disk is full"
    copier = world.add(COPIER, [], ENTRIES[0].contact)
    assert (COPIER, Notice(None, "disk", "the disk is full")) in world.out
    assert copier.keeper.chains() == []
    world.wait(COMPARE_AGAIN_S * 3)
    assert copier.keeper.chains() == []
    disk.problem = ""
    world.wait(COMPARE_AGAIN_S)
    assert agree(world)
    assert copier.keeper.history(STREAM).height == 2


def test_it_dials_a_tracker_that_went_and_catches_up() -> None:
    world = first_and_new(stream_rows())
    world.isolate(WRITER)
    world.write(Writer().add(CreateStream(public=3)), DeleteStream())
    world.wait(60)
    assert world.nodes[COPIER].keeper.streams() == [STREAM]
    world.heal()
    assert world.nodes[COPIER].keeper.streams() == []


def test_a_tracker_that_does_not_answer_is_asked_again() -> None:
    world = World()
    world.add(COPIER, network_rows(*ENTRIES[:2]))
    world.join(WRITER, COPIER)  # by hand: it says nothing
    [first] = [m for m in world.told(WRITER) if type(m) is ListHeads]
    before = len(world.out)
    world.wait(ANSWER_S + COMPARE_AGAIN_S)
    [again] = [m for m in world.told(WRITER, before) if type(m) is ListHeads]
    assert (again.after, again.digest) == (first.after, first.digest)
    assert again.ticket != first.ticket
    assert not world.nodes[COPIER].replication.has_compared


def test_trackers_that_are_named_are_met_and_those_that_are_not_are_left() -> None:
    world, network = World(), Writer(NETWORK)
    world.add(WRITER, network.rows())
    for entry in ENTRIES[1:]:
        world.add(entry.node, [], ENTRIES[0].contact)
    assert frozenset((COPIER, THIRD)) not in world.wires
    world.write(network, SetTrackers(ENTRIES))
    assert frozenset((COPIER, THIRD)) in world.wires
    assert world.nodes[COPIER].replication.copies_from(THIRD)
    world.write(network, SetTrackers(ENTRIES[:2]))
    assert not world.nodes[COPIER].replication.copies_from(THIRD)
    world.part([WRITER, COPIER], [THIRD])
    dials = len(world.out)
    world.wait(30)
    dialled = {(me, e.peer) for me, e in world.out[dials:] if type(e) is Connect}
    assert dialled == {(THIRD, WRITER), (THIRD, COPIER)}  # which still wants to know all


def test_a_tracker_that_the_network_does_not_name_follows_those_it_names() -> None:
    world = World()
    rows = [*network_rows(*ENTRIES[:2]), *stream_rows()]
    world.add(WRITER, rows)
    world.add(COPIER, rows)
    world.add(THIRD, [], ENTRIES[1].contact)
    assert {w for w in world.wires if THIRD in w} == {
        frozenset((THIRD, WRITER)),
        frozenset((THIRD, COPIER)),
    }
    assert agree(world)
    world.write(Writer(SECOND), CreateStream())
    assert agree(world)
    assert not world.nodes[WRITER].replication.copies_from(THIRD)


def test_where_it_was_found_is_where_a_tracker_is_dialled_until_the_network_says_it_moved() -> None:
    world = World()
    world.cut.add(WRITER)
    network = Writer(NETWORK).add(SetTrackers(ENTRIES[:2]))
    world.add(WRITER, network.rows())
    world.add(COPIER, network.rows(), Contact(WRITER, "ws://found"))

    def addresses() -> set[str]:
        dialled = [e for me, e in world.out if me == COPIER and type(e) is Connect]
        world.out.clear()
        return {effect.address for effect in dialled}

    world.wait(20)
    assert addresses() == {"ws://found"}
    world.heal()
    moved = (TrackerEntry(WRITER, "ws://moved"), ENTRIES[1])
    world.write(network, SetTrackers(moved))
    world.isolate(WRITER)
    addresses()
    world.wait(20)
    assert addresses() == {"ws://moved"}


def test_more_claims_than_there_is_room_for_are_found_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "MAX_CLAIMS", 5)
    monkeypatch.setattr(replication, "MAX_READS", 2)
    world = first_and_new(*(stream_rows(f"{STREAM}/{at:03}") for at in range(40)))
    assert not agree(world)
    world.wait(10 * COMPARED_S)
    assert agree(world)


def test_a_new_tracker_asks_for_the_networks_chain_first() -> None:
    world = World()
    world.add(COPIER, [], ENTRIES[0].contact)
    world.join(WRITER, COPIER)  # by hand
    listing, asked = world.told(WRITER)
    assert (type(listing), asked.chain) == (ListHeads, NETWORK)
