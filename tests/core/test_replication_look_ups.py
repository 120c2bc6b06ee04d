"""Chains that somebody merely named: looked up for him, and in nobody's way."""

from typing import Any

import pytest

from anabranch.core import look_ups, replication
from anabranch.core.changes import CreateStream, SetPermission, TrackerEntry
from anabranch.core.ids import NodeId, show
from anabranch.core.look_ups import MAX_ASKED, MAX_LOOKED_UP, MAX_LOOKED_UP_FOR_ONE
from anabranch.core.machine import LinkDown
from anabranch.core.messages import (
    ChainChanged,
    ChainHead,
    ChainPage,
    HeadList,
    ListHeads,
    ReadChain,
)
from anabranch.core.replication import MAX_READS, MAX_READS_BY_NAME
from anabranch.core.tracker_node import PARKED_S
from chains import COPIER, ENTRIES, NET, SECOND, STREAM, WRITER, Writer, heights, network_rows
from chains import page_of as true_page
from machines import NODES
from tracker_world import World

ANN, EVE = NODES[1], NODES[9]
UNSEEN = b"?" * 32


class Copier(World):
    """A tracker with nothing but the network's chain; the first tracker is played by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.me: Any = self.add(COPIER, network_rows(*ENTRIES[:2]))
        self.join(WRITER, COPIER)
        [self.listing] = [m for m in self.told(WRITER) if type(m) is ListHeads]
        self.join(ANN, COPIER)
        self.join(EVE, COPIER)

    def hear(self, message: Any) -> list[Any]:
        """Let the first tracker say something; return what it is told."""
        return self.say(WRITER, COPIER, message)

    def name(self, node: NodeId, *chains: str) -> list[list[Any]]:
        """Let a node ask for chains; return what it is told for each."""
        return [self.say(node, COPIER, ReadChain(5, chain)) for chain in chains]

    def asked(self, since: int = 0) -> list[str]:
        """Return the chains that the first tracker is asked for."""
        return [m.chain for m in self.told(WRITER, since) if type(m) is ReadChain]

    def flood(self) -> int:
        """Let many links name as many chains as there is room for; return how many."""
        for at in range(MAX_LOOKED_UP // MAX_LOOKED_UP_FOR_ONE):
            stranger = NodeId(at.to_bytes(20))
            self.join(stranger, COPIER)
            self.name(stranger, *nowhere(stranger, MAX_LOOKED_UP_FOR_ONE))
        return int(self.me.sizes()["chains looked up"][0])


def nowhere(node: NodeId, count: int) -> list[str]:
    """Name chains that do not exist."""
    return [f"{show(node)}/none/{at}" for at in range(count)]


def nothing(asked: ReadChain | str, ticket: int = 5) -> ChainPage:
    """Say that there is no such chain."""
    if isinstance(asked, ReadChain):
        return ChainPage(asked.ticket, asked.chain, 0, 0, NET)
    return ChainPage(ticket, asked, 0, 0, NET)


# --- For him who named it -------------------------------------------------------------------


def test_a_chain_is_looked_up_whatever_is_said_of_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "MAX_READS", 1)
    world = Copier()
    [first] = world.hear(ChainChanged(STREAM, 1, UNSEEN))
    world.name(ANN, SECOND)
    assert world.hear(ChainChanged(SECOND, 0, NET)) == []
    [second] = world.hear(nothing(first))
    assert second.chain == SECOND
    before = len(world.out)
    world.hear(nothing(second))
    assert world.told(ANN, before) == [nothing(SECOND)]


def test_what_a_tracker_tells_of_itself_answers_who_waits_for_it() -> None:
    world, writer = Copier(), Writer().add(CreateStream())
    [claimed] = world.hear(ChainChanged(STREAM, 1, writer.history.head))
    assert world.name(ANN, STREAM) == [[]]
    before = len(world.out)
    assert world.hear(true_page(claimed, writer)) == []  # it is not asked once more
    assert [heights(page) for page in world.told(ANN, before)] == [(0, 1, 1)]
    assert world.me.sizes()["chains looked up"][0] == 0


def test_who_waits_for_a_tracker_that_goes_is_answered_at_once() -> None:
    world = Copier()
    assert world.name(ANN, SECOND) == [[]]
    before = len(world.out)
    world.feed(COPIER, LinkDown(WRITER, "reset"))
    assert world.told(ANN, before) == [nothing(SECOND)]
    assert world.me.sizes()["chains looked up"][0] == 0


def test_no_more_than_so_many_trackers_are_asked_for_a_chain() -> None:
    world = World()
    others = tuple(TrackerEntry(node) for node in NODES[20:25])
    world.add(COPIER, network_rows(*others, ENTRIES[1]))
    world.join(ANN, COPIER)
    for entry in others:
        world.join(entry.node, COPIER)  # by hand
    before = len(world.out)
    world.say(ANN, COPIER, ReadChain(5, STREAM))
    asked = [n for n in NODES[20:25] if any(type(m) is ReadChain for m in world.told(n, before))]
    assert asked == list(NODES[20 : 20 + MAX_ASKED])


def test_one_link_has_a_few_chains_looked_up_and_is_answered_for_the_others() -> None:
    world = Copier()
    chains = nowhere(EVE, MAX_LOOKED_UP_FOR_ONE + 2)
    told = world.name(EVE, *chains)
    assert told[:MAX_LOOKED_UP_FOR_ONE] == [[]] * MAX_LOOKED_UP_FOR_ONE
    assert told[MAX_LOOKED_UP_FOR_ONE:] == [[nothing(chain)] for chain in chains[-2:]]
    assert world.name(ANN, SECOND) == [[]]  # for others there is room


def test_when_there_is_no_room_everybody_is_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(look_ups, "MAX_LOOKED_UP", 3)
    world = Copier()
    world.name(EVE, *nowhere(EVE, 3))
    assert world.name(ANN, SECOND) == [[nothing(SECOND)]]
    world.wait(PARKED_S)
    assert world.me.sizes()["chains looked up"][0] == 0  # nobody waits for these any more
    assert world.name(ANN, SECOND) == [[]]


# --- In nobody's way ------------------------------------------------------------------------


def test_a_real_difference_is_read_at_once_while_strangers_name_chains_without_end() -> None:
    world = Copier()
    assert world.flood() == MAX_LOOKED_UP
    assert len(world.asked()) == MAX_READS_BY_NAME < MAX_READS
    writer = Writer().add(CreateStream(), SetPermission(ANN, 1))
    [asked] = world.hear(ChainChanged(STREAM, 2, writer.history.head))
    assert asked.chain == STREAM
    world.hear(true_page(asked, writer))
    assert world.me.keeper.history(STREAM).head == writer.history.head


def test_all_claims_are_taken_and_read_before_what_was_named_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "MAX_READS", 1)
    world = Copier()
    [busy] = world.hear(ChainChanged(STREAM, 1, UNSEEN))
    world.flood()
    claimed = [f"{STREAM}/{at}" for at in range(5)]
    for chain in claimed:
        assert world.hear(ChainChanged(chain, 1, UNSEEN)) == []
    asked, read = busy, []
    for _ in range(6):
        [asked] = world.hear(nothing(asked))
        read.append(asked.chain)
    assert read[:5] == claimed
    assert read[5] not in claimed  # only now


def test_heads_are_compared_to_the_end_while_chains_are_looked_up() -> None:
    world = Copier()
    world.flood()
    [further] = world.hear(HeadList(world.listing.ticket, (ChainHead(STREAM, 0, NET),), True))
    assert (type(further), further.after) == (ListHeads, STREAM)
    assert not world.me.replication.has_compared
    world.hear(HeadList(further.ticket))
    assert world.me.replication.has_compared


def test_what_is_looked_up_and_claimed_is_read_as_it_is_then() -> None:
    world, writer = Copier(), Writer().add(CreateStream())
    before = len(world.out)
    world.name(ANN, STREAM)
    [named] = [m for m in world.told(WRITER, before) if type(m) is ReadChain]
    assert world.hear(ChainChanged(STREAM, 1, writer.history.head)) == []
    [asked] = world.hear(nothing(named))  # it was said before the stream was made
    world.hear(true_page(asked, writer))
    assert world.me.keeper.streams() == [STREAM]
