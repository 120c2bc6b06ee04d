"""What nodes say of themselves, and what anybody may ask a tracker."""

import pytest

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import LinkDown
from anabranch.core.messages import Instruction, Leave, Report, Status
from anabranch.core.tracker import ABSENT_S, QUIET_S, Tracker
from machines import NODES, OTHER, PART, START, Field

A, B, C = NODES[1:4]
REPORT = Report(PART, published=5, delivered=70, duplicates=200, delay_p50_us=1_500)


def tracker(field: Field) -> Tracker:
    machine = field.hand.machine
    assert isinstance(machine, Tracker)
    return machine


def test_the_last_report_of_a_node_is_kept_with_its_time() -> None:
    field = Field()
    field.settle(A, B)
    assert tracker(field).nodes(PART)[A].report is None
    assert field.hand.hear(A, REPORT) == []
    field.hand.wait(5.0)
    newer = Report(PART, published=6)
    assert field.hand.hear(A, newer) == []
    known = tracker(field).nodes(PART)
    assert (known[A].report, known[A].report_at) == (newer, field.hand.now)
    assert known[B].report is None


@pytest.mark.parametrize(("sender", "part"), [(C, PART), (A, OTHER), (C, OTHER)])
def test_a_report_from_outside_is_ignored_and_not_punished(
    sender: NodeId, part: StreamPart
) -> None:
    field = Field()
    field.settle(A)
    assert field.hand.hear(sender, Report(part)) == []
    assert [node.report for node in tracker(field).nodes(PART).values()] == [None]
    assert (tracker(field).parts(), tracker(field).members()) == ([PART], [A])


def test_a_report_changes_no_neighbour_and_is_no_status() -> None:
    field = Field()
    field.settle(A, B, C)
    heard_at, before = tracker(field).nodes(PART)[A].heard_at, tracker(field).topology(PART)
    field.hand.wait(1.0)
    assert field.hand.hear(A, REPORT) == []
    assert tracker(field).nodes(PART)[A].heard_at == heard_at
    assert tracker(field).topology(PART) == before
    assert field.hand.wait(QUIET_S) == []


def test_a_node_that_leaves_takes_its_report_along() -> None:
    field = Field()
    field.settle(A, B)
    field.hand.hear(A, REPORT, Leave(PART), Status(PART, 0))
    assert tracker(field).nodes(PART)[A].report is None


def test_when_a_node_was_heard_last_is_known_even_if_its_status_is_stale() -> None:
    field = Field()
    field.join(A)
    assert tracker(field).nodes(PART)[A].heard_at == START
    field.settle(A)
    field.settle(B)
    field.hand.wait(1.0)
    field.hand.hear(A, Status(PART, 1))
    assert tracker(field).nodes(PART)[A].counter > 1
    assert tracker(field).nodes(PART)[A].heard_at == field.hand.now


def test_parts_members_and_neighbours_can_be_asked_for() -> None:
    field = Field()
    field.settle(C, A, B)
    field.hand.hear(B, Status(OTHER, 0))
    asked = tracker(field)
    assert asked.parts() == [PART, OTHER]
    assert asked.members() == [A, B, C]
    assert asked.parts_of(B) == [PART, OTHER]
    assert asked.parts_of(A) == [PART]
    assert asked.neighbours(PART, B) == (A, C) == asked.topology(PART)[B]
    assert asked.neighbours(OTHER, B) == ()


def test_who_is_unknown_has_nothing() -> None:
    asked = tracker(Field())
    assert (asked.parts(), asked.members(), asked.parts_of(A)) == ([], [], [])
    assert (dict(asked.nodes(PART)), asked.neighbours(PART, A)) == ({}, ())


def test_asking_is_not_remembering() -> None:
    field = Field()
    field.settle(A)
    field.hand(LinkDown(A, "reset"))
    field.hand.wait(ABSENT_S)
    asked = tracker(field)
    asked.nodes(PART), asked.parts_of(A), asked.neighbours(PART, A)
    assert (asked.parts(), asked.members()) == ([], [])


def test_what_a_tracker_does_is_counted() -> None:
    field = Field()
    field.settle(A)
    field.settle(B)
    field.hand.hear(A, REPORT)
    field.hand.hear(B, Leave(PART))
    field.hand.hear(A, Instruction(PART, 1))
    assert tracker(field).counts == {
        "statuses": 5,  # two joins and three answers to three instructions
        "reports": 1,
        "leaves": 1,
        "instructions": 3,
        "refusals": 0,
        "faults": 1,
        "probes": 0,
    }
