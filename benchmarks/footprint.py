"""What one node takes while nothing happens, and how soon one that is started receives.

    python benchmarks/footprint.py [--json] [--streams 1000] [--links 200] [--only idle|start]

First a node in a process of its own, two trackers, and a crowd of nodes in another process: the
node joins half of the streams, then all, then half of the crowd comes, then all of it, four in
each stream beside the node. What its memory grows by from one step to the next is what a stream, a
link and a message take that it remembers. Its idle CPU is a share of one core, with all in place.

Then a process that subscribes, started five times while somebody publishes every 10 ms: how long
until it has its first message, through the API and through the command line. Bars: under 150 MB,
under 0.02 of a core, under a second.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop
from flooding.crowd import Crowd
from flooding.harness import Row, cpu_s
from flooding.streams import create_streams, subscribe

from anabranch import connect
from anabranch.live.keys import new_key
from anabranch.live.local import LocalNetwork

STREAMS, LINKS = 1_000, 200
NEIGHBOURS = 4  # others in each stream
IDLE_S = 60.0  # each chain of the registry is read about once in this time
SETTLE_S = 12.0  # longer than the longest of the overlay's own times
ROUNDS = 20  # messages in each stream
SIZE = 308
STARTS = 5
PUBLISH_EVERY_S = 0.01

STARTED = """
import asyncio, json, sys, time
from anabranch import connect
times = [time.time()]
async def main(address, key, name):
    async with connect(address, key=key) as network:
        times.append(time.time())
        async with (await network.stream(name)).subscribe() as messages:
            async for message in messages:
                times.append(time.time())
                print(json.dumps(times), flush=True)
                return
asyncio.run(main(*sys.argv[1:]))
"""


def say(text: str) -> None:
    """Tell people how far it has come."""
    print(text, file=sys.stderr)


def rss(pid: int) -> int:
    """Return how many bytes of a process are in memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def local_network(trackers: int) -> AsyncIterator[LocalNetwork]:
    """Run trackers of our own."""
    with tempfile.TemporaryDirectory(prefix="anabranch-footprint-") as folder:
        local = LocalNetwork(Path(folder))
        try:
            await local.start(trackers, 0)
            yield local
        finally:
            await local.stop()


# --- One node with much to look after -------------------------------------------------------


def crowd_rows(names: list[str], links: int) -> Iterator[list[list[str]]]:
    """Say who of the crowd is in which streams: half of them, then the other half.

    Four of them are in the same streams, and the node has all of them for neighbours.
    """
    groups = links // NEIGHBOURS
    shares = [names[group::groups] for group in range(groups)]
    for _ in range(2):
        yield shares * (NEIGHBOURS // 2)


async def measure_idle(streams: int, links: int) -> AsyncIterator[Row]:
    """Let a node join and be joined, and look at its process from outside."""
    async with local_network(2) as local:
        names = await create_streams(local.address, streams)
        say(f"{streams} streams created")
        node, crowd = Crowd(local.address), Crowd(local.address)
        seen: dict[str, int] = {}

        async def look(what: str, wait_s: float = SETTLE_S) -> None:
            await asyncio.sleep(wait_s)
            seen[what] = rss(node.pid)
            say(f"{what}: {seen[what] / 1e6:.1f} MB, {await node.links()} links")

        try:
            await node.join([[]])
            await look("connected", 2.0)
            await node.join_more(names[: streams // 2])
            await look("half of the streams")
            await node.join_more(names[streams // 2 :])
            await look("all streams")
            for share, what in zip(crowd_rows(names, links), ("half", "all"), strict=True):
                await crowd.join(share)
                await look(f"{what} of the links")
            standing = await node.links()
            began, before = time.perf_counter(), cpu_s([node.pid])
            await asyncio.sleep(IDLE_S)
            share_of_core = (cpu_s([node.pid]) - before) / (time.perf_counter() - began)
            say(f"idle: {share_of_core:.4f} of a core")
            got = [await node.received()]
            for rounds, what in ((1, "a message"), (ROUNDS, "more messages")):
                await crowd.publish(rounds, SIZE)
                await look(what, 2.0)
                got.append(await node.received())
        finally:
            await node.close()
            await crowd.close()
    yield {
        "streams": streams,
        "links": standing,
        "rss_mb": round(seen["all of the links"] / 1e6, 1),
        "idle_cpu_share": round(share_of_core, 4),
        "rss_mb_with_messages": round(seen["more messages"] / 1e6, 1),
    }
    for what, first, last, count in (
        ("stream", "half of the streams", "all streams", streams - streams // 2),
        ("link", "half of the links", "all of the links", links // 2),
        ("publisher's chain", "all of the links", "a message", got[1] - got[0]),
        ("remembered message", "a message", "more messages", got[2] - got[1]),
    ):
        yield {"what": what, "bytes_each": round((seen[last] - seen[first]) / max(1, count))}


# --- How soon a process receives ------------------------------------------------------------


async def measure_starts(starts: int) -> AsyncIterator[Row]:
    """Start a process that subscribes, again and again."""
    async with local_network(1) as local:
        [name] = await create_streams(local.address, 1)
        key = str(local.owner_key)
        through_api = ["-c", STARTED, local.address, local.owner_key.read_text().strip(), name]
        through_cli = ["-m", "anabranch", "subscribe", name, "--address", local.address]
        through_cli += ["--key", key, "--json"]
        async with (
            connect(local.address, key=new_key()[0]) as publisher,
            connect(local.address, key=new_key()[0]) as other,
        ):
            await subscribe(other, [name])
            publishing = asyncio.create_task(_publish(await publisher.stream(name)))
            await asyncio.sleep(1.0)
            for how, arguments in (("api", through_api), ("cli", through_cli)):
                yield _of_starts(how, [await _start(arguments) for _ in range(starts)])
            publishing.cancel()


async def _publish(stream: Any) -> None:
    while True:
        await stream.publish(bytes(SIZE))
        await asyncio.sleep(PUBLISH_EVERY_S)


async def _start(arguments: list[str]) -> list[float]:
    """Return when the process began, what it tells of itself, and when it had a message."""
    began = time.time()
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    ended = time.time()
    if process.returncode is None:
        process.terminate()
    await process.communicate()
    said = json.loads(line)
    times = [began, *said] if isinstance(said, list) else [began, ended]
    return [after - before for before, after in pairwise(times)]


def _of_starts(how: str, starts: list[list[float]]) -> Row:
    row: Row = {"how": how, "start_s": round(statistics.median(map(sum, starts)), 3)}
    row["slowest_s"] = round(max(map(sum, starts)), 3)
    if len(starts[0]) == 3:
        for at, key in enumerate(("import_s", "connect_s", "first_s")):
            row[key] = round(statistics.median(parts[at] for parts in starts), 3)
    return row


async def measure(options: argparse.Namespace) -> None:
    """Measure what is asked for."""
    if options.only != "start":
        async for row in measure_idle(options.streams, options.links):
            show(row, options.json)
    if options.only != "idle":
        async for row in measure_starts(STARTS):
            show(row, options.json)


def show(row: Row, as_json: bool) -> None:
    """Print a row."""
    if as_json:
        print(json.dumps(row), flush=True)
    else:
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--links", type=int, default=LINKS)
    parser.add_argument("--only", choices=("idle", "start"))
    uvloop.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
