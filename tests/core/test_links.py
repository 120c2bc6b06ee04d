"""Links: who is dialled, how long a link that nobody holds stays, and who is not welcome."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.links import (
    BAN_FOR_S,
    MAX_BANS,
    MAX_UNHELD,
    MAX_UNHELD_STORING,
    PATIENCE,
    PATIENCE_PER_S,
    REDIAL_FIRST_S,
    REDIAL_MOST_S,
    REDIAL_SPREAD,
    UNHELD_FOR_S,
    Links,
)
from anabranch.core.machine import Connect, Disconnect, Effect
from machines import NODES, START

A, B = NODES[:2]
EMPTY = {"held links": 0, "unheld links": 0, "bans": 0}


def sizes(links: Links) -> dict[str, int]:
    return {name: size for name, (size, _) in links.sizes().items()}


def standing() -> Links:
    """Make links of which one, to A, is held, was dialled and stands."""
    links = Links()
    assert links.hold(A, "here", True, START) == [Connect(A, "here")]
    assert links.up(A, START) == []
    return links


def test_the_first_hold_dials_and_the_last_release_ends_the_link() -> None:
    links = standing()
    assert links.is_up(A)
    assert links.hold(A, "", True, START) == []
    assert links.release(A, START) == []
    assert links.wakeup_at is None
    assert links.release(A, START) == []
    assert links.wakeup_at == START + UNHELD_FOR_S
    assert links.wake(START + UNHELD_FOR_S) == [Disconnect(A, "unheld")]
    assert (links.is_up(A), links.wakeup_at) == (False, None)
    assert sizes(links) == EMPTY


def test_who_only_accepts_does_not_dial() -> None:
    links = Links()
    assert links.hold(A, "", False, START) == []
    assert links.wakeup_at is None
    links.down(A, START)
    assert links.wakeup_at is None
    assert links.hold(A, "here", True, START) == [Connect(A, "here")]  # but another stream dials


def test_a_hold_while_dialling_does_not_dial_again() -> None:
    links = Links()
    assert links.hold(A, "here", True, START) == [Connect(A, "here")]
    assert links.hold(A, "there", True, START) == []
    assert sizes(links) == EMPTY | {"held links": 1}


def test_a_link_that_comes_by_itself_is_kept_for_whoever_will_hold_it() -> None:
    links = Links()
    assert links.up(A, START) == []
    assert links.wakeup_at == START + UNHELD_FOR_S
    assert links.hold(A, "", True, START + 1) == []
    assert links.wakeup_at is None
    links.release(A, START + 2)
    assert links.hold(A, "", True, START + 3) == []  # taken back: it costs no handshake
    assert links.wake(START + 100) == []


def test_who_dialled_once_need_not_dial_the_next_time() -> None:
    links = standing()
    links.release(A, START)
    assert links.hold(A, "", False, START) == []
    links.down(A, START)
    assert links.wakeup_at is None


def test_a_dial_that_nobody_waits_for_any_more() -> None:
    links = Links()
    links.hold(A, "", True, START)
    assert links.release(A, START) == []
    assert links.wake(START + UNHELD_FOR_S) == []  # it may still come up, and is not forgotten
    assert links.up(A, START + 11) == []
    assert links.wake(START + 11 + UNHELD_FOR_S) == [Disconnect(A, "unheld")]
    links.hold(B, "", True, START)
    links.release(B, START)
    links.down(B, START + 1)
    assert (sizes(links), links.wakeup_at) == (EMPTY, None)


def test_a_link_that_is_down_and_released_is_forgotten_at_once() -> None:
    links = standing()
    links.down(A, START)
    assert links.release(A, START) == []
    assert (sizes(links), links.wakeup_at) == (EMPTY, None)


def test_redialling_slows_down_and_starts_afresh_after_success() -> None:
    links, now, waits = standing(), START, []
    for _ in range(8):
        links.down(A, now)
        assert links.wakeup_at is not None
        waits.append(links.wakeup_at - now)
        now = links.wakeup_at
        assert links.wake(now) == [Connect(A, "here")]
    first = REDIAL_FIRST_S
    assert waits == [*(first * 2**i for i in range(6)), REDIAL_MOST_S, REDIAL_MOST_S]
    links.up(A, now)
    links.down(A, now)
    assert links.wakeup_at == now + first


def test_those_who_lost_the_same_peer_do_not_redial_it_all_at_once() -> None:
    waits = []
    for seed in range(50):
        links = Links(random.Random(seed))
        links.hold(A, "here", True, START)
        links.down(A, START)
        assert links.wakeup_at is not None
        waits.append((links.wakeup_at - START) / REDIAL_FIRST_S)
    low, high = REDIAL_SPREAD
    assert low <= min(waits) < 0.8 < 1.2 < max(waits) <= high


def test_a_new_hold_of_a_link_that_is_down_dials_at_once_and_at_the_new_address() -> None:
    links = standing()
    links.down(A, START)
    assert links.hold(A, "moved", True, START) == [Connect(A, "moved")]
    assert links.wakeup_at is None


def test_a_cut_link_is_dialled_again_only_if_held_and_dialled() -> None:
    links = standing()
    assert links.cut(A, "link-full", START) == [Disconnect(A, "link-full")]
    assert links.cut(A, "link-full", START) == []
    assert links.wake(START + REDIAL_FIRST_S) == [Connect(A, "here")]
    links.up(B, START)
    assert links.cut(B, "link-full", START) == [Disconnect(B, "link-full")]
    assert sizes(links) == EMPTY | {"held links": 1}


# --- Bans -----------------------------------------------------------------------------------


def test_a_banned_peer_is_cut_off_refused_and_dialled_when_its_time_is_over() -> None:
    links = standing()
    assert links.ban(A, "forged", START) == [Disconnect(A, "forged")]
    assert links.is_banned(A, START)
    assert links.wake(START + REDIAL_FIRST_S) == []
    assert links.up(A, START + 10) == [Disconnect(A, "banned")]
    assert not links.is_up(A)
    assert links.wake(START + 30) == []
    assert links.wakeup_at == START + BAN_FOR_S
    assert links.wake(START + BAN_FOR_S) == [Connect(A, "here")]
    assert links.up(A, START + BAN_FOR_S) == []
    assert links.is_up(A)


def test_a_hold_of_a_banned_peer_is_dialled_when_the_ban_ends() -> None:
    links = Links()
    links.up(A, START)
    links.ban(A, "forged", START)
    assert links.hold(A, "here", True, START) == []
    assert links.wakeup_at == START + BAN_FOR_S
    assert links.wake(START + BAN_FOR_S) == [Connect(A, "here")]


def test_a_dial_that_is_answered_during_a_ban_is_tried_again_after_it() -> None:
    links = Links()
    links.hold(A, "here", True, START)
    assert links.ban(A, "forged", START) == []  # over a link that has just ended
    assert links.up(A, START) == [Disconnect(A, "banned")]
    assert links.wake(START + REDIAL_MOST_S) == []
    assert links.wake(START + BAN_FOR_S) == [Connect(A, "here")]


def test_a_released_peer_stays_banned_and_leaves_no_link_behind() -> None:
    links = standing()
    links.ban(A, "forged", START)
    links.release(A, START)
    assert sizes(links) == EMPTY | {"bans": 1}
    assert links.wakeup_at is None


def test_bans_are_bounded_and_the_oldest_ends_first() -> None:
    links = Links()
    peers = [NODES[0][:-2] + i.to_bytes(2) for i in range(MAX_BANS + 1)]
    for peer in (*peers[:-1], peers[0], peers[-1]):  # the first offends again
        links.ban(peer, "forged", START)
    assert links.sizes()["bans"] == (MAX_BANS, MAX_BANS)
    assert [links.is_banned(peer, START) for peer in (peers[0], peers[1], peers[-1])] == [
        *(True, False, True)
    ]


# --- Bounds ---------------------------------------------------------------------------------


def test_unheld_links_are_bounded_and_the_oldest_goes_first() -> None:
    links = standing()
    peers = [NODES[0][:-1] + bytes([i]) for i in range(MAX_UNHELD + 1)]
    for peer in peers[:-1]:
        assert links.up(peer, START) == []
    assert links.up(peers[-1], START) == [Disconnect(peers[0], "too-many-unheld")]
    assert links.release(A, START) == [Disconnect(A, "too-many-unheld")]  # the oldest of all
    assert sizes(links) == EMPTY | {"unheld links": MAX_UNHELD}


def test_a_storage_node_has_room_for_many_who_come_to_read() -> None:
    links = Links(most_unheld=MAX_UNHELD_STORING)
    peers = [NodeId(i.to_bytes(20)) for i in range(MAX_UNHELD_STORING + 1)]
    assert [links.up(peer, START) for peer in peers[:-1]] == [[]] * MAX_UNHELD_STORING
    assert links.up(peers[-1], START) == [Disconnect(peers[0], "too-many-unheld")]


def test_useless_packets_cost_the_link_when_they_are_too_many() -> None:
    links = standing()
    for _ in range(int(PATIENCE)):
        links.strain(A, START)
    with pytest.raises(RemoteError, match="flood"):
        links.strain(A, START)
    for _ in range(int(PATIENCE_PER_S)):
        links.strain(A, START + 1.5)  # patience comes back, and no more than there was
    for _ in range(int(PATIENCE)):
        links.strain(A, START + 3600)
    with pytest.raises(RemoteError, match="flood"):
        links.strain(A, START + 3600)
    links.strain(B, START)  # of a link that has just ended


# --- Any order ------------------------------------------------------------------------------

WORDS = ("hold", "accept", "release", "up", "down", "ban", "cut", "wait")
STEPS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([A, B, NODES[2]]), st.integers(0, 25)),
    max_size=40,
)


class Driver:
    """Does what the effects say, as a driver would, and knows which of them make no sense."""

    def __init__(self) -> None:
        self.links = Links()
        self.now = START
        self.holds: dict[bytes, int] = {}
        self.up: dict[bytes, bool] = {}  # present while dialled or standing; whether it stands

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Connect:
                assert effect.peer not in self.up, "dialled what is dialled or stands"
                assert self.holds.get(effect.peer), "dialled for nobody"
                assert not self.links.is_banned(effect.peer, self.now)
                self.up[effect.peer] = False
            else:
                assert type(effect) is Disconnect
                assert self.up.pop(effect.peer), "ended what does not stand"

    def step(self, word: str, peer: bytes, seconds: int) -> None:
        links, now = self.links, self.now
        if word in ("hold", "accept"):
            self.holds[peer] = self.holds.get(peer, 0) + 1
            self.perform(links.hold(peer, "", word == "hold", now))
        elif word == "release" and self.holds.get(peer):
            self.holds[peer] -= 1
            self.perform(links.release(peer, now))
        elif word == "up" and not self.up.get(peer):
            self.up[peer] = True
            self.perform(links.up(peer, now))
        elif word == "down" and self.up.pop(peer, None) is not None:
            links.down(peer, now)
        elif word == "ban" and self.up.get(peer):
            self.perform(links.ban(peer, "forged", now))
        elif word == "cut":
            self.perform(links.cut(peer, "link-full", now))
        elif word == "wait":
            self.wait(seconds)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self.links.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            self.perform(self.links.wake(self.now))
            assert self.links.wakeup_at is None or self.links.wakeup_at > self.now
        self.now = until


@settings(max_examples=400)
@given(STEPS)
def test_any_sequence_makes_sense_and_ends_with_nothing(
    steps: list[tuple[str, bytes, int]],
) -> None:
    driver = Driver()
    for word, peer, seconds in steps:
        driver.step(word, peer, seconds)
        assert [p for p in driver.up if driver.up[p]] == [
            p for p in driver.up if driver.links.is_up(p)
        ]
        held = sum(1 for many in driver.holds.values() if many)
        assert driver.links.sizes()["held links"][0] == held
    for peer, many in driver.holds.items():
        for _ in range(many):
            driver.perform(driver.links.release(peer, driver.now))
    for peer in [p for p, stands in driver.up.items() if not stands]:
        driver.step("down", peer, 0)  # dials that were under way come to nothing
    driver.wait(UNHELD_FOR_S)
    assert driver.up == {}
    assert driver.links.wakeup_at is None
    assert sizes(driver.links) | {"bans": 0} == EMPTY


@settings(max_examples=200)
@given(STEPS)
def test_a_link_that_is_held_and_dialled_is_never_given_up(
    steps: list[tuple[str, bytes, int]],
) -> None:
    driver = Driver()
    driver.step("hold", A, 0)
    for word, peer, seconds in steps:
        if (word, peer) != ("release", A):
            driver.step(word, peer, seconds)
        assert A in driver.up or driver.links.wakeup_at is not None
    driver.wait(BAN_FOR_S + REDIAL_MOST_S)
    assert A in driver.up
