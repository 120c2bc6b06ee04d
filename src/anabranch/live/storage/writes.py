"""What is done to the logs in one transaction.

A row is never changed to give its frame a place: it is deleted and written anew, at the end of
the file, so that rows lie in the order in which they are read. Rows are looked up, deleted and
written many at a time, in one step of the database: between two steps another thread may have the
interpreter, and does not give it back soon.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import apsw
import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import FrameHead, StreamPart
from anabranch.core.messages.storage import Entry
from anabranch.core.store import (
    CLOCKS_MS,
    AcceptLoss,
    Adopt,
    Copy,
    Delete,
    DivergedError,
    Doubt,
    Fill,
    GoneError,
    Keep,
    KeepMarks,
    LogState,
    LogWrite,
    Order,
    OrderHeld,
    Owe,
    Placed,
    Promise,
    Restart,
    Settle,
    StoreError,
    Truncate,
    hash_after,
    marks_of,
)
from anabranch.live.storage.holes import DamagedRowsError, fill, hash_at, within
from anabranch.live.storage.rows import (
    HELD,
    NAMED_COLUMNS,
    NamedRow,
    PartLog,
    checksum,
    named_in,
    save_log,
    save_missing,
    select,
    with_mark,
)

INSERT_ROWS = 256  # in one step
CUT_ROWS = 1_024  # taken back in one step
MAX_CHAINS = 20_000  # whose newest frame is remembered

Name = tuple[int, bytes]  # of a frame: (last number, chain)
Known = dict[Name, tuple[int, int | None, int]]  # its row, its offset, its size

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, str, int, int | None, int]]).decode


class Logs:
    """The logs of the file, and the transaction that is under way on them."""

    def __init__(self, database: apsw.Connection, logs: dict[StreamPart, PartLog]) -> None:
        self.saved = logs  # as they stand on the disk
        self.database = database
        self._changed: dict[StreamPart, PartLog] = {}
        # No frame of a chain, in the log of an id, has a larger number than this.
        self._newest: dict[tuple[int, bytes], int] = {}

    def do(
        self, writes: Sequence[LogWrite]
    ) -> tuple[tuple[LogState, ...], tuple[tuple[StreamPart, tuple[Placed, ...]], ...]]:
        """Do one batch; return how its logs stand now, and what got a place in them."""
        placed: dict[StreamPart, list[Placed]] = {}
        for write in writes:
            log = self.change(write.part)
            if not log.id and type(write) is not Delete:
                save_log(self.database, log)  # this gives it its id
            done = _WRITERS[type(write)](self, log, write)
            placed.setdefault(write.part, []).extend(done)
        states = tuple(self._changed[part].state() for part in placed)
        return states, tuple((part, tuple(rows)) for part, rows in placed.items() if rows)

    def save_changes(self) -> None:
        """Write how the logs stand that were changed."""
        for log in self._changed.values():
            if log.id:
                save_log(self.database, log)
                saved = self.saved.get(log.part)
                if log.missing != (saved.missing if saved is not None else ()):
                    save_missing(self.database, log)

    def keep_changes(self) -> None:
        """What was done is on the disk."""
        for part, log in self._changed.items():
            if log.id:
                self.saved[part] = log
            else:
                self.saved.pop(part, None)
        self._changed = {}

    def forget_changes(self) -> None:
        """What was done is undone."""
        self._changed = {}
        self._newest = {}

    def change(self, part: StreamPart) -> PartLog:
        """Return the log of a part, to change it."""
        log = self._changed.get(part)
        if log is None:
            saved = self.saved.get(part)
            log = PartLog(part) if saved is None else msgspec.structs.replace(saved)
            self._changed[part] = log
        return log

    # --- Rows -----------------------------------------------------------------------------

    def place(self, log: PartLog, rows: Iterable[tuple[FrameHead, Entry]]) -> list[Placed]:
        """Give frames that have no row the next places in the log."""
        begin = log.length
        placed, log.length, log.hash = self._put(log, rows, log.length, log.hash)
        if placed and log.missing and log.missing[-1].end == begin:
            *others, last = log.missing
            before_ms = min(last.before_ms, placed[0].entry.placed_ms + CLOCKS_MS)
            log.missing = (*others, msgspec.structs.replace(last, before_ms=before_ms))
        return placed

    def put(
        self, log: PartLog, rows: Iterable[tuple[FrameHead, Entry]], offset: int, before: bytes
    ) -> bytes:
        """Write entries at an offset where there are none; return the log's hash behind them."""
        return self._put(log, rows, offset, before)[2]

    def _put(
        self, log: PartLog, rows: Iterable[tuple[FrameHead, Entry]], offset: int, before: bytes
    ) -> tuple[list[Placed], int, bytes]:
        values: list[object] = []
        placed: list[Placed] = []
        size_bytes, seed = 0, log.seed
        for head, entry in rows:
            epoch, placed_ms, frame = entry.epoch, entry.placed_ms, entry.frame
            place = (head.count, offset, epoch, placed_ms, before)
            check = checksum(seed, *place, frame)
            if entry.mark:
                check = with_mark(check, entry.mark)
            values += (log.id, head.chain, head.previous, head.first, head.last)
            values += (*place, check, frame, entry.mark)
            placed.append(Placed(offset, entry))
            before = hash_after(before, offset, entry)
            offset += head.count
            size_bytes += len(frame)
        self._insert(values, log, len(placed), size_bytes)
        return placed, offset, before

    def hold(self, log: PartLog, rows: Iterable[tuple[int, bytes]]) -> None:
        """Write frames that have no row and came at some time, without a place in the log."""
        values: list[object] = []
        count, size_bytes = 0, 0
        for came_ms, frame in rows:
            head = peek(frame)
            check = checksum(log.seed, head.count, HELD, 0, came_ms, b"", frame)
            values += (log.id, head.chain, head.previous, head.first, head.last)
            values += (head.count, None, 0, came_ms, b"", check, frame, 0)
            count += 1
            size_bytes += len(frame)
        self._insert(values, log, count, size_bytes)
        log.held += count

    def look_up(self, log: PartLog, heads: Sequence[FrameHead]) -> Known:
        """Return those of some frames that have a row."""
        doubtful = [head for head in heads if not self._is_new(log, head)]
        if not doubtful:
            return {}
        names = _encode([(head.last, bytes(head.chain).hex()) for head in doubtful]).decode()
        found = self.database.execute(
            "SELECT json_group_array(json_array(last, hex(chain), frames.id, offset, "
            "length(frame))) FROM json_each(?2) AS name CROSS JOIN frames INDEXED BY by_chain "
            "ON part = ?1 AND chain = unhex(name.value ->> 1) AND last = name.value ->> 0",
            (log.id, names),
        ).get
        return {
            (last, bytes.fromhex(chain)): (row_id, offset, size)
            for last, chain, row_id, offset, size in _decode(found)
        }

    def drop(self, log: PartLog, rows: Sequence[tuple[int, int]], held: bool = True) -> None:
        """Delete rows, of which the ids and the sizes are given."""
        if not rows:
            return
        ids = _encode([row_id for row_id, _ in rows]).decode()
        self.database.execute(
            "DELETE FROM frames WHERE id IN (SELECT value FROM json_each(?))", (ids,)
        )
        log.frames -= len(rows)
        log.size_bytes -= sum(size for _, size in rows)
        if held:
            log.held -= len(rows)

    def begin_anew(self, log: PartLog) -> None:
        """Give a log another id; what has the old one is swept away in time."""
        if log.id:
            self.database.execute("DELETE FROM parts WHERE id = ?", (log.id,))
            self.database.execute("DELETE FROM missing WHERE part = ?", (log.id,))
            self.database.execute("INSERT INTO discarded VALUES (?)", (log.id,))
        log.id = log.held = log.frames = log.size_bytes = 0
        log.missing = ()

    def _is_new(self, log: PartLog, head: FrameHead) -> bool:
        """Return whether a frame is certainly not there; it is taken to be there from now on."""
        key = (log.id, bytes(head.chain))
        newest = self._newest.get(key)
        if newest is None:
            if len(self._newest) >= MAX_CHAINS:
                self._newest.clear()
            newest = self.database.execute(
                "SELECT ifnull(max(last), 0) FROM frames WHERE part = ? AND chain = ?", key
            ).get
            self._newest[key] = newest
        if head.last <= newest:
            return False
        self._newest[key] = head.last
        return True

    def _insert(self, values: list[object], log: PartLog, count: int, size_bytes: int) -> None:
        width = INSERT_ROWS * _COLUMNS
        for at in range(0, len(values), width):
            some = values[at : at + width]
            self.database.execute(_insert_sql(len(some) // _COLUMNS), some)
        log.frames += count
        log.size_bytes += size_bytes


_COLUMNS = 13
_HELD = "INDEXED BY held WHERE part = ? AND offset IS NULL"


@cache
def _insert_sql(rows: int) -> str:
    row = "(" + ", ".join("?" * _COLUMNS) + ")"
    return (
        "INSERT INTO frames (part, chain, previous, first, last, count, offset, epoch, placed_ms, "
        f"hash_before, checksum, frame, mark) VALUES {', '.join([row] * rows)}"
    )


def _keep(logs: Logs, log: PartLog, write: Keep) -> list[Placed]:
    heads = [peek(frame) for frame in write.frames]
    taken: set[Name] = set(logs.look_up(log, heads))
    fresh = []
    for head, frame in zip(heads, write.frames, strict=True):
        name = (head.last, bytes(head.chain))
        if name not in taken:
            taken.add(name)
            fresh.append((write.came_ms, frame))
    logs.hold(log, fresh)
    return []


def _order(logs: Logs, log: PartLog, write: Order) -> list[Placed]:
    epoch, placed_ms = write.epoch, write.placed_ms
    heads = [peek(frame) for frame in write.frames]
    known = logs.look_up(log, heads)
    taken = {name for name, (_, offset, _) in known.items() if offset is not None}
    rows = []
    for head, frame, mark in zip(heads, write.frames, marks_of(write), strict=True):
        name = (head.last, bytes(head.chain))
        if name not in taken:
            taken.add(name)
            rows.append((head, Entry(epoch, placed_ms, frame, mark)))
    logs.drop(log, [(row_id, size) for row_id, offset, size in known.values() if offset is None])
    return logs.place(log, rows)


def _order_held(logs: Logs, log: PartLog, write: OrderHeld) -> list[Placed]:
    wanted = dict.fromkeys(write.names)  # a row that is named twice is one row
    names = _encode([(name.last, bytes(name.chain).hex()) for name in wanted]).decode()
    found: list[NamedRow] = select(
        logs.database,
        f"{NAMED_COLUMNS} FROM json_each(?2) AS name CROSS JOIN frames INDEXED BY by_chain "
        "ON part = ?1 AND chain = unhex(name.value ->> 1) AND last = name.value ->> 0 ",
        log.id,
        names,
    )
    held = [row for row in found if row[2] is None]
    bad = [row[0] for row in held if not named_in(log.seed, row)]
    if bad:
        raise DamagedRowsError(log, bad)
    placed = {(row[12], row[9]) for row in found if row[2] is not None}
    good = {(row[12], row[9]): row[7] for row in held}
    logs.drop(log, [(row[0], len(row[7] or b"")) for row in held])
    rows = []
    for name, mark in zip(write.names, marks_of(write), strict=True):
        key = (name.last, bytes(name.chain))
        frame = good.pop(key, None)
        if frame is not None:
            rows.append((peek(frame), Entry(write.epoch, write.placed_ms, frame, mark)))
            placed.add(key)  # it may be named twice
        elif key not in placed:
            raise GoneError(write.part, name)
    return logs.place(log, rows)


def _copy(logs: Logs, log: PartLog, write: Copy) -> list[Placed]:
    assert log.length == write.offset, "a copy goes on where the log ends"
    heads = [peek(entry.frame) for entry in write.entries]
    known = logs.look_up(log, heads)
    taken = {name for name, (_, offset, _) in known.items() if offset is not None}
    for head in heads:
        name = (head.last, bytes(head.chain))
        if name in taken:
            raise DivergedError(write.part, head.chain, head.last)
        taken.add(name)
    # The primary's frame is the one that has the place, whatever we held by its name.
    logs.drop(log, [(row_id, size) for row_id, _, size in known.values()])
    logs.place(log, zip(heads, write.entries, strict=True))
    return []


def _truncate(logs: Logs, log: PartLog, write: Truncate) -> list[Placed]:
    hashed = hash_at(logs.database, log, write.length)
    if not hashed and any(hole.start <= write.length < hole.end for hole in log.missing):
        raise StoreError(
            f"the log of {log.part} is damaged at offset {write.length}, where it should be cut: "
            "it has to be repaired first"
        )
    assert hashed, "a log is cut where a frame begins"
    which = "INDEXED BY by_offset WHERE part = ? AND offset >= ? LIMIT ?"
    while rows := select(
        logs.database, f"{NAMED_COLUMNS} FROM frames {which}", log.id, write.length, CUT_ROWS
    ):
        # Others come again.
        good = [(row[4], row[7]) for row in rows if named_in(log.seed, row)]
        logs.drop(log, [(row[0], len(row[7] or b"")) for row in rows], held=False)
        logs.hold(log, good)
    log.length, log.hash, log.high = write.length, hashed, min(log.high, write.length)
    log.missing = within(log.missing, log.start, log.length)
    return []


def _restart(logs: Logs, log: PartLog, write: Restart) -> list[Placed]:
    old = log.id
    logs.begin_anew(log)
    save_log(logs.database, log)
    log.start = log.length = log.high = write.offset
    log.hash = write.hash
    [(log.held, log.size_bytes)] = select(
        logs.database, f"count(*), ifnull(sum(length(frame)), 0) FROM frames {_HELD}", old
    )
    log.frames = log.held
    moved = f"UPDATE frames {_HELD.replace('WHERE', 'SET part = ? WHERE')}"
    logs.database.execute(moved, (log.id, old))
    return []


def _promise(logs: Logs, log: PartLog, write: Promise) -> list[Placed]:
    log.epoch, log.voted = write.epoch, write.voted
    return []


def _adopt(logs: Logs, log: PartLog, write: Adopt) -> list[Placed]:
    log.log_epoch = write.log_epoch
    return []


def _settle(logs: Logs, log: PartLog, write: Settle) -> list[Placed]:
    log.high = max(log.high, write.high)
    return []


def _delete(logs: Logs, log: PartLog, write: Delete) -> list[Placed]:
    logs.begin_anew(log)
    blank = PartLog(log.part)
    for name in PartLog.__struct_fields__:
        setattr(log, name, getattr(blank, name))
    return []


def _record_only(logs: Logs, log: PartLog, write: LogWrite) -> list[Placed]:
    """Change nothing: it is for the record (sqlite.py)."""
    return []


_WRITERS: dict[type, Callable[..., list[Placed]]] = {
    Keep: _keep,
    Order: _order,
    OrderHeld: _order_held,
    Copy: _copy,
    Truncate: _truncate,
    Restart: _restart,
    Promise: _promise,
    Adopt: _adopt,
    Settle: _settle,
    Fill: fill,
    Delete: _delete,
    KeepMarks: _record_only,
    Doubt: _record_only,
    Owe: _record_only,
    AcceptLoss: _record_only,
}
