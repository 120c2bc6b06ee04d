"""Floods on arrays beside SciPy's shortest paths: the same graph, the same run, ratios out."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from anabranch.lab.kernels import Graph, from_all, from_one, graph_of_links

ROUNDS = 3  # of which the fastest counts, for both
ALL_PAIRS_NODES = 2048
ONE_SOURCE_NODES = 1_000_000


def random_graph(nodes: int, seed: int) -> Graph:
    """Two random rings over all nodes: degree 4, but for the few links that are in both."""
    rng = np.random.default_rng(seed)
    rings = [rng.permutation(nodes) for _ in range(2)]
    links = np.concatenate([np.stack([ring, np.roll(ring, 1)], axis=1) for ring in rings])
    links = np.unique(np.sort(links, axis=1), axis=0)
    return graph_of_links(nodes, links, rng.uniform(0.001, 0.1, 2 * len(links)))


def fastest(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long the fastest round takes, and what comes out."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds), result


def compare(
    name: str, graph: Graph, ours: Callable[[], Any], sources: int | None
) -> dict[str, Any]:
    """Let both find the delays, and see that they are the same."""
    shape = (graph.nodes, graph.nodes)
    matrix = csr_array((graph.delays_s, graph.targets, graph.starts), shape=shape)
    our_s, found = fastest(ours)
    scipy_s, wanted = fastest(lambda: dijkstra(matrix, indices=sources))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    return {
        "what": name,
        "nodes": graph.nodes,
        "links": len(graph.targets) // 2,
        "time_over_scipy": round(our_s / scipy_s, 3),
        "seconds": round(our_s, 3),
        "scipy_seconds": round(scipy_s, 3),
    }


def main() -> None:
    """Print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    as_json = parser.parse_args().json
    small, large = random_graph(ALL_PAIRS_NODES, 1), random_graph(ONE_SOURCE_NODES, 2)
    tiny = random_graph(16, 3)
    from_all(tiny), from_one(tiny, 0)  # compiled, or loaded, before it is measured
    for row in (
        compare("all pairs", small, lambda: from_all(small)[0], None),
        compare("one source", large, lambda: from_one(large, 0).delays_s, 0),
    ):
        if as_json:
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{row['what']:>10}, {row['nodes']:>9,} nodes, {row['links']:>9,} links:"
                f" {row['time_over_scipy']:.2f} of SciPy's time"
                f" ({row['seconds']:.2f} s, SciPy {row['scipy_seconds']:.2f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
