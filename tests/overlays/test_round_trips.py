"""Two ends make a delay known, and the longer word counts."""

from anabranch.overlays.round_trips import LEAST_AROUND, MAX_CLAIMS, STALE_S, RoundTrips


def trips(nodes: int = 3) -> RoundTrips:
    made = RoundTrips()
    for node in range(nodes):
        made.add(node)
    return made


def test_a_delay_is_known_when_both_ends_have_measured_it() -> None:
    made = trips()
    assert made.claimed_ms(0, 1) is None
    made.claim(0, 1, 20_000, 0.0)
    assert (made.claimed_ms(0, 1), made.claimed_ms(1, 0)) == (10.0, 10.0)
    assert (made.known_ms(0, 1), made.known_ms(1, 0)) == (None, None)
    made.claim(1, 0, 30_000, 0.0)
    assert (made.known_ms(0, 1), made.known_ms(1, 0), made.claimed_ms(0, 1)) == (15.0, 15.0, 15.0)


def test_who_claims_less_than_is_true_changes_nothing() -> None:
    made = trips()
    made.claim(0, 1, 80_000, 0.0)
    made.claim(1, 0, 2, 0.0)
    assert made.known_ms(0, 1) == 40.0


def test_claims_are_bounded_and_grow_old() -> None:
    made = trips(MAX_CLAIMS + 2)
    for peer in range(1, MAX_CLAIMS + 2):
        made.claim(0, peer, 1_000, float(peer))
    assert made.most() == MAX_CLAIMS
    assert 1 not in made.claims(0)
    made.claim(0, 2, 1_000, 3 + STALE_S + 0.5)  # said anew: it is the newest, and the third is old
    assert 3 not in made.claims(0)
    assert 2 in made.claims(0)


def test_who_left_is_forgotten_by_all() -> None:
    made = trips()
    made.claim(0, 1, 1_000, 0.0)
    made.claim(1, 0, 1_000, 0.0)
    made.claim(2, 1, 1_000, 0.0)
    made.forget(1)
    assert made.claims(0) == made.claims(2) == {}


def test_a_claim_is_absurd_that_the_ways_around_do_not_bear_out() -> None:
    made = trips(12)

    def measure(a: int, b: int, one_way_ms: float) -> None:
        made.claim(a, b, round(2_000 * one_way_ms), 0.0)

    measure(0, 1, 30_000.0)
    for each in range(2, 12):  # ways around of 20 ms, 30 ms, ... 110 ms
        assert made.is_absurd(0, 1) == (each - 2 >= LEAST_AROUND)
        for end in (0, 1):
            measure(end, each, 5.0 * each)
            measure(each, end, 5.0 * each)
    measure(0, 1, 170.0)
    assert not made.is_absurd(0, 1)  # three times 50 ms and 20 ms, and no more
    measure(0, 1, 171.0)
    assert made.is_absurd(0, 1)
    assert not made.is_absurd(1, 0)  # it has claimed nothing
    for each in (2, 3, 4):  # these say now that they are next to both, and only one end does
        measure(each, 0, 0.001)
        measure(each, 1, 0.001)
    measure(0, 1, 170.0)
    assert not made.is_absurd(0, 1)  # who claims less than is true changes nothing
    for each in (2, 3):  # some collude, and both ends say so: the shortest ways are not believed
        measure(0, each, 0.001)
        measure(1, each, 0.001)
    assert not made.is_absurd(0, 1)
