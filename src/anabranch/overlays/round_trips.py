"""Delays that nodes have measured to one another, as they claim them.

A delay counts as known when both ends have measured it, and then the longer one counts: whoever
claims less than is true changes nothing, and whoever claims more is taken for farther away. What
one end claims alone is only a reason to ask the other.
"""

MAX_CLAIMS = 64  # of each node; those that were made longest ago go first
STALE_S = 600.0  # what nobody has measured for so long is not known any more

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

    def most(self) -> int:
        """Return how many claims the node with most of them has."""
        return max(map(len, self._claims.values()), default=0)
