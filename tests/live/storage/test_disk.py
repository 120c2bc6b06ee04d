"""The threads of the disk: order, groups, failures, and a process that is killed."""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from anabranch.core.machine import Find, Found, Write, Wrote
from anabranch.core.messages.storage import MAX_NUMBER, Entry, Selection
from anabranch.core.store import Answer, Copy, HashAt, Keep, Order, Page, Settle, Truncate
from anabranch.live.storage import disk as disk_module
from anabranch.live.storage.disk import BUSY, LogDisk
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.kills import append_and_kill, check_after_kill
from live.storage.logs import Source, drain
from live.storage.power import PowerVfs
from machines import OTHER, PART

T = TypeVar("T")
KILLS = 20


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30.0))


class Caller:
    """Asks a disk, and keeps what it answers."""

    def __init__(self, disk: LogDisk) -> None:
        self.disk = disk
        self.events: list[Wrote | Found] = []
        self.came = asyncio.Event()

    def _done(self, event: Wrote | Found) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.events.append(event)
        self.came.set()

    def write(self, token: int, *writes: Any) -> None:
        self.disk.write(Write(token, writes), self._done)

    def find(self, token: int, query: Any) -> None:
        self.disk.find(Find(token, query), self._done)

    async def wait(self, count: int) -> list[Any]:
        while len(self.events) < count:
            self.came.clear()
            await self.came.wait()
        return self.events


def test_writes_are_answered_in_order_and_go_together(tmp_path: Path) -> None:
    async def main() -> None:
        store, source = SqliteLogStore(tmp_path / "logs.sqlite"), Source(Random(1))
        groups: list[int] = []
        write = store.write

        def count(batches: Any) -> Any:
            groups.append(len(batches))
            return write(batches)

        store.write = count  # type: ignore[method-assign]
        disk = LogDisk(store)
        caller = Caller(disk)
        for token in range(200):
            caller.write(token, Order(PART, 1, 1, source.frames(2)))
        events = await caller.wait(200)
        assert [event.token for event in events] == list(range(200))
        lengths = [event.states[0].length for event in events]
        assert lengths == sorted(set(lengths))
        placed = [row for event in events for _, rows in event.placed for row in rows]
        assert placed == drain(store, PART)
        assert len(groups) < 50 < sum(groups) == 200
        await disk.close()

    run(main())


def test_a_write_that_cannot_be_true_fails_alone_and_the_thread_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        store, source = SqliteLogStore(tmp_path / "logs.sqlite"), Source(Random(1))
        caller = Caller(LogDisk(store))
        frames = source.frames(20)
        caller.write(0, Order(PART, 1, 1, frames))
        length = (await caller.wait(1))[0].states[0].length
        again = Copy(PART, length, (Entry(1, 1, frames[3]),))
        for token in range(1, 40):  # many of them go together
            caller.write(token, again if token % 5 == 0 else Keep(OTHER, source.frames(1), 1))
        events = await caller.wait(40)
        assert [event.token for event in events] == list(range(40))
        wrong = [event.token for event in events if event.problem.startswith("diverged: ")]
        assert wrong == [event.token for event in events if event.problem] == [*range(5, 40, 5)]
        assert [found.held for found in store.states() if found.part == OTHER] == [39 - 7]
        assert len(drain(store, PART)) == 20
        await caller.disk.close()

    run(main())


def test_closing_does_what_is_waiting_first(tmp_path: Path) -> None:
    async def main() -> None:
        source = Source(Random(1))
        disk = LogDisk(SqliteLogStore(tmp_path / "logs.sqlite"))
        caller = Caller(disk)
        for token in range(50):
            caller.write(token, Order(PART, 1, 1, source.frames(1)))
            caller.find(100 + token, HashAt(PART, 0))
        await disk.close()
        assert len(await caller.wait(100)) == 100
        store = SqliteLogStore(tmp_path / "logs.sqlite")
        assert len(drain(store, PART)) == 50
        store.close()

    run(main())


def test_a_full_disk_acknowledges_nothing_and_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        vfs, source = PowerVfs("disk-full", Random(1)), Source(Random(1))
        store = SqliteLogStore(tmp_path / "logs.sqlite", vfs.name)
        disk = LogDisk(store)
        caller = Caller(disk)
        caller.write(1, Order(PART, 1, 1, source.frames(1)))
        await caller.wait(1)
        vfs.room_bytes = 0
        order = Order(PART, 1, 1, source.frames(50))
        caller.write(2, order)
        caller.find(3, Page(PART, Selection(), MAX_NUMBER, 1 << 20))
        await caller.wait(3)
        [wrote] = [event for event in caller.events if event.token == 2]
        assert type(wrote) is Wrote
        assert "the disk is full; make room" in wrote.problem
        assert wrote.states == wrote.placed == ()
        [found] = [event for event in caller.events if type(event) is Found]
        assert len(found.answer.placed) == 1
        vfs.room_bytes = None
        caller.write(4, order)
        last = (await caller.wait(4))[3]
        assert (last.token, last.problem, len(last.placed[0][1])) == (4, "", 50)
        await disk.close()
        vfs.unregister()

    run(main())


def test_what_is_too_much_is_refused_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "MAX_QUEUED_BYTES", 8_000)

    async def main() -> None:
        disk = LogDisk(SqliteLogStore(tmp_path / "logs.sqlite"))
        caller, source = Caller(disk), Source(Random(1), most_bytes=2)
        large = Keep(PART, source.frames(100), 1)
        for token, write in enumerate((Keep(PART, source.frames(1), 1), large, Settle(PART, 0))):
            caller.write(token, write)
        events = await caller.wait(3)
        assert [(event.token, event.problem) for event in events] == [(0, ""), (1, BUSY), (2, "")]
        for token in range(1_000):
            caller.find(token, HashAt(PART, 0))
        found = (await caller.wait(1_003))[3:]
        assert [event.token for event in found] == list(range(1_000))
        assert {event.answer.problem for event in found} == {"", BUSY}
        await disk.close()

    run(main())


def test_what_is_found_is_worked_on_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        disk = LogDisk(SqliteLogStore(tmp_path / "logs.sqlite"))
        caller, source = Caller(disk), Source(Random(1))
        caller.write(1, Order(PART, 1, 1, source.frames(7)))
        await caller.wait(1)
        page = Page(PART, Selection(), MAX_NUMBER, 1 << 20)

        def count(answer: Answer) -> tuple[str, str, int]:
            return threading.current_thread().name, answer.problem, len(answer.placed)

        def fail(answer: Answer) -> None:
            raise ValueError(len(answer.placed))

        with pytest.raises(ValueError, match="7"):
            await disk.look_up(page, fail)
        assert await disk.look_up(page, count) == ("log-reader", "", 7)
        monkeypatch.setattr(disk_module, "MAX_QUEUED_BYTES", 0)
        assert (await disk.look_up(page, count))[1:] == (BUSY, 0)
        await disk.close()

    run(main())


def test_what_nobody_waits_for_any_more_is_not_worked_on(tmp_path: Path) -> None:
    async def main() -> None:
        disk = LogDisk(SqliteLogStore(tmp_path / "logs.sqlite"))
        is_waiting, goes_on = threading.Event(), threading.Event()

        def wait(answer: Answer) -> None:
            is_waiting.set()
            assert goes_on.wait(30.0)

        made: list[Answer] = []
        first = asyncio.create_task(disk.look_up(HashAt(PART, 0), wait))
        await asyncio.to_thread(is_waiting.wait, 30.0)
        second = asyncio.create_task(disk.look_up(HashAt(PART, 0), made.append))
        await asyncio.sleep(0)  # it asks
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        goes_on.set()
        await first
        await disk.close()
        assert (second.cancelled(), made) == (True, [])

    run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_mistake_of_ours_is_told_to_all_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
        disk = LogDisk(SqliteLogStore(tmp_path / "logs.sqlite"))
        caller, source = Caller(disk), Source(Random(1))
        caller.write(1, Keep(PART, source.frames(1), 1))
        caller.write(2, Truncate(PART, 7))
        caller.write(3, Keep(PART, source.frames(1), 1))
        problems = [event.problem for event in await caller.wait(3)]
        assert "storage-failed: AssertionError('a log is cut" in problems[1] == problems[2]
        caller.write(4, Keep(PART, source.frames(1), 1))
        caller.find(5, HashAt(PART, 0))
        last, found = sorted((await caller.wait(5))[3:], key=lambda event: event.token)
        assert last.problem == problems[1]
        assert found.answer.problem == ""
        await disk.close()

    run(main())


def test_the_oldest_go_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "TIDY_EVERY_S", 0.01)

    async def main() -> None:
        store, source = SqliteLogStore(tmp_path / "logs.sqlite"), Source(Random(1))
        disk = LogDisk(store, keep_ms=1_000, clock=lambda: 10.0)
        caller = Caller(disk)
        caller.write(1, Order(PART, 1, 8_000, source.frames(5)))
        caller.write(2, Order(PART, 1, 9_500, source.frames(5)), Settle(PART, 5))
        start = 0
        while not start:  # until the test's time is up
            caller.write(len(caller.events) + 1, Settle(PART, 5))
            start = (await caller.wait(len(caller.events) + 1))[-1].states[0].start
        assert start <= 5
        await disk.close()

    run(main())


def test_nothing_that_was_acknowledged_is_missing_after_a_kill(tmp_path: Path) -> None:
    rng, path, length = Random(1), tmp_path / "logs.sqlite", 0
    for at in range(KILLS):
        said = append_and_kill(path, at + 1, rng)
        assert said[0][0] > length  # it went on where the one before it ended
        length = check_after_kill(path, said)
