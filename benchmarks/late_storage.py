"""Messages whose storage nodes are stopped, killed or late: how many of them are stored in the end.

Each run publishes with `anabranch publish` into a new stream of a local network, while its storage
nodes are away in one of these ways:

    stopped  SIGSTOP for some seconds while the stream is created and published to
    killed   SIGKILL before publishing, started again while the publisher leaves
    folder   SIGKILL before publishing; the publisher leaves with a data folder; started again, and
             a second process takes up the folder without publishing
    gone     SIGKILL before publishing; the publisher leaves without a data folder

A run is right if every message is stored, or if the publisher ended with exit code 1 and told the
exact number of those that are not. Messages are read back and told apart by their content.

    python benchmarks/late_storage.py [--runs 20] [--messages 100000] [--storage 1] [--json]
"""

import argparse
import asyncio
import itertools
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from anabranch import Network, connect
from anabranch.live.local import LocalNetwork

WAYS = ("stopped", "killed", "folder", "gone")
PARTITIONS = (1, 2, 4, 8)
NODES = 3
AWAY_S = 3.0
CLOSE_WAIT_S = 60.0
SHORT_WAIT_S = 1.0

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


async def stored(network: Network, name: str) -> int:
    """Return how many different messages are stored."""
    stream = await network.stream(name)
    async with stream.history() as history:
        return len({message.content async for message in history})


async def away(local: LocalNetwork, way: str) -> None:
    """Let the storage nodes be away."""
    for child in local.storage:
        if way == "stopped":
            child.signal(signal.SIGSTOP)
        else:
            await child.kill()


async def back(local: LocalNetwork, way: str) -> None:
    """Let them come back."""
    for child in local.storage:
        if way == "stopped":
            child.signal(signal.SIGCONT)
        else:
            await child.start()


async def measure(
    local: LocalNetwork, network: Network, run: int, way: str, partitions: int, messages: int
) -> Row:
    """Publish while the storage nodes are away; return what became of the messages."""
    if way == "stopped":
        await away(local, way)
    count = len(local.storage)
    stream = await network.create_stream(
        f"late/{run}", partitions=partitions, storage=count, public=["subscribe"]
    )
    if way != "stopped":
        await asyncio.sleep(1.0)
        await away(local, way)
    lines = b"".join(b"%d\n" % number for number in range(messages))
    folder = ("--data", str(local.folder / f"data-{run}"))
    is_back_soon = way in ("stopped", "killed")
    more = ("--close-wait", str(CLOSE_WAIT_S if is_back_soon else SHORT_WAIT_S))
    began = time.perf_counter()
    publishing = asyncio.create_task(
        publish(local, stream.id, lines, *more, *(folder if way == "folder" else ()))
    )
    if is_back_soon:
        await asyncio.sleep(AWAY_S)
        await back(local, way)
    said, exit_code = await publishing
    if not is_back_soon:
        await back(local, way)
    again: Row = {}
    if way == "folder":
        again, _ = await publish(local, stream.id, b"", "--close-wait", str(CLOSE_WAIT_S), *folder)
    seconds = time.perf_counter() - began
    found = await stored(network, stream.id)
    left = again.get("not_stored", said["not_stored"])
    expected_code = int(bool(said["failed"] or said["not_stored"]))
    row = {"run": run, "way": way, "storage": count, "partitions": partitions}
    row |= {"messages": messages, "published": said["published"], "failed": said["failed"]}
    row |= {"not_stored": said["not_stored"], "exit_code": exit_code, "stored": found}
    row["seconds"] = round(seconds, 1)
    # Members of the stream may hold, and hand on, what a publisher that has gone could not.
    row["ok"] = exit_code == expected_code and said["published"] - left <= found
    row["ok"] &= way == "gone" or found == said["published"] == messages
    return row


async def measure_all(runs: int, messages: int, storage: int, as_json: bool) -> bool:
    """Print a row for each run; tell whether all are right."""
    right = True
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        local = LocalNetwork(Path(folder))
        try:
            await local.start(1, NODES, storage)
            async with connect(local.address, key=local.owner_key) as network:
                kinds = itertools.cycle((w, p) for p in PARTITIONS for w in WAYS)
                for run, (way, partitions) in zip(range(runs), kinds, strict=False):
                    row = await measure(local, network, run, way, partitions, messages)
                    right &= row["ok"]
                    show(row, as_json)
        finally:
            await local.stop()
    return right


def show(row: Row, as_json: bool) -> None:
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
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--storage", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    right = asyncio.run(measure_all(given.runs, given.messages, given.storage, given.json))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
