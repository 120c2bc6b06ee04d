"""Rebuilds a damaged file of logs from its good rows, and puts the new file in its place.

The new file has every row whose checksum holds, and the logs as they stood. Offsets that no good
row has are holes, which other storage nodes fill (holes.py). The damaged file is kept beside the
new one, under the name of `aside`, until no hole is left.

The swap can be interrupted anywhere: a finished new file has a name of its own, and as long as a
file of this name exists the swap is not done, and is completed at the next start.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from anabranch.core.messages.storage import MAX_NUMBER, Entry
from anabranch.core.store import CLOCKS_MS, Missing, hash_after
from anabranch.live.storage.rows import COLUMNS, PartLog, Row, insert_log, save_missing, select
from anabranch.live.storage.salvage import Pages, SavedRow, salvaged
from anabranch.live.storage.schema import INDEXES, create

BATCH_ROWS = 1_024
_SUFFIXES = ("-wal", "-shm", "")  # the file itself goes last

_INSERT = (
    "INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO NOTHING ON CONFLICT (part, chain, last) DO UPDATE SET "
    "id = excluded.id, previous = excluded.previous, first = excluded.first, "
    "count = excluded.count, offset = excluded.offset, epoch = excluded.epoch, "
    "placed_ms = excluded.placed_ms, hash_before = excluded.hash_before, "
    "checksum = excluded.checksum, frame = excluded.frame, mark = excluded.mark "
    "WHERE excluded.id > frames.id"
)


def aside(path: Path) -> Path:
    """Return the name under which a damaged file is kept."""
    return path.with_name(f"{path.name}-damaged")


def build_anew(path: Path, vfs: str | None, logs: Sequence[PartLog]) -> None:
    """Write all good rows of a file into a new one, with the logs as they stood."""
    building = path.with_name(f"{path.name}-rebuilding")
    for suffix in ("-journal", *_SUFFIXES):
        building.with_name(building.name + suffix).unlink(missing_ok=True)
    try:
        _build(building, path, vfs, logs)
    except BaseException:
        building.unlink(missing_ok=True)
        raise
    _synchronise(building)
    os.replace(building, _finished(path))
    _synchronise(path.parent)


def finish_swap(path: Path) -> bool:
    """Put a finished new file in the place of the damaged one; tell whether there was one."""
    finished = _finished(path)
    if not finished.exists():
        return False
    kept = aside(path)
    for suffix in _SUFFIXES:
        old = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            os.replace(old, kept.with_name(kept.name + suffix))
    _synchronise(path.parent)
    os.replace(finished, path)
    _synchronise(path.parent)
    return True


def remove_aside(path: Path) -> None:
    """Delete the damaged file: everything of it is there again."""
    kept = aside(path)
    for suffix in _SUFFIXES:
        kept.with_name(kept.name + suffix).unlink(missing_ok=True)


def _finished(path: Path) -> Path:
    return path.with_name(f"{path.name}-rebuilt")


def _synchronise(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _build(building: Path, path: Path, vfs: str | None, logs: Sequence[PartLog]) -> None:
    database = apsw.Connection(str(building))
    pages = Pages(path, vfs)
    seeds = {log.id: log.seed for log in logs}
    try:
        database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")  # all of it is synchronised at the end
        database.execute("BEGIN")
        create(database, [INDEXES["by_chain"]])
        rows = _values(salvaged(pages, seeds.get))
        while batch := list(islice(rows, BATCH_ROWS)):
            database.executemany(_INSERT, batch)
        for name, statement in INDEXES.items():
            if name != "by_chain":
                database.execute(statement)
        for log in logs:
            _settle_log(database, msgspec.structs.replace(log))
        database.execute("COMMIT")
    finally:
        pages.close()
        database.close()


def _values(rows: Iterator[SavedRow]) -> Iterator[tuple[Any, ...]]:
    for part, (row_id, count, offset, *rest), chain, previous, first, last in rows:
        yield (row_id, part, chain, previous, first, last, count, offset, *rest)


def _settle_log(database: apsw.Connection, log: PartLog) -> None:
    """Write how a log stands now, and which offsets it lacks."""
    stale = "DELETE FROM frames WHERE part = ? AND offset >= ? AND offset < ?"
    database.execute(stale, (log.id, 0, log.start))
    database.execute(stale, (log.id, log.length, MAX_NUMBER))
    for hole in log.missing:  # what was filled in there is not proved
        database.execute(stale, (log.id, hole.start, hole.end))
    while wrong := _contradictions(database, log):
        database.executemany("DELETE FROM frames WHERE id = ?", [(row_id,) for row_id in wrong])
    log.missing = _holes(database, log)
    sums = "count(*), ifnull(sum(length(frame)), 0), ifnull(sum(offset IS NULL), 0)"
    [(log.frames, log.size_bytes, log.held)] = select(
        database, f"{sums} FROM frames WHERE part = ?", log.id
    )
    insert_log(database, log)
    save_missing(database, log)


def _contradictions(database: apsw.Connection, log: PartLog) -> set[int]:
    """Return rows that cannot all be right: they overlap, or the hashes do not lead on."""
    wrong: set[int] = set()
    before: tuple[int, int, bytes] | None = None  # row, end, hash behind it
    for row in _in_order(database, log):
        row_id, count, offset, epoch, placed_ms, hashed, _, frame, mark = row
        assert offset is not None
        is_joined = before is not None and offset <= before[1]
        if before is not None and is_joined and (offset, hashed) != before[1:]:
            wrong |= {before[0], row_id}
        entry = Entry(epoch, placed_ms, frame, mark)
        before = (row_id, offset + count, hash_after(hashed, offset, entry))
    if before is not None and before[1] >= log.length and before[1:] != (log.length, log.hash):
        wrong.add(before[0])
    return wrong


def _holes(database: apsw.Connection, log: PartLog) -> tuple[Missing, ...]:
    holes: list[Missing] = []
    expected = log.start
    for _, count, offset, _, placed_ms, *_ in _in_order(database, log):
        assert offset is not None
        if offset > expected:
            holes.append(Missing(expected, offset, expected, placed_ms + CLOCKS_MS))
        expected = offset + count
    if expected < log.length:
        holes.append(Missing(expected, log.length, expected))
    return tuple(holes)


def _in_order(database: apsw.Connection, log: PartLog) -> Iterator[Row]:
    where = "part = ? AND offset IS NOT NULL ORDER BY offset"
    rows: Iterator[Row] = database.execute(
        f"SELECT {COLUMNS} FROM frames INDEXED BY by_offset WHERE {where}", (log.id,)
    )
    return rows
