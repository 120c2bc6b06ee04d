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
    PartLog,
    Row,
    checksum,
    is_whole,
    read_row,
    select,
)


def hash_at(database: apsw.Connection, log: PartLog, offset: int) -> bytes:
    """Return the log's hash at a position; nothing if no frame begins there."""
    if offset == log.length:
        return log.hash
    row = _placed(database, log, "offset = ?", offset)
    if row is None:
        return b""
    if is_whole(log.seed, row):
        return row[9]
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
    if row_id is None or row is None or is_whole(log.seed, row):
        return
    place = _place_of(database, log, row_id, row, frame)
    if place is None:
        return
    offset, epoch, placed_ms, before = place
    numbers = (head.previous, head.first, head.last, head.count, offset, epoch, placed_ms)
    check = checksum(log.seed, head.chain, *numbers, before, frame)
    new = (log.id, head.chain, *numbers[:4], None if offset == HELD else offset)
    database.execute(
        "UPDATE frames NOT INDEXED SET part = ?, chain = ?, previous = ?, first = ?, last = ?, "
        "count = ?, offset = ?, epoch = ?, placed_ms = ?, hash_before = ?, checksum = ?, frame = ? "
        "WHERE id = ?",
        (*new, epoch, placed_ms, before, check, frame, row_id),
    )
    log.size_bytes += len(frame) - len(row[-1] or b"")


def _place_of(
    database: apsw.Connection, log: PartLog, row_id: int, row: Row, frame: bytes
) -> tuple[int, int, int, bytes] | None:
    """Return the place that a damaged row has: offset, epoch, time and the hash before it."""
    copy = "offset, epoch, placed_ms FROM frames INDEXED BY by_offset WHERE part = ? AND id = ?"
    copies = select(database, f"{copy} AND offset = ?", log.id, row_id, row[6])
    if not copies:  # its offset may be what is damaged: then all of the index is looked through
        copies = select(database, f"{copy} AND offset IS NOT NULL", log.id, row_id)
    if not copies:  # it was only held: when it came matters little
        return HELD, 0, peek(frame).last >> SEQUENCE_BITS, b""
    offset, *times = copies[0]
    after = hash_at(database, log, offset + peek(frame).count)
    hashes = [row[9], _hash_by_predecessor(database, log, offset)]
    for (epoch, placed_ms), before in product((times, row[7:9]), hashes):
        if type(before) is not bytes or type(epoch) is not int or type(placed_ms) is not int:
            continue
        if min(epoch, placed_ms) < 0:
            continue
        if hash_after(before, offset, Entry(epoch, placed_ms, frame)) == after:
            return offset, epoch, placed_ms, before
    return None


def _hash_by_predecessor(database: apsw.Connection, log: PartLog, offset: int) -> bytes | None:
    row = _placed(database, log, "offset < ? ORDER BY offset DESC LIMIT 1", offset)
    if row is None or not is_whole(log.seed, row) or row[6] is None or row[6] + row[5] != offset:
        return None
    return hash_after(row[9], row[6], Entry(row[7], row[8], row[-1]))


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


def _names(row: Row) -> list[tuple[bytes, int]]:
    """Return the names that a row may have: that of its columns, and that of its frame."""
    names = [(row[1], row[4])]
    frame = row[-1]
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
