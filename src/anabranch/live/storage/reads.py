"""Looks things up in the logs, a page at a time.

The work for one page is bounded: a page for which SCAN_FRAMES were looked at ends there, with few
frames or none, and what follows goes on from there. The last so many messages are looked for from
the end; until they are found, pages are empty and `following` says in its cursor how far back
they were looked for, and in `last` how many more it takes.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import apsw
import msgspec

from anabranch.core.ids import CHAIN_KEY_BYTES, SEQUENCE_BITS
from anabranch.core.messages.storage import (
    CURSOR_BYTES,
    MAX_NUMBER,
    MAX_PAGE_FRAMES,
    Entry,
    FrameName,
    Selection,
)
from anabranch.core.store import Answer, HashAt, LogQuery, Named, Page, Placed
from anabranch.live.storage.mending import hash_at, name_damaged
from anabranch.live.storage.rows import COLUMNS, PartLog, Row, is_whole, load_log, read_row, select

SCAN_FRAMES = 16_384
# A frame that ends this much after the last number that is wanted may still begin before it.
STRADDLE = 1_000 << SEQUENCE_BITS

_END = b"\xff" * CHAIN_KEY_BYTES  # no chain comes after it

Place = tuple[int, bytes]  # (last number, chain): where a frame stands in the order of numbers


class _Read(msgspec.Struct):
    """What was read for a page."""

    placed: list[Placed]
    damaged: list[FrameName]
    messages: int = 0
    final: Row | None = None  # the last row of the page
    following: Row | None = None  # the one after it

    def answer(self, following: Selection | None) -> Answer:
        """Return the page."""
        return Answer(tuple(self.placed), following, damaged=tuple(self.damaged))


class _Search(msgspec.Struct):
    """A page that is being looked for, and the log in which."""

    database: apsw.Connection
    log: PartLog
    wanted: Selection
    limit: int
    size_bytes: int
    scan_frames: int

    @property
    def is_filtered(self) -> bool:
        """Whether not every frame between the ends is wanted."""
        return bool(self.wanted.whose or self.wanted.after or self.wanted.upto < MAX_NUMBER)

    @property
    def top(self) -> int:
        """The last number with which a wanted frame may end."""
        return min(MAX_NUMBER, self.wanted.upto + STRADDLE)

    @property
    def filters(self) -> tuple[int, bytes, bytes]:
        """What _NUMBER_FILTER compares with."""
        whose = self.wanted.whose
        return self.wanted.upto, whose, whose.ljust(CHAIN_KEY_BYTES, b"\xff")

    def follow(self, **changes: object) -> Selection:
        """Select what follows."""
        return msgspec.structs.replace(self.wanted, **changes)


def find(database: apsw.Connection, query: LogQuery, scan_frames: int = SCAN_FRAMES) -> Answer:
    """Look something up, in the logs as they are at one moment."""
    database.execute("BEGIN")
    try:
        log = load_log(database, query.part)
        if type(query) is HashAt:
            return Answer(hash=hash_at(database, log, query.offset))
        if type(query) is Named:
            return _find_named(database, log, query.names)
        assert type(query) is Page
        search = _Search(database, log, query.selection, query.limit, query.size_bytes, scan_frames)
        return _find_by_number(search) if query.selection.by_number else _find_by_offset(search)
    finally:
        database.execute("ROLLBACK")


def _find_named(database: apsw.Connection, log: PartLog, names: Sequence[FrameName]) -> Answer:
    rows: list[Row] = []
    for name in names:
        where = "part = ? AND chain = ? AND last = ?"
        sql = f"{COLUMNS} FROM frames INDEXED BY by_chain WHERE {where}"
        rows += select(database, sql, log.id, name.chain, name.last)
    return _read_page(database, log, iter(rows), MAX_NUMBER).answer(None)


def _read_page(
    database: apsw.Connection, log: PartLog, rows: Iterator[Row], size_bytes: int
) -> _Read:
    """Take rows until a page is full, by its bytes or by its frames."""
    read = _Read([], [])
    placed, seed, messages = read.placed.append, log.seed, 0
    final: Row | None = None
    for row in islice(rows, MAX_PAGE_FRAMES):
        frame = row[11]
        size_bytes -= len(frame or b"")
        if size_bytes < 0 and final is not None:
            read.following = row
            break
        final = row
        if is_whole(seed, row):
            messages += row[5]
            placed(Placed(row[6], Entry(row[7], row[8], frame)))
            continue
        again = read_row(database, row[0])
        if again is not None and is_whole(seed, again):
            raise apsw.CorruptError(f"an index says of row {row[0]} what the row does not say")
        read.damaged.append(name_damaged(database, log, row[0]))
    else:
        read.following = next(rows, None)
    read.final, read.messages = final, messages
    return read


def _edge(
    search: _Search, index: str, where: str, order: str, *bindings: object, skip: int
) -> tuple[int, bytes] | None:
    """Return a place so many frames away; None if there is none."""
    columns = "offset, NULL" if index == "by_offset" else "last, chain"
    found = select(
        search.database,
        f"{columns} FROM frames INDEXED BY {index} WHERE part = ? AND {where} ORDER BY {order} "
        "LIMIT 1 OFFSET ?",
        search.log.id,
        *bindings,
        skip,
    )
    return found[0] if found else None


# --- In the order of offsets ----------------------------------------------------------------

_OFFSET_FILTER = "last > ? AND last <= ? AND first <= ? AND chain >= ? AND chain <= ?"


def _find_by_offset(search: _Search) -> Answer:
    wanted, log = search.wanted, search.log
    if wanted.last:
        found = _find_last_offsets(search)
        if type(found) is Answer:
            return found
        search.wanted = wanted = search.follow(start=found, last=0, cursor=b"")
    end = min(wanted.end, search.limit)
    begin = _frame_at(search, wanted.start)
    edge = None
    if search.is_filtered:
        where = "offset >= ? AND offset < ?"
        edge = _edge(search, "by_offset", where, "offset", begin, end, skip=search.scan_frames)
    stop = end if edge is None else edge[0]
    where = "part = ? AND offset >= ? AND offset < ? AND offset + count > ?"
    bindings: tuple[int | bytes, ...] = (log.id, begin, stop, wanted.start)
    if search.is_filtered:
        where += f" AND {_OFFSET_FILTER}"
        bindings += (wanted.after, search.top, *search.filters)
    rows = search.database.execute(
        f"SELECT {COLUMNS} FROM frames INDEXED BY by_offset WHERE {where} ORDER BY offset LIMIT ?",
        (*bindings, MAX_PAGE_FRAMES + 1),
    )
    read = _read_page(search.database, log, rows, search.size_bytes)
    start = None if edge is None else stop
    if read.following is not None:
        start = read.following[6]
    if not search.is_filtered and not read.damaged:
        _check_dense(search, read, end if start is None else start)
    return read.answer(None if start is None else search.follow(start=start))


def _frame_at(search: _Search, offset: int) -> int:
    """Return where the frame begins that an offset is in; the offset itself if there is none."""
    found: int | None = search.database.execute(
        "SELECT max(offset) FROM frames INDEXED BY by_offset WHERE part = ? AND offset <= ?",
        (search.log.id, offset),
    ).get
    return offset if found is None else found


def _check_dense(search: _Search, read: _Read, end: int) -> None:
    """See that no row is missing: an index that lost one would hide its messages."""
    begin, goal = max(search.wanted.start, search.log.start), min(end, search.log.length)
    if begin >= goal:
        return
    first = read.placed[0].offset if read.placed else None
    if first is None or first > begin or first + read.messages < goal:
        raise apsw.CorruptError(f"frames of {search.log.part} after offset {begin} are missing")


def _find_last_offsets(search: _Search) -> Answer | int:
    """Return at which offset the last messages begin; or where to go on looking for that."""
    wanted, log = search.wanted, search.log
    end = min(wanted.end, search.limit)
    if not search.is_filtered:  # offsets are dense: nothing needs to be looked through
        where = "part = ? AND offset < ? ORDER BY offset DESC LIMIT 1"
        sql = f"offset + count FROM frames INDEXED BY by_offset WHERE {where}"
        tail: list[tuple[int]] = select(search.database, sql, log.id, end)
        return max(wanted.start, tail[0][0] - wanted.last) if tail else wanted.start
    if wanted.cursor:
        end = min(end, int.from_bytes(wanted.cursor[:8]))
    begin = _frame_at(search, wanted.start)
    edge = _edge(
        search,
        "by_offset",
        "offset >= ? AND offset < ?",
        "offset DESC",
        begin,
        end,
        skip=search.scan_frames - 1,
    )
    low = begin if edge is None else edge[0]
    rows = search.database.execute(
        "SELECT offset, count FROM frames INDEXED BY by_offset WHERE part = ? AND offset >= ? "
        f"AND offset < ? AND offset + count > ? AND {_OFFSET_FILTER} ORDER BY offset DESC",
        (log.id, low, end, wanted.start, wanted.after, search.top, *search.filters),
    )
    missing = wanted.last
    offset: int
    for offset, count in rows:
        missing -= count
        if missing <= 0:
            return max(wanted.start, offset)
    if edge is None:
        return wanted.start
    return Answer(following=search.follow(last=missing, cursor=low.to_bytes(8)))


# --- In the order of numbers ----------------------------------------------------------------


def _find_by_number(search: _Search) -> Answer:
    wanted = search.wanted
    if wanted.last:
        found = _find_last_numbers(search)
        if type(found) is Answer:
            return found
        search.wanted = wanted = search.follow(cursor=found, last=0)
    index, where, rest = _number_range(search)
    low, high = max(_parse(wanted.cursor), (wanted.after, _END)), (search.top, _END)
    edge = None
    if search.is_filtered and index == "by_number":
        bounds = (*low, *high)
        edge = _edge(search, index, where, _ASCENDING, *bounds, skip=search.scan_frames - 1)
    rows = search.database.execute(
        f"SELECT {COLUMNS} FROM frames INDEXED BY {index} WHERE part = ? AND {where} "
        f"AND {_NUMBER_FILTER} ORDER BY {_ASCENDING} LIMIT ?",
        (search.log.id, *low, *(edge or high), *rest, *search.filters, MAX_PAGE_FRAMES + 1),
    )
    read = _read_page(search.database, search.log, rows, search.size_bytes)
    cursor = None if edge is None else _cursor(*edge)
    if read.following is not None and read.final is not None:
        cursor = _cursor(read.final[4], read.final[1])
    return read.answer(None if cursor is None else search.follow(cursor=cursor))


def _find_last_numbers(search: _Search) -> Answer | bytes:
    """Return after which place the last messages begin; or where to go on looking for that."""
    wanted = search.wanted
    index, where, rest = _number_range(search)
    low = (wanted.after, _END)
    high = _parse(_before(wanted.cursor)) if wanted.cursor else (search.top, _END)
    bounds = (*low, *high, *rest)
    edge = _edge(search, index, where, _DESCENDING, *bounds, skip=search.scan_frames - 1)
    if edge is not None:
        low = _parse(_before(_cursor(*edge)))
    rows = search.database.execute(
        f"SELECT last, chain, count FROM frames INDEXED BY {index} WHERE part = ? AND {where} "
        f"AND {_NUMBER_FILTER} ORDER BY {_DESCENDING}",
        (search.log.id, *low, *high, *rest, *search.filters),
    )
    missing = wanted.last
    for last, chain, count in rows:
        missing -= count
        if missing <= 0:
            return _before(_cursor(last, chain))
    if edge is None:
        return b""
    return Answer(following=search.follow(last=missing, cursor=_cursor(*edge)))


_ASCENDING, _DESCENDING = "last, chain", "last DESC, chain DESC"
_RANGE = "(last, chain) > (?, ?) AND (last, chain) <= (?, ?)"
_NUMBER_FILTER = "first <= ? AND chain >= ? AND chain <= ?"


def _number_range(search: _Search) -> tuple[str, str, tuple[bytes, ...]]:
    """Return by which index to go, and how: of one chain only its own frames are looked at."""
    whose = search.wanted.whose
    if len(whose) == CHAIN_KEY_BYTES:
        return "by_chain", f"{_RANGE} AND chain = ?", (whose,)
    return "by_number", _RANGE, ()


def _parse(cursor: bytes) -> Place:
    """Return the place that a cursor names; whoever asks may have sent any bytes."""
    last = int.from_bytes(cursor[:8].ljust(8, b"\0"))
    return (last, cursor[8:]) if last <= MAX_NUMBER else (MAX_NUMBER, _END)


def _cursor(last: int, chain: bytes) -> bytes:
    return last.to_bytes(8) + chain


def _before(cursor: bytes) -> bytes:
    """Return the cursor just before one: what comes after that begins with its frame."""
    place = int.from_bytes(cursor.ljust(CURSOR_BYTES, b"\0"))
    return max(place - 1, 0).to_bytes(CURSOR_BYTES)
