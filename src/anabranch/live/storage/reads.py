"""Looks things up in the logs, a page at a time.

The work for one page is bounded: a page for which SCAN_FRAMES were looked at ends there, with few
frames or none, and what follows goes on from there. The last so many messages are looked for from
the end; until they are found, pages are empty and `following` says in its cursor how far back
they were looked for, and in `last` how many more it takes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from anabranch.core.ids import CHAIN_KEY_BYTES, SEQUENCE_BITS
from anabranch.core.messages.storage import (
    CURSOR_BYTES,
    MAX_NUMBER,
    MAX_PAGE_FRAMES,
    FrameName,
    Selection,
    Span,
)
from anabranch.core.store import (
    UNKNOWN,
    Answer,
    ChainEnd,
    ChainsIn,
    HashAt,
    HeldFrame,
    HeldIn,
    HolesIn,
    LogQuery,
    Named,
    NamesIn,
    Page,
    Placed,
    spans_for,
)
from anabranch.live.storage.holes import DamagedRowsError, hash_at, hidden
from anabranch.live.storage.rows import (
    COLUMNS,
    NAMED_COLUMNS,
    NamedRow,
    PartLog,
    Row,
    load_log,
    named_in,
    placed_in,
    read_row,
    select,
)

SCAN_FRAMES = 16_384
CHAINS_BYTES = 1 << 20  # of held frames that are read for one question about chains
# A frame that ends this much after the last number that is wanted may still begin before it.
STRADDLE = 1_000 << SEQUENCE_BITS

_END = b"\xff" * CHAIN_KEY_BYTES  # no chain comes after it

AnyRow = TypeVar("AnyRow", Row, NamedRow)
Place = tuple[int, bytes]  # (last number, chain): where a frame stands in the order of numbers


class _Read(msgspec.Struct, Generic[AnyRow]):
    """What was read for a page."""

    placed: list[Placed]
    messages: int = 0
    final: AnyRow | None = None  # the last row of the page
    following: AnyRow | None = None  # the one after it

    def answer(self, following: Selection | None, missing: tuple[Span, ...] = ()) -> Answer:
        """Return the page."""
        return Answer(tuple(self.placed), following, missing=missing)


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
    """Look something up, in the logs as they are at one moment, or raise DamagedRowsError."""
    database.execute("BEGIN")
    try:
        log = load_log(database, query.part)
        if type(query) is HashAt:
            return Answer(hash=hash_at(database, log, query.offset))
        if type(query) is HolesIn:
            return Answer(lacking=log.missing)
        if type(query) is Named:
            return _find_named(database, log, query.names)
        if type(query) is NamesIn:
            return _find_names(database, log, query)
        if type(query) is ChainsIn:
            return _find_chains(database, log, query)
        if type(query) is HeldIn:
            return _find_held(database, log, query)
        assert type(query) is Page
        search = _Search(database, log, query.selection, query.limit, query.size_bytes, scan_frames)
        return _find_by_number(search) if query.selection.by_number else _find_by_offset(search)
    finally:
        database.execute("ROLLBACK")


def _find_named(database: apsw.Connection, log: PartLog, names: Sequence[FrameName]) -> Answer:
    rows: list[NamedRow] = []
    for name in names:
        where = "named.part = ? AND named.chain = ? AND named.last = ?"
        sql = f"{_BY_NAME.format('by_chain')} WHERE {where}"
        rows += select(database, sql, log.id, name.chain, name.last)
    return _read_page(database, log, iter(rows), named_in, MAX_NUMBER).answer(None)


def _find_names(database: apsw.Connection, log: PartLog, query: NamesIn) -> Answer:
    """Return names as an index has them: no frame is read."""
    sql = (
        "last, chain FROM frames INDEXED BY by_number WHERE part = ? AND last >= ? AND last <= ? "
        "ORDER BY last, chain LIMIT ?"
    )
    names: list[tuple[bytes, ...]] = []
    for span in query.spans:
        rows: list[tuple[int, bytes]] = select(database, sql, log.id, *span)
        names.append(tuple(last.to_bytes(8) + chain for last, chain in rows))
    return Answer(names=tuple(names), floor_ms=_floor_ms(database, log))


def _find_chains(database: apsw.Connection, log: PartLog, query: ChainsIn) -> Answer:
    """Return how chains end in the log, and which of their frames are held above that."""
    sql = (
        "last FROM frames INDEXED BY by_chain WHERE part = ? AND chain = ? AND offset IS NOT NULL "
        "ORDER BY last DESC LIMIT 1"
    )
    ends: list[ChainEnd] = []
    room = CHAINS_BYTES
    for chain, known in query.chains:
        newest = known
        if known == UNKNOWN:
            [(newest,)] = select(database, sql, log.id, chain) or [(0,)]
        end = ChainEnd(newest)
        if log.held:
            end, size = _find_held_above(database, log, chain, newest, query.most, room)
            room -= size
        ends.append(end)
    return Answer(chains=tuple(ends), floor_ms=_floor_ms(database, log))


def _find_held_above(
    database: apsw.Connection, log: PartLog, chain: bytes, newest: int, most: int, room: int
) -> tuple[ChainEnd, int]:
    """Return the held frames of a chain, at least one if there is any, and how large they are."""
    rows: Iterator[NamedRow] = database.execute(
        f"SELECT {NAMED_COLUMNS} FROM frames INDEXED BY by_chain WHERE part = ? AND chain = ? "
        "AND last > ? AND offset IS NULL ORDER BY last",
        (log.id, chain, newest),
    )
    held: list[HeldFrame] = []
    bad: list[int] = []
    size, has_more = 0, False
    for row in rows:
        size += len(row[7] or b"")
        if held and (size > room or len(held) == most):
            has_more = True
            break
        if named_in(log.seed, row) is None:
            bad.append(row[0])
        else:
            held.append(HeldFrame(row[10], row[12], row[4]))
    if bad:
        raise DamagedRowsError(log, bad)
    return ChainEnd(newest, tuple(held), has_more), size


def _find_held(database: apsw.Connection, log: PartLog, query: HeldIn) -> Answer:
    """Return the names of held frames as an index has them: no frame is read."""
    sql = (
        "last, chain FROM frames INDEXED BY held WHERE part = ? AND offset IS NULL "
        "AND (last, chain) > (?, ?) ORDER BY last, chain LIMIT ?"
    )
    rows: list[tuple[int, bytes]] = select(database, sql, log.id, *_parse(query.cursor), query.most)
    return Answer(names=(tuple(last.to_bytes(8) + chain for last, chain in rows),))


def _floor_ms(database: apsw.Connection, log: PartLog) -> int:
    """Return when the first frame that is still there was placed, if earlier ones were deleted."""
    if not log.start:
        return 0
    where = "part = ? AND offset >= ? ORDER BY offset LIMIT 1"
    sql = f"placed_ms FROM frames INDEXED BY by_offset WHERE {where}"
    found: list[tuple[int]] = select(database, sql, log.id, log.start)
    return found[0][0] if found else 0


def _read_page(
    database: apsw.Connection,
    log: PartLog,
    rows: Iterator[AnyRow],
    read_in: Callable[[int, AnyRow], Placed | None],
    size_bytes: int,
) -> _Read[AnyRow]:
    """Take rows until a page is full, by its bytes or by its frames."""
    read: _Read[AnyRow] = _Read([])
    bad: list[int] = []
    has_holes = bool(log.missing)
    add, seed, messages = read.placed.append, log.seed, 0
    final: AnyRow | None = None
    for row in islice(rows, MAX_PAGE_FRAMES):
        size_bytes -= len(row[7] or b"")
        if size_bytes < 0 and final is not None:
            read.following = row
            break
        final = row
        placed = read_in(seed, row)
        if placed is not None:
            if not (has_holes and hidden(log, placed.offset)):
                messages += row[1]
                add(placed)
            continue
        again = None if row[0] is None else read_row(database, row[0])
        if row[0] is None:
            raise apsw.CorruptError(f"an index of {log.part} names a row that is not there")
        if again is not None and named_in(seed, again):
            raise apsw.CorruptError(f"an index says of row {row[0]} what the row does not say")
        bad.append(row[0])
    else:
        read.following = next(rows, None)
    if bad:
        raise DamagedRowsError(log, bad)
    read.final, read.messages = final, messages
    return read


def _edge(
    search: _Search, index: str, where: str, order: str, *bindings: object, skip: int
) -> tuple[int, bytes] | None:
    """Return a place so many frames away; None if there is none."""
    columns = "offset, NULL" if index == "by_offset" else "last, chain"
    found = select(
        search.database,
        f"{columns} FROM frames AS named INDEXED BY {index} WHERE part = ? AND {where} "
        f"ORDER BY {order} LIMIT 1 OFFSET ?",
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
    bounds = (log.id, begin, stop)
    read: _Read[Row] | _Read[NamedRow]
    if search.is_filtered:
        bindings = (*bounds, wanted.after, search.top, *search.filters)
        rows = _rows_by_offset(search, NAMED_COLUMNS, f"AND {_OFFSET_FILTER}", *bindings)
        read = _read_page(search.database, log, rows, named_in, search.size_bytes)
    else:
        rows = _rows_by_offset(search, COLUMNS, "", *bounds)
        read = _read_page(search.database, log, rows, placed_in, search.size_bytes)
    start = None if edge is None else stop
    if read.following is not None:
        start = read.following[2]
    stop = end if start is None else start
    begun = msgspec.structs.replace(wanted, start=max(wanted.start, log.start))
    missing = spans_for(log.missing, begun, min(stop, log.length)) if log.missing else ()
    if not search.is_filtered:
        _check_dense(search, read.placed, read.messages, stop, missing)
    return read.answer(None if start is None else search.follow(start=start), missing)


def _rows_by_offset(search: _Search, columns: str, filters: str, *bindings: object) -> Any:
    return search.database.execute(
        f"SELECT {columns} FROM frames INDEXED BY by_offset "
        f"WHERE part = ? AND offset >= ? AND offset < ? {filters} ORDER BY offset LIMIT ?",
        (*bindings, MAX_PAGE_FRAMES + 1),
    )


def _frame_at(search: _Search, offset: int) -> int:
    """Return where the frame begins that an offset is in; the offset itself if there is none."""
    where = "part = ? AND offset <= ? ORDER BY offset DESC LIMIT 1"
    sql = f"offset, count FROM frames INDEXED BY by_offset WHERE {where}"
    found: list[tuple[int, int]] = select(search.database, sql, search.log.id, offset)
    return found[0][0] if found and sum(found[0]) > offset else offset


def _check_dense(
    search: _Search, placed: list[Placed], messages: int, end: int, missing: tuple[Span, ...]
) -> None:
    """See that no row is missing: an index that lost one would hide its messages."""
    begin, goal = max(search.wanted.start, search.log.start), min(end, search.log.length)
    if begin >= goal:
        return
    first = placed[0].offset if placed else None
    if missing:  # what is known to be damaged
        messages += sum(span.end - span.start for span in missing)
        first = min(missing[0].start, missing[0].start if first is None else first)
    if first is None or first > begin or first + messages < goal:
        raise apsw.CorruptError(f"frames of {search.log.part} after offset {begin} are missing")


def _find_last_offsets(search: _Search) -> Answer | int:
    """Return at which offset the last messages begin; or where to go on looking for that."""
    wanted, log = search.wanted, search.log
    end = min(wanted.end, search.limit)
    if not search.is_filtered:  # offsets are dense: nothing needs to be looked through
        where = "part = ? AND offset < ? ORDER BY offset DESC LIMIT 1"
        sql = f"offset + count FROM frames INDEXED BY by_offset WHERE {where}"
        tail: list[tuple[int]] = select(search.database, sql, log.id, end)
        ends = [tail[0][0]] if tail else []
        ends += [min(hole.end, end) for hole in log.missing if hole.start < end]
        return max(wanted.start, max(ends) - wanted.last) if ends else wanted.start
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
        f"AND offset < ? AND {_OFFSET_FILTER} ORDER BY offset DESC",
        (log.id, low, end, wanted.after, search.top, *search.filters),
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
    begin = _parse(wanted.cursor)[0]
    low, high = max(_parse(wanted.cursor), (wanted.after, _END)), (search.top, _END)
    edge = None
    if search.is_filtered and index == "by_number":
        bounds = (*low, *high)
        edge = _edge(search, index, where, _ASCENDING, *bounds, skip=search.scan_frames - 1)
    rows = search.database.execute(
        f"SELECT {_BY_NAME.format(index)} WHERE named.part = ? AND {where} "
        f"AND {_NUMBER_FILTER} ORDER BY {_ASCENDING} LIMIT ?",
        (search.log.id, *low, *(edge or high), *rest, *search.filters, MAX_PAGE_FRAMES + 1),
    )
    read = _read_page(search.database, search.log, rows, named_in, search.size_bytes)
    cursor = None if edge is None else _cursor(*edge)
    if read.following is not None and read.final is not None:
        cursor = _cursor(read.final[12], read.final[9])
    missing = spans_for(search.log.missing, wanted, MAX_NUMBER, begin)
    return read.answer(None if cursor is None else search.follow(cursor=cursor), missing)


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
        f"SELECT last, chain, count FROM frames AS named INDEXED BY {index} "
        f"WHERE part = ? AND {where} "
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


_ASCENDING, _DESCENDING = "named.last, named.chain", "named.last DESC, named.chain DESC"
_RANGE = "(named.last, named.chain) > (?, ?) AND (named.last, named.chain) <= (?, ?)"
_NUMBER_FILTER = "named.first <= ? AND named.chain >= ? AND named.chain <= ?"
# Frames as an index names them: the rows themselves are read beside it, and may say otherwise.
_BY_NAME = (
    f"{COLUMNS}, CAST(named.chain AS BLOB), CAST(frames.previous AS INTEGER), "
    "CAST(named.first AS INTEGER), CAST(named.last AS INTEGER), "
    "(named.chain, named.first, named.last, named.count) IS "
    "(frames.chain, frames.first, frames.last, frames.count) "
    "FROM frames AS named INDEXED BY {} LEFT JOIN frames ON frames.id = named.id"
)


def _number_range(search: _Search) -> tuple[str, str, tuple[bytes, ...]]:
    """Return by which index to go, and how: of one chain only its own frames are looked at."""
    whose = search.wanted.whose
    if len(whose) == CHAIN_KEY_BYTES:
        return "by_chain", f"{_RANGE} AND named.chain = ?", (whose,)
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
