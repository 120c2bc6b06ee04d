"""The tracker's graph keeps its invariants after every single change."""

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlays.regular_graph import RegularGraph, always

Graph = RegularGraph[int]
Links = Iterable[tuple[int, int]]
Suitable = Callable[[int, int], bool]

degrees = st.integers(2, 9)
seeds = st.integers(0, 2**32)


def grown(degree: int, nodes: int, seed: int = 0, suitable: Suitable = always) -> Graph:
    graph = RegularGraph(degree, random.Random(seed), suitable)
    for node in range(nodes):
        graph.join(node)
    return graph


def rebuilt(
    degree: int, nodes: int, links: Links, seed: int = 0, suitable: Suitable = always
) -> Graph:
    """A graph as a restarted tracker finds it in the field."""
    graph = RegularGraph(degree, random.Random(seed), suitable)
    for node in range(nodes):
        graph.add(node)
    assert all(graph.adopt(b, a) for a, b in links)
    return graph


def cliques(degree: int, count: int) -> list[tuple[int, int]]:
    """The links of a graph in `count` pieces without any unused slot."""
    size = degree + 1
    pieces = [range(first, first + size) for first in range(0, count * size, size)]
    return [link for piece in pieces for link in combinations(piece, 2)]


def view(graph: Graph) -> dict[int, set[int]]:
    return {node: set(graph.neighbours(node)) for node in graph.nodes()}


def exact(graph: Graph, change: Callable[..., list[int]], *arguments: int) -> list[int]:
    """Make a change and check that it names just the nodes whose neighbours differ."""
    before = view(graph)
    changed = change(*arguments)
    after = view(graph)
    differ = {v for v in before | after if before.get(v, set()) != after.get(v, set())}
    assert len(set(changed)) == len(changed)
    assert set(changed) == differ - (before.keys() - after.keys())
    check_simple(graph)
    return changed


def check_simple(graph: Graph) -> None:
    near = view(graph)
    pairs = [frozenset(link) for link in graph.links()]
    assert all(len(pair) == 2 for pair in pairs), "no node is its own neighbour"
    assert len(set(pairs)) == len(pairs), "every link is listed once"
    assert set(pairs) == {frozenset((a, b)) for a in near for b in near[a]}
    assert sum(map(len, near.values())) == 2 * len(pairs), "both ends know of a link"
    assert all(len(graph.neighbours(v)) == len(near[v]) <= graph.degree for v in near)


def check_regular(graph: Graph) -> None:
    nodes, degree = len(graph), graph.degree
    missing = sorted(degree - len(graph.neighbours(node)) for node in graph.nodes())
    if nodes <= degree:
        assert missing == [degree - nodes + 1] * nodes, "the graph is complete"
    else:
        odd = nodes * degree % 2
        assert missing == [0] * (nodes - odd) + [1] * odd


def is_whole(graph: Graph) -> bool:
    nodes = graph.nodes()
    reached = nodes[:1]
    for node in reached:
        reached += [v for v in graph.neighbours(node) if v not in reached]
    return len(reached) == len(nodes)


# Joins and leaves.


@settings(deadline=None)
@given(degrees, seeds, st.integers(0, 16), st.lists(st.integers(-8, 8), max_size=60))
def test_every_change_is_exact(degree: int, seed: int, nodes: int, moves: list[int]) -> None:
    graph = grown(degree, nodes, seed)
    for step, move in enumerate(moves, start=nodes):
        if move >= 0 or not len(graph):
            changed = exact(graph, graph.join, step)
            assert changed[:1] == [step] or len(graph) == 1
        else:
            exact(graph, graph.leave, graph.nodes()[move % len(graph)])
        check_regular(graph)


@pytest.mark.parametrize("degree", range(2, 10))
def test_graphs_with_hardly_any_choice_stay_regular(degree: int) -> None:
    # With few more than d nodes most links are unsuitable, and random draws miss the last one.
    for seed in range(15):
        graph = grown(degree, degree + 4, seed)
        for node in range(degree + 4):
            check_regular(graph)
            graph.leave(node)
            if node % 2:
                graph.join(node + 20)


@settings(max_examples=25, deadline=None)
@given(degrees, seeds, st.integers(10, 300), st.floats(0, 1))
def test_large_graphs_stay_regular(degree: int, seed: int, nodes: int, leaving: float) -> None:
    graph = grown(degree, nodes, seed)
    assert is_whole(graph), "a join splits nothing"
    rng = random.Random(seed)
    for node in rng.sample(range(nodes), int(nodes * leaving)):
        check_regular(graph)
        exact(graph, graph.leave, node)
        if rng.random() < 0.3:
            check_regular(graph)
            graph.join(node)


@given(degrees, seeds, st.lists(st.integers(0, 30), min_size=1, max_size=25, unique=True))
def test_mend_leaves_one_component(degree: int, seed: int, leaving: list[int]) -> None:
    graph = grown(degree, 31, seed)
    for node in leaving:
        graph.leave(node)
        whole = is_whole(graph)
        changed = exact(graph, graph.mend)
        assert not (whole and changed)
        assert is_whole(graph)
        check_regular(graph)


def test_any_two_nodes_are_equally_likely_to_be_linked() -> None:
    # Step 4 gives this exactly for even d. A link survives the join that makes n+1 nodes out
    # of n with probability 1-1/n, and the newest node reaches each other one with d/n; the
    # product is d/(n-1) for every pair. Counts over independent graphs are binomial then.
    nodes, degree, graphs = 100, 4, 200
    counts = dict.fromkeys(combinations(range(nodes), 2), 0)
    for seed in range(graphs):
        for a, b in grown(degree, nodes, seed).links():
            counts[min(a, b), max(a, b)] += 1
    chance = degree / (nodes - 1)
    mean = statistics.fmean(counts.values())
    assert mean == pytest.approx(graphs * chance)
    spread = statistics.pvariance(counts.values()) / mean / (1 - chance)
    assert spread == pytest.approx(1, abs=0.1)  # five standard deviations
    old = statistics.fmean(counts[pair] for pair in combinations(range(20), 2))
    assert old == pytest.approx(mean, rel=0.13)


PROGRAM = """
import random
from anabranch.overlays.regular_graph import RegularGraph
failed = set()
graph = RegularGraph(5, random.Random(7), lambda a, b: frozenset((a, b)) not in failed)
for step in range(120):
    print(graph.join(f"node-{step}"), graph.leave(graph.nodes()[step // 3]) if step % 3 else None)
    if step % 5 == 4:
        failed.add(frozenset(graph.links()[step % 4]))
        print(graph.cut(*graph.links()[step % 4]))
    graph.add(f"lone-{step}")
print(graph.mend(), graph.links(), [*map(graph.neighbours, graph.nodes())], graph.operations)
"""


def test_the_same_seed_gives_the_same_graph_under_any_hash_seed() -> None:
    outputs = set()
    for seed in ("0", "1", "12345"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM]
        outputs.add(subprocess.check_output(command, env=os.environ | environment))
    assert len(outputs) == 1


@pytest.mark.parametrize("degree", [4, 5, 8])
def test_a_change_costs_the_same_at_any_size(degree: int) -> None:
    for nodes in (100, 3000):
        graph = grown(degree, nodes)
        start = graph.operations
        for node in range(100):
            graph.leave(node)
            graph.join(node)
        assert (graph.operations - start) / 200 < 5 * degree


@pytest.mark.parametrize("hopeless", [1, 300])
def test_hopeless_slots_cost_little_and_hide_no_others(hopeless: int) -> None:
    # Nobody can connect to some nodes. Their slots are tried again in turn, though never by
    # going through all links, and slots that can be filled do not wait behind them.
    graph = grown(5, 2000, suitable=lambda a, b: a >= hopeless and b >= hopeless)
    assert sum(5 - len(graph.neighbours(node)) for node in range(hopeless, 2000)) <= 2
    start = graph.operations
    for node in range(1000, 1100):
        graph.leave(node)
        graph.join(node)
    assert (graph.operations - start) / 200 < 400
    graph.leave(0)
    start = graph.operations
    assert graph.join(0) == []
    assert graph.operations - start < 2000, "even a thorough search has its bound"
    start = graph.operations
    graph.mend()
    assert graph.operations - start < 500_000


@settings(deadline=None)
@given(degrees, seeds, st.integers(0, 16), st.lists(st.integers(0, 499), max_size=50))
def test_unsuitable_pairs_stay_apart(degree: int, seed: int, nodes: int, moves: list[int]) -> None:
    rng = random.Random(seed)
    share = rng.random() * 0.7
    verdicts: dict[frozenset[int], bool] = {}

    def suitable(a: int, b: int) -> bool:
        return verdicts.setdefault(frozenset((a, b)), rng.random() >= share)

    graph = grown(degree, nodes, seed, suitable)
    for step, move in enumerate(moves, start=nodes):
        kind, choice = divmod(move, 100)
        links = graph.links()
        if kind <= 1:
            exact(graph, graph.join, step)
        elif kind == 2 and len(graph):
            exact(graph, graph.leave, graph.nodes()[choice % len(graph)])
        elif kind == 3 and links:
            failed = links[choice % len(links)]
            verdicts[frozenset(failed)] = False
            exact(graph, graph.cut, *failed)
            assert len(graph.links()) >= len(links) - 1, "the failed link at most is lost"
        else:
            exact(graph, graph.mend)
            assert len(graph.links()) >= len(links), "an attempt that fails leaves no gap"
        assert all(verdicts[frozenset(link)] for link in graph.links())
    exact(graph, graph.complete)
    unused = [v for v in graph.nodes() if len(graph.neighbours(v)) < degree]
    for a, b in combinations(unused, 2):
        assert graph.linked(a, b) or not suitable(a, b), "no suitable pair is left"


def test_a_failed_link_is_replaced_on_both_sides() -> None:
    failed: set[frozenset[int]] = set()
    graph = grown(4, 50, suitable=lambda a, b: frozenset((a, b)) not in failed)
    for link in graph.links()[:40]:
        failed.add(frozenset(link))
        exact(graph, graph.cut, *link)
        check_regular(graph)
    assert not failed & {frozenset(link) for link in graph.links()}


def test_slots_left_unused_are_filled_when_pairs_become_suitable() -> None:
    reachable = False
    graph = grown(4, 12, suitable=lambda a, b: reachable or (a != 3 and b != 3))
    assert graph.neighbours(3) == []
    reachable = True
    assert 3 in graph.join(12)
    check_regular(graph)


# Mending.


@given(degrees, st.integers(2, 6), seeds)
def test_mend_joins_pieces_without_an_unused_slot(degree: int, count: int, seed: int) -> None:
    graph = rebuilt(degree, count * (degree + 1), cliques(degree, count), seed)
    assert not is_whole(graph)
    exact(graph, graph.mend)
    assert is_whole(graph)
    check_regular(graph)
    assert graph.mend() == []


@given(degrees, seeds, st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_mend_joins_pieces_by_unused_slots(degree: int, seed: int, lengths: list[int]) -> None:
    ends = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    paths = [link for first, last in pairwise(ends) for link in pairwise(range(first, last))]
    graph = rebuilt(degree, ends[-1], paths, seed)
    exact(graph, graph.mend)
    assert is_whole(graph)


def test_mend_makes_room_for_nodes_that_only_full_ones_can_reach() -> None:
    # Two nodes can reach one node each. The two who lose a link for them must get another.
    only = {28: 7, 29: 8}
    mended = 0
    for seed in range(20):
        graph = grown(4, 30, seed, lambda a, b: only.get(a, b) == b and only.get(b, a) == a)
        mended += bool(exact(graph, graph.mend))
        assert is_whole(graph)
        assert {len(graph.neighbours(node)) for node in range(28)} == {4}
    assert mended


def test_mend_keeps_a_piece_whole_that_hangs_on_one_link() -> None:
    # Two pieces, each of two blobs of five nodes with a bridge between. Only a few nodes are
    # suitable across; exchanging one bridge for the other would leave two pieces again.
    blob = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    links = [(first + a, first + b) for first in (0, 5, 10, 15) for a, b in blob]
    across = {frozenset((a, b)) for a in (0, 5) for b in (10, 15, 11, 13)}

    def suitable(a: int, b: int) -> bool:
        return a // 10 == b // 10 or frozenset((a, b)) in across

    for seed in range(20):
        graph = rebuilt(3, 20, [*links, (0, 5), (10, 15)], seed, suitable)
        assert len(graph.mend()) == 4
        assert is_whole(graph)
        check_regular(graph)


def test_mend_notices_that_a_swap_split_the_graph() -> None:
    # The ends of a path, unsuitable for each other, have one unused slot each. To fill both
    # a link is cut in the middle, and half the time two rings result.
    splits = 0
    for seed in range(20):
        graph = rebuilt(2, 10, pairwise(range(10)), seed, lambda a, b: {a, b} != {0, 9})
        assert graph.mend() == []
        assert graph.complete()
        splits += not is_whole(graph)
        graph.mend()
        assert is_whole(graph)
        check_regular(graph)
    assert splits


def test_mend_gives_up_when_nothing_is_suitable() -> None:
    graph = rebuilt(3, 8, cliques(3, 2), suitable=lambda a, b: a // 4 == b // 4)
    assert exact(graph, graph.mend) == []


def test_mend_looks_at_nothing_in_a_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    joined, left = grown(4, 40), grown(4, 40)
    left.leave(3)
    assert left.mend() == []
    monkeypatch.delattr(RegularGraph, "_components")
    assert joined.mend() == left.mend() == []
    left.leave(4)
    with pytest.raises(AttributeError):
        left.mend()


@given(degrees, st.integers(1, 40), seeds)
def test_a_view_is_rebuilt_from_the_links_in_the_field(degree: int, nodes: int, seed: int) -> None:
    old = grown(degree, nodes, seed)
    graph = rebuilt(degree, nodes, old.links(), seed + 1)
    assert view(graph) == view(old)
    assert graph.complete() == graph.mend() == []
    graph.join(nodes)
    check_regular(graph)


@given(degrees, seeds, st.integers(2, 60), st.floats(0, 1))
def test_complete_fills_a_partial_view(degree: int, seed: int, nodes: int, known: float) -> None:
    links = grown(degree, nodes, seed).links()
    graph = rebuilt(degree, nodes, links[: int(len(links) * known)], seed + 1)
    exact(graph, graph.complete)
    check_regular(graph)


def test_adopt_and_cut_refuse_what_cannot_be() -> None:
    graph = rebuilt(2, 4, [(1, 0), (2, 0)])
    assert not graph.adopt(1, 0), "linked already"
    assert not graph.adopt(1, 1), "not a pair"
    assert not graph.adopt(3, 0), "no unused slot"
    assert not graph.adopt(3, 9), "unknown"
    assert not graph.adopt(9, 3), "unknown"
    assert graph.cut(1, 2) == graph.cut(1, 9) == graph.cut(8, 9) == []
    assert graph.links() == [(0, 1), (0, 2)]


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        grown(1, 0)
    with pytest.raises(ValueError, match="already"):
        grown(4, 6).join(3)
    with pytest.raises(ValueError, match="already"):
        grown(4, 6).add(3)
    with pytest.raises(ValueError, match="not in the graph"):
        grown(4, 6).leave(6)


def test_an_empty_graph_is_whole() -> None:
    graph = rebuilt(4, 2, [])
    assert graph.leave(0) == graph.leave(1) == graph.mend() == graph.complete() == []
    assert graph.links() == []
    assert 1 not in graph
    assert len(graph) == 0
