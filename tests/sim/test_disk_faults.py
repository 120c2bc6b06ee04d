"""Disks rot at a minority of the storage nodes, are slow, fail and forget; and all of it ends."""

import random
from typing import Any

import pytest

from anabranch.core.machine import Draft
from anabranch.sim.disk_faults import DISK_KINDS, DiskFaults
from anabranch.sim.disks import READ_S, WRITE_S
from anabranch.sim.faults import Faults, Mishaps
from anabranch.sim.network import Constant
from anabranch.sim.scenario import Run, load
from anabranch.sim.simulator import START_AT, Simulator
from anabranch.sim.storage_checker import StorageChecker
from anabranch.sim.stored_cluster import StoredCluster


class Town:
    """Storage nodes under faults of their disks, and members that publish."""

    def __init__(self, storage: int = 3, seed: int = 1, **faults: Any) -> None:
        self.sim = Simulator(Constant(5), seed)
        self.cluster = StoredCluster(self.sim, seed, 4, storage=storage, copies=min(2, storage))
        self.part = self.cluster.parts[0]
        self.checker = StorageChecker(self.cluster, "random-regular")
        self.sim.observer = self.checker
        everything = Faults(disks=DiskFaults(**faults))
        self.mishaps = Mishaps(self.cluster, self.checker, everything, random.Random(seed))
        for node in self.cluster.peers:
            self.mishaps.join(node, self.part, True)
        self.sim.run(START_AT + 5)
        self.mishaps.start(self.sim.now + 60.0)
        self.worst = 0

    def run(self, seconds: int = 60) -> None:
        for at in range(seconds):
            draft = Draft(b"%d" % at, ticket=1 + int(self.sim.now * 1000))
            self.cluster.offer(self.cluster.peers[at % 4], self.part, [draft])
            self.sim.run(self.sim.now + 1.0)
            self.checker.bounds()
            self.worst = max(self.worst, *self.harmed().values(), 0)

    def harmed(self) -> dict[object, int]:
        """How many storage nodes have damaged a row, for each row that any of them has."""
        nodes, harmed = self.cluster.storage, dict[object, int]()
        names = [(at, name) for node in nodes for at, name in node.disk.logs.names(self.part)]
        for at, name in names:
            harmed[name] = sum(
                self.mishaps._disks._is_harmed(node, self.part, at, name) for node in nodes
            )
        return harmed or {None: 0}

    def settle(self) -> None:
        self.mishaps.heal()
        self.sim.run(self.sim.now + 60.0)
        self.checker.settled()


def test_rows_rot_at_a_minority_and_are_repaired() -> None:
    town = Town(row_rots_every_s=0.5, page_lost_every_s=5.0, scrub_s=5.0)
    town.run()
    assert town.mishaps.counts["rotten rows"] > 50
    assert town.worst == 1
    town.settle()
    assert not any(state.missing for n in town.cluster.storage for state in n.disk.logs.states())
    assert town.checker.violations == []


@pytest.mark.parametrize("storage", [1, 2])
def test_nothing_rots_or_forgets_where_no_minority_is(storage: int) -> None:
    town = Town(storage, row_rots_every_s=0.5, tail_lost_every_s=1.0, backup_restored_every_s=1.0)
    town.run()
    assert all(town.mishaps.counts[kind] == 0 for kind in DISK_KINDS)


def test_slow_and_unreadable_disks_recover() -> None:
    town = Town(slow_every_s=3.0, slow_s=2.0, unreadable_every_s=3.0, unreadable_for_s=2.0)
    town.run()
    assert town.mishaps.counts["slow disks"] > 5 < town.mishaps.counts["unreadable disks"]
    town.settle()
    for node in town.cluster.storage:
        disk = node.disk
        assert (disk.write_s, disk.read_s, disk.read_problem) == (WRITE_S, READ_S, "")
    assert town.checker.violations == []


def test_power_cuts_of_all_storage_nodes_lose_nothing() -> None:
    town = Town(power_cut_every_s=5.0, power_cut_for_s=1.0, done_at_crash=0.5)
    town.run()
    assert town.mishaps.counts["power cuts"] > 5
    town.settle()
    assert town.checker.violations == []
    assert town.checker.receipts > 20


@pytest.mark.parametrize("kind", ["tail_lost", "backup_restored"])
def test_forgetful_disks_of_a_minority_lose_nothing(kind: str) -> None:
    town = Town(**{f"{kind}_every_s": 4.0, "forgets_for_s": 1.0})
    town.run()
    counted = {"tail_lost": "lost tails", "backup_restored": "restored backups"}[kind]
    assert town.mishaps.counts[counted] > 2
    town.settle()
    assert town.checker.violations == []
    assert town.checker.receipts > 20


def test_old_backups_that_nobody_flagged_lose_nothing_where_all_others_know() -> None:
    town = Town(backup_restored_every_s=2.0, unflagged=1.0, forgets_for_s=1.0)
    town.run()
    assert town.mishaps.counts["unflagged backups"] > 2
    town.settle()
    assert town.checker.violations == []
    assert town.checker.receipts > 20


def test_one_node_at_a_time_has_forgotten_something() -> None:
    town = Town(tail_lost_every_s=0.3, forgets_for_s=2.0)
    worst = 0
    for _ in range(60):
        town.run(1)
        forgetful = [n for n in town.cluster.storage if town.mishaps._disks._is_forgetful(n)]
        worst = max(worst, len(forgetful))
    assert worst == 1


def test_scenario_of_rotting_disks_holds_and_shows_something() -> None:
    run = Run(load("rot"), seed=1).go()
    assert run.checker.violations == []
    assert all(run.mishaps.counts[kind] > 0 for kind in DISK_KINDS)
    assert isinstance(run.checker, StorageChecker)
    assert run.checker.in_time.checked > 100
