"""Nodes that reject honest neighbours gain nothing by it and surround no victim."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from anabranch.lab.experiment import Samples
from anabranch.lab.experiments.complaints import (
    COLLUDING,
    EXPERIMENT,
    SINGLE,
    Trial,
    _grown,
    _surround,
    colluders,
    draw,
    rows,
    table,
)

LINKS = np.array([[0, 1], [1, 2]])


def test_colluders_of_an_hour_surround_no_victim_and_liars_gain_nothing(tmp_path: Path) -> None:
    params, samples = EXPERIMENT.params(repeats=2, seed=3), Samples()
    found = list(EXPERIMENT.run(params, samples=samples))
    assert [row["lie"] for row in found] == [*SINGLE, *COLLUDING]
    for row in found[: len(SINGLE)]:
        assert row["more_ms"] > -2.0
    for row in found[len(SINGLE) :]:
        assert row["liars"] == 4
        assert row["surrounded"] == 0
        assert row["honest_neighbours_min"] >= 2
    assert table(found).row_count == len(found)
    draw(found, samples, tmp_path / "complaints.png")
    assert (tmp_path / "complaints.png").stat().st_size > 10_000


@pytest.mark.parametrize("kind", COLLUDING)
def test_colluders_of_a_quarter_of_an_hour_surround_no_victim(kind: str) -> None:
    unit = EXPERIMENT.cut(EXPERIMENT.params(repeats=1, seed=4, learning_s=900.0))[0]
    victim, *fellows = random.Random(unit.seed).sample(range(unit.nodes), 1 + colluders(unit.nodes))
    (cluster, _), _ = _grown(unit, dict.fromkeys(fellows, kind), victim)
    fewest, surrounded_s = _surround(cluster, victim, unit)
    assert fewest >= 2
    assert surrounded_s == math.inf


def test_rows_of_the_same_options_are_the_same() -> None:
    params = EXPERIMENT.params(nodes=(12,), repeats=1, learning_s=120.0)
    assert list(EXPERIMENT.run(params)) == list(EXPERIMENT.run(params))


@pytest.mark.parametrize(("nodes", "expected"), [(10, 1), (50, 4), (200, 20)])
def test_number_of_colluders(nodes: int, expected: int) -> None:
    assert colluders(nodes) == expected


def test_row_of_a_victim_that_was_surrounded_once_says_when() -> None:
    params = EXPERIMENT.params(nodes=(50,), repeats=2)
    trials = [
        Trial([100.0] * 4, [100.0] * 4, [1.0] * 4, [2, 0], [math.inf, 130.0], LINKS),
        Trial([100.0, 90, 100, 100], [100.0] * 4, [1.0] * 4, [3, 3], [math.inf] * 2, LINKS),
    ]
    found = list(rows(params, iter(trials), None))
    assert [row["more_ms"] for row in found[:3]] == [-5.0, 0.0, 0.0]
    assert [row["surrounded"] for row in found[3:]] == [0, 1]
    assert [row["surrounded_first_s"] for row in found[3:]] == [None, 130.0]
    assert table(found).row_count == 5
