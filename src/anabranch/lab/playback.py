"""Plays a workload in a simulated network, and notes which event came to whom, and when."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anabranch.core.frames import messages
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey
from anabranch.core.machine import Deliver, Draft
from anabranch.lab.experiment import Progress, unseen
from anabranch.lab.kernels import Ints
from anabranch.lab.topologies import links_between
from anabranch.lab.workload import Workload
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Observer, PacketFaults, SimNode
from anabranch.sim.simulator import Simulator
from anabranch.sim.stored_cluster import StoredCluster

CONTENT_BYTES = 256  # of every event, about a comment's
SERVER_TIMES = 10  # the capacity over a node's of trackers and storage nodes, who have all topics
LOOK_EVERY_S = 1.0
SETTLED_AFTER_LOOKS = 3
PATIENCE_S = 600.0  # simulated, for the overlays to stand
QUIET_S = 60.0  # when nothing has come for so long, nothing more will


@dataclass(frozen=True)
class Network:
    """How a network is made: its overlays, what lies between the nodes, and what they can do."""

    overlay: str
    degree: int
    ordered: bool  # with storage nodes, from which readers, who read in order, fill gaps
    delay_ms: float
    spread_ms: float  # uniform, more or less, for every packet; packets keep their order
    capacity: float  # packets that a node takes in a second, one after the other; 0: any number


@dataclass(frozen=True)
class Played:
    """What came of a workload: a row for each event, a column for each node."""

    workload: Workload
    delays_s: NDArray[np.float64]  # from publishing to delivery; nan where it was not delivered
    published: NDArray[np.bool_]  # of each event, whether its publisher let it go
    disorder: NDArray[np.int64]  # how often each came after a later one of its publisher's topic
    busiest: float  # share of its time in which the node with most to do was busy
    longest_wait_s: float  # of a packet for its turn, at any node
    links: list[Ints]  # of each topic, before the first event: each once


class Deliveries(Observer):
    """Notes when which node first gets which event."""

    def __init__(self, workload: Workload) -> None:
        shape = len(workload.events), workload.nodes
        self.at = np.full(shape, np.nan)
        self.published_at = np.full(shape[0], np.nan)
        self.count = 0
        self.disorder = np.zeros(shape[0], dtype=np.int64)
        self._publishers = [node for node, _ in workload.events]
        self._events: dict[tuple[PartKey, ChainKey, int], list[int]] = {}  # by a frame's last
        self._newest: dict[tuple[NodeId, PartKey, ChainKey], int] = {}

    def published(self, node: SimNode, head: FrameHead, frame: bytes, now: float) -> None:
        """A node made a frame."""
        events = [int.from_bytes(message.content[:4]) for message in messages(frame)]
        self._events[head.part, head.chain, head.last] = events
        self.published_at[events] = now

    def handed(self, node: SimNode, deliver: Deliver, now: float) -> None:
        """A node handed a frame to its application."""
        head, place = deliver.head, node.place
        chain = node.id, head.part, head.chain
        events = self._events[head.part, head.chain, head.last]
        if head.last < self._newest.get(chain, 0):
            self.disorder[events] += 1
        else:
            self._newest[chain] = head.last
        for event in events:
            if self._publishers[event] != place and math.isnan(self.at[event, place]):
                self.at[event, place] = now
                self.count += 1


def play(
    workload: Workload,
    network: Network,
    every_s: float,
    seed: str,
    progress: Progress = unseen,
) -> Played:
    """Let everybody subscribe, then publish an event every so often, and wait for the last."""
    cluster = grow(workload, network, seed)
    sim = cluster.sim
    seen = sim.observer = Deliveries(workload)
    begun_at, taken = sim.now, [node.taken for node in cluster.peers]
    links = [links_between(cluster, part) for part in cluster.parts]
    for event, (node, topic) in enumerate(workload.events):
        sim.run(begun_at + event * every_s)
        content = event.to_bytes(4).ljust(CONTENT_BYTES, b"\0")
        cluster.offer(cluster.peers[node], cluster.parts[topic], [Draft(content, ticket=event)])
        progress((event + 1) / len(workload.events))
    wait_for_the_last(sim, seen, int(workload.expected().sum()))
    busy_s = [
        (node.taken - before) * node.packet_s
        for node, before in zip(cluster.peers, taken, strict=True)
    ]
    injected_at = begun_at + every_s * np.arange(len(workload.events))
    return Played(
        workload,
        seen.at - injected_at[:, np.newaxis],
        ~np.isnan(seen.published_at),
        seen.disorder,
        max(busy_s) / max(sim.now - begun_at, every_s),
        max(node.longest_wait_s for node in cluster.peers),
        links,
    )


def wait_for_the_last(sim: Simulator, seen: Deliveries, wanted: int) -> None:
    """Go on until everything has come, or nothing comes any more."""
    count, quiet_since = seen.count, sim.now
    while seen.count < wanted and sim.now < quiet_since + QUIET_S:
        sim.run(sim.now + LOOK_EVERY_S)
        if seen.count > count:
            count, quiet_since = seen.count, sim.now


def grow(workload: Workload, network: Network, seed: str) -> Cluster:
    """Let all nodes subscribe at once; return when the overlays of all topics stand."""
    sim = Simulator(Constant(network.delay_ms), seed)
    sim.faults = PacketFaults(spread_ms=network.spread_ms, in_order=True)
    make = StoredCluster if network.ordered else Cluster
    size = workload.nodes, len(workload.topics)
    cluster = make(sim, seed, *size, overlay=network.overlay, degree=network.degree)
    if network.capacity:
        sim.inboxes.bound(cluster.peers, network.capacity)
        servers = [*cluster.trackers, *cluster.storage]
        sim.inboxes.bound(servers, network.capacity * SERVER_TIMES)
    for node, mine in zip(cluster.peers, workload.subscriptions, strict=True):
        for topic in mine:
            cluster.subscribe(node, cluster.parts[topic])
    give_up_at, standing = sim.now + PATIENCE_S, 0
    while sim.now < give_up_at:
        sim.run(sim.now + LOOK_EVERY_S)
        standing = standing + 1 if stands(cluster, workload, network.degree) else 0
        if standing == SETTLED_AFTER_LOOKS:
            return cluster
    raise RuntimeError(f"the overlays do not stand after {PATIENCE_S:.0f} simulated seconds")


def stands(cluster: Cluster, workload: Workload, degree: int) -> bool:
    """Tell whether all members have their neighbours, but for one where the sum is odd."""
    for topic, subscribers in enumerate(workload.subscribers()):
        members = [cluster.peers[place] for place in np.flatnonzero(subscribers)]
        members += cluster.storage
        full = min(degree, len(members) - 1)
        near = [len(cluster.neighbours(node, cluster.parts[topic])) for node in members]
        if sum(full - count for count in near if count < full) > len(members) * full % 2:
            return False
    return True
