"""Waits for conditions, with limits that stretch with the load of the machine.

A limit only keeps a test that hangs from hanging for ever, so that it may be long, but beside
other busy processes everything takes longer by as much as they take of the cores. `slowness` is
measured, and asked again while something is waited for: load that comes later counts as well.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MEASURED_S = 2.0  # after which the load is measured anew
WORK = 50_000  # steps of a piece of work, which takes some milliseconds
LOOK_S = 0.01


class Slowness:
    """How many times longer work takes than on a machine with a free core."""

    def __init__(self) -> None:
        self._known = 1.0
        self._measured_at = -MEASURED_S

    def __call__(self) -> float:
        """Return the slowness of the last seconds, 1.0 or more."""
        now = time.monotonic()
        if now - self._measured_at >= MEASURED_S:
            # Half of what was known stays, so that one lucky moment does not end it.
            self._known = max(1.0, self._known / 2, waiting_for_a_core(), per_core())
            self._measured_at = time.monotonic()
        return self._known


def waiting_for_a_core() -> float:
    """Return the wall time of a piece of work, beside the processor's time for it."""
    wall, own = time.perf_counter(), time.thread_time()
    for _ in range(WORK):
        pass
    own = time.thread_time() - own
    return (time.perf_counter() - wall) / own if own > 0 else 1.0


def per_core() -> float:
    """Return how many processes want each core: now, or on average over the last minute."""
    cores = os.cpu_count() or 1
    try:
        minute, _, _, now, *_ = Path("/proc/loadavg").read_text().split()
    except OSError:
        return os.getloadavg()[0] / cores if hasattr(os, "getloadavg") else 1.0
    return max(float(minute), float(now.partition("/")[0])) / cores


slowness = Slowness()


def limit(seconds: float) -> float:
    """Return how long something may take here and now that takes `seconds` at most elsewhere."""
    return seconds * slowness()


class Limit:
    """A limit that has begun; it stretches when the load grows before it has passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()

    @property
    def passed(self) -> bool:
        """Tell whether it is time to give up."""
        taken = time.monotonic() - self._began
        return taken > self._seconds and taken > limit(self._seconds)


async def within(seconds: float, work: Awaitable[T]) -> T:
    """Await something, and raise TimeoutError when it takes too long."""
    task, until = asyncio.ensure_future(work), Limit(seconds)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=min(seconds, 1.0))
            if until.passed and not task.done():
                raise TimeoutError(f"not done after {limit(seconds):.0f} s")
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait until something holds; fail, saying what, if it never does."""
    until = Limit(timeout_s)
    while not condition():
        if until.passed:
            raise AssertionError(f"never came about: {what}")
        await asyncio.sleep(LOOK_S)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    """Do the same outside of a loop."""
    until = Limit(seconds)
    while not condition():
        if until.passed:
            raise AssertionError(f"never came about: {what}")
        time.sleep(LOOK_S)
