"""The record beside a file of logs: what it tells after a disk has forgotten something."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from anabranch.core.log_record import Record
from anabranch.core.machine import Write, Wrote
from anabranch.core.store import (
    AcceptLoss,
    Adopt,
    Delete,
    LogState,
    Loss,
    Order,
    Owe,
    Promise,
    Restart,
    StoreError,
    Truncate,
)
from anabranch.live.storage.disk import RECORD_AGAIN_S, LogDisk
from anabranch.live.storage.record import read_records, record_path
from anabranch.live.storage.sqlite import SqliteLogStore, UnrecordedError, load_states
from live.networks import run
from machines import NODES, OTHER, PART
from storage_logs import entries

FRAMES = [entry.frame for entry in entries(1, 30)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs.sqlite"


def state(store: SqliteLogStore) -> LogState:
    return next((s for s in store.states() if s.part == PART), LogState(PART))


def fill(store: SqliteLogStore, first: int, count: int, epoch: int = 1) -> None:
    some = tuple(FRAMES[first : first + count])
    store.write([[Promise(PART, epoch, NODES[1]), Adopt(PART, epoch), Order(PART, epoch, 5, some)]])


def reopened(path: Path) -> LogState:
    store = SqliteLogStore(path)
    try:
        return state(store)
    finally:
        store.close()


def recorded(path: Path) -> Record:
    return next(record for record in read_records(path) if record.part == PART)


def keep(path: Path, name: str) -> Path:
    """Copy the file of the logs, which is closed."""
    return Path(shutil.copy(path, path.with_name(name)))


def test_record_has_what_the_log_has_when_a_write_returns(path: Path) -> None:
    store = SqliteLogStore(path)
    for at in range(5):
        fill(store, at, 1, epoch=at + 1)
        now, record = state(store), recorded(path)
        assert (record.epoch, record.voted) == (now.epoch, now.voted) == (at + 1, NODES[1])
        assert (record.rank, record.hash) == (now.rank, now.hash)
    store.close()
    assert reopened(path).owed == (0, 0)


def test_log_that_is_older_than_its_record_owes_what_it_had(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.close()
    old = keep(path, "old")
    store = SqliteLogStore(path)
    fill(store, 4, 6, epoch=2)
    store.close()
    shutil.copy(old, path)
    store = SqliteLogStore(path)
    found = state(store)
    assert (found.rank, found.owed) == ((1, 4), (2, 10))
    assert (found.epoch, found.voted) == (2, NODES[1]), "a promise is not forgotten"
    fill(store, 4, 2)
    assert state(store).owed == (2, 10), "what is copied back does not lower the record"
    store.write([[Truncate(PART, 5)]])
    assert recorded(path).rank == (2, 10), "nor what is cut meanwhile"
    fill(store, 5, 5, epoch=2)
    assert (state(store).owed, recorded(path).rank) == ((0, 0), (2, 10))
    fill(store, 10, 1, epoch=2)
    assert recorded(path).rank == (2, 11)
    store.close()


def test_log_whose_file_is_gone_owes_everything(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.close()
    path.unlink()
    store = SqliteLogStore(path)
    assert (state(store).length, state(store).owed, state(store).epoch) == (0, (1, 4), 1)
    store.close()
    assert [s.owed for s in load_states(path)] == [(1, 4)]


def test_record_that_is_gone_or_damaged_forces_recovery_from_the_others(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.close()
    keep(record_path(path), "good")
    record_path(path).unlink()
    assert reopened(path).is_restored
    assert reopened(path).is_restored, "until the others were heard"
    shutil.copy(path.with_name("good"), record_path(path))
    database = apsw.Connection(str(record_path(path)))
    database.execute("UPDATE records SET record = zeroblob(length(record))")
    database.close()
    assert reopened(path).is_restored
    assert record_path(path).with_name("logs.sqlite-record-damaged").exists()
    record_path(path).write_bytes(b"no database" * 1_000)
    assert reopened(path).is_restored


def test_file_of_an_earlier_release_gets_a_record_of_what_it_has(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.close()
    record_path(path).unlink()
    database = apsw.Connection(str(path))
    database.execute("DROP TABLE recorded")
    database.close()
    found = reopened(path)
    assert (found.owed, found.is_restored) == ((0, 0), False)
    assert recorded(path).rank == (1, 4)


def test_log_of_the_recorded_length_that_is_another_one_is_not_trusted(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.close()
    record = keep(record_path(path), "record")
    store = SqliteLogStore(path)
    store.write([[Delete(PART)]])
    fill(store, 10, 4)
    store.close()
    shutil.copy(record, record_path(path))
    assert reopened(path).is_restored


def test_record_is_lowered_before_a_log_is_cut_and_raised_after_that(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(work: Any) -> Any:
        raise StoreError("the power went")

    store = SqliteLogStore(path)
    fill(store, 0, 10)
    monkeypatch.setattr(store, "_transact", fails)
    with pytest.raises(StoreError, match="power"):
        store.write([[Truncate(PART, 6)]])
    assert recorded(path).rank == (1, 6)
    store.close()
    assert reopened(path).owed == (0, 0)
    store = SqliteLogStore(path)
    store.write([[Truncate(PART, 6), Order(PART, 1, 5, (FRAMES[20],))]])
    assert recorded(path).rank == (1, 7)
    store.write([[Restart(PART, 40, b"h" * 32)]])
    assert recorded(path).rank == (1, 40)
    monkeypatch.setattr(store, "_transact", fails)
    with pytest.raises(StoreError, match="power"):
        store.write([[Delete(PART)]])
    assert read_records(path) == [], "a part that is to be deleted owes nothing"
    store.close()


def test_debts_and_accepted_losses_are_on_the_disk(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.write([[Owe(PART, (3, 9))]])
    store.close()
    assert reopened(path).owed == (3, 9)
    loss = Loss(4, 9, 1_000)
    store = SqliteLogStore(path)
    store.write([[AcceptLoss(PART, loss)]])
    store.close()
    found = reopened(path)
    assert (found.owed, found.losses) == ((0, 0), (loss,))


def test_forced_recovery_is_remembered_until_a_majority_was_heard(path: Path) -> None:
    store = SqliteLogStore(path)
    fill(store, 0, 4)
    store.require_recovery()
    fill(store, 4, 1)
    store.write([[Owe(PART, (1, 5))]])
    assert state(store).is_restored
    store.close()
    store = SqliteLogStore(path)
    assert state(store).is_restored
    store.write([[Owe(PART, (1, 9), by_majority=True)]])
    assert (state(store).is_restored, state(store).owed) == (False, (1, 9))
    store.close()


def test_nothing_is_said_of_a_log_whose_record_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteLogStore(path)
    save, fails = store._record_file.save, [2]

    def sometimes(changes: Any) -> None:
        if changes and fails[0]:
            fails[0] -= 1
            raise StoreError("no room for the record")
        save(changes)

    monkeypatch.setattr(store._record_file, "save", sometimes)
    with pytest.raises(UnrecordedError, match="no room"):
        fill(store, 0, 1)
    with pytest.raises(StoreError, match="no room"):
        fill(store, 1, 1)
    assert state(store).length == 1, "the next write waits for the record of the one before"
    fill(store, 1, 1)
    assert recorded(path).rank == (1, 2)
    fails[0] = 2

    async def main() -> None:
        disk = LogDisk(store)
        wrote = asyncio.get_running_loop().create_future()
        disk.write(Write(1, (Order(OTHER, 1, 5, tuple(FRAMES[:3])),)), wrote.set_result)
        await asyncio.sleep(RECORD_AGAIN_S / 2)
        assert not wrote.done()
        assert "no room" in store.problem
        event = await wrote
        assert isinstance(event, Wrote)
        assert (event.problem, store.problem) == ("", "")
        assert [found.length for found in event.states] == [3]
        await disk.close()

    run(main())
