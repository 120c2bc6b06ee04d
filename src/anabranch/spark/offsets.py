"""Ranges of offsets: where reading begins and ends, how much is taken, and how it is cut in tasks.

Offsets are kept by part, as `stream#partition`: Spark writes them into its checkpoints like this.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart, stream_part
from anabranch.live.errors import HistoryLost
from anabranch.live.storage.columnar import Offsets
from anabranch.spark.options import EARLIEST, LATEST, Limit

ROWS_PER_TASK = 100_000
MAX_PIECES = 100_000  # beyond that tasks become larger, whatever a storage node says it has
# From here on two tasks are quicker than one, however few parts there are.
ROWS_FOR_TWO = 20_000

Positions = dict[str, int]

logger = logging.getLogger(__name__)


class OffsetSource(Protocol):
    """Whoever knows what can be read of a part."""

    def offsets(self, part: StreamPart, timestamp_ms: int | None = None) -> Offsets:
        """Return which offsets can be read, and where a time lies among them."""


class Span(msgspec.Struct, frozen=True):
    """Offsets of one part, from `start` up to `end`, without it."""

    part: StreamPart
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many they are."""
        return max(self.end - self.start, 0)


def parse_part(text: str) -> StreamPart:
    """Read a part as a checkpoint names it."""
    stream, _, partition = text.rpartition("#")
    if not (stream and partition.isascii() and partition.isdigit()):
        raise LocalError(f"{text!r} in the checkpoint names no part of a stream: is it another's?")
    return stream_part(stream, int(partition))


def resolve(
    limit: Limit, parts: Iterable[StreamPart], source: OffsetSource, must_be_there: bool = True
) -> Positions:
    """Return the offset that a limit means in each part; those that are named must be there."""
    parts = list(parts)
    if limit.everywhere is None:
        _check_named(limit, parts)
    positions = {}
    for part in parts:
        wanted = limit.everywhere if limit.everywhere is not None else limit.each[str(part)]
        log = source.offsets(part, wanted if limit.is_time else None)
        if limit.is_time:
            positions[str(part)] = log.high if log.offset is None else log.offset
        elif wanted in (EARLIEST, LATEST):
            positions[str(part)] = log.start if wanted == EARLIEST else log.high
        else:
            positions[str(part)] = _in_range(part, wanted, log, must_be_there)
    return positions


def _in_range(part: StreamPart, wanted: int, log: Offsets, must_be_there: bool) -> int:
    if log.start <= wanted <= log.high:
        return wanted
    there = f"it can be read from {log.start} up to {log.high}"
    text = f"offset {wanted} of {part} is out of range: {there}"
    if must_be_there:
        raise HistoryLost(f"{text}; set failOnDataLoss to false to read what there is")
    logger.warning("%s", text)
    return min(max(wanted, log.start), log.high)


def _check_named(limit: Limit, parts: list[StreamPart]) -> None:
    read = set(map(str, parts))
    for name in limit.each:
        if name not in read:
            raise LocalError(f"an offset is given for {name}, which is not read here")
    for name in sorted(read):
        if name not in limit.each:
            raise LocalError(
                f"no offset is given for {name}: name one for each part that is read, "
                f"{EARLIEST} for the earliest, {LATEST} for the latest"
            )


def share(start: Positions, end: Positions, most: int) -> Positions:
    """Take at most so many messages: each part gets a share by how much it has."""
    sizes = {name: max(end[name] - start.get(name, 0), 0) for name in end}
    total = sum(sizes.values())
    if total <= most:
        return end
    shares = {name: size * most // total for name, size in sizes.items()}
    left = most - sum(shares.values())
    # What division left over goes to the smallest, which would else wait for the largest.
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        if left and shares[name] < sizes[name]:
            shares[name] += 1
            left -= 1
    return {name: start.get(name, 0) + shares[name] for name in end}


def begin_new(start: Positions, end: Positions, source: OffsetSource) -> Positions:
    """Let parts that are new begin where their logs do."""
    new = [name for name in end if name not in start]
    return start | {name: source.offsets(parse_part(name)).start for name in new}


def spans_between(start: Positions, end: Positions) -> list[Span]:
    """Return what lies between two sets of offsets; a part of which nothing is said begins at 0."""
    spans = (Span(parse_part(name), start.get(name, 0), end[name]) for name in sorted(end))
    return [span for span in spans if span.size]


def cut(spans: Iterable[Span], least: int | None = None) -> list[Span]:
    """Cut ranges so that there are enough tasks, none of them too large."""
    spans = [span for span in spans if span.size]
    total = sum(span.size for span in spans)
    if least is None:
        least = 2 if total >= ROWS_FOR_TWO else 1
    most = max(ROWS_PER_TASK, -(-total // MAX_PIECES))
    pieces: list[Span] = []
    for span in spans:
        by_size = -(-span.size // most)
        by_share = round(least * span.size / total)
        pieces += _cut(span, min(max(by_size, by_share, 1), span.size))
    return pieces


def _cut(span: Span, pieces: int) -> Iterable[Span]:
    bounds = [span.start + span.size * place // pieces for place in range(pieces + 1)]
    return [Span(span.part, bounds[place], bounds[place + 1]) for place in range(pieces)]


def merge(known: Mapping[str, int], seen: Mapping[str, int]) -> Positions:
    """Go on from what is known to what was seen; nothing goes back, nothing is forgotten."""
    merged = {name: max(offset, seen.get(name, offset)) for name, offset in known.items()}
    return merged | {name: high for name, high in seen.items() if name not in known and high}
