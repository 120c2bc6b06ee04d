"""Messages whose storage nodes are stopped, killed or late: how many of them are stored in the end.

Each run publishes with `anabranch publish` into a new stream of a local network, while its storage
nodes are away in one of these ways:

    stopped  SIGSTOP for some seconds while the stream is created and published to
    killed   SIGKILL before publishing, started again while the publisher leaves
    late     named by the stream before they have ever run; started while the publisher leaves
    folder   SIGKILL before publishing; the publisher leaves with a data folder; started again, and
             a second process takes up the folder without publishing
    gone     SIGKILL before publishing; the publisher leaves without a data folder; started again:
             the members of the stream hand on what they hold
    lost     as `gone`, and all members end before the storage nodes are started again

A run is right if every message is stored, except in the last way: there, all of them are lost, and
the publisher told so. Whenever messages are not stored when the publisher leaves, it has to tell
their exact number, with exit code 1. Messages are read back and told apart by their content.

    python benchmarks/late_storage.py [--runs 20] [--messages 5000] [--storage 1] [--json]
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from anabranch import HistoryLost, Network, connect
from anabranch.core.ids import show
from anabranch.live.keys import load_or_make_key
from anabranch.live.local import Child, LocalNetwork

WAYS = ("stopped", "killed", "late", "folder", "gone", "lost")
PARTITIONS = (1, 2, 4, 8)
NODES = 3
KEY_FILE = "storage.key"  # in the folder of a storage node
AWAY_S = 3.0
CLOSE_WAIT_S = 60.0
SHORT_WAIT_S = 1.0
HAND_ON_S = 60.0  # how long members may take to hand on what they hold
LOST_S = 10.0  # how long nobody may hand on what is lost

Row = dict[str, Any]


async def publish(local: LocalNetwork, stream: str, lines: bytes, *more: str) -> tuple[Row, int]:
    """Publish lines in a process of its own; return what it says, and its exit code."""
    arguments = ("publish", stream, "--address", local.address, "--key", str(local.owner_key))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "anabranch", *arguments, "--json", *more),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate(lines)
    return json.loads(said.splitlines()[-1]), process.returncode or 0


async def stored(network: Network, name: str, wanted: int, wait_s: float) -> int:
    """Return how many different messages are stored, as soon as all that are wanted are."""
    stream = await network.stream(name)
    until = time.perf_counter() + wait_s
    while True:
        found = set[Any]()
        with suppress(HistoryLost):  # they are just being started
            async with stream.history() as history:
                async for message in history:
                    found.add(message.content)
        if len(found) >= wanted or time.perf_counter() > until:
            return len(found)
        await asyncio.sleep(1.0)


async def away(nodes: list[Child], way: str) -> None:
    """Let storage nodes be away."""
    for child in nodes:
        if way == "stopped":
            child.signal(signal.SIGSTOP)
        elif way != "late":
            await child.kill()


async def back(local: LocalNetwork, nodes: list[Child], way: str, run: int) -> None:
    """Let them come back, or come at last."""
    for index, child in enumerate(nodes):
        if way == "stopped":
            child.signal(signal.SIGCONT)
        elif way != "late":
            await child.start()
        else:
            nodes[index] = await local.add_storage(late_place(run, index))


def late_place(run: int, index: int) -> int:
    """Return the place of a storage node that only one run uses."""
    return 100 * (run + 1) + index


def names(local: LocalNetwork, places: Iterable[int]) -> list[str]:
    """Return the addresses of storage nodes, which may never have run."""
    folders = [local.folder / f"storage-{place}" for place in places]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    return [show(load_or_make_key(folder / KEY_FILE).node) for folder in folders]


async def measure(
    local: LocalNetwork, network: Network, run: int, way: str, partitions: int, messages: int
) -> Row:
    """Publish while the storage nodes are away; return what became of the messages."""
    nodes = list(local.storage)
    count = len(nodes)
    is_late = way == "late"
    places = [late_place(run, index) if is_late else index for index in range(count)]
    if way == "stopped":
        await away(nodes, way)
    stream = await network.create_stream(
        f"late/{run}", partitions=partitions, storage=names(local, places), public=["subscribe"]
    )
    if way != "stopped":
        await asyncio.sleep(1.0)
        await away(nodes, way)
    lines = b"".join(b"%d\n" % number for number in range(messages))
    folder = ("--data", str(local.folder / f"data-{run}"))
    is_back_soon = way in ("stopped", "killed", "late")
    more = ("--close-wait", str(CLOSE_WAIT_S if is_back_soon else SHORT_WAIT_S))
    began = time.perf_counter()
    publishing = asyncio.create_task(
        publish(local, stream.id, lines, *more, *(folder if way == "folder" else ()))
    )
    if is_back_soon:
        await asyncio.sleep(AWAY_S)
        await back(local, nodes, way, run)
    said, exit_code = await publishing
    if way == "lost":
        await asyncio.gather(*(node.kill() for node in local.nodes))
    if not is_back_soon:
        await back(local, nodes, way, run)
    again: Row = {}
    if way == "folder":
        again, _ = await publish(local, stream.id, b"", "--close-wait", str(CLOSE_WAIT_S), *folder)
    wait_s = LOST_S if way == "lost" else HAND_ON_S
    found = await stored(network, stream.id, messages, wait_s)
    seconds = time.perf_counter() - began
    if way == "lost":
        await asyncio.gather(*(node.start() for node in local.nodes))
    row = {"run": run, "way": way, "storage": count, "partitions": partitions}
    row |= {"messages": messages, "published": said["published"], "failed": said["failed"]}
    row |= {"not_stored": said["not_stored"], "exit_code": exit_code, "stored": found}
    row["seconds"] = round(seconds, 1)
    left = 0 if is_back_soon else messages
    has_said = (said["published"], said["not_stored"], exit_code) == (messages, left, int(left > 0))
    is_kept = again.get("not_stored", 0) == 0 and found == (0 if way == "lost" else messages)
    row["ok"] = has_said and is_kept
    if is_late:  # the streams that follow name the others
        await asyncio.gather(*(node.stop() for node in nodes))
        local.storage = [each for each in local.storage if each not in nodes]
    return row


async def measure_all(runs: int, messages: int, storage: int, as_json: bool) -> bool:
    """Print a row for each run; tell whether all are right."""
    right = True
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        local = LocalNetwork(Path(folder))
        try:
            await local.start(1, NODES, storage)
            async with connect(local.address, key=local.owner_key) as network:
                for run in range(runs):
                    turn, place = divmod(run, len(WAYS))
                    way, partitions = WAYS[place], PARTITIONS[(turn + place) % len(PARTITIONS)]
                    row = await measure(local, network, run, way, partitions, messages)
                    right &= row["ok"]
                    print_row(row, as_json)
        finally:
            await local.stop()
    return right


def print_row(row: Row, as_json: bool) -> None:
    """Print a row."""
    if as_json:
        print(json.dumps(row), flush=True)
        return
    print(
        f"{row['run']:>3} {row['way']:<8} {row['partitions']} partitions: "
        f"{row['published']:,} published, {row['failed']:,} failed, {row['not_stored']:,} not "
        f"stored when it left (exit code {row['exit_code']}), {row['stored']:,} stored in the end, "
        f"{row['seconds']} s{'' if row['ok'] else '  WRONG'}",
        flush=True,
    )


def main() -> None:
    """Print a line for each run; end with 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--storage", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    right = asyncio.run(measure_all(given.runs, given.messages, given.storage, given.json))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
