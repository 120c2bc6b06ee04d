from pathlib import Path

import pytest

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.aws16 import EXPERIMENT, PAPER_MEAN_MS, draw, table
from anabranch.lab.underlays import REGIONS, TABLE_MS


def test_rows_are_the_papers_table_with_a_tenth_of_a_millisecond_inside() -> None:
    rows = list(EXPERIMENT.run(Params((64,))))
    assert len(rows) == 256
    for row in rows:
        a, b = REGIONS.index(row["from"]), REGIONS.index(row["to"])
        assert row["delay_ms"] == pytest.approx(0.1 if a == b else TABLE_MS[a][b], abs=1e-3)
    mean_ms = sum(row["delay_ms"] for row in rows) / len(rows)
    assert mean_ms == pytest.approx(PAPER_MEAN_MS, abs=0.01)


def test_with_few_nodes_only_the_regions_that_have_some() -> None:
    assert {row["from"] for row in EXPERIMENT.run(Params((3,)))} == set(REGIONS[:3])


def test_table_and_picture(tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((32,)), samples=samples))
    shown = table(rows)
    assert "ours 68.64 ms, paper 68.64 ms" in str(shown.caption)
    assert shown.row_count == 16
    draw(rows, samples, tmp_path / "aws16.png")
    assert (tmp_path / "aws16.png").stat().st_size > 10_000
