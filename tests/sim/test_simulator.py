"""The driver: links, time, faults. The machines are real; nothing here is mocked."""

import pytest

from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.machine import (
    Congested,
    Connect,
    Disconnect,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Notice,
    Rtt,
    Wakeup,
    Writable,
)
from anabranch.sim.cluster import Cluster
from anabranch.sim.links import KEEPALIVE_S
from anabranch.sim.network import Constant, Observer, PacketFaults, SimNode
from anabranch.sim.simulator import START_AT, Simulator

DELAY_S = 0.02


class Scripted:
    """A machine that notes what happens to it and answers as it was told."""

    def __init__(self) -> None:
        self.saw: list[tuple[float, Event]] = []
        self.answers: dict[type, list[Effect]] = {}
        self.wakeup_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.saw.append((round(now - START_AT, 6), event))
        if type(event) is Wakeup:
            self.wakeup_at = None
        return self.answers.pop(type(event), [])

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {}

    def kinds(self) -> list[type]:
        return [type(event) for _, event in self.saw]


def two_linked() -> tuple[Simulator, SimNode, SimNode]:
    sim = Simulator(Constant(DELAY_S * 1000), 1)
    a, b = (sim.add(NodeId(bytes([i]) * 20), i, Scripted()) for i in range(2))
    a.machine.answers[Wakeup] = [Connect(b.id)]
    sim.tell(a, Wakeup())
    sim.run(START_AT + 1)
    return sim, a, b


def test_dialling_takes_a_handshake_and_both_ends_learn_of_the_link_and_its_rtt() -> None:
    _, a, b = two_linked()
    assert a.machine.saw[1:] == [(0.08, LinkUp(b.id, 0.04))]
    assert b.machine.saw == [(0.08, LinkUp(a.id, 0.04, a.id.hex()))]


def test_processing_is_part_of_every_hop_and_of_no_round_trip() -> None:
    sim = Simulator(Constant(DELAY_S * 1000), 1, processing_s=0.005)
    a, b = (sim.add(NodeId(bytes([i]) * 20), i, Scripted()) for i in range(2))
    a.machine.answers[Wakeup] = [Connect(b.id)]
    sim.tell(a, Wakeup())
    sim.run(START_AT + 1)
    assert b.machine.saw == [(0.08, LinkUp(a.id, 0.04, a.id.hex()))]
    assert a.lanes[b.id].delay_s == b.lanes[a.id].delay_s == pytest.approx(0.025)


def test_both_dialling_at_once_ends_in_one_link() -> None:
    sim = Simulator(Constant(DELAY_S * 1000), 1)
    a, b = (sim.add(NodeId(bytes([i]) * 20), i, Scripted()) for i in range(2))
    for node, peer in ((a, b), (b, a)):
        node.machine.answers[Wakeup] = [Connect(peer.id)]
        sim.tell(node, Wakeup())
    sim.run(START_AT + 1)
    assert a.machine.kinds().count(LinkUp) == b.machine.kinds().count(LinkUp) == 1


@pytest.mark.parametrize("reason", ["refused", "unknown", "timeout"])
def test_a_failed_dial_is_a_link_down(reason: str) -> None:
    sim = Simulator(Constant(DELAY_S * 1000), 1)
    a, b = (sim.add(NodeId(bytes([i]) * 20), i, Scripted()) for i in range(2))
    target = b.id
    if reason == "refused":
        sim.crash(b)
    elif reason == "timeout":
        sim.partition({b.id: 1})
    else:
        target = NodeId(b"?" * 20)
    a.machine.answers[Wakeup] = [Connect(target)]
    sim.tell(a, Wakeup())
    sim.run(START_AT + 10)
    assert a.machine.saw[-1][1] == LinkDown(target, reason)


def test_a_disconnect_is_noticed_at_the_far_end_only() -> None:
    sim, a, b = two_linked()
    a.machine.answers[Wakeup] = [Disconnect(b.id, "enough")]
    sim.tell(a, Wakeup())
    sim.run(START_AT + 2)
    assert LinkDown not in a.machine.kinds()
    assert b.machine.saw[-1] == (1.02, LinkDown(a.id, "closed"))


@pytest.mark.parametrize(("silent", "after_s"), [(False, DELAY_S), (True, KEEPALIVE_S)])
def test_a_crash_is_noticed_at_once_or_by_its_silence(silent: bool, after_s: float) -> None:
    sim, a, b = two_linked()
    sim.crash(b, silent)
    sim.run(START_AT + 20)
    assert a.machine.saw[-1] == (round(1 + after_s, 6), LinkDown(b.id, "reset"))


def test_a_partition_breaks_links_only_if_it_lasts() -> None:
    sim, a, b = two_linked()
    sim.partition({b.id: 1})
    sim.run(START_AT + 2)
    sim.partition({})
    sim.run(START_AT + 20)
    assert LinkDown not in a.machine.kinds() + b.machine.kinds()
    sim.partition({b.id: 1})
    sim.run(START_AT + 40)
    assert a.machine.saw[-1] == (20 + KEEPALIVE_S, LinkDown(b.id, "timeout"))
    assert b.machine.saw[-1] == (20 + KEEPALIVE_S, LinkDown(a.id, "timeout"))


def test_a_clogged_lane_is_congested_and_then_writable() -> None:
    sim, a, b = two_linked()
    sim.clog(a, b.id, 2.0)
    sim.run(START_AT + 10)
    assert a.machine.kinds()[-2:] == [Congested, Writable]
    assert a.machine.saw[-1][0] == pytest.approx(2.95, abs=0.001)
    assert Congested not in b.machine.kinds()


def test_a_restarted_node_has_a_new_machine_and_its_peers_see_the_old_link_end() -> None:
    sim, a, b = two_linked()
    sim.crash(b, silent=True)
    reborn = Scripted()
    reborn.answers[Wakeup] = [Connect(a.id)]
    sim.restart(b, reborn)
    sim.tell(b, Wakeup())
    sim.run(START_AT + 1.5)
    assert a.machine.kinds()[-2:] == [LinkDown, LinkUp]
    assert reborn.kinds() == [Wakeup, LinkUp]


def test_a_machine_is_woken_when_it_wants_even_if_it_changes_its_mind() -> None:
    sim = Simulator(Constant(1), 1)
    machine = Scripted()
    machine.wakeup_at = START_AT + 5
    node = sim.add(NodeId(b"a" * 20), 0, machine)
    machine.wakeup_at = START_AT + 7  # later
    sim.run(START_AT + 6)
    assert machine.saw == []
    machine.wakeup_at = START_AT + 6.5  # and sooner again, told by some event
    sim.tell(node, Rtt(node.id, 1.0))
    sim.run(START_AT + 20)
    assert machine.saw[1:] == [(6.5, Wakeup())]


def test_an_effect_that_no_driver_knows_is_an_error() -> None:
    sim = Simulator(Constant(1), 1)
    machine = Scripted()
    machine.answers[Wakeup] = [Notice(None, "fine"), LinkUp(NodeId(b""))]  # type: ignore[list-item]
    node = sim.add(NodeId(b"a" * 20), 0, machine)
    with pytest.raises(AssertionError, match="LinkUp"):
        sim.tell(node, Wakeup())


class Hears(Observer):
    def __init__(self) -> None:
        self.delays_ms: list[float] = []

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        self.delays_ms.append(round(delay_s * 1000, 6))


def test_real_signatures_work_in_simulation_too() -> None:
    sim = Simulator(Constant(10), 1)
    cluster = Cluster(sim, 1, nodes=6, real_keys=True)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    sim.run(START_AT + 10)
    sim.observer = hears = Hears()
    cluster.publish(cluster.peers[0], cluster.parts[0], [b"one", b"two"])
    sim.run(START_AT + 11)
    assert sorted(hears.delays_ms) == pytest.approx([0.0] + [10.0] * 4 + [20.0], abs=0.01)


def test_packet_faults_apply_to_real_traffic() -> None:
    sim = Simulator(Constant(10), 1)
    cluster = Cluster(sim, 1, nodes=2)
    for node in cluster.peers:
        cluster.subscribe(node, cluster.parts[0])
    sim.run(START_AT + 10)
    sim.faults = PacketFaults(loss=1.0)
    sim.observer = hears = Hears()
    cluster.publish(cluster.peers[0], cluster.parts[0], [b"lost on the way"])
    sim.run(START_AT + 11)
    assert hears.delays_ms == [0.0]  # only the publisher's own delivery
