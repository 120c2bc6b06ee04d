"""Links that are held are dialled again, later and later, and not by all at the same moment."""

import random

from anabranch.core.machine import Connect
from anabranch.core.redial import REDIAL_FIRST_S, REDIAL_MOST_S, Redial
from machines import NODES, START

A = NODES[1]


def test_what_is_held_is_dialled_unless_its_link_stands() -> None:
    redial = Redial(random.Random(1))
    assert redial.hold(A, "ws://a", is_up=False) == [Connect(A, "ws://a")]
    assert Redial(random.Random(1)).hold(A, "ws://a", is_up=True) == []


def test_the_delay_doubles_up_to_its_most_and_begins_anew() -> None:
    redial, now, delays = Redial(random.Random(1)), START, []
    redial.hold(A, "ws://a", is_up=False)
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
    redial.hold(A, "ws://a", is_up=True)
    redial.down(A, START, at_fault=True)
    assert redial.wakeup_at is not None
    assert redial.wakeup_at - START >= REDIAL_MOST_S * 0.75


def test_what_is_released_or_was_never_held_is_not_dialled() -> None:
    redial = Redial(random.Random(1))
    redial.hold(A, "ws://a", is_up=True)
    redial.down(A, START)
    redial.down(NODES[2], START)
    redial.release(A)
    assert redial.wakeup_at is None
    redial.up(A)
