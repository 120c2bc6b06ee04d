"""Runs with a registry: nobody reads or publishes what he may not, whoever misbehaves."""

from pathlib import Path

import msgspec
import pytest

from anabranch.core.errors import LocalError
from anabranch.sim.faithless import FAITHLESS
from anabranch.sim.lying_trackers import LYING
from anabranch.sim.random_scenario import random_trust_scenario
from anabranch.sim.scenario import Run, Scenario, load
from anabranch.sim.trust_checker import TrustChecker
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

SEEDS = 30  # in the suite; `python tests/soak.py --trust` runs thousands
CHUNK = 5


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_nobody_gets_what_he_may_not(first: int) -> None:
    for seed in range(first, first + CHUNK):
        run = Run(random_trust_scenario(seed), seed).go()
        assert run.checker.violations == [], f"seed {seed}"


def test_random_scenarios_cover_every_way_to_misbehave() -> None:
    drawn = [random_trust_scenario(seed) for seed in range(200)]
    assert {kind for s in drawn for kind in s.byzantine} == set(FAITHLESS)
    assert {kind for s in drawn for kind in s.lying_trackers} == set(LYING)
    assert {s.trackers for s in drawn} == {1, 2, 3}
    assert all(s.registry and s.changes_per_s for s in drawn)
    assert any(s.private < s.parts for s in drawn)
    assert sum(s.faults.partition_every_s > 0 and s.faults.partition_for_s > 10 for s in drawn) > 20


def test_the_scenario_of_the_package_holds_and_shows_something() -> None:
    run = Run(load("trust"), seed=3).go()
    assert run.checker.violations == []
    assert isinstance(run.checker, TrustChecker)
    assert run.checker.sealed > 100
    assert run.administration is not None
    assert run.administration.counts["written"] > 5
    assert run.report()["deliveries"] > 500


def test_a_run_is_a_function_of_scenario_and_seed() -> None:
    short = msgspec.structs.replace(load("trust"), run_for_s=8.0, settle_for_s=20.0)
    hashes = []
    for seed in (1, 1, 2):
        with TraceWriter() as writer:
            Run(short, seed, Recorder(writer.write)).go()
        hashes.append(writer.sha256())
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("private = 1", "need registry = true"),
        ("changes_per_s = 1.0", "need registry = true"),
        ("lying_trackers = {hiding = 1}", "need registry = true"),
        ("registry = true\nprivate = 2", "at most parts"),
        ("registry = true\nchanges_per_s = -1.0", "0 or more"),
        ("registry = true\ntrackers = 2\nlying_trackers = {lazy = 1}", "kinds are hiding"),
        ("registry = true\ntrackers = 2\nlying_trackers = {hiding = 2}", "must be honest"),
        ("byzantine = {lingering = 1}", "kinds are silent"),
        ("registry = true\nbyzantine = {lazy = 1}", "lingering"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(
    tmp_path: Path, text: str, complaint: str
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(LocalError, match=complaint):
        load(str(file))


def test_a_registry_without_private_streams_or_liars_is_an_ordinary_network() -> None:
    run = Run(Scenario(nodes=8, registry=True, trackers=2, settle_for_s=30.0), seed=1).go()
    assert run.checker.violations == []
    assert run.report()["deliveries"] > 100
