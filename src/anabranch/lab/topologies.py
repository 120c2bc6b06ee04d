"""Topologies: grown by the machines that ship in `sim/`, and taken as arrays for the kernels."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from anabranch.core.ids import NodeId, StreamPart
from anabranch.lab.kernels import Floats, Graph, Ints, from_all, graph_of
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Underlay
from anabranch.sim.simulator import Simulator

LOOK_EVERY_S = 1.0
PATIENCE_S = 60.0  # simulated, for the overlay to settle

Neighbours = dict[NodeId, tuple[NodeId, ...]]


def grow(
    underlay: Underlay,
    nodes: int,
    degree: int,
    overlay: str,
    seed: str,
    processing_s: float = 0.0,
    learning_s: float = 0.0,
    disguises: Mapping[int, str] = MappingProxyType({}),
) -> Cluster:
    """Let all nodes subscribe at once; return when the overlay has settled, and has learned.

    `disguises` says which nodes misbehave, and how.
    """
    sim = Simulator(underlay, seed, processing_s=processing_s)
    cluster = Cluster(sim, seed, nodes, overlay=overlay, degree=degree, disguises=disguises)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    give_up_at = sim.now + PATIENCE_S
    links = links_of(cluster)
    while sim.now < give_up_at:
        sim.run(sim.now + LOOK_EVERY_S)
        # Neighbours on their way out still count until their successors stand, so the right
        # number of them may be a coincidence; that nothing has moved since the last look is not.
        before, links = links, links_of(cluster)
        if links == before and is_regular(links, degree, {node.id for node in cluster.honest}):
            sim.run(sim.now + learning_s)
            return cluster
    raise RuntimeError(f"{nodes} nodes have not settled after {PATIENCE_S:.0f} simulated seconds")


def links_of(cluster: Cluster) -> Neighbours:
    """Return everybody's neighbours."""
    return {node.id: cluster.neighbours(node, cluster.parts[0]) for node in cluster.peers}


def is_regular(links: Neighbours, degree: int, honest: Container[NodeId] | None = None) -> bool:
    """Tell whether every link is known to both ends and no slot is unused that could be used.

    The slots of other than `honest` nodes may stay empty: a node that rejects many neighbours gets
    no others. Then one slot of the honest nodes may be left over, whatever the number of nodes is.
    """
    full = min(degree, len(links) - 1)
    counted = [near for node, near in links.items() if honest is None or node in honest]
    unused = sum(full - len(near) for near in counted)
    odd = len(links) * full % 2
    fits = unused == odd if len(counted) == len(links) else unused <= 1
    return fits and all(node in links[peer] for node, near in links.items() for peer in near)


def rtts_of(cluster: Cluster, underlay: Underlay) -> dict[tuple[NodeId, NodeId], float]:
    """Return the round trips between neighbours, as both ends measured them."""
    place = {node.id: node.place for node in cluster.peers}
    return {
        (node, peer): underlay.delay_s(place[node], place[peer])
        + underlay.delay_s(place[peer], place[node])
        for node, near in links_of(cluster).items()
        for peer in near
    }


def links_between(cluster: Cluster, part: StreamPart) -> Ints:
    """Return every link of a part between two nodes once, by places, the smaller one first."""
    place = {node.id: node.place for node in cluster.peers}
    found = [
        (node.place, place[peer])
        for node in cluster.peers
        for peer in cluster.neighbours(node, part)
        if node.place < place.get(peer, -1)
    ]
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True)
class Topology:
    """Who is whose neighbour, where the order is that of sending, over an underlay."""

    neighbours: list[list[int]]
    underlay: Underlay
    processing_s: float = 0.0

    def graph(self) -> Graph:
        """Return it with the delay of every hop."""
        delay_s, more_s = self.underlay.delay_s, self.processing_s
        return graph_of(
            self.neighbours,
            [[delay_s(a, b) + more_s for b in near] for a, near in enumerate(self.neighbours)],
        )

    def links(self) -> Ints:
        """Return every link once, the smaller end first, in order."""
        found = [(a, b) for a, near in enumerate(self.neighbours) for b in near if a < b]
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)

    def estimate_s(self) -> float:
        """Return what a tracker predicts for the mean delay between two nodes.

        It knows of each link half the round trip, to the microsecond: see core/prediction.py.
        """
        delay_s, nodes = self.underlay.delay_s, len(self.neighbours)
        halves_s = [
            [round(1e6 * (delay_s(a, b) + delay_s(b, a))) / 2e6 for b in near]
            for a, near in enumerate(self.neighbours)
        ]
        predicted_s, _ = from_all(graph_of(self.neighbours, halves_s))
        return float(predicted_s.sum()) / (nodes * (nodes - 1))


def topology_of(cluster: Cluster, underlay: Underlay, processing_s: float = 0.0) -> Topology:
    """Take a cluster's topology as it stands: the links that both ends know."""
    place = {node.id: node.place for node in cluster.peers}
    links = links_of(cluster)
    neighbours = [
        [place[peer] for peer in near if node in links.get(peer, ())]
        for node, near in links.items()
    ]
    return Topology(neighbours, underlay, processing_s)


def instants(begin_at: float, count: int, every_s: float) -> Floats:
    """Return when so many messages are published, one after the other, as a clock shows it."""
    found = [begin_at]
    while len(found) < count:
        found.append(found[-1] + every_s)  # in floats this is not begin_at + index * every_s
    return np.array(found[:count])
