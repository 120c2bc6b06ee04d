"""Every rule of the checker, broken once: a guard that cannot fail is worthless."""

from collections.abc import Callable

import pytest

from anabranch.core import frames
from anabranch.core.ids import StreamPart, chain_key, part_key
from anabranch.core.machine import Draft, Outcome, Received
from anabranch.sim.checkers import Checker, reachable
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Constant
from anabranch.sim.simulator import START_AT, Simulator


class Bench:
    """Five nodes that have settled, a checker, and a frame."""

    def __init__(self) -> None:
        self.sim = Simulator(Constant(5), 1)
        self.cluster = Cluster(self.sim, 1, nodes=5, degree=2)
        self.part: StreamPart = self.cluster.parts[0]
        self.checker = Checker(self.cluster, "random-regular")
        self.sim.observer = self.checker
        for node in self.cluster.peers:
            self.cluster.subscribe(node, self.part)
            self.checker.joined(node, self.part, True)
        self.sim.run(START_AT + 10)
        self.node = self.cluster.peers[0]
        self.frame = frames.build(
            part_key(self.part),
            chain_key(self.node.id, 1),
            0,
            [(5, Draft(b"x"))],
            lambda digest: bytes(64),
        )
        self.head = frames.peek(self.frame)

    def publish(self) -> None:
        self.checker.published(self.node, self.head, self.frame, self.sim.now)

    def deliver(self, frame: bytes | None = None) -> None:
        self.checker.delivered(self.cluster.peers[1], self.head, frame or self.frame, 1, 0.01)


def nothing_wrong(bench: Bench) -> None:
    bench.publish()
    bench.deliver()
    bench.checker.accepted(bench.cluster.peers[1], bench.head)
    bench.checker.degrees(bench.part, bench.cluster.peers)
    bench.checker.bounds()
    bench.checker.outcome(bench.node, Outcome(1, "sent", 5), bench.sim.now)


def delivered_twice(bench: Bench) -> None:
    bench.publish()
    bench.deliver()
    bench.deliver()


def delivered_unpublished(bench: Bench) -> None:
    bench.deliver()


def delivered_changed(bench: Bench) -> None:
    bench.publish()
    bench.deliver(bench.frame[:-1] + b"!")


def delivered_without_subscription(bench: Bench) -> None:
    bench.publish()
    bench.checker.joined(bench.cluster.peers[1], bench.part, False)
    bench.deliver()


def received_without_membership(bench: Bench) -> None:
    bench.checker.strict_noise = True
    bench.checker.left(bench.node, bench.part)
    packet = Received(bench.cluster.peers[1].id, b"\x01\x01\x01\x01\x01" + bench.frame)
    bench.checker.packet(bench.node, packet, bench.sim.now)


def bound_exceeded(bench: Bench) -> None:
    bench.node.machine.sizes = lambda: {"things": (3, 2)}  # type: ignore[method-assign]
    bench.checker.bounds()


def degree_too_low(bench: Bench) -> None:
    bench.sim.crash(bench.cluster.peers[4])
    bench.sim.run(bench.sim.now + 0.1)
    bench.checker.degrees(bench.part, bench.cluster.peers[:4])


def message_missing(bench: Bench) -> None:
    bench.publish()
    reach = {part_key(bench.part): reachable(bench.cluster, bench.part, bench.cluster.peers)}
    for text in bench.checker.missing([(bench.head.chain, bench.head.last)], reach):
        bench.checker.complain(text)


def sent_to_nobody(bench: Bench) -> None:
    bench.publish()
    bench.checker.accepted(bench.node, bench.head)  # its own frame came back
    bench.checker.outcome(bench.node, Outcome(1, "sent", 5), bench.sim.now)


def two_outcomes(bench: Bench) -> None:
    for result in ("queue-full", "no-neighbour"):
        bench.checker.outcome(bench.node, Outcome(1, result), bench.sim.now)


@pytest.mark.parametrize(
    ("story", "complaint"),
    [
        (delivered_twice, "twice"),
        (delivered_unpublished, "nobody published"),
        (delivered_changed, "nobody published"),
        (delivered_without_subscription, "without a subscription"),
        (received_without_membership, "not in"),
        (bound_exceeded, "3 things, bound 2"),
        (degree_too_low, "1 neighbours of 2"),
        (message_missing, "never got"),
        (two_outcomes, "two outcomes"),
        (sent_to_nobody, "nobody has it"),
    ],
)
def test_every_rule_can_be_broken(story: Callable[[Bench], None], complaint: str) -> None:
    bench = Bench()
    story(bench)
    assert any(complaint in text for text in bench.checker.violations), bench.checker.violations


def test_a_run_in_order_has_no_violation() -> None:
    bench = Bench()
    nothing_wrong(bench)
    assert bench.checker.violations == []


def test_a_new_life_may_see_a_message_again() -> None:
    bench = Bench()
    bench.publish()
    bench.deliver()
    bench.checker.died(bench.cluster.peers[1])
    bench.deliver()
    assert bench.checker.violations == []


def test_reachable_counts_only_paths_over_the_nodes_it_is_given() -> None:
    bench = Bench()  # a ring of five
    whole = reachable(bench.cluster, bench.part, bench.cluster.peers)
    assert all(len(component) == 5 for component in whole.values())
    ring = bench.cluster.neighbours(bench.node, bench.part)
    without = [node for node in bench.cluster.peers if node.id not in ring]
    assert len(reachable(bench.cluster, bench.part, without)[bench.node.id]) == 1
