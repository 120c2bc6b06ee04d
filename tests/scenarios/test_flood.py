"""A flood costs what paper 000 says (section V-B, equations 3 to 5), and never more."""

import random

import pytest

from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Plane
from anabranch.sim.simulator import START_AT, Simulator


def settled(nodes: int, degree: int, underlay: Constant | Plane) -> Cluster:
    sim = Simulator(underlay, 1)
    cluster = Cluster(sim, 1, nodes, degree=degree)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    sim.run(START_AT + 15)
    assert {len(cluster.neighbours(n, cluster.parts[0])) for n in cluster.peers} == {degree}
    return cluster


@pytest.mark.parametrize(("nodes", "degree"), [(6, 4), (64, 4), (300, 4), (64, 6), (64, 16)])
@pytest.mark.parametrize("spread_ms", [0.0, 80.0])
def test_a_flood_sends_exactly_this_many_frames(nodes: int, degree: int, spread_ms: float) -> None:
    underlay = Plane(nodes + 1, 1.0, spread_ms, random.Random(1))
    cluster = settled(nodes, degree, underlay)
    sim = cluster.sim
    before = sim.sent_frames
    for publisher in cluster.peers[:5]:
        cluster.publish(publisher, cluster.parts[0], [b"x"])
        sim.run(sim.now + 2)
    assert sim.sent_frames - before == 5 * ((nodes - 1) * (degree - 1) + degree)


@pytest.mark.parametrize("seed", range(5))
def test_with_full_queues_copies_that_crossed_are_not_sent(seed: int) -> None:
    nodes, degree = 64, 4
    cluster = settled(nodes, degree, Constant(10))
    sim, rng = cluster.sim, random.Random(seed)
    for node in rng.sample(cluster.peers, 40):  # these cannot send to one neighbour for a second
        sim.clog(node, rng.choice(cluster.neighbours(node, cluster.parts[0])), 1.0)
    sim.run(sim.now + 0.1)
    before = sim.sent_frames
    cluster.publish(cluster.peers[0], cluster.parts[0], [b"x"])
    sim.run(sim.now + 8)
    assert sim.sent_frames - before < (nodes - 1) * (degree - 1) + degree
