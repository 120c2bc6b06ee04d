"""Whether all offsets of a range have come: retention may have deleted some of them."""

from anabranch.core.messages.storage import MAX_NUMBER, Selection


class Coverage:
    """What has come of a range of offsets, in their order, if all of it was wanted."""

    def __init__(self, wanted: Selection) -> None:
        in_full = wanted.after == 0 and wanted.upto == MAX_NUMBER and not wanted.whose
        # Who asks for all from the first on means the first that there is.
        has_ends = wanted.start > 0 or wanted.end < MAX_NUMBER
        self._is_counted = in_full and has_ends and not wanted.by_number and not wanted.last
        self._next = wanted.start
        self._end = wanted.end
        self._problem = ""

    def take(self, offset: int, count: int) -> None:
        """So many messages have come."""
        self._lack(offset)
        self._next = max(self._next, offset + count)

    def ended(self, high: int) -> str:
        """Return what has not come, now that all has come that there is."""
        self._lack(min(self._end, high))
        return self._problem if self._is_counted else ""

    def _lack(self, before: int) -> None:
        if before > self._next and not self._problem:
            self._problem = f"offsets {self._next} to {before - 1} are not there any more"
