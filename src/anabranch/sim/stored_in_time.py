"""Checks that every message which a living node holds is stored within a few seconds of calm.

It is calm while no fault is at work and the storage nodes have settled: each of them has the
neighbours and the leader that it had a moment before, and nothing on their disks is damaged. A
node holds the frames that it has forwarded lately, and those of its own that are not stored yet.
"""

from collections.abc import Callable, Iterable

from anabranch.core.frames import peek
from anabranch.core.ids import SEQUENCE_BITS, ChainKey, FrameHead, StreamPart, show
from anabranch.core.peer import Peer
from anabranch.core.store import LogState
from anabranch.sim.disks import READ_S, WRITE_S
from anabranch.sim.network import NO_FAULTS, SimNode
from anabranch.sim.stored_cluster import StoredCluster

WITHIN_S = 10.0

Name = tuple[ChainKey, int]  # of a frame: its chain and its last number


class StoredInTime:
    """Watches how long frames are held by some node, and by no storage node."""

    def __init__(self, cluster: StoredCluster, complain: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._complain = complain
        self._settled: object = None
        self._calm_since = 0.0
        self._seen: dict[StreamPart, set[Name]] = {}  # stored, or complained of
        self.checked = 0  # frames

    def look(self) -> None:
        """Check what is held, once it has been calm for long enough."""
        now = self._cluster.sim.now
        settled = self._state()
        if settled is None or settled != self._settled:
            self._settled, self._calm_since = settled, now
        if settled is None or now < self._calm_since + WITHIN_S:
            return
        for part in self._cluster.parts:
            self._check(part, now)

    def _check(self, part: StreamPart, now: float) -> None:
        seen = self._seen.setdefault(part, set())
        stored: set[Name] | None = None
        for node in self._cluster.honest:
            for head in self._held(node, part):
                name = (head.chain, head.last)
                if name in seen or head.last >> SEQUENCE_BITS > (now - WITHIN_S) * 1000:
                    continue
                stored = self._stored(part) if stored is None else stored
                if name not in stored:
                    self._complain(
                        f"{show(node.id)} holds {head.last} of {show(head.publisher)}, which is "
                        f"not stored after {WITHIN_S:.0f} s of calm"
                    )
                seen.add(name)
                self.checked += 1

    def _held(self, node: SimNode, part: StreamPart) -> Iterable[FrameHead]:
        if not node.alive or not isinstance(node.machine, Peer):
            return []
        return map(peek, node.machine.held_frames(part))

    def _stored(self, part: StreamPart) -> set[Name]:
        """Return the frames that lie below the high-water mark of some storage node."""
        stored: set[Name] = set()
        for node in self._cluster.storage:
            high = next((s.high for s in node.disk.logs.states() if s.part == part), 0)
            rows = node.disk.logs.names(part)
            stored |= {(name.chain, name.last) for at, name in rows if at is not None and at < high}
        return stored

    def _state(self) -> object:
        """Return what stays as it is while all is calm; None while it is not."""
        cluster, sim = self._cluster, self._cluster.sim
        nodes = [*cluster.peers, *cluster.storage, *cluster.trackers]
        is_up = all(node.alive and not node.side for node in nodes)
        lanes = [lane for node in nodes for lane in node.lanes.values()]
        if sim.faults is not NO_FAULTS or not is_up or any(lane.full(sim.now) for lane in lanes):
            return None
        if not all(map(self._is_well, cluster.storage)):
            return None
        leaders = [
            (cluster.logs[node.id].status(part), cluster.neighbours(node, part))
            for node in cluster.storage
            for part in cluster.parts
        ]
        if any(status is None or status.primary is None for status, _ in leaders):
            return None
        return [(status.epoch, status.primary, near) for status, near in leaders if status]

    def _is_well(self, node: SimNode) -> bool:
        disk = node.disk
        is_quick = (disk.write_s, disk.read_s) == (WRITE_S, READ_S)
        is_whole = not len(disk.rot) and not any(map(_missing, disk.logs.states()))
        return is_quick and is_whole and not disk.problem and not disk.read_problem


def _missing(state: LogState) -> bool:
    return bool(state.missing)
