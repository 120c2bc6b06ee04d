"""Rows of the file, and their checksums.

A checksum covers a row's frame, its place in the log and the name of its part. It is looked at
whenever a row is read. The other columns are copies of what the frame's head says, by which frames
are found: where they decide what is read they are read too, and held against the head.
"""

import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import apsw
import msgspec

from anabranch.core.frames import HEAD
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import Entry
from anabranch.core.store import NOBODY, LogState, Missing, Placed

# The casts let a row come whose damage is in the type of a column.
COLUMNS = (
    "frames.id, CAST(frames.count AS INTEGER), CAST(frames.offset AS INTEGER), "
    "CAST(frames.epoch AS INTEGER), CAST(frames.placed_ms AS INTEGER), "
    "CAST(frames.hash_before AS BLOB), CAST(frames.checksum AS INTEGER), "
    "CAST(frames.frame AS BLOB), CAST(frames.mark AS INTEGER)"
)
# With the copies of the frame's head, and whether they agree with those of an index.
NAMED_COLUMNS = (
    f"{COLUMNS}, CAST(frames.chain AS BLOB), CAST(frames.previous AS INTEGER), "
    "CAST(frames.first AS INTEGER), CAST(frames.last AS INTEGER), 1"
)
_PART_COLUMNS = (
    "stream, partition, id, epoch, voted, log_epoch, start, length, high, hash, held, frames, "
    "bytes, checksum"
)
HELD = -1  # stands for the offset of a frame that has none

_pack = struct.Struct(">qqqq").pack
_pack_mark = struct.Struct(">q").pack

# id, count, offset, epoch, placed_ms, hash before, checksum, frame, mark
Row = tuple[int, int, int | None, int, int, bytes, int, bytes, int]
# ... chain, previous, first, last, whether an index agrees
NamedRow = tuple[int, int, int | None, int, int, bytes, int, bytes, int, bytes, int, int, int, int]


class PartLog(msgspec.Struct):
    """The log of a part as the file has it, with the id of its rows."""

    part: StreamPart
    id: int = 0  # 0: it has no rows yet
    epoch: int = 0
    voted: NodeId = NOBODY
    log_epoch: int = 0
    start: int = 0
    length: int = 0
    high: int = 0
    hash: bytes = NO_HASH
    held: int = 0
    frames: int = 0
    size_bytes: int = 0
    missing: tuple[Missing, ...] = ()  # has a table of its own
    seed: int = 0  # what the checksums of its rows begin with

    def __post_init__(self) -> None:
        self.seed = crc32(str(self.part).encode())

    def state(self) -> LogState:
        """Return what the machine knows of it."""
        return LogState(
            self.part,
            self.epoch,
            self.voted,
            self.log_epoch,
            self.start,
            self.length,
            self.high,
            self.hash,
            self.held,
            self.missing,
        )

    def checksum(self) -> int:
        """Return the checksum of the part's own row."""
        numbers = (self.epoch, self.log_epoch, self.start, self.length, self.high, self.held)
        text = repr((self.id, *numbers, self.frames, self.size_bytes)).encode()
        if self.missing:
            text += repr([msgspec.structs.astuple(hole) for hole in self.missing]).encode()
        return crc32(text + self.voted + self.hash, self.seed)


def checksum(
    seed: int, count: int, offset: int, epoch: int, placed_ms: int, before: bytes, frame: bytes
) -> int:
    """Return the checksum of a frame's row without its mark; `offset` is HELD if it has none."""
    return crc32(_pack(count, offset, epoch, placed_ms) + before + frame, seed)


def with_mark(check: int, mark: int) -> int:
    """Return the checksum of a row with a mark; one without a mark has what it always had."""
    return crc32(_pack_mark(mark), check)


def placed_in(seed: int, row: Row) -> Placed | None:
    """Return the frame of a row, and its place; None if that is not what was written."""
    _, count, offset, epoch, placed_ms, before, stored, frame, mark = row
    try:
        place = _pack(count, HELD if offset is None else offset, epoch, placed_ms)
        check = crc32(place + before + frame, seed)
        if mark != 0:
            check = with_mark(check, mark)
        if check == stored:
            return Placed(offset, Entry(epoch, placed_ms, frame, mark))
    except (TypeError, struct.error):  # a column that is not even of its type
        pass
    return None


def named_in(seed: int, row: NamedRow) -> Placed | None:
    """Return the frame of a row, and its place, if it is found by what its head says."""
    placed = placed_in(seed, row[:9])
    if placed is not None and row[9:] == (*HEAD.unpack_from(row[7])[2:6], 1):
        return placed
    return None


def select(database: apsw.Connection, what: str, *bindings: Any) -> list[Any]:
    """Return all rows of a query."""
    return database.execute(f"SELECT {what}", bindings).fetchall()


def read_row(database: apsw.Connection, row_id: int) -> NamedRow | None:
    """Read a row from the table itself, and nothing of it from an index."""
    rows = select(database, f"{NAMED_COLUMNS} FROM frames NOT INDEXED WHERE id = ?", row_id)
    return rows[0] if rows else None


def load_logs(database: apsw.Connection) -> dict[StreamPart, PartLog]:
    """Read how all logs stand."""
    rows = select(database, f"{_PART_COLUMNS} FROM parts ORDER BY id")
    logs = [_log_of(row, _load_missing(database, row[2])) for row in rows]
    return {log.part: log for log in logs}


def load_whole_logs(database: apsw.Connection) -> dict[StreamPart, PartLog]:
    """Read how all logs stand that lack nothing, where the table `missing` cannot be read."""
    rows = select(database, f"{_PART_COLUMNS} FROM parts NOT INDEXED ORDER BY id")
    logs = [_log_of(row, ()) for row in rows]
    return {log.part: log for log in logs}


def load_log(database: apsw.Connection, part: StreamPart) -> PartLog:
    """Read how one log stands; an empty one if there is none."""
    where = "stream = ? AND partition = ?"
    rows = select(
        database, f"{_PART_COLUMNS} FROM parts WHERE {where}", part.stream, part.partition
    )
    if not rows:
        listed = select(
            database, f"1 FROM parts NOT INDEXED WHERE {where}", part.stream, part.partition
        )
        if listed:
            raise apsw.CorruptError(f"an index does not have {part}")
        return PartLog(part)
    log = _log_of(rows[0], _load_missing(database, rows[0][2]))
    if log.part != part:
        raise apsw.CorruptError(f"an index has {log.part} for {part}")
    return log


def _load_missing(database: apsw.Connection, log_id: int) -> tuple[Missing, ...]:
    where = "start, end, filled, before_ms FROM missing WHERE part = ? ORDER BY start"
    return tuple(Missing(*row) for row in select(database, where, log_id))


def save_missing(database: apsw.Connection, log: PartLog) -> None:
    """Write what is damaged of a log."""
    database.execute("DELETE FROM missing WHERE part = ?", (log.id,))
    database.executemany(
        "INSERT INTO missing VALUES (?, ?, ?, ?, ?)",
        [(log.id, hole.start, hole.end, hole.filled, hole.before_ms) for hole in log.missing],
    )


def _log_of(row: Sequence[Any], missing: tuple[Missing, ...]) -> PartLog:
    stream, partition, *facts, stored = row
    try:
        log = PartLog(StreamPart(stream, partition), *facts)
        log.missing = missing
        is_right = log.checksum() == stored
    except (AttributeError, TypeError) as error:  # a column that is not even of its type
        raise apsw.CorruptError("the state of a log is not what was written") from error
    if not is_right:
        raise apsw.CorruptError(f"the state of {log.part} is not what was written")
    return log


def insert_log(database: apsw.Connection, log: PartLog) -> None:
    """Write a log that has its id already into a new file."""
    insert = "INSERT INTO parts VALUES (?, ?, ?, 0, X'', 0, 0, 0, 0, X'', 0, 0, 0, 0)"
    database.execute(insert, (log.id, log.part.stream, log.part.partition))
    save_log(database, log)


def save_log(database: apsw.Connection, log: PartLog) -> None:
    """Write how a log stands; one that is new gets its id."""
    if not log.id:
        insert = "INSERT INTO parts VALUES (NULL, ?, ?, 0, X'', 0, 0, 0, 0, X'', 0, 0, 0, 0)"
        database.execute(insert, (log.part.stream, log.part.partition))
        log.id = database.last_insert_rowid()
    database.execute(
        "UPDATE parts SET epoch = ?, voted = ?, log_epoch = ?, start = ?, length = ?, high = ?, "
        "hash = ?, held = ?, frames = ?, bytes = ?, checksum = ? WHERE id = ?",
        (
            log.epoch,
            log.voted,
            log.log_epoch,
            log.start,
            log.length,
            log.high,
            log.hash,
            log.held,
            log.frames,
            log.size_bytes,
            log.checksum(),
            log.id,
        ),
    )
