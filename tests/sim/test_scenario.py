"""Scenarios: read, refused with a reason, run, and the same for the same seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from anabranch.core.errors import LocalError
from anabranch.sim.byzantine import BYZANTINE
from anabranch.sim.faults import Faults
from anabranch.sim.network import PacketFaults
from anabranch.sim.random_scenario import random_scenario
from anabranch.sim.scenario import Run, Scenario, builtin_names, check, load
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

SEEDS = 300  # short fault simulations in the suite; `make soak` runs thousands
CHUNK = 10


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_random_faults_break_nothing(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run = Run(random_scenario(seed), seed).go()
        assert run.checker.violations == [], f"seed {seed}"


def test_random_scenarios_cover_every_kind_of_fault() -> None:
    drawn = [random_scenario(seed) for seed in range(SEEDS)]
    for field in msgspec.structs.fields(Faults):
        of_storage = field.name.startswith(("storage_", "disk_"))  # see test_scenario_storage.py
        if field.name.endswith("every_s") and not of_storage:
            assert sum(bool(getattr(s.faults, field.name)) for s in drawn) > 20, field.name
    for field in msgspec.structs.fields(PacketFaults):
        if field.name != "reordering_ms":
            assert sum(bool(getattr(s.faults.packets, field.name)) for s in drawn) > 20
    assert {kind for s in drawn for kind in s.byzantine} == set(BYZANTINE)
    assert len(BYZANTINE) == 16
    assert {s.nodes for s in drawn} >= {1, 2, 3, 5, 24}


@pytest.mark.parametrize("name", ["quiet", "storm", "byzantine"])
def test_the_scenarios_of_the_package_hold(name: str) -> None:
    report = Run(load(name), seed=3).go().report()
    assert report["violations"] == []
    assert report["deliveries"] > 1000
    if name != "storm":  # where partitions last longer than any buffer
        assert report["lost_at_nodes_alive_throughout"] == 0


def test_killing_nodes_and_the_tracker_loses_nothing_at_the_others() -> None:
    city = msgspec.structs.replace(load("city"), nodes=30, run_for_s=15.0, crash_at_s=(3.0, 6.0))
    report = Run(city, seed=5).go().report()
    assert report["violations"] == []
    assert (report["crashes"], report["tracker_crashes"]) == (2, 1)
    assert report["lost_at_nodes_alive_throughout"] == 0


def trace_hash(scenario: Scenario, seed: int) -> str:
    with TraceWriter() as writer:
        Run(scenario, seed, Recorder(writer.write)).go()
    return writer.sha256()


def test_a_run_is_a_function_of_scenario_and_seed() -> None:
    storm = msgspec.structs.replace(load("storm"), run_for_s=8.0, settle_for_s=20.0)
    assert trace_hash(storm, 1) == trace_hash(storm, 1) != trace_hash(storm, 2)


def test_the_trace_is_the_same_under_any_hash_seed() -> None:
    hashes = set()
    for hash_seed in ("0", "1", "4242"):
        result = subprocess.run(
            [sys.executable, "-m", "anabranch", "simulate", "storm", "--seed", "9", "--json"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        )
        hashes.add(json.loads(result.stdout.splitlines()[-1])["trace_sha256"])
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes = 0", "nodes is 0"),
        ("nodes = 'many'", "Expected `int`"),
        ("nodse = 3", "unknown field `nodse`"),
        ("nodes = ", "Invalid value"),
        ("degree = 1", "degree is 1"),
        ("overlay = 'ring'", "one of random-regular"),
        ("publishers = 30", "at most nodes"),
        ("byzantine = {lazy = 1}", "kinds are silent"),
        ("byzantine = {silent = 24}", "must be honest"),
        ("[faults]\ncrash_evry_s = 1", "unknown field `crash_evry_s`"),
        ("messages_per_s = 0", "above 0"),
        ("publishers = 24\ncrash_at_s = [1.0]", "fewer than nodes"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(LocalError, match=complaint):
        load(str(file))


def test_an_unknown_scenario_or_underlay_names_those_there_are() -> None:
    with pytest.raises(LocalError, match=", ".join(builtin_names())):
        load("no-such-thing")
    with pytest.raises(LocalError, match="one of constant, plane"):
        check(Scenario(underlay="moon"), {"constant": None, "plane": None})  # type: ignore[dict-item]


def test_networks_of_one_and_two_nodes_just_work() -> None:
    for nodes in (1, 2):
        run = Run(Scenario(nodes=nodes, publishers=1, settle_for_s=5.0), seed=1).go()
        assert run.checker.violations == []
        assert run.report()["outcomes"].keys() <= {"sent"} or nodes == 1
