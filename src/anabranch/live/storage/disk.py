"""The thread that writes a storage node's logs, and the one that reads them.

While one commit runs, more comes: all of that goes into the next commit together, so that a disk
that takes long to synchronise takes more at a time, and not more time.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from anabranch.core.machine import Find, Found, Write, Wrote
from anabranch.core.store import (
    Answer,
    Copy,
    DivergedError,
    GoneError,
    Keep,
    LogQuery,
    LogWrite,
    Order,
    StoreError,
)
from anabranch.live.storage.sqlite import SqliteLogStore, UnrecordedError, Written

GROUP_BYTES = 8 << 20  # of frames that are committed together
MAX_QUEUED_BYTES = 256 << 20  # of writes that wait; a find counts as much as an empty write
WRITE_OVERHEAD_BYTES = 1_024  # what a write counts for beside its frames
TIDY_EVERY_S = 10.0
RECORD_AGAIN_S = 0.5  # after the record of a write that is on the disk could not be written

BUSY = "storage-busy: more is asked of the disk than it does"

T = TypeVar("T")


class _Task(msgspec.Struct):
    """A write that waits for its commit, or a find."""

    loop: asyncio.AbstractEventLoop
    effect: Write | Find
    done: Callable[..., None]
    size_bytes: int = WRITE_OVERHEAD_BYTES
    problem: str = ""  # why it is not done
    make: Callable[[Answer], None] | None = None  # is given what was found, in the thread

    def refused(self, problem: str) -> "_Task":
        """Return what is left of it when it is not done: an answer, in its turn."""
        token, is_write = self.effect.token, type(self.effect) is Write
        effect = Write(token, ()) if is_write else self.effect
        return _Task(self.loop, effect, self.done, 0, problem)


class _Worker(threading.Thread):
    """A thread that does tasks in their order, some at a time."""

    def __init__(
        self,
        name: str,
        do: Callable[[list[_Task]], Sequence[Wrote | Found]],
        group_bytes: int,
        tidy: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._do = do
        self._group_bytes = group_bytes
        self._tidy = tidy  # returns whether there is more to do
        self._tidy_at = time.monotonic()
        self._comes = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._waiting_bytes = 0
        self._under_way: list[_Task] = []
        self._is_closing = False
        self._failure = ""  # what ended the thread: a mistake of ours
        self.start()

    def put(self, task: _Task) -> None:
        """Let a task be done."""
        with self._comes:
            assert not self._is_closing, "the disk is closed"
            is_full = self._waiting_bytes + task.size_bytes > MAX_QUEUED_BYTES
            if is_full:
                task = task.refused(BUSY)
            if not self._failure:
                self._waiting.append(task)
                self._waiting_bytes += task.size_bytes
                self._comes.notify()
                return
        _call_back([task], [_refusal(task, self._failure)])

    def finish(self) -> None:
        """Let the thread end when nothing waits any more."""
        with self._comes:
            self._is_closing = True
            self._comes.notify()

    def run(self) -> None:
        """Do what comes; if that fails by a mistake of ours, whoever waits is told."""
        try:
            while self._take():
                if self._under_way:
                    _call_back(self._under_way, self._answers())
                if self._tidy is not None and time.monotonic() >= self._tidy_at:
                    # What is left to tidy waits until more was written.
                    self._tidy_at = time.monotonic() + (0 if self._tidy() else TIDY_EVERY_S)
        except BaseException as error:
            with self._comes:
                self._failure = f"storage-failed: {error!r}: restart the node, and report it"
                left = [*self._under_way, *self._waiting]
                self._waiting.clear()
            _call_back(left, [_refusal(task, self._failure) for task in left])
            raise

    def _answers(self) -> list[Wrote | Found]:
        done = iter(self._do([task for task in self._under_way if not task.problem]))
        return [
            _refusal(task, task.problem) if task.problem else next(done) for task in self._under_way
        ]

    def _take(self) -> bool:
        """Wait for tasks, and take some; or for the time to tidy. False: there are no more."""
        self._under_way = []
        with self._comes:
            while not self._waiting:
                if self._is_closing:
                    return False
                left_s = None if self._tidy is None else self._tidy_at - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return True
                self._comes.wait(left_s)
            size_bytes = 0
            while self._waiting and size_bytes < self._group_bytes:
                task = self._waiting.popleft()
                self._under_way.append(task)
                size_bytes += task.size_bytes
            self._waiting_bytes -= size_bytes
            return True


class LogDisk:
    """Writes and reads for an asyncio loop that must not wait for a disk."""

    def __init__(
        self,
        store: SqliteLogStore,
        keep_ms: int | None = None,
        keep_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._keep = (keep_ms, keep_bytes)
        self._clock = clock
        self._ends = threading.Event()
        self._writer = _Worker("log-writer", self._commit, GROUP_BYTES, self._tidy)
        self._reader = _Worker("log-reader", self._find, 1)

    def write(self, effect: Write, done: Callable[[Wrote], None]) -> None:
        """Write, and call back in this loop when it is on the disk; in the order of the calls."""
        size_bytes = WRITE_OVERHEAD_BYTES + _size_bytes(effect.writes)
        self._writer.put(_Task(asyncio.get_running_loop(), effect, done, size_bytes))

    def find(self, effect: Find, done: Callable[[Found], None]) -> None:
        """Look something up, and call back in this loop."""
        self._reader.put(_Task(asyncio.get_running_loop(), effect, done))

    async def look_up(self, query: LogQuery, make: Callable[[Answer], T]) -> T:
        """Look something up, and return what is made of it: in the thread, while it is at hand.

        Others wait meanwhile for what they look up, so it should not take long.
        """
        made: Future[T] = Future()

        def make_it(answer: Answer) -> None:
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(make(answer))
                except Exception as error:  # whoever waits gets it; the thread goes on
                    made.set_exception(error)

        def done(found: Found) -> None:
            if not made.done():  # it was refused
                make_it(found.answer)

        loop = asyncio.get_running_loop()
        self._reader.put(_Task(loop, Find(0, query), done, make=make_it))
        return await asyncio.wrap_future(made)

    async def close(self) -> None:
        """Do all that is waiting, and let go of the file."""
        self._ends.set()
        for worker in (self._writer, self._reader):
            worker.finish()
            await asyncio.to_thread(worker.join)
        self.store.close()

    # --- In the threads -------------------------------------------------------------------

    def _commit(self, tasks: list[_Task]) -> Sequence[Wrote]:
        """Do all of some writes in one commit."""
        writes = [task.effect for task in tasks if type(task.effect) is Write]
        try:
            written = self._write([write.writes for write in writes])
        except StoreError as error:
            if (
                type(error) in (DivergedError, GoneError) and len(tasks) > 1
            ):  # the others can be done
                return [wrote for task in tasks for wrote in self._commit([task])]
            return [Wrote(write.token, str(error)) for write in writes]
        return [Wrote(write.token, "", *done) for write, done in zip(writes, written, strict=True)]

    def _write(self, batches: list[tuple[LogWrite, ...]]) -> list[Written]:
        """Write, and wait for the record: what is done must not be tried a second time."""
        try:
            return self.store.write(batches)
        except UnrecordedError as error:
            written = error.written
            self.store.problem = str(error)
        while not self._ends.wait(RECORD_AGAIN_S):
            try:
                self.store.record()
            except StoreError as error:
                self.store.problem = str(error)
            else:
                self.store.problem = ""
                return written
        raise StoreError(self.store.problem)

    def _tidy(self) -> bool:
        try:
            return self.store.retain(int(self._clock() * 1000), *self._keep)
        except StoreError:
            return False  # that the disk fails is said to those who write

    def _find(self, tasks: list[_Task]) -> Sequence[Found]:
        found = []
        for task in tasks:
            assert type(task.effect) is Find
            try:
                answer = self.store.find(task.effect.query)
            except StoreError as error:
                answer = Answer(problem=str(error))
            if task.make is not None:
                task.make(answer)
            found.append(Found(task.effect.token, answer))
        return found


def _refusal(task: _Task, problem: str) -> Wrote | Found:
    if type(task.effect) is Write:
        return Wrote(task.effect.token, problem)
    return Found(task.effect.token, Answer(problem=problem))


def _call_back(tasks: list[_Task], events: Sequence[Wrote | Found]) -> None:
    """Tell who waits, in order; all of one loop in one go."""
    loops = {id(task.loop): task.loop for task in tasks}
    for loop in loops.values():
        calls = [
            (task.done, event)
            for task, event in zip(tasks, events, strict=True)
            if task.loop is loop
        ]
        if not loop.is_closed():
            loop.call_soon_threadsafe(_call, calls)


def _call(calls: list[tuple[Callable[..., None], Wrote | Found]]) -> None:
    for done, event in calls:
        done(event)


def _size_bytes(writes: tuple[LogWrite, ...]) -> int:
    """Return how large the frames of some writes are."""
    total = 0
    for write in writes:
        if type(write) is Keep or type(write) is Order:
            total += sum(map(len, write.frames))
        elif type(write) is Copy:
            total += sum(len(entry.frame) for entry in write.entries)
    return total
