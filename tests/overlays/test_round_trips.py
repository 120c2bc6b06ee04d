"""Two ends make a delay known, and the longer word counts."""

from anabranch.overlays.round_trips import MAX_CLAIMS, STALE_S, RoundTrips


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
