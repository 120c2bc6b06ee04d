"""Reads a range of a log for somebody outside, a page at a time.

Nothing is held for who does not read: the next page is looked up when it is asked for. What
cannot be served is a RequestError, at the first page or at any later one; what has come until then
is right, and is all there is before the offset where it ended.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart, number_of
from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.messages.storage import Selection, Span
from anabranch.core.store import Answer, LogQuery, Page, Placed
from anabranch.live.storage.columns import Columns, EncryptedError, HoleError, Wanted

if TYPE_CHECKING:
    import pyarrow

READ_BYTES = 512 * 1024  # of a page: a few milliseconds of work, for which others wait
MAX_SCANS = 1_000  # pages that are looked through for a time
# The log's own times come from one primary after the other, whose clocks may differ by so much.
CLOCKS_S = 60.0
MAX_SHOWN = 8  # damaged ranges that an error names in its text

T = TypeVar("T")


class Find(Protocol):
    """Looks something up, and returns what is made of it where it was found."""

    async def __call__(self, query: LogQuery, make: Callable[[Answer], T], /) -> T:
        """Call `make` on a thread, with the answer."""


class LogStatus(Protocol):
    """How the log of a part stands, as its storage node knows."""

    @property
    def start(self) -> int:
        """The first offset that is still there."""

    @property
    def high(self) -> int:
        """All before this offset is settled, and can be read."""

    @property
    def length(self) -> int:
        """The offset of the next message."""

    @property
    def held(self) -> int:
        """Frames without a place in the log."""

    @property
    def epoch(self) -> int:
        """The epoch of the log's primary."""

    @property
    def primary(self) -> NodeId | None:
        """Who it is, if it is known."""


Status = Callable[[StreamPart], LogStatus | None]  # None: the part is not stored here


class RequestError(Exception):
    """A request cannot be answered: a stable word for programs, and a text that says what to do."""

    def __init__(self, status: int, problem: str, text: str, **details: Any) -> None:
        super().__init__(text)
        self.status = status
        self.problem = problem
        self.details = details


class RangeReader:
    """Reads one range, from its first page to its last."""

    def __init__(self, wanted: Wanted, find: Find, status: Status) -> None:
        self._wanted = wanted
        self._find = find
        self._status = status
        self._columns = Columns(wanted)
        self._selection: Selection | None = None
        if wanted.start < wanted.end:
            self._selection = Selection(
                wanted.start, wanted.end, wanted.after, wanted.upto, wanted.whose
            )

    @property
    def schema(self) -> "pyarrow.Schema":
        """The columns, with what they are of."""
        return self._columns.schema

    @property
    def is_done(self) -> bool:
        """Whether all of the range has been read."""
        return self._selection is None

    async def read_page(self) -> list[bytes]:
        """Return the next batches as Arrow writes them; there may be none in a page."""
        wanted, selection = self._wanted, self._selection
        assert selection is not None
        position = self._columns.position
        page = Page(wanted.part, selection, wanted.end, READ_BYTES)
        try:
            answer, batches = await self._find(page, self._encode)
        except HoleError as error:
            raise self._lacking(error.offset) from error
        except EncryptedError as error:
            raise RequestError(
                409,
                "encrypted",
                f"the messages at offset {error.offset} are encrypted: ask for form=frames and "
                "decrypt them yourself",
                offset=error.offset,
            ) from error
        self._check(answer, selection.start, position)
        self._selection = answer.following
        if answer.missing:  # up to there all is good; the next page says what is not
            start = answer.missing[0].start
            self._selection = msgspec.structs.replace(selection, start=start, last=0)
        return batches

    def _encode(self, answer: Answer) -> tuple[Answer, list[bytes]]:
        """Make batches where the frames were read: a thread that has to fetch them is slower."""
        if answer.problem:
            return answer, []
        placed = answer.placed
        if answer.missing:
            placed = tuple(row for row in placed if (row.offset or 0) < answer.missing[0].start)
        batches = self._columns.add(placed)
        if answer.following is None and not answer.missing:
            self._columns.end()
        return answer, [batch.serialize() for batch in batches]

    def _check(self, answer: Answer, start: int, position: int) -> None:
        if answer.problem:
            raise RequestError(503, "failing", f"the log cannot be read now: {answer.problem}")
        status = self._status(self._wanted.part)
        if status is None:
            raise RequestError(404, "not-stored", f"{self._wanted.part} is stored here no more")
        if status.start > start:
            raise self._lacking(position)
        if answer.missing and answer.missing[0].start <= start:
            raise damaged_here(answer.missing)

    def _lacking(self, offset: int) -> RequestError:
        """Say why there is nothing at an offset that should be there."""
        status = self._status(self._wanted.part)
        if status is not None and offset < status.start:
            return cut_off(offset, status)
        return damaged_here((Span(offset, offset + 1),))


def damaged_here(missing: Sequence[Span]) -> RequestError:
    """Say which offsets are damaged."""
    count = sum(span.end - span.start for span in missing)
    shown = ", ".join(f"{span.start} to {span.end - 1}" for span in missing[:MAX_SHOWN])
    return RequestError(
        503,
        "damaged",
        f"{count} messages are damaged here, at offsets {shown}: ask another storage node, or this "
        "one later, when it has got good copies",
        offset=missing[0].start,
        missing=[[span.start, span.end] for span in missing],
    )


def cut_off(offset: int, status: LogStatus) -> RequestError:
    """Say that an offset has been deleted."""
    return RequestError(
        416,
        "cut-off",
        f"offset {offset} is not kept any more: the log begins at {status.start}",
        start=status.start,
        high=status.high,
    )


# --- Offsets by time ------------------------------------------------------------------------


class Moment(msgspec.Struct, frozen=True):
    """Where a time lies in a log: no message before `offset` is of this time or later.

    The message at `offset` is, or `offset` is the high mark; only where `exact` is false was the
    search given up before that was known.
    """

    offset: int
    exact: bool


async def find_moment(find: Find, part: StreamPart, status: LogStatus, timestamp_ms: int) -> Moment:
    """Find the first offset whose message its publisher dated at a time or later.

    Publishers' times do not ascend with the offsets. But no frame is taken that is dated much
    ahead of its place's time, and these times do ascend: what was placed long before can be left
    out by halving the log, and the rest is looked through. Of a frame that is encrypted only the
    first message's offset is known, and stands for the others.
    """
    high = status.high
    earliest_ms = timestamp_ms - int((MAX_SKEW_S + CLOCKS_S) * 1000)
    begin = await _first_placed(find, part, status.start, high, earliest_ms)
    number = max(number_of(timestamp_ms, 0), 1)
    selection: Selection | None = Selection(begin, high, after=number - 1)
    for _ in range(MAX_SCANS):
        if selection is None or selection.start >= high:
            return Moment(high, True)
        answer = await _look(find, part, selection, high)
        if answer.missing and (
            not answer.placed or answer.missing[0].start < (answer.placed[0].offset or 0)
        ):
            break
        if answer.placed:
            return Moment(_first_since(answer.placed[0], number), True)
        selection = answer.following
    assert selection is not None
    return Moment(selection.start, False)


async def _first_placed(find: Find, part: StreamPart, low: int, high: int, earliest_ms: int) -> int:
    """Return an offset before which nothing was placed at this time or later, close to it."""
    first, end = low, high
    while first < end:
        middle = (first + end) // 2
        answer = await _look(find, part, Selection(middle, high), high)
        if not answer.placed or answer.missing:
            break  # the search goes on from what is known
        row = answer.placed[0]
        assert row.offset is not None
        if row.entry.placed_ms >= earliest_ms:
            end = row.offset
        else:
            first = row.offset + frames.peek(row.entry.frame).count
    return first


async def _look(find: Find, part: StreamPart, selection: Selection, high: int) -> Answer:
    answer = await find(Page(part, selection, high, size_bytes=1), lambda found: found)
    if answer.problem:
        raise RequestError(503, "failing", f"the log cannot be read now: {answer.problem}")
    return answer


def _first_since(row: Placed, number: int) -> int:
    assert row.offset is not None
    try:
        opened = frames.messages(row.entry.frame)
    except RemoteError:  # encrypted, or nobody can open it
        return row.offset
    return row.offset + sum(message.number < number for message in opened)
