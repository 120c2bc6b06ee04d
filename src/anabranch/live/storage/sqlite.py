"""The logs of a storage node in one SQLite file; schema.py says what is in it.

When it is opened, the state of every log is checked, and that the last frame of each fits it. All
the rest is checked when it is read, and by a scrub (scrub.py).

Damage is handled at once, by the reader or the writer that meets it: a row with a wrong checksum is
cut out (holes.py), and a file that SQLite cannot read is rebuilt (rebuilding.py). Both leave holes,
which every later answer names.

Beside the file lies its record (record.py), which is written after it at every commit. It tells
when the disk has forgotten something.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from anabranch.core.ids import StreamPart
from anabranch.core.log_record import Changes, Records
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.store import (
    Answer,
    HashAt,
    LogQuery,
    LogState,
    LogWrite,
    Missing,
    Page,
    Placed,
    StoreError,
    hash_after,
    spans_for,
)
from anabranch.live.storage.holes import DamagedRowsError, cut_out
from anabranch.live.storage.reads import SCAN_FRAMES, find
from anabranch.live.storage.rebuilding import aside, build_anew, finish_swap, remove_aside
from anabranch.live.storage.record import RecordFile, read_records
from anabranch.live.storage.retention import retain, shrink
from anabranch.live.storage.rows import (
    NAMED_COLUMNS,
    NamedRow,
    PartLog,
    load_logs,
    load_whole_logs,
    named_in,
)
from anabranch.live.storage.schema import (
    damage,
    explain,
    migrate,
    open_for_reading,
    open_for_writing,
    take_lock,
)
from anabranch.live.storage.writes import Logs

CHECKPOINT_PAGES = 4_000  # of the log that is written ahead, after which they go to their places
MAX_WAL_PAGES = 16_000  # after which the writer waits for its readers to let that happen

PATIENCE_S = 2.0  # how long a reader waits while the file is rebuilt
RETRY_S = 30.0  # after a file could not be rebuilt
MAX_MENDINGS = 8  # attempts of one query or one write, each after a repair

REBUILDING = "the file is damaged, and is being rebuilt: ask again in a while"

T = TypeVar("T")
Written = tuple[tuple[LogState, ...], tuple[tuple[StreamPart, tuple[Placed, ...]], ...]]


def load_missing(path: Path) -> dict[StreamPart, tuple[Missing, ...]]:
    """Return which offsets are damaged, by a file that a node has open."""
    database = open_for_reading(path, None)
    try:
        return {part: log.missing for part, log in load_logs(database).items() if log.missing}
    except apsw.Error as error:
        raise explain(path, error) from error
    finally:
        database.close()


def load_states(path: Path) -> list[LogState]:
    """Return how the logs of a file stand that a node has open."""
    database = open_for_reading(path, None)
    try:
        states = {part: log.state() for part, log in load_logs(database).items()}
    except apsw.Error as error:
        raise explain(path, error) from error
    finally:
        database.close()
    records = Records(read_records(path))
    records.compare(states, lambda part, offset: b"")
    return _with_records(states, records)


def _with_records(states: Mapping[StreamPart, LogState], records: Records) -> list[LogState]:
    every = dict.fromkeys([*states, *records.saved])
    return [records.state(states.get(part) or LogState(part)) for part in every]


class UnrecordedError(StoreError):
    """The logs are on the disk and their records are not: nothing may be said of them yet."""

    def __init__(self, written: list[Written], why: str) -> None:
        super().__init__(why)
        self.written = written


class SqliteLogStore:
    """A file of logs. One thread may write and another read at the same time."""

    def __init__(
        self,
        path: Path | str,
        vfs: str | None = None,
        scan_frames: int = SCAN_FRAMES,
        checkpoint_pages: int = CHECKPOINT_PAGES,
    ) -> None:
        self.path = Path(path)
        self._checkpoint_pages = checkpoint_pages
        self._scan_frames = scan_frames
        self._wal_pages = 0
        self._wait_at_pages = MAX_WAL_PAGES
        if not self.path.parent.is_dir():
            raise StoreError(f"there is no folder {self.path.parent}: make it first")
        self._vfs = vfs
        self._reading = threading.Lock()
        self._writing = threading.RLock()
        self._starting = threading.Lock()
        self._rebuilding: threading.Thread | None = None
        self._generation = 0  # of the file: how often it was rebuilt
        self._is_swapping = False  # the new file is not in its place yet
        self._newest_row = 0  # when the scrub looked last
        self._retry_at = 0.0  # to rebuild it
        self.problem = ""  # why a damaged file cannot be rebuilt
        self._open = ExitStack()
        self._recording = ExitStack()  # outlives the file of the logs when that is rebuilt
        self._unrecorded: Changes = {}  # of logs that are on the disk
        self._lock = take_lock(self.path)
        try:
            with self._explained():
                finish_swap(self.path)
            self._open_file()
            with self._explained():
                self._check()
                self._open_record()
        except BaseException:
            self.close()
            raise

    def _open_file(self) -> None:
        with self._explained():
            self._writer = open_for_writing(self.path, self._vfs)
            self._open.callback(self._writer.close)
            self._reader = open_for_reading(self.path, self._vfs)
            self._open.callback(self._reader.close)
            self._writer.set_wal_hook(self._count_pages)
            self._has_aside = aside(self.path).exists()
            try:
                migrate(self._writer)
                self._logs = Logs(self._writer, load_logs(self._writer))
            except apsw.CorruptError as error:
                if self._is_swapping:
                    raise
                self._logs = Logs(self._writer, load_whole_logs(self._writer))
                self._rebuild(str(error))

    def _open_record(self) -> None:
        """Compare the logs with their records, and make the records where there are none yet."""
        file = self._record_file = RecordFile(self.path, self._vfs)
        self._recording.callback(file.close)
        self._records = Records(file.records)
        states = {log.part: log.state() for log in self._logs.saved.values()}
        changes = self._records.compare(states, self._hash_at)
        is_marked = self._writer.execute("SELECT count(*) FROM recorded").get
        if file.is_lost or (file.is_new and is_marked):
            changes |= self._records.restore(states)
        self._mark_recorded()
        file.save(changes)
        self._records.keep(changes)

    def _hash_at(self, part: StreamPart, offset: int) -> bytes:
        return self.find(HashAt(part, offset)).hash

    def _mark_recorded(self) -> None:
        """Let the file of the logs say that a record belongs to it.

        This is a commit, and with it all is synchronised that a killed process has written before.
        """
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.execute("DELETE FROM recorded")
        now_ms = int(time.time() * 1000)
        self._writer.execute("INSERT INTO recorded VALUES (?)", (now_ms,))
        self._writer.execute("COMMIT")

    def states(self) -> list[LogState]:
        """Return how all logs stand, as a machine that starts needs to know."""
        states = {log.part: log.state() for log in list(self._logs.saved.values())}
        return _with_records(states, self._records)

    def require_recovery(self) -> None:
        """Let a majority of the other storage nodes say how far each log must come."""
        with self._writing:
            changes = self._records.restore(self._logs.saved)
            self._record_file.save(changes)
            self._records.keep(changes)

    def overview(self) -> list[dict[str, Any]]:
        """Return what is kept of each part, for people to look at."""
        return [
            {
                "stream": log.part.stream,
                "partition": log.part.partition,
                "start": log.start,
                "length": log.length,
                "high": log.high,
                "epoch": log.epoch,
                "frames": log.frames,
                "held": log.held,
                "bytes": log.size_bytes,
            }
            for log in list(self._logs.saved.values())
        ]

    def write(self, batches: Sequence[Sequence[LogWrite]]) -> list[Written]:
        """Do all of some batches, or nothing; it is on the disk when this returns.

        For each batch the states of its logs come back, and what got a place in them. If only the
        record cannot be written, UnrecordedError has them: they hold as soon as `record` returns.
        """
        with self._writing:
            self.record()
            lowered = self._records.lowered(batches)
            self._record_file.save(lowered)
            self._records.keep(lowered)
            written = self._transact(lambda: [self._logs.do(batch) for batch in batches])
            told = [
                self._recorded(batch, states, rows)
                for batch, (states, rows) in zip(batches, written, strict=True)
            ]
            try:
                self.record()
            except StoreError as error:
                raise UnrecordedError(told, str(error)) from error
            return told

    def _recorded(
        self,
        writes: Sequence[LogWrite],
        states: tuple[LogState, ...],
        rows: tuple[tuple[StreamPart, tuple[Placed, ...]], ...],
    ) -> Written:
        """Note the records after one batch, which are to be written; return what is told of it."""
        changes = self._records.raised(writes, states)
        self._records.keep(changes, states)
        self._unrecorded |= changes
        return tuple(map(self._records.state, states)), rows

    def record(self) -> None:
        """Write the records of the logs that are on the disk."""
        with self._writing:
            self._record_file.save(self._unrecorded)
            self._unrecorded = {}

    def find(self, query: LogQuery) -> Answer:
        """Look something up; any thread may. Damage that this finds is dealt with first."""
        for _ in range(MAX_MENDINGS):
            if not self._may_read():
                return self._lacking_all(query)
            generation = self._generation
            try:
                self._finish_swap()
                return find(self._reader, query, self._scan_frames)
            except (
                DamagedRowsError,
                apsw.CorruptError,
                apsw.NotADBError,
                UnicodeDecodeError,
            ) as error:
                # Its traceback has a statement, which would keep what it reads as it is now.
                damage = error.with_traceback(None)
            except (apsw.Error, OSError) as error:
                raise explain(self.path, error) from error
            finally:
                self._reading.release()
            if not self._mend(damage, generation):
                break
        return self._lacking_all(query)

    def _may_read(self) -> bool:
        """Wait for the turn to read; not for long where the file is being rebuilt."""
        until = time.monotonic() + PATIENCE_S
        while not self._reading.acquire(timeout=PATIENCE_S / 4):
            if self._rebuilding is not None and time.monotonic() > until:
                return False
        return True

    def _lacking_all(self, query: LogQuery) -> Answer:
        """Answer that nothing can be read now: others may have it."""
        log = self._logs.saved.get(query.part) or PartLog(query.part)
        if type(query) is not Page or log.start == log.length:
            return Answer(problem=self.problem or REBUILDING)
        wanted, end = query.selection, log.length
        whole = Missing(log.start, end, log.start)
        stop = end if wanted.by_number else min(wanted.end, query.limit, end)
        return Answer(missing=spans_for((whole,), wanted, stop))

    def retain(
        self, now_ms: int, keep_ms: int | None = None, keep_bytes: int | None = None
    ) -> bool:
        """Let some of what is too old or too much go; return whether there is more to do."""
        with self._writing:
            has_more = self._transact(lambda: retain(self._logs, now_ms, keep_ms, keep_bytes))
            with self._explained():
                return shrink(self._writer) or has_more

    def close(self) -> None:
        """Let go of the file."""
        rebuilding = self._rebuilding
        if rebuilding is not None:
            rebuilding.join()
        with self._writing, self._reading, self._explained():
            try:
                with self._recording:  # is closed even if the other file cannot be
                    self._open.close()
            finally:
                self._lock.close()

    def _transact(self, work: Callable[[], T]) -> T:
        """Do something in one transaction, again where damage that stood in its way is gone."""
        with self._writing, self._explained():
            for _ in range(MAX_MENDINGS):
                try:
                    done = self._attempt(work)
                except DamagedRowsError as error:
                    self._cut_out(error)
                except (apsw.CorruptError, apsw.NotADBError) as error:
                    self._rebuild(str(error))
                else:
                    self._logs.keep_changes()
                    self._drop_aside()
                    self._checkpoint()
                    return done
        raise damage(self.path, "more was damaged whenever it was mended")

    def _attempt(self, work: Callable[[], T]) -> T:
        if self._is_swapping:
            with self._reading:
                self._finish_swap()
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            done = work()
            self._logs.save_changes()
            self._writer.execute("COMMIT")
        except BaseException:
            self._logs.forget_changes()
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        return done

    # --- Damage ---------------------------------------------------------------------------

    def missing(self) -> dict[StreamPart, tuple[Missing, ...]]:
        """Return which offsets are damaged, of the logs that lack some."""
        logs = list(self._logs.saved.values())
        return {log.part: log.missing for log in logs if log.missing}

    @property
    def is_rebuilding(self) -> bool:
        """Whether the file is being rebuilt, and nothing can be read meanwhile."""
        return self._rebuilding is not None

    @property
    def kept_aside(self) -> Path | None:
        """The damaged file, if there is one that is still needed."""
        return aside(self.path) if self._has_aside else None

    def _mend(self, damage: Exception, generation: int) -> bool:
        """Deal with damage that a reader has found; tell whether that is done after a moment."""
        if isinstance(damage, DamagedRowsError):
            try:
                with self._writing, self._explained():
                    if generation == self._generation:
                        self._cut_out(damage)
            except StoreError as error:  # the disk is full, perhaps: it is found again
                self.problem = str(error)
            return not self.problem
        with self._starting:
            if self.problem and time.monotonic() < self._retry_at:
                return False  # it could not be rebuilt a moment ago
            thread = self._rebuilding
            if thread is None:
                work = partial(self._rebuild_for_reader, str(damage), generation)
                thread = self._rebuilding = threading.Thread(target=work, name="log-rebuilder")
                thread.start()
        thread.join(PATIENCE_S)
        return not thread.is_alive() and not self.problem

    def _rebuild_for_reader(self, why: str, generation: int) -> None:
        try:
            with self._writing, self._explained():
                if generation == self._generation:
                    self._rebuild(why)
        except StoreError as error:
            self.problem = str(error)
        finally:
            self._rebuilding = None

    def _cut_out(self, rows: DamagedRowsError) -> None:
        """Delete damaged rows; rebuild the file if their places cannot be told."""
        try:
            for _ in range(MAX_MENDINGS):
                try:
                    self._attempt(partial(cut_out, self._logs, rows))
                except DamagedRowsError as error:  # one beside them
                    rows = DamagedRowsError(rows.log, [*rows.row_ids, *error.row_ids])
                else:
                    self._logs.keep_changes()
                    self.problem = ""
                    return
        except apsw.CorruptError as error:
            why = str(error)
        else:
            why = str(rows)
        self._rebuild(why)

    def _rebuild(self, why: str) -> None:
        """Rebuild the file from its good rows."""
        logs = list(self._logs.saved.values())
        try:
            build_anew(self.path, self._vfs, logs)
            with self._reading:
                with suppress(apsw.Error):
                    self._open.close()
                self._is_swapping = True
                self._finish_swap()
        except (OSError, apsw.Error) as error:
            self.problem = f"{self.path} is damaged ({why}) and cannot be rebuilt: {error}"
            self._retry_at = time.monotonic() + RETRY_S
            raise StoreError(self.problem) from error
        self._drop_aside()

    def _finish_swap(self) -> None:
        """Open the new file; where the disk did not let us, it is tried again."""
        if self._is_swapping:
            finish_swap(self.path)
            self._open_file()
            self._mark_recorded()
            self._is_swapping = False
            self._generation += 1
            self.problem = ""

    def _drop_aside(self) -> None:
        """Delete the damaged file when nothing is missing any more."""
        if self._has_aside and not self.missing():
            remove_aside(self.path)
            self._has_aside = False

    def _count_pages(self, database: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Write what was written ahead to its place, now and then."""
        if self._wal_pages < self._checkpoint_pages:
            self._wait_at_pages = MAX_WAL_PAGES
            return
        try:
            if self._wal_pages < self._wait_at_pages:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                return
            # A tool that reads for long is waited for now and then, not at every commit.
            self._wait_at_pages = self._wal_pages + MAX_WAL_PAGES
            with self._reading:
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.Error:
            return  # it is safe where it is; what is wrong with the disk the next write will say

    def _check(self) -> None:
        """See that every log ends as its state says."""
        for log in list(self._logs.saved.values()):
            if log.length == log.start:
                continue
            last = Page(log.part, Selection(start=log.length - 1), MAX_NUMBER, 0)
            answer = self.find(last)
            if answer.missing:
                continue  # others are asked for it
            [row] = answer.placed
            assert row.offset is not None
            before = self.find(HashAt(log.part, row.offset)).hash
            if hash_after(before, row.offset, row.entry) != log.hash:
                raise damage(self.path, f"the log of {log.part} does not end as its state says")

    # --- Scrubbing ------------------------------------------------------------------------

    @property
    def newest_row(self) -> int:
        """The id of the last row that was counted."""
        return self._newest_row

    def scrub_rows(self, after: int, limit: int) -> tuple[int, int]:
        """Read some rows of the file anew from the disk, and cut out damaged ones.

        It returns the id of the last row, and how many there were; none means that all are read.
        """
        generation = self._generation
        try:
            with self._fresh() as database:
                logs = {log.id: log for log in load_logs(database).values()}
                self._newest_row = database.execute("SELECT ifnull(max(id), 0) FROM frames").get
                rows = database.execute(
                    f"SELECT {NAMED_COLUMNS}, part FROM frames NOT INDEXED WHERE id > ? "
                    "ORDER BY id LIMIT ?",
                    (after, limit),
                ).fetchall()
                _check_order(after, rows)
        except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
            self._mend(error, generation)
            return after, 0
        except apsw.Error as error:
            raise explain(self.path, error) from error
        bad: dict[int, list[int]] = {}
        for each in rows:
            row, part = cast(NamedRow, each[:-1]), cast(int, each[-1])
            log = logs.get(part)
            if log is not None and named_in(log.seed, row) is None:
                bad.setdefault(part, []).append(row[0])
        for part, row_ids in bad.items():
            self._mend(DamagedRowsError(logs[part], row_ids), generation)
        return cast(int, rows[-1][0]) if rows else after, len(rows)

    def scrub_structure(self) -> str:
        """Check all pages of the file, and rebuild it if one is damaged; return what was wrong."""
        generation = self._generation
        try:
            with self._fresh() as database:
                found = [text for (text,) in database.execute("PRAGMA integrity_check(5)")]
        except (apsw.CorruptError, apsw.NotADBError) as error:
            found = [str(error)]
        except apsw.Error as error:
            raise explain(self.path, error) from error
        if found == ["ok"]:
            return ""
        why = "; ".join(found)
        self._mend(apsw.CorruptError(why), generation)
        return why

    @contextmanager
    def _fresh(self) -> Iterator[apsw.Connection]:
        """Open a connection with an empty cache, so that it reads from the disk."""
        try:
            database = open_for_reading(self.path, self._vfs)
        except StoreError as error:
            raise apsw.CorruptError(str(error)) from error
        try:
            yield database
        finally:
            database.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, OSError, UnicodeDecodeError) as error:
            raise explain(self.path, error) from error


def _check_order(after: int, rows: Sequence[Sequence[Any]]) -> None:
    """CorruptError unless the ids of rows ascend: SQLite does not look at damaged ones."""
    ids = [after, *(row[0] for row in rows)]
    if any(one >= other for one, other in pairwise(ids)):
        raise apsw.CorruptError("the rows of a page are out of order")
