"""What strangers may ask for, by address and in all."""

import pytest

from anabranch.live.transports.limits import Admission, Limits, is_within, parse_prefix, place_of


def admitted(admission: Admission, place: str, count: int, now: float = 0.0) -> int:
    return sum(admission.admit(place, now) for _ in range(count))


def test_pending_connections_of_one_address_are_bounded() -> None:
    admission = Admission(Limits(pending_per_address=3))
    assert admitted(admission, "a", 10) == 3
    assert admitted(admission, "b", 1) == 1
    admission.release("a", proved=False)
    assert admitted(admission, "a", 10) == 1


def test_links_of_one_address_are_bounded() -> None:
    admission = Admission(Limits(links_per_address=2))
    for _ in range(2):
        assert admission.admit("a", 0.0)
        admission.prove("a")
    assert not admission.admit("a", 0.0)
    assert admission.admit("b", 0.0)
    admission.release("a", proved=True)
    assert admission.admit("a", 0.0)


def test_all_together_are_bounded() -> None:
    admission = Admission(Limits(pending=4, links=3))
    assert sum(admission.admit(str(place), 0.0) for place in range(10)) == 4
    for place in range(3):
        admission.prove(str(place))
    assert (admission.pending, admission.links) == (1, 3)
    assert not admission.admit("new", 0.0)
    admission.release("0", proved=True)
    assert admission.admit("new", 0.0)


def test_full_places_are_told_whose_connection_has_to_make_room() -> None:
    admission = Admission(Limits(pending=3, pending_per_address=2))
    asked: list[str | None] = []

    def evict(place: str | None) -> bool:
        asked.append(place)
        admission.release("a", proved=False)
        return True

    assert admitted(admission, "a", 2) == 2
    assert admission.admit("a", 0.0, evict=evict)
    assert asked == ["a"]
    assert admission.admit("b", 0.0, evict=evict)
    assert admission.admit("c", 0.0, evict=evict)
    assert asked == ["a", None]
    assert admission.pending == 3


def test_connections_come_in_bursts_and_then_at_a_rate() -> None:
    admission = Admission(Limits(burst=5, per_s=2.0, pending_per_address=1_000))
    assert admitted(admission, "a", 20, now=0.0) == 5
    assert admitted(admission, "a", 20, now=0.4) == 0
    assert admitted(admission, "a", 20, now=0.5) == 1
    assert admitted(admission, "a", 20, now=2.0) == 3
    assert admitted(admission, "a", 20, now=100.0) == 5


def test_idle_addresses_are_forgotten_and_busy_ones_are_not() -> None:
    limits = Limits(pending=1, links=2, idle_addresses=10, burst=1, per_s=0.001)
    admission = Admission(limits)
    assert admission.admit("linked", 0.0)
    admission.prove("linked")
    for number in range(1_000):
        place = str(number)
        assert admission.admit(place, 1.0)
        admission.release(place, proved=False)
        assert len(admission) <= 14
    assert not admission.admit("999", 1.0)  # its token is remembered as spent
    assert admission.admit("0", 1.0)  # long forgotten
    admission.release("linked", proved=True)
    assert admission.links == 0


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_counts_as_its_network(address: str, place: str) -> None:
    assert place_of(address) == place


@pytest.mark.parametrize(
    ("address", "within"),
    [("10.1.2.3", True), ("::ffff:10.1.2.3", True), ("11.0.0.1", False), ("localhost", False)],
)
def test_an_address_is_within_a_prefix_and_a_host_name_never(address: str, within: bool) -> None:
    assert is_within(address, [parse_prefix("10.0.0.0/8")]) == within
