from pathlib import Path

import pytest

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.diameter import EXPERIMENT, bounds, draw, table


@pytest.mark.parametrize(
    ("nodes", "degree", "expected"),
    # By hand, the last: 1 + 4 + 0, as log_15(14/96 * 11.5) = 0.19; 1 + 7. The first:
    # log_3 1000 = 6.29, log_3(2/24 * 6.91) = -0.50, log_3(8 * 6907.8) = 9.94.
    [(1000, 4, (6, 11)), (100_000, 4, (10, 16)), (100_000, 16, (5, 8))],
)
def test_the_bounds_are_equation_2(nodes: int, degree: int, expected: tuple[int, int]) -> None:
    assert bounds(nodes, degree) == expected


def test_random_graphs_keep_within_the_bounds() -> None:
    rows = list(EXPERIMENT.run(Params((500, 1000), 2, degree=8)))
    assert [(row["nodes"], row["degree"]) for row in rows] == [
        (nodes, degree) for nodes in (500, 1000) for degree in (4, 6, 8)
    ]
    for row in rows:
        assert row["lower_bound"] <= row["diameter_min"] <= row["diameter_max"]
        assert row["diameter_max"] <= row["upper_bound"]
        assert (row["within_bounds"], row["sources"]) == (2, row["nodes"])
    assert rows == list(EXPERIMENT.run(Params((500, 1000), 2, degree=8)))


def test_of_many_nodes_a_sample_is_followed() -> None:
    (row,) = EXPERIMENT.run(Params((5000,), 1, degree=4))
    assert row["sources"] == 1024
    assert 8 <= row["diameter_max"] <= row["upper_bound"]


def test_table_and_picture(tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((50, 100), 2, degree=6), samples=samples))
    assert table(rows).row_count == 4
    assert [(kept["nodes"], kept["degree"]) for kept in samples.topologies] == [
        (50, 4), (50, 6), (100, 4), (100, 6),
    ]  # fmt: skip
    assert len(samples.topologies[3]["links"]) == 300
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
