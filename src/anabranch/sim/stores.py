"""A store in memory: what a storage node's disk holds in a simulation.

It is also the shortest way to say what a store does. tests/contract/test_store.py holds every
store to the same.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import ChainKey, FrameHead, StreamPart
from anabranch.core.log_record import Records
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import (
    MAX_NUMBER,
    MAX_PAGE_FRAMES,
    Entry,
    FrameName,
    Selection,
    Span,
)
from anabranch.core.store import (
    NOBODY,
    UNKNOWN,
    AcceptLoss,
    Adopt,
    Answer,
    ChainEnd,
    ChainsIn,
    Copy,
    Delete,
    DivergedError,
    Doubt,
    Fill,
    GoneError,
    HashAt,
    HeldFrame,
    HeldIn,
    HolesIn,
    Keep,
    KeepMarks,
    LogQuery,
    LogState,
    LogWrite,
    Missing,
    Named,
    NamesIn,
    Order,
    OrderHeld,
    Owe,
    Page,
    Placed,
    Promise,
    Restart,
    Settle,
    Truncate,
    hash_after,
    marks_of,
    spans_for,
    with_hole,
)

Place = tuple[int, bytes]  # (last number, chain): a frame's name, in the order of numbers

# A frame that ends this much after the last number that is wanted may still begin before it.
STRADDLE = 1_000 << 20

# The states of the parts that were written to, and what got a place in their logs.
Written = tuple[tuple[LogState, ...], tuple[tuple[StreamPart, tuple[Placed, ...]], ...]]


class _Row(msgspec.Struct):
    """A frame that is kept."""

    head: FrameHead
    entry: Entry
    offset: int | None = None


class _PartLog:
    """What is kept of one part."""

    def __init__(self, part: StreamPart) -> None:
        self.state = LogState(part)
        self.rows: dict[Place, _Row] = {}
        self.lost: dict[int, _Row] = {}  # that were damaged in the log, by offset
        self.by_number: list[Place] = []
        self.log: list[tuple[int, Place, bytes]] = []  # offset, frame, hash before it
        self.filling: dict[int, list[Entry]] = {}  # what was filled into a hole, by its start

    def keep(self, frame: bytes, came_ms: int) -> _Row:
        """Return the row of a frame, which is held if it was not there."""
        head = peek(frame)
        place = (head.last, bytes(head.chain))
        if place not in self.rows:
            self.rows[place] = _Row(head, Entry(0, came_ms, frame))
            insort(self.by_number, place)
            self.change(held=self.state.held + 1)
        return self.rows[place]

    def put(self, row: _Row, entry: Entry) -> Placed:
        """Give a frame that is held the next place in the log; it is this one from now on."""
        assert row.offset is None
        state = self.state
        row.head, row.entry, row.offset = peek(entry.frame), entry, state.length
        self.log.append((state.length, (row.head.last, bytes(row.head.chain)), state.hash))
        self.change(
            hash=hash_after(state.hash, state.length, row.entry),
            length=state.length + row.head.count,
            held=state.held - 1,
        )
        return Placed(row.offset, row.entry)

    def cut(self, length: int) -> None:
        """Take back the places from an offset on."""
        while self.log and self.log[-1][0] >= length:
            offset, place, before = self.log.pop()
            self.change(length=offset, hash=before)
            if self.lost.pop(offset, None) is not None:
                continue
            row = self.rows[place]
            row.entry, row.offset = Entry(0, row.entry.placed_ms, row.entry.frame), None
            self.change(held=self.state.held + 1)
        assert self.state.length == length, "a log is cut where a frame begins"
        cut = [msgspec.structs.replace(hole, end=min(hole.end, length)) for hole in self.holes]
        self.change(
            high=min(self.state.high, length),
            missing=tuple(hole for hole in cut if hole.start < hole.end),
        )

    def clear(self, offset: int, hashed: bytes) -> None:
        """Delete what is in the log, and let it begin anew."""
        for at, place, _ in self.log:
            if at not in self.lost:
                self._drop(place)
        self.log.clear()
        self.lost.clear()
        self.filling.clear()
        self.change(missing=())
        self.change(start=offset, length=offset, high=offset, hash=hashed)

    @property
    def holes(self) -> tuple[Missing, ...]:
        """What is damaged."""
        return self.state.missing

    def lose(self, row: _Row) -> None:
        """Let a frame be damaged."""
        self._drop((row.head.last, bytes(row.head.chain)))
        if row.offset is None:
            self.change(held=self.state.held - 1)
            return
        self.lost[row.offset] = row
        end = row.offset + row.head.count
        self.change(missing=with_hole(self.holes, Missing(row.offset, end, row.offset)))
        starts = {hole.start for hole in self.holes if hole.filled > hole.start}
        self.filling = {at: rows for at, rows in self.filling.items() if at in starts}

    def fill(self, hole: Missing, hashed: bytes, entries: Sequence[Entry]) -> None:
        """Put entries into a hole; when it is full, see that they are what was there."""
        filled = self.filling.setdefault(hole.start, [])
        filled += entries
        at = hole.filled + sum(peek(entry.frame).count for entry in entries)
        lost = {at: row for at, row in self.lost.items() if hole.start <= at < hole.end}
        entries_of_it = [lost[offset].entry for offset in sorted(lost)]
        is_right = filled == entries_of_it and not self._are_placed(lost.values())
        if at == hole.end and is_right:
            for offset, row in lost.items():
                self._restore(offset, row)
        if at >= hole.end:
            del self.filling[hole.start]
        others = [each for each in self.holes if each != hole]
        if at < hole.end or not is_right:
            filled_to = at if at < hole.end else hole.start
            others.append(msgspec.structs.replace(hole, filled=filled_to))
        self.change(missing=tuple(sorted(others, key=lambda each: each.start)))

    def _are_placed(self, lost: Iterable[_Row]) -> bool:
        """Tell whether one of some frames has another place in the log by now."""
        places = [(row.head.last, bytes(row.head.chain)) for row in lost]
        return any(place in self.rows and self.rows[place].offset is not None for place in places)

    def _restore(self, offset: int, row: _Row) -> None:
        """Put a damaged frame back; it may have come again, and be held, meanwhile."""
        place = (row.head.last, bytes(row.head.chain))
        if place in self.rows:
            self._drop(place)
            self.change(held=self.state.held - 1)
        self.rows[place] = row
        insort(self.by_number, place)
        del self.lost[offset]

    def _drop(self, place: Place) -> None:
        del self.rows[place]
        del self.by_number[bisect_left(self.by_number, place)]

    def row(self, offset: int, place: Place) -> _Row:
        """Return a row of the log, which may be damaged."""
        return self.lost.get(offset) or self.rows[place]

    def change(self, **fields: object) -> None:
        """Change the state."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def copy(self) -> "_PartLog":
        """Return what stays as it is while this one changes."""
        other = _PartLog(self.state.part)
        other.state, other.by_number, other.log = self.state, self.by_number[:], self.log[:]
        other.filling = {at: list(rows) for at, rows in self.filling.items()}
        other.rows = {place: msgspec.structs.replace(row) for place, row in self.rows.items()}
        other.lost = dict(self.lost)
        return other


class MemoryStore:
    """The logs of a storage node, and their records, which are synchronised separately."""

    def __init__(self) -> None:
        self._parts: dict[StreamPart, _PartLog] = {}
        self._records = Records()

    def states(self) -> list[LogState]:
        """Return how all logs stand, as a machine that starts needs to know."""
        every = dict.fromkeys([*self._parts, *self._records.saved])
        return [self._state(part) for part in every]

    def _state(self, part: StreamPart) -> LogState:
        log = self._parts.get(part)
        return self._records.state(LogState(part) if log is None else log.state)

    def write(self, writes: Sequence[LogWrite]) -> Written:
        """Do all of it; return the states of the parts, and what got a place in their logs."""
        self._records.keep(self._records.lowered([writes]))
        placed = self._write_logs(writes)
        states = [self._parts[p].state if p in self._parts else LogState(p) for p in placed]
        self._records.keep(self._records.raised(writes, states), states)
        told = tuple(map(self._records.state, states))
        return told, tuple((part, tuple(rows)) for part, rows in placed.items() if rows)

    def _write_logs(self, writes: Sequence[LogWrite]) -> dict[StreamPart, list[Placed]]:
        """Write to the logs alone, all of it or nothing."""
        before = dict(self._parts)
        if any(
            type(write) in (Copy, OrderHeld) for write in writes[1:]
        ):  # which may fail when more is done
            parts = {write.part for write in writes}
            before |= {part: before[part].copy() for part in parts if part in before}
        try:
            return self._write(writes)
        except (DivergedError, GoneError):
            self._parts = before
            raise

    def _write(self, writes: Sequence[LogWrite]) -> dict[StreamPart, list[Placed]]:
        placed: dict[StreamPart, list[Placed]] = {}
        for write in writes:
            log = self._parts.setdefault(write.part, _PartLog(write.part))
            placed.setdefault(write.part, []).extend(_WRITERS[type(write)](log, write))
            if type(write) is Delete:
                del self._parts[write.part]
        return placed

    def find(self, query: LogQuery) -> Answer:
        """Look something up."""
        log = self._parts.get(query.part) or _PartLog(query.part)
        if type(query) is HashAt:
            return Answer(hash=_hash_at(log, query.offset))
        if type(query) is HolesIn:
            return Answer(lacking=log.holes)
        if type(query) is Named:
            places = [(name.last, bytes(name.chain)) for name in query.names]
            rows = [log.rows[place] for place in places if place in log.rows]
            return _answer(rows, None)
        if type(query) is NamesIn:
            spans = (_names(log, low, high)[:most] for low, high, most in query.spans)
            return Answer(names=tuple(spans), floor_ms=_floor_ms(log))
        if type(query) is ChainsIn:
            ends = (_chain_end(log, chain, known, query.most) for chain, known in query.chains)
            return Answer(chains=tuple(ends), floor_ms=_floor_ms(log))
        if type(query) is HeldIn:
            return Answer(names=(_held_names(log, query),))
        assert type(query) is Page
        if query.selection.by_number:
            return _by_number(log, query)
        return _by_offset(log, query)

    # --- What a disk may do ---------------------------------------------------------------

    def cut_power(self, writes: Sequence[LogWrite], steps: int) -> None:
        """Do the first steps of a write and no more, and open logs and records again.

        The first step is to lower the records, the second is to write to the logs. The third, which
        raises the records, is not done.
        """
        if steps > 0:
            self._records.keep(self._records.lowered([writes]))
        if steps > 1:
            with suppress(DivergedError, GoneError):
                self._write_logs(writes)
        self._open()

    def forget(self, part: StreamPart, length: int) -> None:
        """Let the end of a log be lost, from the first frame that passes this length on.

        Its promise is lost, too; its record stays. The node is to be restarted afterwards.
        """
        log = self._parts[part]
        ends = [log.state.start]
        ends += [offset + log.row(offset, place).head.count for offset, place, _ in log.log]
        log.cut(max((end for end in ends if end <= length), default=log.state.start))
        for place in [place for place, row in log.rows.items() if row.offset is None]:
            log.lose(log.rows[place])  # what was held came later than all that
        placed = [log.row(offset, place).entry.epoch for offset, place, _ in log.log]
        epoch = placed[-1] if placed else 0
        log.change(epoch=epoch, voted=NOBODY, log_epoch=min(epoch, log.state.log_epoch))
        self._open()

    def forget_since(self, older: "MemoryStore") -> None:
        """Let the logs be those of an older copy; their records stay."""
        self._parts = {part: log.copy() for part, log in older._parts.items()}
        self._open()

    def restore(self, older: "MemoryStore") -> None:
        """Let everything be as in an older copy: logs and records."""
        self._records = Records(older._records.saved.values())
        self.forget_since(older)

    def copy(self) -> "MemoryStore":
        """Return a copy that stays as it is, for a later `restore`."""
        other = MemoryStore()
        other.restore(self)
        return other

    def require_recovery(self) -> None:
        """Let a majority of the other storage nodes say how far the logs must come."""
        self._records.keep(self._records.restore(self._parts))

    def _open(self) -> None:
        """Compare logs and records, as a store does when it is opened."""
        states = {part: log.state for part, log in self._parts.items()}
        self._records.keep(self._records.compare(states, self._hash_at))

    def _hash_at(self, part: StreamPart, offset: int) -> bytes:
        return _hash_at(self._parts.get(part) or _PartLog(part), offset)

    def damage(self, part: StreamPart, name: FrameName) -> None:
        """Let a frame be damaged, as a disk may."""
        log = self._parts[part]
        log.lose(log.rows[name.last, bytes(name.chain)])

    def names(self, part: StreamPart) -> list[tuple[int | None, FrameName]]:
        """Return the offset and the name of each frame that is there: those of the log first."""
        log = self._parts.get(part) or _PartLog(part)
        placed = [(offset, place) for offset, place, _ in log.log if offset not in log.lost]
        held = [(None, place) for place in log.by_number if log.rows[place].offset is None]
        return [
            (offset, FrameName(ChainKey(chain), last)) for offset, (last, chain) in [*placed, *held]
        ]

    def has(self, part: StreamPart, name: FrameName) -> bool:
        """Tell whether a frame is there."""
        log = self._parts.get(part)
        return log is not None and (name.last, bytes(name.chain)) in log.rows


def _names(log: _PartLog, low: int, high: int) -> tuple[bytes, ...]:
    begin, end = bisect_left(log.by_number, (low, b"")), bisect_left(log.by_number, (high + 1, b""))
    return tuple(last.to_bytes(8) + chain for last, chain in log.by_number[begin:end])


def _chain_end(log: _PartLog, chain: ChainKey, known: int, most: int) -> ChainEnd:
    rows = [log.rows[place] for place in log.by_number if place[1] == chain]
    newest = known
    if known == UNKNOWN:
        newest = max((row.head.last for row in rows if row.offset is not None), default=0)
    held = [row for row in rows if row.offset is None and row.head.last > newest]
    frames = (HeldFrame(row.head.previous, row.head.last, row.entry.placed_ms) for row in held)
    return ChainEnd(newest, tuple(frames)[:most], len(held) > most)


def _held_names(log: _PartLog, query: HeldIn) -> tuple[bytes, ...]:
    held = [place for place in log.by_number if log.rows[place].offset is None]
    names = (last.to_bytes(8) + chain for last, chain in held)
    return tuple(each for each in names if each > query.cursor)[: query.most]


def _floor_ms(log: _PartLog) -> int:
    if not log.state.start or not log.log:
        return 0
    return log.row(*log.log[0][:2]).entry.placed_ms


def _keep(log: _PartLog, write: Keep) -> list[Placed]:
    for frame in write.frames:
        log.keep(frame, write.came_ms)
    return []


def _order(log: _PartLog, write: Order) -> list[Placed]:
    placed: list[Placed] = []
    for frame, mark in zip(write.frames, marks_of(write), strict=True):
        row = log.keep(frame, write.placed_ms)
        if row.offset is None:
            placed.append(log.put(row, Entry(write.epoch, write.placed_ms, frame, mark)))
    return placed


def _order_held(log: _PartLog, write: OrderHeld) -> list[Placed]:
    placed: list[Placed] = []
    for name in write.names:
        if (name.last, bytes(name.chain)) not in log.rows:
            raise GoneError(write.part, name)
    for name, mark in zip(write.names, marks_of(write), strict=True):
        row = log.rows[name.last, bytes(name.chain)]
        if row.offset is None:
            entry = Entry(write.epoch, write.placed_ms, row.entry.frame, mark)
            placed.append(log.put(row, entry))
    return placed


def _copy(log: _PartLog, write: Copy) -> list[Placed]:
    assert log.state.length == write.offset, "a copy goes on where the log ends"
    taken: set[Place] = set()
    for entry in write.entries:
        head = peek(entry.frame)
        place = (head.last, bytes(head.chain))
        if place in taken or (place in log.rows and log.rows[place].offset is not None):
            raise DivergedError(write.part, head.chain, head.last)
        taken.add(place)
    for entry in write.entries:
        log.put(log.keep(entry.frame, entry.placed_ms), entry)
    return []


def _truncate(log: _PartLog, write: Truncate) -> list[Placed]:
    log.cut(write.length)
    return []


def _restart(log: _PartLog, write: Restart) -> list[Placed]:
    log.clear(write.offset, write.hash)
    return []


def _promise(log: _PartLog, write: Promise) -> list[Placed]:
    log.change(epoch=write.epoch, voted=write.voted)
    return []


def _adopt(log: _PartLog, write: Adopt) -> list[Placed]:
    log.change(log_epoch=write.log_epoch)
    return []


def _settle(log: _PartLog, write: Settle) -> list[Placed]:
    log.change(high=max(log.state.high, write.high))
    return []


def _fill(log: _PartLog, write: Fill) -> list[Placed]:
    hole = next((hole for hole in log.holes if hole.filled == write.offset), None)
    if hole is not None:
        log.fill(hole, write.hash, write.entries)
    return []


def _nothing(log: _PartLog, write: LogWrite) -> list[Placed]:
    """Deleting is done elsewhere; other writes are for the record."""
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
    Fill: _fill,
    Delete: _nothing,
    KeepMarks: _nothing,
    Doubt: _nothing,
    Owe: _nothing,
    AcceptLoss: _nothing,
}


def _hash_at(log: _PartLog, offset: int) -> bytes:
    if offset == log.state.length:
        return log.state.hash
    if any(hole.start < offset < hole.end for hole in log.holes):
        return b""
    at = bisect_left(log.log, offset, key=lambda row: row[0])
    return log.log[at][2] if at < len(log.log) and log.log[at][0] == offset else b""


def _by_offset(log: _PartLog, query: Page) -> Answer:
    wanted = query.selection
    end = min(wanted.end, query.limit)
    is_dense = not (wanted.whose or wanted.after or wanted.upto < MAX_NUMBER)
    placed = [log.row(offset, place) for offset, place, _ in log.log if offset < end]
    if wanted.last and is_dense and placed:
        start = max(wanted.start, _offset(placed[-1]) + placed[-1].head.count - wanted.last)
        wanted = msgspec.structs.replace(wanted, start=start, last=0)
    rows = [row for row in placed if row.offset not in log.lost]
    ends = [row for row in rows if _offset(row) + row.head.count > wanted.start]
    matching = [row for row in ends if _matches(row.head, wanted)]
    if wanted.last:
        matching = _last(matching, wanted.last)
        begin = _offset(matching[0]) if matching else wanted.start
        wanted = msgspec.structs.replace(wanted, start=max(begin, wanted.start))
    page = _page(matching, query.size_bytes)
    if len(page) == len(matching):
        return _answer(page, None, spans_for(log.holes, wanted, end))
    after = _offset(page[-1]) + page[-1].head.count
    missing = spans_for(log.holes, wanted, after)
    return _answer(page, msgspec.structs.replace(wanted, start=after, last=0), missing)


def _by_number(log: _PartLog, query: Page) -> Answer:
    wanted = query.selection
    rows = [log.rows[place] for place in log.by_number]
    if wanted.cursor:
        rows = [row for row in rows if _cursor(row) > wanted.cursor]
    matching = [row for row in rows if _matches(row.head, wanted)]
    if wanted.last:
        matching = _last(matching, wanted.last)
    page = _page(matching, query.size_bytes)
    begin = int.from_bytes(wanted.cursor[:8])
    if wanted.last and page:
        begin = page[0].head.first
    missing = spans_for(log.holes, wanted, MAX_NUMBER, begin)
    if len(page) == len(matching):
        return _answer(page, None, missing)
    following = msgspec.structs.replace(wanted, cursor=_cursor(page[-1]), last=0)
    return _answer(page, following, missing)


def _matches(head: FrameHead, wanted: Selection) -> bool:
    within = head.last > wanted.after and head.first <= wanted.upto
    near = head.last <= min(MAX_NUMBER, wanted.upto + STRADDLE)
    return within and near and head.chain.startswith(wanted.whose)


def _last(rows: list[_Row], most: int) -> list[_Row]:
    """Return the last rows, of as many messages as are wanted; the first may hold some more."""
    count = 0
    for at in reversed(range(len(rows))):
        count += rows[at].head.count
        if count >= most:
            return rows[at:]
    return rows


def _page(rows: list[_Row], size_bytes: int) -> list[_Row]:
    page: list[_Row] = []
    for row in rows[:MAX_PAGE_FRAMES]:
        size_bytes -= len(row.entry.frame)
        if page and size_bytes < 0:
            break
        page.append(row)
    return page


def _answer(
    rows: list[_Row], following: Selection | None, missing: tuple[Span, ...] = ()
) -> Answer:
    placed = tuple(Placed(row.offset, row.entry) for row in rows)
    return Answer(placed, following, missing=missing)


def _offset(row: _Row) -> int:
    assert row.offset is not None
    return row.offset


def _cursor(row: _Row) -> bytes:
    return row.head.last.to_bytes(8) + row.head.chain


__all__ = ["NO_HASH", "STRADDLE", "MemoryStore"]
