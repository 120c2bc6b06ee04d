"""Kills a driver again and again while it copies a stream, and counts what came of it.

Two queries copy one stream, into a table and into another stream. When one of them has begun so
many batches, and a moment later, the driver is killed with all it has under way, and another one
goes on from the checkpoints. On the way the primary of the stream's log is killed too. In the end
every message must be once in the table, and once in the other stream, as a subscriber saw it live
and as its log has it.
"""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from anabranch import Message, Network, Stream, connect
from anabranch.live.local import Child, LocalNetwork
from live.networks import eventually
from spark.copier import QUERIES, Orders
from support.waiting import limit, within

COPIER = Path(__file__).with_name("copier.py")
STORAGE = 3
PARTITIONS = 2
TICK_S, PER_TICK = 0.02, 5  # 250 messages a second
MOST_AHEAD = 1_500  # messages that are not copied yet: a slow machine is given no more than that
KEYS = 7
PER_BATCH = 400  # so that whoever was killed has several batches to catch up
MAX_BATCHES = 3  # that a driver may begin before it is killed
PAUSE_S = 0.8  # within which it is killed then
WORDS = 2_500  # characters
PATIENCE_S = 120.0

Row = tuple[int, int, int, str, str, str, str]


class Outcome(msgspec.Struct):
    """What became of a stream that was copied while drivers were killed."""

    published: int = 0
    kills: int = 0
    batches: dict[str, int] = {}
    cut_off: dict[str, int] = {}  # batches of each query that a kill left noted and not done
    wrong: list[str] = []


async def copy_under_kills(folder: Path, kills: int, seed: int) -> Outcome:
    """Publish, copy, kill so often; then let the copies be finished, and count."""
    outcome = Outcome(kills=kills, cut_off=dict.fromkeys(QUERIES, 0))
    async with AsyncExitStack() as stack:
        local = LocalNetwork(folder / "network")
        stack.push_async_callback(local.stop)
        await local.start(1, 0, storage=STORAGE)
        here, there = [
            await stack.enter_async_context(connect(local.address, key=local.owner_key))
            for _ in range(2)
        ]
        stream, copy = [
            await here.create_stream(
                name, partitions=PARTITIONS, public=["subscribe"], storage=STORAGE
            )
            for name in ("stream", "copy")
        ]
        came: list[Message] = []
        reading = asyncio.create_task(_read(there, copy.id, came))
        stack.callback(reading.cancel)
        await eventually(lambda: bool(there.node.members()), "the subscriber is there")
        orders = _orders(local, stream, copy, folder)
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(_publish(stream, came, ended))
            await _kill_drivers(orders, local, stream, Random(seed), outcome)
            ended.set()
        published = publishing.result()
        outcome.published = len(published)
        await _copy_to_the_end(orders)
        outcome.batches = {query: _last(orders, query, "commits") + 1 for query in QUERIES}
        await _count(published, orders, copy, came, outcome)
        assert not reading.done(), "the subscriber has ended"
    return outcome


def _orders(local: LocalNetwork, stream: Stream, copy: Stream, folder: Path) -> Orders:
    access = {
        "network": local.address,
        "keyFile": str(local.owner_key),
        "keyStore": str(folder / "keys.sqlite"),
    }
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(PER_BATCH)}
    source = {**access, **limits, "subscribe": stream.id}
    return Orders(source, {**access, "stream": copy.id}, str(folder))


async def _publish(stream: Stream, came: list[Message], ended: asyncio.Event) -> list[Row]:
    """Publish at a rate; return what two storage nodes each have acknowledged."""
    published: list[Row] = []

    async def publish(number: int) -> None:
        key, value = str(number % KEYS), json.dumps({"number": number})
        name = (await stream.publish_stored(value, 2, key=key)).id
        of_time = (name.timestamp_ms, name.sequence)
        published.append((name.partition, *of_time, name.publisher, name.chain, key, value))

    number = 0
    async with asyncio.TaskGroup() as tasks:
        while not ended.is_set():
            for _ in range(min(PER_TICK, len(came) + MOST_AHEAD - number)):
                tasks.create_task(publish(number))
                number += 1
            await asyncio.sleep(TICK_S)
    return published


async def _read(network: Network, name: str, came: list[Message]) -> None:
    async with (await network.stream(name)).subscribe() as messages:
        async for message in messages:
            came.append(message)


# --- Drivers ------------------------------------------------------------------------------------


class Driver:
    """A process that copies, with the Java that it has started."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._said = Path(orders.folder, "driver.log")

    async def __aenter__(self) -> "Driver":
        with self._said.open("wb") as said:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(COPIER),
                msgspec.json.encode(self._orders).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,  # so that Python and Java can be killed at once
            )
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    @property
    def has_started(self) -> bool:
        """Whether its queries have begun."""
        if self._process.returncode is not None:
            raise AssertionError(f"the driver has ended: {self.last_words}")
        return self._said.read_text().startswith("started")

    async def end(self) -> None:
        """Wait until it has done all it was to do."""
        code = await within(PATIENCE_S, self._process.wait())
        assert code == 0, self.last_words

    @property
    def last_words(self) -> str:
        """The beginning and the end of what it said: between them lie the stacks of Java."""
        said = self._said.read_text()
        return said if len(said) < 2 * WORDS else f"{said[:WORDS]} [...] {said[-WORDS:]}"


async def _kill_drivers(
    orders: Orders, local: LocalNetwork, stream: Stream, rng: Random, outcome: Outcome
) -> None:
    for turn in range(outcome.kills):
        query, batches = rng.choice(QUERIES), rng.randint(0, MAX_BATCHES)
        pause_s = rng.uniform(0, PAUSE_S)
        wanted = _last(orders, query, "offsets") + batches
        async with Driver(orders) as driver:
            await eventually(lambda: driver.has_started, "a driver starts", PATIENCE_S)
            if turn == outcome.kills // 2:
                await _kill_primary(local, stream)
            await eventually(
                lambda: driver.has_started and _last(orders, query, "offsets") >= wanted,  # noqa: B023
                f"{query} begins batch {wanted}",
                PATIENCE_S,
            )
            await asyncio.sleep(pause_s)
            assert driver.has_started
        for each in QUERIES:
            is_cut = _last(orders, each, "offsets") > _last(orders, each, "commits")
            outcome.cut_off[each] += is_cut


async def _copy_to_the_end(orders: Orders) -> None:
    async with Driver(msgspec.structs.replace(orders, to_the_end=True)) as driver:
        await driver.end()


def _last(orders: Orders, query: str, log: str) -> int:
    """Return the last batch of which a log of a query's checkpoint knows; -1 if of none."""
    files = (orders.checkpoint(query) / log).glob("[0-9]*")
    return max((int(file.name) for file in files if file.name.isdecimal()), default=-1)


async def _kill_primary(local: LocalNetwork, stream: Stream) -> None:
    found: list[Child] = []

    def is_there() -> bool:
        found[:] = [child for child in local.storage if _is_primary(child, stream)]
        return bool(found)

    await eventually(is_there, "the log has a primary")
    await found[0].kill()


def _is_primary(child: Child, stream: Stream) -> bool:
    with urllib.request.urlopen(f"{child.ready['http']}/parts", timeout=limit(5)) as answer:
        rows = json.loads(answer.read())["parts"]
    return any(row["stream"] == stream.id and row["primary"] == child.ready["node"] for row in rows)


# --- Counting -----------------------------------------------------------------------------------


async def _count(
    published: list[Row], orders: Orders, copy: Stream, came: list[Message], outcome: Outcome
) -> None:
    table = [tuple(row) for row in json.loads(orders.written_down.read_text())]
    outcome.wrong += compare("the table", published, table)
    values = [row[-2:] for row in published]
    async with copy.history() as messages:
        logged = [message async for message in messages]
    outcome.wrong += compare("the log", values, map(_content, logged))
    await eventually(lambda: len(came) >= len(logged), "all has come live")
    outcome.wrong += compare("the subscriber", values, map(_content, came))
    if {message.id for message in came} != {message.id for message in logged}:
        outcome.wrong.append("the subscriber has other messages than the log")


def _content(message: Message) -> tuple[str | None, Any]:
    return (None if message.key is None else message.key.decode()), message.content


def compare(who: str, wanted: Iterable[Any], found: Iterable[Any]) -> list[str]:
    """Say how what somebody has differs from what he should have."""
    should, has = Counter(wanted), Counter(found)
    missing, more = should - has, has - should
    wrong = []
    if missing:
        wrong.append(f"{who} lacks {missing.total()} messages, such as {next(iter(missing))}")
    if more:
        wrong.append(f"{who} has {more.total()} too many, such as {next(iter(more))}")
    return wrong
