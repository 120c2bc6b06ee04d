"""Links that are held are dialled again, later and later, and not by all at the same moment."""

import random

from anabranch.core.machine import Connect
from anabranch.core.redial import REDIAL_FIRST_S, REDIAL_MOST_S, Redial
from machines import NODES, START

A, B = NODES[1:3]


def test_what_is_held_is_dialled_unless_its_link_stands() -> None:
    redial = Redial(random.Random(1))
    assert redial.hold({A: "ws://a"}, ()) == [Connect(A, "ws://a")]
    assert redial.hold({A: "ws://a"}, ()) == []  # it is under way
    assert Redial(random.Random(1)).hold({A: "ws://a"}, (A,)) == []


def test_who_has_moved_is_dialled_anew_and_from_then_on_there() -> None:
    redial = Redial(random.Random(1))
    redial.hold({A: "ws://a", B: "ws://b"}, (B,))
    assert redial.hold({A: "ws://other", B: "ws://elsewhere"}, (B,)) == [Connect(A, "ws://other")]
    redial.down(B, START)
    assert redial.wake(START + REDIAL_MOST_S) == [Connect(B, "ws://elsewhere")]


def test_the_delay_doubles_up_to_its_most_and_begins_anew() -> None:
    redial, now, delays = Redial(random.Random(1)), START, []
    redial.hold({A: "ws://a"}, ())
    for _ in range(8):
        redial.down(A, now)
        assert redial.wakeup_at is not None
        delays.append(redial.wakeup_at - now)
        now = redial.wakeup_at
        assert redial.wake(now) == [Connect(A, "ws://a")]
    expected = [min(REDIAL_MOST_S, REDIAL_FIRST_S * 2**n) for n in range(8)]
    assert all(0.75 * e <= d <= 1.25 * e for d, e in zip(delays, expected, strict=True))
    assert len(set(delays[4:])) == 4  # jitter
    redial.up(A)
    redial.down(A, now)
    assert redial.wakeup_at is not None
    assert redial.wakeup_at - now <= REDIAL_FIRST_S * 1.25


def test_a_fault_is_in_no_hurry() -> None:
    redial = Redial(random.Random(1))
    redial.hold({A: "ws://a"}, (A,))
    redial.down(A, START, at_fault=True)
    assert redial.wakeup_at is not None
    assert redial.wakeup_at - START >= REDIAL_MOST_S * 0.75


def test_what_is_held_no_more_or_never_was_is_not_dialled() -> None:
    redial = Redial(random.Random(1))
    redial.hold({A: "ws://a"}, (A,))
    redial.down(A, START)
    redial.down(B, START)
    redial.hold({}, ())
    assert redial.wakeup_at is None
    redial.up(A)
