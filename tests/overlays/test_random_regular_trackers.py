"""Several trackers: the next when one is out of reach, and back to the first when it returns."""

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release, Send
from anabranch.core.messages import Contact, Instruction, Leave, Meet, Status
from anabranch.core.overlay import PartSettings
from anabranch.core.tracked import LEAP
from anabranch.overlays.random_regular import (
    ATTEMPT_EVERY_S,
    SETTLE_S,
    STATUS_EVERY_S,
    TRACKER_PATIENCE_S,
    RandomRegular,
)
from machines import NODES, OTHER, PART, Member, of, sent

FIRST, SECOND, THIRD = (Contact(NODES[30 + i], f"t{i}:1") for i in range(3))
A, B = NODES[2:4]


def node(*trackers: Contact) -> Member:
    made = Member(RandomRegular, 1, trackers or (FIRST, SECOND, THIRD))
    made.join()
    return made


def holds(effects: list[Effect]) -> list[NodeId]:
    return [hold.peer for hold in of(Hold, effects)]


def reported(effects: list[Effect]) -> list[NodeId]:
    return [to for to, _ in sent(Status, effects)]


def moved() -> Member:
    """Make a node that has turned from the first tracker to the second."""
    made = node()
    made.wait(TRACKER_PATIENCE_S)
    assert reported(made.up(SECOND.node)) == [SECOND.node]
    return made


def test_the_next_tracker_is_tried_when_one_is_out_of_reach() -> None:
    made = node()
    assert made.wait(TRACKER_PATIENCE_S - 0.1) == []
    assert made.wait(0.1) == [Hold(SECOND.node, SECOND.address)]
    assert made.wait(TRACKER_PATIENCE_S) == [Hold(THIRD.node, THIRD.address)]
    assert holds(made.wait(600)) == []  # all are held; the first that answers has us
    assert reported(made.up(THIRD.node)) == [THIRD.node]


def test_a_failed_dial_does_not_lengthen_the_wait() -> None:
    made = node()
    made.wait(TRACKER_PATIENCE_S - 1)
    made.down(FIRST.node)
    assert holds(made.wait(1)) == [SECOND.node]


def test_a_tracker_that_is_away_for_a_moment_keeps_its_nodes() -> None:
    made = node()
    made.up(FIRST.node)
    made.wait(5)
    made.down(FIRST.node)
    made.wait(TRACKER_PATIENCE_S - 0.1)
    assert reported(made.up(FIRST.node)) == [FIRST.node]
    assert holds(made.wait(60)) == []


def test_a_tracker_that_stays_away_loses_its_nodes_to_the_next() -> None:
    made = node()
    made.up(FIRST.node)
    made.hear(FIRST.node, Instruction(PART, 5, (), (A,)))
    made.up(A)
    made.hear(A, Meet(PART))
    made.down(FIRST.node)
    assert holds(made.wait(TRACKER_PATIENCE_S)) == [SECOND.node]
    assert made.neighbours == [A]  # the overlay stands without any tracker
    (report,) = made.up(SECOND.node)
    assert report == Send(SECOND.node, Status(PART, 5, (A,), (0,), "1:1"))


def test_only_the_tracker_we_turned_to_instructs_us() -> None:
    made = moved()
    assert made.hear(FIRST.node, Instruction(PART, 9, (), (A,))) == []
    assert made.hear(THIRD.node, Instruction(PART, 9, (), (A,))) == []
    assert holds(made.hear(SECOND.node, Instruction(PART, 1, (), (B,)))) == [B]


def test_a_node_returns_to_the_first_tracker_when_that_is_back() -> None:
    made = moved()
    made.hear(SECOND.node, Instruction(PART, 1))
    assert made.up(FIRST.node) == [
        Send(SECOND.node, Leave(PART)),
        Release(SECOND.node),
        Send(FIRST.node, Status(PART, 1, (), (), "1:1")),
    ]
    assert made.hear(SECOND.node, Instruction(PART, 2, (), (A,))) == []
    assert holds(made.hear(FIRST.node, Instruction(PART, 2, (), (A,)))) == [A]


def test_a_node_returns_to_the_best_there_is_and_releases_the_rest() -> None:
    made = node()
    made.wait(2 * TRACKER_PATIENCE_S)
    assert made.up(SECOND.node)[:1] == [Release(THIRD.node)]
    assert made.up(THIRD.node) == []
    assert made.up(FIRST.node)[:2] == [Send(SECOND.node, Leave(PART)), Release(SECOND.node)]
    assert reported(made.wait(ATTEMPT_EVERY_S)) == [FIRST.node]


def test_after_returning_the_next_can_be_turned_to_again() -> None:
    made = moved()
    made.up(FIRST.node)
    made.down(FIRST.node)
    made.down(SECOND.node)
    assert holds(made.wait(TRACKER_PATIENCE_S)) == [SECOND.node]


@pytest.mark.parametrize("patience", range(4))
def test_leaving_releases_every_tracker_that_is_held(patience: int) -> None:
    made, held = node(), [FIRST.node]
    held += holds(made.wait(patience * TRACKER_PATIENCE_S))
    effects = made.overlay.leave(PART, made.now)
    assert [release.peer for release in of(Release, effects)] == held
    assert made.overlay.wakeup_at is None


def test_a_link_that_another_stream_has_is_used_at_once() -> None:
    made = node()
    made.up(FIRST.node)
    effects = made.join(OTHER)
    assert holds(effects) == reported(effects) == [FIRST.node]
    assert holds(made.wait(60)) == []


def test_every_stream_hears_of_a_tracker_that_is_back() -> None:
    made = node()
    made.join(OTHER)
    made.wait(TRACKER_PATIENCE_S)
    assert reported(made.up(SECOND.node)) == [SECOND.node] * 2
    assert reported(made.up(FIRST.node)) == [FIRST.node] * 2


def test_with_one_tracker_a_node_waits_for_it() -> None:
    made = node(FIRST)
    assert made.wait(600) == []
    assert reported(made.up(FIRST.node)) == [FIRST.node]
    assert reported(made.wait(ATTEMPT_EVERY_S)) == [FIRST.node]
    made.hear(FIRST.node, Instruction(PART, 1))
    assert reported(made.wait(STATUS_EVERY_S)) == [FIRST.node]
    made.down(FIRST.node)
    assert reported(made.wait(60)) == []
    assert reported(made.up(FIRST.node)) == [FIRST.node]


def test_an_instruction_of_the_old_tracker_is_finished_before_the_new_one_is_heard() -> None:
    made = moved()
    made.hear(SECOND.node, Instruction(PART, 7, (), (A,)))
    made.down(SECOND.node)
    made.wait(TRACKER_PATIENCE_S)
    assert sent(Status, made.up(THIRD.node))[0][1].counter == 0
    assert holds(made.hear(THIRD.node, Instruction(PART, 1, (), (B,)))) == []
    assert sent(Status, made.wait(SETTLE_S - TRACKER_PATIENCE_S))[0][1].counter == 7
    # Now the new tracker knows the number, and leaves a gap to it; see tracker.py.
    assert holds(made.hear(THIRD.node, Instruction(PART, 7 + LEAP, (), (B,)))) == [B]


# --- Other trackers than before -------------------------------------------------------------


def in_place(*trackers: Contact) -> Member:
    """Make a node with a tracker that it has reached, and a neighbour."""
    made = node(*trackers)
    made.up(trackers[0].node, A)
    made.hear(trackers[0].node, Instruction(PART, 1, (), (A,)))
    made.hear(A, Meet(PART))
    assert made.neighbours == [A]
    return made


def change(made: Member, *trackers: Contact, degree: int = 3) -> list[Effect]:
    settings = PartSettings("", degree, trackers)
    effects: list[Effect] = made.overlay.change(PART, settings, made.now)
    assert made.neighbours == [A]  # whatever changes, the neighbours stay
    return effects


def test_the_same_tracker_is_kept() -> None:
    made = in_place(FIRST)
    assert change(made, FIRST, SECOND) == [Hold(FIRST.node, FIRST.address), Release(FIRST.node)]
    assert made.wait(TRACKER_PATIENCE_S) == []


def test_a_tracker_that_is_none_any_more_is_left_for_the_new_one() -> None:
    made = in_place(FIRST)
    assert change(made, SECOND, THIRD) == [
        Send(FIRST.node, Leave(PART)),
        Hold(SECOND.node, SECOND.address),
        Release(FIRST.node),
    ]
    assert made.hear(FIRST.node, Instruction(PART, 2, (), (B,))) == []
    assert not made.overlay.follows(PART, FIRST.node)
    assert reported(made.up(SECOND.node)) == [SECOND.node]
    assert holds(made.hear(SECOND.node, Instruction(PART, 2, (), (A, B)))) == [B]
    assert made.overlay.follows(PART, SECOND.node)


def test_a_new_tracker_that_is_out_of_reach_is_followed_by_the_next() -> None:
    made = in_place(FIRST)
    change(made, SECOND, THIRD)
    assert holds(made.wait(TRACKER_PATIENCE_S)) == [THIRD.node]


def test_a_new_tracker_that_is_linked_already_is_told_at_once() -> None:
    made = in_place(FIRST)
    made.up(SECOND.node)
    assert reported(change(made, SECOND)) == [SECOND.node]


def test_a_better_tracker_is_dialled_and_returned_to() -> None:
    made = in_place(SECOND)
    assert change(made, FIRST, SECOND) == [
        Hold(FIRST.node, FIRST.address),
        Hold(SECOND.node, SECOND.address),
        Release(SECOND.node),
    ]
    assert made.up(FIRST.node)[:2] == [Send(SECOND.node, Leave(PART)), Release(SECOND.node)]
    assert made.overlay.follows(PART, FIRST.node)


def test_a_better_tracker_that_is_linked_already_has_us_at_once() -> None:
    made = in_place(SECOND)
    made.up(FIRST.node)
    effects = change(made, FIRST, SECOND)
    assert effects[3:5] == [Send(SECOND.node, Leave(PART)), Release(SECOND.node)]
    assert reported(effects) == [FIRST.node]


def test_without_trackers_the_neighbours_stay() -> None:
    made = in_place(FIRST)
    leave, notice, release = change(made)
    assert (leave, release) == (Send(FIRST.node, Leave(PART)), Release(FIRST.node))
    assert notice.kind == "no-tracker"
    assert holds(change(made, SECOND)) == [SECOND.node]


def test_holds_and_releases_are_balanced_whatever_changes() -> None:
    made = in_place(FIRST)
    effects: list[Effect] = [Hold(FIRST.node), Hold(A)]
    for trackers in ((SECOND, FIRST), (THIRD,), (), (FIRST, SECOND, THIRD), (SECOND,)):
        effects += change(made, *trackers)
        effects += made.wait(TRACKER_PATIENCE_S)
    effects += made.overlay.leave(PART, made.now)
    for peer in (FIRST.node, SECOND.node, THIRD.node, A):
        kinds = [type(e) for e in effects if type(e) in (Hold, Release) and e.peer == peer]
        assert kinds.count(Hold) == kinds.count(Release)


def test_a_larger_degree_holds_at_once_and_a_smaller_one_is_the_trackers_to_bring_about() -> None:
    made = in_place(FIRST)
    change(made, FIRST, degree=4)
    four = Instruction(PART, 2, (), (A, *NODES[10:13]))
    assert len(holds(made.hear(FIRST.node, four))) == 3
    made.overlay.change(PART, PartSettings("", 2, (FIRST,)), made.now)
    assert made.overlay.sizes()["neighbours beyond the degree"] == (0, 0)
    assert holds(made.hear(FIRST.node, Instruction(PART, 3, (), (A, *NODES[13:16])))) != []
