"""What a tracker can do to a node by false instructions and refusals: little, and not for long."""

import pytest

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.machine import Connect, Disconnect, Effect, Hold, Notice, Release, Subscribe
from anabranch.core.messages import Contact, Instruction, Meet, Refused, Status
from anabranch.core.messages.tracker import MAX_COUNTER, MAX_NEIGHBOURS
from anabranch.core.overlay import PartSettings
from anabranch.overlays.membership import MAX_LEAP, WORDS, WORDS_PER_S
from anabranch.overlays.random_regular import (
    ATTEMPT_EVERY_S,
    STATUS_EVERY_S,
    TRACKER_PATIENCE_S,
    RandomRegular,
)
from machines import NODES, OTHER, PART, Member, beyond, of, peer, sent

TRACKER, NEXT = Contact(NODES[0], "tracker:1"), Contact(NODES[9], "next:1")
A, B, C, D = NODES[2:6]
REFUSED = Refused(PART, "unpermitted")


def told(counter: int, *peers: NodeId) -> Instruction:
    return Instruction(PART, counter, (), peers)


def settled(*peers: NodeId) -> Member:
    """Make a node that has had these neighbours for a while."""
    node = Member(RandomRegular, 1, [TRACKER, NEXT], 3)
    node.join()
    node.up(TRACKER.node)
    node.hear(TRACKER.node, told(1, *peers))
    node.up(*peers)
    for each in peers:
        node.hear(each, Meet(PART))
    node.wait(4 * STATUS_EVERY_S)
    assert node.neighbours == sorted(peers)
    return node


def kinds(effects: list[Effect]) -> list[str]:
    return [notice.kind for notice in of(Notice, effects)]


# --- Instructions ---------------------------------------------------------------------------


@pytest.mark.parametrize("sender", [A, B, NEXT.node])
def test_who_is_not_its_tracker_instructs_nobody(sender: NodeId) -> None:
    node = settled(A, B)
    node.up(NEXT.node)
    assert node.hear(sender, told(2, C)) == []
    assert node.hear(sender, REFUSED) == []
    assert node.neighbours == [A, B]


@pytest.mark.parametrize(
    "instruction",
    [
        told(2, A, B, C, D),
        told(2, *(NodeId(bytes([i]) * 20) for i in range(MAX_NEIGHBOURS))),
        told(2 + MAX_LEAP, C),
        told(MAX_COUNTER + 1, C),
        told((1 << 63) - 1, C),
    ],
)
def test_what_cannot_be_right_is_not_heeded(instruction: Instruction) -> None:
    node = settled(A, B)
    effects = node.hear(TRACKER.node, instruction)
    assert kinds(effects) == ["bad-instruction"]
    assert len(effects) == 1
    assert node.neighbours == [A, B]
    assert of(Hold, node.hear(TRACKER.node, told(2, C))) == [Hold(C, "", False)]


def test_nobody_is_its_own_neighbour() -> None:
    node = settled(A, B)
    me = node.me.node
    effects = node.hear(TRACKER.node, Instruction(PART, 2, (Contact(me, "me:1"),), (A, B, me)))
    assert of(Hold, effects) == []
    assert node.hear(me, Meet(PART)) == []
    assert node.neighbours == [A, B]


def test_one_named_twice_is_one_neighbour() -> None:
    node = settled()
    twice = Instruction(PART, 2, (Contact(A, "a:1"), Contact(A, "a:2")), (A, A))
    assert of(Hold, node.hear(TRACKER.node, twice)) == [Hold(A, "a:2", True)]
    assert of(Release, node.hear(TRACKER.node, told(3))) == [Release(A)]


def test_old_neighbours_stay_until_new_ones_stand_or_have_failed() -> None:
    """Those that do not exist, or do not answer, make no hole for longer than a moment."""
    node = settled(A, B)
    node.hear(TRACKER.node, told(2, C, D))
    assert node.neighbours == [A, B]
    assert beyond(node.overlay) == {}


def test_a_counter_that_was_driven_to_its_end_is_begun_anew() -> None:
    node = settled(A, B)
    member = node.overlay._members[PART]
    member.counter = member.working_on = MAX_COUNTER - 1  # as if over a long time
    assert kinds(node.hear(TRACKER.node, told(MAX_COUNTER + 1, C))) == ["bad-instruction"]
    (_, status), *_ = sent(Status, node.hear(TRACKER.node, told(MAX_COUNTER, A, B)))
    assert (status.counter, status.neighbours) == (0, (A, B))
    assert of(Hold, node.hear(TRACKER.node, told(1, A, C))) == [Hold(C, "", False)]


def test_a_tracker_that_floods_is_at_fault() -> None:
    node = settled(A, B)
    for counter in range(2, 2 + int(WORDS)):
        node.hear(TRACKER.node, told(counter, A, B))
    with pytest.raises(RemoteError, match="flood"):
        node.hear(TRACKER.node, told(9_999, A, B))


@pytest.mark.parametrize("word", [told(1), told(1, A, B, C, D), told(MAX_COUNTER), REFUSED])
def test_so_is_one_whose_words_are_of_no_use(word: Instruction | Refused) -> None:
    node = settled(A, B)
    for _ in range(int(WORDS)):
        node.hear(TRACKER.node, word)
    with pytest.raises(RemoteError, match="flood"):
        node.hear(TRACKER.node, word)


def test_one_that_says_as_much_as_it_may_is_not() -> None:
    node = settled(A, B)
    for counter in range(2, 2 + int(3 * WORDS)):
        node.now += 1 / WORDS_PER_S
        node.hear(TRACKER.node, told(counter, A, B))
    assert node.neighbours == [A, B]


def test_the_next_tracker_takes_the_place_of_one_at_fault_and_the_neighbours_stay() -> None:
    settings = PartSettings("random-regular", 3, (TRACKER, NEXT))
    hand = peer({PART: settings, OTHER: settings}, {"random-regular": RandomRegular})
    hand(Subscribe(PART), Subscribe(OTHER))
    hand.link(TRACKER.node, A)
    hand.hear(TRACKER.node, told(1, A))
    hand.hear(A, Meet(PART))
    effects = hand.hear(TRACKER.node, *(told(2, A) for _ in range(int(WORDS))))
    assert Disconnect(TRACKER.node, "flood") in effects
    assert Connect(NEXT.node, NEXT.address) in hand.wait(TRACKER_PATIENCE_S)
    assert hand.machine.neighbours(PART) == (A,)  # type: ignore[attr-defined]


# --- Refusals -------------------------------------------------------------------------------


def test_a_refusal_is_told_once_per_status_and_the_node_keeps_trying() -> None:
    node = Member(RandomRegular, 1, [TRACKER], 3)
    node.join()
    node.up(TRACKER.node)
    assert node.hear(TRACKER.node, REFUSED) == [Notice(PART, "refused", "unpermitted")]
    assert node.hear(TRACKER.node, REFUSED) == []
    assert len(sent(Status, node.wait(ATTEMPT_EVERY_S))) == 1
    assert node.hear(TRACKER.node, REFUSED) == [Notice(PART, "refused", "unpermitted")]
    assert len(sent(Status, node.wait(10 * ATTEMPT_EVERY_S))) == 10
    node.hear(TRACKER.node, told(1, A))
    node.up(A)
    node.hear(A, Meet(PART))
    assert node.neighbours == [A]


def test_the_registrys_word_lets_one_that_was_refused_ask_at_once() -> None:
    node = Member(RandomRegular, 1, [TRACKER], 3)
    node.join()
    node.up(TRACKER.node)
    assert node.overlay.learned(PART, node.now) == []
    node.hear(TRACKER.node, REFUSED)
    assert len(sent(Status, node.overlay.learned(PART, node.now))) == 1
    assert node.overlay.learned(PART, node.now) == []


def test_a_refusal_takes_no_neighbour_and_one_that_had_a_place_asks_again_soon() -> None:
    node = settled(A, B)
    node.hear(TRACKER.node, REFUSED)
    assert node.neighbours == [A, B]
    assert len(sent(Status, node.wait(ATTEMPT_EVERY_S))) == 1
    assert sent(Status, node.wait(STATUS_EVERY_S - 0.01)) == []
