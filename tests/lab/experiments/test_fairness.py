"""Lies about delays are held against honesty in the same networks."""

from pathlib import Path

import numpy as np

from anabranch.lab.experiment import Samples
from anabranch.lab.experiments.fairness import EXPERIMENT, LIES, Trial, draw, rows, table

LINKS = np.array([[0, 1], [1, 2]])


def test_who_lies_is_not_better_off(tmp_path: Path) -> None:
    params, samples = EXPERIMENT.params(nodes=(20,), repeats=3, learning_s=60.0), Samples()
    found = list(EXPERIMENT.run(params, samples=samples))
    assert [row["lie"] for row in found] == list(LIES)
    for row in found:
        assert not row["gains"]
        assert row["honest_ms"] > 0
        assert row["trials"] == 3
    # Of two claims the longer one counts, so that who claims less than is true changes nothing.
    assert [row["more_ms"] for row in found[:2]] == [0.0, 0.0]
    assert found[2]["lying_ms"] != found[2]["honest_ms"]
    assert table(found).row_count == 3
    draw(found, samples, tmp_path / "fairness.png")
    assert (tmp_path / "fairness.png").stat().st_size > 10_000
    assert len(samples.topologies) == 1
    assert found == list(EXPERIMENT.run(params))


def test_a_gain_is_one_that_is_not_chance() -> None:
    params = EXPERIMENT.params(nodes=(3,), repeats=4)
    honest = [10.0, 20.0, 30.0, 40.0]
    trials = [
        Trial([ms, ms - 5 + noise, ms - noise, ms + 5], [ms] * 4, LINKS)
        for ms, noise in zip(honest, (0.1, -0.1, 0.1, -0.1), strict=True)
    ]
    found = list(rows(params, iter(trials), None))
    assert [row["gains"] for row in found] == [True, False, False]
    assert [row["more_ms"] for row in found] == [-5.0, 0.0, 5.0]
    assert found[0]["error_ms"] == 0.058
    alone = list(rows(EXPERIMENT.params(nodes=(3,), repeats=1), iter(trials[:1]), None))
    assert [row["error_ms"] for row in alone] == [None] * 3
    assert not any(row["gains"] for row in alone)
    assert table(alone).row_count == 3
