"""A task that waits goes on at once where it can, and is cancelled like any other."""

import asyncio
import contextvars

import pytest

from anabranch.live.handover import Handover
from live.networks import run

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


class Waiting:
    """A task at a handover, and how often it went on."""

    def __init__(self, times: int = 1) -> None:
        self.handover = Handover(asyncio.get_running_loop())
        self.went_on: list[str] = []
        self.task = asyncio.create_task(self._wait(times))

    async def _wait(self, times: int) -> None:
        WHO.set("the one who waits")
        for _ in range(times):
            await self.handover.wait()
            self.went_on.append(WHO.get())

    async def ready(self) -> "Waiting":
        while not self.handover.is_awaited:  # noqa: ASYNC110 (the task gets there)
            await asyncio.sleep(0)
        return self

    async def outside_of_tasks(self, *calls: str) -> list[int]:
        """Call methods of the handover in one turn of the loop; tell how often it had gone on."""
        seen: list[int] = []
        done = asyncio.get_running_loop().create_future()

        def call() -> None:
            for name in calls:
                getattr(self.handover, name)()
                seen.append(len(self.went_on))
            done.set_result(None)

        asyncio.get_running_loop().call_soon(call)
        await done
        return seen


def test_who_waits_goes_on_within_the_call_and_in_its_own_context() -> None:
    async def main() -> None:
        waiting = await Waiting(3).ready()
        assert await waiting.outside_of_tasks("pass_on", "pass_on") == [1, 2]
        assert WHO.get() == "nobody"
        assert await waiting.outside_of_tasks("pass_on_soon", "pass_on") == [2, 2]
        await waiting.task
        assert waiting.went_on == ["the one who waits"] * 3

    run(main())


def test_within_another_task_it_goes_on_in_the_next_turn() -> None:
    async def main() -> None:
        waiting = await Waiting().ready()
        waiting.handover.pass_on()
        assert waiting.went_on == []
        await waiting.task
        assert waiting.went_on == ["the one who waits"]

    run(main())


def test_where_nobody_waits_nothing_happens() -> None:
    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        handover.pass_on()
        handover.pass_on_soon()
        assert not handover.is_awaited
        future = handover.wait()  # which nobody does as yet
        assert handover.is_awaited
        asyncio.get_running_loop().call_soon(handover.pass_on)
        await asyncio.sleep(0)
        assert future.done()
        assert not handover.is_awaited

    run(main())


def test_who_waits_can_be_cancelled_and_somebody_else_wait() -> None:
    async def main() -> None:
        waiting = await Waiting().ready()
        waiting.task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await waiting.task
        waiting.task = asyncio.create_task(waiting._wait(1))
        await waiting.ready()
        assert await waiting.outside_of_tasks("pass_on") == [1]
        await waiting.task

    run(main())


def test_who_is_cancelled_between_the_call_and_its_turn_is_cancelled() -> None:
    async def main() -> None:
        waiting = await Waiting().ready()
        waiting.handover.pass_on()
        waiting.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.task
        assert waiting.went_on == []
        assert not waiting.handover.is_awaited

    run(main())


def test_a_timeout_ends_the_waiting() -> None:
    async def main() -> None:
        handover = Handover(asyncio.get_running_loop())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await handover.wait()
        assert not handover.is_awaited

    run(main())
