"""Storage nodes that are cut at once, or forget, beyond what random scenarios may draw."""

import random

import pytest

from anabranch.core.ids import StreamPart
from anabranch.core.machine import Draft, LossAccepted, Notice
from anabranch.core.messages.storage import Selection
from anabranch.core.part_log import LogStatus
from anabranch.core.store import LogState
from anabranch.sim.disk_faults import knows
from anabranch.sim.network import Constant, SimNode
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import StorageChecker
from anabranch.sim.stored_cluster import StoredCluster

SEEDS = 20
PEERS = 2


class Listener(StorageChecker):
    """A storage checker that also keeps the notices of storage nodes."""

    def __init__(self, cluster: StoredCluster) -> None:
        super().__init__(cluster, "random-regular")
        self.notices: list[tuple[SimNode, str]] = []

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        super().noticed(node, notice, now)
        self.notices.append((node, notice.kind))

    def heard(self, kind: str) -> list[SimNode]:
        """Return the nodes that gave notices of a kind."""
        return [node for node, each in self.notices if each == kind]


class Outage:
    """Storage nodes and members that publish; disks are cut and forget as a test wants it."""

    def __init__(self, seed: int, storage: int = 3) -> None:
        self.rng = random.Random(f"{seed}/outage")
        self.sim = Simulator(Constant(self.rng.uniform(1, 40)), seed)
        copies = min(2, storage)
        self.cluster = StoredCluster(self.sim, seed, PEERS, storage=storage, copies=copies)
        self.part: StreamPart = self.cluster.parts[0]
        self.sim.observer = self.checker = Listener(self.cluster)
        self.ticket = 0
        for node in self.cluster.storage:
            node.disk.done_at_crash = lambda under_way: self.rng.randint(0, under_way)
            node.disk.steps_at_crash = lambda: self.rng.randrange(3)
        for node in self.cluster.peers:
            self.join(node)
        self.sim.run(START_AT + 5)

    @property
    def storage(self) -> list[SimNode]:
        return self.cluster.storage

    def join(self, node: SimNode) -> None:
        self.checker.joined(node, self.part, True)
        self.cluster.subscribe(node, self.part)

    def publish(self, messages: int) -> None:
        """Let some member publish messages together."""
        drafts = []
        for _ in range(messages):
            self.ticket += 1
            drafts.append(Draft(self.rng.randbytes(20), ticket=self.ticket))
        self.cluster.offer(self.rng.choice(self.cluster.peers), self.part, drafts)

    def load(self, seconds: float) -> None:
        """Let members publish."""
        until = self.sim.now + seconds
        while self.sim.now < until:
            self.publish(self.rng.choice([1, 1, 3]))
            self.sim.run(self.sim.now + self.rng.uniform(0.05, 0.8))
            self.checker.bounds()

    def cut(self, *nodes: SimNode) -> None:
        """Cut the power of some nodes at one instant, in the midst of what they are writing."""
        self.sim.run(self.sim.now + self.rng.uniform(0, 0.1))
        self.publish(1)
        self.sim.run(self.sim.now + self.rng.uniform(0, 0.2))
        for node in nodes:
            self.sim.crash(node)

    def restart_peers(self) -> None:
        """Let members crash, which have frames in memory that no disk has."""
        for node in self.cluster.peers:
            self.sim.crash(node)
            self.checker.died(node)
            self.cluster.restart(node)
            self.join(node)

    def forget(self, node: SimNode) -> None:
        """Let a node that is down lose some of the end of its log, while its record stays."""
        node.disk.logs.forget(self.part, self.rng.randrange(self.state(node).length))

    def state(self, node: SimNode) -> LogState:
        """Return how the log of a node stands on its disk."""
        [state] = node.disk.logs.states()
        return state

    def status(self, node: SimNode) -> LogStatus:
        """Return how a living node says that its log stands."""
        status = self.cluster.logs[node.id].status(self.part)
        assert status is not None
        return status

    def wait_without_offsets(self, seconds: int) -> None:
        """Publish while nobody may lead, or place anything beyond what is left."""
        alive = [node for node in self.storage if node.alive]
        longest = max(self.state(node).length for node in alive)
        for _ in range(seconds):
            self.load(1.0)
            assert self.cluster.primaries() == []
            assert all(self.state(node).length <= longest for node in alive)

    def check_that_histories_do_not_end_short(self) -> None:
        """Let a member read everything: it gets no end while the log is short."""
        ticket = self.cluster.next_ticket
        self.checker._histories[ticket] = []
        self.cluster.open(self.cluster.peers[1], self.part, Selection(), live=False)
        self.load(12.0)
        assert self.checker._ended.get(ticket, "it waits") != ""

    def accept_loss(self, node: SimNode) -> None:
        """Let the operator of one node give up what nobody has."""
        lost = self.status(node).lost
        assert lost is not None
        assert lost.is_waiting
        self.checker.accept_loss(self.part, lost.start, lost.end)
        self.sim.tell(node, LossAccepted(self.part.stream))

    def check_end(self) -> None:
        """Wait until all is well, and let everybody read everything."""
        self.load(2.0)
        self.sim.run(self.sim.now + 16.0)
        self.checker.settled()
        reads = self.checker.read_all()
        self.sim.run(self.sim.now + 5.0)
        self.checker.check_reads(reads)
        assert self.checker.violations == []
        for node in self.storage:
            assert self.status(node).lost is None
            assert self.state(node).owed == (0, 0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_cut_of_all_three_nodes_loses_nothing_and_marks_none(seed: int) -> None:
    outage = Outage(seed)
    outage.load(outage.rng.uniform(1, 5))
    for _ in range(2):
        outage.cut(*outage.storage)
        states = [outage.state(node) for node in outage.storage]
        assert not any(state.owed != (0, 0) or state.is_restored for state in states)
        outage.load(outage.rng.uniform(0, 2))
        for node in outage.rng.sample(outage.storage, 3):
            outage.cluster.restart(node)
            outage.load(outage.rng.uniform(0, 2))
        outage.load(outage.rng.uniform(0, 5))
    outage.check_end()
    assert outage.checker.heard("recovering") == []
    assert outage.checker.receipts > 10


def forget_at_two(seed: int) -> tuple[Outage, SimNode]:
    """Cut all three nodes, and let two of them forget; the third, which ranks highest, is down."""
    outage = Outage(seed)
    outage.load(outage.rng.uniform(4, 8))
    outage.cut(*outage.storage)
    keeper = max(outage.storage, key=lambda node: outage.state(node).rank)
    for node in outage.storage:
        if node is not keeper:
            outage.forget(node)
            outage.cluster.restart(node)
    return outage, keeper


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_of_three_that_forgot_wait_for_the_third_and_lose_nothing(seed: int) -> None:
    outage, keeper = forget_at_two(seed)
    outage.wait_without_offsets(8)
    outage.cluster.restart(keeper)
    outage.check_end()
    assert all(state.losses == () for state in map(outage.state, outage.storage))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_of_three_that_forgot_accept_no_loss_while_the_third_has_all(seed: int) -> None:
    outage, keeper = forget_at_two(seed)
    for node in outage.storage:
        if node is not keeper:
            outage.sim.tell(node, LossAccepted(outage.part.stream))
    outage.load(outage.rng.uniform(0, 2))
    outage.cluster.restart(keeper)
    outage.check_end()
    assert all(state.losses == () for state in map(outage.state, outage.storage))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_of_three_that_forgot_without_the_third_go_on_after_accept_loss(seed: int) -> None:
    outage, keeper = forget_at_two(seed)
    outage.storage.remove(keeper)  # it is gone for good, and the stream still names it
    if seed % 2:
        outage.restart_peers()
    outage.wait_without_offsets(8)
    receipts, before = outage.checker.receipts, list(map(outage.state, outage.storage))
    left = before[0].length
    for node in outage.rng.sample(outage.storage, 2):  # both are needed for a majority
        outage.wait_without_offsets(outage.rng.randint(0, 3))
        outage.accept_loss(node)
    outage.check_end()
    for state, node in zip(before, outage.storage, strict=True):
        [loss] = outage.state(node).losses
        assert (loss.start, loss.end) == (left, state.owed[1])
        assert outage.state(node).high > left
    assert outage.checker.receipts > receipts


@pytest.mark.parametrize("seed", range(SEEDS))
def test_only_node_that_forgot_gives_no_offset_until_accept_loss(seed: int) -> None:
    outage = Outage(seed, storage=1)
    [node] = outage.storage
    outage.load(outage.rng.uniform(4, 8))
    outage.cut(node)
    outage.forget(node)
    if seed % 2:
        outage.restart_peers()
    outage.cluster.restart(node)
    outage.wait_without_offsets(8)
    outage.check_that_histories_do_not_end_short()
    before = outage.state(node)
    outage.accept_loss(node)
    outage.check_end()
    [loss] = outage.state(node).losses
    assert (loss.start, loss.end) == (before.length, before.owed[1])
    assert outage.state(node).high > before.length
    assert outage.checker.heard("loss-accepted") == [node]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_old_backup_that_nobody_flagged_is_known_from_the_marks_of_others(seed: int) -> None:
    outage = Outage(seed)
    node = outage.rng.choice(outage.storage)
    outage.load(outage.rng.uniform(1, 5))
    backup = node.disk.logs.copy()
    outage.load(outage.rng.uniform(1, 8))
    outage.sim.run(outage.sim.now + 5.0)  # the others have its log, and a mark of it
    outage.cut(node)
    node.disk.logs.restore(backup)
    assert outage.state(node).owed == (0, 0)
    outage.load(outage.rng.uniform(0, 3))
    others = [each for each in outage.storage if each is not node]
    outage.cut(*others)
    outage.cluster.restart(node)
    for each in outage.rng.sample(others, 2):
        outage.load(outage.rng.uniform(0, 5))
        outage.cluster.restart(each)
    outage.check_end()
    assert outage.checker.heard("recovering") == [node]
    assert outage.checker.heard("recovered") == [node]


def test_log_is_known_to_a_node_that_has_all_of_it_and_a_mark_of_its_epoch() -> None:
    outage = Outage(1)
    outage.load(5.0)
    outage.sim.run(outage.sim.now + 5.0)
    one, other = outage.storage[:2]
    assert knows(outage.state(one), other.id, outage.state(other))
    assert not knows(outage.state(one), outage.cluster.peers[0].id, outage.state(other))
    outage.sim.crash(one)
    outage.forget(one)
    assert not knows(outage.state(one), other.id, outage.state(other))
