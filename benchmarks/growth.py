"""What a delivery costs as messages, streams, neighbours and publishers become more.

    python benchmarks/growth.py [--json] [--only size|streams|degree|publishers|nodes]

Sixteen of our nodes in one process, over WebSockets; all are in all streams and read them through
`async for`. Publishers and streams take turns, message by message; at most 256 messages, and not
more than 4 MB, are under way. One thing grows at a time, from 308 bytes, one stream, degree 4, one
publisher and sixteen nodes. A hundred publishers are a hundred nodes: what these cost by
themselves is a line of its own. CPU is that of this process and of the tracker.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import uvloop
from flooding.harness import PATIENCE_S, Row, cpu_s
from flooding.streams import create_streams, subscribe

from anabranch import Network, Stream, Subscription, connect
from anabranch.live.keys import new_key
from anabranch.live.local import LocalNetwork

IN_FLIGHT, IN_FLIGHT_BYTES = 256, 4 << 20
SECONDS = 2.5
WARM_S = 0.5  # without a message that is late
WARM, COUNTED = range(2)  # the first byte of a message; the second says who sent it


class Point(msgspec.Struct, frozen=True):
    """One measurement; what is not given is as usual."""

    varies: str
    size: int = 308
    streams: int = 1
    degree: int = 4
    publishers: int = 1
    nodes: int = 16

    @property
    def value(self) -> int:
        """What has grown."""
        return int(getattr(self, self.varies))


def points() -> Iterator[Point]:
    """Yield what is measured, in turn."""
    for size in (100, 1_000, 10_000, 100_000):
        yield Point("size", size=size)
    for degree in (4, 8, 16):
        yield Point("degree", degree=degree)
    yield Point("nodes", nodes=100)
    for publishers in (1, 10, 100):
        yield Point("publishers", publishers=publishers, nodes=max(16, publishers))
    for streams in (1, 10, 100, 1_000):
        yield Point("streams", streams=streams)


class Field:
    """The nodes of one measurement, and what they have received."""

    def __init__(self, point: Point, names: list[str]) -> None:
        self._point = point
        self._names = names
        self._networks: list[Network] = []
        self._streams: list[list[Stream]] = []  # of each publisher
        self._warm: dict[str, set[int]] = {name: set() for name in names}
        self._heard = 0
        self._tasks: set[asyncio.Task[object]] = set()
        self._awaited = 0
        self._reached = asyncio.Event()
        self.deliveries = 0

    async def join(self, address: str, stack: AsyncExitStack) -> None:
        """Start the nodes, and let them read."""
        for index in range(self._point.nodes):
            network = connect(address, key=new_key()[0])
            await network.__aenter__()
            stack.push_async_callback(network.close, 0.0)
            self._networks.append(network)
            for subscription in await subscribe(network, self._names):
                self._keep(asyncio.create_task(self._read(index, subscription)))
            if index < self._point.publishers:
                self._streams.append([await network.stream(name) for name in self._names])

    async def _read(self, index: int, subscription: Subscription) -> None:
        async for message in subscription:
            if message.content[1] == index:
                continue  # our own
            if message.content[0] == COUNTED:
                self.deliveries += 1
                if self.deliveries == self._awaited:
                    self._reached.set()
            else:
                self._heard += 1
                self._warm[message.stream].add(index)

    def _keep(self, task: asyncio.Task[object]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _publish(self, turn: int, kind: int, size: int) -> None:
        """Let the publisher whose turn it is publish to the stream whose turn it is."""
        who = turn % len(self._streams)
        stream = self._streams[who][turn % len(self._names)]
        content = bytes((kind, who)) + bytes(size - 2)
        self._keep(asyncio.create_task(stream.publish(content)))

    async def warm_up(self) -> None:
        """Publish until everybody receives, in every stream; then let all of it come to rest."""
        give_up_at = time.perf_counter() + PATIENCE_S
        turns = list(range(max(self._point.streams, self._point.publishers)))
        while turns:
            assert time.perf_counter() < give_up_at, "not all receive"
            for turn in turns:
                self._publish(turn, WARM, 2)
            heard = -1
            # Nothing may be left that the flood would pay for.
            while heard != (heard := self._heard):  # noqa: ASYNC110 (for as long as it grows)
                await asyncio.sleep(WARM_S)
            turns = [at for at, name in enumerate(self._names) if not self._is_warm(name)]

    def _is_warm(self, name: str) -> bool:
        return len(self._warm[name]) >= self._point.nodes - 1

    async def flood(self) -> int:
        """Publish as fast as all others receive; return how much that was."""
        receivers = self._point.nodes - 1
        most = min(IN_FLIGHT, max(1, IN_FLIGHT_BYTES // self._point.size))
        began, sent = time.perf_counter(), 0
        while time.perf_counter() < began + SECONDS:
            await self._wait_for((sent - most + 1) * receivers)
            self._publish(sent, COUNTED, self._point.size)
            sent += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wait_for(sent * receivers), PATIENCE_S)
        return sent

    async def _wait_for(self, deliveries: int) -> None:
        if self.deliveries < deliveries:
            self._awaited = deliveries
            self._reached.clear()
            await self._reached.wait()


async def measure(point: Point, local: LocalNetwork) -> Row:
    """Measure one point, with nodes and streams of its own."""
    prefix = f"{point.varies}-{point.value}-"
    names = await create_streams(local.address, point.streams, prefix, point.degree)
    pids = [os.getpid(), *(tracker.pid for tracker in local.trackers)]
    gc.collect()  # what the point before has left
    async with AsyncExitStack() as stack:
        field = Field(point, names)
        await field.join(local.address, stack)
        await field.warm_up()
        began, before = time.perf_counter(), cpu_s(pids)
        sent = await field.flood()
        seconds, busy_s = time.perf_counter() - began, cpu_s(pids) - before
    return {
        "varies": point.varies,
        "value": point.value,
        "cpu_us_per_delivery": round(busy_s * 1e6 / max(1, field.deliveries), 2),
        "msg_s": round(sent / seconds),
        "complete": round(field.deliveries / (sent * (point.nodes - 1)), 6),
        "nodes": point.nodes,
    }


async def measure_all(options: argparse.Namespace) -> None:
    """Measure every point that is asked for, beside one tracker."""
    chosen = [point for point in points() if options.only in (None, point.varies)]
    with tempfile.TemporaryDirectory(prefix="anabranch-growth-") as folder:
        local = LocalNetwork(Path(folder))
        try:
            await local.start(1, 0)
            for at, point in enumerate(chosen):
                print(f"{at} of {len(chosen)}: {point.varies} {point.value}", file=sys.stderr)
                row = await measure(point, local)
                print(json.dumps(row) if options.json else _shown(row), flush=True)
        finally:
            await local.stop()


def _shown(row: Row) -> str:
    return (
        f"{row['varies']:>10} {row['value']:>7,}: {row['cpu_us_per_delivery']:>8} us/delivery, "
        f"{row['msg_s']:>7,} msg/s, complete {row['complete']}, {row['nodes']} nodes"
    )


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    names = list(dict.fromkeys(point.varies for point in points()))
    parser.add_argument("--only", choices=names, help="only what this does to it")
    uvloop.run(measure_all(parser.parse_args()))


if __name__ == "__main__":
    main()
