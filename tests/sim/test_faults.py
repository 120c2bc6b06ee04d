"""Mishaps happen when they should, and all of them are undone in the end."""

import random

from anabranch.sim.checkers import Checker
from anabranch.sim.cluster import Cluster
from anabranch.sim.faults import Faults, Mishaps
from anabranch.sim.network import NO_FAULTS, Constant, PacketFaults
from anabranch.sim.simulator import START_AT, Simulator


def mishaps(faults: Faults, nodes: int = 8) -> tuple[Mishaps, Cluster]:
    sim = Simulator(Constant(5), 1)
    cluster = Cluster(sim, 1, nodes)
    checker = Checker(cluster, "random-regular")
    sim.observer = checker
    made = Mishaps(cluster, checker, faults, random.Random(1))
    for node in cluster.peers:
        made.join(node, cluster.parts[0], True)
    sim.run(START_AT + 5)
    return made, cluster


def test_every_kind_happens_about_as_often_as_it_should_and_is_healed() -> None:
    faults = Faults(
        packets=PacketFaults(loss=0.1),
        crash_every_s=2,
        churn_every_s=2,
        tracker_crash_every_s=4,
        tracker_crash_for_s=1,
        partition_every_s=4,
        clog_every_s=2,
    )
    made, cluster = mishaps(faults)
    made.start(START_AT + 105)
    cluster.sim.run(START_AT + 105)
    assert 25 < made.counts["crashes"] < 70
    assert 15 < made.counts["churns"] < 70
    assert 10 < made.counts["tracker crashes"] < 40
    assert 10 < made.counts["partitions"] < 40
    assert 25 < made.counts["clogs"] < 75
    made.heal()
    assert cluster.sim.faults is NO_FAULTS
    assert all(node.alive and node.side == 0 for node in cluster.sim.nodes.values())
    assert sorted(made.members) == sorted(node.id for node in cluster.peers)
    assert not made.away


def test_nothing_is_on_unless_it_is_named() -> None:
    made, cluster = mishaps(Faults())
    made.start(START_AT + 100)
    cluster.sim.run(START_AT + 100)
    assert set(made.counts.values()) == {0}
    assert len(made.unbroken) == 8


def test_a_crashed_node_comes_back_as_the_member_it_was() -> None:
    made, cluster = mishaps(Faults(crash_for_s=3))
    victim = cluster.peers[2]
    made.crash(victim, silently=True)
    assert not victim.alive
    assert victim.id not in made.members
    cluster.sim.run(cluster.sim.now + 20)
    assert victim.alive
    assert made.members[victim.id] == {cluster.parts[0]: True}
    assert victim.id not in made.unbroken
    assert len(cluster.neighbours(victim, cluster.parts[0])) == 4
