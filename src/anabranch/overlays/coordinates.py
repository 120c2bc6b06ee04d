"""Network coordinates: an estimate of the delay between two nodes that have never met.

Vivaldi (Dabek et al., 2004): every node has a place in a space and a height above it, and the
delay between two is the distance of their places and both heights. Each measurement is a spring
between two places; the place that is less sure of itself moves more. The height stands for what
every way to a node has in common: its own access to the network.

The tracker computes them for all nodes, from what they measured. What only one end claims moves
only that end: whoever lies about its delays puts itself in a wrong place, and nobody else.
"""

import math
import random

SPREAD_MS = 10.0  # of the places at which nodes begin
STEP = 0.25  # of its error a measurement corrects at most
LEAST_HEIGHT_MS = 0.02
LEAST_DELAY_MS = 0.5  # an error is no more relative than to this: clocks are not finer

Place = list[float]  # four coordinates, and the height


class Coordinates:
    """Places of nodes, which are numbers here."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._places: dict[int, Place] = {}
        self._errors: dict[int, float] = {}  # relative, of each place: 1 knows nothing

    def add(self, node: int) -> None:
        """Put a node somewhere."""
        self._places[node] = [*(self._rng.gauss(0, SPREAD_MS) for _ in range(4)), 1.0]
        self._errors[node] = 1.0

    def forget(self, node: int) -> None:
        """Drop a node that left."""
        self._places.pop(node, None)
        self._errors.pop(node, None)

    def delay_ms(self, a: int, b: int) -> float:
        """Return the delay between two nodes as their places have it."""
        x0, x1, x2, x3, height_a = self._places[a]
        y0, y1, y2, y3, height_b = self._places[b]
        x0, x1, x2, x3 = x0 - y0, x1 - y1, x2 - y2, x3 - y3
        return math.sqrt(x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3) + height_a + height_b

    def measured(self, a: int, b: int, delay_ms: float, both: bool) -> None:
        """Move `a`, and `b` if both ends say so, towards where the delay would be this."""
        place_a, place_b, errors = self._places[a], self._places[b], self._errors
        away = [x - y for x, y in zip(place_a[:4], place_b[:4], strict=True)]
        distance = math.sqrt(sum(x * x for x in away))
        if distance < 1e-6:  # two at one place: any direction will do
            away = [self._rng.gauss(0, 1) for _ in range(4)]
            distance = math.sqrt(sum(x * x for x in away))
            total = place_a[4] + place_b[4]
        else:
            total = distance + place_a[4] + place_b[4]
        error = delay_ms - total
        relative = min(1.0, abs(error) / max(delay_ms, LEAST_DELAY_MS))
        weight_a = errors[a] / (errors[a] + errors[b]) if both else 1.0
        moves = ((a, place_a, weight_a, 1.0), (b, place_b, 1.0 - weight_a, -1.0))
        for node, place, weight, sign in moves if both else moves[:1]:
            share = STEP * weight
            errors[node] = max(1e-3, relative * share + errors[node] * (1 - share))
            step = sign * share * error / distance
            place[0] += step * away[0]
            place[1] += step * away[1]
            place[2] += step * away[2]
            place[3] += step * away[3]
            place[4] = max(LEAST_HEIGHT_MS, place[4] + share * error * place[4] / total)
