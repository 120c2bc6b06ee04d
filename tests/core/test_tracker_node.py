"""A tracker's machine: it writes or copies the registry, serves it, and bears no floods."""

import random

import pytest

from anabranch.core import codec, tracker_node
from anabranch.core.changes import (
    CreateStream,
    DeleteStream,
    SetPermission,
    SetTrackers,
    TrackerEntry,
    pack_page,
)
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
from anabranch.core.messages import (
    ChainChanged,
    ChainList,
    ChainPage,
    Instruction,
    ListChains,
    Meet,
    ReadChain,
    Status,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.tracker import QUIET_S
from anabranch.core.tracker_node import (
    BURST,
    DISK_AGAIN_S,
    LIST_EVERY_S,
    PARKED_S,
    PER_S,
    TrackerNode,
)
from anabranch.overlays.regular_graph import RegularGraph
from chains import (
    COPIER,
    ENTRIES,
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
from machines import KEYS, NODES, START, of, sent
from tracker_world import Rows, World

ANN, BEN = NODES[1:3]
PART = StreamPart(STREAM, 0)


def pair(*rows: Rows) -> World:
    """Make a writer with these chains and a tracker that copies from it."""
    world = World()
    everything = [*network_rows(*ENTRIES[:2]), *(row for some in rows for row in some)]
    world.add(WRITER, everything)
    world.add(COPIER, [], ENTRIES[0].contact)
    return world


def read(world: World, tracker: NodeId, chain: str, node: NodeId = ANN) -> ChainPage:
    [page] = world.say(node, tracker, ReadChain(9, chain))
    assert type(page) is ChainPage
    return page


def write_unheard(world: World, writer: Writer) -> None:
    """Have a stream created while the writer's word does not reach the copier."""
    wire = frozenset((WRITER, COPIER))
    world.wires.remove(wire)
    world.write(writer, CreateStream())
    world.wires.add(wire)
    assert writer.state.chain not in world.nodes[COPIER].keeper.streams()


# --- The first tracker ----------------------------------------------------------------------


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
    world.write(Writer(), CreateStream())
    world.say(ANN, WRITER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN) == [Instruction(PART, 1)]


def test_it_writes_until_others_are_named_and_follows_the_one_that_is() -> None:
    world = World()
    first = world.add(COPIER, network_rows())
    assert (first.keeper.is_writer, first.reader) == (True, None)
    world.add(WRITER, network_rows(*ENTRIES[:2]))
    world.join(OWNER.node, COPIER)
    change = Writer(NETWORK).next(SetTrackers(ENTRIES[:2]))
    assert world.say(OWNER.node, COPIER, WriteChange(1, change)) == [Written(1, 2)]
    assert not first.keeper.is_writer
    assert frozenset((COPIER, WRITER)) in world.wires
    world.write(Writer(), CreateStream())
    world.wait(LIST_EVERY_S)
    assert first.keeper.streams() == [STREAM]


# --- A tracker that copies ------------------------------------------------------------------


def test_a_new_tracker_copies_everything_and_serves_when_the_writer_is_gone() -> None:
    long = [SetPermission(NODES[5], 1 + at % 2) for at in range(150)]
    world = pair(stream_rows(STREAM, *long), stream_rows(SECOND))
    copier, disk = world.nodes[COPIER], world.disks[COPIER]
    assert copier.keeper.streams() == [STREAM, SECOND]
    assert len(disk.rows) == 2 + 151 + 1
    world.isolate(WRITER)
    world.join(ANN, COPIER)
    for chain in (NETWORK, STREAM, SECOND):
        theirs = world.nodes[WRITER].keeper.state(chain)
        page = read(world, COPIER, chain)
        assert (page.height, page.head) == (theirs.height, theirs.head)
    world.say(ANN, COPIER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN)[-1] == Instruction(PART, 1)


def test_it_starts_from_its_own_disk_when_nobody_is_there() -> None:
    rows = pair(stream_rows()).disks[COPIER].rows
    world = World()
    world.cut.add(WRITER)
    copier = world.add(COPIER, rows, ENTRIES[0].contact)
    assert copier.keeper.streams() == [STREAM]
    world.join(ANN, COPIER)
    assert heights(read(world, COPIER, STREAM)) == (0, 1, 1)
    assert heights(read(world, COPIER, SECOND)) == (0, 0, 0)  # it can ask nobody
    assert not copier.keeper.is_writer


def test_changes_reach_it_and_those_who_read_from_it_at_once() -> None:
    world = pair(stream_rows())
    world.join(ANN, COPIER)
    read(world, COPIER, STREAM)
    before = len(world.out)
    world.write(Writer().add(CreateStream(public=3)), DeleteStream())
    assert world.told(ANN, before) == [ChainChanged(STREAM, 2)]
    assert world.nodes[COPIER].keeper.streams() == []


def test_what_it_does_not_have_it_asks_for_before_it_says_so() -> None:
    world = pair()
    world.join(ANN, COPIER)
    write_unheard(world, Writer())
    assert heights(read(world, COPIER, STREAM)) == (0, 1, 1)
    assert heights(read(world, COPIER, SECOND)) == (0, 0, 0)
    sizes = world.nodes[COPIER].sizes()
    assert (sizes["followed chains"][0], sizes["parked messages"][0]) == (2, 0)


def test_a_status_of_a_stream_it_does_not_have_makes_it_look() -> None:
    world = pair()
    write_unheard(world, Writer())
    world.join(ANN, COPIER)
    world.say(ANN, COPIER, Status(PART, 0))
    world.wait(QUIET_S)
    assert world.told(ANN) == [Instruction(PART, 1)]


def test_it_copies_a_new_stream_at_once() -> None:
    world = pair()
    world.write(Writer(), CreateStream())
    world.isolate(WRITER)
    assert world.nodes[COPIER].keeper.streams() == [STREAM]


def test_only_trackers_can_make_it_look_for_streams() -> None:
    world = pair()
    world.join(ANN, COPIER)
    write_unheard(world, Writer())
    assert world.say(ANN, COPIER, ChainChanged(STREAM, 1)) == []
    assert world.nodes[COPIER].keeper.streams() == []


def test_new_streams_that_it_did_not_hear_of_are_found_by_listing_them() -> None:
    world = pair()
    names = [f"{STREAM}/{at:03}" for at in range(130)]
    for name in names:
        write_unheard(world, Writer(name))
    world.wait(LIST_EVERY_S)
    assert world.nodes[COPIER].keeper.streams() == names


def test_a_read_does_not_wait_for_ever_while_the_writer_is_silent() -> None:
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


def test_a_copy_that_could_not_be_stored_is_read_again() -> None:
    world = World()
    world.add(WRITER, [*network_rows(*ENTRIES[:2]), *stream_rows(STREAM, SetPermission(ANN, 1))])
    disk = world.disks[COPIER] = Disk()
    disk.problem = "the disk is full"
    copier = world.add(COPIER, [], ENTRIES[0].contact)
    assert (COPIER, Notice(None, "disk", "the disk is full")) in world.out
    assert copier.keeper.chains() == []
    disk.problem = ""
    world.wait(DISK_AGAIN_S + LIST_EVERY_S)
    assert copier.keeper.chains() == [NETWORK, STREAM]
    assert copier.keeper.state(STREAM).height == 2


def test_it_refuses_to_write() -> None:
    world = pair()
    world.join(ANN, COPIER)
    [answer] = world.say(ANN, COPIER, WriteChange(3, Writer().next(CreateStream())))
    assert answer.problem.startswith("not-the-writer")


def test_it_dials_a_writer_that_went_and_catches_up() -> None:
    world = pair(stream_rows())
    world.isolate(WRITER)
    world.write(Writer().add(CreateStream(public=3)), DeleteStream())
    world.wait(60)
    assert world.nodes[COPIER].keeper.streams() == [STREAM]
    world.cut.clear()
    world.wait(7)
    assert world.nodes[COPIER].keeper.streams() == []


def test_a_writer_that_lies_is_cut_off_and_what_it_said_first_is_kept() -> None:
    rows = [*network_rows(*ENTRIES[:2])]
    world = World()
    copier = world.add(COPIER, rows, ENTRIES[0].contact)
    world.join(WRITER, COPIER)
    [listing] = [m for m in world.told(WRITER) if type(m) is ListChains]
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    reply = ChainList(listing.ticket, (STREAM,))
    asked = [m for m in world.say(WRITER, COPIER, reply) if type(m) is ReadChain][-1]
    lie = pack_page([writer.changes[0], writer.changes[1][:-1] + b"\0"], 0)
    page = ChainPage(asked.ticket, STREAM, 0, 2, writer.state.head, lie)
    world.feed(COPIER, Received(WRITER, codec.encode(page)))
    assert (COPIER, Disconnect(WRITER, "change-forged")) in world.out
    assert copier.keeper.state(STREAM) is None
    world.join(WRITER, COPIER)
    again = [m for m in world.told(WRITER) if type(m) is ReadChain and m.chain == STREAM][-1]
    assert again.after == 0
    truth = ChainPage(again.ticket, STREAM, 0, 2, writer.state.head, pack_page(writer.changes, 0))
    world.say(WRITER, COPIER, truth)
    assert copier.keeper.state(STREAM).height == 2


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


def test_answers_to_nobody_are_ignored_by_the_writer() -> None:
    node = World().add(WRITER, network_rows(*ENTRIES[:1]))
    node.handle(LinkUp(ANN), START)
    assert node.handle(Received(ANN, codec.encode(ChainChanged(STREAM, 3))), START) == []
    assert sent(ReadChain, node.handle(Wakeup(), START)) == []


def test_its_first_event_begins_the_copying() -> None:
    world = World()
    world.cut.add(WRITER)
    node = TrackerNode(
        COPIER, NET, KEYS.verify, random.Random(1), RegularGraph[NodeId], (), ENTRIES[0].contact
    )
    assert node.wakeup_at == 0.0
    assert node.handle(Wakeup(), START) == [Connect(WRITER, ENTRIES[0].address)]
    entry = TrackerEntry(COPIER, "ws://me")
    alone = TrackerNode(
        COPIER, NET, KEYS.verify, random.Random(1), RegularGraph[NodeId], network_rows(entry)
    )
    assert alone.handle(Wakeup(), START) == []
    assert alone.wakeup_at is None
