"""Appends to a log until it is killed: `python appender.py FILE SEED`; see kills.py.

Each line it prints says how long the log was, and its hash, after a write that was acknowledged.
"""

import asyncio
import sys
from random import Random

from anabranch.core.machine import Write, Wrote
from anabranch.core.store import Order
from anabranch.live.storage.disk import LogDisk
from anabranch.live.storage.sqlite import SqliteLogStore
from live.storage.logs import Source
from machines import PART

UNDER_WAY = 8  # writes


async def append(path: str, seed: int) -> None:
    """Keep so many writes under way, for ever."""
    disk = LogDisk(SqliteLogStore(path))
    source = Source(Random(seed))
    source.count = seed * 1_000_000
    room = asyncio.Semaphore(UNDER_WAY)

    def done(event: Wrote) -> None:
        assert not event.problem, event.problem
        [state] = event.states
        sys.stdout.write(f"{state.length} {state.hash.hex()}\n")
        sys.stdout.flush()
        room.release()

    token = 0
    while True:
        await room.acquire()
        token += 1
        frames = source.frames(source.rng.randrange(1, 40))
        disk.write(Write(token, (Order(PART, 1, 1, frames),)), done)


if __name__ == "__main__":
    asyncio.run(append(sys.argv[1], int(sys.argv[2])))
