import random
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from anabranch.lab.experiment import OptionError, Params, Samples
from anabranch.lab.experiments import propagation
from anabranch.lab.experiments.propagation import (
    EXPERIMENT,
    PAPER_WEBRTC,
    draw,
    repeats_of,
    table,
)
from anabranch.lab.flooding import flood
from anabranch.lab.topologies import grow, links_of, topology_of
from anabranch.lab.underlays import AWS16, UNDERLAYS, mean_delay_s
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Underlay


def weighted(cluster: Cluster, underlay: Underlay) -> csr_array:
    """The final topology with the underlay's delays: SciPy knows nothing of the simulator."""
    place = {node.id: node.place for node in cluster.peers}
    links = [(place[a], place[b]) for a, near in links_of(cluster).items() for b in near]
    weights = [underlay.delay_s(a, b) for a, b in links]
    sources, targets = zip(*links, strict=True)
    return csr_array((weights, (sources, targets)), shape=(len(place), len(place)))


@pytest.mark.parametrize(
    ("underlay_name", "nodes", "degree"), [("aws16", 48, 4), ("plane", 25, 3), ("plane", 30, 5)]
)
def test_a_flood_takes_the_fastest_path(underlay_name: str, nodes: int, degree: int) -> None:
    underlay = UNDERLAYS[underlay_name](nodes, random.Random(5))
    cluster = grow(underlay, nodes, degree, "random-regular", "seed")
    measured = flood(cluster, topology_of(cluster, underlay))
    graph = weighted(cluster, underlay)
    assert graph.nnz == nodes * degree // 2 * 2
    off = ~np.eye(nodes, dtype=bool)
    # A clock that counts seconds from 1970 in floats has steps of 0.24 microseconds.
    np.testing.assert_allclose(measured.delays_s[off], dijkstra(graph)[off], atol=1e-5)
    assert np.all(measured.hops[off] >= dijkstra(graph, unweighted=True)[off])
    # Everybody sends to all neighbours but one, and the publisher to that one, too.
    assert measured.duplicates == pytest.approx((graph.nnz - 2 * (nodes - 1)) / nodes)


def mean_ms(nodes: int, seed: str) -> float:
    underlay = AWS16(nodes)
    cluster = grow(underlay, nodes, 4, "random-regular", seed)
    return float(1000 * dijkstra(weighted(cluster, underlay)).sum() / (nodes * (nodes - 1)))


def test_a_row_tells_of_its_repeats() -> None:
    params = Params((32,), 3)
    means_ms = [mean_ms(32, params.seed_of(32, repeat)) for repeat in range(3)]
    expected = {
        "mean_ms_min": min(means_ms),
        "mean_ms": sum(means_ms) / 3,
        "mean_ms_max": max(means_ms),
        "rdp": sum(means_ms) / 3 / (1000 * mean_delay_s(AWS16(32), 32)),
    }
    (row,) = EXPERIMENT.run(params)
    assert {key: row[key] for key in expected} == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(("nodes", "repeats"), [(32, 120), (64, 60)])
def test_the_mean_delay_is_the_papers(nodes: int, repeats: int) -> None:
    # Means of single topologies have a standard deviation of 13 ms: about one percent remains.
    means_ms = [mean_ms(nodes, str(repeat)) for repeat in range(repeats)]
    assert np.mean(means_ms) == pytest.approx(PAPER_WEBRTC[nodes][1], rel=0.05)


def test_rows_have_plain_keys_and_follow_from_the_seed() -> None:
    first, again, other = (list(EXPERIMENT.run(Params((8, 9), 2, seed=seed))) for seed in (1, 1, 2))
    assert list(first[0]) == [
        *("nodes", "overlay", "underlay", "legacy_status", "learning_s", "processing_ms"),
        *("mean_ms_min", "mean_ms", "mean_ms_max"),
        *("p50_ms", "p99_ms", "max_ms", "rdp", "duplicates", "hops_mean", "hops_max"),
        *("estimated_ms", "error_percent", "repeats"),
    ]
    assert first == again
    assert first != other


@pytest.mark.parametrize("nodes", [2, 5])
def test_in_a_full_house_everybody_is_one_hop_away(nodes: int) -> None:
    (row,) = EXPERIMENT.run(Params((nodes,), 1, underlay="constant"))
    exact = {"mean_ms_min": 50, "mean_ms_max": 50, "p50_ms": 50, "max_ms": 50}
    exact |= {"rdp": 1, "hops_mean": 1, "hops_max": 1}
    # Whoever hears of a message passes it on to those who have it from the publisher.
    exact |= {"duplicates": (nodes - 1) * (nodes - 2) / nodes}
    assert {key: row[key] for key in exact} == pytest.approx(exact, abs=1e-3)


def test_machines_and_kernels_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    params = Params((24, 33), 2, underlay="cities")
    by_machines = list(EXPERIMENT.run(params))
    monkeypatch.setattr(propagation, "MACHINES_UP_TO", 0)
    assert list(EXPERIMENT.run(params)) == by_machines


def test_processing_is_paid_at_every_hop() -> None:
    without, with_it = (
        next(EXPERIMENT.run(Params((5,), 1, underlay="constant", processing_ms=ms)))
        for ms in (0, 10)
    )
    assert with_it["mean_ms"] == pytest.approx(without["mean_ms"] + 10, abs=1e-3)
    assert with_it["rdp"] == without["rdp"] == 1  # sent straight, a message crosses one hop
    (cities,) = EXPERIMENT.run(Params((8,), 1, underlay="cities"))
    assert cities["processing_ms"] == pytest.approx(0.3)


def test_an_overlay_may_learn_before_it_is_measured() -> None:
    (row,) = EXPERIMENT.run(Params((16,), 1, learning_s=20))
    (at_once,) = EXPERIMENT.run(Params((16,), 1))
    assert row["learning_s"] == 20
    # This overlay has nothing to learn: it is the same, measured later.
    assert row["mean_ms"] == pytest.approx(at_once["mean_ms"], abs=0.002)


def test_the_naive_status_protocol_comes_nearer_to_the_papers_websocket() -> None:
    (naive,) = EXPERIMENT.run(Params((512,), 1, legacy_status=True))
    (counted,) = EXPERIMENT.run(Params((512,), 1))
    assert naive["legacy_status"]
    assert naive["mean_ms"] < 0.85 * counted["mean_ms"]


def test_the_naive_status_protocol_leaves_no_traces() -> None:
    with pytest.raises(OptionError, match="--traces"):
        EXPERIMENT.params(legacy_status=True, traces="somewhere")


def test_small_networks_are_repeated_more_often_unless_told() -> None:
    assert [repeats_of(Params((32,)), nodes) for nodes in (32, 64, 512, 2048)] == [144, 72, 9, 9]
    assert repeats_of(Params((32,), 3), 32) == 3


def test_progress_ends_at_one() -> None:
    heard: list[float] = []
    list(EXPERIMENT.run(Params((3, 6), 2), heard.append))
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_table_and_picture(tmp_path: Path) -> None:
    samples = Samples()
    rows = list(EXPERIMENT.run(Params((8, 32), 1), samples=samples))
    assert [len(samples[nodes]) for nodes in (8, 32)] == [8 * 7, 32 * 31]
    shown = table(rows)
    assert list(shown.columns[2].cells) == ["", "137 (120-150)"]
    assert [len(kept["links"]) for kept in samples.topologies] == [16, 64]
    assert samples.topologies[0]["seed"] == "1/8/0"
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
