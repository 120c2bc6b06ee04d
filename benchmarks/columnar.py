"""How fast stored messages come out as Arrow columns: over loopback, from a server in one process
to a reader in another, beside a bare loop that reads the same rows from the same file with the
standard library's sqlite3 and ships nothing. The two take turns, in one run.

    python benchmarks/columnar.py [--json]

`single`: frames of one message each; `many`: frames of 32. Messages have 308 bytes. `frames` is
the form for readers who open and verify the frames themselves.
"""

import argparse
import asyncio
import json
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from anabranch.core.changes import Right
from anabranch.core.frames import build
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import NodeId, StreamPart, chain_key, number_of, part_key, stream_part
from anabranch.core.machine import Draft
from anabranch.core.store import Order, Settle
from anabranch.live.loop import run
from anabranch.live.storage.columnar import read_batches
from anabranch.live.storage.disk import LogDisk
from anabranch.live.storage.http import StorageHttp
from anabranch.live.storage.ranges import LogStatus
from anabranch.live.storage.sqlite import SqliteLogStore

MESSAGES = 200_000
SIZE = 308
CHAINS = 16
ROUNDS = 5
BATCH = 512  # frames that are written at a time
BAR = 200_000  # messages a second, of either kind

OWNER = "0x" + "ab" * 20
PARTS = {1: stream_part(f"{OWNER}/single"), 32: stream_part(f"{OWNER}/many")}
NODE = NodeId(b"s" * 20)


def frames_of(part: StreamPart, each: int) -> Iterator[bytes]:
    """Make the frames of a part; signatures are not looked at here, so there are none."""
    chains = [chain_key(NodeId(bytes([n]) * 20), n) for n in range(CHAINS)]
    number, previous = number_of(1_700_000_000_000, 0), dict.fromkeys(chains, 0)
    for place in range(MESSAGES // each):
        chain = chains[place % CHAINS]
        drafts = []
        for _ in range(each):
            number += number_of(1, 0)
            drafts.append((number, Draft(number.to_bytes(8) + bytes(SIZE - 8), 0)))
        yield build(part_key(part), chain, previous[chain], drafts, lambda digest: bytes(64))
        previous[chain] = number


def fill(path: Path) -> None:
    """Write the logs."""
    store = SqliteLogStore(path)
    for each, part in PARTS.items():
        frames = list(frames_of(part, each))
        for at in range(0, len(frames), BATCH):
            store.write([[Order(part, 1, at, tuple(frames[at : at + BATCH]))]])
        store.write([[Settle(part, MESSAGES)]])
    store.close()


class Everybody:
    """A registry by which everybody may read everything."""

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return True


class Stand(msgspec.Struct, frozen=True):
    """How a log stands."""

    start: int = 0
    high: int = MESSAGES
    length: int = MESSAGES
    held: int = 0
    epoch: int = 1
    primary: NodeId | None = NODE


async def serve(path: Path, told: Connection) -> None:
    """Serve the logs, until the other end of the pipe says so."""
    disk = LogDisk(SqliteLogStore(path))

    def status(part: StreamPart) -> LogStatus | None:
        return Stand() if part in PARTS.values() else None

    http = StorageHttp(
        NODE,
        b"n" * 32,
        Everybody(),
        disk.look_up,
        status,
        PARTS.values,
        time.time,
        KnownKeys().verify,
    )
    await http.start()
    told.send(http.address)
    await asyncio.to_thread(told.recv)
    await http.stop()
    await disk.close()


def serve_in_process(path: Path, told: Connection) -> None:
    """Run the server."""
    run(serve(path, told))


def read_columns(address: str, part: StreamPart, form: str) -> float:
    """Return how long it takes until all columns are here."""
    began = time.perf_counter()
    with read_batches(address, part.stream, part.partition, form=form) as batches:
        counts = [
            batch.num_rows if form == "messages" else sum(batch.column("count").to_pylist())
            for batch in batches
        ]
    took = time.perf_counter() - began
    assert sum(counts) == MESSAGES
    return took


def read_bare(path: Path, part: StreamPart) -> float:
    """Return how long it takes to have the same frames in hand."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    began = time.perf_counter()
    rows = database.execute(
        "SELECT offset, frames.epoch, placed_ms, count, frame FROM frames "
        "JOIN parts ON parts.id = frames.part WHERE stream = ? AND offset IS NOT NULL "
        "ORDER BY offset",
        (part.stream,),
    )
    found = 0
    while page := rows.fetchmany(2_048):
        found += sum(row[3] for row in page)
    took = time.perf_counter() - began
    database.close()
    assert found == MESSAGES
    return took


def measure(path: Path, address: str) -> Iterator[dict[str, object]]:
    """Let the two take turns; return a row for each kind of frames and each form."""
    for each, part in PARTS.items():
        for form in ("messages", "frames"):
            ours, bare = [], []
            for _ in range(ROUNDS):
                ours.append(read_columns(address, part, form))
                bare.append(read_bare(path, part))
            yield {
                "frames": "single" if each == 1 else "many",
                "form": form,
                "messages_per_s": round(MESSAGES / statistics.median(ours)),
                "bare_messages_per_s": round(MESSAGES / statistics.median(bare)),
                "ratio": round(statistics.median(bare) / statistics.median(ours), 3),
                "bar": BAR,
            }


def main() -> None:
    """Print a line for each kind of frames and each form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        path = Path(folder, "logs.sqlite")
        fill(path)
        here, there = multiprocessing.Pipe()
        spawning = multiprocessing.get_context("spawn")
        server = spawning.Process(target=serve_in_process, args=(path, there), daemon=True)
        server.start()
        for row in measure(path, here.recv()):
            if as_json:
                print(json.dumps(row), flush=True)
            else:
                print(
                    f"{row['frames']:>7} as {row['form']:8}: {row['messages_per_s']:,} messages/s, "
                    f"a bare loop {row['bare_messages_per_s']:,}, ratio {row['ratio']} "
                    f"(bar {BAR:,} messages/s)",
                    flush=True,
                )
        here.send("enough")
        server.join()


if __name__ == "__main__":
    main()
