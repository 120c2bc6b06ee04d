"""What one node counts, per part, and how long messages took.

The hot path only adds to plain integers. Delays fall into buckets whose width grows with the
delay, so that a histogram has one size for ever, and those of many nodes add up to one.
"""

import time
from collections.abc import Mapping
from typing import Any

from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.core.messages import Report
from anabranch.core.messages.tracker import MAX_RTT_US

FINE_BITS = 5  # 32 buckets for every doubling: the middle of one is within 1.6 % of what is in it
MAX_DELAY_US = (1 << 30) - 1  # 18 minutes; longer delays count as this, except in mean and max
MAX_PARTS = 1_000  # as many as a node joins; what belongs to none of them is counted together
MAX_REASONS = 32  # per part; there are fewer in the protocol
OTHER = "other"


def _bucket(delay_us: int) -> int:
    """Return the place of a delay: small ones have their own, large ones share five bits' worth."""
    shift = delay_us.bit_length() - FINE_BITS - 1
    return delay_us if shift <= 0 else (shift << FINE_BITS) + (delay_us >> shift)


BUCKETS = _bucket(MAX_DELAY_US) + 1


def _middle(bucket: int) -> int:
    """Return the delay in the middle of a bucket."""
    shift = (bucket >> FINE_BITS) - 1
    if shift <= 0:
        return bucket
    return (((bucket & ((1 << FINE_BITS) - 1)) + (1 << FINE_BITS)) << shift) + (1 << shift >> 1)


class Delays:
    """A histogram of delays in microseconds."""

    __slots__ = ("_counts", "count", "max_us", "sum_us")

    def __init__(self) -> None:
        self._counts: list[int] = []  # made when there is something to count: most parts are quiet
        self.count = 0
        self.sum_us = 0
        self.max_us = 0

    def add(self, delay_us: int, count: int = 1) -> None:
        """Count messages that took this long."""
        if not self._counts:
            self._counts = [0] * BUCKETS
        if delay_us < 0:  # the publisher's clock is ahead of ours
            delay_us = 0
        self.count += count
        self.sum_us += delay_us * count
        if delay_us > self.max_us:
            self.max_us = delay_us
        if delay_us > MAX_DELAY_US:
            delay_us = MAX_DELAY_US
        shift = delay_us.bit_length() - (FINE_BITS + 1)  # as in _bucket, without the call
        place = delay_us if shift <= 0 else (shift << FINE_BITS) + (delay_us >> shift)
        self._counts[place] += count

    def merge(self, other: "Delays") -> None:
        """Add what another histogram holds."""
        if not other._counts:
            return
        if not self._counts:
            self._counts = [0] * BUCKETS
        self.count += other.count
        self.sum_us += other.sum_us
        self.max_us = max(self.max_us, other.max_us)
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]

    @property
    def mean_us(self) -> int:
        """The mean, rounded down; 0 if there is nothing."""
        return self.sum_us // self.count if self.count else 0

    def percentile_us(self, percent: int) -> int:
        """Return the percentile by nearest rank, within 2 %; 0 if there is nothing."""
        rank = max(1, -(-self.count * percent // 100))  # rounded up, in integers
        below = 0
        for place, count in enumerate(self._counts):
            below += count
            if below >= rank:
                return min(_middle(place), self.max_us)
        return 0

    def summary(self) -> dict[str, int]:
        """Return the figures that people look at."""
        return {
            "count": self.count,
            "mean_us": self.mean_us,
            "p50_us": self.percentile_us(50),
            "p99_us": self.percentile_us(99),
            "max_us": self.max_us,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, for JSON; buckets that are empty are left out."""
        counts = {str(place): count for place, count in enumerate(self._counts) if count}
        return {"sum_us": self.sum_us, "max_us": self.max_us, "counts": counts}

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> "Delays":
        """Read what `to_dict` wrote."""
        delays = cls()
        try:
            delays.sum_us, delays.max_us = int(written["sum_us"]), int(written["max_us"])
            counts = {int(place): int(count) for place, count in written["counts"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LocalError(f"not a histogram that `to_dict` wrote: {error!r}") from error
        if not all(0 <= place < BUCKETS and count >= 0 for place, count in counts.items()):
            raise LocalError(f"not a histogram that `to_dict` wrote: buckets go to {BUCKETS - 1}")
        delays._counts = [0] * BUCKETS
        for place, count in counts.items():
            delays._counts[place] = count
        delays.count = sum(counts.values())
        return delays


class PartMetrics:
    """What is counted for one part since the node joined it."""

    __slots__ = (
        *("delays", "delivered", "dropped", "duplicates", "missed", "published"),
        *("recent", "reported_at"),
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.duplicates = 0  # copies of frames
        self.dropped: dict[str, int] = {}  # frames, or copies of them, by reason
        self.missed = 0  # messages that slow readers of this node's own did not get
        self.recent = Delays()  # since the last report
        self.delays = Delays()  # before that
        self.reported_at: float | None = None

    def all_delays(self) -> Delays:
        """Return the delays since the node joined."""
        merged = Delays()
        merged.merge(self.delays)
        merged.merge(self.recent)
        return merged

    def snapshot(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        delays = self.all_delays()
        return {
            "published": self.published,
            "delivered": self.delivered,
            "duplicates": self.duplicates,
            "dropped": dict(sorted(self.dropped.items())),
            "missed": self.missed,
            "reported_at": self.reported_at,
            "delay": delays.summary(),
            "histogram": delays.to_dict(),
        }


class Metrics:
    """What one node counts. A part of None stands for all that the node has not joined."""

    __slots__ = ("_parts", "bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0  # links are shared by parts, so bytes are the node's
        self.bytes_out = 0
        self._parts: dict[StreamPart | None, PartMetrics] = {None: PartMetrics()}

    def part(self, part: StreamPart | None) -> PartMetrics:
        """Return a part's counters, to add to: they begin when they are first asked for."""
        found = self._parts.get(part)
        if found is None:
            if len(self._parts) > MAX_PARTS:
                return self._parts[None]
            found = self._parts[part] = PartMetrics()
        return found

    def publish(self, part: StreamPart | None, count: int = 1) -> None:
        """Count messages that left as a frame of ours."""
        self.part(part).published += count

    def deliver(self, part: StreamPart | None, count: int, delay_us: int) -> None:
        """Count messages that were handed to the application, and how long they took."""
        counted = self._parts.get(part) or self.part(part)
        counted.delivered += count
        counted.recent.add(delay_us, count)

    def duplicate(self, part: StreamPart | None, count: int = 1) -> None:
        """Count copies of frames that were here before."""
        self.part(part).duplicates += count

    def drop(self, part: StreamPart | None, reason: str, count: int = 1) -> None:
        """Count frames, or copies of them, that ended here."""
        dropped = self.part(part).dropped
        if reason not in dropped and len(dropped) >= MAX_REASONS:
            reason = OTHER
        dropped[reason] = dropped.get(reason, 0) + count

    def miss(self, part: StreamPart | None, count: int = 1) -> None:
        """Count messages that a reader of ours was too slow for."""
        self.part(part).missed += count

    def forget(self, part: StreamPart) -> None:
        """Drop the counters of a part that the node has left."""
        self._parts.pop(part, None)

    def report(
        self, part: StreamPart, now: float, unstored: int = 0, registry_age_s: int = 0
    ) -> Report:
        """Make the node's account of a part for its tracker; the delays begin anew."""
        counted = self.part(part)
        recent = counted.recent
        if recent.count:
            counted.recent = Delays()
            counted.delays.merge(recent)
        counted.reported_at = now
        return Report(
            part,
            published=counted.published,
            delivered=counted.delivered,
            duplicates=counted.duplicates,
            dropped=sum(counted.dropped.values()),
            missed=counted.missed,
            delay_mean_us=min(recent.mean_us, MAX_RTT_US),
            delay_p50_us=min(recent.percentile_us(50), MAX_RTT_US),
            delay_p99_us=min(recent.percentile_us(99), MAX_RTT_US),
            cpu_ms=cpu_ms(),
            unstored=unstored,
            registry_age_s=registry_age_s,
        )

    def delays(self) -> Delays:
        """Return the delays of all parts since the node joined them."""
        merged = Delays()
        for counted in self._parts.values():
            merged.merge(counted.all_delays())
        return merged

    def snapshot(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        shown = {part: counted for part, counted in self._parts.items() if part is not None}
        return {
            "cpu_ms": cpu_ms(),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "parts": {str(part): shown[part].snapshot() for part in sorted(shown)},
            "elsewhere": self._parts[None].snapshot(),
        }


def cpu_ms() -> int:
    """Return the processor time that this process has used."""
    return time.process_time_ns() // 1_000_000
