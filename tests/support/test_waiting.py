"""Limits of waits stretch with the load, and waits end when their condition holds."""

import asyncio

import pytest

from support import waiting
from support.waiting import Limit, Slowness, eventually, limit, wait_until, within


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the load be what the test says, and be measured each time."""
    said = [1.0]
    monkeypatch.setattr(waiting, "slowness", lambda: said[-1])
    return said


def test_slowness_is_at_least_one_and_keeps_half_of_what_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "MEASURED_S", 0.0)
    monkeypatch.setattr(waiting, "waiting_for_a_core", lambda: 1.0)
    runnable = iter([0.1, 8.0, 0.1, 0.1, 0.1])
    monkeypatch.setattr(waiting, "per_core", lambda: next(runnable))
    slowness = Slowness()
    assert [slowness() for _ in range(5)] == [1.0, 8.0, 4.0, 2.0, 1.0]


def test_measures_of_load_are_plausible() -> None:
    assert 0.5 < waiting.waiting_for_a_core() < 1_000
    assert 0 <= waiting.per_core() < 1_000


def test_limit_stretches_with_the_load_also_after_it_began(load: list[float]) -> None:
    assert limit(3.0) == 3.0
    begun = Limit(0.0)
    assert begun.passed
    begun = Limit(0.001)
    load.append(1e6)
    assert limit(3.0) == 3e6
    waiting.time.sleep(0.002)
    assert not begun.passed


@pytest.mark.usefixtures("load")
def test_waits_for_what_never_comes_say_what_it_was() -> None:
    with pytest.raises(AssertionError, match="never came about: rain"):
        wait_until(lambda: False, "rain", 0.01)
    with pytest.raises(AssertionError, match="never came about: rain"):
        asyncio.run(eventually(lambda: False, "rain", 0.01))


@pytest.mark.usefixtures("load")
def test_within_returns_raises_or_gives_up_and_cancels() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        assert await within(5, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(KeyError, match="lost"):
            await within(5, fail())
        with pytest.raises(TimeoutError, match="not done"):
            await within(0.01, forever())
        assert ended == ["cancelled"]
        waiting_for = asyncio.create_task(within(5, forever()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting_for.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting_for
        assert ended == ["cancelled"] * 2

    asyncio.run(main())
