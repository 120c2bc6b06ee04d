import random
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from anabranch.lab import emulator
from anabranch.lab.emulator import Emulated
from anabranch.lab.experiment import OptionError, Params, Progress, Samples, Unit
from anabranch.lab.experiments.prediction import (
    EXPERIMENT,
    JITTER,
    draw,
    echo_s,
    estimate_ms,
    measure_round_trips,
    series,
    table,
)
from anabranch.lab.topologies import grow, topology_of
from anabranch.lab.underlays import AWS16
from anabranch.sim.network import Underlay
from anabranch.sim.simulator import START_AT


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator.os, "cpu_count", lambda: 2)


def test_the_simulated_error_is_below_one_percent() -> None:
    samples = Samples()
    found = list(EXPERIMENT.run(Params((32, 64), 4, mode="sim"), samples=samples))
    assert [len(each["links"]) for each in samples.topologies] == [32 * 4 / 2, 64 * 4 / 2]
    assert [row["mape"] < 1.0 for row in found] == [True, True]
    assert [row["mode"] for row in found] == ["sim", "sim"]
    for row in found:
        assert row["estimated_ms"] == pytest.approx(row["measured_ms"], rel=0.01)
        assert row["estimated_ms"] != row["measured_ms"]


def test_rows_have_plain_keys_and_follow_from_the_seed() -> None:
    first, again, other = (
        list(EXPERIMENT.run(Params((8,), 2, seed=seed, mode="sim"))) for seed in (1, 1, 2)
    )
    assert list(first[0]) == ["nodes", "mode", "estimated_ms", "measured_ms", "mape", "repeats"]
    assert first == again
    assert first != other


def test_the_tracker_knows_what_the_nodes_have_told_it_and_no_more() -> None:
    cluster = grow(AWS16(16), 16, 4, "random-regular", "seed")
    exact_ms = 1000 * topology_of(cluster, AWS16(16)).estimate_s()
    assert estimate_ms(cluster) == pytest.approx(exact_ms, abs=0.01)  # links open without jitter
    cluster.sim.faults = JITTER
    measure_round_trips(cluster, random.Random(1))
    assert estimate_ms(cluster) == pytest.approx(exact_ms, abs=0.01)  # nobody has reported yet
    cluster.sim.run(cluster.sim.now + 11)
    assert estimate_ms(cluster) == pytest.approx(exact_ms, rel=0.05)
    assert abs(estimate_ms(cluster) - exact_ms) > 0.01


def test_echoes_deviate_and_are_right_in_the_mean() -> None:
    cluster = grow(AWS16(4), 4, 3, "random-regular", "seed")
    assert cluster.sim.now > START_AT
    lane = next(iter(cluster.peers[0].lanes.values()))
    rng = random.Random(1)
    echoes_s = [echo_s(lane, rng) for _ in range(500)]
    assert mean(echoes_s) == pytest.approx(lane.delay_s + lane.back.delay_s, rel=0.01)
    assert min(echoes_s) < 0.97 * mean(echoes_s)
    assert lane.newest_at == 0 == lane.sent_until


@pytest.mark.usefixtures("two_processors")
def test_what_the_machine_does_not_carry_is_simulated_only() -> None:
    sizes = (16, 32, 64)
    both = [(16, False), (16, True), (32, False), (32, True), (64, False)]
    assert series(Params(sizes)) == both
    assert series(Params(sizes, mode="sim")) == [(16, False), (32, False), (64, False)]
    assert series(Params((16,), mode="live")) == [(16, True)]
    with pytest.raises(OptionError, match="64 real nodes are too many"):
        series(Params(sizes, mode="live"))


def told(unit: Unit, underlay: Underlay, progress: Progress) -> Emulated:
    """What real nodes might have measured."""
    delays_s = np.full((unit.nodes, unit.nodes), 0.1 * (1 + unit.repeat))
    return Emulated(delays_s, np.ones_like(delays_s, dtype=np.uint8), 0.0, 0.11, ())


def test_table_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "emulate", told)
    rows = list(EXPERIMENT.run(Params((8, 32), 2)))
    assert [(row["nodes"], row["mode"]) for row in rows[:2]] == [(8, "sim"), (8, "live")]
    expected = {"estimated_ms": 110.0, "measured_ms": 150.0, "mape": 27.5, "repeats": 2}
    assert {key: rows[1][key] for key in expected} == pytest.approx(expected)
    shown = table(rows)
    assert list(shown.columns[5].cells)[:3] == ["", "", "6.3 %"]
    assert list(shown.columns[6].cells)[:3] == ["", "", "131 / 137"]
    draw(rows, {}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
