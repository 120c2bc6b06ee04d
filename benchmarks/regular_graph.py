"""What a join or a leave costs the tracker, from a thousand to a million nodes.

Beside ours runs a naive peer in the same process: it follows the same steps, and lists every
node and every link whenever it needs an unused slot or a random link.
"""

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

from anabranch.overlays.regular_graph import RegularGraph

DEGREE = 4
SIZES = (1_000, 10_000, 100_000, 1_000_000)
CHANGES = 10_000  # pairs of a leave and a join, measured at full size
NAIVE_SIZES = {1_000: 200, 10_000: 50, 100_000: 5}  # and how many pairs of changes one can bear


@dataclass(frozen=True)
class Row:
    """What was measured at one size."""

    nodes: int
    operations_per_join: float
    operations_per_leave: float
    seconds: float
    naive_seconds: float | None

    def ratios(self, first: "Row") -> dict[str, float | None]:
        """The row as it is printed: seconds mean nothing on another machine."""
        naive = self.naive_seconds
        return {
            "nodes": self.nodes,
            "operations_per_join": self.operations_per_join,
            "operations_per_leave": self.operations_per_leave,
            "time_ratio": round(self.seconds / first.seconds, 3),
            "naive_time_ratio": round(naive / self.seconds, 1) if naive else None,
        }


class NaiveGraph:
    """Steps 1 to 4 of the paper, read aloud."""

    def __init__(self, near: dict[int, set[int]], rng: random.Random) -> None:
        self.near = near
        self.rng = rng

    def join(self, node: int) -> None:
        self.near[node] = set()
        self.settle()

    def leave(self, node: int) -> None:
        for neighbour in self.near.pop(node):
            self.near[neighbour].remove(node)
        self.settle()

    def settle(self) -> None:
        near = self.near
        while pairs := [(a, b) for a, b in combinations(self.open(1), 2) if b not in near[a]]:
            self.link(*self.rng.choice(pairs))
        while unfilled := self.open(2):
            v = unfilled[0]
            links = [(c, d) for c in near for d in near[c] if c < d]
            fitting = [(c, d) for c, d in links if v not in (c, d) and not near[v] & {c, d}]
            c, d = self.rng.choice(fitting)
            near[c].remove(d)
            near[d].remove(c)
            self.link(v, c)
            self.link(v, d)

    def open(self, slots: int) -> list[int]:
        return [v for v, its in self.near.items() if DEGREE - len(its) >= slots]

    def link(self, a: int, b: int) -> None:
        self.near[a].add(b)
        self.near[b].add(a)


def timed(graph: RegularGraph[int] | NaiveGraph, leaving: list[int]) -> float:
    """Processor seconds per change while each of these nodes leaves and joins again."""
    gc.collect()
    start = time.process_time()
    for node in leaving:
        graph.leave(node)
        graph.join(node)
    return (time.process_time() - start) / len(leaving) / 2


def operations(graph: RegularGraph[int], change: Callable[[int], object], node: int) -> int:
    """How many operations on the graph one change takes."""
    before = graph.operations
    change(node)
    return graph.operations - before


def measure(nodes: int) -> Row:
    """Build a graph by joins, then change it at its full size."""
    rng = random.Random(nodes)
    graph: RegularGraph[int] = RegularGraph(DEGREE, rng)
    for node in range(nodes):
        graph.join(node)
    leaving = [rng.randrange(nodes) for _ in range(CHANGES)]
    seconds = timed(graph, leaving)
    leaves = joins = 0
    for node in leaving:
        leaves += operations(graph, graph.leave, node)
        joins += operations(graph, graph.join, node)
    naive_seconds = None
    if nodes in NAIVE_SIZES:
        naive = NaiveGraph({v: set(graph.neighbours(v)) for v in graph.nodes()}, rng)
        naive_seconds = timed(naive, leaving[: NAIVE_SIZES[nodes]])
    return Row(nodes, joins / CHANGES, leaves / CHANGES, seconds, naive_seconds)


def main() -> None:
    """Print one row for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-nodes", type=int, default=SIZES[-1])
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    arguments = parser.parse_args()
    if not arguments.json:
        print(f"degree {DEGREE}; {CHANGES:,} leaves and joins at each size")
        print("    nodes  operations/join  operations/leave  time, 1,000 nodes = 1  naive/ours")
    first: Row | None = None
    for size in SIZES:
        if size > max(arguments.max_nodes, SIZES[0]):
            break
        row = measure(size)
        first = first or row
        ratios = row.ratios(first)
        if arguments.json:
            print(json.dumps(ratios), flush=True)
        else:
            cells = [f"{size:9,}", f"{row.operations_per_join:15.2f}"]
            cells += [f"{row.operations_per_leave:16.2f}", f"{ratios['time_ratio']:21.2f}"]
            cells += [f"{ratios['naive_time_ratio'] or '-':>10}"]
            print("  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
