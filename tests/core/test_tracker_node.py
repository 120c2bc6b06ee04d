"""A tracker's machine: it serves the registry, asks others for what it lacks, bears no floods."""

import random

import pytest

from anabranch.core import codec, tracker_node
from anabranch.core.changes import CreateStream, Right, SetPermission, TrackerEntry
from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Connect,
    Disconnect,
    LinkDown,
    LinkUp,
    Notice,
    Received,
    Wakeup,
)
from anabranch.core.mandate import introduce
from anabranch.core.messages import (
    ChainChanged,
    ChainPage,
    Instruction,
    ListChains,
    Meet,
    ReadChain,
    Refused,
    Status,
    WriteChange,
    Written,
)
from anabranch.core.tracker import QUIET_S
from anabranch.core.tracker_node import BURST, PARKED_S, PER_S, TrackerNode
from anabranch.overlays import TOPOLOGIES
from chains import (
    COPIER,
    ENTRIES,
    NET,
    OWNER,
    SECOND,
    STREAM,
    WRITER,
    Writer,
    heights,
    network_rows,
    stream_rows,
)
from machines import KEYS, NODES, SIGNERS, START, of, sent
from tracker_world import Rows, World

ANN, BEN = NODES[1:3]
PART = StreamPart(STREAM, 0)


def pair(*rows: Rows) -> World:
    """Make two trackers that have these chains."""
    world = World()
    everything = [*network_rows(*ENTRIES[:2]), *(row for some in rows for row in some)]
    world.add(WRITER, everything)
    world.add(COPIER, everything)
    return world


def read(world: World, tracker: NodeId, chain: str, node: NodeId = ANN) -> ChainPage:
    [page] = world.say(node, tracker, ReadChain(9, chain))
    assert type(page) is ChainPage
    return page


def write_unheard(world: World, writer: Writer, *actions: CreateStream | SetPermission) -> None:
    """Have changes written while the writer's word does not reach the other tracker."""
    wire = frozenset((WRITER, COPIER))
    world.wires.remove(wire)
    for action in actions:
        world.write(writer, action)
    world.wires.add(wire)


# --- Serving --------------------------------------------------------------------------------


def test_the_first_tracker_needs_its_registry() -> None:
    with pytest.raises(LocalError, match="give it the file of its network"):
        World().add(WRITER, [])


def test_a_stream_that_is_written_can_be_joined_at_once() -> None:
    world = World()
    world.add(WRITER, network_rows(*ENTRIES[:1]))
    world.join(ANN, WRITER)
    assert world.say(ANN, WRITER, Status(PART, 0)) == []
    world.wait(1)
    assert world.told(ANN) == []  # there is no such stream
    world.write(Writer(), CreateStream(public=3))
    world.say(ANN, WRITER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN) == [Instruction(PART, 1)]


def test_changes_reach_those_who_read_from_another_tracker_at_once() -> None:
    world = pair(stream_rows())
    world.join(ANN, COPIER)
    read(world, COPIER, STREAM)
    before = len(world.out)
    writer = Writer().add(CreateStream(public=3))
    world.write(writer, SetPermission(BEN, 1))
    assert world.told(ANN, before) == [ChainChanged(STREAM, 2, writer.history.head)]


# --- Who has a place ------------------------------------------------------------------------


def test_only_those_whose_user_may_have_a_place_and_no_longer_than_he_may() -> None:
    user, writer = SIGNERS[5], Writer().add(CreateStream())
    world = World()
    world.add(WRITER, [*network_rows(*ENTRIES[:1]), *writer.rows()])
    world.join(ANN, WRITER)
    refused = Refused(PART, "unpermitted")
    assert world.say(ANN, WRITER, Status(PART, 0)) == [refused]  # for whom does it act?
    assert world.say(ANN, WRITER, introduce(user, NET, ANN, START)) == []
    assert world.say(ANN, WRITER, Status(PART, 0)) == [refused]
    world.write(writer, SetPermission(user.node, Right.PUBLISH))
    before = len(world.out)
    world.say(ANN, WRITER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN, before) == [Instruction(PART, 1)]
    assert world.nodes[WRITER].tracker.members() == [ANN]
    before = len(world.out)
    world.write(writer, SetPermission(user.node, 0))
    assert refused in world.told(ANN, before)
    assert world.nodes[WRITER].tracker.members() == []


def test_a_public_stream_asks_nobody_for_whom_he_acts() -> None:
    world = World()
    world.add(WRITER, [*network_rows(*ENTRIES[:1]), *stream_rows()])
    world.join(ANN, WRITER)
    assert world.say(ANN, WRITER, Status(PART, 0)) == []
    assert world.nodes[WRITER].tracker.members() == [ANN]


def test_a_mandate_goes_with_its_link() -> None:
    world = World()
    node = world.add(WRITER, [*network_rows(*ENTRIES[:1]), *Writer().add(CreateStream()).rows()])
    world.join(ANN, WRITER)
    world.say(ANN, WRITER, introduce(OWNER, NET, ANN, START))
    assert node.introductions.user(ANN, START) == OWNER.node
    world.feed(WRITER, LinkDown(ANN, "reset"))
    assert node.introductions.user(ANN, START) is None
    world.wires.clear()
    world.join(ANN, WRITER)
    world.say(ANN, WRITER, introduce(OWNER, NET, BEN, START))
    assert (WRITER, Disconnect(ANN, "mandate-forged")) in world.out


# --- What it does not have ------------------------------------------------------------------


def test_what_it_does_not_have_it_asks_for_before_it_says_so() -> None:
    world = pair()
    world.join(ANN, COPIER)
    write_unheard(world, Writer(), CreateStream())
    assert heights(read(world, COPIER, STREAM)) == (0, 1, 1)
    assert heights(read(world, COPIER, SECOND)) == (0, 0, 0)
    sizes = world.nodes[COPIER].sizes()
    assert {sizes[name][0] for name in ("chains looked up", "parked messages", "reads")} == {0}


def test_a_status_of_a_stream_it_does_not_have_makes_it_look() -> None:
    world = pair()
    write_unheard(world, Writer(), CreateStream(public=3))
    world.join(ANN, COPIER)
    world.say(ANN, COPIER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN) == [Instruction(PART, 1)]


def test_who_writes_looks_for_what_an_author_knew_before_it_calls_him_stale() -> None:
    world, writer = pair(stream_rows()), Writer().add(CreateStream(public=3))
    world.part([WRITER], [COPIER])
    world.wait(6)
    world.write(writer, SetPermission(ANN, 1), COPIER)
    world.apart.clear()
    world.wires.add(frozenset((WRITER, COPIER)))
    world.join(OWNER.node, WRITER)
    asked = WriteChange(7, writer.next(SetPermission(BEN, 1)))
    before = len(world.out)
    world.feed_all(
        (COPIER, LinkUp(WRITER)),
        (WRITER, LinkUp(COPIER)),
        (WRITER, Received(OWNER.node, codec.encode(asked))),
    )
    assert world.told(OWNER.node, before) == [Written(7, 3)]


def test_only_trackers_can_make_it_look_for_streams() -> None:
    world = pair()
    world.join(ANN, COPIER)
    write_unheard(world, Writer(), CreateStream())
    assert world.say(ANN, COPIER, ChainChanged(STREAM, 1)) == []
    assert world.nodes[COPIER].keeper.streams() == []


def test_a_read_does_not_wait_for_ever_while_the_other_tracker_is_silent() -> None:
    world = pair()
    world.join(ANN, COPIER)
    del world.nodes[WRITER]  # its link stands, and it says nothing
    assert world.say(ANN, COPIER, ReadChain(9, STREAM)) == []
    before = len(world.out)
    world.wait(PARKED_S)
    assert [heights(page) for page in world.told(ANN, before)] == [(0, 0, 0)]


def test_waiting_reads_are_bounded_and_go_with_their_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_node, "MAX_PARKED", 2)
    world = pair()
    world.join(ANN, COPIER)
    del world.nodes[WRITER]
    answers = [world.say(ANN, COPIER, ReadChain(at, f"{STREAM}/{at}")) for at in range(3)]
    assert [len(some) for some in answers] == [0, 0, 1]
    world.feed(COPIER, LinkDown(ANN, "reset"))
    before = len(world.out)
    world.wait(PARKED_S)
    assert world.told(ANN, before) == []


# --- What it does not bear ------------------------------------------------------------------


def test_a_flood_costs_the_link_and_trackers_are_exempt() -> None:
    world = World()
    node = world.add(WRITER, [*network_rows(*ENTRIES[:2]), *stream_rows()])
    packet = codec.encode(ListChains(1))
    for sender in (ANN, COPIER):
        node.handle(LinkUp(sender), START)
    for _ in range(int(BURST)):
        for sender in (ANN, COPIER):
            assert of(Disconnect, node.handle(Received(sender, packet), START)) == []
    for _ in range(int(PER_S)):
        assert of(Disconnect, node.handle(Received(ANN, packet), START + 1)) == []
    effects = node.handle(Received(ANN, packet), START + 1)
    assert of(Disconnect, effects) == [Disconnect(ANN, "flood")]
    assert node.handle(Received(ANN, packet), START + 1) == []
    assert len(node.handle(Received(COPIER, packet), START + 1)) == 1


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"junk", "protocol-version"),
        (codec.encode(Meet(PART)), "not-for-trackers"),
        (codec.encode(ReadChain(1, "nonsense")), "chain-name"),
        (codec.encode(WriteChange(1, b"junk")), "change-malformed"),
        (codec.encode(introduce(OWNER, b"?" * 32, ANN, START)), "mandate-forged"),
    ],
)
def test_a_fault_costs_the_link_and_all_that_was_kept_for_it(packet: bytes, reason: str) -> None:
    world = World()
    node = world.add(WRITER, [*network_rows(*ENTRIES[:2]), *stream_rows()])
    node.handle(LinkUp(ANN), START)
    node.handle(Received(ANN, codec.encode(ReadChain(1, STREAM))), START)
    effects = node.handle(Received(ANN, packet), START)
    assert of(Disconnect, effects) == [Disconnect(ANN, reason)]
    assert of(Notice, effects) == [Notice(None, "fault", f"{reason} from {ANN.hex()}")]
    assert (node.sizes()["watches"][0], node.sizes()["links"][0]) == (0, 0)
    assert node.tracker.counts["faults"] == 1


def test_links_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_node, "MAX_LINKS", 1)
    node = World().add(WRITER, network_rows())
    assert node.handle(LinkUp(ANN), START) == []
    assert node.handle(LinkUp(ANN), START) == []
    assert node.handle(LinkUp(BEN), START) == [Disconnect(BEN, "too-many-links")]


def test_answers_of_those_who_were_asked_nothing_are_ignored() -> None:
    node = World().add(WRITER, network_rows(*ENTRIES[:1]))
    node.handle(LinkUp(ANN), START)
    page = ChainPage(1, STREAM, 0, 0, NET)
    for message in (ChainChanged(STREAM, 3), page, Written(1, 3)):
        assert node.handle(Received(ANN, codec.encode(message)), START) == []
    assert sent(ReadChain, node.handle(Wakeup(), START)) == []


def test_its_first_event_begins_the_copying() -> None:
    rng = random.Random(1)
    follow = ENTRIES[0].contact
    node = TrackerNode(COPIER, NET, KEYS.verify, rng, TOPOLOGIES, (), follow)
    assert node.wakeup_at == 0.0
    assert node.handle(Wakeup(), START) == [Connect(WRITER, ENTRIES[0].address)]
    rows = network_rows(TrackerEntry(COPIER, "ws://me"))
    alone = TrackerNode(COPIER, NET, KEYS.verify, rng, TOPOLOGIES, rows)
    assert alone.handle(Wakeup(), START) == []
    assert alone.wakeup_at is None
