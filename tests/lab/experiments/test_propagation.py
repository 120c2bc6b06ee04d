import random
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from anabranch.lab.experiment import Params, Samples
from anabranch.lab.experiments.propagation import (
    EXPERIMENT,
    PAPER_WEBRTC,
    draw,
    flood,
    grow,
    is_regular,
    links_of,
    repeats_of,
    table,
)
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
    measured = flood(cluster)
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
        *("nodes", "overlay", "underlay", "mean_ms_min", "mean_ms", "mean_ms_max"),
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


def test_an_overlay_is_regular_when_both_ends_agree_and_no_slot_is_free() -> None:
    a, b, c, d = (bytes([i]) * 20 for i in range(4))
    ring = {a: (b, d), b: (a, c), c: (b, d), d: (a, c)}
    assert is_regular(ring, 2)
    assert not is_regular(ring, 3)
    assert not is_regular(ring | {a: (b, c)}, 2)
    assert is_regular({a: (b, c), b: (a, c), c: (a, b)}, 4)
    assert not is_regular({a: (b,), b: (a,), c: ()}, 2)


def test_small_networks_are_repeated_more_often_unless_told() -> None:
    assert [repeats_of(Params((32,)), nodes) for nodes in (32, 64, 512, 2048)] == [144, 72, 9, 9]
    assert repeats_of(Params((32,), 3), 32) == 3


def test_progress_ends_at_one() -> None:
    heard: list[float] = []
    list(EXPERIMENT.run(Params((3, 6), 2), heard.append))
    assert heard == sorted(heard)
    assert heard[-1] == 1


def test_table_and_picture(tmp_path: Path) -> None:
    samples: Samples = {}
    rows = list(EXPERIMENT.run(Params((8, 32), 1), samples=samples))
    assert [len(samples[nodes]) for nodes in (8, 32)] == [8 * 7, 32 * 31]
    shown = table(rows)
    assert list(shown.columns[2].cells) == ["", "137 (120-150)"]
    draw(rows, samples, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
