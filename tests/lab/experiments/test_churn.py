"""Nodes come and go, and those that stay lose nothing."""

from pathlib import Path

from anabranch.lab.experiment import Samples
from anabranch.lab.experiments.churn import EXPERIMENT, draw, table


def test_nothing_is_lost_between_nodes_that_stay(tmp_path: Path) -> None:
    params, samples = EXPERIMENT.params(nodes=(40,)), Samples()
    rows = list(EXPERIMENT.run(params, samples=samples))
    assert [row["overlay"] for row in rows] == ["random-regular", "latency-aware"]
    for row in rows:
        assert row["left"] + row["crashed"] > 0
        assert 20 <= row["stayed"] < 40
        assert row["between_those_who_stayed"] > 10_000
        assert (row["lost"], row["gaps"], row["rules_broken"]) == (0, 0, 0)
        assert 0 < row["delay_mean_ms"] < row["delay_p99_ms"]
    assert table(rows).row_count == 2
    draw(rows, samples, tmp_path / "churn.png")
    assert (tmp_path / "churn.png").stat().st_size > 10_000
    assert [each["overlay"] for each in samples.topologies] == [row["overlay"] for row in rows]
