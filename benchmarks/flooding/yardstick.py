"""The verifying mesh beside every system, so that the delays of both are of the same seconds.

From one minute to the next a machine's delays may double, and which of two systems had the better
minute says nothing of either. So at a pace they take turns, a second each. The mesh runs in
processes of its own, as many as the system's members have, and rests while the system floods.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Self

import uvloop

from flooding.harness import (
    PACED,
    PATIENCE_S,
    SPAWN,
    Board,
    Measured,
    Member,
    Play,
    Row,
    System,
    drive,
    make,
    warm_up,
)
from flooding.meshes import Mesh

TURNS, TURN_S = 8, 1.2
PACE, IN_TURN = 50, 50  # messages a second; messages
LEAD_S = 1.0  # from the end of the flood to the first turn
LOOK_S = 0.1  # how often who waits for the other looks
SYSTEM, MESH = range(2)  # whose turn it is
OVER = -1.0

Run = Callable[[System, Play], Awaitable[Row]]


class Turns:
    """When a system and the mesh publish; all their processes see it."""

    def __init__(self) -> None:
        self._mesh_stands = SPAWN.Value("b", 0, lock=False)
        self._begin_at = SPAWN.Value("d", 0.0, lock=False)

    async def drive_mesh(self, member: Member, board: Board, helpers: list[int]) -> Measured:
        """Publish to the mesh in its turns, as soon as there are any."""
        await warm_up(member, board)
        self._mesh_stands.value = 1
        while not self._begin_at.value:  # noqa: ASYNC110 (another process sets it)
            await asyncio.sleep(LOOK_S)
        paced = await self._publish(member, board, MESH, 0)
        return Measured(0, 0.0, 0.0, paced)

    async def mesh_stands(self, is_alive: Callable[[], bool]) -> None:
        """Wait until everybody in the mesh receives."""
        while not self._mesh_stands.value:
            assert is_alive(), "the mesh beside the system has ended"
            await asyncio.sleep(LOOK_S)

    async def publish(self, member: Member, board: Board, before: int) -> int:
        """Begin, and publish to the system in its turns; tell how many messages that were."""
        self._begin_at.value = time.perf_counter() + LEAD_S
        return await self._publish(member, board, SYSTEM, before)

    def end(self) -> None:
        """Let the mesh wait for its turns no longer."""
        if not self._begin_at.value:
            self._begin_at.value = OVER

    async def _publish(self, member: Member, board: Board, whose: int, before: int) -> int:
        begin_at, sent = self._begin_at.value, 0
        for turn in range(TURNS if begin_at > 0 else 0):
            at = begin_at + (2 * turn + whose) * TURN_S
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            for _ in range(IN_TURN):
                await member.publish(make(PACED))
                sent += 1
                await asyncio.sleep(1 / PACE)
        with suppress(TimeoutError):
            await asyncio.wait_for(board.wait_for(before + sent), PATIENCE_S)
        return sent


class Yardstick:
    """The mesh beside a system that is run by `run`."""

    def __init__(self, run: Run) -> None:
        self.turns = Turns()
        self._pipe, self._theirs = SPAWN.Pipe(False)
        self._process = SPAWN.Process(target=_be_mesh, args=(run, self.turns, self._theirs))

    async def __aenter__(self) -> Self:
        self._process.start()
        self._theirs.close()  # so that it is seen here if the process ends without a word
        await self.turns.mesh_stands(self._process.is_alive)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.turns.end()
        await asyncio.to_thread(self._process.join, PATIENCE_S)

    async def p50_ms(self) -> float | None:
        """Return the median of the mesh's delays in its turns."""
        row: Row = await asyncio.to_thread(self._pipe.recv)
        assert row["complete"] == 1.0, row
        return row["p50_ms_at_50"]


def _be_mesh(run: Run, turns: Turns, pipe: Connection) -> None:
    pipe.send(uvloop.run(run(Mesh(signed=True), turns.drive_mesh)))


async def beside_mesh(run: Run, system: System) -> Row:
    """Run a system with the verifying mesh beside it."""
    async with Yardstick(run) as yardstick:
        row = await run(system, partial(drive, pace=yardstick.turns.publish))
        row["mesh_p50_ms_at_50"] = await yardstick.p50_ms()
        return row
