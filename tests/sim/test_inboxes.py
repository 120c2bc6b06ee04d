"""Nodes that take one packet after the other. The machines note what comes to them, and when."""

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.machine import Congested, Connect, Effect, Event, Received, Wakeup, Writable
from anabranch.sim.network import HIGH_MARK_PACKETS, LOW_MARK_PACKETS, Constant, Raw, SimNode
from anabranch.sim.simulator import START_AT, Simulator

DELAY_S = 0.02
PACKET_S = 0.1


class Station:
    """A machine that does, when it is woken, what it was told to do."""

    def __init__(self) -> None:
        self.wakeup_at: float | None = None
        self.to_do: list[Effect] = []
        self.saw: list[tuple[float, Event]] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.saw.append((now, event))
        effects, self.to_do = (self.to_do, []) if type(event) is Wakeup else ([], self.to_do)
        return effects

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {}

    def took(self) -> list[tuple[float, bytes]]:
        return [(round(at, 6), e.data) for at, e in self.saw if type(e) is Received]


def do(sim: Simulator, node: SimNode, *effects: object) -> None:
    node.machine.to_do = list(effects)
    sim.tell(node, Wakeup())


def station(sim: Simulator, number: int) -> SimNode:
    return sim.add(NodeId(bytes([number]) * 20), number, Station())


def linked(nodes: int) -> tuple[Simulator, list[SimNode]]:
    """The first node is linked to all others."""
    sim = Simulator(Constant(DELAY_S * 1000), 1)
    first, *others = (station(sim, number) for number in range(nodes))
    do(sim, first, *(Connect(node.id) for node in others))
    sim.run(START_AT + 1)
    return sim, [first, *others]


def test_packets_are_taken_one_after_the_other_as_they_come() -> None:
    sim, (a, b, c) = linked(3)
    sim.inboxes.bound([a], 1 / PACKET_S)
    do(sim, b, Raw(a.id, b"1"), Raw(a.id, b"2"))
    do(sim, c, Raw(a.id, b"3"))
    first = START_AT + 1 + DELAY_S + PACKET_S
    sim.run(START_AT + 5)
    do(sim, c, Raw(a.id, b"4"))  # it has rested meanwhile, and saves nothing up
    sim.run(START_AT + 10)
    at = [first, first + PACKET_S, first + 2 * PACKET_S, START_AT + 5 + DELAY_S + PACKET_S]
    assert a.machine.took() == [
        (pytest.approx(at[i], abs=1e-5), data) for i, data in enumerate((b"1", b"2", b"3", b"4"))
    ]
    assert a.taken == 4
    assert a.longest_wait_s == pytest.approx(2 * PACKET_S, abs=1e-5)


def test_other_nodes_and_worlds_without_bounds_take_packets_in_no_time() -> None:
    sim, (a, b, c) = linked(3)
    do(sim, a, Raw(b.id, b"before any bound"))
    sim.run(START_AT + 2)
    sim.inboxes.bound([c], 1)
    do(sim, a, Raw(b.id, b"beside one"))
    sim.run(START_AT + 3)
    assert b.machine.took() == [
        (pytest.approx(START_AT + 1 + DELAY_S, abs=1e-5), b"before any bound"),
        (pytest.approx(START_AT + 2 + DELAY_S, abs=1e-5), b"beside one"),
    ]


def test_a_busy_node_still_does_what_it_wants_itself() -> None:
    sim, (a, b) = linked(2)
    sim.inboxes.bound([a], 1)
    do(sim, b, Raw(a.id, b"takes a second"))
    sim.run(START_AT + 1.5)
    do(sim, a, Raw(b.id, b"in between"))
    sim.run(START_AT + 1.6)
    assert b.machine.took()[0][1] == b"in between"
    assert a.machine.took() == []


def test_a_lane_is_congested_while_the_far_end_has_much_to_take() -> None:
    sim, (a, b) = linked(2)
    sim.inboxes.bound([b], 1 / PACKET_S)
    do(sim, a, *[Raw(b.id, b"x")] * HIGH_MARK_PACKETS)
    sim.run(START_AT + 1.001)
    assert Congested not in [type(event) for _, event in a.machine.saw]
    do(sim, a, Raw(b.id, b"one more"))
    sim.run(START_AT + 100)
    words = [(at, type(event)) for at, event in a.machine.saw[-2:]]
    # Its end is known when all but the low mark are taken and the word of it has come back.
    taken = HIGH_MARK_PACKETS + 1 - LOW_MARK_PACKETS
    writable_at = START_AT + 1 + DELAY_S + taken * PACKET_S + DELAY_S
    assert words == [
        (pytest.approx(START_AT + 1.001, abs=1e-5), Congested),
        (pytest.approx(writable_at, abs=1e-3), Writable),
    ]
    assert b.taken == HIGH_MARK_PACKETS + 1  # nothing is lost


def test_what_waits_before_a_node_that_crashes_is_gone_and_its_next_life_begins_idle() -> None:
    sim, (a, b) = linked(2)
    sim.inboxes.bound([b], 1)
    do(sim, a, *[Raw(b.id, b"old")] * 5)
    sim.run(START_AT + 2.5)
    assert [data for _, data in b.machine.took()] == [b"old"]
    sim.crash(b)
    sim.restart(b, Station())
    sim.run(START_AT + 3)
    do(sim, b, Connect(a.id))
    sim.run(START_AT + 4)
    do(sim, a, Raw(b.id, b"new"))
    sim.run(START_AT + 20)
    assert b.machine.took() == [(pytest.approx(START_AT + 4 + DELAY_S + 1, abs=1e-5), b"new")]
