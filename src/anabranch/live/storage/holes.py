"""Holes in a log: damaged rows are cut out, and entries of another node's log fill the holes.

A row whose checksum does not hold is deleted, and its offsets are written to the table `missing`.
Entries are filled in from the left. They are not shown before the hole is closed, because only the
hash behind the hole proves that they are the right ones.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import apsw
import msgspec

from anabranch.core.frames import peek
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, Entry
from anabranch.core.store import CLOCKS_MS, Fill, Missing, Placed, hash_after, with_hole
from anabranch.live.storage.rows import COLUMNS, PartLog, Row, placed_in, read_row, select

if TYPE_CHECKING:
    from anabranch.live.storage.writes import Logs


class DamagedRowsError(Exception):
    """Rows of a log have wrong checksums; they have to be cut out before it can be read."""

    def __init__(self, log: PartLog, row_ids: Sequence[int]) -> None:
        super().__init__(f"{len(row_ids)} rows of {log.part} are not what was written")
        self.log = log
        self.part = log.part
        self.row_ids = tuple(row_ids)


def hash_at(database: apsw.Connection, log: PartLog, offset: int) -> bytes:
    """Return the log's hash at a position; nothing if no frame begins there, or none is known."""
    if offset == log.length:
        return log.hash
    if any(hole.start < offset < hole.end for hole in log.missing):
        return b""
    if not any(hole.start == offset for hole in log.missing):
        row = _placed(database, log, "offset = ?", offset)
        if row is None:
            return b""
        return row[5]
    before = _placed(database, log, "offset < ? ORDER BY offset DESC LIMIT 1", offset)
    if before is None and offset == log.start == 0:
        return NO_HASH
    if before is None or before[2] is None or before[2] + before[1] != offset:
        return b""
    return hash_after(before[5], before[2], _entry(before))


def hidden(log: PartLog, offset: int | None) -> bool:
    """Tell whether an offset lies in a hole: entries there are not proved yet."""
    return offset is not None and any(hole.start <= offset < hole.end for hole in log.missing)


def cut_out(logs: "Logs", damage: DamagedRowsError) -> None:
    """Delete damaged rows, and remember which offsets they had; CorruptError if that is unclear."""
    log, database = logs.change(damage.part), logs.database
    offsets: list[int] = []
    for row_id in damage.row_ids:
        row = read_row(database, row_id)
        if row is None:
            continue
        size = len(row[7] or b"")
        if _stands_in(database, "by_offset", log, row_id, "offset = ?", row[2]):
            assert row[2] is not None
            logs.drop(log, [(row_id, size)], held=False)
            offsets.append(row[2])
        elif _stands_in(database, "held", log, row_id, "last = ? AND offset IS NULL", row[12]):
            logs.drop(log, [(row_id, size)])
        else:
            raise apsw.CorruptError(f"row {row_id} is not what was written, nor is its place")
    for offset in offsets:
        _open_hole(logs, log, offset)


def _stands_in(
    database: apsw.Connection, index: str, log: PartLog, row_id: int, which: str, value: object
) -> bool:
    if value is None:
        return False
    where = f"frames INDEXED BY {index} WHERE part = ? AND {which} AND id = ?"
    return bool(select(database, f"1 FROM {where}", log.id, value, row_id))


def _open_hole(logs: "Logs", log: PartLog, offset: int) -> None:
    """Remember that nothing is there between the rows around an offset."""
    if any(hole.start <= offset < hole.end for hole in log.missing):
        return
    database = logs.database
    before = _placed(database, log, "offset < ? ORDER BY offset DESC LIMIT 1", offset)
    after = _placed(database, log, "offset > ? ORDER BY offset LIMIT 1", offset)
    start = log.start if before is None or before[2] is None else before[2] + before[1]
    end, before_ms = log.length, MAX_NUMBER
    if after is not None and after[2] is not None:
        end, before_ms = after[2], after[4] + CLOCKS_MS
    if not log.start <= start <= offset < end <= log.length:
        raise apsw.CorruptError(f"the places around offset {offset} of {log.part} contradict it")
    log.missing = with_hole(log.missing, Missing(start, end, start, before_ms))
    whole = next(hole for hole in log.missing if hole.start <= offset < hole.end)
    drop_between(logs, log, whole.start, whole.end)


def drop_between(logs: "Logs", log: PartLog, start: int, end: int) -> None:
    """Delete the rows between two offsets."""
    where = "frames INDEXED BY by_offset WHERE part = ? AND offset >= ? AND offset < ?"
    rows = select(logs.database, f"id, length(frame) FROM {where}", log.id, start, end)
    logs.drop(log, rows, held=False)


def fill(logs: "Logs", log: PartLog, write: Fill) -> list[Placed]:
    """Put entries into a hole; when it is full, they stay only if the hashes prove them."""
    hole = next((hole for hole in log.missing if hole.filled == write.offset), None)
    if hole is None or not write.entries:
        return []
    database = logs.database
    before = hash_at(database, log, hole.start) if hole.filled == hole.start else b""
    if hole.filled > hole.start:
        last = _placed(database, log, "offset < ? ORDER BY offset DESC LIMIT 1", hole.filled)
        if last is not None and last[2] is not None:
            before = hash_after(last[5], last[2], _entry(last))
    heads = [peek(entry.frame) for entry in write.entries]
    end = hole.filled + sum(head.count for head in heads)
    names = {(head.chain, head.last) for head in heads}
    known = logs.look_up(log, heads)
    # One that is placed elsewhere cannot be what was here.
    is_wrong = end > hole.end or len(names) < len(heads)
    is_wrong |= any(offset is not None for _, offset, _ in known.values())
    if not is_wrong:
        logs.drop(log, [(row_id, size) for row_id, _, size in known.values()])
        reached = logs.put(
            log, zip(heads, write.entries, strict=True), hole.filled, before or write.hash
        )
        is_wrong = end == hole.end and reached != hash_at(database, log, hole.end)
    others = [each for each in log.missing if each != hole]
    if is_wrong:
        drop_between(logs, log, hole.start, hole.end)
        others.append(msgspec.structs.replace(hole, filled=hole.start))
    elif end < hole.end:
        others.append(msgspec.structs.replace(hole, filled=end))
    log.missing = tuple(sorted(others, key=_start))
    return []


def within(missing: Iterable[Missing], start: int, end: int) -> tuple[Missing, ...]:
    """Return the holes of a log that begins and ends at these offsets now."""
    cut = []
    for hole in missing:
        first, last = max(hole.start, start), min(hole.end, end)
        if first < last:
            cut.append(Missing(first, last, max(first, hole.filled), hole.before_ms))
    return tuple(cut)


def _start(hole: Missing) -> int:
    return hole.start


def _entry(row: Row) -> Entry:
    return Entry(row[3], row[4], row[7], row[8])


def _placed(database: apsw.Connection, log: PartLog, which: str, offset: int) -> Row | None:
    """Return the row of a place; DamagedRowsError if it is not what was written."""
    by_offset = f"{COLUMNS} FROM frames INDEXED BY by_offset WHERE part = ?"
    rows = select(database, f"{by_offset} AND {which}", log.id, offset)
    if not rows:
        return None
    row: Row = rows[0]
    if placed_in(log.seed, row) is None:
        raise DamagedRowsError(log, [row[0]])
    return row
