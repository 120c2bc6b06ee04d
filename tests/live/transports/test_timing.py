"""Waiting is counted in ticks, and at least in one."""

from anabranch.live.transports.timing import Timing


def test_seconds_become_whole_ticks() -> None:
    timing = Timing(tick_s=0.25)
    assert timing.ticks(5.0) == 20
    assert timing.ticks(0.3) == 1
    assert timing.ticks(0.4) == 2


def test_nothing_takes_less_than_a_tick() -> None:
    assert Timing(tick_s=0.25).ticks(0.001) == 1
    assert Timing(tick_s=60.0).ticks(1.0) == 1
