"""The order of each publisher's frames in the log, while the leader changes again and again."""

import random
from collections.abc import Callable
from functools import partial

import pytest

from anabranch.core.frames import peek
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Draft
from anabranch.core.messages.storage import LATE, MAX_NUMBER, Selection
from anabranch.core.store import Page, Placed
from anabranch.sim.network import NO_FAULTS, Constant, PacketFaults, SimNode
from anabranch.sim.simulator import Simulator
from anabranch.sim.storage_checker import StorageChecker, mark_after
from anabranch.sim.stored_cluster import StoredCluster

RATE_PER_S = 3.0  # frames of each publisher
PUBLISHERS = 3
REST_S = 1.5  # from one change to the next
STEP_S = 0.25
REORDERED = PacketFaults(reordering=0.2, reordering_ms=300.0)  # frames overtake each other


class Town:
    """Publishers that never rest, and three storage nodes."""

    def __init__(self, seed: int) -> None:
        self.sim = Simulator(Constant(5), seed)
        self.cluster = StoredCluster(self.sim, seed, 8, storage=3)
        self.part: StreamPart = self.cluster.parts[0]
        self.checker = StorageChecker(self.cluster, "random-regular")
        self.sim.observer = self.checker
        for node in self.cluster.peers:
            self.checker.joined(node, self.part, True)
            self.cluster.subscribe(node, self.part)
        self.rng = random.Random(seed)
        self.tickets = 0
        self.until = 0.0
        self.run(10.0)

    def run(self, seconds: float) -> None:
        self.sim.run(self.sim.now + seconds)

    def publish(self, node: SimNode) -> None:
        """Publish a message, and another one in a while."""
        self.tickets += 1
        self.cluster.offer(node, self.part, [Draft(b"%d" % self.tickets, ticket=self.tickets)])
        if self.sim.now < self.until:
            wait_s = self.rng.expovariate(RATE_PER_S)
            self.sim.at(self.sim.now + wait_s, partial(self.publish, node))

    def epoch(self) -> int:
        states = [state for node in self.cluster.storage for state in node.disk.logs.states()]
        return max((state.epoch for state in states), default=0)

    def leaders(self) -> list[SimNode]:
        """Who leads in the newest epoch: at most one."""
        epoch = self.epoch()
        statuses = [
            (n, self.cluster.logs[n.id].status(self.part)) for n in self.cluster.primaries()
        ]
        return [node for node, status in statuses if status is not None and status.epoch == epoch]

    def wait_for_leader(self, before: SimNode | None = None) -> SimNode:
        """Wait until a node leads, and not the one before."""
        while self.leaders() in ([], [before]):
            self.run(STEP_S)
            assert self.sim.now < self.until, "there is no leader any more"
        return self.leaders()[0]

    def wait_for_followers(self) -> SimNode:
        """Wait until all storage nodes follow one leader; return it."""
        while True:
            leader = self.wait_for_leader()
            statuses = [log.status(self.part) for log in self.cluster.logs.values()]
            if all(status is not None and status.primary == leader.id for status in statuses):
                return leader
            self.run(STEP_S)

    def log(self) -> list[Placed]:
        placed: list[Placed] = []
        following: Selection | None = Selection()
        while following is not None:
            query = Page(self.part, following, MAX_NUMBER, 1 << 40)
            found = self.cluster.storage[0].disk.logs.find(query)
            placed += found.placed
            following = found.following
        return placed


def depose_by_crash(town: Town, leader: SimNode) -> None:
    """Kill the leader, and start it again when another one leads."""
    town.sim.crash(leader)
    town.checker.died(leader)
    town.wait_for_leader(leader)
    town.cluster.restart(leader)


def depose_by_partition(town: Town, leader: SimNode) -> None:
    """Cut half of the nodes off with the leader, and let them come back when another one leads.

    What their publishers publish meanwhile reaches the next leader later than what follows.
    """
    apart = [leader, *town.cluster.peers[::2]]
    town.sim.partition({node.id: 1 for node in apart})
    town.wait_for_leader(leader)
    town.sim.partition({})


@pytest.mark.parametrize(
    ("depose", "changes", "is_reachable"),
    [(depose_by_crash, 100, True), (depose_by_partition, 10, False)],
)
def test_log_after_many_changes_of_the_leader_has_each_chain_in_order(
    depose: Callable[[Town, SimNode], None], changes: int, is_reachable: bool
) -> None:
    town = Town(seed=1)
    town.until = town.sim.now + 60 * changes
    for node in town.cluster.peers[:PUBLISHERS]:
        town.publish(node)
    first = town.epoch()
    town.sim.faults = REORDERED
    for _ in range(changes):
        depose(town, town.wait_for_followers())
        town.run(REST_S)
    town.sim.faults = NO_FAULTS
    town.until = 0.0
    town.run(60.0)
    assert town.epoch() >= first + changes
    newest: dict[bytes, int] = {}
    late = inversions = 0
    rows = town.log()
    for row in rows:
        head, mark = peek(row.entry.frame), row.entry.mark
        before = newest.get(head.chain, 0)
        assert mark == mark_after(before, head.previous)
        inversions += head.last <= before and mark != LATE
        late += mark == LATE
        newest[head.chain] = max(before, head.last)
    assert len(rows) == len(town.checker.frames) > PUBLISHERS * RATE_PER_S * changes * REST_S
    assert inversions == 0
    # What nobody can reach for longer than a chain waits is lost for that time.
    assert late == 0 or not is_reachable
    town.checker.settled()
    assert town.checker.violations == []
