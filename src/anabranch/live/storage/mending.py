"""Damaged rows: what can still be said of them, and how a good copy of the frame mends them.

The log's hashes say whether a frame, and its place, are those that were written: a row is mended
only by what fits between the rows before and after it.
"""

from itertools import product

import apsw

from anabranch.core.frames import HEAD, peek
from anabranch.core.ids import CHAIN_KEY_BYTES, SEQUENCE_BITS, ChainKey
from anabranch.core.messages.storage import MAX_NUMBER, Entry, FrameName
from anabranch.core.store import hash_after
from anabranch.live.storage.rows import (
    COLUMNS,
    HELD,
    NamedRow,
    PartLog,
    Row,
    checksum,
    named_in,
    placed_in,
    read_row,
    select,
)
from anabranch.live.storage.schema import INDEXES


def hash_at(database: apsw.Connection, log: PartLog, offset: int) -> bytes:
    """Return the log's hash at a position; nothing if no frame begins there."""
    if offset == log.length:
        return log.hash
    row = _placed(database, log, "offset = ?", offset)
    if row is None:
        return b""
    if placed_in(log.seed, row) is not None:
        return row[5]
    before = _hash_by_predecessor(database, log, offset)
    if before is None:
        raise apsw.CorruptError(f"the rows at offset {offset} of {log.part} are not what they were")
    return before


def name_damaged(database: apsw.Connection, log: PartLog, row_id: int) -> FrameName:
    """Return the name of a frame whose row is damaged, as its row, itself, and the index tell."""
    row = read_row(database, row_id)
    names = _names(row) if row is not None else []
    for chain, last in names:
        if _row_of(database, log, chain, last) == row_id:
            return FrameName(ChainKey(chain), last)
    raise apsw.CorruptError(f"row {row_id} of {log.part} is not what was written, nor is its name")


def mend(database: apsw.Connection, log: PartLog, frame: bytes) -> None:
    """Write a frame into its row, if that is damaged and this is the frame that was there."""
    head = peek(frame)
    row_id = _row_of(database, log, head.chain, head.last)
    row = read_row(database, row_id) if row_id is not None else None
    if row_id is None or row is None or named_in(log.seed, row):
        return
    found = _place_of(database, log, row_id, row, frame)
    if found is None:
        return
    offset, epoch, placed_ms, before = found
    check = checksum(log.seed, head.count, offset, epoch, placed_ms, before, frame)
    name = (head.chain, head.previous, head.first, head.last, head.count)
    place = (None if offset == HELD else offset, epoch, placed_ms, before)
    _overwrite(database, (log.id, *name, *place, check, frame, row_id))
    log.size_bytes += len(frame) - len(row[7] or b"")


def _overwrite(database: apsw.Connection, values: tuple[object, ...]) -> None:
    """Write all columns of a row anew."""
    update = (
        "UPDATE frames NOT INDEXED SET part = ?, chain = ?, previous = ?, first = ?, last = ?, "
        "count = ?, offset = ?, epoch = ?, placed_ms = ?, hash_before = ?, checksum = ?, frame = ? "
        "WHERE id = ?"
    )
    try:
        with database:
            database.execute(update, values)
    except apsw.CorruptError:
        # By what the damaged row says, its entry of an index cannot be found to be taken out.
        # The indexes are made anew then: that takes a while in a large file, and is rare.
        for name in INDEXES:
            database.execute(f"DROP INDEX {name}")
        database.execute(update, values)
        for statement in INDEXES.values():
            database.execute(statement)


def _place_of(
    database: apsw.Connection, log: PartLog, row_id: int, row: NamedRow, frame: bytes
) -> tuple[int, int, int, bytes] | None:
    """Return the place that a damaged row has: offset, epoch, time and the hash before it."""
    copy = "offset, epoch, placed_ms FROM frames INDEXED BY by_offset WHERE part = ? AND id = ?"
    copies = select(database, f"{copy} AND offset = ?", log.id, row_id, row[2])
    if not copies:  # its offset may be what is damaged: then all of the index is looked through
        copies = select(database, f"{copy} AND offset IS NOT NULL", log.id, row_id)
    if not copies:  # it was only held: when it came matters little
        return HELD, 0, peek(frame).last >> SEQUENCE_BITS, b""
    offset, *times = copies[0]
    after = hash_at(database, log, offset + peek(frame).count)
    hashes = [row[5], _hash_by_predecessor(database, log, offset)]
    for (epoch, placed_ms), before in product((times, row[3:5]), hashes):
        if type(before) is not bytes or type(epoch) is not int or type(placed_ms) is not int:
            continue
        if min(epoch, placed_ms) < 0:
            continue
        if hash_after(before, offset, Entry(epoch, placed_ms, frame)) == after:
            return offset, epoch, placed_ms, before
    return None


def _hash_by_predecessor(database: apsw.Connection, log: PartLog, offset: int) -> bytes | None:
    row = _placed(database, log, "offset < ? ORDER BY offset DESC LIMIT 1", offset)
    placed = None if row is None else placed_in(log.seed, row)
    if row is None or placed is None or placed.offset is None or placed.offset + row[1] != offset:
        return None
    return hash_after(row[5], placed.offset, placed.entry)


def _placed(database: apsw.Connection, log: PartLog, which: str, offset: int) -> Row | None:
    by_offset = f"{COLUMNS} FROM frames INDEXED BY by_offset WHERE part = ?"
    rows = select(database, f"{by_offset} AND {which}", log.id, offset)
    return rows[0] if rows else None


def _row_of(database: apsw.Connection, log: PartLog, chain: bytes, last: int) -> int | None:
    where = "part = ? AND chain = ? AND last = ?"
    rows = select(
        database, f"id FROM frames INDEXED BY by_chain WHERE {where}", log.id, chain, last
    )
    return rows[0][0] if rows else None


def _names(row: NamedRow) -> list[tuple[bytes, int]]:
    """Return the names that a row may have: that of its columns, and that of its frame."""
    names = [(row[8], row[11])]
    frame = row[7]
    if frame is not None and len(frame) >= HEAD.size:
        _, _, chain, _, _, last, _, _ = HEAD.unpack_from(frame)
        names.append((chain, last))
    return [
        (chain, last)
        for chain, last in names
        if chain is not None
        and len(chain) == CHAIN_KEY_BYTES
        and last is not None
        and 0 <= last <= MAX_NUMBER
    ]
