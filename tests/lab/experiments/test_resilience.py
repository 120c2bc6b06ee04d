"""What is left of overlays when a fifth of the nodes is gone, or lies."""

from pathlib import Path

from anabranch.core.ids import NodeId
from anabranch.lab.experiment import Samples
from anabranch.lab.experiments.resilience import EXPERIMENT, draw, largest, table

A, B, C, D = (NodeId(bytes([i]) * 20) for i in range(4))


def test_pieces_are_of_links_that_both_ends_have() -> None:
    links = {A: (B,), B: (A, C), C: (B, D), D: ()}
    assert largest(links, {A, B, C, D}) == 3
    assert largest(links, {A, C, D}) == 1
    assert largest(links, set()) == 0


def test_both_overlays_withstand_the_same(tmp_path: Path) -> None:
    params = EXPERIMENT.params(nodes=(24,), repeats=1, learning_s=30.0)
    samples = Samples()
    rows = list(EXPERIMENT.run(params, samples=samples))
    assert [row["overlay"] for row in rows] == ["random-regular", "latency-aware"]
    for row in rows:
        assert row["in_one_piece"] > 0.9
        assert row["repaired"] == 1.0
        assert 0 < row["colluders_hold"] <= row["colluders_hold_max"] <= 0.3
        assert row["cut_off"] <= 2
        assert (row["trials"], row["draws"]) == (1, 20)
    assert table(rows).row_count == 2
    draw(rows, samples, tmp_path / "resilience.png")
    assert (tmp_path / "resilience.png").stat().st_size > 10_000
    assert (tmp_path / "resilience.svg").exists()
    assert rows == list(EXPERIMENT.run(params))
