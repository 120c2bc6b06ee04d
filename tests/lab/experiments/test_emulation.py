from pathlib import Path

import numpy as np
import pytest

from anabranch.lab.emulator import Emulated
from anabranch.lab.experiment import Params, Progress, Samples, Unit
from anabranch.lab.experiments import emulation
from anabranch.lab.experiments.emulation import EXPERIMENT, SIMULATED, draw, fastest_ms, table
from anabranch.lab.experiments.propagation import mean_of_pairs
from anabranch.lab.flooding import flood
from anabranch.lab.topologies import grow, links_of, topology_of
from anabranch.lab.underlays import AWS16
from anabranch.sim.network import Underlay


def simulated(unit: Unit, underlay: Underlay, progress: Progress) -> Emulated:
    """What real nodes would measure if they needed no time."""
    cluster = grow(underlay, unit.nodes, 4, "random-regular", unit.seed)
    place = {node.id: node.place for node in cluster.peers}
    links = [(place[a], place[b]) for a, near in links_of(cluster).items() for b in near]
    found = flood(cluster, topology_of(cluster, underlay))
    progress(1.0)
    return Emulated(found.delays_s, found.hops, found.duplicates, found.estimated_s, tuple(links))


def test_the_fastest_paths_are_those_of_a_simulated_flood() -> None:
    emulated = simulated(Unit(Params((20,)), 20), AWS16(20), lambda done: None)
    expected_ms = 1000 * mean_of_pairs(emulated.delays_s)
    assert fastest_ms(emulated, AWS16(20)) == pytest.approx(expected_ms, abs=0.01)


def test_rows_table_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "emulate", simulated)
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((8, 12), 2), samples=samples))
    assert [(row["nodes"], row["repeats"], row["sim_repeats"]) for row in rows] == [
        (8, 2, 2 * SIMULATED),
        (12, 2, 2 * SIMULATED),
    ]
    assert {"mean_ms", "p50_ms", "p99_ms", "rdp", "duplicates", "hops_mean"} < set(rows[0])
    for row in rows:
        assert row["same_overlay_ms"] == pytest.approx(row["mean_ms"], abs=0.01)
        assert row["sim_mean_ms"] == pytest.approx(row["mean_ms"], rel=0.3)
        assert row["sim_duplicates"] == pytest.approx(row["duplicates"])
    assert samples[8].shape == (2, 1001)
    assert np.all(np.diff(samples[8]) >= 0)
    assert [len(each["links"]) for each in samples.topologies] == [8 * 4 / 2, 12 * 4 / 2]
    shown = table(rows)
    assert list(shown.columns[0].cells) == ["8", "", "", "12", "", "", "32", "32"]
    assert list(shown.columns[2].cells)[-2:] == ["137 (120-150)", "146 (127-160)"]
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
