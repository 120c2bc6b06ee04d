"""What a tracker bears of one link: questions that are not read, changes, messages that wait."""

from typing import Any

import pytest

from anabranch.core import quotas
from anabranch.core.changes import CreateStream
from anabranch.core.congestion import CUT_AFTER_S
from anabranch.core.ids import NodeId
from anabranch.core.machine import Congested, Disconnect, LinkDown, LinkUp, Writable
from anabranch.core.messages import (
    ChainPage,
    HeadList,
    ListChains,
    ListHeads,
    ReadChain,
    WriteChange,
    Written,
)
from anabranch.core.tracker_node import MAX_PARKED_FOR_ONE, UNANSWERED
from chains import COPIER, ENTRIES, OWNER, SECOND, STREAM, WRITER, Writer, network_rows, stream_rows
from machines import NODES
from tracker_world import World

ANN, BEN = NODES[1:3]
QUESTIONS = (ReadChain(1, STREAM), ListChains(2), ListHeads(3))


def world_of_one() -> tuple[World, Any]:
    """Make one tracker with a stream, and a node that is linked with it."""
    world = World()
    node = world.add(WRITER, [*network_rows(*ENTRIES[:1]), *stream_rows()])
    world.join(ANN, WRITER)
    return world, node


def cut(world: World) -> list[tuple[NodeId, str]]:
    """Return whose links were ended, and why."""
    return [(e.peer, e.reason) for _, e in world.out if type(e) is Disconnect]


# --- Full links -----------------------------------------------------------------------------


def test_who_does_not_read_the_answers_gets_no_more_of_them() -> None:
    world, node = world_of_one()
    world.join(BEN, WRITER)
    world.feed(WRITER, Congested(ANN))
    assert [world.say(ANN, WRITER, question) for question in QUESTIONS] == [[], [], []]
    assert node.tracker.counts[UNANSWERED] == len(QUESTIONS)
    assert len(world.say(BEN, WRITER, QUESTIONS[0])) == 1  # others are answered
    change = Writer(SECOND).next(CreateStream())
    assert Written(7, 1) in world.say(ANN, WRITER, WriteChange(7, change))
    world.feed(WRITER, Writable(ANN))
    answers = [type(m) for question in QUESTIONS for m in world.say(ANN, WRITER, question)]
    assert answers[0] is ChainPage
    assert answers[-1] is HeadList
    assert node.tracker.counts[UNANSWERED] == len(QUESTIONS)


def test_a_link_that_stays_full_is_cut() -> None:
    world, node = world_of_one()
    world.say(ANN, WRITER, QUESTIONS[0])
    world.feed(WRITER, Congested(ANN))
    world.wait(CUT_AFTER_S / 2)
    world.feed(WRITER, Congested(ANN))  # which gives it no more time
    world.wait(CUT_AFTER_S / 2 - 0.1)
    assert cut(world) == []
    world.wait(0.1)
    assert cut(world) == [(ANN, "link-full")]
    sizes = node.sizes()
    assert {sizes[name][0] for name in ("links", "full links", "watches")} == {0}


@pytest.mark.parametrize("relief", [Writable(ANN), LinkDown(ANN, "reset"), LinkUp(ANN)])
def test_a_link_that_has_room_again_or_is_another_one_is_not_cut(relief: Any) -> None:
    world, node = world_of_one()
    world.feed(WRITER, Congested(ANN))
    world.feed(WRITER, relief)
    assert node.sizes()["full links"][0] == 0
    world.wait(2 * CUT_AFTER_S)
    assert cut(world) == []


def test_links_that_are_no_more_are_not_full() -> None:
    world, node = world_of_one()
    world.feed(WRITER, Congested(BEN))  # it came before we knew that the link had ended
    assert node.sizes()["full links"][0] == 0


def test_a_tracker_whose_link_was_full_is_dialled_again() -> None:
    world = World()
    rows = [*network_rows(*ENTRIES[:2]), *stream_rows()]
    for tracker in (WRITER, COPIER):
        world.add(tracker, rows)
    world.feed(WRITER, Congested(COPIER))
    world.wait(CUT_AFTER_S)
    assert cut(world) == [(COPIER, "link-full")]
    world.wait(10)
    assert frozenset((WRITER, COPIER)) in world.wires
    world.write(Writer(SECOND), CreateStream())
    assert world.nodes[COPIER].keeper.streams() == [STREAM, SECOND]


# --- Changes --------------------------------------------------------------------------------


def test_a_link_brings_so_many_changes_whoever_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "WRITES_AT_ONCE", 2)
    world, _ = world_of_one()
    world.join(BEN, WRITER)
    change = WriteChange(7, Writer(SECOND).next(CreateStream()))

    def ask(node: NodeId) -> Any:
        [answer] = [m for m in world.say(node, WRITER, change) if type(m) is Written]
        return answer

    busy = "busy: one link may bring 10 changes a second: try again soon"
    assert [ask(ANN).problem for _ in range(3)] == ["", "", busy]
    assert ask(BEN).problem == ""
    world.wait(0.15)
    assert [ask(ANN).problem for _ in range(2)] == ["", busy]


def test_a_tracker_passes_on_the_changes_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "WRITES_AT_ONCE", 4)
    world = World()
    for tracker in (WRITER, COPIER):
        world.add(tracker, network_rows(*ENTRIES[:2]))
    change = WriteChange(7, Writer().next(CreateStream()))
    for node in NODES[1:7]:
        world.join(node, COPIER)
        assert Written(7, 1) in world.say(node, COPIER, change)
    assert world.nodes[WRITER].keeper.streams() == [STREAM]


def test_who_asks_too_much_of_another_tracker_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "WRITES_AT_ONCE", 0)
    world = World()
    for tracker in (WRITER, COPIER):
        world.add(tracker, network_rows(*ENTRIES[:2]))
    world.join(OWNER.node, COPIER)
    [answer] = world.say(OWNER.node, COPIER, WriteChange(7, b"x" * 100))
    assert answer.problem.startswith("busy: ")
    assert world.nodes[COPIER].sizes()["changes under way"][0] == 0


# --- Messages that wait ---------------------------------------------------------------------


def test_so_many_messages_of_one_link_wait_and_the_others_are_answered() -> None:
    world = World()
    node = world.add(COPIER, network_rows(*ENTRIES[:2]))
    for peer in (WRITER, ANN, BEN):  # the other tracker says nothing
        world.join(peer, COPIER)
    for _ in range(MAX_PARKED_FOR_ONE):
        assert world.say(ANN, COPIER, ReadChain(1, STREAM)) == []
    assert len(world.say(ANN, COPIER, ReadChain(2, STREAM))) == 1
    assert world.say(BEN, COPIER, ReadChain(3, STREAM)) == []
    world.feed(COPIER, LinkDown(ANN, "reset"))
    world.feed(COPIER, LinkUp(ANN))
    before = len(world.out)
    world.wait(1)
    assert [m.ticket for m in world.told(BEN, before)] == [3]
    assert node.sizes()["parked messages"][0] == 0
