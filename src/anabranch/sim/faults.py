"""What goes wrong in a run, and when: crashes, churn, partitions, clogs. Each one named field.

Times are in seconds; `every_s` is the mean time between two faults of a kind, 0 turns it off.
"""

import random
from collections.abc import Callable

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.sim.checkers import Checker
from anabranch.sim.cluster import Cluster
from anabranch.sim.disk_faults import DISK_KINDS, NO_DISK_FAULTS, DiskFaults, DiskMishaps
from anabranch.sim.network import NO_FAULTS, PacketFaults, SimNode

NOT_THE_PRIMARY = 0.2  # probability: a storage node crashes that may not be one


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that may befall a network."""

    packets: PacketFaults = NO_FAULTS
    crash_every_s: float = 0.0
    crash_for_s: float = 5.0  # then it restarts, with the same identity
    crash_silently: float = 0.5  # probability: peers see no link close, only silence
    churn_every_s: float = 0.0  # a node leaves in good order,
    churn_for_s: float = 5.0  # and comes back
    tracker_crash_every_s: float = 0.0
    tracker_crash_for_s: float = 5.0
    partition_every_s: float = 0.0
    partition_for_s: float = 8.0
    storage_crash_every_s: float = 0.0  # of storage nodes, most often one that is a primary
    storage_crash_for_s: float = 5.0
    disk_full_every_s: float = 0.0  # a storage node can write nothing
    disk_full_for_s: float = 3.0
    clog_every_s: float = 0.0
    clog_for_s: float = 2.0
    disks: DiskFaults = NO_DISK_FAULTS  # of storage nodes


class Mishaps:
    """Brings the faults about, and undoes them all in the end."""

    def __init__(
        self, cluster: Cluster, checker: Checker, faults: Faults, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._checker = checker
        self._faults = faults
        self._rng = rng
        self._until = 0.0
        self.away: dict[NodeId, dict[StreamPart, bool]] = {}  # who is out, and what it was in
        self.members: dict[NodeId, dict[StreamPart, bool]] = {}  # value: whether it subscribes
        self.counts = {"crashes": 0, "churns": 0, "tracker crashes": 0, "partitions": 0, "clogs": 0}
        if cluster.storage:
            self.counts |= {"storage crashes": 0, "full disks": 0, "power cuts": 0}
            self.counts |= dict.fromkeys(DISK_KINDS, 0)
        disks = (cluster.sim, cluster.storage, cluster.parts, faults.disks)
        self._disks = DiskMishaps(*disks, rng, self.counts)
        self.unbroken = {node.id: None for node in cluster.peers}  # alive and a member throughout

    def join(self, node: SimNode, part: StreamPart, subscribes: bool) -> None:
        """Let a node be a member, as one that subscribes or one that only publishes."""
        self._checker.joined(node, part, subscribes)
        self.members.setdefault(node.id, {})[part] = subscribes
        if subscribes:
            self._cluster.subscribe(node, part)

    def start(self, until: float) -> None:
        """Begin."""
        self._until = until
        sim, faults = self._cluster.sim, self._faults
        sim.faults = faults.packets if faults.packets.any() else NO_FAULTS
        self._repeat(faults.crash_every_s, self._crash_one)
        self._repeat(faults.churn_every_s, self._churn_one)
        self._repeat(faults.tracker_crash_every_s, self._crash_tracker)
        self._repeat(faults.partition_every_s, self._partition)
        if self._cluster.storage:
            self._repeat(faults.storage_crash_every_s, self._crash_storage)
            self._repeat(faults.disk_full_every_s, self._fill_disk)
            self._repeat(faults.disks.power_cut_every_s, self._cut_power)
            self._disks.start(self._repeat, self._later, self._stop_storage)
        self._repeat(faults.clog_every_s, self._clog_one)

    def heal(self) -> None:
        """Let everything be well again."""
        self._cluster.sim.faults = NO_FAULTS
        self._cluster.sim.partition({})
        for tracker in self._cluster.trackers:
            self._restart_tracker(tracker)
        self._disks.heal()
        for node in self._cluster.storage:
            node.disk.problem = ""
            self._restart_storage(node)
        for node in self._cluster.peers:
            self._come_back(node)

    def crash(self, node: SimNode, silently: bool) -> None:
        """Kill a node, to start again later."""
        if not node.alive:
            return
        self.counts["crashes"] += 1
        self.unbroken.pop(node.id, None)
        self.away.setdefault(node.id, self.members.pop(node.id, {}))
        self._cluster.sim.crash(node, silently)
        self._checker.died(node)
        self._later(self._faults.crash_for_s, lambda: self._come_back(node))

    def crash_tracker(self, tracker: SimNode) -> None:
        """Kill a tracker, to start again later."""
        if tracker.alive:
            self.counts["tracker crashes"] += 1
            self._cluster.sim.crash(tracker)
            self._later(self._faults.tracker_crash_for_s, lambda: self._restart_tracker(tracker))

    def _crash_one(self) -> None:
        node = self._rng.choice(self._cluster.peers)
        self.crash(node, self._rng.random() < self._faults.crash_silently)

    def _churn_one(self) -> None:
        node = self._rng.choice(self._cluster.peers)
        if node.id in self.away or not node.alive:
            return
        self.counts["churns"] += 1
        self.unbroken.pop(node.id, None)
        self.away[node.id] = self.members.pop(node.id, {})
        for part in self.away[node.id]:
            self._checker.left(node, part)
            self._cluster.unsubscribe(node, part)
        self._later(self._faults.churn_for_s, lambda: self._come_back(node))

    def _come_back(self, node: SimNode) -> None:
        was_in = self.away.pop(node.id, None)
        if was_in is None:
            return
        if not node.alive:
            self._cluster.restart(node)
        else:
            self._checker.died(node)  # what it saw before it left is a closed chapter
        for part, subscribes in was_in.items():
            self.join(node, part, subscribes)

    def _crash_tracker(self) -> None:
        self.crash_tracker(self._rng.choice(self._cluster.trackers))

    def _restart_tracker(self, tracker: SimNode) -> None:
        if not tracker.alive:
            self._cluster.restart(tracker)

    def _crash_storage(self) -> None:
        node = self._rng.choice(self._cluster.primaries() or self._cluster.storage)
        if self._rng.random() < NOT_THE_PRIMARY:
            node = self._rng.choice(self._cluster.storage)
        if node.alive:
            self.counts["storage crashes"] += 1
            self._stop_storage(node, self._faults.storage_crash_for_s)

    def _stop_storage(self, node: SimNode, seconds: float) -> None:
        """Kill a storage node, to start again later."""
        self._cluster.sim.crash(node, self._rng.random() < self._faults.crash_silently)
        self._later(seconds, lambda: self._restart_storage(node))

    def _cut_power(self) -> None:
        """Kill all storage nodes at once; each starts again in its own time."""
        self.counts["power cuts"] += 1
        for node in self._cluster.storage:
            if node.alive:
                self._stop_storage(
                    node, self._faults.disks.power_cut_for_s * self._rng.uniform(0.5, 1.5)
                )

    def _restart_storage(self, node: SimNode) -> None:
        if not node.alive:
            self._cluster.restart(node)

    def _fill_disk(self) -> None:
        node = self._rng.choice(self._cluster.storage)
        self.counts["full disks"] += 1
        node.disk.problem = "no space"

        def empty() -> None:
            node.disk.problem = ""

        self._later(self._faults.disk_full_for_s, empty)

    def _partition(self) -> None:
        self.counts["partitions"] += 1
        everyone = [*self._cluster.peers, *self._cluster.trackers, *self._cluster.storage]
        self._cluster.sim.partition({node.id: self._rng.randrange(2) for node in everyone})
        self._later(self._faults.partition_for_s, lambda: self._cluster.sim.partition({}))

    def _clog_one(self) -> None:
        node = self._rng.choice(self._cluster.peers)
        if node.lanes:
            self.counts["clogs"] += 1
            self._cluster.sim.clog(
                node, self._rng.choice(list(node.lanes)), self._faults.clog_for_s
            )

    def _repeat(self, every_s: float, mishap: Callable[[], None]) -> None:
        """Let a mishap happen again and again, at random times, until the faults end."""
        if not every_s:
            return
        sim = self._cluster.sim
        at = sim.now + self._rng.expovariate(1 / every_s)
        if at < self._until:

            def happen() -> None:
                mishap()
                self._repeat(every_s, mishap)

            sim.at(at, happen)

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        self._cluster.sim.at(self._cluster.sim.now + after_s, action)
