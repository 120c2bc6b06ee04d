"""What is left of overlays when a fifth of the nodes is gone, or lies."""

from pathlib import Path

from anabranch.core.ids import NodeId
from anabranch.lab.experiment import Samples
from anabranch.lab.experiments.resilience import COLLUSIONS, EXPERIMENT, draw, largest, table

A, B, C, D = (NodeId(bytes([i]) * 20) for i in range(4))


def test_pieces_are_of_links_that_both_ends_have() -> None:
    links = {A: (B,), B: (A, C), C: (B, D), D: ()}
    assert largest(links, {A, B, C, D}) == 3
    assert largest(links, {A, C, D}) == 1
    assert largest(links, set()) == 0


def test_both_overlays_withstand_the_same(tmp_path: Path) -> None:
    params = EXPERIMENT.params(nodes=(25,), repeats=1, learning_s=30.0)
    samples = Samples()
    rows = list(EXPERIMENT.run(params, samples=samples))
    assert [row["overlay"] for row in rows] == ["random-regular", "latency-aware"]
    for row in rows:
        assert row["in_one_piece"] > 0.9
        assert row["repaired"] == 1.0
        for hold, cut_off in COLLUSIONS.values():  # five of 25 with as many links hold no more
            assert 0 < row[hold] <= row[f"{hold}_max"] <= 5 / 20
            assert row[cut_off] <= 2
        assert (row["trials"], row["draws"]) == (1, 20)
    assert table(rows).row_count == 6  # each overlay with three kinds of collusion
    draw(rows, samples, tmp_path / "resilience.png")
    assert (tmp_path / "resilience.png").stat().st_size > 10_000
    assert (tmp_path / "resilience.svg").exists()
    assert [(each["nodes"], each["overlay"]) for each in samples.topologies] == [
        (25, "random-regular"),
        (25, "latency-aware"),
    ]
    assert rows == list(EXPERIMENT.run(params))
