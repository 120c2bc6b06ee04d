"""Holds every store to the same: what is written, in whatever order, gives the same answers."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.frames import peek
from anabranch.core.ids import ChainKey, NodeId, StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import (
    LATE,
    MAX_NUMBER,
    MAX_PAGE_FRAMES,
    Entry,
    FrameName,
    Selection,
)
from anabranch.core.store import (
    GONE,
    NOBODY,
    UNKNOWN,
    Adopt,
    Answer,
    ChainEnd,
    ChainsIn,
    Copy,
    Delete,
    DivergedError,
    Fill,
    GoneError,
    HashAt,
    HeldFrame,
    HeldIn,
    Keep,
    LogQuery,
    LogState,
    LogWrite,
    Named,
    NamesIn,
    Order,
    OrderHeld,
    Page,
    Placed,
    Promise,
    Restart,
    Settle,
    StoreError,
    Truncate,
    hash_after,
)
from anabranch.live.storage.sqlite import SqliteLogStore
from anabranch.sim.stores import MemoryStore
from live.storage.power import PowerVfs
from machines import NODES, OTHER, PART

CHAINS = (chain_key(NODES[1], 1), chain_key(NODES[1], 2), chain_key(NODES[2], 1))
LARGE = 1 << 20


class Store(Protocol):
    """What every store can do."""

    def states(self) -> list[LogState]: ...
    def write(self, writes: Any) -> Any: ...
    def find(self, query: LogQuery) -> Answer: ...


def make(
    chain: ChainKey, number: int, count: int = 1, tell: bytes = b"", part: Any = PART
) -> bytes:
    drafts = [(number + at, Draft(b"message %d" % at + tell)) for at in range(count)]
    return frames.build(part_key(part), chain, number - 1, drafts, lambda digest: digest * 2)


# Frames of three chains, some of several messages; and of some names two that differ.
POOL = [
    make(chain, number_of(10 * at, 1), 1 + at % 3, tell)
    for at in range(1, 9)
    for chain in CHAINS
    for tell in (b"", b" and so on")[: 1 + at % 2]
]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
    else:
        opened = SqliteLogStore(tmp_path / "logs.sqlite")
        yield opened
        opened.close()


def write(store: Store, *writes: LogWrite) -> Any:
    return store.write(writes) if type(store) is MemoryStore else store.write([writes])[0]


def page(store: Store, limit: int = MAX_NUMBER, size: int = LARGE, **selected: Any) -> Answer:
    return store.find(Page(PART, Selection(**selected), limit, size))


def drain(store: Store, query: Page) -> list[Placed]:
    """Read all pages."""
    placed: list[Placed] = []
    selection: Selection | None = query.selection
    for _ in range(1_000):
        if selection is None:
            return placed
        answer = store.find(msgspec.structs.replace(query, selection=selection))
        placed += answer.placed
        selection = answer.following
    raise AssertionError("the pages do not end")


def state(store: Store, part: StreamPart = PART) -> LogState:
    return next((found for found in store.states() if found.part == part), LogState(part))


# --- What everyone may rely on --------------------------------------------------------------


def test_a_frame_is_held_until_it_has_its_place(store: Store) -> None:
    first, second, third = POOL[0], POOL[3], POOL[4]
    assert write(store, Keep(PART, (second, first), 5)) == ((LogState(PART, held=2),), ())
    [after], [(part, placed)] = write(store, Order(PART, 1, 9, (third, first)))
    assert (part, [row.entry.frame for row in placed]) == (PART, [third, first])
    assert (after.held, after.length) == (1, peek(third).count + peek(first).count)
    write(store, OrderHeld(PART, 1, 9, (name_of(first),)))
    assert state(store).held == 1, "what is placed already is left out"
    assert write(store, OrderHeld(PART, 1, 9, (name_of(second),)))[0][0].held == 0
    assert [row.entry.frame for row in page(store).placed] == [third, first, second]


def test_nothing_is_done_of_a_write_that_places_a_held_frame_which_is_gone(store: Store) -> None:
    first, second = POOL[0], POOL[3]
    write(store, Keep(PART, (first,), 5))
    before = state(store)
    with pytest.raises(StoreError, match=f"^{GONE}"):
        write(
            store,
            Promise(PART, 7, NOBODY),
            OrderHeld(PART, 1, 9, (name_of(first), name_of(second))),
        )
    assert state(store) == before


def test_chain_end_is_its_newest_placed_number_and_the_held_frames_above_it(store: Store) -> None:
    chain = CHAINS[0]
    rows = [make(chain, number_of(10 * at, 0)) for at in range(1, 7)]
    newest = peek(rows[3]).last
    write(store, Order(PART, 1, 9, (rows[0], rows[3], rows[2]), (0, 5, LATE)))
    write(store, Keep(PART, (rows[5], rows[1], rows[4]), 40))
    held = tuple(HeldFrame(peek(row).previous, peek(row).last, 40) for row in rows[4:])
    unknown = store.find(ChainsIn(PART, ((CHAINS[2], UNKNOWN), (chain, UNKNOWN)), 9))
    assert unknown.chains == (ChainEnd(), ChainEnd(newest, held))
    known = store.find(ChainsIn(PART, ((chain, peek(rows[4]).last), (chain, newest)), 1))
    assert known.chains == (
        ChainEnd(peek(rows[4]).last, held[1:]),
        ChainEnd(newest, held[:1], True),
    )
    names = [frames.name(row) for row in (rows[1], rows[4], rows[5])]
    assert store.find(HeldIn(PART, b"", 2)).names == (tuple(names[:2]),)
    assert store.find(HeldIn(PART, names[1], 2)).names == (tuple(names[2:]),)
    write(store, Truncate(PART, 1))
    assert store.find(ChainsIn(PART, ((chain, UNKNOWN),), 9)).chains[0].newest == peek(rows[0]).last


def test_marks_stay_with_their_entries_and_are_hashed(store: Store) -> None:
    rows = [make(CHAINS[0], number_of(10 * at, 0)) for at in range(1, 5)]
    write(store, Order(PART, 1, 9, tuple(rows[:2]), (7, LATE)), Keep(PART, tuple(rows[2:]), 1))
    write(store, OrderHeld(PART, 1, 9, (name_of(rows[3]), name_of(rows[2])), (3, LATE)))
    entries = [row.entry for row in page(store).placed]
    assert [entry.mark for entry in entries] == [7, LATE, 3, LATE]
    hashed = NO_HASH
    for offset, entry in enumerate(entries):
        assert hash_after(hashed, offset, entry) != hash_after(
            hashed, offset, msgspec.structs.replace(entry, mark=0)
        )
        hashed = hash_after(hashed, offset, entry)
    assert state(store).hash == hashed
    write(store, Truncate(PART, 0))
    held = page(store, by_number=True).placed
    assert [row.entry.mark for row in held] == [0, 0, 0, 0], "a held frame has no mark"


def test_held_frame_that_is_named_twice_gets_one_place_and_counts_once(store: Store) -> None:
    write(store, Keep(PART, (POOL[0], POOL[3]), 5))
    name = name_of(POOL[0])
    [after], [(_, placed)] = write(store, OrderHeld(PART, 1, 9, (name, name)))
    assert [row.entry.frame for row in placed] == [POOL[0]]
    assert (after.held, after.length) == (1, peek(POOL[0]).count)


def test_names_are_found_by_their_numbers_whether_placed_or_held(store: Store) -> None:
    write(store, Order(PART, 1, 70, (POOL[4], POOL[0])), Keep(PART, (POOL[7], POOL[2]), 5))
    kept = sorted((POOL[4], POOL[0], POOL[7], POOL[2]), key=frames.name)
    names = [frames.name(frame) for frame in kept]
    middle = peek(kept[1]).last
    spans = ((0, MAX_NUMBER, 9), (middle, middle, 9), (middle + 1, MAX_NUMBER, 1), (5, 4, 9))
    found = store.find(NamesIn(PART, spans))
    at_middle = tuple(n for n, f in zip(names, kept, strict=True) if peek(f).last == middle)
    after = tuple(n for n, f in zip(names, kept, strict=True) if peek(f).last > middle)
    assert found == Answer(names=(tuple(names), at_middle, after[:1], ()))


def test_what_was_placed_first_of_what_is_left_is_told_with_names(store: Store) -> None:
    write(store, Restart(PART, 10, b"h" * 32))
    assert store.find(NamesIn(PART, ())).floor_ms == 0  # nothing is left
    write(store, Order(PART, 1, 70, (POOL[0],)), Order(PART, 1, 80, (POOL[3],)))
    assert store.find(NamesIn(PART, ())).floor_ms == 70


def test_a_frame_gets_one_place_however_often_it_comes(store: Store) -> None:
    write(store, Order(PART, 1, 1, (POOL[0], POOL[0])), Order(PART, 1, 2, (POOL[0],)))
    write(store, Keep(PART, (POOL[0],), 3))
    assert [row.entry.placed_ms for row in page(store).placed] == [1]
    assert state(store).held == 0


def test_the_primarys_frame_takes_the_place_of_another_of_its_name(store: Store) -> None:
    ours, theirs = make(CHAINS[0], 7, 1, b" ours"), make(CHAINS[0], 7, 1, b" theirs")
    entry = Entry(3, 4, theirs)
    write(store, Keep(PART, (ours,), 1))
    write(store, Copy(PART, 0, (entry,)))
    assert page(store).placed == (Placed(0, entry),)
    assert state(store).hash == hash_after(NO_HASH, 0, entry)


def test_what_is_cut_off_is_held_again(store: Store) -> None:
    rows = tuple(make(CHAINS[0], 10 + 10 * at, 2) for at in range(5))
    write(store, Order(PART, 1, 1, rows[:2]), Settle(PART, 4))
    before = state(store)
    write(store, Order(PART, 1, 2, rows[2:]), Settle(PART, 8))
    write(store, Truncate(PART, before.length))
    assert state(store) == msgspec.structs.replace(before, held=3)
    assert [row.offset for row in page(store, by_number=True).placed] == [0, 2, None, None, None]


def test_a_log_that_restarts_forgets_all_but_what_is_held(store: Store) -> None:
    write(store, Order(PART, 1, 1, (POOL[0],)), Keep(PART, (POOL[3],), 2))
    write(store, Restart(PART, 100, b"h" * 32))
    assert state(store) == LogState(PART, 0, NOBODY, 0, 100, 100, 100, b"h" * 32, 1)
    assert [row.entry.frame for row in page(store, by_number=True).placed] == [POOL[3]]
    assert write(store, Order(PART, 2, 3, (POOL[0],)))[1][0][1][0].offset == 100


def test_nothing_is_left_of_a_part_that_is_deleted(store: Store) -> None:
    write(store, Order(PART, 1, 1, (POOL[0],)), Keep(OTHER, (POOL[0],), 1))
    assert write(store, Delete(PART)) == ((LogState(PART),), ())
    assert [found.part for found in store.states()] == [OTHER]
    assert page(store).placed == page(store, by_number=True).placed == ()
    write(store, Keep(PART, (POOL[0],), 1))
    assert state(store) == LogState(PART, held=1)


def test_the_last_messages_come_in_whole_frames(store: Store) -> None:
    rows = [make(CHAINS[at % 2], 10 + 10 * at, 3) for at in range(6)]
    write(store, Order(PART, 1, 1, tuple(rows)))
    for last, count in ((1, 1), (3, 1), (4, 2), (18, 6), (99, 6)):
        for by_number in (False, True):
            found = page(store, last=last, by_number=by_number)
            assert [row.entry.frame for row in found.placed] == rows[6 - count :]
    theirs = page(store, last=4, whose=CHAINS[1])
    assert [row.entry.frame for row in theirs.placed] == [rows[3], rows[5]]


@pytest.mark.parametrize("beyond", [0, 1, 700])
def test_a_page_ends_after_so_many_frames_however_small_they_are(store: Store, beyond: int) -> None:
    rows = [make(CHAINS[0], 10 + at) for at in range(MAX_PAGE_FRAMES + beyond)]
    write(store, Order(PART, 1, 1, tuple(rows)))
    held = make(CHAINS[2], 10**6)
    write(store, Keep(PART, (held,), 1))
    for whose in (b"", CHAINS[0][:20], CHAINS[0]):
        for last in (0, len(rows)):
            for by_number in (False, True):
                wanted = Selection(whose=whose, last=last, by_number=by_number)
                query = Page(PART, wanted, MAX_NUMBER, 1 << 30)
                found = store.find(query)
                expected = rows + [held] * (by_number and not whose)
                expected = expected[-last:]
                assert [row.entry.frame for row in found.placed] == expected[:MAX_PAGE_FRAMES]
                assert (found.following is None) == (len(expected) <= MAX_PAGE_FRAMES)
                assert [row.entry.frame for row in drain(store, query)] == expected


def test_nothing_is_done_of_a_write_that_gives_a_frame_a_second_place(store: Store) -> None:
    rows = [make(CHAINS[0], 10 + 10 * at, 2) for at in range(5)]
    write(store, Order(PART, 1, 1, tuple(rows[:3])), Keep(PART, (rows[3],), 1))
    before, stored = store.states(), page(store, by_number=True)
    first, third, fourth, fifth = (Entry(2, 2, rows[at]) for at in (0, 2, 3, 4))
    for wrong in (
        [Copy(PART, 6, (fourth, first))],
        [Copy(PART, 6, (fifth, fifth))],
        [Promise(PART, 9, NOBODY), Truncate(PART, 4), Copy(PART, 4, (fourth, first))],
        [Copy(OTHER, 0, (first, first))],
        [Keep(PART, (rows[4],), 1), Copy(PART, 6, (fifth,)), Copy(PART, 8, (third,))],
    ):
        with pytest.raises(DivergedError, match=r"^diverged: frame .* would be in .* twice"):
            write(store, *wrong)
        assert store.states() == before
        assert page(store, by_number=True) == stored
    write(store, Truncate(PART, 4), Copy(PART, 4, (third, fourth, fifth)))
    assert [row.entry.frame for row in page(store).placed] == rows
    assert state(store).held == 0


# --- Anything that may happen ---------------------------------------------------------------


class Pair:
    """Two stores to which the same is written."""

    def __init__(self, folder: str, scan_frames: int) -> None:
        self.memory = MemoryStore()
        self.path = Path(folder, "logs.sqlite")
        self.scan_frames = scan_frames
        self.vfs = PowerVfs("contract", Random(1))  # in memory, where nothing has to be waited for
        self.reopen()

    def write(self, batches: Sequence[Sequence[LogWrite]]) -> None:
        assert attempt(self.disk, batches) == attempt(self.memory, batches)
        assert sorted(self.disk.states(), key=lambda found: found.part) == sorted(
            self.memory.states(), key=lambda found: found.part
        )

    def reopen(self) -> None:
        """Open the file, or close and open it again."""
        if hasattr(self, "disk"):
            self.disk.close()
        self.disk = SqliteLogStore(self.path, self.vfs.name, self.scan_frames)

    def boundaries(self, part: StreamPart) -> list[int]:
        """Where the frames of the log begin, and where it ends."""
        rows = drain(self.memory, Page(part, Selection(), MAX_NUMBER, LARGE))
        return [row.offset for row in rows if row.offset is not None] + [
            state(self.memory, part).length
        ]


def attempt(store: SqliteLogStore | MemoryStore, batches: Sequence[Sequence[LogWrite]]) -> Any:
    """Write, and return what came of it: of each batch alone if they cannot be done together."""
    try:
        if type(store) is SqliteLogStore:
            return store.write(batches)
    except (DivergedError, GoneError):
        pass
    return [attempt_one(store, batch) for batch in batches]


def attempt_one(store: SqliteLogStore | MemoryStore, batch: Sequence[LogWrite]) -> Any:
    try:
        return write(store, *batch)
    except (DivergedError, GoneError) as error:
        return str(error)


some_frames = st.lists(st.sampled_from(POOL), max_size=6)
parts = st.sampled_from((PART, OTHER))
small = st.integers(1, 5)
some_marks = st.sampled_from((0, 0, LATE, 1, MAX_NUMBER))


def draw_copy(data: st.DataObject, part: StreamPart, offset: int) -> Copy:
    """Draw what a primary could send, be it right or wrong."""
    epoch = data.draw(small)
    rows = [Entry(epoch, 3, frame, data.draw(some_marks)) for frame in data.draw(some_frames)]
    return Copy(part, offset, tuple(rows))


def draw_batch(pair: Pair, data: st.DataObject) -> list[LogWrite]:
    """Draw some writes that are done together."""
    first = draw_write(pair, data)
    if type(first) is Truncate:
        return [first, draw_copy(data, first.part, first.length)]
    return [first]


def draw_write(pair: Pair, data: st.DataObject) -> LogWrite:
    """Draw something that a machine could write now."""
    part, number = data.draw(parts), data.draw(small)
    kind = data.draw(
        st.sampled_from(
            [Keep, Order, Order, Copy, OrderHeld, Truncate, Restart, Promise, Adopt, Settle, Delete]
        )
    )
    now = state(pair.memory, part)
    if kind is Keep:
        return Keep(part, tuple(data.draw(some_frames)), number)
    if kind is Order:
        chosen = tuple(data.draw(some_frames))
        return Order(part, number, number * 7, chosen, draw_marks(data, len(chosen)))
    if kind is Copy:
        return draw_copy(data, part, now.length)
    if kind is OrderHeld:
        names = tuple(map(name_of, data.draw(some_frames)))
        return OrderHeld(part, number, number * 5, names, draw_marks(data, len(names)))
    if kind is Truncate:
        return Truncate(part, data.draw(st.sampled_from(pair.boundaries(part))))
    if kind is Restart:
        return Restart(part, data.draw(st.integers(0, 50)), bytes([number]) * 32)
    if kind is Promise:
        return Promise(part, number, NODES[number])
    if kind is Adopt:
        return Adopt(part, number)
    if kind is Settle:
        return Settle(part, data.draw(st.integers(0, now.length)))
    return Delete(part)


def draw_marks(data: st.DataObject, count: int) -> tuple[int, ...]:
    marks = st.lists(some_marks, min_size=count, max_size=count)
    return tuple(data.draw(st.one_of(st.just([]), marks)))


def name_of(frame: bytes) -> FrameName:
    head = peek(frame)
    return FrameName(head.chain, head.last)


def draw_selection(data: st.DataObject) -> Selection:
    number = st.sampled_from([0, *sorted({peek(frame).last for frame in POOL}), MAX_NUMBER])
    chain = data.draw(st.sampled_from(CHAINS))
    return Selection(
        start=data.draw(st.integers(0, 30)),
        end=data.draw(st.one_of(st.just(MAX_NUMBER), st.integers(0, 60))),
        after=data.draw(st.one_of(st.just(0), number)),
        upto=data.draw(st.one_of(st.just(MAX_NUMBER), number)),
        whose=chain[: data.draw(st.sampled_from([0, 0, 20, 28]))],
        last=data.draw(st.one_of(st.just(0), st.integers(0, 12))),
        by_number=data.draw(st.booleans()),
    )


def compare(pair: Pair, data: st.DataObject) -> None:
    """Ask both the same."""
    part = data.draw(parts)
    offset = data.draw(st.integers(0, 60))
    assert pair.disk.find(HashAt(part, offset)) == pair.memory.find(HashAt(part, offset))
    heads = [peek(frame) for frame in data.draw(some_frames)]
    named = Named(part, tuple(FrameName(head.chain, head.last) for head in heads))
    assert pair.disk.find(named) == pair.memory.find(named)
    numbers = st.sampled_from([0, *sorted({peek(frame).last for frame in POOL}), MAX_NUMBER])
    spans = data.draw(st.lists(st.tuples(numbers, numbers, st.integers(0, 20)), max_size=3))
    names = NamesIn(part, tuple(spans))
    assert pair.disk.find(names) == pair.memory.find(names)
    known = st.sampled_from([UNKNOWN, *sorted({peek(frame).last for frame in POOL})])
    chains = tuple((chain, data.draw(known)) for chain in data.draw(st.permutations(CHAINS)))
    ends = ChainsIn(part, chains, data.draw(small))
    assert pair.disk.find(ends) == pair.memory.find(ends)
    held = HeldIn(
        part, data.draw(st.sampled_from([b"", *map(frames.name, POOL)])), data.draw(small)
    )
    assert pair.disk.find(held) == pair.memory.find(held)
    for _ in range(3):
        size = data.draw(st.sampled_from([1, 500, LARGE]))
        limit = data.draw(st.sampled_from([MAX_NUMBER, state(pair.memory, part).high]))
        query = Page(part, draw_selection(data), limit, size)
        assert drain(pair.disk, query) == drain(pair.memory, query)
        if pair.scan_frames > len(POOL):
            ours, theirs = pair.disk.find(query), pair.memory.find(query)
            assert ours.placed == theirs.placed
            assert (ours.following is None) == (theirs.following is None)


@pytest.mark.parametrize("scan_frames", [1, 3, 1_000])
@settings(max_examples=60)
@given(data=st.data())
def test_both_stores_say_the_same(scan_frames: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(folder, scan_frames)
        for _ in range(data.draw(st.integers(1, 8))):
            pair.write([draw_batch(pair, data)])
            if data.draw(st.integers(0, 5)) == 0:
                pair.reopen()
        group = [[Keep(PART, (frame,), 1), Order(OTHER, 1, 2, (frame,))] for frame in POOL[:4]]
        pair.write(group)
        compare(pair, data)
        pair.disk.close()
        pair.vfs.unregister()


def test_what_is_not_damaged_is_not_filled(store: Store) -> None:
    ours, theirs = make(CHAINS[0], 7, 1, b" ours"), make(CHAINS[0], 7, 1, b" theirs")
    write(store, Order(PART, 1, 1, (ours,)))
    write(store, Fill(PART, 0, NO_HASH, (Entry(1, 1, theirs),)))
    assert page(store).placed[0].entry.frame == ours


def test_a_log_of_which_nothing_is_known_is_empty(store: Store) -> None:
    assert store.find(HashAt(PART, 0)).hash == NO_HASH
    assert store.find(HashAt(PART, 1)).hash == b""
    assert page(store) == page(store, by_number=True, last=3) == Answer()
    assert store.find(Named(PART, (FrameName(CHAINS[0], 1),))) == Answer()
    assert NodeId(NOBODY) == state(store).voted
