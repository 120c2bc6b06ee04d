"""Coordinates learn the delays of a plane, and liars move nobody but themselves."""

import math
import random

from anabranch.overlays.coordinates import Coordinates


def test_delays_that_were_never_measured_are_estimated() -> None:
    rng = random.Random(1)
    spots = [(rng.uniform(0, 100), rng.uniform(0, 100), rng.uniform(1, 8)) for _ in range(60)]

    def true_ms(a: int, b: int) -> float:
        return math.dist(spots[a][:2], spots[b][:2]) + spots[a][2] + spots[b][2]

    places = Coordinates(rng)
    for node in range(60):
        places.add(node)
    pairs = [(a, b) for a in range(60) for b in rng.sample(range(60), 8) if a != b]
    for _ in range(100):
        for a, b in pairs:
            places.measured(a, b, true_ms(a, b), both=True)
    known = set(pairs)
    unknown = [(a, b) for a in range(60) for b in range(a) if not {(a, b), (b, a)} & known]
    errors = sorted(abs(places.delay_ms(a, b) / true_ms(a, b) - 1) for a, b in unknown)
    assert errors[len(errors) // 2] < 0.1


def test_what_one_end_claims_moves_only_that_end() -> None:
    places = Coordinates(random.Random(1))
    for node in range(3):
        places.add(node)
    before = places.delay_ms(1, 2)
    for _ in range(50):
        places.measured(0, 1, 500.0, both=False)
    assert places.delay_ms(1, 2) == before
    assert places.delay_ms(0, 1) > 400


def test_two_at_one_place_come_apart() -> None:
    places = Coordinates(random.Random(1))
    places.add(0)
    places.add(1)
    places._places[1][:] = places._places[0]
    places.measured(0, 1, 50.0, both=True)
    assert places.delay_ms(0, 1) > 5
    places.forget(0)
    places.forget(0)
