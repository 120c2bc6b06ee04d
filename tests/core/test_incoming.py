"""Frames that come at the wrong time: kept back by somebody, or replayed to who has forgotten."""

import pytest

from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.machine import Deliver, Disconnect, Dropped, Forward, Subscribe
from anabranch.core.parts import JOIN_WINDOW_S
from machines import (
    NODES,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    copies,
    data,
    head,
    of,
    peer,
    plain_settings,
)

A, B = NODES[1:3]
PUBLISHER = SIGNERS[9]


def subscriber(now: float = START) -> Hand:
    hand = peer({PART: plain_settings(A, B)})
    hand.now = now
    hand(Subscribe(PART))
    hand.link(A, B)
    return hand


def test_a_frame_that_was_kept_back_for_too_long_is_refused() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    withheld, newer = chain.frame(b"withheld"), chain.frame(b"newer")
    assert of(Deliver, hand(data(A, newer)))
    hand.now += MAX_SKEW_S + 0.002
    assert hand(data(B, withheld)) == [Dropped(head(withheld), "old", B)]
    assert of(Disconnect, hand.wait(60)) == []  # nobody knows who kept it back


@pytest.mark.parametrize("late_s", [0.0, 60.0, MAX_SKEW_S])
def test_until_then_it_is_taken(late_s: float) -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    frame = chain.frame(b"late")
    hand.now += late_s
    effects = hand(data(A, frame))
    assert [deliver.frame for deliver in of(Deliver, effects)] == [frame]
    assert of(Forward, effects)


def test_the_oldest_message_of_a_frame_counts() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    frame = chain.frame(b"old", b"not so old")
    hand.now += MAX_SKEW_S + 0.002
    assert hand(data(A, frame)) == [Dropped(head(frame), "old", A)]


def test_who_has_restarted_does_not_take_what_is_replayed_for_news() -> None:
    chain = Chain(PUBLISHER)
    recorded = chain.frame(b"pay him once", at=START)
    assert of(Deliver, subscriber()(data(A, recorded)))
    again = subscriber(START + JOIN_WINDOW_S + 1)  # it remembers nothing
    assert again(data(A, recorded)) == [Dropped(head(recorded), "too-old", A)]
    assert of(Deliver, again(data(A, chain.frame(b"pay him twice", at=again.now))))
    assert again(data(A, recorded)) == [copies(A, recorded)]


def test_a_replay_with_another_chain_is_a_forgery() -> None:
    hand, chain = subscriber(START + JOIN_WINDOW_S + 1), Chain(PUBLISHER)
    recorded = chain.frame(at=START)
    fresh = Chain(PUBLISHER, number=2).frame(at=hand.now)
    spliced = fresh[:75] + recorded[75:]
    assert Disconnect(A, "forged") in hand(data(A, spliced))
