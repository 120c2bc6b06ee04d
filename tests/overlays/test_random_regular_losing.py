"""Neighbours that go: for a moment, for good, or again and again."""

import pytest

from anabranch.core.machine import Effect
from anabranch.core.messages import Bye, Contact, Instruction, Meet, Status
from anabranch.overlays.membership import OVERLAP_S
from anabranch.overlays.random_regular import (
    ATTEMPT_EVERY_S,
    LOST_AFTER_S,
    STATUS_EVERY_S,
    RandomRegular,
)
from machines import NODES, PART, Member, sent

TRACKER = Contact(NODES[0])
A, B = NODES[2:4]


def told() -> Member:
    """Make a node that was told to have A and B."""
    node = Member(RandomRegular, 1, [TRACKER])
    node.join()
    node.up(TRACKER.node)
    node.hear(TRACKER.node, Instruction(PART, 1, (), (A, B)))
    return node


def settled() -> Member:
    """Make a node that has had them for a while."""
    node = told()
    node.up(A, B)
    for peer in (A, B):
        node.hear(peer, Meet(PART))
    node.wait(4 * STATUS_EVERY_S)
    return node


def statuses(effects: list[Effect]) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(status.counter, status.neighbours) for _, status in sent(Status, effects)]


def test_a_neighbour_that_is_lost_for_a_moment_is_not_reported() -> None:
    node = settled()
    node.down(A)
    assert node.neighbours == [B]
    node.wait(LOST_AFTER_S / 2)
    assert [to for to, _ in sent(Meet, node.up(A))] == [A]
    node.hear(A, Meet(PART, True))
    assert node.neighbours == [A, B]
    assert statuses(node.wait(LOST_AFTER_S)) == [(1, (A, B))]


@pytest.mark.parametrize("word", ["bye", "down"])
def test_a_neighbour_that_stays_away_is_reported(word: str) -> None:
    node = settled()
    assert (node.hear(A, Bye(PART)) if word == "bye" else node.down(A)) == []
    assert statuses(node.wait(LOST_AFTER_S - 0.1)) == []
    assert statuses(node.wait(0.1)) == [(1, (B,))]


def test_who_does_not_answer_is_asked_again_while_there_is_a_link() -> None:
    node = told()
    node.up(A)
    for _ in range(5):
        assert sent(Meet, node.wait(ATTEMPT_EVERY_S - 0.1)) == []
        assert [to for to, _ in sent(Meet, node.wait(0.1))] == [A]


def test_a_neighbour_that_said_goodbye_is_asked_again() -> None:
    node = settled()
    assert sent(Meet, node.wait(60)) == []
    node.hear(A, Bye(PART))
    assert sent(Meet, node.wait(ATTEMPT_EVERY_S - 0.1)) == []
    assert [to for to, _ in sent(Meet, node.wait(0.1))] == [A]


def test_a_report_that_is_due_waits_for_a_neighbour_that_has_just_gone() -> None:
    node = settled()
    node.wait(STATUS_EVERY_S - 0.5)
    node.down(A)
    assert statuses(node.wait(0.5)) == []
    node.up(A)
    node.hear(A, Meet(PART, True))
    assert statuses(node.wait(LOST_AFTER_S - 0.5)) == [(1, (A, B))]


def test_a_neighbour_that_comes_and_goes_does_not_keep_the_node_silent() -> None:
    node = settled()
    reports = []
    for _ in range(20):
        node.down(A)
        reports += statuses(node.wait(LOST_AFTER_S / 2))
        node.up(A)
        node.hear(A, Meet(PART, True))
        reports += statuses(node.wait(LOST_AFTER_S / 4))
    assert len(reports) >= 3


def asked_after(lost: int) -> int:
    """Lose so many of four neighbours, and return how much the next one is asked for."""
    node = Member(RandomRegular, 1, [TRACKER], 4)
    node.join()
    node.up(TRACKER.node)
    peers = NODES[2:6]
    node.hear(TRACKER.node, Instruction(PART, 1, (), (*peers,)))
    node.up(*peers)
    for peer in peers:
        node.hear(peer, Meet(PART))
    node.wait(100)
    node.down(*peers[:lost])
    node.wait(1)
    ((_, meet),) = sent(Meet, node.up(peers[0]))
    return meet.recent_ms


@pytest.mark.parametrize(("lost", "asks"), [(1, False), (2, True), (3, True), (4, True)])
def test_who_has_lost_half_of_its_neighbours_may_have_missed_something(
    lost: int, asks: bool
) -> None:
    # The others may have lost theirs as well, and all of them be cut off together.
    assert (asked_after(lost) >= 1_000 + 1_000 * OVERLAP_S) is asks
    assert asks or asked_after(lost) == 0
