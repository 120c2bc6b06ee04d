"""The oldest go by age and by size, and what is not settled stays."""

from pathlib import Path
from random import Random

import pytest

from anabranch.core.store import Keep, Order, Settle
from anabranch.live.storage.retention import SPARE_PAGES
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source, check_log, drain
from live.storage.power import PowerVfs
from machines import OTHER, PART


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs.sqlite"


def fill(store: SqliteLogStore, source: Source, batches: int, part: object = PART) -> None:
    """Order ten frames at each of some times."""
    for at in range(batches):
        store.write([[Order(part, 1, 1_000 * at, source.frames(10))]])  # type: ignore[arg-type]


def settle_all(store: SqliteLogStore) -> None:
    store.write([[Settle(state.part, state.length) for state in store.states()]])


def test_what_is_too_old_goes_if_it_is_settled(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, Source(Random(1)), 10)
    rows = drain(store, PART)
    assert not store.retain(100_000, keep_ms=1)
    assert drain(store, PART) == rows  # nothing is settled
    store.write([[Settle(PART, rows[35].offset or 0)]])
    while store.retain(100_000, keep_ms=1):
        pass
    assert drain(store, PART) == rows[35:]
    settle_all(store)
    while store.retain(100_000, keep_ms=100_000 - 7_000):
        pass
    assert drain(store, PART) == rows[70:]
    [state] = store.states()
    assert state.start == rows[70].offset
    check_log(store, state)
    store.close()
    store = SqliteLogStore(path)
    assert store.states() == [state]
    fill(store, Source(Random(2)), 1)
    check_log(store, store.states()[0])
    store.close()


def test_what_is_held_for_too_long_goes(path: Path) -> None:
    store, source = SqliteLogStore(path), Source(Random(1))
    store.write([[Keep(PART, source.frames(5), 1_000), Keep(PART, source.frames(6), 2_000)]])
    while store.retain(2_500, keep_ms=1_000):
        pass
    assert len(drain(store, PART, by_number=True)) == 6
    assert store.states()[0].held == 6
    store.close()


def test_of_too_much_the_largest_part_pays(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, Source(Random(1)), 50)
    fill(store, Source(Random(2), OTHER), 3, OTHER)
    settle_all(store)
    small = drain(store, OTHER)
    while store.retain(0, keep_bytes=60_000):
        pass
    kept = {row["stream"]: row["bytes"] for row in store.overview()}
    assert 50_000 < sum(kept.values()) <= 60_000
    assert drain(store, OTHER) == small
    for state in store.states():
        check_log(store, state)
    store.close()


def test_the_file_shrinks(path: Path) -> None:
    vfs = PowerVfs("shrink", Random(1))
    store = SqliteLogStore(path, vfs.name)
    fill(store, Source(Random(1), most_bytes=9_000), 100)
    settle_all(store)
    store.write([[]])
    while store.retain(0, keep_bytes=10_000):
        pass
    store.close()
    [size] = [len(file.seen) for name, file in vfs.files.items() if name == str(path)]
    assert size < (SPARE_PAGES + 50) * 4096
    vfs.unregister()
