"""Faults of the disks of storage nodes: rows that rot, lost pages, slow and forgetful disks.

Rot is latent (rot.py). A row rots at a minority of the storage nodes only: what a majority has,
can be repaired. The machine hears of damage that its disk has found a moment later, as on a real
disk. At a crash, a write that is under way is done or not done.

A node forgets only after a crash: the end of its logs, while their records stay; or all that came
after a backup, with the records. A minority of the nodes may have forgotten something at a time,
and only while no row is damaged elsewhere.

An operator may restore a backup and not say so. That is safe if all other nodes have the log of the
node that is restored, and its mark of the same epoch: the node learns from any of them that its
backup is old. Only then is a backup restored in this way.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Damaged
from anabranch.core.messages.storage import FrameName
from anabranch.core.store import LogState, Missing, Rank
from anabranch.sim.disks import READ_S, WRITE_S
from anabranch.sim.network import SimNode
from anabranch.sim.simulator import Simulator
from anabranch.sim.stores import MemoryStore

DISK_KINDS = (
    "rotten rows",
    "slow disks",
    "unreadable disks",
    "lost tails",
    "restored backups",
    "unflagged backups",
)
TOLD_EVERY_S = 1.0  # how often a storage node looks whether its disk has found damage


class DiskFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may befall the disks of storage nodes; `every_s` is a mean time, 0 turns it off."""

    row_rots_every_s: float = 0.0
    page_lost_every_s: float = 0.0  # some rows of a log, one behind the other
    page_rows: int = 8  # at most
    scrub_s: float = 10.0  # within this time the scrub finds what no query has read
    slow_every_s: float = 0.0
    slow_for_s: float = 5.0
    slow_s: float = 1.0  # what a slow disk takes for each write and each query, at most
    unreadable_every_s: float = 0.0  # every query fails
    unreadable_for_s: float = 3.0
    power_cut_every_s: float = 0.0  # of all storage nodes at once
    power_cut_for_s: float = 3.0
    done_at_crash: float = 0.0  # probability: a write that is under way at a crash is done
    tail_lost_every_s: float = 0.0  # a storage node crashes, and the ends of its logs are lost
    tail_messages: int = 100  # at most
    backup_restored_every_s: float = 0.0  # a storage node crashes, and has an old backup then
    backup_every_s: float = 5.0  # how often one is made
    unflagged: float = 0.0  # probability: the operator does not say so, where the others know
    forgets_for_s: float = 3.0  # how long the node is down


NO_DISK_FAULTS = DiskFaults()

Repeat = Callable[[float, Callable[[], None]], None]  # mean time between two of a kind
Later = Callable[[float, Callable[[], None]], None]
Stop = Callable[[SimNode, float], None]  # crash a storage node, to start again after a while


class DiskMishaps:
    """Brings faults of disks about."""

    def __init__(
        self,
        sim: Simulator,
        storage: Sequence[SimNode],
        parts: Sequence[StreamPart],
        faults: DiskFaults,
        rng: random.Random,
        counts: dict[str, int],
    ) -> None:
        self._sim = sim
        self._storage = storage
        self._parts = parts
        self._faults = faults
        self._rng = rng
        self._owed: dict[NodeId, dict[StreamPart, Rank]] = {}  # of nodes that have forgotten it
        self._backups: dict[NodeId, MemoryStore] = {}
        self._known: dict[NodeId, tuple[object, dict[StreamPart, tuple[Missing, ...]]]] = {}
        self._counts = counts

    def start(self, repeat: Repeat, later: Later, stop: Stop) -> None:
        """Begin."""
        faults = self._faults
        if faults == NO_DISK_FAULTS:
            return
        for node in self._storage:
            node.disk.done_at_crash = self._done_at_crash
            node.disk.steps_at_crash = self._steps_at_crash
        repeat(faults.row_rots_every_s, lambda: self._rot(1, later))
        repeat(faults.page_lost_every_s, lambda: self._rot(faults.page_rows, later))
        repeat(faults.slow_every_s, lambda: self._slow(later))
        repeat(faults.unreadable_every_s, lambda: self._fail_to_read(later))
        repeat(faults.tail_lost_every_s, lambda: self._forget(stop, self._lose_tail))
        repeat(faults.backup_restored_every_s, lambda: self._forget(stop, self._restore))
        if faults.backup_restored_every_s:
            repeat(faults.backup_every_s, self._back_up)
        self._tell_damage()

    def heal(self) -> None:
        """Let disks be fast and readable; rot stays until it is found and repaired."""
        for node in self._storage:
            self._quicken(node)
            node.disk.read_problem = ""

    # --- Rot ------------------------------------------------------------------------------

    def _rot(self, most: int, later: Later) -> None:
        """Damage some rows of a log, one behind the other, at a minority of the nodes."""
        node, part = self._rng.choice(self._storage), self._rng.choice(self._parts)
        rows = node.disk.logs.names(part)
        if not rows:
            return
        at = self._rng.randrange(len(rows))
        rows = rows[at : at + self._rng.randint(1, most)]
        spare = [self._spare(part, offset, name) for offset, name in rows]
        others = [each for each in self._storage if each is not node]
        many = self._rng.randint(1, max(1, min(spare)))
        for each in [node, *self._rng.sample(others, many - 1)]:
            self._damage(each, part, rows)
            later(self._rng.random() * self._faults.scrub_s, lambda each=each: self._scrub(each))  # type: ignore[misc]

    def _spare(self, part: StreamPart, offset: int | None, name: FrameName) -> int:
        """Return at how many storage nodes a row may rot besides those where it has."""
        if self._has_forgetful():
            return 0
        harmed = sum(self._is_harmed(each, part, offset, name) for each in self._storage)
        return (len(self._storage) - 1) // 2 - harmed

    def _is_harmed(
        self, node: SimNode, part: StreamPart, offset: int | None, name: FrameName
    ) -> bool:
        states = [state for state in node.disk.logs.states() if state.part == part]
        holes = [hole for state in states for hole in state.missing]
        in_hole = offset is not None and any(hole.start <= offset < hole.end for hole in holes)
        return in_hole or node.disk.rot.has(part, name)

    def _damage(
        self, node: SimNode, part: StreamPart, rows: Sequence[tuple[int | None, FrameName]]
    ) -> None:
        for offset, name in rows:
            if node.disk.logs.has(part, name) and self._spare(part, offset, name) > 0:
                self._counts["rotten rows"] += 1
                node.disk.rot.add(part, name)

    def _scrub(self, node: SimNode) -> None:
        """Let the scrub of a node come past; while the node is down nothing is read."""
        if node.alive:
            node.disk.rot.scrub()
        else:
            self._sim.at(self._sim.now + 1.0, lambda: self._scrub(node))

    def _tell_damage(self) -> None:
        """Tell machines what their disks have found, as long as the run goes on."""
        for node in self._storage:
            states = node.disk.logs.states()
            missing = {state.part: state.missing for state in states if state.missing}
            life, known = self._known.get(node.id, (node.machine, {}))
            if not node.alive or life is not node.machine:
                known = missing  # a machine that starts knows the states of its logs
            self._known[node.id] = (node.machine, missing)
            for part in dict.fromkeys([*missing, *known]):
                if missing.get(part) != known.get(part):
                    self._sim.tell(node, Damaged(part))
        self._sim.at(self._sim.now + TOLD_EVERY_S, self._tell_damage)

    # --- Forgetful disks ------------------------------------------------------------------

    def _forget(self, stop: Stop, how: Callable[[SimNode], None]) -> None:
        """Let a node crash and forget something, if the others can have it."""
        node = self._rng.choice(self._storage)
        forgetful = [each for each in self._storage if self._is_forgetful(each)]
        others = [each for each in self._storage if each is not node]
        is_too_much = len(forgetful) + (node not in forgetful) > (len(self._storage) - 1) // 2
        if not node.alive or is_too_much or any(map(_is_damaged, others)):
            return
        owed = {state.part: state.rank for state in node.disk.logs.states()}
        before = self._owed.get(node.id, {}) if node in forgetful else {}
        self._owed[node.id] = {part: max(owed[part], before.get(part, (0, 0))) for part in owed}
        stop(node, self._faults.forgets_for_s * self._rng.uniform(0.5, 1.5))
        how(node)

    def _lose_tail(self, node: SimNode) -> None:
        self._counts["lost tails"] += 1
        for state in node.disk.logs.states():
            lost = self._rng.randint(0, self._faults.tail_messages)
            node.disk.logs.forget(state.part, max(state.start, state.length - lost))

    def _restore(self, node: SimNode) -> None:
        """Put an old backup in the place of the node's folder; the operator may not say so."""
        backup = self._backups.get(node.id)
        if backup is None:
            return
        is_flagged = not (self._rng.random() < self._faults.unflagged and self._is_known(node))
        self._counts["restored backups" if is_flagged else "unflagged backups"] += 1
        node.disk.logs.restore(backup)
        if is_flagged:
            node.disk.logs.require_recovery()

    def _is_known(self, node: SimNode) -> bool:
        """Tell whether all others have the logs of a node, and its marks of the same epochs."""
        others = [each for each in self._storage if each is not node]
        if not others or any(map(self._is_forgetful, others)):
            return False
        known = [{state.part: state for state in each.disk.logs.states()} for each in others]
        return all(
            state.part in states and knows(states[state.part], node.id, state)
            for state in node.disk.logs.states()
            for states in known
        )

    def _back_up(self) -> None:
        for node in self._storage:
            self._backups[node.id] = node.disk.logs.copy()

    def _is_forgetful(self, node: SimNode) -> bool:
        """Tell whether a node still lacks what it had before it forgot."""
        owed = self._owed.get(node.id)
        if owed is None:
            return False
        states = node.disk.logs.states()
        ranks = {state.part: state.rank for state in states}
        has_all = all(ranks.get(part, (0, 0)) >= rank for part, rank in owed.items())
        if has_all and not any(state.is_restored for state in states):
            del self._owed[node.id]
            return False
        return True

    def _has_forgetful(self) -> bool:
        return any(map(self._is_forgetful, self._storage))

    # --- Slow and failing disks -----------------------------------------------------------

    def _slow(self, later: Later) -> None:
        node, slow_s = self._rng.choice(self._storage), self._faults.slow_s
        self._counts["slow disks"] += 1
        node.disk.write_s, node.disk.read_s = (self._rng.uniform(0, slow_s) for _ in range(2))
        later(self._faults.slow_for_s, lambda: self._quicken(node))

    def _quicken(self, node: SimNode) -> None:
        node.disk.write_s, node.disk.read_s = WRITE_S, READ_S

    def _fail_to_read(self, later: Later) -> None:
        """Let every query fail, most often where something is being repaired."""
        holed = [each for each in self._storage if each.alive and _has_holes(each)]
        node = self._rng.choice(holed or self._storage)
        self._counts["unreadable disks"] += 1
        node.disk.read_problem = "the disk cannot be read"

        def recover() -> None:
            node.disk.read_problem = ""

        later(self._faults.unreadable_for_s, recover)

    def _done_at_crash(self, under_way: int) -> int:
        """Return how many of the writes that are under way are done, in their order."""
        done = 0
        while done < under_way and self._rng.random() < self._faults.done_at_crash:
            done += 1
        return done

    def _steps_at_crash(self) -> int:
        """Return how many steps of the next write are done: its record lowered, its log written."""
        return self._rng.randrange(3) if self._faults.done_at_crash else 0


def knows(state: LogState, node: NodeId, other: LogState) -> bool:
    """Tell whether a storage node has the log of another one, and its mark of the same epoch."""
    if other.epoch != other.log_epoch or state.log_epoch != other.log_epoch:
        return False
    is_marked = any((mark.node, mark.epoch) == (node, other.epoch) for mark in state.marks)
    return is_marked and state.length >= other.length


def _is_damaged(node: SimNode) -> bool:
    return len(node.disk.rot) > 0 or _has_holes(node)


def _has_holes(node: SimNode) -> bool:
    return any(state.missing for state in node.disk.logs.states())
