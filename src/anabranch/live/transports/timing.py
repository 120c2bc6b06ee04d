"""How long links are waited for."""

from functools import lru_cache

import msgspec


class Timing(msgspec.Struct, frozen=True):
    """How long is waited for what; all but the dial is counted in ticks."""

    dial_s: float = 5.0  # from the first packet to the link
    ping_every_s: float = 5.0
    ping_new_s: float = 0.5  # until there are enough samples
    silent_s: float = 12.0  # nothing at all was heard: the link is dead
    crossing_s: float = 1.0  # a second connection of the same node waits for the first to end
    linger_s: float = 2.0  # for what is queued, and for the other's goodbye
    tick_s: float = 0.25

    def ticks(self, seconds: float) -> int:
        """Return how many ticks are at least that long."""
        return _ticks(seconds, self.tick_s)


@lru_cache(64)
def _ticks(seconds: float, tick_s: float) -> int:
    return max(1, round(seconds / tick_s))
