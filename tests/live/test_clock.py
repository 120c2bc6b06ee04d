"""The machines' clock, on a computer whose own clock jumps."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.live.clock import CHECK_EVERY_S, SLEW, TOLERATED_S, Clock

START = 1_000_000.0


class Computer:
    """Ticks that only go forward, and a system clock that somebody sets."""

    def __init__(self) -> None:
        self.uptime_s = 50.0
        self.system_s = START
        self.clock = Clock(lambda: self.uptime_s, lambda: self.system_s)

    def wait(self, seconds: float) -> float:
        """Let time pass; return what the clock says then."""
        self.uptime_s += seconds
        self.system_s += seconds
        return self.clock()


STEPS = st.lists(
    st.tuples(
        st.floats(0, 30) | st.floats(0, CHECK_EVERY_S),  # time that passes
        st.just(0.0)
        | st.floats(-4000, 4000)
        | st.floats(-2, 2),  # and then somebody sets the clock
    ),
    max_size=60,
)


@given(STEPS)
def test_it_never_goes_back(steps: list[tuple[float, float]]) -> None:
    computer = Computer()
    latest = computer.clock()
    for seconds, jump_s in steps:
        now = computer.wait(seconds)
        assert now >= latest
        latest = now
        computer.system_s += jump_s


def test_it_is_unix_time() -> None:
    before = time.time()
    now = Clock()()
    assert before <= now <= time.time()


def test_it_keeps_step_while_nobody_sets_the_system() -> None:
    computer = Computer()
    assert [computer.wait(0.25) for _ in range(40)] == [START + 0.25 * n for n in range(1, 41)]


def test_a_jump_forward_is_followed_at_the_next_check() -> None:
    computer = Computer()
    computer.system_s += 3600.0
    assert computer.wait(CHECK_EVERY_S / 2) == START + CHECK_EVERY_S / 2
    assert computer.wait(CHECK_EVERY_S / 2) == computer.system_s


def test_a_jump_back_is_followed_slowly_until_both_agree() -> None:
    computer = Computer()
    computer.system_s -= 10.0
    checks = 0
    while computer.clock() - computer.system_s > TOLERATED_S:
        before = computer.clock()
        after = computer.wait(CHECK_EVERY_S)
        # It goes on all the while, a little slower than time.
        assert (1 - SLEW) * CHECK_EVERY_S - 1e-6 <= after - before < CHECK_EVERY_S
        checks += 1
    assert checks == pytest.approx((10.0 - TOLERATED_S) / (SLEW * CHECK_EVERY_S), abs=1)
    before = computer.clock()
    assert computer.wait(CHECK_EVERY_S) == pytest.approx(before + CHECK_EVERY_S)


def test_what_is_taken_off_at_a_check_does_not_turn_time_back() -> None:
    computer = Computer()
    computer.system_s -= 3600.0
    just_before = computer.wait(CHECK_EVERY_S - 0.01)
    assert computer.wait(0.01) == just_before
    assert computer.wait(CHECK_EVERY_S / 2) > just_before


def test_small_differences_are_left_alone() -> None:
    computer = Computer()
    computer.system_s += TOLERATED_S * 0.9
    assert computer.wait(CHECK_EVERY_S * 2) == START + CHECK_EVERY_S * 2
    computer.system_s -= TOLERATED_S * 1.8
    assert computer.wait(CHECK_EVERY_S * 2) == START + CHECK_EVERY_S * 4


def test_one_comparison_adjusts_by_what_has_passed_since_the_last() -> None:
    computer = Computer()
    computer.clock.adjust(computer.uptime_s + 20.0, START + 20.0 - 100.0)
    computer.uptime_s += 25.0
    computer.system_s += 25.0 - 100.0
    # Two seconds for the first twenty, half of one for the five since.
    assert abs(computer.clock() - (START + 25.0 - SLEW * 25.0)) < 1e-6
