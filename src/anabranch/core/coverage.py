"""Which offsets of a range have not come: retention may have deleted some, or a disk lost them."""

from collections.abc import Iterable, Sequence

from anabranch.core.messages.storage import MAX_NUMBER, Selection, Span

MAX_LOST = 10_000  # ranges that are kept apart; the last one reaches over all that follow
MAX_SHOWN = 20  # ranges that a text names


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


def in_all(every: Sequence[Sequence[Span]]) -> list[Span]:
    """Return the offsets that all of some lists of ranges have; each list is in order."""
    common = list(every[0]) if every else []
    for spans in every[1:]:
        cut = [
            Span(max(one.start, other.start), min(one.end, other.end))
            for one in common
            for other in spans
            if one.start < other.end and other.start < one.end
        ]
        common = cut
    return common


class LostOffsets:
    """Offsets that are damaged at every storage node that answered."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def add(self, spans: Iterable[Span]) -> None:
        """Add ranges; those that touch become one."""
        joined: list[Span] = []
        for span in sorted([*self._spans, *spans], key=lambda each: each.start):
            if joined and span.start <= joined[-1].end:
                joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
            else:
                joined.append(span)
        if len(joined) > MAX_LOST:
            joined[MAX_LOST - 1 :] = [Span(joined[MAX_LOST - 1].start, joined[-1].end)]
        self._spans = joined

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges, in order."""
        return tuple(self._spans)

    @property
    def text(self) -> str:
        """Say which offsets are lost, and how many messages these are."""
        messages = sum(span.end - span.start for span in self._spans)
        named = [
            f"{span.start} to {span.end - 1}" if span.end - span.start > 1 else f"{span.start}"
            for span in self._spans[:MAX_SHOWN]
        ]
        more = len(self._spans) - len(named)
        others = f" and {more} more ranges" if more else ""
        return (
            f"{messages} messages, at offsets {', '.join(named)}{others}, are damaged at every "
            "storage node that answered"
        )
