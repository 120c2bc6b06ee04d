"""Drives one system: sixteen members, one of them publishes, all others receive.

Every message says when it left and in which phase. A message is under way until all have it, and at
most IN_FLIGHT are. All members run in this process, or each in one of its own; counts are on a
board that all of them see.
"""

import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from typing import Any, Protocol

import msgspec
import uvloop

MEMBERS = 16
IN_FLIGHT = 256
SIZE = 308
SATURATED_S = 4.0
WARM, SATURATED, PACED = range(3)  # phases
WARM_S = 0.05
LOOK_S = 0.001  # how often a publisher looks what members in other processes have
ENDED_S = 0.5  # how often members look whether it is over: seldom, since they share two cores
PATIENCE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")
SPAWN = multiprocessing.get_context("spawn")

Row = dict[str, Any]


class Member(Protocol):
    """One of the sixteen."""

    async def publish(self, payload: bytes) -> None:
        """Send something to all others; it need not have arrived when this returns."""

    def receive(self) -> AsyncIterator[Any]:
        """Yield what others have sent: bytes, or something that has them as its content."""

    async def close(self) -> None:
        """Leave."""


class System(Protocol):
    """A way to get messages from one to all."""

    name: str
    signed: bool

    async def start(self) -> str:
        """Start what is not a member; return what members need to know."""

    async def join(self, index: int, where: str) -> Member:
        """Become a member."""

    async def stop(self) -> None:
        """End what was started."""

    def helpers(self) -> list[int]:
        """Return the processes that are no members, and whose work counts as well."""


class Board:
    """What all members know of one another."""

    def __init__(self, shared: bool) -> None:
        make: Any = (lambda n: SPAWN.Array("q", n, lock=False)) if shared else _numbers
        self.counts = make(MEMBERS)  # messages that each has received
        self.warm = make(MEMBERS)  # whether it received anything before they counted
        self.pids = make(MEMBERS)  # who is there
        self.workers = make(MEMBERS)  # processes in which members have others work for them
        self.ended = make(1)
        self._least = 0
        self._moved = None if shared else asyncio.Event()

    def received(self, index: int) -> None:
        """Count one message."""
        before = self.counts[index]
        self.counts[index] = before + 1
        if self._moved is not None and before == self._least:
            self._moved.set()

    async def wait_for(self, count: int) -> None:
        """Wait until everybody has received so many messages."""
        while True:
            if self._moved is not None:
                self._moved.clear()
            self._least = min(self.counts[1:])
            if self._least >= count:
                return
            if self._moved is None:
                await asyncio.sleep(LOOK_S)
            else:
                await self._moved.wait()


def _numbers(count: int) -> list[int]:
    return [0] * count


class Measured(msgspec.Struct):
    """What one publisher saw of its phases."""

    sent: int
    seconds: float
    cpu_s: float
    paced: int


Pace = Callable[[Member, Board, int], Awaitable[int]]  # publishes, after so many others
Play = Callable[[Member, Board, list[int]], Awaitable[Measured]]  # what a publisher does


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


async def start_server(port: int, program: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a server of others; return when it takes connections at its port."""
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(program, *arguments, stdout=quiet, stderr=quiet)
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < give_up_at, f"{program} does not start"
            await asyncio.sleep(LOOK_S)
        else:
            return server


def cpu_s(pids: Sequence[int]) -> float:
    """Return how long processes have worked so far."""
    total = 0
    for pid in set(pids):
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / TICKS


# --- What members do ------------------------------------------------------------------------


async def receive(member: Member, board: Board, index: int, delays: list[list[int]]) -> None:
    """Count what comes, and how long it took, in nanoseconds."""
    now = time.perf_counter_ns
    async for received in member.receive():
        payload = getattr(received, "content", received)
        phase = payload[8]
        delays[phase].append(now() - int.from_bytes(payload[:8]))
        if phase == WARM:
            board.warm[index] = 1
        else:
            board.received(index)


def make(phase: int, left_ns: int | None = None) -> bytes:
    """Make a message that leaves now, or counts as if it had left at another time."""
    at_ns = time.perf_counter_ns() if left_ns is None else left_ns
    return at_ns.to_bytes(8) + bytes([phase]) + bytes(SIZE - 9)


async def warm_up(member: Member, board: Board) -> None:
    """Publish until all receive: links may stand only at one of their ends as yet."""
    give_up_at = time.perf_counter() + PATIENCE_S
    while not all(board.warm[1:]):
        assert time.perf_counter() < give_up_at, f"not all receive: {list(board.warm)}"
        await member.publish(make(WARM))
        await asyncio.sleep(WARM_S)
    await asyncio.sleep(10 * WARM_S)


async def drive(member: Member, board: Board, helpers: list[int], pace: Pace) -> Measured:
    """Publish: until all receive, then as fast as can be, then at a pace."""
    await warm_up(member, board)
    pids, sent = [*helpers, *board.pids, *filter(None, board.workers)], 0
    began, before = time.perf_counter(), cpu_s(pids)
    while time.perf_counter() < began + SATURATED_S:
        await board.wait_for(sent - IN_FLIGHT + 1)
        await member.publish(make(SATURATED))
        sent += 1
    with suppress(TimeoutError):
        await asyncio.wait_for(board.wait_for(sent), PATIENCE_S)
    seconds, worked_s = time.perf_counter() - began, cpu_s(pids) - before
    return Measured(sent, seconds, worked_s, await pace(member, board, sent))


# --- All here, or each in a process ---------------------------------------------------------


@asynccontextmanager
async def members_here(
    system: System, board: Board, delays: Sequence[list[list[int]]]
) -> AsyncIterator[Member]:
    """Run all members in this process; the first, who publishes, is handed over."""
    where = await system.start()
    try:
        members = [await system.join(index, where) for index in range(MEMBERS)]
        board.pids = [os.getpid()] * MEMBERS
        readers = [
            asyncio.create_task(receive(member, board, index, delays[index]))
            for index, member in enumerate(members)
            if index
        ]
        yield members[0]
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for member in members:
            await member.close()
    finally:
        await system.stop()


async def run_here(system: System, play: Play) -> Row:
    """Run all members in this process."""
    board, delays = Board(shared=False), [[[], [], []] for _ in range(MEMBERS)]
    async with members_here(system, board, delays) as publisher:
        measured = await play(publisher, board, system.helpers())
    return summary(system, 1, measured, board.counts, delays[1:])


async def run_apart(system: System, play: Play) -> Row:
    """Run every member in a process of its own."""
    board, blank = Board(shared=True), copy(system)
    where = await system.start()
    common = where, system.helpers(), board, play
    pipes = [SPAWN.Pipe(False) for _ in range(MEMBERS)]
    try:
        processes = [
            SPAWN.Process(target=be_member, args=(blank, index, *common, pipe), daemon=True)
            for index, (_, pipe) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        told = [await asyncio.to_thread(pipe.recv) for pipe, _ in pipes]
        for process in processes:
            await asyncio.to_thread(process.join, PATIENCE_S)
    finally:
        await system.stop()
    return summary(system, MEMBERS, told[0], board.counts, told[1:])


def be_member(system: System, *others: Any) -> None:
    """Be one member, from the beginning to the end of its process."""
    uvloop.run(_be_member(system, *others))


async def _be_member(
    system: System,
    index: int,
    where: str,
    helpers: list[int],
    board: Board,
    play: Play,
    pipe: Any,
) -> None:
    while index and not all(board.pids[:index]):  # noqa: ASYNC110 (others set it, in turn)
        await asyncio.sleep(0.01)
    member = await system.join(index, where)
    delays: list[list[int]] = [[], [], []]
    reader = asyncio.create_task(receive(member, board, index, delays)) if index else None
    board.workers[index] = getattr(member, "worker", 0)
    board.pids[index] = os.getpid()
    if reader is None:
        while not all(board.pids):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        pipe.send(await play(member, board, helpers))
        board.ended[0] = 1
    else:
        while not board.ended[0]:  # noqa: ASYNC110
            await asyncio.sleep(ENDED_S)
        reader.cancel()
        pipe.send(delays)
    await member.close()


def summary(
    system: System,
    processes: int,
    measured: Measured,
    counts: Sequence[int],
    delays: Sequence[list[list[int]]],
) -> Row:
    """Make a row of what was seen."""
    saturated, paced = (
        sorted(delay for each in delays for delay in each[phase]) for phase in (SATURATED, PACED)
    )
    receivers = MEMBERS - 1
    expected = receivers * (measured.sent + measured.paced)
    got = len(saturated) + len(paced)
    return {
        "system": system.name,
        "signed": system.signed,
        "processes": processes,
        "msg_s": round(measured.sent / measured.seconds) if measured.sent else 0,
        "cpu_us_per_delivery": round(measured.cpu_s * 1e6 / max(1, len(saturated)), 2),
        "p50_ms": percentile(saturated, 0.5),
        "p99_ms": percentile(saturated, 0.99),
        "p50_ms_at_50": percentile(paced, 0.5),
        "p99_ms_at_50": percentile(paced, 0.99),
        "complete": round(got / expected, 6),
    }


def percentile(ordered: Sequence[int], share: float) -> float | None:
    """Return what a share of the delays does not exceed, in milliseconds."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6, 3)
