"""The way back of an answer: to who asked, from who was asked, once, and for a while."""

import pytest

from anabranch.core import key_routes
from anabranch.core.ids import NodeId
from anabranch.core.key_routes import REQUESTS_AT_ONCE, REQUESTS_PER_S, ROUTE_S, KeyRoutes
from anabranch.core.links import PATIENCE, PATIENCE_PER_S
from machines import NODES, START

A, B, C = NODES[:3]  # neighbours
P, Q, R = NODES[3:6]  # publishers


def passed_on(*tickets: bytes) -> KeyRoutes:
    """Pass requests on from A to B."""
    routes = KeyRoutes()
    for ticket in tickets:
        assert routes.has_room(ticket, A, P, START)
        routes.add(ticket, A, B, P, START)
    return routes


def left(routes: KeyRoutes) -> int:
    return routes.sizes()["key routes"][0]


def test_an_answer_goes_back_once() -> None:
    routes = passed_on(b"one", b"two")
    assert routes.back(b"one", B, START) == A
    assert routes.back(b"one", B, START) is None
    assert routes.back(b"two", B, START) == A
    assert left(routes) == routes.sizes()["key routes of a peer"][0] == 0


def test_only_who_was_asked_answers() -> None:
    routes = passed_on(b"one")
    assert routes.back(b"one", C, START) is None
    assert routes.back(b"one", A, START) is None
    assert routes.back(b"other", B, START) is None
    assert routes.back(b"one", B, START) == A


def test_an_answer_may_take_so_long() -> None:
    routes = passed_on(b"one")
    assert routes.back(b"one", B, START + ROUTE_S - 0.01) == A
    assert passed_on(b"one").back(b"one", B, START + ROUTE_S) is None


def test_a_request_that_goes_in_a_circle_ends() -> None:
    routes = passed_on(b"one")
    assert not routes.has_room(b"one", C, P, START)
    assert routes.has_room(b"one", C, P, START + ROUTE_S)


def room(routes: KeyRoutes, came_from: NodeId, publisher: NodeId, limit: int = 1_000) -> int:
    """Pass on as many requests as there is room for, to B; return how many there were."""
    for number in range(limit):
        ticket = b"%b %b %d" % (came_from, publisher, number)
        if not routes.has_room(ticket, came_from, publisher, START):
            return number
        routes.add(ticket, came_from, B, publisher, START)
    return limit


def test_neither_a_peer_nor_a_publisher_can_use_up_the_room_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_routes, "MAX_ROUTES", 48)
    monkeypatch.setattr(key_routes, "MAX_ROUTES_PER_PEER", 16)
    routes = KeyRoutes()
    assert room(routes, A, P) == 8  # half of what a peer may have
    assert [room(routes, A, publisher) for publisher in (Q, R)] == [4, 4]  # a quarter of it each
    assert room(routes, C, P) == 8
    assert room(routes, C, Q) == 4
    assert room(routes, B, P) == 0  # it has more than a quarter of all, and half of all is used up
    assert room(routes, B, Q) == 4
    for number in range(8):
        assert routes.back(b"%b %b %d" % (A, P, number), B, START) == A
    assert room(routes, B, P) == 4
    routes.has_room(b"anything", A, P, START + ROUTE_S)
    assert all(size == 0 for name, (size, _) in routes.sizes().items() if "routes" in name)


def test_a_link_that_ended_is_owed_nothing() -> None:
    routes = passed_on(b"one")
    routes.add(b"two", C, B, P, START)
    routes.gone(A)
    assert left(routes) == 1
    assert routes.back(b"one", B, START) is None
    assert routes.back(b"two", B, START) == C


def asked(routes: KeyRoutes, publisher: NodeId, after: float = 0.0) -> int:
    """Ask A for as many keys of a publisher as we may; return how many those were."""
    return sum(routes.allow(A, publisher, START + after) for _ in range(int(PATIENCE)))


def test_no_neighbour_is_asked_so_often_that_it_takes_us_for_a_flood() -> None:
    routes = KeyRoutes()
    at_once = sum(asked(routes, publisher) for publisher in NODES[3:10])
    assert at_once == REQUESTS_AT_ONCE < PATIENCE
    assert REQUESTS_PER_S < PATIENCE_PER_S
    assert routes.allow(B, P, START)
    in_a_second = sum(asked(routes, publisher, 1) for publisher in NODES[3:10])
    assert in_a_second == REQUESTS_PER_S
    rested = sum(asked(routes, publisher, 1_000) for publisher in NODES[3:10])
    assert rested == REQUESTS_AT_ONCE
    routes.gone(A)
    assert routes.sizes()["neighbours asked for keys"][0] == 1


def test_a_publisher_that_is_asked_without_end_leaves_half_to_others() -> None:
    routes = KeyRoutes()
    assert asked(routes, P) == REQUESTS_AT_ONCE / 2
    assert asked(routes, Q) == REQUESTS_AT_ONCE / 4
    assert asked(routes, P, 1) == REQUESTS_PER_S / 4  # its share of what there is anew
    routes = KeyRoutes()
    for second in range(60):  # alone it may have all that comes anew
        assert asked(routes, P, second) >= REQUESTS_PER_S
    assert asked(routes, Q, 59) == REQUESTS_AT_ONCE / 4


def test_the_publishers_that_a_neighbour_was_asked_for_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_routes, "MAX_DRAWERS", 2)
    routes = KeyRoutes()
    for publisher in NODES:
        assert routes.allow(A, publisher, START)
    assert routes.sizes()["publishers asked of a neighbour"] == (2, 2)
