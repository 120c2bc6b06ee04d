"""The file of logs: what is there after a restart, who may have it, what it says when it cannot."""

import resource
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from random import Random

import apsw
import pytest

from anabranch.core.errors import LocalError
from anabranch.core.messages.storage import LATE, MAX_NUMBER, Selection
from anabranch.core.store import (
    Delete,
    Keep,
    Order,
    OrderHeld,
    Page,
    Promise,
    Settle,
    StoreError,
    Truncate,
)
from anabranch.live.storage import sqlite as sqlite_module
from anabranch.live.storage.schema import APPLICATION_ID, SCHEMA_VERSION
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source, check_log, drain, held_names, same
from live.storage.power import PowerVfs
from machines import NODES, OTHER, PART


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs.sqlite"


def order(source: Source, count: int, epoch: int = 1) -> Order:
    return Order(PART, epoch, 5, source.frames(count))


# --- Coming back ----------------------------------------------------------------------------


def test_everything_is_there_after_a_restart(path: Path) -> None:
    source = Source(Random(1))
    store = SqliteLogStore(path)
    store.write([[order(source, 40), Settle(PART, 10)], [Keep(OTHER, source.frames(3), 9)]])
    store.write([[Promise(PART, 7, NODES[3])]])
    states, rows = store.states(), drain(store, PART)
    store.close()
    store = SqliteLogStore(path)
    assert store.states() == states
    assert drain(store, PART) == rows
    assert len(drain(store, OTHER, by_number=True)) == 3
    check_log(store, states[0])
    store.close()


def test_a_batch_that_cannot_be_done_undoes_its_whole_group(path: Path) -> None:
    source = Source(Random(1))
    store = SqliteLogStore(path)
    store.write([[order(source, 3)]])
    before, rows = store.states(), drain(store, PART)
    with pytest.raises(AssertionError, match="where a frame begins"):
        store.write([[order(source, 3)], [Keep(OTHER, source.frames(1), 1)], [Truncate(PART, 999)]])
    assert (store.states(), drain(store, PART)) == (before, rows)
    store.write([[order(source, 3)]])
    assert len(drain(store, PART)) == 6
    store.close()


def test_one_reads_while_another_writes(path: Path) -> None:
    source = Source(Random(1))
    store = SqliteLogStore(path)
    store.write([[order(source, 50)]])
    seen: list[int] = []
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            seen.append(len(drain(store, PART)))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        store.write([[order(source, 10)]])
    is_done.set()
    reader.join()
    assert seen == sorted(seen)
    assert len(drain(store, PART)) == 350
    store.close()


def test_the_log_that_is_written_ahead_stays_small_though_somebody_always_reads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "MAX_WAL_PAGES", 100)
    source = Source(Random(1))
    store = SqliteLogStore(path, checkpoint_pages=50)
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            drain(store, PART)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(60):
        store.write([[order(source, 20)]])
    ended.set()
    reader.join()
    assert path.with_name(f"{path.name}-wal").stat().st_size < 400 * 4_096
    store.close()


# --- Who may have it ------------------------------------------------------------------------


def test_a_second_process_is_told_that_the_file_is_in_use(path: Path) -> None:
    store = SqliteLogStore(path)
    store.write([[order(Source(Random(1)), 3)]])
    with pytest.raises(LocalError, match="a storage node runs on it already"):
        SqliteLogStore(path)
    second = "import sys; from anabranch.live.storage.sqlite import SqliteLogStore as S; "
    ran = subprocess.run(
        [sys.executable, "-c", f"{second}S(sys.argv[1])", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a storage node runs on it already; stop it" in ran.stderr
    looked = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); "
    count = "print(d.execute('SELECT count(*) FROM log').fetchone()[0])"
    ran = subprocess.run(
        [sys.executable, "-c", looked + count, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "3\n", ran.stderr  # whoever only looks may
    store.close()
    SqliteLogStore(path).close()


def test_the_file_can_be_looked_at_with_ordinary_tools(path: Path) -> None:
    store = SqliteLogStore(path)
    store.write([[order(Source(Random(1)), 3), Settle(PART, 1)]])
    [overview] = store.overview()
    expected = {"stream": PART.stream, "partition": 0, "start": 0, "high": 1, "frames": 3}
    assert overview | expected == overview
    store.close()
    database = sqlite3.connect(path)
    rows = database.execute("SELECT stream, offset, placed, bytes FROM log").fetchall()
    assert rows[0][:3] == (PART.stream, 0, "1970-01-01 00:00:00.005")
    assert sum(row[3] for row in rows) == overview["bytes"]
    assert database.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
    database.close()


def test_files_that_are_none_are_refused(path: Path) -> None:
    with pytest.raises(LocalError, match="there is no folder"):
        SqliteLogStore(path.parent / "nowhere" / "logs.sqlite")
    path.write_bytes(b"no database at all " * 100)
    with pytest.raises(LocalError, match="is damaged"):
        SqliteLogStore(path)
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE other (id INTEGER)")
    database.close()
    with pytest.raises(LocalError, match="another program"):
        SqliteLogStore(path)
    path.unlink()
    SqliteLogStore(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(LocalError, match="install the release that wrote it"):
        SqliteLogStore(path)


def make_old(path: Path) -> None:
    """Give a file the first format, which had no marks."""
    database = apsw.Connection(str(path))
    database.execute("DROP VIEW log")
    database.execute("ALTER TABLE frames DROP COLUMN mark")
    database.execute("CREATE VIEW log AS SELECT offset, frames.id AS frame FROM frames")
    database.execute("PRAGMA user_version = 1")
    database.close()


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_file_of_the_first_format_is_read_and_takes_marks(path: Path, is_rebuilt: bool) -> None:
    source, store = Source(Random(1)), SqliteLogStore(path)
    store.write([[order(source, 100), Keep(PART, source.frames(5), 7)]])
    before, states = drain(store, PART), store.states()
    store.close()
    make_old(path)
    store = SqliteLogStore(path)
    if is_rebuilt:  # some rows have the column by then, and others have not
        store.write([[Keep(PART, source.frames(1), 7)]])
        store._rebuild("a test")
        assert drain(store, PART) == before
    else:
        assert (drain(store, PART), store.states()) == (before, states)
    names = held_names(store, PART)
    store.write([[OrderHeld(PART, 2, 8, names[:2], (LATE, 5))]])
    check_log(store, store.states()[0])
    store.close()
    store = SqliteLogStore(path)
    assert [row.entry.mark for row in drain(store, PART)[-2:]] == [LATE, 5]
    assert store.missing() == {}
    [(late, gap)] = apsw.Connection(str(path)).execute(
        "SELECT sum(late), count(missing_from) FROM log"
    )
    assert (late, gap) == (1, 1)
    store.close()


# --- No room --------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(path: Path) -> None:
    vfs = PowerVfs("full", Random(1))
    source = Source(Random(1))
    store = SqliteLogStore(path, vfs.name)
    store.write([[order(source, 20)]])
    twin = SqliteLogStore(path.with_name("twin.sqlite"))
    twin.write([[Order(PART, 1, 5, tuple(row.entry.frame for row in drain(store, PART)))]])
    vfs.room_bytes = sum(len(file.seen) for file in vfs.files.values()) + 30_000
    batch = order(source, 100)
    for _ in range(3):
        with pytest.raises(StoreError, match="the disk is full; make room"):
            store.write([[batch]])
        assert same(store, twin)
    vfs.room_bytes = None
    store.write([[batch]])
    twin.write([[batch]])
    assert same(store, twin)
    check_log(store, store.states()[0])
    store.close()
    twin.close()
    vfs.unregister()


LIMITED = """
import resource, sys
from random import Random
sys.path.insert(0, sys.argv[2])
from anabranch.core.store import Order, StoreError
from anabranch.live.storage import sqlite as sqlite_module
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source, check_log, drain
from machines import PART

store, source = SqliteLogStore(sys.argv[1]), Source(Random(1))
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
done = 0
try:
    while True:
        store.write([[Order(PART, 1, 1, source.frames(50))]])
        done += 50
except StoreError as error:
    print(error)
assert len(drain(store, PART)) == done > 0
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.write([[Order(PART, 1, 1, source.frames(50))]])
check_log(store, store.states()[0])
store.close()
print("went on after", done)
"""


def test_a_file_that_may_not_grow_is_told_and_goes_on(path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    tests = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), str(tests)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told, went_on = ran.stdout.splitlines()
    assert "check the disk" in told or "make room" in told
    assert went_on.startswith("went on after")


# --- Bounded work ---------------------------------------------------------------------------


def test_a_page_for_which_there_is_little_to_find_ends_early(path: Path) -> None:
    source = Source(Random(1))
    store = SqliteLogStore(path, scan_frames=10)
    lone = source.frame()
    store.write([[Order(PART, 1, 1, (lone,)), order(source, 100)]])
    whose = bytes(NODES[20])
    for by_number in (False, True):
        for last in (0, 5):
            answer = store.find(
                Page(PART, Selection(whose=whose, by_number=by_number, last=last), MAX_NUMBER, 1000)
            )
            assert answer.placed == ()
            assert answer.following is not None
            assert drain(store, PART, whose=whose, by_number=by_number, last=last) == []
    store.close()


def test_what_a_reader_asks_for_uses_an_index(path: Path) -> None:
    store = SqliteLogStore(path)
    store.write([[order(Source(Random(1)), 5)]])
    store.close()
    plans: list[str] = []

    def trace(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if sql.startswith("SELECT") and "parts" not in sql:
            rows = cursor.connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings).fetchall()
            plans.extend(str(row[3]) for row in rows)
        return True

    store = SqliteLogStore(path)
    store._reader.exec_trace = trace
    chain = bytes(NODES[1]) + (1).to_bytes(8)
    for by_number in (False, True):
        for whose in (b"", bytes(NODES[1]), chain):
            for last in (0, 2):
                drain(store, PART, by_number=by_number, whose=whose, last=last)
    store._reader.exec_trace = None
    assert plans
    assert not [plan for plan in plans if "SCAN" in plan or "TEMP B-TREE" in plan]
    store.close()


def test_what_was_deleted_is_swept_away_little_by_little(path: Path) -> None:
    source = Source(Random(1))
    store = SqliteLogStore(path)
    for _ in range(5):
        store.write([[order(source, 1_000)]])
    store.close()
    size = path.stat().st_size
    store = SqliteLogStore(path)
    store.write([[Delete(PART), Keep(OTHER, source.frames(2), 1)]])
    store.write([[order(source, 3), OrderHeld(OTHER, 1, 1, held_names(store, OTHER))]])
    steps = 0
    while store.retain(0):
        steps += 1
    assert steps > 4
    assert len(drain(store, PART)) == 3
    assert len(drain(store, OTHER)) == 2
    store.close()
    assert path.stat().st_size < size / 2
