"""The way back: for each key request that we passed on, from whom it came and to whom it went.

A request is told apart by its ticket and passed on once, so that one which goes in a circle ends.
What a node asks of one neighbour is bounded well below what a neighbour takes for a flood
(PATIENCE in core/links.py): who asks in vain asks again later, and elsewhere.

When half of anything that is bounded here is used up, the rest is for requests to publishers that
have had less than a quarter of it: one that is asked without end, since it uses ever more keys, or
answers nobody, does not keep others from being asked.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import TypeVar

import msgspec

from anabranch.core.ids import NodeId
from anabranch.core.links import MAX_HELD
from anabranch.core.machine import Sizes

ROUTE_S = 10.0
MAX_ROUTES = 4_096
MAX_ROUTES_PER_PEER = 1_024  # so that one neighbour cannot use up the room of the others
MAX_DRAWERS = 256  # publishers that one neighbour was asked for last
REQUESTS_AT_ONCE = 1_000.0  # to one neighbour
REQUESTS_PER_S = 100.0


K = TypeVar("K", bound=Hashable)


class _Route(msgspec.Struct):
    came_from: NodeId
    sent_to: NodeId
    publisher: NodeId
    until: float


class _Drawn(msgspec.Struct):
    """How many requests were made of late."""

    count: float
    at: float

    def ease(self, per_s: float, now: float) -> None:
        """Let what was asked become the past."""
        self.count = max(0.0, self.count - (now - self.at) * per_s)
        self.at = now


class _Neighbour(msgspec.Struct):
    drawn: _Drawn
    by_publisher: OrderedDict[NodeId, _Drawn]  # the one asked last is the last


class KeyRoutes:
    """Where answers go."""

    def __init__(self) -> None:
        self._routes: OrderedDict[bytes, _Route] = OrderedDict()  # by ticket, oldest first
        self._per_peer: Counter[NodeId] = Counter()
        self._per_publisher: Counter[NodeId] = Counter()
        self._per_both: Counter[tuple[NodeId, NodeId]] = Counter()
        self._neighbours: dict[NodeId, _Neighbour] = {}

    def allow(self, to: NodeId, publisher: NodeId, now: float) -> bool:
        """Tell whether a neighbour may be asked once more, and count it."""
        neighbour = self._neighbours.get(to)
        if neighbour is None:
            neighbour = self._neighbours[to] = _Neighbour(_Drawn(0.0, now), OrderedDict())
        drawn, drawers = neighbour.drawn, neighbour.by_publisher
        own = drawers.setdefault(publisher, _Drawn(0.0, now))
        drawers.move_to_end(publisher)
        if len(drawers) > MAX_DRAWERS:
            drawers.popitem(last=False)
        drawn.ease(REQUESTS_PER_S, now)
        own.ease(REQUESTS_PER_S / 4, now)
        if not _is_fair(drawn.count, own.count, REQUESTS_AT_ONCE):
            return False
        drawn.count += 1
        own.count = min(own.count + 1, REQUESTS_AT_ONCE / 4)
        return True

    def has_room(self, ticket: bytes, came_from: NodeId, publisher: NodeId, now: float) -> bool:
        """Tell whether a request is new, and may be remembered."""
        self._expire(now)
        of_peer, of_both = self._per_peer[came_from], self._per_both[came_from, publisher]
        return (
            ticket not in self._routes
            and _is_fair(len(self._routes), self._per_publisher[publisher], MAX_ROUTES)
            and _is_fair(of_peer, of_both, MAX_ROUTES_PER_PEER)
        )

    def add(
        self, ticket: bytes, came_from: NodeId, sent_to: NodeId, publisher: NodeId, now: float
    ) -> None:
        """Remember the way of a request."""
        self._routes[ticket] = _Route(came_from, sent_to, publisher, now + ROUTE_S)
        self._per_peer[came_from] += 1
        self._per_publisher[publisher] += 1
        self._per_both[came_from, publisher] += 1

    def back(self, ticket: bytes, sender: NodeId, now: float) -> NodeId | None:
        """Return who waits for an answer, if `sender` is who was asked for it; once."""
        self._expire(now)
        route = self._routes.get(ticket)
        if route is None or route.sent_to != sender:
            return None
        self._forget(ticket)
        return route.came_from

    def gone(self, peer: NodeId) -> None:
        """Forget what a link that ended is owed."""
        self._neighbours.pop(peer, None)
        for ticket in [t for t, route in self._routes.items() if route.came_from == peer]:
            self._forget(ticket)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        of_peer = max(self._per_peer.values(), default=0)
        drawers = max((len(each.by_publisher) for each in self._neighbours.values()), default=0)
        return {
            "key routes": (len(self._routes), MAX_ROUTES),
            "key routes of a peer": (of_peer, MAX_ROUTES_PER_PEER),
            "key routes by publisher": (len(self._per_publisher), MAX_ROUTES),
            "key routes by peer and publisher": (len(self._per_both), MAX_ROUTES),
            "neighbours asked for keys": (len(self._neighbours), MAX_HELD),
            "publishers asked of a neighbour": (drawers, MAX_DRAWERS),
        }

    def _expire(self, now: float) -> None:
        while self._routes:
            ticket, route = next(iter(self._routes.items()))
            if route.until > now:
                break
            self._forget(ticket)

    def _forget(self, ticket: bytes) -> None:
        route = self._routes.pop(ticket)
        _count_down(self._per_peer, route.came_from)
        _count_down(self._per_publisher, route.publisher)
        _count_down(self._per_both, (route.came_from, route.publisher))


def _is_fair(taken: float, own: float, bound: float) -> bool:
    """Tell whether one more fits, and leaves room for those who have less."""
    return taken + 1 <= bound and (taken < bound / 2 or own < bound / 4)


def _count_down(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
