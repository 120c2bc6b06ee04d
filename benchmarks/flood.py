"""A flood to sixteen nodes: ours beside brokers, networks of others, and the least that it takes.

    python benchmarks/flood.py [--json] [--only NAME] [--processes 1|16]

One publisher, fifteen receivers through `async for`, messages of 308 bytes, at most 256 under way;
all in one process, then each in one of its own, on loopback. First as fast as it goes, then 50 a
second. CPU is that of all processes that take part, a broker or tracker included. `verify_us` is
what checking one signature takes in this run; ours and the verifying mesh do that at every node.
At 50 a second every system takes turns with a verifying mesh, whose `mesh_p50_ms_at_50` is thus of
the same seconds.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import uvloop
from flooding import brokers, harness
from flooding.gossipsub import GossipSub
from flooding.harness import MEMBERS, SIZE, Row, System
from flooding.meshes import Mesh
from flooding.mqtt import Mosquitto
from flooding.ours import Anabranch
from flooding.streamr import Streamr
from flooding.yardstick import beside_mesh

from anabranch.core.frames import build, digest, signature
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.live.keys import new_key

CHECKED = 2_000  # signatures


def systems(only: str | None) -> Iterator[Callable[[], System]]:
    """Return how those are made that can be measured here, or the one that is asked for."""
    ours: list[Callable[[], System]] = [
        *(partial(Anabranch, single=True), partial(Anabranch, single=False)),
        *(partial(Mesh, signed=False), partial(Mesh, signed=True)),
    ]
    others = (brokers.Nats, brokers.Zenoh, Mosquitto, GossipSub, Streamr)
    names = [*(make().name for make in ours), *(other.name for other in others)]
    if only is not None and only not in names:
        sys.exit(f"there is no {only!r}: choose one of {'; '.join(names)}")
    yield from (make for make in ours if only in (None, make().name))
    for other in others:
        if only not in (None, other.name):
            continue
        if problem := other.problem():
            print(f"skipped: {other.name}: {problem}", file=sys.stderr)
        else:
            yield other


def verify_us() -> float:
    """Return how long it takes to check the signature of a frame of one message."""
    identity, _ = new_key()
    part, number = part_key(StreamPart("flood", 0)), number_of(int(time.time() * 1000), 0)
    drafts = [(number, Draft(os.urandom(SIZE), 0))]
    frame = build(part, chain_key(identity.node, 1), 0, drafts, identity.sign)
    known = KnownKeys()
    begin = time.process_time()
    for _ in range(CHECKED):
        assert known.verify(identity.node, digest(frame), signature(frame))
    return round((time.process_time() - begin) / CHECKED * 1e6, 1)


def show(row: Row) -> None:
    """Print a row for people."""
    print(
        f"{row['system']:>20} {row['processes']:>2} proc: {row['msg_s']:>7,} msg/s, "
        f"{row['cpu_us_per_delivery']:>7} us/delivery, p50 {row['p50_ms']} p99 {row['p99_ms']} ms; "
        f"at 50/s p50 {row['p50_ms_at_50']} p99 {row['p99_ms_at_50']} ms, "
        f"beside a verifying mesh's p50 {row['mesh_p50_ms_at_50']}; "
        f"complete {row['complete']}; a signature {row['verify_us']} us"
    )


def main() -> None:
    """Measure all that is asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--only", help="the system of this name")
    parser.add_argument("--processes", type=int, choices=(1, MEMBERS), help="only so")
    options = parser.parse_args()
    for make in systems(options.only):
        for run, processes in ((harness.run_here, 1), (harness.run_apart, MEMBERS)):
            if options.processes in (None, processes):
                before = verify_us()
                row = uvloop.run(beside_mesh(run, make()))
                row["verify_us"] = round((before + verify_us()) / 2, 1)
                print(json.dumps(row)) if options.json else show(row)


if __name__ == "__main__":
    main()
