"""The hot path: what a Peer does with a frame, and with what only looks like one."""

import pytest

from anabranch.core import codec, frames
from anabranch.core.ids import StreamPart
from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.machine import (
    Copies,
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Forward,
    Notice,
    Publish,
    Published,
    Received,
    Send,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.messages import Got, Meet, Status
from machines import (
    NODES,
    OTHER,
    OWNER,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    Plain,
    copies,
    data,
    drafts,
    forged,
    head,
    of,
    packet,
    peer,
    plain_settings,
    sent,
)

A, B, C, STRANGER = NODES[1:5]
PUBLISHER = SIGNERS[9]


def subscriber() -> Hand:
    """Make a subscriber with three neighbours, and a link to a stranger."""
    hand = peer({PART: plain_settings(A, B, C), OTHER: plain_settings(A, B)})
    hand(Subscribe(PART))
    hand.link(A, B, C, STRANGER)
    return hand


def onward(frame: bytes, *peers: bytes, hops: int = 3) -> Forward:
    return Forward(Plain.code, head(frame), [(p, bytes([hops])) for p in peers], frame)


def fault(reason: str, sender: bytes = A) -> list[Effect]:
    return [Notice(None, "fault", f"{reason} from {sender.hex()}"), Disconnect(sender, reason)]


def test_a_frame_is_delivered_and_floods_to_all_but_the_sender() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame(b"one", b"two")
    assert hand(data(B, frame)) == [
        Deliver(PART, head(frame), frame, 2),
        onward(frame, A, C),
    ]


def test_hops_are_counted_on_the_way() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    deliver, forward = hand(data(B, frame, route=b"\6"))
    assert deliver.hops == 6
    assert forward.branches == [(A, b"\7"), (C, b"\7")]


def test_who_made_a_frame_hears_that_we_have_it() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    frame = chain.frame(b"one", b"two")
    word = Send(B, Got(PART, chain.key, (head(frame).last,)))
    assert hand(data(B, frame, route=b"\1")) == [
        Deliver(PART, head(frame), frame, 1),
        onward(frame, A, C, hops=2),
        word,
    ]
    # Again, since the word may have been lost; and whoever brought the first copy.
    assert hand(data(B, frame, route=b"\1")) == [copies(B, frame), word]
    hand(data(A, later := chain.frame()))
    assert sent(Got, hand(data(B, later, route=b"\1"))) == [
        (B, Got(PART, chain.key, (chain.newest,)))
    ]


def test_who_only_carries_says_so_too() -> None:
    hand, chain = peer({PART: plain_settings(A)}), Chain(PUBLISHER)
    hand(Publish(PART, []))
    hand.link(A)
    frame = chain.frame()
    assert hand(data(A, frame, route=b"\1")) == [Send(A, Got(PART, chain.key, (chain.newest,)))]


def test_what_is_refused_is_not_said_to_be_got() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    old, ahead = Chain(SIGNERS[8]).frame(at=START - 61), Chain(SIGNERS[7])
    refused = [
        data(STRANGER, chain.frame(), route=b"\1"),
        data(A, Chain(PUBLISHER, OTHER).frame(), route=b"\1"),
        data(A, old, route=b"\1"),
        data(A, ahead.frame(at=START + MAX_SKEW_S + 1), route=b"\1"),
        data(A, forged(chain.frame()), route=b"\1"),
    ]
    for event in refused:
        assert sent(Got, hand(event)) == []


def test_later_copies_are_dropped_and_reported() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    hand(data(A, frame))
    for sender in (A, B, C):
        assert hand(data(sender, frame)) == [copies(sender, frame)]


def test_frames_that_overtake_each_other_are_all_delivered_once() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    made = [chain.frame() for _ in range(4)]
    delivered = []
    for place in (2, 0, 3, 1, 0, 2, 1, 3):
        delivered += of(Deliver, hand(data(A, made[place])))
    assert [made.index(deliver.frame) for deliver in delivered] == [2, 0, 3, 1]


def test_a_node_at_the_edge_has_nobody_to_forward_to() -> None:
    hand, frame = peer({PART: plain_settings(A)}), Chain(PUBLISHER).frame()
    hand(Subscribe(PART))
    hand.link(A)
    assert hand(data(A, frame)) == [Deliver(PART, head(frame), frame, 2)]


def test_who_only_publishes_carries_and_delivers_nothing() -> None:
    hand, frame = peer({PART: plain_settings(A, B)}), Chain(PUBLISHER).frame()
    hand(Publish(PART, []))
    hand.link(A, B)
    assert hand(data(A, frame)) == [onward(frame, B)]
    hand(Subscribe(PART), Unsubscribe(PART))
    frame = Chain(SIGNERS[8]).frame()
    assert hand(data(A, frame)) == [onward(frame, B)]


def test_our_own_frame_that_comes_back_is_a_copy() -> None:
    hand = subscriber()
    published, deliver, forward = hand(Publish(PART, drafts(5)))
    assert isinstance(published, Published)
    assert deliver == Deliver(PART, published.head, published.frame, 0)
    assert forward == onward(published.frame, A, B, C, hops=1)
    assert hand(data(A, published.frame)) == [copies(A, published.frame)]


def test_the_frames_of_the_last_while_are_at_hand() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    hand(data(A, frame), data(B, frame), data(C, forged(Chain(SIGNERS[8]).frame())))
    (mine,) = of(Published, hand(Publish(PART, drafts(1))))
    (overlay,) = hand.machine._parts.overlays.values()
    assert overlay.recent.since(mine.head.part, START) == [frame, mine.frame]
    assert overlay.copies == [(A, True)]  # this one does not ask for more


def test_an_overlay_that_asks_for_it_sees_every_copy_of_what_is_known() -> None:
    class Curious(Plain):
        sees_copies = True

    hand = peer({PART: plain_settings(A, B)}, {"plain": Curious})
    hand(Subscribe(PART))
    hand.link(A, B)
    chain = Chain(PUBLISHER)
    frame, _, third = chain.frame(), chain.frame(), chain.frame()
    hand(data(A, frame), data(B, frame), data(B, forged(third)), data(A, third))
    (overlay,) = hand.machine._parts.overlays.values()
    assert overlay.copies == [(A, True), (B, False), (A, True)]


# --- What is refused ------------------------------------------------------------------------


def test_a_forgery_that_comes_first_does_not_censor_the_real_message() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    assert hand(data(A, forged(frame))) == fault("forged")
    assert hand(data(B, frame)) == [
        Deliver(PART, head(frame), frame, 2),
        onward(frame, C),
    ]
    assert hand(data(C, frame)) == [copies(C, frame)]


def test_a_forgery_that_comes_late_is_a_copy_that_nobody_looks_at() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    hand(data(A, frame))
    assert hand(data(B, forged(frame))) == [copies(B, frame)]


def test_nobody_signs_for_another() -> None:
    thief = Chain(PUBLISHER)
    thief.signer = SIGNERS[8]
    assert subscriber()(data(A, thief.frame())) == fault("forged")


def test_data_from_who_is_no_neighbour_is_refused() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    assert hand(data(STRANGER, frame)) == [Dropped(head(frame), "not-neighbour", STRANGER)]
    assert of(Deliver, hand(data(A, frame)))


@pytest.mark.parametrize("part", [OTHER, StreamPart(f"{OWNER}/nowhere", 0)])
def test_data_of_a_part_we_are_not_in_is_refused(part: StreamPart) -> None:
    hand, frame = subscriber(), Chain(PUBLISHER, part).frame()
    assert hand(data(A, frame)) == [Dropped(head(frame), "not-member", A)]


def test_data_of_a_part_we_left_is_refused() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    hand(Unsubscribe(PART))
    assert hand(data(A, frame)) == [Dropped(head(frame), "not-member", A)]


def test_too_many_useless_packets_cost_the_link() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER, OTHER).frame()
    useless = [data(STRANGER, frame)] * 1_999 + [data(STRANGER, Chain(PUBLISHER).frame())]
    assert len(of(Dropped, hand(*useless))) == 2_000
    assert hand(data(STRANGER, frame)) == fault("flood", STRANGER)


def test_useful_copies_never_cost_the_link() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame()
    effects = hand(*[data(A, frame)] * 5_000)
    assert sum(len(each.names) for each in of(Copies, effects)) == 4_999
    assert of(Disconnect, effects) == []


def test_messages_from_the_future_are_refused_and_may_come_again() -> None:
    hand = subscriber()
    ahead = START + MAX_SKEW_S
    frame, later = Chain(PUBLISHER).frame(at=ahead), Chain(SIGNERS[8]).frame(at=ahead + 0.002)
    assert of(Deliver, hand(data(A, frame)))
    assert hand(data(A, later)) == [Dropped(head(later), "future", A)]
    hand.now += 1
    assert of(Deliver, hand(data(A, later)))


def test_messages_from_long_before_we_joined_are_refused() -> None:
    hand, frame = subscriber(), Chain(PUBLISHER).frame(at=START - 61)
    assert hand(data(A, frame)) == [Dropped(head(frame), "too-old", A)]


def test_contradictory_numbers_are_refused_and_blamed_on_nobody() -> None:
    hand, chain = subscriber(), Chain(PUBLISHER)
    hand(data(A, chain.frame(b"one", b"two")))
    chain.newest -= 1
    contrary = chain.frame(b"two and a half", b"three")
    assert hand(data(B, contrary)) == [Dropped(head(contrary), "contradiction", B)]


FRAME = Chain(PUBLISHER).frame()


@pytest.mark.parametrize(
    ("reason", "bad"),
    [
        ("packet-size", b""),
        ("packet-size", codec.DATA_HEAD + b"\1"),
        ("packet-size", packet(FRAME) + bytes(1_000_000)),
        ("protocol-version", b"\1" + packet(FRAME)[1:]),
        ("packet-kind", codec.DATA_HEAD[:1] + b"\3" + packet(FRAME)[2:]),
        ("malformed", codec.DATA_HEAD[:1] + b"\2" + packet(FRAME)[2:]),
        ("malformed", codec.DATA_HEAD[:1] + b"\0garbage"),
        ("route-size", packet(FRAME)[:3] + b"\xff" + packet(FRAME)[4:]),
        ("frame-size", packet(FRAME)[:100]),
        ("frame-length", packet(FRAME)[:-1]),
        ("frame-version", packet(b"\2" + FRAME[1:])),
        ("wrong-overlay", packet(FRAME, Plain.code + 1)),
        ("forged", packet(FRAME[:-1] + bytes([FRAME[-1] ^ 1]))),
    ],
)
def test_what_breaks_the_protocol_costs_the_link(reason: str, bad: bytes) -> None:
    hand = subscriber()
    assert hand(Received(A, bad)) == fault(reason)
    assert hand.machine.neighbours(PART) == (B, C)
    assert hand.link(A) == [Disconnect(A, "banned")]
    assert hand.machine.neighbours(PART) == (B, C)


def test_garbage_over_no_link_at_all_harms_nobody() -> None:
    hand = peer({PART: plain_settings(A)})
    assert hand(Received(B, b"garbage")) == fault("protocol-version", B)[:1]


def test_control_that_does_not_concern_us_is_ignored() -> None:
    hand = subscriber()
    assert hand.hear(A, Meet(OTHER), Status(PART, 1)) == []


def test_what_is_delivered_is_what_was_published() -> None:
    frame = Chain(PUBLISHER).frame(b"one", b"two")
    (deliver,) = of(Deliver, subscriber()(data(C, frame)))
    assert [message.content for message in frames.messages(deliver.frame)] == [b"one", b"two"]
