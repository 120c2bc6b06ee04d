"""What a flood at a fixed rate takes when its publisher waits for nobody.

    python benchmarks/open_loop.py [--json] [--rate 5000] [--seconds 30]

Sixteen of our nodes in one process, as in flood.py. One of them has a message of 308 bytes due
every so often, whatever became of those before; the fifteen others receive through `async for`.
Delays are counted from when a message was due, not from when it left: if the publisher falls
behind, that is part of them. `cpu_share` is that of one core, of this process and the tracker's.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import suppress

import uvloop
from flooding.harness import (
    MEMBERS,
    PATIENCE_S,
    SATURATED,
    Board,
    Member,
    Row,
    cpu_s,
    make,
    members_here,
    percentile,
    warm_up,
)
from flooding.ours import Anabranch

RATE = 5_000  # messages a second
SECONDS = 30.0
TELL_EVERY_S = 5.0


async def offer(publisher: Member, rate: int, seconds: float) -> int:
    """Publish each message when it is due, or as soon after as we come to it."""
    every_ns, count = 1e9 / rate, int(rate * seconds)
    began_ns, told = time.perf_counter_ns(), 0
    sent = 0
    while sent < count:
        passed_ns = time.perf_counter_ns() - began_ns
        while sent < count and sent * every_ns <= passed_ns:
            await publisher.publish(make(SATURATED, began_ns + int(sent * every_ns)))
            sent += 1
        await asyncio.sleep((sent * every_ns - passed_ns) / 1e9)
        if passed_ns > (told + 1) * TELL_EVERY_S * 1e9:
            told += 1
            print(f"{sent:,} of {count:,} were due", file=sys.stderr)
    return sent


async def measure(rate: int, seconds: float) -> Row:
    """Offer messages at a rate; return how late all others had them."""
    board, system = Board(shared=False), Anabranch(single=False)
    delays: list[list[list[int]]] = [[[], [], []] for _ in range(MEMBERS)]
    async with members_here(system, board, delays) as publisher:
        await warm_up(publisher, board)
        pids = [os.getpid(), *system.helpers()]
        began, before = time.perf_counter(), cpu_s(pids)
        sent = await offer(publisher, rate, seconds)
        with suppress(TimeoutError):
            await asyncio.wait_for(board.wait_for(sent), PATIENCE_S)
        share = (cpu_s(pids) - before) / (time.perf_counter() - began)
    ordered = sorted(delay for each in delays[1:] for delay in each[SATURATED])
    return {
        "rate": rate,
        "seconds": seconds,
        "sent": sent,
        "complete": round(len(ordered) / (sent * (MEMBERS - 1)), 6),
        "p50_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "max_ms": percentile(ordered, 1.0),
        "cpu_share": round(share, 3),
    }


def main() -> None:
    """Measure one rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--rate", type=int, default=RATE, help="messages a second")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    row = uvloop.run(measure(options.rate, options.seconds))
    if options.json:
        print(json.dumps(row))
    else:
        print(
            f"{row['rate']:,} a second for {row['seconds']:g} s: {row['sent']:,} sent, "
            f"complete {row['complete']}; p50 {row['p50_ms']} p99 {row['p99_ms']} "
            f"max {row['max_ms']} ms; {row['cpu_share']} of a core"
        )


if __name__ == "__main__":
    main()
