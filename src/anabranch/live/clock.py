"""The machines' clock: Unix time that never goes back."""

import time
from collections.abc import Callable

CHECK_EVERY_S = 1.0
TOLERATED_S = 0.5
SLEW = 0.1  # how much slower our clock runs while the system's is behind it


class Clock:
    """Unix seconds that follow the system's clock forward at once and backward slowly.

    Machines take time for a line: a clock set back by an hour must not stop their timers for an
    hour, nor a laptop that slept leave their messages' timestamps in the past.
    """

    __slots__ = ("_checked_at", "_latest", "_offset_s", "_system", "_ticks")

    def __init__(
        self,
        ticks: Callable[[], float] = time.monotonic,
        system: Callable[[], float] = time.time,
    ) -> None:
        self._ticks, self._system = ticks, system
        self._checked_at = ticks()
        self._latest = system()
        self._offset_s = self._latest - self._checked_at

    def __call__(self) -> float:
        """Return the time now."""
        read = self._ticks  # Python finds what is no method sooner if it is taken out first
        ticks = read()
        if ticks - self._checked_at >= CHECK_EVERY_S:
            self.adjust(ticks, self._system())
        # What a check takes off may have been shown just before it: then time stands still.
        if ticks + self._offset_s > self._latest:
            self._latest = ticks + self._offset_s
        return self._latest

    def adjust(self, ticks: float, system: float) -> None:
        """Compare with the system's clock: jump forward to it, or let it catch up."""
        elapsed_s = ticks - self._checked_at
        self._checked_at = ticks
        behind_s = system - (ticks + self._offset_s)
        if behind_s > TOLERATED_S:
            self._offset_s += behind_s
        elif behind_s < -TOLERATED_S:
            self._offset_s -= min(-behind_s, SLEW * elapsed_s)
