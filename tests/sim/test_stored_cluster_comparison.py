"""Storage nodes that were away, or started late: what members still hold is stored in the end."""

import msgspec
import pytest

from anabranch.core.machine import Draft, Effect, Event, Send
from anabranch.core.messages import Lacking, Ranges
from anabranch.sim.byzantine import BYZANTINE, Byzantine
from anabranch.sim.network import Constant, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import StorageChecker
from anabranch.sim.stored_cluster import StoredCluster

FOUND_S = 20.0  # after which everything that members hold is stored


class Town:
    """Nodes that read a stream in order, and its storage nodes."""

    def __init__(
        self, seed: int = 1, storage: int = 3, disguises: dict[int, str] | None = None
    ) -> None:
        self.sim = Simulator(Constant(5), seed)
        self.cluster = StoredCluster(self.sim, seed, 8, storage=storage, disguises=disguises or {})
        self.part = self.cluster.parts[0]
        self.checker = StorageChecker(self.cluster, "random-regular")
        self.sim.observer = self.checker
        for node in self.cluster.peers:
            self.checker.joined(node, self.part, True)
            self.cluster.subscribe(node, self.part)
        self.tickets = 0
        self.run(10.0)

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def publish(self, node: SimNode, count: int, every_s: float = 0.0) -> None:
        for _ in range(count):
            self.tickets += 1
            draft = Draft(b"message %d" % self.tickets, ticket=self.tickets)
            self.cluster.offer(node, self.part, [draft])
            self.run(every_s)

    def stop(self, *nodes: SimNode) -> None:
        for node in nodes:
            self.sim.crash(node)
            self.checker.died(node)

    def lost(self) -> int:
        """How many of all frames that were ever published are not stored."""
        self.checker.settled()
        assert self.checker.violations == []
        stored = self.checker._logged(self.part)
        return sum(name not in stored for name in self.checker.frames)

    @property
    def taken(self) -> int:
        """How many frames came to storage nodes by comparison."""
        return sum(log.comparisons.counts["taken"] for log in self.cluster.logs.values())


@pytest.mark.parametrize("storage", [1, 3])
def test_what_was_published_while_storage_nodes_were_away_is_stored(storage: int) -> None:
    town = Town(storage=storage)
    publisher = town.cluster.peers[0]
    town.stop(*town.cluster.storage)
    town.publish(publisher, 300, every_s=0.01)
    town.run(3.0)
    town.stop(publisher)
    for node in town.cluster.storage:
        town.cluster.restart(node)
    town.run(FOUND_S)
    assert len(town.checker.frames) == 300
    assert town.lost() == 0


def test_storage_nodes_that_end_while_a_publisher_is_at_work_have_everything_later() -> None:
    town = Town()
    publisher, away = town.cluster.peers[0], town.cluster.storage
    for index, node in enumerate(away):
        town.sim.at(town.sim.now + 1.0 + index / 10, lambda node=node: town.stop(node))  # type: ignore[misc]
        town.sim.at(town.sim.now + 5.0, lambda node=node: town.cluster.restart(node))  # type: ignore[misc]
    town.publish(publisher, 300, every_s=0.01)
    town.stop(publisher)
    town.run(5.0 + FOUND_S)
    assert town.lost() == 0


def test_what_storage_nodes_missed_unreachable_for_a_while_is_stored() -> None:
    town = Town()
    town.sim.partition({node.id: 1 for node in town.cluster.storage})
    town.publish(town.cluster.peers[0], 200, every_s=0.005)
    town.run(2.0)
    town.stop(town.cluster.peers[0])
    town.sim.partition({})
    town.run(2 * FOUND_S)
    assert town.lost() == 0


def test_frames_that_are_an_hour_old_are_stored_when_a_storage_node_comes_back() -> None:
    town = Town(storage=1)
    [storage] = town.cluster.storage
    town.stop(storage)
    town.publish(town.cluster.peers[0], 20, every_s=0.1)
    town.stop(town.cluster.peers[0])
    town.run(3_600.0)
    town.cluster.restart(storage)
    town.run(FOUND_S)
    assert town.lost() == 0


def test_a_run_without_faults_hands_over_nothing() -> None:
    town = Town()
    for node in town.cluster.peers[:3]:
        town.publish(node, 200, every_s=0.05)
    town.run(FOUND_S)
    assert town.lost() == 0
    assert town.taken == 0


def test_readers_get_each_message_once_though_it_is_stored_late() -> None:
    town = Town(storage=1)
    [storage] = town.cluster.storage
    town.stop(storage)
    town.publish(town.cluster.peers[0], 50, every_s=0.01)
    town.run(5.0)
    town.cluster.restart(storage)
    town.run(3 * FOUND_S)  # in which readers compare the log's length with what has come to them
    assert town.taken == 50
    assert town.lost() == 0  # a message that is delivered twice is a violation
    reads = town.checker.read_all()
    town.run(10.0)
    town.checker.check_reads(reads)
    assert town.checker.violations == []


class Boasting(Byzantine):
    """Claims frames that it does not have."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        return [
            Send(e.to, _boasted(e.message)) if type(e) is Send and type(e.message) is Ranges else e
            for e in effects
        ]


class Withholding(Byzantine):
    """Claims frames that it has, and does not hand them over."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        return [
            Send(e.to, Lacking(ticket=e.message.ticket))
            if type(e) is Send and type(e.message) is Lacking
            else e
            for e in effects
        ]


def _boasted(report: Ranges) -> Ranges:
    ranges = tuple(
        msgspec.structs.replace(each, count=each.count + 5, digest=b"x" * 16)
        for each in report.ranges
    )
    return msgspec.structs.replace(report, ranges=ranges)


@pytest.mark.parametrize("kind", [Boasting, Withholding])
def test_members_that_lie_keep_nothing_from_being_stored(
    kind: type[Byzantine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BYZANTINE, "lying", kind)
    town = Town(disguises=dict.fromkeys(range(2, 8), "lying"))
    town.stop(*town.cluster.storage)
    town.publish(town.cluster.peers[0], 100, every_s=0.01)
    town.run(3.0)
    town.stop(town.cluster.peers[0])  # a publisher hands over its own frames itself
    for node in town.cluster.storage:
        town.cluster.restart(node)
    town.run(6 * FOUND_S)
    assert town.lost() == 0
    assert any(node.machine.sizes()["bans"][0] for node in town.cluster.storage)


def test_a_comparison_is_a_function_of_the_seed() -> None:
    counts = []
    for seed in (3, 3):
        town = Town(seed)
        town.stop(*town.cluster.storage)
        town.publish(town.cluster.peers[0], 50)
        for node in town.cluster.storage:
            town.cluster.restart(node)
        town.run(FOUND_S)
        counts.append((town.sim.handled, town.sim.sent_frames, town.taken))
    assert counts[0] == counts[1]
    assert town.sim.now > START_AT
