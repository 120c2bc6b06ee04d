"""Playing a small workload: every figure can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from anabranch.core.frames import build
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, stream_part
from anabranch.core.machine import Deliver, Draft
from anabranch.lab.playback import (
    QUIET_S,
    Deliveries,
    Network,
    grow,
    play,
    stands,
    wait_for_the_last,
)
from anabranch.lab.workload import Workload
from anabranch.sim.network import Constant, SimNode
from anabranch.sim.simulator import START_AT, Simulator

WORKLOAD = Workload(
    ("tea", "coffee", "lonely"),
    ((0, 1), (0, 1), (0,), (0, 2)),
    ((0, 0), (1, 1), (0, 0), (3, 2), (2, 0), (2, 1)),  # and the last has no taste for coffee
)
NEAR = Network("random-regular", 4, ordered=False, delay_ms=20, spread_ms=0, capacity=0)


def test_everybody_gets_what_it_subscribed_to_after_the_delay() -> None:
    played = play(WORKLOAD, NEAR, 0.5, "seed")
    wanted = WORKLOAD.expected()
    assert np.array_equal(~np.isnan(played.delays_s), wanted)
    assert played.published.all()
    assert played.disorder.tolist() == [0] * 6
    assert played.busiest == played.longest_wait_s == 0
    # Everybody is everybody's neighbour, but who publishes for the first time is not yet there.
    assert played.delays_s[:5][wanted[:5]] == pytest.approx(0.02, abs=1e-5)
    assert (played.delays_s[5][wanted[5]] > 0.03).all()


def test_packets_take_their_time_at_nodes_with_bounds() -> None:
    played = play(WORKLOAD, replace(NEAR, capacity=20), 0.5, "seed")
    first = np.sort(played.delays_s[0][WORKLOAD.expected()[0]])
    assert first[0] == pytest.approx(0.02 + 1 / 20, abs=1e-5)
    assert 0 < played.busiest < 1
    assert played.longest_wait_s > 0


def test_latency_is_spread_from_packet_to_packet() -> None:
    played = play(WORKLOAD, replace(NEAR, delay_ms=500, spread_ms=300), 0.5, "seed")
    delays_s = played.delays_s[:5][WORKLOAD.expected()[:5]]
    assert ((delays_s >= 0.2) & (delays_s <= 0.8)).all()
    assert len(set(delays_s.tolist())) == len(delays_s)


def test_a_run_follows_from_its_seed() -> None:
    far = replace(NEAR, delay_ms=500, spread_ms=300, capacity=20)
    first, again, other = (play(WORKLOAD, far, 0.5, seed).delays_s for seed in ("1", "1", "2"))
    assert np.array_equal(first, again, equal_nan=True)
    assert not np.array_equal(first, other, equal_nan=True)


def test_overlays_stand_while_all_subscribers_have_their_neighbours() -> None:
    cluster = grow(WORKLOAD, NEAR, "seed")
    assert stands(cluster, WORKLOAD, 4)
    for node in cluster.peers[1:3]:
        cluster.unsubscribe(node, cluster.parts[0])
    cluster.sim.run(cluster.sim.now + 5)
    assert not stands(cluster, WORKLOAD, 4)


def test_what_does_not_come_is_not_waited_for_for_ever() -> None:
    sim = Simulator(Constant(1), 1)
    wait_for_the_last(sim, Deliveries(WORKLOAD), 0)
    assert sim.now == START_AT
    wait_for_the_last(sim, Deliveries(WORKLOAD), 1)
    assert sim.now == START_AT + QUIET_S


# --- The observer, by hand ------------------------------------------------------------------

PART = stream_part("0x" + "11" * 20 + "/tea")
PART_KEY, CHAIN = PartKey(b"p" * 16), ChainKey(b"c" * 28)


class _Idle:
    wakeup_at = None

    def handle(self, event: object, now: float) -> list[object]:
        return []

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {}


def test_late_frames_and_second_copies_are_told_apart() -> None:
    seen = Deliveries(WORKLOAD)
    publisher, reader = (SimNode(NodeId(bytes([i]) * 20), i, _Idle()) for i in range(2))

    def made(event: int, number: int) -> Deliver:
        drafts = [(number, Draft(event.to_bytes(4)))]
        frame = build(PART_KEY, CHAIN, number - 1, drafts, lambda digest: bytes(64))
        head = FrameHead(PART_KEY, CHAIN, number - 1, number, number, 1)
        seen.published(publisher, head, frame, 10.0)
        return Deliver(PART, head, frame, 1)

    early, late = made(0, 5), made(2, 6)
    seen.handed(reader, late, 11.0)
    seen.handed(reader, early, 12.0)
    seen.handed(reader, late, 13.0)
    seen.handed(publisher, early, 10.0)  # its own is no delivery
    assert seen.count == 2
    assert (seen.at[2, 1], seen.at[0, 1]) == (11.0, 12.0)
    assert np.isnan(seen.at[0, 0])
    assert seen.disorder.tolist() == [1, 0, 0, 0, 0, 0]
    assert np.flatnonzero(~np.isnan(seen.published_at)).tolist() == [0, 2]
