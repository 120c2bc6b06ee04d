"""Predicted delays against a deliberately dumb twin, and by hand."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId
from anabranch.core.prediction import MAX_PAIRS, MAX_SOURCES, Prediction, nearest_rank, predict
from machines import NODES

A, B, C, D = NODES[:4]
LINE = {A: (B,), B: (A, C), C: (B,)}


def test_a_line_by_hand() -> None:
    rtts = {(A, B): 10_000, (B, A): 12_000, (C, B): 40_000}
    found = predict(LINE, rtts)
    # A to B takes 5.5 ms (the mean of both reports, halved), B to C 20 ms (only C reported).
    assert found == Prediction(
        nodes=3,
        links=2,
        measured_links=2,
        sources=3,
        sampled=False,
        pairs=6,
        unreachable_pairs=0,
        min_ms=pytest.approx(5.5),
        mean_ms=pytest.approx((5.5 + 20 + 25.5) / 3),
        p50_ms=pytest.approx(20),
        p99_ms=pytest.approx(25.5),
        max_ms=pytest.approx(25.5),
    )


def test_the_way_with_more_hops_wins_when_it_is_faster() -> None:
    triangle = {A: (B, C), B: (A, C), C: (A, B)}
    rtts = {(A, C): 100_000, (A, B): 20_000, (B, C): 20_000}
    assert predict(triangle, rtts, [A]).max_ms == pytest.approx(20)
    # Unless every hop costs so much that the direct way is faster after all.
    assert predict(triangle, rtts, [A], per_hop_s=0.1).max_ms == pytest.approx(150)


def test_a_link_nobody_measured_is_no_way() -> None:
    found = predict(LINE, {(A, B): 10_000})
    assert (found.links, found.measured_links) == (2, 1)
    assert (found.pairs, found.unreachable_pairs) == (2, 4)
    assert found.max_ms == pytest.approx(5)


def test_where_nothing_is_measured_nothing_is_predicted() -> None:
    assert predict(LINE, {}) == Prediction(3, 2, 0, 3, False, 0, 6)
    assert predict({A: ()}, {}) == Prediction(1, 0, 0, 1, False, 0, 0)
    assert predict({}, {}) == Prediction(0, 0, 0, 0, False, 0, 0)


def test_reports_about_links_that_are_gone_count_for_nothing() -> None:
    found = predict(LINE, {(A, C): 10, (A, D): 10, (A, B): 10_000})
    assert (found.links, found.measured_links, found.pairs) == (2, 1, 2)


def test_a_link_that_one_end_names_is_one_link() -> None:
    one_sided = {A: (A, B), B: (C,), C: (B,)}
    found = predict(one_sided, {(B, A): 10_000, (B, C): 10_000})
    assert (found.links, found.pairs) == (2, 6)


def test_only_the_messages_of_the_sources_are_followed() -> None:
    rtts = {(A, B): 10_000, (B, C): 40_000}
    found = predict(LINE, rtts, [C])
    assert (found.sources, found.sampled, found.pairs) == (1, False, 2)
    assert (found.min_ms, found.max_ms) == (pytest.approx(20), pytest.approx(25))
    with pytest.raises(LocalError, match="not in the topology"):
        predict(LINE, rtts, [D])


def ring(size: int) -> tuple[dict[NodeId, tuple[NodeId, ...]], dict[tuple[NodeId, NodeId], int]]:
    names = [NodeId(number.to_bytes(20)) for number in range(size)]
    topology = {name: (names[i - 1], names[(i + 1) % size]) for i, name in enumerate(names)}
    return topology, {(name, names[i - 1]): 2_000 for i, name in enumerate(names)}


@pytest.mark.parametrize("size", [MAX_SOURCES, MAX_SOURCES + 1])
def test_many_nodes_are_sampled_and_it_is_said(size: int) -> None:
    topology, rtts = ring(size)
    found = predict(topology, rtts, rng=random.Random(1))
    assert found.sampled is (size > MAX_SOURCES)
    assert found.sources == MAX_SOURCES
    assert found.pairs == MAX_SOURCES * (size - 1)
    assert found.max_ms == pytest.approx(size // 2)  # a ring looks the same from everywhere


def test_sampling_needs_an_rng() -> None:
    topology, rtts = ring(MAX_SOURCES + 1)
    with pytest.raises(LocalError, match="pass an rng"):
        predict(topology, rtts)


def test_very_many_nodes_are_sampled_more_thinly() -> None:
    topology, rtts = ring(MAX_PAIRS // 2)
    assert predict(topology, rtts, rng=random.Random(1)).pairs <= MAX_PAIRS


def test_the_same_rng_draws_the_same_sample() -> None:
    topology, rtts = ring(MAX_SOURCES + 40)
    rtts = {link: 1_000 + 37 * place for place, link in enumerate(rtts)}
    first, again = (predict(topology, rtts, rng=random.Random(7)) for _ in range(2))
    assert first == again != predict(topology, rtts, rng=random.Random(8))


@pytest.mark.parametrize(
    ("percent", "count", "expected"),
    [(50, 1, 1), (50, 2, 1), (50, 3, 2), (99, 99, 99), (99, 100, 99), (99, 101, 100), (0, 5, 1)],
)
def test_percentiles_are_by_nearest_rank(percent: int, count: int, expected: int) -> None:
    assert nearest_rank(range(1, count + 1), percent) == expected


def dumb_delays(size: int, links: dict[tuple[int, int], float]) -> list[float]:
    """Floyd and Warshall: every pair through every third."""
    delay = [[0.0 if a == b else math.inf for b in range(size)] for a in range(size)]
    for (a, b), weight in links.items():
        delay[a][b] = delay[b][a] = min(weight, delay[a][b])
    for via in range(size):
        for a in range(size):
            for b in range(size):
                delay[a][b] = min(delay[a][b], delay[a][via] + delay[via][b])
    pairs = [delay[a][b] for a in range(size) for b in range(size) if a != b]
    return sorted(found for found in pairs if found < math.inf)


REPORTS = st.tuples(st.none() | st.integers(1, 60_000_000), st.none() | st.integers(1, 60_000_000))
GRAPHS = st.integers(1, 9).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.dictionaries(
            st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(
                lambda link: link[0] < link[1]
            ),
            REPORTS,
        ),
    )
)


@given(GRAPHS, st.sampled_from([0.0, 0.003]))
def test_it_agrees_with_every_pair_through_every_third(
    graph: tuple[int, dict[tuple[int, int], tuple[int | None, int | None]]], per_hop_s: float
) -> None:
    size, links = graph
    topology: dict[NodeId, list[NodeId]] = {NODES[i]: [] for i in range(size)}
    rtts: dict[tuple[NodeId, NodeId], int] = {}
    weights: dict[tuple[int, int], float] = {}
    for (a, b), (forth, back) in links.items():
        topology[NODES[a]].append(NODES[b])
        topology[NODES[b]].append(NODES[a])
        known = [rtt for rtt in (forth, back) if rtt is not None]
        if forth is not None:
            rtts[NODES[a], NODES[b]] = forth
        if back is not None:
            rtts[NODES[b], NODES[a]] = back
        if known:
            weights[a, b] = sum(known) / len(known) / 2e6 + per_hop_s
    found = predict(topology, rtts, per_hop_s=per_hop_s)
    expected = dumb_delays(size, weights)
    assert (found.links, found.measured_links) == (len(links), len(weights))
    assert found.pairs == len(expected)
    assert found.unreachable_pairs == size * (size - 1) - len(expected)
    if expected:
        middle = expected[math.ceil(len(expected) * 0.5) - 1]
        assert found.min_ms == pytest.approx(expected[0] * 1000)
        assert found.mean_ms == pytest.approx(sum(expected) / len(expected) * 1000)
        assert found.p50_ms == pytest.approx(middle * 1000)
        assert found.max_ms == pytest.approx(expected[-1] * 1000)
    else:
        assert found.mean_ms is None


def test_what_is_no_round_trip_counts_for_nothing() -> None:
    found = predict(LINE, {(A, B): -20_000, (B, C): 0, (C, B): 10_000})
    assert (found.measured_links, found.pairs, found.max_ms) == (1, 2, pytest.approx(5))
