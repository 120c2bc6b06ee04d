"""One message from every node: flooded by the machines in `sim/`, or by the kernels.

Both give the same figures on the same topology, to the last bit of delays and hops. The machines
are what ships, and leave traces; the kernels have time for thousands of nodes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anabranch.core.ids import FrameHead, NodeId
from anabranch.lab.experiment import Progress, unseen
from anabranch.lab.kernels import duplicates_of, from_all
from anabranch.lab.topologies import (
    LOOK_EVERY_S,
    PATIENCE_S,
    Topology,
    instants,
    links_of,
    rtts_of,
)
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Observer, SimNode, Underlay
from anabranch.sim.simulator import START_AT
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

CONTENT = bytes(64)  # the paper's messages have less than 100 bytes
SPACING_S = 0.01  # between two messages; lanes have no queues, so they cannot delay each other
CLOCK_DIGITS = 6  # of a second: the steps of the simulator's clock are not much finer


@dataclass(frozen=True)
class Flood:
    """What one repeat measured: row publisher, column subscriber, the diagonal left out."""

    delays_s: NDArray[np.float64]
    hops: NDArray[np.uint8]
    duplicates: float  # frames that came to a node and were not the first, per message
    estimated_s: float  # the mean delay as a tracker would predict it (section V-C.6)
    links: NDArray[np.int64]  # the topology


class Deliveries(Observer):
    """Notes delay and hops of every delivery but the publisher's own."""

    def __init__(self, peers: Sequence[SimNode]) -> None:
        self._places: dict[NodeId, int] = {node.id: node.place for node in peers}
        self.delays_s = np.zeros((len(peers), len(peers)))
        self.hops = np.zeros((len(peers), len(peers)), dtype=np.uint8)  # as in a route
        self.count = 0

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        """A node handed a frame to its application."""
        if node.id != head.publisher:
            pair = self._places[head.publisher], node.place
            self.delays_s[pair] = delay_s
            self.hops[pair] = hops
            self.count += 1


def flood(cluster: Cluster, topology: Topology, progress: Progress = unseen) -> Flood:
    """Let each node publish one message; return when everybody has them all."""
    sim, nodes = cluster.sim, len(cluster.peers)
    wanted = nodes * (nodes - 1)
    links, sent = links_of(cluster), sim.sent_frames
    seen = sim.observer = Deliveries(cluster.peers)
    for number, node in enumerate(cluster.peers, 1):
        cluster.publish(node, cluster.parts[0], [CONTENT])
        sim.run(sim.now + SPACING_S)
        progress(number / nodes)
    give_up_at = sim.now + PATIENCE_S
    while seen.count < wanted and sim.now < give_up_at:
        sim.run(sim.now + LOOK_EVERY_S)
    sim.run(sim.now + LOOK_EVERY_S)
    sim.observer = None
    assert seen.count == wanted, f"{seen.count} deliveries, not {wanted}"
    assert links_of(cluster) == links, "the overlay changed while it was measured"
    duplicates = (sim.sent_frames - sent - wanted) / (nodes * nodes)
    delays_s = np.round(seen.delays_s, CLOCK_DIGITS)
    return Flood(delays_s, seen.hops, duplicates, topology.estimate_s(), topology.links())


def flood_on_arrays(topology: Topology, begin_at: float = START_AT) -> Flood:
    """Compute what `flood` measures if it begins at that time."""
    graph = topology.graph()
    delays_s, hops = from_all(graph, instants(begin_at, graph.nodes, SPACING_S))
    assert np.isfinite(delays_s).all(), "the overlay is not connected"
    duplicates = sum(duplicates_of(graph, source) for source in range(graph.nodes))
    return Flood(
        np.round(delays_s, CLOCK_DIGITS),
        hops.astype(np.uint8),
        duplicates / graph.nodes**2,
        topology.estimate_s(),
        topology.links(),
    )


# --- Traces ---------------------------------------------------------------------------------


@contextmanager
def recording(path: Path | None) -> Iterator[Recorder | None]:
    """Give a recorder if traces are wanted; the file appears when it is whole."""
    if path is None:
        yield None
        return
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with TraceWriter(unfinished) as writer:
            yield Recorder(writer.write)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def describe(cluster: Cluster, underlay: Underlay, recorder: Recorder) -> None:
    """Record what is there before the first message, and from now on all that happens."""
    sim, part = cluster.sim, cluster.parts[0]
    recorder.name_part(part)
    for node in cluster.peers:
        recorder.subscribed(START_AT, node.id, part, True)  # as `grow` let them
    for (node_id, peer_id), rtt_s in rtts_of(cluster, underlay).items():
        recorder.rtt(sim.now, node_id, peer_id, rtt_s)
    for node in cluster.peers:
        for peer in cluster.peers:
            if peer is not node:
                direct_s = underlay.delay_s(node.place, peer.place)
                recorder.unicast(sim.now, node.id, peer.id, direct_s)
    sim.record(recorder)
    cluster.snapshot()
