"""A damaged page of the file is found, said, read around, and filled again from another store."""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import apsw
import msgspec
import pytest

from anabranch.core.frames import peek
from anabranch.core.ids import StreamPart
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import LATE, MAX_NUMBER, FrameName, Selection, Span
from anabranch.core.store import (
    CLOCKS_MS,
    Answer,
    Fill,
    HashAt,
    Keep,
    Named,
    Order,
    OrderHeld,
    Page,
    Placed,
    Settle,
    StoreError,
    Truncate,
)
from anabranch.live.storage.rebuilding import aside, build_anew
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source, check_log, drain, held_names, same
from machines import OTHER, PART

PAGE, SECTOR = 4_096, 512
MARKS = (0, LATE, 77, 0, 0) * 4  # of 20 entries


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of two logs: with frames that are held, with large ones, and with unused pages."""
    path = tmp_path_factory.mktemp("whole") / "logs.sqlite"
    store = SqliteLogStore(path)
    source, other = Source(Random(2)), Source(Random(3), OTHER)
    for at in range(30):
        store.write([[Order(PART, 1, 1_000 + at, source.frames(7), MARKS[:7])]])
        store.write([[Order(OTHER, 1, at, other.frames(1)), Settle(OTHER, 1)]])
    source.most_bytes = 12_000
    store.write([[Order(PART, 1, 5_000, source.frames(6))]])
    source.most_bytes = 300
    store.write([[Keep(PART, source.frames(20), 7)]])
    # Among the rows are late frames and gap records, so that everything is tried on them, too.
    store.write([[OrderHeld(PART, 1, 6_000, held_names(store, PART), MARKS), Settle(PART, 1_000)]])
    store.close()
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "logs.sqlite"))


@pytest.fixture
def donor(whole: Path, tmp_path: Path) -> Iterator[SqliteLogStore]:
    """A store of which nothing is damaged."""
    store = SqliteLogStore(Path(shutil.copy(whole, tmp_path / "donor.sqlite")))
    yield store
    store.close()


def zero(path: Path, at: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size))


def scrub(store: SqliteLogStore) -> None:
    after, count = store.scrub_rows(0, 100)
    while count:
        after, count = store.scrub_rows(after, 100)
    store.scrub_structure()


def read(store: SqliteLogStore, part: StreamPart = PART) -> tuple[list[Placed], list[Span]]:
    """Read all of a log by offset, and what every page says is missing."""
    placed: list[Placed] = []
    missing: list[Span] = []
    selection: Selection | None = Selection()
    while selection is not None:
        answer = store.find(Page(part, selection, MAX_NUMBER, 9_000))
        assert not answer.problem
        placed += answer.placed
        missing += answer.missing
        selection = answer.following
    return placed, missing


def offsets(placed: list[Placed], missing: list[Span]) -> list[int]:
    ranges = [range(span.start, span.end) for span in missing]
    for row in placed:
        assert row.offset is not None
        ranges.append(range(row.offset, row.offset + peek(row.entry.frame).count))
    return sorted(offset for each in ranges for offset in each)


def repair(store: SqliteLogStore, donor: SqliteLogStore, frames: int = MAX_NUMBER) -> None:
    """Fill the holes of a store with what another one has, so many frames at a time."""
    for _ in range(10_000):
        holes = store.missing()
        if not holes:
            return
        part, [hole, *_] = next(iter(holes.items()))
        selection = Selection(start=hole.filled, end=hole.end)
        rows = donor.find(Page(part, selection, MAX_NUMBER, 50_000)).placed[:frames]
        hashed = donor.find(HashAt(part, hole.filled)).hash
        fill = Fill(part, hole.filled, hashed, tuple(row.entry for row in rows))
        store.write([[fill]])
    raise AssertionError("it is never whole")


def check_whole(store: SqliteLogStore, donor: SqliteLogStore) -> None:
    assert same(store, donor)
    for state in store.states():
        check_log(store, state)
    assert store.scrub_structure() == ""
    assert not aside(store.path).exists()


def mend(path: Path, donor: SqliteLogStore, seen: Counter[str]) -> None:
    """Open a damaged file, scrub it, read it, repair it; see that nothing false is ever said."""
    good = {part: drain(donor, part) for part in (PART, OTHER)}
    try:
        store = SqliteLogStore(path)
    except StoreError as error:
        assert "move the file away" in str(error)  # noqa: PT017
        seen["refused"] += 1
        return
    scrub(store)
    for part in (PART, OTHER):
        placed, missing = read(store, part)
        assert all(row in good[part] for row in placed)
        assert offsets(placed, missing) == offsets(good[part], [])
        by_number = drain_by_number(store, part)
        assert len(by_number.placed) == len(placed)
        assert by_number.missing == tuple(missing_of(store, part))
    seen["damaged" if store.missing() else "whole"] += 1
    repair(store, donor)
    check_whole(store, donor)
    store.close()
    reopened = SqliteLogStore(path)
    assert same(reopened, donor)
    reopened.close()


def drain_by_number(store: SqliteLogStore, part: StreamPart) -> Answer:
    return store.find(Page(part, Selection(by_number=True), MAX_NUMBER, 1 << 30))


def missing_of(store: SqliteLogStore, part: StreamPart) -> Iterator[Span]:
    return (hole.span for hole in store.missing().get(part, ()))


def test_every_page_of_zeros_is_found_and_mended(
    whole: Path, donor: SqliteLogStore, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    for page in range(whole.stat().st_size // PAGE):
        path = Path(shutil.copy(whole, tmp_path / "logs.sqlite"))
        zero(path, page * PAGE, PAGE)
        mend(path, donor, seen)
    assert seen["damaged"] > 20
    assert seen["refused"] <= 3, "the schema, and how the logs stood"


def test_sectors_of_zeros_are_found_and_mended(
    whole: Path, donor: SqliteLogStore, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    rng = Random(1)
    for _ in range(40):
        path = Path(shutil.copy(whole, tmp_path / "logs.sqlite"))
        zero(path, rng.randrange(whole.stat().st_size // SECTOR) * SECTOR, SECTOR)
        mend(path, donor, seen)
    assert seen["damaged"] > 10


def test_flipped_bits_are_found_and_mended(
    whole: Path, donor: SqliteLogStore, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()
    rng = Random(4)
    content = whole.read_bytes()
    for _ in range(40):
        path = tmp_path / "logs.sqlite"
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        mend(path, donor, seen)
    assert min(seen["damaged"], seen["whole"]) > 5


def flip_in(path: Path, *frames: bytes) -> None:
    """Flip a bit in each of some frames, also where it stood before its page was divided."""
    content = bytearray(path.read_bytes())
    for frame in frames:
        begin = content.find(frame)
        assert begin >= 0
        while begin >= 0:
            content[begin + 150] ^= 8
            begin = content.find(frame, begin + 1)
    path.write_bytes(content)


def small_frames(path: Path) -> list[Placed]:
    store = SqliteLogStore(path)
    placed = drain(store, PART)
    store.close()
    return [row for row in placed if 200 < len(row.entry.frame) < 1_000]


def test_two_adjacent_rows_are_cut_out_and_filled_again(copy: Path, donor: SqliteLogStore) -> None:
    rows = small_frames(copy)[10:]
    pair = next(
        (one, two)
        for one, two in pairwise(rows)
        if (one.offset or 0) + peek(one.entry.frame).count == two.offset
    )
    flip_in(copy, *(row.entry.frame for row in pair))
    store = SqliteLogStore(copy)
    placed, [span] = read(store)
    assert not any(row in placed for row in pair)
    assert span == Span(
        pair[0].offset or 0, (pair[1].offset or 0) + peek(pair[1].entry.frame).count
    )
    assert not aside(copy).exists(), "the file itself is not damaged"
    name = FrameName(peek(pair[0].entry.frame).chain, peek(pair[0].entry.frame).last)
    assert store.find(Named(PART, (name,))) == Answer()
    repair(store, donor, frames=1)
    check_whole(store, donor)
    store.close()


def test_wrong_entries_do_not_stay(copy: Path, donor: SqliteLogStore) -> None:
    row = small_frames(copy)[7]
    flip_in(copy, row.entry.frame)
    store = SqliteLogStore(copy)
    [span] = read(store)[1]
    hashed = donor.find(HashAt(PART, span.start)).hash
    wrong = msgspec.structs.replace(row.entry, placed_ms=row.entry.placed_ms + 1)
    store.write([[Fill(PART, span.start, hashed, (wrong,))]])
    assert read(store)[1] == [span]
    repair(store, donor)
    check_whole(store, donor)
    store.close()


def test_what_is_filled_in_is_not_shown_before_the_hole_is_closed(
    copy: Path, donor: SqliteLogStore
) -> None:
    zero(copy, leaf_of(copy, small_frames(copy)[20].entry.frame), PAGE)
    store = SqliteLogStore(copy)
    [span] = read(store)[1]
    entries = [row.entry for row in donor.find(page_of(span)).placed]
    hashed = donor.find(HashAt(PART, span.start)).hash
    store.write([[Fill(PART, span.start, hashed, tuple(entries[:1]))]])
    for selection in (Selection(), Selection(by_number=True)):
        frames = [row.entry.frame for row in store.find(page_of(span, selection)).placed]
        assert entries[0].frame not in frames
    head = peek(entries[0].frame)
    assert store.find(Named(PART, (FrameName(head.chain, head.last),))).placed == ()
    store.close()
    store = SqliteLogStore(copy)
    assert [hole.filled - span.start for hole in store.missing()[PART]] == [head.count]
    repair(store, donor)
    check_whole(store, donor)
    store.close()


def leaf_of(path: Path, frame: bytes) -> int:
    return path.read_bytes().find(frame) // PAGE * PAGE


def page_of(span: Span, selection: Selection | None = None) -> Page:
    return Page(PART, selection or Selection(span.start, span.end), MAX_NUMBER, 1 << 30)


def test_a_hole_at_the_end_is_older_than_what_is_placed_behind_it(
    copy: Path, donor: SqliteLogStore
) -> None:
    [*_, last] = drain(donor, PART)
    flip_in(copy, last.entry.frame)
    store = SqliteLogStore(copy)
    assert len(read(store)[1]) == 1
    [hole] = store.missing()[PART]
    assert hole.before_ms == MAX_NUMBER
    source = Source(Random(9), most_bytes=300)
    source.count = 10_000
    store.write([[Order(PART, 2, 9_000, source.frames(1))]])
    [bounded] = store.missing()[PART]
    assert bounded == msgspec.structs.replace(hole, before_ms=9_000 + CLOCKS_MS)
    store.write([[Order(PART, 2, 9_500, source.frames(1))]])
    assert store.missing()[PART] == (bounded,)
    later = Selection(after=(9_001 + CLOCKS_MS) << 20, by_number=True)
    assert not store.find(Page(PART, later, MAX_NUMBER, 1 << 30)).missing
    store.close()
    store = SqliteLogStore(copy)
    assert store.missing()[PART] == (bounded,)
    store.close()


def test_a_scrub_of_a_row_whose_id_is_zeroed_ends_and_finds_it(
    copy: Path, donor: SqliteLogStore
) -> None:
    database = apsw.Connection(str(copy))
    row_id, frame = database.execute(
        "SELECT id, frame FROM frames WHERE length(frame) < 1000 ORDER BY id DESC LIMIT 1"
    ).fetchone()
    assert row_id == database.execute("SELECT max(id) FROM frames").get
    database.close()
    content = copy.read_bytes()
    # The id stands a few bytes before the frame, in two bytes of seven bits.
    shown = bytes([0x80 | row_id >> 7, row_id & 0x7F])
    at = content.rfind(shown, 0, content.find(frame))
    store = SqliteLogStore(copy)
    zero(copy, at - 2, 60)  # with the size of the row before it, and its first columns after it
    after = 0
    while (found := store.scrub_rows(after, 100))[1]:
        assert found[0] > after, "it would go on for ever"
        after = found[0]
    store.scrub_structure()
    assert store.missing()
    repair(store, donor)
    check_whole(store, donor)
    store.close()


def test_holes_are_cut_with_the_log(copy: Path) -> None:
    rows = small_frames(copy)
    flip_in(copy, rows[3].entry.frame, rows[-3].entry.frame)
    store = SqliteLogStore(copy)
    assert (store.problem, len(read(store)[1])) == ("", 2), store.problem
    [state] = [state for state in store.states() if state.part == PART]
    store.write([[Truncate(PART, rows[-5].offset or 0)]])
    assert len(read(store)[1]) == 1
    while store.retain(1 << 50, keep_ms=1):
        pass
    assert store.missing() == {}
    assert state.high == 1_000 or state.high <= state.length
    store.close()


def test_a_damaged_file_serves_what_it_has_where_nobody_has_the_rest(copy: Path) -> None:
    zero(copy, leaf_of(copy, small_frames(copy)[20].entry.frame), PAGE)
    store = SqliteLogStore(copy)
    placed, missing = read(store)
    assert len(missing) >= 1
    assert len(placed) > 200
    assert store.kept_aside == aside(copy)
    source = Source(Random(9))
    source.count = 10_000
    store.write([[Order(PART, 2, 9_000, source.frames(3))]])
    assert len(read(store)[0]) == len(placed) + 3
    store.close()


def test_a_swap_that_was_interrupted_is_finished_at_the_next_start(
    copy: Path, donor: SqliteLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero(copy, leaf_of(copy, small_frames(copy)[20].entry.frame), PAGE)
    done: list[tuple[Path, Path]] = []
    replace = os.replace

    def fail_at(count: int) -> None:
        def failing(old: Path, new: Path) -> None:
            if len(done) == count:
                raise OSError("the power is off")
            done.append((old, new))
            replace(old, new)

        monkeypatch.setattr("anabranch.live.storage.rebuilding.os.replace", failing)

    for count in range(4):
        path = Path(shutil.copy(copy, copy.parent / f"{count}.sqlite"))
        store = SqliteLogStore(path)
        done.clear()
        fail_at(count)
        with suppress(StoreError, OSError):
            read(store)
        monkeypatch.undo()
        with suppress(StoreError, OSError):
            store.close()
        again = SqliteLogStore(path)
        scrub(again)
        repair(again, donor)
        check_whole(again, donor)
        again.close()


def test_every_page_of_zeros_under_an_open_store_is_found_and_mended(
    whole: Path, donor: SqliteLogStore, tmp_path: Path
) -> None:
    source = Source(Random(9), most_bytes=300)
    source.count = 10_000
    batches = [Order(PART, 2, 9_000, source.frames(5)) for _ in range(20)]
    length = len(offsets(drain(donor, PART), []))
    donor.write([[batch] for batch in batches])
    pages = whole.stat().st_size // PAGE
    found = 0
    for page in [*range(12), *range(12, pages, 5)]:
        path = Path(shutil.copy(whole, tmp_path / "logs.sqlite"))
        store = SqliteLogStore(path, checkpoint_pages=1 << 30)
        store.write([[batch] for batch in batches])  # only in the write-ahead log
        zero(path, page * PAGE, PAGE)
        scrub(store)
        scrub(store)
        holes = store.missing().get(PART, ())
        assert all(hole.end <= length for hole in holes), "the write-ahead log is whole"
        found += bool(store.missing())
        repair(store, donor)
        check_whole(store, donor)
        store.close()
        reopened = SqliteLogStore(path)
        assert same(reopened, donor), page
        reopened.close()
    assert found > 5


def test_readers_are_told_that_all_is_missing_while_a_large_file_is_rebuilt(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()

    def slowly(*arguments: Any) -> None:
        assert may_go_on.wait(60.0)
        build_anew(*arguments)

    monkeypatch.setattr("anabranch.live.storage.sqlite.build_anew", slowly)
    monkeypatch.setattr("anabranch.live.storage.sqlite.PATIENCE_S", 0.1)
    zero(copy, leaf_of(copy, small_frames(copy)[20].entry.frame), PAGE)
    store = SqliteLogStore(copy)
    whole = Page(PART, Selection(by_number=True), MAX_NUMBER, 1 << 30)
    [span] = store.find(whole).missing
    assert (span.start, span.end) == (0, store.states()[0].length)
    assert store.is_rebuilding
    assert store.find(HashAt(PART, 0)) == Answer(hash=NO_HASH), "what can be read is read"
    may_go_on.set()
    store.close()
    store = SqliteLogStore(copy)
    assert len(store.find(whole).placed) > 200
    store.close()


def test_a_file_that_cannot_be_rebuilt_is_said_and_tried_again_in_a_while(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def full(path: Path, *arguments: Any) -> None:
        tried.append(path)
        raise OSError("no space left on device")

    zero(copy, leaf_of(copy, small_frames(copy)[20].entry.frame), PAGE)
    store = SqliteLogStore(copy)
    monkeypatch.setattr("anabranch.live.storage.sqlite.build_anew", full)
    whole = Page(PART, Selection(by_number=True), MAX_NUMBER, 1 << 30)
    for _ in range(2):
        assert store.find(whole).missing[0].start == 0
    assert "cannot be rebuilt: no space left on device" in store.problem
    assert len(tried) == 1
    monkeypatch.undo()
    store._retry_at = 0.0
    assert len(store.find(whole).placed) > 200
    assert store.problem == ""
    store.close()


def test_holes_that_are_not_in_the_file_any_more_are_not_forgotten(copy: Path) -> None:
    flip_in(copy, small_frames(copy)[7].entry.frame)
    store = SqliteLogStore(copy)
    assert len(read(store)[1]) == 1
    store.close()
    database = apsw.Connection(str(copy))
    database.execute("DELETE FROM missing")
    database.close()
    with pytest.raises(StoreError, match="move the file away"):
        SqliteLogStore(copy)
