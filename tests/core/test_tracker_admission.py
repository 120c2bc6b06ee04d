"""Who has a place in an overlay: nobody without permission, from the moment it is taken back."""

import random

import pytest

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import Instruction, Refused, Report, Status
from anabranch.core.overlay import PartSettings
from anabranch.core.tracker import AGAIN_S, QUIET_S, Tracker
from anabranch.overlays import TOPOLOGIES
from machines import NODES, OTHER, PART, Field, Hand, leftovers, sent

A, B, C, D, E = NODES[1:6]
REFUSED = Refused(PART, "unpermitted")


class Guarded(Field):
    """A field whose tracker admits only some."""

    def __init__(self, *admitted: NodeId) -> None:
        super().__init__()
        self.admitted = dict.fromkeys(admitted)
        self.until: dict[NodeId, float] = {}
        known = dict.fromkeys((PART, OTHER), PartSettings())
        self.tracker = Tracker(NODES[0], known.get, random.Random(1), TOPOLOGIES, self.admits)
        self.hand = Hand(self.tracker)

    def admits(self, part: StreamPart, node: NodeId, now: float) -> bool:
        return node in self.admitted and now < self.until.get(node, now + 1)

    def review(self, stream: str = PART.stream) -> list[Effect]:
        return self.tracker.review(stream, self.hand.now)


def test_who_is_not_admitted_is_told_so_and_leaves_no_trace() -> None:
    field = Guarded()
    field.hand.link(A)
    assert field.hand.hear(A, Status(PART, 0)) == [Send(A, REFUSED)]
    assert field.hand.hear(A, Status(PART, 7, (B,))) == [Send(A, REFUSED)]
    assert field.hand.hear(A, Report(PART)) == []
    assert field.hand.wait(60) == []
    assert leftovers(field.tracker) == {}
    assert field.tracker.wakeup_at is None
    assert field.tracker.counts["refusals"] == 2


def test_it_is_nobodys_neighbour() -> None:
    field = Guarded(A, B)
    field.settle(A, B)
    assert field.join(C) == [Send(C, REFUSED)]
    assert field.hand.wait(QUIET_S) == []
    assert (field.neighbours(A), field.neighbours(B)) == ((B,), (A,))


def test_who_is_admitted_later_has_a_place_with_its_next_status() -> None:
    field = Guarded(A)
    field.settle(A)
    field.join(B)
    field.admitted[B] = None
    field.settle(B)
    assert field.neighbours(B) == (A,)


def test_a_place_is_lost_at_once_and_the_others_are_told() -> None:
    field = Guarded(A, B, C)
    field.settle(A, B, C)
    del field.admitted[B]
    assert field.review() == [Send(B, REFUSED)]
    told = dict(sent(Instruction, field.hand.wait(QUIET_S)))
    assert sorted(told) == [A, C]
    assert field.tracker.topology(PART) == {A: (C,), C: (A,)}
    assert field.hand.hear(B, Status(PART, field.told[B].counter, (A, C))) == [Send(B, REFUSED)]


def test_the_review_of_one_stream_leaves_the_others_alone() -> None:
    field = Guarded(A, B)
    field.settle(A, B)
    field.admitted.clear()
    assert field.review(OTHER.stream) == []
    assert field.tracker.members() == [A, B]
    assert [effect.to for effect in field.review() if type(effect) is Send] == [A, B]
    assert leftovers(field.tracker) == {}
    assert field.tracker.wakeup_at is None
    assert field.review() == []


def test_a_right_that_expires_ends_with_the_next_status() -> None:
    field = Guarded(A, B)
    field.settle(A, B)
    field.until[B] = field.hand.now + 5
    field.hand.wait(5)
    assert field.report(B) == [Send(B, REFUSED)]
    assert field.tracker.members() == [A]


def test_the_wakeup_is_armed_for_what_a_review_owes() -> None:
    field = Guarded(*NODES[1:11])
    field.settle(*NODES[1:11])
    field.hand.wait(20)
    del field.admitted[A]
    field.review()
    assert field.tracker.wakeup_at == field.hand.now + QUIET_S


@pytest.mark.parametrize("counter", [0, 3])
def test_who_comes_back_permitted_begins_where_it_stands(counter: int) -> None:
    field = Guarded(A, B, C)
    field.settle(A, B, C)
    del field.admitted[B]
    field.review()
    field.report(*field.take(field.hand.wait(QUIET_S)))
    field.admitted[B] = None
    field.hand.hear(B, Status(PART, counter))
    field.report(*field.take(field.hand.wait(AGAIN_S)))
    assert field.neighbours(B) == (A, C)


def test_a_degree_that_was_edited_is_taken_up() -> None:
    field = Guarded(*NODES[1:11])
    settings = {PART: PartSettings(degree=2)}
    field.tracker._directory = settings.get
    field.settle(*NODES[1:11])
    degrees = {len(peers) for peers in field.tracker.topology(PART).values()}
    assert degrees == {2}
    settings[PART] = PartSettings(degree=4)
    assert field.review() == []
    told = dict(sent(Instruction, field.hand.wait(QUIET_S)))
    assert sorted(told) == sorted(NODES[1:11])
    degrees = {len(peers) for peers in field.tracker.topology(PART).values()}
    assert degrees == {4}
    assert field.review() == []
    assert field.hand.wait(QUIET_S) == []


def test_without_a_guard_a_review_does_nothing() -> None:
    field = Field()
    field.settle(A, B)
    assert field.hand.machine.review(PART.stream, field.hand.now) == []
    assert field.hand.machine.members() == [A, B]
