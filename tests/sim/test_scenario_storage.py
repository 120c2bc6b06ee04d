"""Runs that store their streams: whatever is killed, nothing acknowledged is lost."""

from pathlib import Path

import msgspec
import pytest

from anabranch.core.errors import LocalError
from anabranch.sim.disk_faults import NO_DISK_FAULTS, DiskFaults
from anabranch.sim.random_scenario import random_storage_scenario
from anabranch.sim.scenario import Run, Scenario, load
from anabranch.sim.storage_checker import StorageChecker
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

SEEDS = 40  # in the suite; `python tests/soak.py --storage` runs thousands
CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_logs_are_the_same_and_readers_get_everything_in_order(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run = Run(random_storage_scenario(seed), seed).go()
        assert run.checker.violations == [], f"seed {seed}"


def test_random_scenarios_cover_what_can_go_wrong() -> None:
    drawn = [random_storage_scenario(seed) for seed in range(200)]
    assert {s.storage for s in drawn} == {1, 2, 3, 4, 5}
    assert {s.copies for s in drawn} == {0, 1, 2, 3, 4, 5}
    faults = [s.faults for s in drawn]
    for kind in ("storage_crash_every_s", "disk_full_every_s", "partition_every_s"):
        assert 20 < sum(getattr(each, kind) > 0 for each in faults) < 195
    assert any(each.packets.loss and each.packets.reordering for each in faults)
    for field in msgspec.structs.fields(DiskFaults):
        drawn_in = sum(getattr(each.disks, field.name) > 0 for each in faults)
        assert drawn_in > 20, field.name
    assert sum(each.disks == NO_DISK_FAULTS for each in faults) > 20
    assert sum(s.histories_per_s > 0 for s in drawn) > 100


def test_the_scenario_of_the_package_holds_and_shows_something() -> None:
    run = Run(load("storage"), seed=1).go()
    assert run.checker.violations == []
    assert isinstance(run.checker, StorageChecker)
    report = run.report()
    assert report["storage_crashes"] >= 5
    assert report["receipts"] > 500
    assert report["settled"] >= report["receipts"]
    assert max(state.epoch for state in run.cluster.storage[0].disk.logs.states()) >= 4


def test_nothing_is_missing_and_nothing_is_asked_for_when_all_is_well() -> None:
    run = Run(Scenario(nodes=8, storage=3, copies=3, run_for_s=10.0, settle_for_s=10.0), 1).go()
    report = run.report()
    assert run.checker.violations == []
    assert report["gaps"] == report["frames_lost_everywhere"] == 0
    assert report["receipts"] == sum(report["outcomes"].values())
    assert report["receipts_that_did_not_come"] == 0


def test_a_run_is_a_function_of_scenario_and_seed() -> None:
    short = msgspec.structs.replace(load("storage"), run_for_s=8.0, settle_for_s=20.0)
    hashes = []
    for seed in (1, 1, 2):
        with TraceWriter() as writer:
            Run(short, seed, Recorder(writer.write)).go()
        hashes.append(writer.sha256())
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("storage = 17", "from 0 to 16"),
        ("storage = 2\ncopies = 3", "at most storage"),
        ("copies = 1", "at most storage"),
        ("storage = 1\nregistry = true", "leave one of them out"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(LocalError, match=complaint):
        load(str(file))
