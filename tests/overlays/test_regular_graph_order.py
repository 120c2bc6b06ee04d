"""The order of the tracker in its graph: nodes that wait, and users that are no neighbours yet."""

import random
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlays.regular_graph import RegularGraph

NODES = 40
DEGREE = 4


class Order:
    """Nodes that wait, and users of several nodes."""

    def __init__(self) -> None:
        self.waiting: set[int] = set()
        self.of_user: dict[int, Hashable] = {}

    def waits(self, node: int) -> bool:
        return node in self.waiting

    def user(self, node: int) -> Hashable:
        return self.of_user.get(node, node)


def grown(order: Order, nodes: int = NODES, seed: int = 1) -> RegularGraph[int]:
    apart: set[frozenset[int]] = set()
    graph = RegularGraph(
        DEGREE, random.Random(seed), lambda a, b: frozenset((a, b)) not in apart, order
    )
    for node in range(nodes):
        graph.join(node)
    graph.apart = apart  # type: ignore[attr-defined]
    return graph


def dispute(graph: RegularGraph[int], a: int, b: int) -> None:
    graph.apart.add(frozenset((a, b)))  # type: ignore[attr-defined]
    graph.cut(a, b)


def test_node_that_waits_gets_no_neighbours_until_it_waits_no_more() -> None:
    order = Order()
    graph = grown(order)
    order.waiting.add(7)
    for peer in graph.neighbours(7)[:2]:
        dispute(graph, 7, peer)
    for _ in range(3):
        graph.complete()
        graph.mend()
        graph.leave(graph.nodes()[-1])
    assert len(graph.neighbours(7)) <= DEGREE - 2
    order.waiting.clear()
    graph.complete()
    assert len(graph.neighbours(7)) == DEGREE


def test_node_that_waits_and_has_no_neighbours_is_left_alone_by_mending() -> None:
    order = Order()
    graph = grown(order)
    order.waiting.add(7)
    for peer in list(graph.neighbours(7)):
        dispute(graph, 7, peer)
    graph.mend()
    assert list(graph.neighbours(7)) == []
    others = [node for node in graph.nodes() if node != 7]
    assert sum(DEGREE - len(graph.neighbours(node)) for node in others) == 0
    order.waiting.clear()
    graph.mend()
    assert len(graph.neighbours(7)) == DEGREE


def test_node_that_waits_and_returns_gets_no_neighbours() -> None:
    order = Order()
    graph = grown(order)
    order.waiting.add(7)
    graph.leave(7)
    graph.join(7)
    assert list(graph.neighbours(7)) == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), waiting=st.sets(st.integers(0, NODES - 1), max_size=8))
def test_others_are_regular_and_connected_while_some_wait(seed: int, waiting: set[int]) -> None:
    order = Order()
    graph = grown(order, seed=seed)
    order.waiting |= waiting
    for node in sorted(waiting):
        for peer in list(graph.neighbours(node)):
            dispute(graph, node, peer)
    graph.complete()
    graph.mend()
    others = [node for node in graph.nodes() if node not in waiting]
    assert sum(DEGREE - len(graph.neighbours(node)) for node in others) <= 1
    reached, queue = {others[0]}, [others[0]]
    for node in queue:
        for peer in graph.neighbours(node):
            if peer not in reached:
                reached.add(peer)
                queue.append(peer)
    assert reached >= set(others)


def shared(graph: RegularGraph[int], order: Order) -> int:
    """Return how many neighbours are of a user of which another neighbour is."""
    users = [[order.user(peer) for peer in graph.neighbours(node)] for node in graph.nodes()]
    return sum(len(each) - len(set(each)) for each in users)


@pytest.mark.parametrize("seed", range(5))
def test_users_that_are_no_neighbours_yet_come_first(seed: int) -> None:
    one_user, many_users = Order(), Order()
    one_user.of_user = dict.fromkeys(range(NODES - 6, NODES), "a user with six nodes")
    graphs = [grown(order, seed=seed) for order in (one_user, many_users)]
    assert shared(graphs[0], one_user) == 0
    assert shared(graphs[1], one_user) > 0
    for graph in graphs:  # degree and connectedness go before
        assert all(len(graph.neighbours(node)) == DEGREE for node in graph.nodes())


def test_nodes_of_a_single_user_are_connected_all_the_same() -> None:
    order = Order()
    order.of_user = dict.fromkeys(range(NODES), "one user")
    graph = grown(order)
    assert all(len(graph.neighbours(node)) == DEGREE for node in graph.nodes())
