"""Timers against a deliberately dumb twin: a dictionary that is searched from end to end."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.timers import Timers

Key = object
Step = tuple[str, Key, float]

KEYS: list[Key] = ["a", "b", ("a", 1), None, 7]  # no two of which can be ordered
TIMES = st.integers(0, 12).map(float) | st.sampled_from([0.5, 1e9, 2.0**53, 1e300, math.inf])
# Reading `next_at` tidies the heap, so runs with and without it take different ways.
WORDS = st.sampled_from(["set", "set", "set", "sooner", "cancel", "pop", "look"])
STEPS = st.lists(st.tuples(WORDS, st.sampled_from(KEYS), TIMES), max_size=60)


class Twin:
    """The same promises without a heap."""

    def __init__(self) -> None:
        self.at: dict[Key, float] = {}

    def set(self, key: Key, at: float) -> None:
        self.at[key] = at

    def sooner(self, key: Key, at: float) -> None:
        self.at[key] = min(at, self.at.get(key, at))

    def cancel(self, key: Key) -> None:
        self.at.pop(key, None)

    @property
    def next_at(self) -> float | None:
        return min(self.at.values(), default=None)

    def due(self, now: float) -> dict[Key, float]:
        return {key: at for key, at in self.at.items() if at <= now}


def play(timers: Timers[Key], twin: Twin, step: Step) -> None:
    """Take one step on both and compare what it returns."""
    word, key, at = step
    if word == "pop":
        due = twin.due(at)
        popped = timers.pop_due(at)
        assert len(popped) == len(due)
        assert set(popped) == set(due)
        assert [due[key] for key in popped] == sorted(due.values())
        for key in due:
            twin.cancel(key)
    elif word == "look":
        assert timers.next_at == twin.next_at
    elif word == "cancel":
        timers.cancel(key)
        twin.cancel(key)
    else:
        getattr(timers, word)(key, at)
        getattr(twin, word)(key, at)


@settings(max_examples=500)
@given(STEPS)
def test_timers_equal_the_twin(steps: list[Step]) -> None:
    timers: Timers[Key] = Timers()
    twin = Twin()
    for step in steps:
        play(timers, twin, step)
        assert len(timers) == len(twin.at)
        for key in KEYS:
            assert (key in timers) is (key in twin.at)
            assert timers.at(key) == twin.at.get(key)
    assert timers.next_at == twin.next_at
    play(timers, twin, ("pop", None, math.inf))
    assert (len(timers), timers.next_at) == (0, None)


def test_ties_fall_in_the_order_of_setting() -> None:
    timers: Timers[str] = Timers()
    for key in "zaqb":
        timers.set(key, 1.0)
    assert timers.pop_due(1.0) == ["z", "a", "q", "b"]


def test_a_key_is_due_at_its_time_and_not_before() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 2.0)
    assert timers.pop_due(1.999) == []
    assert timers.pop_due(2.0) == ["a"]
    assert timers.pop_due(3.0) == []


@pytest.mark.parametrize("again", [1.0, 2.0, 3.0])
def test_a_cancelled_time_does_not_come_back_with_its_key(again: float) -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 2.0)
    timers.cancel("a")
    timers.set("a", again)
    assert timers.pop_due(5.0) == ["a"]
    assert timers.pop_due(5.0) == []


def test_moving_a_key_later_leaves_the_heap_alone() -> None:
    timers: Timers[str] = Timers()
    for at in range(10_000):
        timers.set("a", float(at))
    assert len(timers._heap) == 1
    assert timers.next_at == 9_999.0


def test_cancelling_keeps_the_heap_small() -> None:
    timers: Timers[int] = Timers()
    timers.set(-1, 5.0)
    for at in range(10_000):
        timers.set(at, 1e6 + at)
        timers.cancel(at)
    assert len(timers._heap) <= 64 + 4 * len(timers) + 1
    assert timers.next_at == 5.0


def test_moving_a_key_to_and_fro_keeps_the_heap_small() -> None:
    timers: Timers[str] = Timers()
    for _ in range(10_000):
        timers.set("a", 20.0)
        assert timers.next_at == 20.0
        timers.set("a", 10.0)
    assert len(timers._heap) <= 64 + 4 * len(timers) + 1
