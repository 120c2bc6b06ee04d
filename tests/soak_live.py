"""Runs a live network for minutes: `python tests/soak_live.py --seconds 60`; see `make soak`.

It finds the most that a network of processes on this machine carries, keeps it at four fifths of
that, asks for half as much again as it carries, and lets nodes come and go by the thousand; and it
emulates a small network with delays. One JSON object per phase; the exit code is 1 if anything was
lost or dropped, memory grew, or a bar about time was missed: those are for a machine at rest, so
that they stand here and not in the tests.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from anabranch.lab import emulator
from anabranch.lab.emulator import emulate
from anabranch.lab.experiment import Params, Unit
from anabranch.live.load import Load, Outcome, load_network, measure
from anabranch.live.local import LocalNetwork
from anabranch.live.loop import run
from anabranch.live.stream import Stream
from anabranch.sim.network import Constant
from live.cycles import growth_bytes, join_and_leave, subscribe_and_leave
from live.networks import LiveNetwork, live_network
from live.test_node_memory import (
    CONSTANT_BYTES,
    RECONNECTS,
    SUBSCRIPTIONS,
    quiet,
    steady_stream,
)

FIND_S = 5.0  # how long the network is driven as hard as it goes, to learn how hard that is
SHARE = 0.8
OVERLOAD = 1.5
GROWTH_BYTES, GROWTH_SHARE = 20 << 20, 0.1  # by which a process may be larger at the end
MIN_PER_S = 500  # messages that the network carries at least
MIN_STRETCH = 1.3  # times longer than it should last: an overload that slows the publisher
NODES, DELAY_MS = 3, 40.0  # of the emulated network
KEY_BYTES = 512  # of each node that has been here its key is remembered, up to ten thousand

Row = dict[str, Any]


def rss_bytes(pid: int) -> int:
    """Return how much memory a process has, as Linux tells it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory")


async def carry(streams: Sequence[Stream], local: LocalNetwork, load: Load) -> tuple[Outcome, Row]:
    """Put a load on a network; return what became of it, and everyone's memory before and after."""
    processes = {"publishers": os.getpid()}
    processes |= {child.name: child.pid for child in (*local.trackers, *local.nodes)}
    before = {name: rss_bytes(pid) for name, pid in processes.items()}
    outcome = await measure(streams, local.nodes, load)
    memory = {name: [before[name], rss_bytes(pid)] for name, pid in processes.items()}
    return outcome, memory


def grown(memory: Row) -> list[str]:
    """Return which processes have grown by more than they may."""
    return [
        f"{name} grew from {before:,} to {after:,} bytes"
        for name, (before, after) in memory.items()
        if after > before * (1 + GROWTH_SHARE) + GROWTH_BYTES
    ]


def faults(outcome: Outcome, memory: Row) -> list[str]:
    """Return what went wrong under a load."""
    counted = {
        "lost": outcome.expected - outcome.delivered,
        "dropped": outcome.dropped,
        "not published": outcome.failed,
    }
    wrong = [f"{count} {name}" for name, count in counted.items() if count]
    return wrong + grown(memory)


def tell(phase: str, wrong: list[str], **row: Any) -> list[str]:
    """Print what a phase came to."""
    print(json.dumps({"phase": phase, **row, "wrong": wrong}), flush=True)
    return [f"{phase}: {text}" for text in wrong]


async def soak_load(publishers: int, subscribers: int, seconds: float, over: float) -> list[str]:
    """Find the maximum; stay below it for long, then above it for a while."""
    async with load_network(publishers, subscribers) as (streams, local):
        wrong = []
        most, memory = await carry(streams, local, Load(duration_s=FIND_S))
        # While memory is new to a process it may well grow.
        bad = faults(most, {})
        if most.published_per_s < MIN_PER_S:
            bad.append(f"{most.published_per_s:.0f} messages a second, fewer than {MIN_PER_S}")
        wrong += tell("maximum", bad, **msgspec.structs.asdict(most), rss=memory)
        for share, duration_s in ((SHARE, seconds), (OVERLOAD, over)):
            rate = most.published_per_s * share
            outcome, memory = await carry(streams, local, Load(rate=rate, duration_s=duration_s))
            row = {"offered_per_s": round(rate, 1), "offered_s": duration_s}
            row |= {"lost": outcome.expected - outcome.delivered, "rss": memory}
            row |= msgspec.structs.asdict(outcome)
            bad = faults(outcome, memory)
            if share == OVERLOAD and outcome.seconds < MIN_STRETCH * duration_s:
                bad.append(f"over after {outcome.seconds:.1f} s: the publisher was not slowed")
            wrong += tell(f"{share:.0%} of it", bad, **row)
    return wrong


def soak_emulation() -> list[str]:
    """Emulate a network of a few nodes: a message takes its link and little more."""
    emulator.MEASURING_S = 1.0
    found = emulate(Unit(Params((NODES,), degree=2), NODES), Constant(DELAY_MS), lambda done: None)
    median_ms = float(np.nanmedian(1000 * found.delays_s[~np.eye(NODES, dtype=bool)]))
    measured = {"median_ms": median_ms, "estimated_ms": 1000 * found.estimated_s}
    wrong = [f"{name} {ms:.1f}" for name, ms in measured.items() if ms >= 2 * DELAY_MS]
    return tell("emulation", wrong, **measured)


async def soak_cycles(times: int) -> list[str]:
    """Let subscriptions and nodes come and go, so many times as often as the tests do."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="anabranch-soak-") as folder:
        async with live_network(Path(folder)) as live:
            node, stream = await steady_stream(live)
            guest = await live.join()
            wrong += await _cycle(
                "subscriptions",
                SUBSCRIPTIONS * times,
                0,
                lambda count: subscribe_and_leave(stream, guest, count),
                lambda: quiet(live, [node, guest], 1),
            )
        async with live_network(Path(folder, "again")) as live:
            wrong += await _reconnect(live, RECONNECTS * times)
    return wrong


async def _reconnect(live: LiveNetwork, cycles: int) -> list[str]:
    node, stream = await steady_stream(live)
    return await _cycle(
        "reconnects",
        cycles,
        KEY_BYTES,
        lambda count: join_and_leave(live, stream, count),
        lambda: quiet(live, [node], 1),
    )


async def _cycle(
    phase: str,
    cycles: int,
    bytes_each: int,
    again: Callable[[int], Awaitable[None]],
    calm: Callable[[], bool],
) -> list[str]:
    growth = await growth_bytes(again, cycles, calm)
    allowed = CONSTANT_BYTES + bytes_each * cycles
    wrong = [f"memory grew by {growth:,} bytes"] if growth > allowed else []
    return tell(phase, wrong, cycles=cycles, growth_bytes=growth, allowed_bytes=allowed)


def main() -> int:
    """Run every phase; print each, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="at four fifths")
    parser.add_argument("--over-seconds", type=float, default=10.0, help="at half as much again")
    parser.add_argument("--publishers", type=int, default=1)
    parser.add_argument("--subscribers", type=int, default=4)
    parser.add_argument("--cycles", type=int, default=10, help="times those of the tests; 0: none")
    options = parser.parse_args()
    wrong = run(
        soak_load(options.publishers, options.subscribers, options.seconds, options.over_seconds)
    )
    wrong += soak_emulation()
    if options.cycles:
        wrong += run(soak_cycles(options.cycles))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
