import random

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from anabranch.lab.degrees import random_links
from anabranch.lab.kernels import (
    Graph,
    batch_means,
    duplicates_of,
    eccentricities,
    from_all,
    from_one,
    graph_of,
    graph_of_links,
    hops_from,
    stack,
)


def random_graph(nodes: int, degree: int, seed: int, delays: str = "spread") -> Graph:
    links = random_links(nodes, degree, str(seed))
    rng = np.random.default_rng(seed)
    directions = 2 * len(links)
    delays_s = {
        "spread": rng.uniform(0.001, 0.1, directions),
        "few": rng.choice([0.001, 0.05, 0.05 + 1e-9], directions),
        "alike": rng.uniform(0.05, 0.05 + 1e-9, directions),  # nearly all in one bucket
        "equal": np.full(directions, 0.05),
        "mostly-none": np.where(rng.random(directions) < 0.5, 0.0, rng.random(directions)),
    }[delays]
    return graph_of_links(nodes, links, delays_s)


def with_scipy(graph: Graph, unweighted: bool = False) -> np.ndarray:
    # SciPy takes a weight of nothing for no link.
    weights = np.maximum(graph.delays_s, 1e-300)
    shape = (graph.nodes, graph.nodes)
    matrix = csr_array((weights, graph.targets, graph.starts), shape=shape)
    return dijkstra(matrix, unweighted=unweighted)


@pytest.mark.parametrize("delays", ["spread", "few", "alike", "equal", "mostly-none"])
@pytest.mark.parametrize(("nodes", "degree"), [(2, 4), (25, 3), (300, 4), (200, 9)])
def test_delays_are_those_of_the_shortest_ways(nodes: int, degree: int, delays: str) -> None:
    graph = random_graph(nodes, degree, 5, delays)
    delays_s, hops = from_all(graph)
    np.testing.assert_allclose(delays_s, with_scipy(graph), rtol=1e-12, atol=1e-15)
    one = from_one(graph, 1)
    assert np.array_equal(one.delays_s, delays_s[1])
    assert np.array_equal(one.hops, hops[1])
    # Every first copy came from a neighbour, one hop nearer to the source.
    for node in range(nodes):
        if node != 1:
            sender = one.came_from[node]
            assert sender in graph.targets[graph.starts[node] : graph.starts[node + 1]]
            assert one.hops[node] == one.hops[sender] + 1
            assert one.delays_s[node] >= one.delays_s[sender]
    assert one.came_from[1] == -1


def test_each_direction_has_its_delay() -> None:
    graph = graph_of([[1], [0, 2], [1]], [[1.0], [10.0, 100.0], [1000.0]])
    delays_s, hops = from_all(graph)
    assert delays_s.tolist() == [[0, 1, 101], [10, 0, 100], [1010, 1000, 0]]
    assert hops.tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]


def test_what_cannot_be_reached_is_told() -> None:
    graph = graph_of_links(4, np.array([[0, 1], [2, 3]]))
    assert from_one(graph, 0).delays_s.tolist() == [0, 1, np.inf, np.inf]
    assert hops_from(graph, 0).tolist() == [0, 1, -1, -1]
    assert eccentricities(graph).tolist() == [-1] * 4


def test_hops_are_the_least() -> None:
    graph = random_graph(120, 3, 2)
    fewest = with_scipy(graph, unweighted=True)
    assert np.array_equal(np.array([hops_from(graph, node) for node in range(120)]), fewest)
    assert np.array_equal(eccentricities(graph), fewest.max(axis=1))
    assert eccentricities(graph, np.array([7])).tolist() == [fewest[7].max()]


@pytest.mark.parametrize(("nodes", "degree"), [(64, 4), (64, 16), (50, 7)])
def test_an_instant_flood_has_the_papers_duplicates(nodes: int, degree: int) -> None:
    graph = random_graph(nodes, degree, 3)
    assert duplicates_of(graph, 9) == nodes * (degree - 2) + 2  # Equation 4, times N
    assert duplicates_of(graph, 9, window_s=0.0) == nodes * (degree - 2) + 2


def slow_windowed_duplicates(graph: Graph, source: int, window_s: float) -> int:
    """Read packet by packet: each node forwards when it has read its first copy."""
    near = [
        dict(
            zip(
                graph.targets[graph.starts[v] : graph.starts[v + 1]].tolist(),
                graph.delays_s[graph.starts[v] : graph.starts[v + 1]].tolist(),
                strict=True,
            )
        )
        for v in range(graph.nodes)
    ]
    arrived: list[dict[int, float]] = [{} for _ in near]  # at the node, not yet read
    read_at = [np.inf] * graph.nodes
    read_at[source] = 0.0
    done: set[int] = set()
    duplicates = -(graph.nodes - 1)
    while len(done) < graph.nodes:
        node = min((v for v in range(graph.nodes) if v not in done), key=lambda v: read_at[v])
        done.add(node)
        for peer, delay_s in near[node].items():
            if arrived[node].get(peer, np.inf) < read_at[node]:
                continue
            duplicates += 1
            arrived[peer][node] = read_at[node] + delay_s - window_s
            read_at[peer] = min(read_at[peer], read_at[node] + delay_s)
    return duplicates


@pytest.mark.parametrize("seed", range(5))
def test_copies_that_came_meanwhile_are_not_answered(seed: int) -> None:
    graph = random_graph(60, 5, seed)
    source = random.Random(seed).randrange(60)
    window_s = 0.02
    slow = Graph(graph.starts, graph.targets, graph.delays_s + window_s)
    found = duplicates_of(slow, source, window_s)
    assert found == slow_windowed_duplicates(slow, source, window_s)
    assert found < duplicates_of(slow, source)


def test_many_topologies_are_one_batch() -> None:
    graphs = [random_graph(nodes, 4, nodes) for nodes in (10, 40, 25)]
    means_s, hops = batch_means(graphs)
    for graph, mean_s, mean_hops in zip(graphs, means_s, hops, strict=True):
        delays_s, counted = from_all(graph)
        pairs = graph.nodes * (graph.nodes - 1)
        assert mean_s == pytest.approx(delays_s.sum() / pairs, rel=1e-12)
        assert mean_hops == pytest.approx(counted.sum() / pairs, rel=1e-12)
    together, _ = from_all(stack(graphs))
    assert np.array_equal(together[:10, :10], from_all(graphs[0])[0])
    assert np.isinf(together[0, 10:]).all()
