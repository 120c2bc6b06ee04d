"""Slow links: frames wait, the publisher hears of it, and what stays full is cut."""

import pytest

from anabranch.core.congestion import CUT_AFTER_S, PAUSE_MS
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Congested,
    Connect,
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Forward,
    LinkDown,
    Outcome,
    Publish,
    Published,
    Retire,
    Send,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
)
from anabranch.core.messages import Got, SlowDown
from anabranch.core.messages.links import MAX_PAUSE_MS
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    copies,
    data,
    drafts,
    head,
    leftovers,
    of,
    peer,
    plain_settings,
    sent,
)

UP, SLOW, QUICK = NODES[1:4]
PUBLISHER = SIGNERS[9]


def relay() -> Hand:
    """Make a relay between an upstream and two neighbours, one of which is slow."""
    hand = peer({PART: plain_settings(UP, SLOW, QUICK), OTHER: plain_settings(SLOW)})
    hand(Subscribe(PART))
    hand.link(UP, SLOW, QUICK)
    assert hand(Congested(SLOW)) == []
    return hand


def got(hand: Hand, peer: NodeId, published: Published) -> list[Effect]:
    return hand.hear(peer, Got(PART, published.head.chain, (published.head.last,)))


def test_frames_wait_for_the_slow_link_and_the_upstream_is_told() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    frame = chain.frame()
    deliver, forward, tell = hand(data(UP, frame))
    assert isinstance(deliver, Deliver)
    assert forward.branches == [(QUICK, b"\3")]
    assert tell == Send(UP, SlowDown(PART, chain.key, PAUSE_MS))
    (late,) = hand(Writable(SLOW))
    assert (late.branches, late.frame) == ([(SLOW, b"\3")], frame)
    assert hand.wait(60) == []


def test_the_word_is_passed_on_at_most_every_fifty_milliseconds() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    words = []
    for _ in range(100):
        words += sent(SlowDown, hand(data(UP, chain.frame(at=hand.now))))
        hand.wait(0.01)
    assert len(words) == 20
    assert {to for to, _ in words} == {UP}


def test_the_word_goes_back_hop_by_hop_the_way_the_frame_came() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(Writable(SLOW), data(UP, chain.frame()), data(QUICK, chain.frame()))
    word = SlowDown(PART, chain.key, 250)
    assert hand.hear(SLOW, word) == [Send(QUICK, word)]
    hand.wait(1)
    assert hand.hear(SLOW, word) == []  # nothing has come since


def test_two_nodes_that_take_each_other_for_upstream_do_not_talk_for_ever() -> None:
    chain = Chain(PUBLISHER)
    first, second = chain.frame(), chain.frame()
    one = peer({PART: plain_settings(NODES[0], NODES[2])}, signer=SIGNERS[1])
    two = peer({PART: plain_settings(NODES[1], NODES[2])}, signer=SIGNERS[0])
    for hand, other in ((one, NODES[0]), (two, NODES[1])):
        hand(Subscribe(PART))
        hand.link(other, NODES[2])
    one(data(NODES[2], first), data(NODES[0], second))
    two(data(NODES[2], first), data(NODES[1], second))
    words = one.hear(NODES[2], SlowDown(PART, chain.key, 100))
    told = 0
    while words:
        one.now = two.now = one.now + 0.2
        ((to, word),) = sent(SlowDown, words)
        words = two.hear(NODES[1], word) if to == NODES[0] else one.hear(NODES[0], word)
        told += 1
        assert told < 5


def test_a_word_from_who_is_no_neighbour_is_not_heard() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand.link(NODES[7])
    hand(data(UP, chain.frame()))
    hand.wait(1)
    hand(data(UP, chain.frame(at=hand.now)), Writable(SLOW))
    hand.wait(1)
    hand(data(UP, chain.frame(at=hand.now)))
    assert hand.hear(NODES[7], SlowDown(PART, chain.key, 100)) == []
    assert hand.hear(SLOW, SlowDown(OTHER, chain.key, 100)) == []
    assert len(hand.hear(SLOW, SlowDown(PART, chain.key, 100))) == 1


def test_too_many_words_from_who_is_no_neighbour_cost_the_link() -> None:
    hand, word = relay(), SlowDown(PART, Chain(PUBLISHER).key, 100)
    hand.link(NODES[7])
    assert of(Disconnect, hand.hear(NODES[7], *[word] * 2_000)) == []
    assert of(Disconnect, hand.hear(NODES[7], word)) == [Disconnect(NODES[7], "flood")]


def test_many_slow_chains_do_not_look_like_a_flood() -> None:
    # One congested link below a node with many publishers: the node passes on many words.
    hand, chains = relay(), [Chain(signer, PART, n) for signer in SIGNERS[5:] for n in range(5)]
    words = []
    for _ in range(40):
        for chain in chains:
            words += sent(SlowDown, hand(data(UP, chain.frame(at=hand.now))))
        hand.wait(0.05)
    assert len(words) > 5_000
    upstream = peer({PART: plain_settings(NODES[0])}, signer=SIGNERS[1])
    upstream(Subscribe(PART))
    upstream.link(NODES[0])
    assert of(Disconnect, upstream.hear(NODES[0], *(word for _, word in words))) == []


def test_at_the_publisher_drafts_wait_and_then_leave_together() -> None:
    hand = relay()
    hand(Writable(SLOW))
    (first,) = of(Published, hand(Publish(PART, drafts(1))))
    assert len(of(Outcome, got(hand, QUICK, first))) == 1
    assert hand.hear(SLOW, SlowDown(PART, first.head.chain, 200)) == []
    assert hand(Publish(PART, drafts(2)), Publish(PART, drafts(3, 4))) == []
    assert hand.machine.wakeup_at == START + 0.2
    effects = hand.wait(0.2)
    (frame,) = of(Published, effects)
    assert (frame.head.count, frame.head.previous) == (3, first.head.last)
    (forward,) = of(Forward, effects)
    assert [to for to, _ in forward.branches] == [UP, SLOW, QUICK]
    assert [o.ticket for o in of(Outcome, got(hand, SLOW, frame))] == [2, 3, 4]


def test_a_publisher_whose_own_link_is_slow_pauses_by_itself() -> None:
    hand = relay()
    effects = hand(Publish(PART, drafts(1)))
    assert of(Forward, effects)[0].branches == [(UP, b"\1"), (QUICK, b"\1")]
    assert hand(Publish(PART, drafts(2)), Publish(PART, drafts(3))) == []
    assert of(Published, hand.wait(PAUSE_MS / 1000))[0].head.count == 2


@pytest.mark.parametrize("pause_ms", [1, MAX_PAUSE_MS])
def test_a_pause_is_as_long_as_it_says(pause_ms: int) -> None:
    hand = relay()
    hand(Writable(SLOW))
    (first,) = of(Published, hand(Publish(PART, drafts(1))))
    hand.hear(SLOW, SlowDown(PART, first.head.chain, pause_ms))
    hand(Publish(PART, drafts(2)))
    assert hand.machine.wakeup_at == START + pause_ms / 1000
    (second,) = of(Published, hand.wait(pause_ms / 1000))
    assert of(Outcome, got(hand, QUICK, second))[0].ticket == 2


def test_retiring_during_a_pause_accounts_for_the_drafts() -> None:
    hand = relay()
    hand(Publish(PART, drafts(1)), Publish(PART, drafts(2)))
    outcomes = of(Outcome, hand(Retire(PART)))
    assert [(o.ticket, o.result) for o in outcomes] == [(1, "no-neighbour"), (2, "no-neighbour")]
    assert of(Published, hand.wait(5)) == []


def test_a_copy_from_the_slow_neighbour_removes_the_waiting_one() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    frame, other = chain.frame(), chain.frame()
    hand(data(UP, frame), data(UP, other))
    assert hand(data(SLOW, frame)) == [copies(SLOW, frame)]
    assert [f.frame for f in of(Forward, hand(Writable(SLOW)))] == [other]


def test_a_link_that_stays_full_is_cut_and_what_waited_is_counted() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    frame = chain.frame()
    hand(data(UP, frame))
    assert hand.machine.wakeup_at == START + CUT_AFTER_S
    assert hand.wait(CUT_AFTER_S) == [
        Disconnect(SLOW, "link-full"),
        Dropped(head(frame), "link-down", SLOW),
    ]
    assert hand.machine.neighbours(PART) == (UP, QUICK)
    assert hand.wait(0.625) == [Connect(SLOW)]
    hand.link(SLOW)
    forward = of(Forward, hand(data(UP, chain.frame(at=hand.now))))[0]
    assert [to for to, _ in forward.branches] == [SLOW, QUICK]  # a new link starts afresh


def test_a_slow_link_that_goes_down_is_no_longer_slow() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    frame = chain.frame()
    hand(data(UP, frame))
    assert hand(LinkDown(SLOW, "reset")) == [Dropped(head(frame), "link-down", SLOW)]
    hand.link(SLOW)
    assert len(of(Forward, hand(data(UP, chain.frame())))[0].branches) == 2
    assert hand(Writable(SLOW)) == []


def test_what_waits_for_who_is_no_neighbour_any_more_is_not_sent() -> None:
    # A heap of frames that nobody wants would look like a flood and cost the link.
    hand, chain = relay(), Chain(PUBLISHER)
    hand(Subscribe(OTHER))
    frame = chain.frame()
    hand(data(UP, frame), Unsubscribe(PART))
    assert hand(Writable(SLOW)) == [Dropped(head(frame), "parted", SLOW)]


def test_a_slow_link_that_nobody_holds_ends_with_all_that_waits_for_it() -> None:
    hand, frame = relay(), Chain(PUBLISHER).frame()
    hand(data(UP, frame))
    hand.wait(1)
    hand(Unsubscribe(PART))
    effects = hand.wait(10)
    assert of(Dropped, effects) == [Dropped(head(frame), "link-down", SLOW)]
    assert sorted(e.peer for e in of(Disconnect, effects)) == [UP, SLOW, QUICK]
    assert leftovers(hand.machine) == {}
    assert hand.machine.wakeup_at is None


def test_a_link_that_has_ended_cannot_be_full() -> None:
    hand = relay()
    hand(LinkDown(SLOW, "reset"), Congested(SLOW))
    hand.link(SLOW)
    assert of(Disconnect, hand.wait(2 * CUT_AFTER_S)) == []
    assert len(of(Forward, hand(data(UP, Chain(PUBLISHER).frame())))[0].branches) == 2


def test_leaving_forgets_the_way_back() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(data(UP, chain.frame()), data(UP, chain.frame()))
    assert leftovers(hand.machine)["upstreams"] == 1
    hand(Unsubscribe(PART), Writable(SLOW), Wakeup())
    hand.wait(10)
    assert leftovers(hand.machine) == {}
