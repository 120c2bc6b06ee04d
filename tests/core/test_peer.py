"""Membership: what makes a node join and leave, and that nothing of it remains."""

import pytest

from anabranch.core.ids import StreamPart
from anabranch.core.links import UNHELD_FOR_S
from anabranch.core.machine import (
    Connect,
    Deliver,
    Disconnect,
    Event,
    Notice,
    Publish,
    Published,
    Retire,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.messages import Contact
from anabranch.core.overlay import PartSettings
from machines import (
    NODES,
    OTHER,
    OWNER,
    PART,
    SIGNERS,
    Chain,
    Hand,
    Plain,
    data,
    drafts,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B, C = NODES[1:4]


def node() -> Hand:
    return peer({PART: plain_settings(A, B), OTHER: plain_settings(B, C)})


def test_subscribing_joins_and_unsubscribing_leaves() -> None:
    hand = node()
    assert hand(Subscribe(PART)) == [Connect(A), Connect(B)]
    assert hand(Subscribe(PART)) == []
    hand.link(A, B)
    assert hand.machine.neighbours(PART) == (A, B)
    assert hand(Unsubscribe(PART)) == []
    assert hand.machine.neighbours(PART) == ()
    assert hand(Unsubscribe(PART)) == []
    assert hand.wait(UNHELD_FOR_S) == [Disconnect(A, "unheld"), Disconnect(B, "unheld")]
    assert leftovers(hand.machine) == {}
    assert hand.machine.wakeup_at is None


@pytest.mark.parametrize(
    ("events", "member"),
    [
        ([Subscribe(PART)], True),
        ([Publish(PART, [])], True),
        ([Subscribe(PART), Publish(PART, []), Unsubscribe(PART)], True),
        ([Subscribe(PART), Publish(PART, []), Retire(PART)], True),
        ([Subscribe(PART), Publish(PART, []), Retire(PART), Unsubscribe(PART)], False),
        ([Subscribe(PART), Publish(PART, []), Unsubscribe(PART), Retire(PART)], False),
        ([Publish(PART, []), Retire(PART), Retire(PART), Unsubscribe(PART)], False),
        ([Subscribe(PART), Retire(PART)], True),
        ([Publish(PART, []), Unsubscribe(PART)], True),
        ([Unsubscribe(PART), Retire(PART)], False),
    ],
)
def test_a_node_is_a_member_while_it_subscribes_or_publishes(
    events: list[Event], member: bool
) -> None:
    hand = node()
    hand(*events)
    hand.link(A)
    assert (hand.machine.neighbours(PART) == (A,)) is member


def test_a_stream_that_does_not_exist_is_said_so() -> None:
    hand, nowhere = node(), StreamPart(f"{OWNER}/nowhere", 0)
    (notice,) = hand(Subscribe(nowhere))
    assert isinstance(notice, Notice)
    assert (notice.part, notice.kind) == (nowhere, "no-such-stream")
    assert hand(Unsubscribe(nowhere), Retire(nowhere)) == []
    assert hand.machine.neighbours(nowhere) == ()


def test_subscribing_again_begins_anew() -> None:
    hand, chain = node(), Chain(SIGNERS[9])
    hand(Subscribe(PART))
    hand.link(A)
    frame = chain.frame()
    assert of(Deliver, hand(data(A, frame)))
    hand(Unsubscribe(PART))
    assert hand(Subscribe(PART)) == []  # the links are there, or on their way
    assert of(Deliver, hand(data(A, frame)))


def test_two_streams_share_one_link() -> None:
    hand = node()
    assert hand(Subscribe(PART), Publish(OTHER, [])) == [Connect(A), Connect(B), Connect(C)]
    hand.link(A, B, C)
    hand(Unsubscribe(PART))
    assert hand.wait(UNHELD_FOR_S) == [Disconnect(A, "unheld")]
    hand(Retire(OTHER))
    assert hand.wait(UNHELD_FOR_S - 1) == []
    assert hand.wait(1) == [Disconnect(B, "unheld"), Disconnect(C, "unheld")]
    assert leftovers(hand.machine) == {}


def test_frames_of_two_streams_stay_apart() -> None:
    hand = node()
    hand(Subscribe(PART), Subscribe(OTHER))
    hand.link(A, B, C)
    one, other = Chain(SIGNERS[9]).frame(), Chain(SIGNERS[9], OTHER).frame()
    (deliver, forward) = hand(data(B, one))
    assert (deliver.part, forward.branches) == (PART, [(A, b"\3")])
    (deliver, forward) = hand(data(B, other))
    assert (deliver.part, forward.branches) == (OTHER, [(C, b"\3")])


def test_joining_and_leaving_again_and_again_leaves_nothing_behind() -> None:
    hand, chain = node(), Chain(SIGNERS[9])
    for turn in range(50):
        hand(Subscribe(PART), Publish(PART, drafts(turn)))
        hand.link(A, B)
        hand(data(A, chain.frame(at=hand.now)))
        hand(Unsubscribe(PART), Retire(PART))
        hand.wait(11)
        assert leftovers(hand.machine) == {}
        assert hand.machine.wakeup_at is None
    inside = hand.machine._parts
    assert len(inside._budget.parts) == inside._budget.used == 0
    assert len(hand.machine._outgoing) == 0


def test_two_kinds_of_overlay_share_links_and_nothing_else() -> None:
    class Second(Plain):
        code = 201

    settings = {PART: plain_settings(A), OTHER: PartSettings("second", 4, (Contact(A),))}
    hand = peer(settings, {"plain": Plain, "second": Second})
    assert hand(Subscribe(PART), Subscribe(OTHER)) == [Connect(A)]
    hand.link(A)
    frame = Chain(SIGNERS[9], OTHER).frame()
    assert of(Deliver, hand(data(A, frame, overlay=201)))
    hand(Unsubscribe(OTHER))
    assert hand.wait(60) == []
    assert hand.machine.neighbours(PART) == (A,)


def test_a_restart_with_the_same_identity_begins_a_new_chain() -> None:
    chains = set()
    for entropy in (b"\1" * 8, b"\2" * 8):
        hand = node()
        hand.machine._outgoing._entropy = lambda n, entropy=entropy: entropy[:n]
        (published,) = of(Published, hand(Publish(PART, drafts(1))))
        chains.add(published.head.chain)
        assert published.head.previous == 0
    assert len(chains) == 2


def test_every_table_says_how_large_it_may_become() -> None:
    hand = node()
    hand(Subscribe(PART), Publish(OTHER, drafts(1)))
    hand.link(A)
    hand(data(A, Chain(SIGNERS[9]).frame()))
    sizes = hand.machine.sizes()
    assert {name for name, (size, _) in sizes.items() if size} == {
        *("held links", "parts", "recent frames", "recent bytes", "chains", "upstreams"),
        *("known frames", "recent bytes of all parts"),
        *("unconfirmed frames", "unconfirmed bytes"),
    }
    assert all(0 <= size <= bound for size, bound in sizes.values())


def test_the_address_of_a_node_is_known_to_its_overlays() -> None:
    hand = peer({PART: plain_settings(A)}, address="here:1")
    hand(Subscribe(PART))
    (overlay,) = hand.machine._parts.overlays.values()
    assert overlay.me == Contact(NODES[0], "here:1")
