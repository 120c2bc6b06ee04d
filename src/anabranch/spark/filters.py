"""Conditions that storage nodes look at themselves, so that the rest is not even read."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import MAX_TIMESTAMP_MS, parse_node, show
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.spark.offsets import Span

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

NEVER_NULL = ("stream", "partition", "offset", "timestamp", "sequence", "publisher", "chain")

_MILLISECOND = timedelta(milliseconds=1)


class Chosen(msgspec.Struct):
    """Which rows of a read are wanted, as far as its conditions say so."""

    offsets: tuple[int, int] = (0, MAX_NUMBER)  # from one up to the other, without it
    times_ms: tuple[int, int] = (0, MAX_TIMESTAMP_MS)
    streams: frozenset[str] | None = None  # None: all
    partitions: frozenset[int] | None = None
    publishers: frozenset[str] | None = None

    @property
    def from_ms(self) -> int | None:
        """Since when, if not ever."""
        return self.times_ms[0] or None

    @property
    def to_ms(self) -> int | None:
        """Up to when, and without it, if not for ever."""
        return None if self.times_ms[1] == MAX_TIMESTAMP_MS else self.times_ms[1]

    @property
    def publisher(self) -> str | None:
        """Whose messages, if not everybody's."""
        return None if self.publishers is None else min(self.publishers, default=None)

    def trim(self, spans: Iterable[Span]) -> list[Span]:
        """Leave out whatever holds no wanted row."""
        if self.times_ms[0] >= self.times_ms[1] or self.publishers == frozenset():
            return []
        start, end = self.offsets
        return [
            Span(span.part, max(span.start, start), min(span.end, end))
            for span in spans
            if (self.streams is None or span.part.stream in self.streams)
            and (self.partitions is None or span.part.partition in self.partitions)
        ]

    def take(self, filters: "Iterable[Filter]") -> "list[Filter]":
        """Take conditions on; return those that Spark must look at itself."""
        return [condition for condition in filters if not self._take(condition)]

    def _take(self, condition: "Filter") -> bool:
        from pyspark.sql.datasource import EqualTo, In, IsNotNull

        path: tuple[str, ...] = getattr(condition, "attribute", ())
        if len(path) != 1:
            return False
        name = path[0]
        if isinstance(condition, IsNotNull):
            return name in NEVER_NULL
        if isinstance(condition, EqualTo | In):
            values = [condition.value] if isinstance(condition, EqualTo) else condition.value
            if any(value is None for value in values):
                return False
            if name in ("stream", "partition", "publisher"):
                return self._take_names(name, frozenset(values))
            if isinstance(condition, In):
                return False
        if name == "offset":
            self.offsets = _within(self.offsets, _bounds(condition, lambda value: (value, True)))
        elif name == "timestamp":
            self.times_ms = _within(self.times_ms, _bounds(condition, _milliseconds))
        else:
            return False
        return _bounds(condition, lambda value: (0, True)) is not None

    def _take_names(self, name: str, values: frozenset[Any]) -> bool:
        if name == "publisher":
            values = frozenset(value for value in values if _is_address(value))
            if len(values) > 1:  # a storage node looks for one at a time
                return False
            known, self.publishers = self.publishers, values
            if known is not None:
                self.publishers = known & values
        elif name == "stream":
            self.streams = values if self.streams is None else self.streams & values
        else:
            self.partitions = values if self.partitions is None else self.partitions & values
        return True


def _bounds(condition: "Filter", read: Any) -> tuple[int, int] | None:
    """Return from where to where a comparison holds; None if it is no comparison."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
    )

    kinds = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    if not isinstance(condition, kinds) or condition.value is None:
        return None
    below, is_exact = read(condition.value)  # the last whole number that is not above the value
    above = below if is_exact else below + 1
    if isinstance(condition, EqualTo):
        return (below, below + 1) if is_exact else (0, 0)
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        first = below + 1 if isinstance(condition, GreaterThan) else above
        return first, MAX_NUMBER
    return 0, above if isinstance(condition, LessThan) else below + 1


def _within(known: tuple[int, int], more: tuple[int, int] | None) -> tuple[int, int]:
    if more is None:
        return known
    return max(known[0], more[0]), max(min(known[1], more[1]), 0)


def _milliseconds(at: datetime) -> tuple[int, bool]:
    passed = at - datetime.fromtimestamp(0, at.tzinfo)
    return passed // _MILLISECOND, not passed % _MILLISECOND


def _is_address(value: object) -> bool:
    try:
        return isinstance(value, str) and show(parse_node(value)) == value
    except LocalError:
        return False
