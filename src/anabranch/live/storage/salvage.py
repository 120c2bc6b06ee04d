"""Reads rows out of a damaged file of logs, page by page, without SQLite's trees.

SQLite finds a row by walking from the root of a table to a leaf. If a page on the way is damaged,
every row behind it is lost to SQLite. This module looks at each page of the file by itself, and
takes every row of the table `frames` whose checksum holds. The newest version of a page may be in
the write-ahead log, so that is read first. Rows of damaged pages are left out; rebuilding.py finds
out which offsets they had.

The format is described in https://www.sqlite.org/fileformat2.html.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.live.storage.rows import Row, placed_in

PAGE_BYTES = 4_096  # of every file of logs: SQLite's default, which schema.py does not change
TABLE_LEAF = 13
COLUMNS = 14  # of the table `frames`: rows of older files lack the last one
MAX_ROW_BYTES = 64 << 20  # more than any frame: a damaged length must not fill the memory

_HEADER_BYTES = 100  # of the file, at the beginning of the first page
_WAL_HEADER_BYTES, _WAL_FRAME_BYTES = 32, 24
_LOCK_PAGE = (1 << 30) // PAGE_BYTES + 1
_MAP_ENTRIES = PAGE_BYTES // 5  # pages that one page of the pointer map describes
_LARGEST_LOCAL = PAGE_BYTES - 35
_LEAST_LOCAL = (PAGE_BYTES - 12) * 32 // 255 - 23
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)

SavedRow = tuple[int, Row, bytes, int, int, int]  # part, row, chain, previous, first, last


class Pages:
    """The pages of a file as the last commit left them."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        self._file = _open(vfs, str(path), apsw.SQLITE_OPEN_MAIN_DB)
        self._wal: Any = None
        self._newest: dict[int, int] = {}  # page: where it begins in the write-ahead log
        self.count = self._file.xFileSize() // PAGE_BYTES
        with suppress(apsw.Error):  # there is none
            self._wal = _open(vfs, f"{path}-wal", apsw.SQLITE_OPEN_WAL)
            self._read_wal()

    def read(self, number: int) -> bytes:
        """Return a page; nothing if the disk does not give it."""
        at = self._newest.get(number)
        file, begin = (self._file, (number - 1) * PAGE_BYTES) if at is None else (self._wal, at)
        try:
            data: bytes = file.xRead(PAGE_BYTES, begin)
        except apsw.Error:
            return b""
        return data if len(data) == PAGE_BYTES else b""

    def close(self) -> None:
        """Close the files."""
        self._file.xClose()
        if self._wal is not None:
            self._wal.xClose()

    def _read_wal(self) -> None:
        """Find the newest committed version of each page."""
        wal = self._wal
        size = wal.xFileSize()
        if size < _WAL_HEADER_BYTES:
            return
        salts = wal.xRead(_WAL_HEADER_BYTES, 0)[16:24]
        found: dict[int, int] = {}
        step = _WAL_FRAME_BYTES + PAGE_BYTES
        for at in range(_WAL_HEADER_BYTES, size - step + 1, step):
            head = wal.xRead(_WAL_FRAME_BYTES, at)
            if head[8:16] != salts:
                break
            number, pages = struct.unpack_from(">II", head)
            found[number] = at + _WAL_FRAME_BYTES
            if pages:  # this frame ends a commit
                self._newest |= found
                self.count = pages
                found = {}


def _open(vfs: str | None, name: str, kind: int) -> Any:
    return apsw.VFSFile(vfs or "", name, [apsw.SQLITE_OPEN_READONLY | kind, 0])


def salvaged(pages: Pages, seeds: Callable[[int], int | None]) -> Iterator[SavedRow]:
    """Return every row that is what was written; `seeds` gives the seed of a part's checksums."""
    unused = _unused(pages)
    for number in range(1, pages.count + 1):
        is_map = (number - 2) % (_MAP_ENTRIES + 1) == 0
        if number in unused or is_map or number == _LOCK_PAGE:
            continue
        page = pages.read(number)
        if page and page[_HEADER_BYTES if number == 1 else 0] == TABLE_LEAF:
            yield from _rows_of(pages, page, seeds, _HEADER_BYTES if number == 1 else 0)


def _unused(pages: Pages) -> set[int]:
    """Return the pages of the list of unused ones, as far as it can be read: they hold old rows."""
    unused: set[int] = set()
    first = pages.read(1)
    trunk = struct.unpack_from(">I", first, 32)[0] if first else 0
    while 0 < trunk <= pages.count and trunk not in unused:
        unused.add(trunk)
        page = pages.read(trunk)
        if not page:
            break
        trunk, count = struct.unpack_from(">II", page)
        if count > PAGE_BYTES // 4 - 2:
            break
        unused.update(struct.unpack_from(f">{count}I", page, 8))
    return unused


def _rows_of(
    pages: Pages, page: bytes, seeds: Callable[[int], int | None], begin: int
) -> Iterator[SavedRow]:
    """Return the good rows of one leaf page."""
    [cells] = struct.unpack_from(">H", page, begin + 3)
    for at in range(min(cells, (PAGE_BYTES - begin - 8) // 2)):
        [where] = struct.unpack_from(">H", page, begin + 8 + 2 * at)
        try:
            row_id, payload = _cell(pages, page, where)
            values = _record(payload)
        except (IndexError, ValueError, struct.error):
            continue  # what stands here is no row
        row = _saved(row_id, values, seeds)
        if row is not None:
            yield row


def _saved(
    row_id: int, values: Sequence[Any], seeds: Callable[[int], int | None]
) -> SavedRow | None:
    """Return a row of `frames` if its checksum holds; its name is read from the frame."""
    if len(values) == COLUMNS - 1:
        values = [*values, 0]
    if len(values) != COLUMNS or type(values[1]) is not int:
        return None
    seed = seeds(values[1])
    count, offset, epoch, placed_ms, before, stored, frame, mark = values[6:]
    row = (row_id, count, offset, epoch, placed_ms, before, stored, frame, mark)
    is_typed = type(before) is bytes and type(frame) is bytes
    if seed is None or not is_typed or placed_in(seed, row) is None:
        return None
    try:
        head = peek(frame)
    except RemoteError:
        return None
    return values[1], row, head.chain, head.previous, head.first, head.last


def _cell(pages: Pages, page: bytes, at: int) -> tuple[int, bytes]:
    """Return the row id and the record of a cell, with its overflow pages."""
    size, at = _varint(page, at)
    row_id, at = _varint(page, at)
    if not 0 < size <= MAX_ROW_BYTES:
        raise ValueError("a length that no row has")
    if size <= _LARGEST_LOCAL:
        return row_id, page[at : at + size]
    local = _LEAST_LOCAL + (size - _LEAST_LOCAL) % (PAGE_BYTES - 4)
    if local > _LARGEST_LOCAL:
        local = _LEAST_LOCAL
    pieces, left = [page[at : at + local]], size - local
    [following] = struct.unpack_from(">I", page, at + local)
    while left > 0:
        if not 0 < following <= pages.count:
            raise ValueError("an overflow page that does not exist")
        more = pages.read(following)
        pieces.append(more[4 : 4 + min(left, PAGE_BYTES - 4)])
        left -= PAGE_BYTES - 4
        [following] = struct.unpack_from(">I", more)
    return row_id, b"".join(pieces)


def _record(payload: bytes) -> list[Any]:
    """Return the columns of a record."""
    end, at = _varint(payload, 0)
    if end > len(payload) or end > 9 * (COLUMNS + 1):
        raise ValueError("a header that no row has")
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        if kind in (8, 9):
            values.append(kind - 8)
        elif kind == 0:
            values.append(None)
        elif kind >= 12:
            size = (kind - 12) // 2
            piece = payload[at : at + size]
            if len(piece) < size:
                raise ValueError("a record that ends too early")
            values.append(piece if kind % 2 == 0 else piece.decode(errors="replace"))
            at += size
        else:
            size = _INTEGER_BYTES[kind]
            values.append(int.from_bytes(payload[at : at + size], signed=True))
            at += size
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(8):
        byte = data[at + place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + place + 1
    return value << 8 | data[at + 8], at + 9
