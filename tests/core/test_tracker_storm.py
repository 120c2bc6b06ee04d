"""Many nodes at once, and anything in any order: the overlay ends d-regular, in few words."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.disputes import WAIT_MOST_S
from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Event, LinkDown, Received, Send
from anabranch.core.messages import Instruction, Leave, Status
from anabranch.core.tracker import GATHER_S, MEND_EVERY_S, SILENT_S
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, SimNode
from anabranch.sim.simulator import Simulator
from machines import NODES, OTHER, PART, Field, beyond, leftovers


class Counted:
    """A machine whose instructions are counted."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.instructions: Counter[NodeId] = Counter()
        self.sizes = inner.sizes

    @property
    def wakeup_at(self) -> float | None:
        return self.inner.wakeup_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = self.inner.handle(event, now)
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Instruction:
                self.instructions[effect.to] += 1
        return effects


def counted(cluster: Cluster) -> Counted:
    """Begin to count what the tracker says."""
    tracker = cluster.trackers[0]
    tracker.machine = words = Counted(tracker.machine)
    return words


def network(nodes: int, degree: int = 4) -> Cluster:
    return Cluster(Simulator(Constant(20.0), 7), 7, nodes, degree=degree)


def whole(cluster: Cluster, members: list[SimNode]) -> bool:
    """Tell whether every member has its degree of neighbours, mutual, and all are connected."""
    part = cluster.parts[0]
    graph = {node.id: cluster.neighbours(node, part) for node in members}
    reached, todo = {members[0].id}, [members[0].id]
    while todo:
        fresh = set(graph[todo.pop()]) - reached
        reached |= fresh
        todo += fresh
    mutual = all(node in graph[peer] for node, peers in graph.items() for peer in peers)
    degrees = {len(peers) for peers in graph.values()}
    return degrees == {min(cluster.degree, len(members) - 1)} and mutual and reached == set(graph)


@pytest.mark.parametrize("nodes", [500, 1_000])
def test_a_storm_of_joins_in_one_instant_costs_each_node_one_instruction(nodes: int) -> None:
    cluster = network(nodes)
    words = counted(cluster)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    cluster.sim.run(cluster.sim.now + 2)
    assert whole(cluster, cluster.peers)
    assert words.instructions == dict.fromkeys([node.id for node in cluster.peers], 1)
    cluster.sim.run(cluster.sim.now + 30)
    assert sum(words.instructions.values()) == nodes  # and then there is nothing more to say


def test_joins_one_after_the_other_cost_few_instructions() -> None:
    cluster = network(200)
    words = counted(cluster)
    for place, node in enumerate(cluster.peers):
        at = cluster.sim.now + place * 0.05
        cluster.sim.at(at, lambda node=node: cluster.subscribe(node, cluster.parts[0]))
    cluster.sim.run(cluster.sim.now + 15)
    assert whole(cluster, cluster.peers)
    assert max(words.instructions.values()) <= 5
    assert sum(words.instructions.values()) <= 3 * 200


def test_half_of_the_nodes_leave_in_one_instant() -> None:
    cluster = network(200)
    part = cluster.parts[0]
    for node in cluster.peers:
        cluster.subscribe(node, part)
    cluster.sim.run(cluster.sim.now + 5)
    words = counted(cluster)
    stay, go = cluster.peers[::2], cluster.peers[1::2]
    for node in go:
        cluster.unsubscribe(node, part)
    cluster.sim.run(cluster.sim.now + 5)
    assert whole(cluster, stay)
    assert set(words.instructions) <= {node.id for node in stay}
    assert max(words.instructions.values()) <= 2


def test_half_of_the_nodes_die_in_one_instant() -> None:
    cluster = network(100)
    part = cluster.parts[0]
    for node in cluster.peers:
        cluster.subscribe(node, part)
    cluster.sim.run(cluster.sim.now + 5)
    for place, node in enumerate(cluster.peers[1::2]):
        cluster.sim.crash(node, silent=bool(place % 2))
    cluster.sim.run(cluster.sim.now + 40)
    assert whole(cluster, cluster.peers[::2])


# --- Any order ------------------------------------------------------------------------------

WORDS = ["wait", "join", "join", "join", "report", "report", "complain", "void", "ahead"]
WORDS += ["leave", "down", "up", "move", "garbage", "other"]
STEPS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.integers(1, 9), st.integers(0, 7)), min_size=15
)
WAITS_S = [0.05, 0.1, 0.5, 2.0, 3.0, 5.0, 10.0, 36.0]


def play(field: Field, word: str, place: int, which: int) -> None:
    """Let one thing happen to a node."""
    node, hand = NODES[place], field.hand
    counter = field.told[node].counter if node in field.told else 0
    had = field.neighbours(node) if node in field.told else ()
    if word == "wait":
        field.take(hand.wait(WAITS_S[which]))
    elif word == "join":
        field.join(node)
        field.told.pop(node, None)
    elif word == "report" and counter:
        field.report(node)
    elif word == "complain" and counter:
        field.report(node, missing=had[: 1 + which % 2])
    elif word == "void":
        hand.hear(node, Status(PART, max(0, counter - 1), NODES[1 : 1 + which]))
    elif word == "ahead":
        hand.hear(node, Status(PART, counter + which, NODES[1 : 1 + which], (7,)))
    elif word == "leave":
        hand.hear(node, Leave(PART), Leave(OTHER))
    elif word == "down":
        hand(LinkDown(node, "reset"))
    elif word == "up":
        hand.link(node)
    elif word == "move":
        hand.hear(node, Status(PART, counter, had, (), f"moved:{which}"))
    elif word == "garbage":
        hand(Received(node, bytes([1, 0, which])))
    elif word == "other":
        hand.hear(node, Status(OTHER, which))


def sound(field: Field, degree: int) -> None:
    """Hold the tracker's graph and its words against what may be."""
    graph = field.hand.machine.topology(PART)
    for node, neighbours in graph.items():
        assert len(set(neighbours) - {node}) == len(neighbours) <= degree
        assert all(node in graph[peer] for peer in neighbours)
    for node, told in field.told.items():
        connect = [contact.node for contact in told.connect]
        named = [*connect, *told.accept]
        assert len(set(named) - {node}) == len(named)
    assert beyond(field.hand.machine) == {}


@settings(max_examples=150)
@given(STEPS)
def test_any_sequence_can_be_mended_and_leaves_nothing_behind(
    steps: list[tuple[str, int, int]],
) -> None:
    field, degree = Field(degree=2), 2
    for step in steps:
        play(field, *step)
        sound(field, degree)
    # Everybody is well again: what was held against them is forgiven in time.
    field.settle(*NODES[1:10])
    for _ in range(int((GATHER_S + WAIT_MOST_S + 2 * MEND_EVERY_S) // 30) + 1):
        field.take(field.hand.wait(30))
        field.report(*field.told)
        field.settle()
    topology = field.hand.machine.topology(PART)
    assert {len(peers) for peers in topology.values()} == {degree}
    dials = {(n, c.node) for n, told in field.told.items() for c in told.connect}
    for node, peers in topology.items():  # of two neighbours exactly one dials
        assert all(((node, peer) in dials) != ((peer, node) in dials) for peer in peers)
    for node in NODES[1:10]:
        field.hand.hear(node, Leave(PART), Leave(OTHER))
    field.hand.wait(SILENT_S)
    machine = field.hand.machine
    assert (leftovers(machine), machine.wakeup_at) == ({}, None)
    assert machine._parts == machine._parts_of == {}
    assert len(machine._timers) == 0
