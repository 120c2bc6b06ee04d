"""What every overlay owes its users, whatever its algorithm: join, publish, churn, crash, heal.

Each overlay of OVERLAYS runs through the simulator with 1, 2, 3, 5 and 20 nodes. Every subscriber
gets every message once; nobody else gets anything; and who leaves leaves nothing behind.
"""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from anabranch.core import codec, frames
from anabranch.core.ids import FrameHead, NodeId, part_key
from anabranch.core.machine import Outcome, Received
from anabranch.overlays import OVERLAYS
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Observer, Plane, SimNode
from anabranch.sim.simulator import Simulator
from machines import beyond, leftovers

SIZES = [1, 2, 3, 5, 20]
SETTLED_S = 8.0
HEALED_S = 90.0
LINGER_S = 12.0

every_overlay = pytest.mark.parametrize("overlay", sorted(OVERLAYS))


every_size = pytest.mark.parametrize("nodes", SIZES)


def test_each_overlay_has_a_code_of_its_own() -> None:
    codes = {overlay.code for overlay in OVERLAYS.values()}
    assert len(codes) == len(OVERLAYS)
    assert 0 not in codes


class Network(Observer):
    """A cluster whose deliveries are counted."""

    def __init__(self, overlay: str, nodes: int, parts: int = 1, trackers: int = 1) -> None:

        seed = f"{overlay}/{nodes}"
        underlay = Plane(nodes + trackers, 1.0, 60.0, random.Random(seed))
        self.sim = Simulator(underlay, seed)
        self.sim.observer = self
        self.cluster = Cluster(self.sim, seed, nodes, parts, trackers, overlay)
        self.nodes = self.cluster.peers
        self.part = self.cluster.parts[0]
        self.key = part_key(self.part)
        self.got: dict[NodeId, Counter[bytes]] = {node.id: Counter() for node in self.nodes}
        self.outcomes: Counter[str] = Counter()
        self.members: dict[NodeId, None] = {}
        self.noise: list[NodeId] = []
        self.published_messages = 0

    # What the simulator shows.

    def published(self, node: SimNode, head: FrameHead, frame: bytes, now: float) -> None:
        self.published_messages += head.count

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        self.got[node.id].update(message.content for message in frames.messages(frame))

    def packet(self, node: SimNode, event: Received, now: float) -> None:
        head = frames.peek(event.data, codec.frame_start(event.data))
        if head.part == self.key and node.id not in self.members:
            self.noise.append(node.id)

    def outcome(self, node: SimNode, outcome: Outcome, now: float) -> None:
        self.outcomes[outcome.result] += 1

    # What a test does.

    def run(self, seconds: float) -> None:
        end = self.sim.now + seconds
        while self.sim.now < end:
            self.sim.run(min(end, self.sim.now + 1.0))
            for node in [*self.nodes, *self.cluster.trackers]:
                assert beyond(node.machine) == {}

    def subscribe(self, nodes: Sequence[SimNode]) -> None:
        for node in nodes:
            self.members[node.id] = None
            self.cluster.subscribe(node, self.part)

    def leave(self, nodes: Sequence[SimNode]) -> None:
        for node in nodes:
            self.cluster.unsubscribe(node, self.part)

    def restart(self, nodes: Sequence[SimNode]) -> None:
        for node in nodes:
            self.cluster.restart(node)
            self.got[node.id].clear()
        self.subscribe(nodes)

    def publish(self, nodes: Sequence[SimNode], about: str, messages: int = 2) -> list[bytes]:
        """Let nodes publish some messages each; return them."""
        everything = []
        for place, node in enumerate(nodes):
            contents = [f"{about}/{place}/{n}".encode() for n in range(messages)]
            self.members[node.id] = None
            self.cluster.publish(node, self.part, contents)
            everything += contents
        return everything

    def all_have(self, nodes: Sequence[SimNode], messages: Sequence[bytes]) -> None:
        """Every one of the nodes has every one of the messages, once."""
        for node in nodes:
            got = self.got[node.id]
            assert {message: got[message] for message in messages} == dict.fromkeys(messages, 1)

    def all_hear_all(self, nodes: Sequence[SimNode], word: str) -> None:
        """Let every one of the nodes publish, and every one get it all."""
        messages = self.publish(nodes, word)
        self.run(5)
        self.all_have(nodes, messages)

    def in_shape(self, nodes: Sequence[SimNode]) -> None:
        """Neighbours are sorted, members, and no more than the degree; none is left out."""
        ids = {node.id for node in nodes}
        for node in nodes:
            neighbours = self.cluster.neighbours(node, self.part)
            assert list(neighbours) == sorted(set(neighbours) - {node.id})
            assert set(neighbours) <= ids
            assert len(neighbours) <= self.cluster.degree
            assert neighbours or len(nodes) == 1


def started(overlay: str, nodes: int, trackers: int = 1) -> Network:
    """Make a network in which everybody subscribes and has found its place."""
    network = Network(overlay, nodes, trackers=trackers)
    network.subscribe(network.nodes)
    network.run(SETTLED_S)
    return network


@every_overlay
@every_size
def test_everybody_gets_everything_once(overlay: str, nodes: int) -> None:
    network = started(overlay, nodes)
    network.in_shape(network.nodes)
    messages = network.publish(network.nodes, "settled", 3)
    network.run(5)
    network.all_have(network.nodes, messages)
    assert set(network.outcomes) <= {"sent"}
    assert network.outcomes["sent"] == (len(messages) if nodes > 1 else 0)


@every_overlay
@every_size
def test_what_is_published_before_the_overlay_stands_arrives_too(overlay: str, nodes: int) -> None:
    network = Network(overlay, nodes)
    network.subscribe(network.nodes)
    messages = network.publish(network.nodes, "early")
    network.run(SETTLED_S)
    network.all_have(network.nodes, messages)


@every_overlay
@every_size
def test_newcomers_miss_nothing_of_what_is_published_after_they_subscribe(
    overlay: str, nodes: int
) -> None:
    network = Network(overlay, 2 * nodes)
    old, new = network.nodes[:nodes], network.nodes[nodes:]
    network.subscribe(old)
    network.run(SETTLED_S)
    network.subscribe(new)
    messages = []
    for turn in range(40):
        messages += network.publish(old[:1], f"turn {turn}", 1)
        network.run(0.05)
    network.run(SETTLED_S)
    network.all_have(network.nodes, messages)
    network.in_shape(network.nodes)


@every_overlay
@every_size
def test_nodes_come_and_go_and_the_rest_goes_on(overlay: str, nodes: int) -> None:
    network = started(overlay, nodes + 2)
    stay, others = network.nodes[:nodes], network.nodes[nodes:]
    messages = []
    for turn in range(4):
        network.leave(others)
        network.run(1)
        messages += network.publish(stay[:1], f"without {turn}")
        network.run(3)
        network.subscribe(others)
        network.run(1)
        messages += network.publish(stay[:1], f"with {turn}")
        network.run(3)
    network.run(SETTLED_S)
    network.all_have(stay, messages)
    network.in_shape(network.nodes)
    last = network.publish(network.nodes, "last")
    network.run(5)
    network.all_have(network.nodes, last)


@every_overlay
@every_size
@pytest.mark.parametrize("silent", [False, True])
def test_after_crashes_the_overlay_heals(overlay: str, nodes: int, silent: bool) -> None:
    network = started(overlay, nodes + 2)
    live, dead = network.nodes[:nodes], network.nodes[nodes:]
    for node in dead:
        network.sim.crash(node, silent)
    network.run(HEALED_S)
    network.in_shape(live)
    network.all_hear_all(live, "without the dead")
    network.restart(dead)
    network.run(SETTLED_S)
    network.in_shape(network.nodes)
    network.all_hear_all(network.nodes, "with the risen")


@every_overlay
@every_size
def test_a_node_that_restarts_at_once_is_not_deaf(overlay: str, nodes: int) -> None:
    network = started(overlay, nodes + 1)
    risen = network.nodes[-1:]
    network.sim.crash(risen[0])
    network.run(0.3)
    network.restart(risen)
    network.run(SETTLED_S)
    network.all_hear_all(network.nodes, "again")


@every_overlay
@every_size
def test_a_partition_heals(overlay: str, nodes: int) -> None:
    network = started(overlay, nodes + 1)
    network.sim.partition({node.id: place % 2 for place, node in enumerate(network.nodes)})
    network.run(12)
    network.sim.partition({})
    network.run(HEALED_S)
    network.in_shape(network.nodes)
    network.all_hear_all(network.nodes, "together")


@every_overlay
@every_size
@pytest.mark.parametrize("trackers", [1, 2])
def test_while_trackers_are_away_messages_flow_and_later_all_is_well(
    overlay: str, nodes: int, trackers: int
) -> None:
    network = started(overlay, nodes, trackers)
    network.sim.crash(network.cluster.trackers[0])
    network.run(15)
    network.all_hear_all(network.nodes, "without it")
    network.cluster.restart(network.cluster.trackers[0])
    network.run(HEALED_S)
    network.in_shape(network.nodes)
    network.all_hear_all(network.nodes, "with it")


@every_overlay
@every_size
def test_who_leaves_leaves_nothing_behind(overlay: str, nodes: int) -> None:
    network = started(overlay, nodes)
    network.publish(network.nodes, "something")
    network.run(5)
    network.leave(network.nodes)
    network.run(LINGER_S)
    for node in network.nodes:
        assert leftovers(node.machine) == {}
        assert node.machine.wakeup_at is None
        assert node.lanes == {}
        assert network.cluster.neighbours(node, network.part) == ()
    network.run(60)
    for tracker in network.cluster.trackers:
        assert leftovers(tracker.machine) == {}


@every_overlay
@every_size
def test_who_only_publishes_gets_nothing(overlay: str, nodes: int) -> None:
    network = Network(overlay, nodes + 3)
    subscribers, publishers = network.nodes[:nodes], network.nodes[nodes:]
    network.subscribe(subscribers)
    messages = network.publish(publishers, "first")
    network.run(SETTLED_S)
    messages += network.publish(publishers, "second")
    network.run(5)
    network.all_have(subscribers, messages)
    for node in publishers:
        assert network.got[node.id] == {}


@every_overlay
@every_size
def test_a_noiseless_overlay_sends_nothing_to_who_is_no_member(overlay: str, nodes: int) -> None:
    network = Network(overlay, nodes + 5, parts=2)
    inside, outside = network.nodes[:nodes], network.nodes[nodes:]
    network.subscribe(inside)
    for node in network.nodes:  # of another part they all are
        network.cluster.subscribe(node, network.cluster.parts[1])
    network.run(SETTLED_S)
    messages = network.publish(inside, "inside", 4)
    network.run(5)
    network.all_have(inside, messages)
    assert [node for node in outside if network.got[node.id]] == []
    if OVERLAYS[overlay].noiseless:
        assert network.noise == []


@every_overlay
def test_a_run_is_a_function_of_its_seed(overlay: str) -> None:
    def run() -> list[object]:
        network = started(overlay, 12)
        network.sim.crash(network.nodes[3], silent=True)
        network.publish(network.nodes[:3], "some", 5)
        network.run(20)
        neighbours = [network.cluster.neighbours(n, network.part) for n in network.nodes]
        return [network.sim.handled, network.got, neighbours]

    assert run() == run()
