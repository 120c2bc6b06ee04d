"""Peers that misbehave do harm, and the harm stays small."""

import random
from typing import cast

import pytest

from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.machine import Forward, Send, Wakeup
from anabranch.core.messages import Probed, Status
from anabranch.core.messages.tracker import MAX_RTT_US
from anabranch.core.peer import Peer
from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant, Observer, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.traces import schema
from anabranch.traces.recorder import Recorder

PART = StreamPart("0x" + "00" * 20 + "/lies", 0)
TRACKER, FELLOW, OTHER = (NodeId(bytes([i]) * 20) for i in range(3))


class Deliveries(Observer):
    def __init__(self) -> None:
        self.of: dict[bytes, list[bytes]] = {}

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        self.of.setdefault(node.id, []).append(frame)


class Network:
    """Twelve nodes, of which the last misbehaves; the first publishes twenty messages."""

    def __init__(self, kind: str) -> None:
        self.records: list[schema.Record] = []
        self.sim = Simulator(Constant(5), 1, Recorder(self.records.append))
        self.cluster = Cluster(self.sim, 1, nodes=12, disguises={11: kind})
        self.part = self.cluster.parts[0]
        for node in self.cluster.peers:
            self.cluster.subscribe(node, self.part)
        self.sim.run(START_AT + 10)
        self.sim.observer = self.deliveries = Deliveries()
        for _ in range(20):
            self.cluster.publish(self.cluster.peers[0], self.part, [b"real"])
            self.sim.run(self.sim.now + 0.5)

    def faults(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for record in self.records:
            if isinstance(record, schema.Noted) and record.what == "fault":
                reason = record.detail.split()[0]
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def at_honest(self) -> list[int]:
        return [len(self.deliveries.of.get(node.id, [])) for node in self.cluster.peers[:11]]


def test_complaining_neighbour_does_not_slow_a_publisher() -> None:
    network, messages = Network("complaining"), 500
    honest, complaining = network.cluster.peers[:11], network.cluster.peers[11].id
    for publisher in honest[1:]:
        if complaining in cast("Peer", publisher.machine).neighbours(network.part):
            break
    before = len(network.deliveries.of[honest[1].id])
    for _ in range(messages):
        network.cluster.publish(publisher, network.part, [b"real"])
        network.sim.run(network.sim.now + 0.01)
    network.sim.run(network.sim.now + 1)
    # While a publisher rests its messages wait, and leave together: fewer frames arrive.
    for node in honest[1:]:
        assert len(network.deliveries.of[node.id]) - before >= 0.9 * messages


@pytest.mark.parametrize(
    ("kind", "to_a_fellow_us", "to_another_us"),
    [
        ("nearest", 1, 1),
        ("nearer", 300, 300),
        ("farther", 9_000, 9_000),
        ("flattering", 1, 1),
        ("clannish", MAX_RTT_US, 1),
        ("aloof", 900, 900),
    ],
)
def test_lies_about_round_trips(kind: str, to_a_fellow_us: int, to_another_us: int) -> None:
    said = [
        Send(TRACKER, Status(PART, 1, (FELLOW, OTHER), (900, 900))),
        Send(TRACKER, Probed(PART, FELLOW, 900)),
        Send(TRACKER, Probed(PART, OTHER, 0)),
    ]
    liar = BYZANTINE[kind](cast("Peer", None), random.Random(1), {FELLOW})
    assert liar.spoil(Wakeup(), list(said)) == [
        Send(TRACKER, Status(PART, 1, *_told(kind, to_a_fellow_us, to_another_us))),
        Send(TRACKER, Probed(PART, FELLOW, to_a_fellow_us)),
        said[2],  # who could not be reached, could not be reached
    ]


def _told(kind: str, fellow_us: int, other_us: int) -> tuple[tuple[NodeId, ...], tuple[int, ...]]:
    if kind == "aloof":  # who cannot reach one another, as they say
        return (OTHER,), (other_us,)
    return (FELLOW, OTHER), (fellow_us, other_us)


@pytest.mark.parametrize("kind", ["nearest", "nearer", "farther"])
def test_who_lies_for_itself_passes_everything_on(kind: str) -> None:
    head = FrameHead(PartKey(bytes(16)), ChainKey(bytes(28)), 0, 1, 1, 1)
    forward = Forward(1, head, [(OTHER, b"")], b"frame")
    liar = BYZANTINE[kind](cast("Peer", None), random.Random(1))
    assert liar.spoil(Wakeup(), [forward]) == [forward]


@pytest.mark.parametrize("kind", sorted(BYZANTINE))
def test_honest_nodes_get_every_message_once_all_the_same(kind: str) -> None:
    network = Network(kind)
    assert network.at_honest() == [20] * 11
    published = network.deliveries.of[network.cluster.peers[0].id]
    for node in network.cluster.peers[1:11]:
        assert sorted(network.deliveries.of[node.id]) == sorted(published)


def test_a_silent_peer_passes_nothing_on_and_breaks_no_rule() -> None:
    network = Network("silent")
    silent = "0x" + network.cluster.peers[11].id.hex()
    assert not [r for r in network.records if isinstance(r, schema.Sent) and r.node == silent]
    assert network.faults() == {}


def test_a_forger_loses_its_links() -> None:
    network = Network("forging")
    assert network.faults()["forged"] >= 3
    # The tracker gives it no new neighbours in place of those that cut it off.
    forger = network.cluster.peers[11]
    assert len(network.cluster.neighbours(forger, network.part)) < network.cluster.degree


def test_a_replayer_only_makes_duplicates() -> None:
    network = Network("replaying")
    assert network.faults() == {}
    replayer = "0x" + network.cluster.peers[11].id.hex()
    copies = [r for r in network.records if isinstance(r, schema.Duplicate) and r.peer == replayer]
    assert len(copies) > 20 * 4


def test_a_flooder_loses_its_links() -> None:
    network = Network("flooding")
    assert sum(network.faults().values()) >= 4
