from pathlib import Path

import numpy as np
import pytest

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.randomness import EXPERIMENT, draw, links_of, row_of, table

SMALL = Params(nodes=(60,), repeats=400)


def test_pairs_are_as_likely_as_in_a_random_regular_graph() -> None:
    (row,) = EXPERIMENT.run(SMALL)
    assert list(row) == [
        *("nodes", "degree", "repeats", "pair_probability", "expected_probability"),
        *("dispersion", "binomial_dispersion", "early_bias"),
    ]
    assert row["pair_probability"] == row["expected_probability"] == round(4 / 59, 9)
    # 1770 pairs: the standard error of the dispersion is 3 %, of 45 early pairs' mean 2.7 %.
    assert row["dispersion"] == pytest.approx(row["binomial_dispersion"], rel=0.1)
    assert row["early_bias"] == pytest.approx(1, abs=0.1)


def test_a_bias_is_seen() -> None:
    counts = np.full((20, 20), 5)
    counts[:10, :10] = 15
    row = row_of(np.triu(counts, k=1), 4, 100)
    mean = (45 * 15 + 145 * 5) / 190
    assert row["early_bias"] == pytest.approx(15 / mean)
    assert row["dispersion"] == pytest.approx((45 * 15**2 + 145 * 5**2) / 190 / mean - mean)
    assert row["pair_probability"] == pytest.approx(mean / 100)


@pytest.mark.parametrize(("nodes", "links"), [(2, 1), (4, 6), (5, 10), (30, 60)])
def test_every_link_is_counted_once(nodes: int, links: int) -> None:
    found = links_of(nodes, 4, "seed")
    assert len(set(found.tolist())) == links
    assert np.all(found // nodes < found % nodes)


def test_an_odd_sum_of_degrees_is_expected() -> None:
    (row,) = EXPERIMENT.run(Params(nodes=(7,), repeats=5, degree=3))
    assert row["pair_probability"] == row["expected_probability"] == round(10 / 21, 9)


def test_the_rows_follow_from_the_seed() -> None:
    first, again, other = (
        list(EXPERIMENT.run(Params((20, 30), 10, seed=seed))) for seed in (1, 1, 2)
    )
    assert [row["nodes"] for row in first] == [20, 30]
    assert first == again
    assert first != other


def test_progress_ends_at_one() -> None:
    heard: list[float] = []
    list(EXPERIMENT.run(Params((5, 10), 4), heard.append))
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_table_and_picture(tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((12, 20), 10), samples=samples))
    assert table(rows).row_count == 6
    assert np.array_equal(samples[20], samples[20].T)
    assert samples[20].sum() == 20 * 4 * 10
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
