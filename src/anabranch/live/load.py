"""Load on a network: publishers here, subscribers as processes, and what became of it all.

Publishers run in this process, subscribers are `anabranch node` processes that count. An open
loop offers messages at a rate, whatever the network makes of it; a closed loop keeps a number of
messages under way and so finds the most that the network carries.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.live.client import connect
from anabranch.live.errors import AnabranchError
from anabranch.live.local import Child, LocalNetwork
from anabranch.live.metrics import Delays, cpu_ms
from anabranch.live.stream import Stream

TICK_S = 0.005  # how finely an open loop spreads its messages
AT_ONCE = 4_096  # messages of one publisher that an open loop has under way
COUNT_EVERY_S = 0.25  # how often subscribers say what they have counted
SETTLE_S = 15.0  # how long the last messages may take


class Load(msgspec.Struct, frozen=True):
    """What to do to the network."""

    size: int = 308
    rate: float = 0.0  # messages a second, of all publishers together; 0: as many as it carries
    duration_s: float = 10.0
    in_flight: int = 256  # of each publisher, in a closed loop


class Outcome(msgspec.Struct):
    """What became of it."""

    published: int
    failed: int
    seconds: float
    delivered: int  # by all subscribers together
    expected: int
    duplicates: int
    dropped: int
    complete: float  # share of expected deliveries that happened
    published_per_s: float
    delivered_per_s: float
    delay_mean_ms: float
    delay_p50_ms: float
    delay_p99_ms: float
    delay_max_ms: float
    cpu_us_per_delivery: float
    duplicates_per_delivery: float


class Counted:
    """What subscribers had counted at one moment, added up."""

    def __init__(self, children: Sequence[Child], part: str) -> None:
        rows = [_newest(child) for child in children]
        parts = [row.get("parts", {}).get(part, {}) for row in rows]
        self.each = [int(p.get("delivered", 0)) for p in parts]
        self.delivered = sum(self.each)
        self.duplicates = sum(int(p.get("duplicates", 0)) for p in parts)
        self.dropped = sum(sum(p.get("dropped", {}).values()) for p in parts)
        self.cpu_ms = sum(int(row.get("cpu_ms", 0)) for row in rows)
        self.delays = Delays()
        for p in parts:
            if "histogram" in p:
                self.delays.merge(Delays.from_dict(p["histogram"]))


def _newest(child: Child) -> dict[str, Any]:
    last = child.last
    return last.get("stopped") or last.get("stats") or last.get("ready") or {}


async def publish_load(
    streams: Sequence[Stream], load: Load, progress: Callable[[float], None]
) -> tuple[int, int, float]:
    """Publish as the load says; return how many were published, how many failed, and the time."""
    counts = [0, 0]
    began = time.perf_counter()

    work = _open_loop if load.rate else _closed_loop
    share = msgspec.structs.replace(load, rate=load.rate / len(streams))
    teller = asyncio.create_task(_tell_often(progress, began, load.duration_s))
    try:
        await asyncio.gather(*(work(stream, share, counts, began) for stream in streams))
    finally:
        teller.cancel()
    return counts[0], counts[1], time.perf_counter() - began


async def _tell_often(progress: Callable[[float], None], began: float, seconds: float) -> None:
    while True:
        await asyncio.sleep(0.1)
        progress(min(1.0, (time.perf_counter() - began) / seconds))


async def _publish(stream: Stream, content: bytes, counts: list[int]) -> None:
    try:
        await stream.publish(content)
        counts[0] += 1
    except AnabranchError:
        counts[1] += 1


async def _closed_loop(stream: Stream, load: Load, counts: list[int], began: float) -> None:
    content = bytes(load.size)

    async def keep_publishing() -> None:
        while time.perf_counter() - began < load.duration_s:
            await _publish(stream, content, counts)

    await asyncio.gather(*(keep_publishing() for _ in range(load.in_flight)))


async def _open_loop(stream: Stream, load: Load, counts: list[int], began: float) -> None:
    content = bytes(load.size)
    total = max(1, round(load.rate * load.duration_s))
    due = taken = 0
    idle: list[asyncio.Future[None]] = []
    loop = asyncio.get_running_loop()

    async def keep_publishing() -> None:
        nonlocal taken
        while taken < total:
            if taken < due:
                taken += 1
                await _publish(stream, content, counts)
            else:
                idle.append(loop.create_future())
                await idle[-1]

    # A task for each message would cost as much as the message: these few serve all of them, and
    # what the network does not take in time waits as a number.
    async with asyncio.TaskGroup() as group:
        for _ in range(min(total, AT_ONCE)):
            group.create_task(keep_publishing())
        while due < total:
            due = min(total, int((time.perf_counter() - began) * load.rate) + 1)
            for _ in range(min(len(idle), due - taken)):
                idle.pop().set_result(None)
            await asyncio.sleep(TICK_S)
        while idle:
            idle.pop().set_result(None)


async def all_delivered(children: Sequence[Child], part: str, expected_each: Sequence[int]) -> bool:
    """Wait until every subscriber has counted so many messages; tell whether that came about."""
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until:
        counted = Counted(children, part)
        if all(have >= want for have, want in zip(counted.each, expected_each, strict=True)):
            return True
        await asyncio.sleep(0.1)
    return False


async def _hear_again(children: Sequence[Child]) -> None:
    """Wait until every subscriber has said once more what it counted."""
    before = [_newest(child) for child in children]
    until = time.perf_counter() + SETTLE_S
    while any(_newest(c) is b and c.alive for c, b in zip(children, before, strict=True)):
        if time.perf_counter() > until:
            raise AnabranchError("a subscriber says nothing any more")
        await asyncio.sleep(0.05)


def _since(after: Delays, before: Delays) -> Delays:
    """Return the delays that were counted in between; the longest may be older."""
    new, old = after.to_dict(), before.to_dict()
    counts = {place: n - old["counts"].get(place, 0) for place, n in new["counts"].items()}
    return Delays.from_dict({**new, "sum_us": new["sum_us"] - old["sum_us"], "counts": counts})


async def measure(
    streams: Sequence[Stream],
    subscribers: Sequence[Child],
    load: Load,
    progress: Callable[[float], None] = lambda done: None,
) -> Outcome:
    """Put the load on a stream that the subscribers carry already; say what became of it."""
    part = f"{streams[0].id}#0"
    before, cpu_before = Counted(subscribers, part), cpu_ms()
    published, failed, seconds = await publish_load(streams, load, progress)
    await all_delivered(subscribers, part, [have + published for have in before.each])
    cpu_here = cpu_ms() - cpu_before
    await _hear_again(subscribers)
    after = Counted(subscribers, part)
    delivered = after.delivered - before.delivered
    expected = published * len(subscribers)
    cpu_us = 1000 * (after.cpu_ms - before.cpu_ms + cpu_here)
    duplicates = after.duplicates - before.duplicates
    delays = _since(after.delays, before.delays)
    return Outcome(
        published=published,
        failed=failed,
        seconds=round(seconds, 3),
        delivered=delivered,
        expected=expected,
        duplicates=duplicates,
        dropped=after.dropped - before.dropped,
        complete=round(delivered / expected, 6) if expected else 0.0,
        published_per_s=round(published / seconds, 1),
        delivered_per_s=round(delivered / seconds, 1),
        delay_mean_ms=delays.mean_us / 1000,
        delay_p50_ms=delays.percentile_us(50) / 1000,
        delay_p99_ms=delays.percentile_us(99) / 1000,
        delay_max_ms=delays.max_us / 1000,
        cpu_us_per_delivery=round(cpu_us / delivered, 2) if delivered else 0.0,
        duplicates_per_delivery=round(duplicates / delivered, 3) if delivered else 0.0,
    )


@asynccontextmanager
async def load_network(
    publishers: int,
    subscribers: int,
    degree: int = DEFAULT_DEGREE,
    progress: Callable[[float], None] = lambda done: None,
) -> AsyncIterator[tuple[list[Stream], LocalNetwork]]:
    """Run a network for a load: what to publish to, and the processes that subscribe to it."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-load-"))
        local = LocalNetwork(Path(folder))
        stack.push_async_callback(local.stop)
        await local.start(1, 0)
        joining = [connect(local.address, key=local.owner_key) for _ in range(publishers)]
        networks = [await stack.enter_async_context(network) for network in joining]
        name = (await networks[0].create_stream("load", degree=degree)).id
        for index in range(subscribers):
            await local.add_node([name], ["--interval", str(COUNT_EVERY_S)])
            progress((index + 1) / subscribers)
        streams = [await network.stream(name) for network in networks]
        for stream in streams:  # the overlay stands once everyone has everyone's first message
            await stream.publish(b"")
        if not await all_delivered(local.nodes, f"{name}#0", [publishers] * subscribers):
            raise AnabranchError("the network did not come up: some subscriber got no message")
        yield streams, local
