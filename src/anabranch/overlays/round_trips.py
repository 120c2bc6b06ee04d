"""Delays that nodes have measured to one another, as they claim them.

A delay counts as known when both ends have measured it, and then the longer one counts: whoever
claims less than is true changes nothing, and whoever claims more is taken for farther away. What
one end claims alone is only a reason to ask the other.

Two who collude can claim to be far apart, so as not to be given one another for neighbours. But the
ways around, through those whom both have measured, show it. A claim that is several times as long
as the shorter third of these is absurd: fewer than that may be lies to make it seem so.
"""

MAX_CLAIMS = 64  # of each node; those that were made longest ago go first
STALE_S = 600.0  # what nobody has measured for so long is not known any more

LEAST_AROUND = 5  # ways around, or nothing is said of a claim
SHORTER_THIRD = 0.3  # of the ways around: the shortest may be lies of others
ABSURD_TIMES = 3.0
ABSURD_MS = 20.0  # and by so much beyond

Claim = tuple[float, float]  # one-way delay in ms, when it was measured


class RoundTrips:
    """Who claims which delay to whom; nodes are numbers here."""

    def __init__(self) -> None:
        self._claims: dict[int, dict[int, Claim]] = {}

    def add(self, node: int) -> None:
        """Begin to keep what a node claims."""
        self._claims[node] = {}

    def forget(self, node: int) -> None:
        """Drop a node that left, and what others claim of it."""
        for peer in self._claims.pop(node, {}):
            self._claims[peer].pop(node, None)
        for claims in self._claims.values():
            claims.pop(node, None)

    def claim(self, node: int, peer: int, rtt_us: int, now: float) -> None:
        """Take a node's word for its round trip to another."""
        claims = self._claims[node]
        claims.pop(peer, None)  # so that the oldest are always the first
        claims[peer] = rtt_us / 2000, now
        oldest = next(iter(claims))
        if len(claims) > MAX_CLAIMS or claims[oldest][1] < now - STALE_S:
            del claims[oldest]

    def claims(self, node: int) -> dict[int, Claim]:
        """Return what a node claims: to look at, not to change."""
        return self._claims[node]

    def claimed_ms(self, node: int, peer: int) -> float | None:
        """Return the delay that either end claims; the longer one if both do."""
        mine, other = self._claims[node].get(peer), self._claims[peer].get(node)
        if mine is None:
            return other[0] if other is not None else None
        return mine[0] if other is None or mine[0] > other[0] else other[0]

    def known_ms(self, node: int, peer: int) -> float | None:
        """Return the delay if both ends have measured it."""
        mine = self._claims[node].get(peer)
        if mine is None:
            return None
        other = self._claims[peer].get(node)
        if other is None:
            return None
        return max(other[0], mine[0])

    def is_absurd(self, node: int, peer: int) -> bool:
        """Tell whether a node claims to be farther from another than can be believed."""
        claims = self._claims
        mine, theirs, around = claims[node], claims[peer], list[float]()
        if peer not in mine or mine[peer][0] <= ABSURD_MS:
            return False
        for each in mine.keys() & theirs.keys():
            to_node, to_peer = claims[each].get(node), claims[each].get(peer)
            if to_node is not None and to_peer is not None:
                way_ms = max(mine[each][0], to_node[0]) + max(theirs[each][0], to_peer[0])
                around.append(way_ms)
        if len(around) < LEAST_AROUND:
            return False
        around.sort()
        believed_ms = ABSURD_TIMES * around[int(SHORTER_THIRD * len(around))] + ABSURD_MS
        return mine[peer][0] > believed_ms

    def most(self) -> int:
        """Return how many claims the node with most of them has."""
        return max(map(len, self._claims.values()), default=0)
