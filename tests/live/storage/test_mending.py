"""A disk that says something else than was written is found out, and good copies mend it."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from anabranch.core.frames import peek
from anabranch.core.messages.storage import MAX_NUMBER, FrameName, Selection
from anabranch.core.store import (
    HashAt,
    Keep,
    Named,
    Order,
    Page,
    Placed,
    Repair,
    Settle,
    StoreError,
)
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source, check_log, drain
from live.storage.power import Content, PowerVfs
from machines import OTHER, PART

FLIPS = 400


class Files:
    """A file of logs, and copies of it with a flipped bit, all in memory."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "logs.sqlite"
        self.vfs = PowerVfs(f"flips-{folder.name}", Random(1))
        source, other = Source(Random(2)), Source(Random(3), OTHER)
        store = self.open()
        for at in range(6):
            store.write([[Order(PART, 1, 1_000 + at, source.frames(6))]])
            store.write([[Order(OTHER, 1, at, other.frames(1)), Settle(OTHER, 1)]])
        self.held = source.frames(4)
        store.write([[Keep(PART, self.held, 7)]])
        self.placed = drain(store, PART)
        store.close()
        self.whole = bytes(self.vfs.files[str(self.path)].seen)

    def open(self) -> SqliteLogStore:
        return SqliteLogStore(self.path, self.vfs.name)

    def flip(self, bit: int, *places: int) -> None:
        """Let the file be as it was, but for one bit at each of some places."""
        changed = bytearray(self.whole)
        for at in places:
            changed[at] ^= 1 << bit
        self.vfs.files = {str(self.path): Content(bytes(changed), True)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def names(rows: list[Placed]) -> dict[FrameName, Placed]:
    heads = [(peek(row.entry.frame), row) for row in rows]
    return {FrameName(head.chain, head.last): row for head, row in heads}


def read_all(store: SqliteLogStore, by_number: bool) -> tuple[list[Placed], list[FrameName]]:
    """Read everything, and what is said to be damaged."""
    placed: list[Placed] = []
    damaged: list[FrameName] = []
    selection: Selection | None = Selection(by_number=by_number)
    while selection is not None:
        answer = store.find(Page(PART, selection, MAX_NUMBER, 3_000))
        placed += answer.placed
        damaged += answer.damaged
        selection = answer.following
    return placed, damaged


def test_no_flipped_bit_anywhere_gives_anything_that_was_not_written(files: Files) -> None:
    rng, seen = Random(4), Counter[str]()
    known = names(files.placed) | {
        FrameName(peek(frame).chain, peek(frame).last): None for frame in files.held
    }
    for _ in range(FLIPS):
        files.flip(rng.randrange(8), rng.randrange(len(files.whole)))
        try:
            store = files.open()
        except StoreError:
            seen["not opened"] += 1
            continue
        try:
            for by_number in (False, True):
                placed, damaged = read_all(store, by_number)
                assert all(row in files.placed or row.entry.frame in files.held for row in placed)
                assert all(name in known for name in damaged)
                if not by_number:
                    lacking = set(names(files.placed)) - set(names(placed)) - set(damaged)
                    assert not lacking
                seen["damaged" if damaged else "whole"] += 1
        except StoreError:
            seen["refused"] += 1
        finally:
            store.close()
    assert min(seen["damaged"], seen["whole"], seen["refused"]) > 5, seen


def test_a_flipped_bit_in_a_row_is_named_and_mended(files: Files) -> None:
    rng, seen = Random(5), Counter[str]()
    for _ in range(FLIPS // 2):
        frame = rng.choice(files.placed).entry.frame
        # Before the frame stand the columns: 32 bytes of hash, 28 of chain, and the numbers.
        damage_frame(files, frame, rng.randrange(-90, len(frame)), rng.randrange(8))
        try:
            store = files.open()
        except StoreError:
            seen["not opened"] += 1
            continue
        try:
            _, damaged = read_all(store, False)
            if not damaged:  # the index of offsets has some of it once more, and that is whole
                _, damaged = read_all(store, True)
            [name] = damaged
            store.write([[Repair(PART, names(files.placed)[name].entry.frame)]])
            assert read_all(store, False) == (files.placed, [])
            assert read_all(store, True)[1] == []
            for state in store.states():
                check_log(store, state)
            seen["mended"] += 1
        except StoreError:
            seen["refused"] += 1
        finally:
            store.close()
    assert seen["mended"] > FLIPS // 2 * 0.9, seen


def damage_frame(files: Files, frame: bytes, at: int = 150, bit: int = 3) -> None:
    """Flip a bit in a frame or before it, also where it stood before its page was divided."""
    places, begin = [], -1
    while (begin := files.whole.find(frame, begin + 1)) >= 0:
        places.append(begin + at)
    assert places
    files.flip(bit, *places)


def test_a_damaged_copy_of_a_name_is_found_where_names_decide(files: Files) -> None:
    row = files.placed[7]
    frame, name = row.entry.frame, next(iter(names([row])))
    begin = files.whole.find(frame)
    damage_frame(files, frame, files.whole.rfind(name.chain, 0, begin) - begin + 3)
    store = files.open()
    assert read_all(store, False) == (files.placed, [])  # the frame is whole, and its place
    placed, damaged = read_all(store, True)
    assert (damaged, row in placed) == ([name], False)
    assert store.find(Named(PART, (name,))).damaged == (name,)
    store.close()


@pytest.mark.parametrize("bit", range(8))
def test_a_row_whose_name_is_damaged_is_mended_though_no_index_knows_it(
    files: Files, bit: int
) -> None:
    row = files.placed[7]
    frame, name = row.entry.frame, next(iter(names([row])))
    begin = files.whole.find(frame)
    chain_at = files.whole.rfind(name.chain, 0, begin) - begin
    damage_frame(files, frame, chain_at + 3, bit)
    store = files.open()
    store.write([[Repair(PART, frame)]])
    assert read_all(store, False) == (files.placed, [])
    placed, damaged = read_all(store, True)
    assert (damaged, row in placed) == ([], True)
    for state in store.states():
        check_log(store, state)
    store.close()
    reopened = files.open()
    assert reopened.find(Named(PART, (name,))).placed == (row,)
    reopened.close()


def test_another_frame_of_the_name_does_not_mend(files: Files) -> None:
    row = next(row for row in files.placed if len(row.entry.frame) > 400)
    frame = row.entry.frame
    damage_frame(files, frame)
    store = files.open()
    other = frame[:-70] + bytes(70)
    assert peek(other) == peek(frame)
    store.write([[Repair(PART, other)]])
    assert len(read_all(store, False)[1]) == 1
    store.write([[Repair(PART, frame)]])
    assert read_all(store, False) == (files.placed, [])
    store.close()


def test_the_hash_at_a_damaged_frame_follows_from_the_one_before(files: Files) -> None:
    row = next(row for row in files.placed[1:] if len(row.entry.frame) > 400)
    store = files.open()
    expected = store.find(HashAt(PART, row.offset or 0)).hash
    store.close()
    damage_frame(files, row.entry.frame)
    store = files.open()
    assert store.find(HashAt(PART, row.offset or 0)).hash == expected
    store.close()
