from pathlib import Path

import pytest

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.redundancy import EXPERIMENT, draw, expected, table


def test_an_instant_flood_is_the_papers_and_suppression_saves_some() -> None:
    rows = list(EXPERIMENT.run(Params((64,), 2, degree=8)))
    assert [(row["degree"], row["suppressed"]) for row in rows] == [
        (degree, suppressed) for degree in (4, 6, 8) for suppressed in (False, True)
    ]
    for instant, suppressed in zip(rows[::2], rows[1::2], strict=True):
        wanted = instant["degree"] - 2 + 2 / 64
        assert instant["duplicates"] == instant["expected"] == pytest.approx(wanted, abs=1e-6)
        assert 0.9 * wanted < suppressed["duplicates"] < wanted
    assert rows == list(EXPERIMENT.run(Params((64,), 2, degree=8)))


def test_the_longer_a_node_reads_the_fewer_copies_it_sends() -> None:
    quick, slow = (
        list(EXPERIMENT.run(Params((64,), 2, degree=4, processing_ms=ms)))[1] for ms in (0, 50)
    )
    assert quick["duplicates"] == quick["expected"]
    assert slow["duplicates"] < 0.9 * quick["duplicates"]


def test_odd_sums_and_full_houses_are_expected() -> None:
    assert expected(64, 4) == 2 + 2 / 64
    assert expected(5, 16) == pytest.approx(4 * 3 / 5)
    assert expected(7, 3) == pytest.approx((20 - 12) / 7)


def test_table_and_picture(tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((32,), 2, degree=6), samples=samples))
    assert table(rows).row_count == 2
    assert [len(kept["links"]) for kept in samples.topologies] == [64, 96]
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.svg").read_text().startswith("<?xml")
