"""Which parts a node gives account of next: all of them if they are few, else some at a time.

Reports are for people to look at. What they cost must not grow with the number of streams, or a
node in a thousand quiet ones would be busy with saying that nothing has happened.
"""

from bisect import bisect_right
from collections.abc import Sequence

from anabranch.core.ids import StreamPart

EVERY_S = 2.0
MAX_AT_ONCE = 50  # so a node in 1,000 parts reports each of them every 40 s


class Turns:
    """Remembers who had the last turn; parts may come and go in between."""

    def __init__(self) -> None:
        self._last: StreamPart | None = None

    def take(self, parts: Sequence[StreamPart]) -> Sequence[StreamPart]:
        """Return those of sorted parts whose turn it is."""
        if len(parts) <= MAX_AT_ONCE:
            return parts
        start = 0 if self._last is None else bisect_right(parts, self._last)
        chosen = [*parts[start : start + MAX_AT_ONCE]]
        chosen += parts[: MAX_AT_ONCE - len(chosen)]
        self._last = chosen[-1]
        return chosen
