"""Frames of a log as Arrow record batches: a row for each message, or for each frame.

Rows of messages are what Spark and others read as they are: names are text, times have the unit
that Spark knows, nothing is unsigned. A frame that its publisher signed although nobody can open it
has no rows, as it has no messages for a subscriber; the offsets go on behind it. An encrypted
frame cannot be told from inside: whoever has the key reads rows of frames, which hold each frame
as it was signed.

    messages    offset, timestamp, sequence, publisher, chain, late, content_type, key, value
    frames      offset, count, first, last, previous, chain, late, gap, epoch, placed, frame

`key` is null if a message has none. A content type that promises one where there is none stays so.
`late` is true if the log has a newer frame of the chain before this one. `gap` is the first number
of the messages that were missing before a frame when it was placed; they end at `previous`. It is 0
if none were.

`offset` of a frame is that of its first message; `first`, `last` and `previous` are numbers, which
pack (timestamp in ms, sequence) into one integer. A frame may begin before the range that was
asked for, and end behind it; messages are exactly those of the range.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from operator import lt
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.frames import HEAD, SIGNATURE_BYTES
from anabranch.core.ids import CHAIN_KEY_BYTES, MAX_SEQUENCE, SEQUENCE_BITS, ChainKey, StreamPart
from anabranch.core.message_key import split_key
from anabranch.core.messages.data import KEYED, MAX_CONTENT_BYTES, Body
from anabranch.core.messages.storage import LATE, MAX_NUMBER
from anabranch.core.store import Placed
from anabranch.live.message import names_of_chain

if TYPE_CHECKING:
    import pyarrow

MESSAGES, FRAMES = "messages", "frames"
FORMS = (MESSAGES, FRAMES)
KEY = "key"  # the column that may be null
MAX_ROWS = 4_096  # of a batch
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # how an Arrow stream says that it is complete

Ahead = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
ContentType = Annotated[int, msgspec.Meta(ge=0, le=255)]
Content = Annotated[bytes, msgspec.Meta(max_length=MAX_CONTENT_BYTES)]

_HEAD_BYTES = HEAD.size
_US_IN_MS = 1_000
_unpack_head = HEAD.unpack_from
# Of the head only what a message needs: chain, first, last and count.
_unpack_some = struct.Struct(">17x28s8xQQH").unpack_from
_decode_body = msgspec.msgpack.Decoder(Body).decode
# As `Items`, but tuples: they come apart into columns at a fraction of what objects cost.
_decode_items = msgspec.msgpack.Decoder(tuple[tuple[Ahead, ContentType, Content], ...]).decode


class Wanted(msgspec.Struct, frozen=True):
    """What is read: offsets from `start` up to `end`, without it, and which of these."""

    part: StreamPart
    start: int
    end: int
    form: str = MESSAGES
    whose: bytes = b""  # a publisher, or one chain of it
    after: int = 0
    upto: int = MAX_NUMBER  # numbers above `after`, up to this one

    @property
    def is_dense(self) -> bool:
        """Whether every message of the range is wanted, so that none may be lacking."""
        return not self.whose and self.after == 0 and self.upto == MAX_NUMBER


class HoleError(Exception):
    """The log has nothing at an offset where something should be."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"there is nothing at offset {offset}")
        self.offset = offset


class EncryptedError(Exception):
    """The frame at an offset is encrypted, so its messages cannot be told here."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the frame at offset {offset} is encrypted")
        self.offset = offset


def arrow() -> Any:
    """Return Arrow's library, which only those need who serve or read columns."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise LocalError(
            "columns need pyarrow, which is not installed: pip install 'anabranch[storage]'"
        ) from error
    return pyarrow


def schema_of(wanted: Wanted) -> "pyarrow.Schema":
    """Return the columns of what is read; the metadata say which range of what it is."""
    pa = arrow()
    if wanted.form == MESSAGES:
        fields = [
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("sequence", pa.int32()),
            ("publisher", pa.string()),
            ("chain", pa.string()),
            ("late", pa.bool_()),
            ("content_type", pa.int16()),
            (KEY, pa.binary()),
            ("value", pa.binary()),
        ]
    else:
        fields = [
            ("offset", pa.int64()),
            ("count", pa.int32()),
            ("first", pa.int64()),
            ("last", pa.int64()),
            ("previous", pa.int64()),
            ("chain", pa.binary(CHAIN_KEY_BYTES)),
            ("late", pa.bool_()),
            ("gap", pa.int64()),
            ("epoch", pa.int64()),
            ("placed", pa.timestamp("us", tz="UTC")),
            ("frame", pa.binary()),
        ]
    about = {
        "stream": wanted.part.stream,
        "partition": str(wanted.part.partition),
        "start": str(wanted.start),
        "end": str(wanted.end),
        "form": wanted.form,
    }
    columns = [pa.field(name, kind, nullable=name == KEY) for name, kind in fields]
    return pa.schema(columns, metadata=about)


class Columns:
    """Makes batches of the frames of a range, which come in order, some at a time."""

    def __init__(self, wanted: Wanted) -> None:
        self.schema = schema_of(wanted)
        self.position = wanted.start  # up to here everything has come
        self._wanted = wanted

    def add(self, placed: Sequence[Placed]) -> list["pyarrow.RecordBatch"]:
        """Return the rows of the next frames, in batches of a good size."""
        if not placed:
            return []
        whole = self._messages(placed) if self._wanted.form == MESSAGES else self._frames(placed)
        return [whole.slice(at, MAX_ROWS) for at in range(0, whole.num_rows, MAX_ROWS)]

    def end(self) -> None:
        """Check that nothing is lacking at the end of the range."""
        if self._wanted.is_dense and self.position < self._wanted.end:
            raise HoleError(self.position)

    # --- Rows of messages -----------------------------------------------------------------

    def _messages(self, placed: Sequence[Placed]) -> "pyarrow.RecordBatch":
        offsets: list[int] = []
        numbers: list[int] = []
        types: list[int] = []
        values: list[bytes] = []
        whose: list[int] = []  # the place of each message's chain among `chains`
        late: list[range] = []  # of the rows
        chains: dict[bytes, int] = {}
        dense, position = self._wanted.is_dense, self.position
        for row in placed:
            entry, offset = row.entry, row.offset
            frame, begin = entry.frame, len(offsets)
            chain, first, last, count = _unpack_some(frame)
            assert offset is not None
            if dense and not offset <= position < offset + count:
                raise HoleError(position)
            position = offset + count
            try:
                body = _decode_body(frame[_HEAD_BYTES:-SIGNATURE_BYTES])
                if body.encryption:
                    raise EncryptedError(offset)
                items = _decode_items(body.items)
            except (msgspec.DecodeError, RecursionError):
                continue  # its publisher signed it so: nobody can open it
            place = chains.get(chain)
            if place is None:
                place = chains[chain] = len(chains)
            if len(items) != count:
                continue
            if count == 1:  # the ordinary case, and the one where each frame costs a row's time
                ahead, content_type, content = items[0]
                if ahead == 0:
                    offsets.append(offset)
                    numbers.append(first)
                    types.append(content_type)
                    values.append(content)
                    whose.append(place)
            else:
                aheads, its_types, contents = zip(*items, strict=True)
                if _fill(aheads, last - first):
                    offsets.extend(range(offset, position))
                    numbers.extend([first + ahead for ahead in aheads])
                    types.extend(its_types)
                    values.extend(contents)
                    whose.extend([place] * count)
            if entry.mark == LATE:
                late.append(range(begin, len(offsets)))
        self.position = position
        return self._trimmed(offsets, numbers, types, values, whose, list(chains), late)

    def _trimmed(
        self,
        offsets: list[int],
        numbers: list[int],
        types: Sequence[int],
        values: Sequence[bytes],
        whose: list[int],
        chains: list[bytes],
        late: list[range],
    ) -> "pyarrow.RecordBatch":
        pa, wanted = arrow(), self._wanted
        pc = pa.compute
        packed = pa.array(numbers, pa.int64())
        times = pc.multiply(pc.shift_right(packed, SEQUENCE_BITS), _US_IN_MS)
        names = [names_of_chain(ChainKey(chain)) for chain in chains]
        places = pa.array(whose, pa.int32())
        kinds, keys = pa.array(types, pa.int16()), pa.nulls(len(types), pa.binary())
        if pc.any(pc.greater_equal(kinds, KEYED)).as_py():  # keys cost only who has some
            found, values, types = zip(*map(split_key, values, types), strict=True)
            kinds, keys = pa.array(types, pa.int16()), pa.array(found, pa.binary())
        batch = pa.record_batch(
            [
                pa.array(offsets, pa.int64()),
                times.view(self.schema.field("timestamp").type),
                pc.bit_wise_and(packed, MAX_SEQUENCE).cast(pa.int32()),
                pa.array([publisher for publisher, _ in names], pa.string()).take(places),
                pa.array([chain for _, chain in names], pa.string()).take(places),
                _flags(late, len(offsets)),
                kinds,
                keys,
                pa.array(values, pa.binary()),
            ],
            schema=self.schema,
        )
        begin, end = bisect_left(offsets, wanted.start), bisect_left(offsets, wanted.end)
        if wanted.after or wanted.upto < MAX_NUMBER:
            above, below = pc.greater(packed, wanted.after), pc.less_equal(packed, wanted.upto)
            return batch.slice(begin, end - begin).filter(
                pc.and_(above, below).slice(begin, end - begin)
            )
        return batch.slice(begin, end - begin)

    # --- Rows of frames -------------------------------------------------------------------

    def _frames(self, placed: Sequence[Placed]) -> "pyarrow.RecordBatch":
        pa = arrow()
        dense, position = self._wanted.is_dense, self.position
        rows = []
        for row in placed:
            entry, offset = row.entry, row.offset
            _, _, chain, previous, first, last, count, _ = _unpack_head(entry.frame)
            assert offset is not None
            if dense and not offset <= position < offset + count:
                raise HoleError(position)
            position = offset + count
            placed_us = entry.placed_ms * _US_IN_MS
            place = (chain, entry.mark == LATE, max(0, entry.mark), entry.epoch, placed_us)
            rows.append((offset, count, first, last, previous, *place, entry.frame))
        self.position = position
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        return pa.record_batch(arrays, schema=self.schema)


def _flags(marked: Sequence[range], count: int) -> Any:
    """Return a column that is true in some ranges of its rows."""
    pa = arrow()
    if not marked:  # as it is nearly always
        return pa.repeat(pa.scalar(False), count)
    flags = [False] * count
    for rows in marked:
        flags[rows.start : rows.stop] = [True] * len(rows)
    return pa.array(flags, pa.bool_())


def _fill(aheads: Sequence[int], span: int) -> bool:
    """Tell whether the messages are in order, and reach from a frame's first to its last."""
    return aheads[0] == 0 and aheads[-1] == span and all(map(lt, aheads, aheads[1:]))
