"""The logs of a storage node in one SQLite file; schema.py says what is in it.

When it is opened, the state of every log is checked, and that the last frame of each fits it. All
the rest is checked when it is read: to look through a file of many gigabytes would take hours,
and a node reads through its logs anyway, little by little.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from anabranch.core.ids import StreamPart
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.store import (
    Answer,
    HashAt,
    LogQuery,
    LogState,
    LogWrite,
    Page,
    Placed,
    StoreError,
    hash_after,
)
from anabranch.live.storage.reads import SCAN_FRAMES, find
from anabranch.live.storage.retention import retain, shrink
from anabranch.live.storage.rows import load_logs
from anabranch.live.storage.schema import (
    damage,
    explain,
    open_for_reading,
    open_for_writing,
    take_lock,
)
from anabranch.live.storage.writes import Logs

CHECKPOINT_PAGES = 4_000  # of the log that is written ahead, after which they go to their places
MAX_WAL_PAGES = 16_000  # after which the writer waits for its readers to let that happen

T = TypeVar("T")
Written = tuple[tuple[LogState, ...], tuple[tuple[StreamPart, tuple[Placed, ...]], ...]]


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
        self._reading = threading.Lock()
        self._open = ExitStack()
        self._open.callback(take_lock(self.path).close)
        try:
            self._writer = open_for_writing(self.path, vfs)
            self._open.callback(self._writer.close)
            self._reader = open_for_reading(self.path, vfs)
            self._open.callback(self._reader.close)
            with self._explained():
                self._writer.set_wal_hook(self._count_pages)
                self._logs = Logs(self._writer, load_logs(self._writer))
                self._check()
        except BaseException:
            self.close()
            raise

    def states(self) -> list[LogState]:
        """Return how all logs stand, as a machine that starts needs to know."""
        return [log.state() for log in list(self._logs.saved.values())]

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

        For each batch the states of its logs come back, and what got a place in them.
        """
        return self._transact(lambda: [self._logs.do(batch) for batch in batches])

    def find(self, query: LogQuery) -> Answer:
        """Look something up; any thread may."""
        with self._reading, self._explained():
            return find(self._reader, query, self._scan_frames)

    def retain(
        self, now_ms: int, keep_ms: int | None = None, keep_bytes: int | None = None
    ) -> bool:
        """Let some of what is too old or too much go; return whether there is more to do."""
        has_more = self._transact(lambda: retain(self._logs, now_ms, keep_ms, keep_bytes))
        with self._explained():
            return shrink(self._writer) or has_more

    def close(self) -> None:
        """Let go of the file."""
        with self._reading, self._explained():
            self._open.close()

    def _transact(self, work: Callable[[], T]) -> T:
        with self._explained():
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
        self._logs.keep_changes()
        self._checkpoint()
        return done

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
        for log in self._logs.saved.values():
            if log.length == log.start:
                continue
            last = Page(log.part, Selection(start=log.length - 1), MAX_NUMBER, 0)
            answer = find(self._reader, last)
            if answer.damaged:
                continue  # it can be mended, and the node will see to it
            [row] = answer.placed
            assert row.offset is not None
            before = find(self._reader, HashAt(log.part, row.offset)).hash
            if hash_after(before, row.offset, row.entry) != log.hash:
                raise damage(self.path, f"the log of {log.part} does not end as its state says")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (apsw.Error, UnicodeDecodeError) as error:
            raise explain(self.path, error) from error
