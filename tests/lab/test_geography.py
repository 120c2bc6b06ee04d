import math
import random
from statistics import mean

import pytest

from anabranch.lab.geography import (
    ACCESS_SCALE_MS,
    ACCESS_SHAPE,
    CITIES,
    SQUARE_MS,
    Cities,
    Square,
    great_circle_km,
    largest_cities,
)


def test_on_the_square_the_delay_is_the_distance() -> None:
    square = Square(3, random.Random(1))
    (ax, ay), (bx, by) = square.place(0), square.place(1)
    assert square.delay_s(0, 1) == pytest.approx(math.hypot(ax - bx, ay - by) * SQUARE_MS / 1000)
    assert square.delay_s(0, 1) == square.delay_s(1, 0)


@pytest.mark.parametrize(
    ("here", "there", "km"),
    [
        ((51.507, -0.128), (48.857, 2.352), 344),  # London, Paris
        ((40.713, -74.006), (35.690, 139.692), 10850),  # New York, Tokyo
        ((0, 0), (0, 180), 20015),
        ((10, 20), (10, 20), 0),
    ],
)
def test_distances_are_those_of_the_globe(
    here: tuple[float, float], there: tuple[float, float], km: float
) -> None:
    assert great_circle_km(*here, *there) == pytest.approx(km, rel=0.005)


def test_the_cities_are_the_largest() -> None:
    names = [name for name, _, _ in largest_cities()]
    assert len(names) == CITIES
    assert {"Shanghai", "Delhi", "Istanbul", "Lagos"} <= set(names[:40])


def test_nodes_are_spread_over_the_cities_behind_their_access() -> None:
    nodes = 4000
    cities = Cities(nodes, random.Random(2))
    assert len({cities.row(place) for place in range(nodes)}) > 0.99 * CITIES
    access_s = [cities.delay_s(place, place) / 2 for place in range(nodes)]
    assert mean(access_s) == pytest.approx(ACCESS_SHAPE * ACCESS_SCALE_MS / 1000, rel=0.05)
    # Half around the earth, with the detour, and two poor accesses: nothing is farther.
    far_s = max(cities.delay_s(0, place) for place in range(1, nodes))
    assert 0.1 < far_s < 0.151 + 0.06
    one, other = (Cities(5, random.Random(7)) for _ in range(2))
    assert one.delay_s(1, 3) == other.delay_s(1, 3) == one.delay_s(3, 1)
