"""What encryption costs: CPU per delivery on a private stream beside a public one, in one run.

One publisher and four subscribers that read every message, all in this process, over real links.
The two streams take turns, so that a machine that drifts does so for both. `many`: as many
messages under way as usual, which leave together; `single`: one after the other.

    python benchmarks/encryption.py [--json]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from anabranch import Network, Stream, connect
from anabranch.live.local import LocalNetwork

READERS = 4
SIZE = 308
ROUNDS = 7
BAR = 1.3

Row = dict[str, object]


class Reader:
    """Reads a stream through `async for`, and counts."""

    def __init__(self) -> None:
        self.count = self._goal = 0
        self._reached = asyncio.Event()

    async def read(self, stream: Stream, ordered: bool) -> None:
        async with stream.subscribe(ordered=ordered) as messages:
            async for _ in messages:
                self.count += 1
                if self.count == self._goal:
                    self._reached.set()

    def expect(self, count: int) -> None:
        """Wait, from now on, for so many more."""
        self._goal = self.count + count
        self._reached.clear()

    async def done(self) -> None:
        """Return when they have come."""
        await self._reached.wait()


async def publish(stream: Stream, count: int, at_once: int) -> None:
    """Publish so many messages, with at most so many under way."""
    content, left = bytes(SIZE), iter(range(count))

    async def keep_publishing() -> None:
        for _ in left:
            await stream.publish(content)

    await asyncio.gather(*(keep_publishing() for _ in range(at_once)))


async def spend(stream: Stream, readers: list[Reader], count: int, at_once: int) -> float:
    """Return the CPU time, in microseconds, that one delivery takes."""
    for reader in readers:
        reader.expect(count)
    began = time.process_time()
    await publish(stream, count, at_once)
    await asyncio.gather(*(reader.done() for reader in readers))
    return (time.process_time() - began) / (count * len(readers)) * 1e6


class Kind(msgspec.Struct, frozen=True):
    """A stream of its own, and how it is read."""

    public: str | tuple[()] = "subscribe"
    ordered: bool = True


async def prepare(
    name: str, kind: Kind, nodes: list[Network], stack: AsyncExitStack
) -> tuple[Stream, list[Reader]]:
    """Create a stream, let all but the first node read it, and wait until all of them do."""
    stream = await nodes[0].create_stream(name, public=kind.public)
    readers = [Reader() for _ in nodes[1:]]
    for node, reader in zip(nodes[1:], readers, strict=True):
        task = asyncio.create_task(reader.read(await node.stream(stream.id), kind.ordered))
        stack.callback(task.cancel)
    for reader in readers:
        reader.expect(1)
    await stream.publish(b"")
    await asyncio.gather(*(reader.done() for reader in readers))
    assert stream.info()["encrypted"] is not bool(kind.public)
    return stream, readers


async def measure(base: str, base_kind: Kind, other: str, other_kind: Kind) -> list[Row]:
    """Run two kinds of streams in turn; return a row for each way of publishing."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anabranch-bench-")))
        local = LocalNetwork(folder)
        stack.push_async_callback(local.stop)
        await local.start(1, 0)
        nodes = [
            await stack.enter_async_context(
                connect(local.address, key=local.owner_key, key_store=folder / "keys.sqlite")
            )
            for _ in range(1 + READERS)
        ]
        kinds = {
            base: await prepare(base, base_kind, nodes, stack),
            other: await prepare(other, other_kind, nodes, stack),
        }
        rows: list[Row] = []
        for way, count, at_once in (("many", 20_000, 256), ("single", 400, 1)):
            spent: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(ROUNDS):
                for kind, (stream, readers) in kinds.items():
                    spent[kind].append(await spend(stream, readers, count, at_once))
            first, second = (statistics.median(spent[kind]) for kind in (base, other))
            rows.append(
                {
                    "way": way,
                    f"{base}_us_per_delivery": round(first, 2),
                    f"{other}_us_per_delivery": round(second, 2),
                    "ratio": round(second / first, 3),
                    "bar": BAR,
                }
            )
        return rows


def show(base: str, other: str, rows: list[Row], as_json: bool) -> None:
    """Print a line for each way of publishing."""
    for row in rows:
        if as_json:
            print(json.dumps(row))
        else:
            print(
                f"{row['way']:>7}: {base} {row[f'{base}_us_per_delivery']} us per delivery, "
                f"{other} {row[f'{other}_us_per_delivery']} us, ratio {row['ratio']} (bar {BAR})"
            )


def main() -> None:
    """Compare a private stream with a public one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    as_json = parser.parse_args().json
    rows = asyncio.run(measure("public", Kind(), "private", Kind(public=())))
    show("public", "private", rows, as_json)


if __name__ == "__main__":
    main()
