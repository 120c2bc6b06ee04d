"""The machine alone: what a Peer costs per message it delivers, without sockets and signatures.

    python benchmarks/peer.py [--json]

A node with four neighbours gets every frame from one of them first and then from two others, and
sends it on to three. `ratio` compares it with the least that can be called a flood, in the same
run: a dictionary of what was seen, and a list per neighbour. Packets come one by one or in batches,
as they do over WebSockets; a frame holds one message or many. This is the gate for changes to the
hot path: it fails if a ratio is above its limit, and machines that drift do not move a ratio much.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from anabranch.core import codec, frames
from anabranch.core.frames import HEAD, build
from anabranch.core.identity import CheapKeys
from anabranch.core.ids import NodeId, chain_key, next_number, part_key, show, stream_part
from anabranch.core.machine import Deliver, Draft, LinkUp, Received, ReceivedBatch, Subscribe
from anabranch.core.messages import Contact, Instruction, Meet
from anabranch.core.overlay import PartSettings
from anabranch.core.packets import Packets
from anabranch.core.peer import Peer
from anabranch.overlays import OVERLAYS
from anabranch.overlays.random_regular import RandomRegular

NOW = 1_767_225_600.0
SIZE = 308
FRAMES = 4_000
REPEATS = 7  # of which the fastest counts
COPIES = 2  # of every frame, after the first
KEYS = CheapKeys()
SIGNER, PUBLISHER = (KEYS.identity(name) for name in (b"node", b"publisher"))
TRACKER, *NEIGHBOURS = (KEYS.identity(b"other %d" % i).node for i in range(5))
PART = stream_part(f"{show(PUBLISHER.node)}/flood")
# Packets in a batch, messages in a frame, and how many bare loops a Peer may cost.
CASES = ((1, 1, 5.0), (32, 1, 9.0), (32, 32, 3.0))

Batches = Sequence[ReceivedBatch]


def ready_peer() -> Peer:
    """Return a Peer that has four neighbours and a subscription."""
    rng = random.Random(1)
    settings = PartSettings(trackers=(Contact(TRACKER, ""),))
    peer = Peer(
        *(SIGNER, lambda publisher, digest, signature: True),
        *({PART: settings}.get, OVERLAYS, rng, rng.randbytes),
    )
    instruction = Instruction(PART, 1, tuple(Contact(n, "memory:") for n in NEIGHBOURS), ())
    peer.handle(Subscribe(PART), NOW)
    for event in (LinkUp(TRACKER), Received(TRACKER, codec.encode(instruction))):
        peer.handle(event, NOW)
    for neighbour in NEIGHBOURS:
        peer.handle(LinkUp(neighbour), NOW)
        peer.handle(Received(neighbour, codec.encode(Meet(PART, True, 0))), NOW)
    assert len(peer.neighbours(PART)) == len(NEIGHBOURS)
    return peer


def packets(per_frame: int) -> Iterator[bytes]:
    """Make the frames of one chain, as they come over a link."""
    number, chain = 0, chain_key(PUBLISHER.node, 1)
    carry = codec.carry_head(RandomRegular.code, b"\2")
    for _ in range(FRAMES):
        previous, drafts = number, []
        for _ in range(per_frame):
            number = next_number(number, int(NOW * 1000))
            drafts.append((number, Draft(bytes(SIZE))))
        yield carry + build(part_key(PART), chain, previous, drafts, PUBLISHER.sign)


def arrivals(made: Sequence[bytes], in_batch: int) -> Batches:
    """Let every batch come from one neighbour first, and then from two others."""
    return [
        ReceivedBatch(
            NEIGHBOURS[(turn + copy) % len(NEIGHBOURS)], Packets.of(made[at : at + in_batch])
        )
        for turn, at in enumerate(range(0, len(made), in_batch))
        for copy in range(1 + COPIES)
    ]


def run_peer(came: Batches) -> float:
    """Let a Peer take all of it; return the seconds."""
    peer, delivered = ready_peer(), 0
    begin = time.process_time()
    for event in came:
        for effect in peer.handle(event, NOW):
            if type(effect) is Deliver:
                delivered += 1
    spent = time.process_time() - begin
    assert delivered == FRAMES, delivered
    return spent


def run_bare(came: Batches) -> float:
    """Let a dictionary and lists do it; return the seconds."""
    seen: dict[bytes, None] = {}
    queues: dict[NodeId, list[bytes]] = {neighbour: [] for neighbour in NEIGHBOURS}
    delivered: list[bytes] = []
    begin = time.process_time()
    for event in came:
        for packet in event.packets:
            name = packet[5 : 5 + HEAD.size]
            if name in seen:
                continue
            seen[name] = None
            delivered.append(packet)
            for neighbour, queue in queues.items():
                if neighbour != event.sender:
                    queue.append(packet)
    spent = time.process_time() - begin
    assert len(delivered) == FRAMES
    return spent


def fastest(run: Callable[[Batches], float], came: Batches) -> float:
    """Return the microseconds per frame of the fastest of some runs."""
    return min(run(came) for _ in range(REPEATS)) / FRAMES * 1e6


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    as_json, failed = parser.parse_args().json, False
    frames.proof = lambda frame: (b"", b"")  # what is signed is not hashed either
    for in_batch, per_frame, limit in CASES:
        came = arrivals(list(packets(per_frame)), in_batch)
        peer_us, bare_us = fastest(run_peer, came), fastest(run_bare, came)
        ratio = peer_us / bare_us
        failed = failed or ratio > limit
        row = {
            "packets_in_batch": in_batch,
            "messages_in_frame": per_frame,
            "us_per_delivery": round(peer_us / per_frame, 3),
            "bare_us_per_delivery": round(bare_us / per_frame, 3),
            "ratio": round(ratio, 2),
            "limit": limit,
        }
        print(
            json.dumps(row)
            if as_json
            else f"{in_batch:>3} packets in a batch, {per_frame:>3} messages in a frame: "
            f"{row['us_per_delivery']} us per delivery, {1 + COPIES} copies each; "
            f"bare {row['bare_us_per_delivery']}; ratio {row['ratio']}, at most {limit}"
        )
    if failed:
        sys.exit("the machine has become slower than its limit")


if __name__ == "__main__":
    main()
