"""Nodes that nobody can dial get every message, whatever their ids and however many they are."""

from collections.abc import Collection
from itertools import combinations

import pytest

from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.machine import Notice
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Observer, SimNode
from anabranch.sim.simulator import Simulator

NODES = 10
MESSAGES = 25


class Seen(Observer):
    """What nodes deliver, and what they tell their operators."""

    def __init__(self) -> None:
        self.delivered_at: dict[NodeId, int] = {}
        self.notices: dict[NodeId, list[str]] = {}

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        self.delivered_at[node.id] = self.delivered_at.get(node.id, 0) + 1

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        self.notices.setdefault(node.id, []).append(notice.kind)


class Network:
    """Nodes in the order of their ids, of which some cannot be dialled."""

    def __init__(
        self, undialable: Collection[int], nodes: int = NODES, overlay: str = "random-regular"
    ) -> None:
        self.sim = Simulator(Constant(20), 1)
        self.sim.observer = self.seen = Seen()
        self.cluster = Cluster(self.sim, 1, nodes=nodes, overlay=overlay, undialable=())
        self.part = self.cluster.parts[0]
        self.peers = sorted(self.cluster.peers, key=lambda node: node.id)
        for place in undialable:
            self.peers[place].dialable = False
        for node in self.cluster.peers:
            self.cluster.subscribe(node, self.part)

    def wait(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def publish(self, publisher: int = 0) -> list[int]:
        """Publish messages; return how many reached each node, in the order of their ids."""
        before = dict(self.seen.delivered_at)
        for _ in range(MESSAGES):
            self.cluster.publish(self.peers[publisher], self.part, [b"x"])
            self.wait(0.2)
        self.wait(10.0)
        return [self.seen.delivered_at.get(n.id, 0) - before.get(n.id, 0) for n in self.peers]

    def links(self) -> list[tuple[int, int]]:
        place = {node.id: at for at, node in enumerate(self.peers)}
        return [
            (at, place[peer])
            for at, node in enumerate(self.peers)
            for peer in self.cluster.neighbours(node, self.part)
        ]


@pytest.mark.parametrize("undialable", range(NODES))
def test_one_node_that_nobody_can_dial_gets_every_message(undialable: int) -> None:
    network = Network([undialable])
    network.wait(30.0)
    assert network.publish() == [MESSAGES] * NODES
    assert network.publish(undialable) == [MESSAGES] * NODES
    me = network.peers[undialable].id
    assert network.seen.notices == {me: ["undialable"]}
    tracker = network.cluster.trackers[0].machine
    assert [n for n, known in tracker.nodes(network.part).items() if not known.dialable] == [me]
    assert len(network.cluster.neighbours(network.peers[undialable], network.part)) == 4


@pytest.mark.parametrize("undialable", list(combinations(range(NODES), 2)))
def test_two_nodes_that_nobody_can_dial_get_every_message(undialable: tuple[int, int]) -> None:
    network = Network(undialable)
    network.wait(30.0)
    assert network.publish() == [MESSAGES] * NODES
    assert undialable not in network.links()
    assert sorted(network.seen.notices) == [network.peers[place].id for place in undialable]
    disputes = network.cluster.trackers[0].machine._parts[network.part].disputes
    assert not any(disputes.waits(node.id) for node in network.peers)


@pytest.mark.parametrize("nodes", range(2, 6))
def test_few_nodes_of_which_one_can_be_dialled_get_every_message(nodes: int) -> None:
    for dialable in range(nodes):
        network = Network([place for place in range(nodes) if place != dialable], nodes)
        network.wait(30.0)
        assert network.publish() == [MESSAGES] * nodes
        assert all(dialable in link for link in network.links())


def test_two_nodes_of_which_neither_can_be_dialled_have_no_link() -> None:
    network = Network([0, 1], 2)
    network.wait(30.0)
    assert network.links() == []
    assert network.publish() == [MESSAGES, 0]
    tracker = network.cluster.trackers[0].machine
    assert tracker.neighbours(network.part, network.peers[0].id) == ()


@pytest.mark.parametrize("overlay", ["random-regular", "latency-aware"])
def test_half_of_the_nodes_can_be_dialled_and_all_get_every_message(overlay: str) -> None:
    network = Network(range(0, 20, 2), 20, overlay)
    network.wait(90.0)
    assert network.publish() == [MESSAGES] * 20
    assert not [link for link in network.links() if link[0] % 2 == link[1] % 2 == 0]


def test_node_that_can_be_dialled_later_is_found_out_by_the_next_check() -> None:
    network = Network([9])
    network.wait(30.0)
    network.peers[9].dialable = True
    network.wait(660.0)
    assert network.seen.notices == {network.peers[9].id: ["undialable", "dialable"]}
    assert network.publish() == [MESSAGES] * NODES


def test_node_that_cannot_be_dialled_any_more_is_checked_after_the_first_failed_dial() -> None:
    network = Network([])
    network.wait(70.0)
    node = network.peers[9]
    node.dialable = False
    for peer, lane in list(node.lanes.items()):
        if peer in {each.id for each in network.peers}:
            lane.blocked = True
            network.sim._links._time_out(lane)
    network.wait(30.0)
    assert network.seen.notices == {node.id: ["undialable"]}
    assert network.publish() == [MESSAGES] * NODES
