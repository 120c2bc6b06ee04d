"""Slow links: frames wait, links pause, publishers rest, and links that stay slow are cut."""

import pytest

from anabranch.core.changes import Right
from anabranch.core.congestion import CUT_AFTER_S, PAUSE_MS
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.links import BAN_FOR_S
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
from anabranch.core.messages import Got, SlowDown, StorageSlowDown
from anabranch.core.messages.links import MAX_PAUSE_MS, slow_down_digest
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

UP, SLOW, QUICK, STUCK = NODES[1:5]
PUBLISHER = SIGNERS[9]


def relay() -> Hand:
    """Make a relay between an upstream and three neighbours, one of which is slow."""
    hand = peer({PART: plain_settings(UP, SLOW, QUICK, STUCK), OTHER: plain_settings(SLOW)})
    hand(Subscribe(PART))
    hand.link(UP, SLOW, QUICK, STUCK)
    assert hand(Congested(SLOW)) == []
    return hand


def got(hand: Hand, peer: NodeId, published: Published) -> list[Effect]:
    return hand.hear(peer, Got(PART, published.head.chain, (published.head.last,)))


def test_relay_with_most_links_full_keeps_frames_and_slows_the_sender() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(Congested(STUCK))
    frame = chain.frame()
    deliver, forward, tell = hand(data(UP, frame))
    assert isinstance(deliver, Deliver)
    assert forward.branches == [(QUICK, b"\3")]
    assert tell == Send(UP, SlowDown(PART, PAUSE_MS))
    (late,) = hand(Writable(SLOW))
    assert (late.branches, late.frame) == ([(SLOW, b"\3")], frame)


def test_relay_with_one_full_link_of_three_asks_for_no_pause() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    for _ in range(10):
        assert sent(SlowDown, hand(data(UP, chain.frame(at=hand.now)))) == []
        hand.wait(0.1)


def test_relay_asks_one_neighbour_at_most_every_fifty_milliseconds() -> None:
    hand, chains = relay(), [Chain(signer) for signer in SIGNERS[5:10]]
    hand(Congested(STUCK))
    words = []
    for turn in range(100):
        words += sent(SlowDown, hand(data(UP, chains[turn % 5].frame(at=hand.now))))
        hand.wait(0.01)
    assert len(words) == 20
    assert {to for to, _ in words} == {UP}


def test_slow_down_from_a_neighbour_is_not_passed_on_and_slows_its_link_only() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(Writable(SLOW), data(QUICK, chain.frame()))
    assert hand.hear(SLOW, SlowDown(PART, 250)) == []
    frame = chain.frame()
    (forward,) = of(Forward, hand(data(UP, frame)))
    assert [to for to, _ in forward.branches] == [QUICK, STUCK]
    assert of(Forward, hand.wait(0.249)) == []
    (late,) = of(Forward, hand.wait(0.001))
    assert (late.branches, late.frame) == ([(SLOW, b"\3")], frame)


def test_slow_down_of_most_neighbours_is_no_reason_of_the_relay() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(Writable(SLOW))
    for liar in (SLOW, STUCK, QUICK):
        hand.hear(liar, SlowDown(PART, 1_000))
    assert sent(SlowDown, hand(data(UP, chain.frame()))) == []


def test_slow_down_from_a_node_that_is_no_neighbour_changes_nothing() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand.link(NODES[7])
    hand(Writable(SLOW))
    assert hand.hear(NODES[7], SlowDown(PART, 100)) == []
    assert hand.hear(SLOW, SlowDown(OTHER, 100)) == []
    (forward,) = of(Forward, hand(data(UP, chain.frame())))
    assert [to for to, _ in forward.branches] == [SLOW, QUICK, STUCK]


def test_too_many_words_from_who_is_no_neighbour_cost_the_link() -> None:
    hand, word = relay(), SlowDown(PART, 100)
    hand.link(NODES[7])
    assert of(Disconnect, hand.hear(NODES[7], *[word] * 2_000)) == []
    assert of(Disconnect, hand.hear(NODES[7], word)) == [Disconnect(NODES[7], "flood")]


def test_publisher_with_one_paused_neighbour_of_four_does_not_rest() -> None:
    hand = relay()
    hand(Writable(SLOW))
    for number in range(100):  # a sequential publisher, and a neighbour that always complains
        hand.hear(SLOW, SlowDown(PART, MAX_PAUSE_MS))
        (published,) = of(Published, hand(Publish(PART, drafts(number))))
        assert len(of(Outcome, got(hand, QUICK, published))) == 1
        hand.wait(0.01)


def test_publisher_whose_one_neighbour_complains_keeps_nine_tenths_of_its_rate() -> None:
    hand = peer({PART: plain_settings(SLOW)})
    hand.link(SLOW)
    hand(Publish(PART, drafts(0)))
    began, number = hand.now, 0
    while hand.now < began + 100:
        hand.hear(SLOW, SlowDown(PART, MAX_PAUSE_MS))
        number += 1
        made = of(Published, hand(Publish(PART, drafts(number))))
        while not made:  # it rests
            made = of(Published, hand.wait(0.001))
        got(hand, SLOW, made[-1])
        hand.wait(0.01)
    assert number >= 0.9 * 100 / 0.01


def test_neighbour_that_always_complains_is_cut_and_not_dialled_before_it_is_replaced() -> None:
    hand, chain, effects = relay(), Chain(PUBLISHER), list[Effect]()
    hand(Writable(SLOW))
    while not of(Disconnect, effects):
        assert hand.now < START + 2 * CUT_AFTER_S
        hand.hear(SLOW, SlowDown(PART, MAX_PAUSE_MS))
        hand(data(UP, chain.frame(at=hand.now)))
        effects = hand.wait(0.5)
    assert of(Disconnect, effects) == [Disconnect(SLOW, "link-slow")]
    assert hand.machine.neighbours(PART) == (UP, QUICK, STUCK)
    effects = hand.wait(BAN_FOR_S - 1)
    assert Connect(SLOW) not in effects
    assert Connect(SLOW) in hand.wait(2)


def test_publisher_whose_neighbours_all_complain_keeps_one_and_nine_tenths_of_its_rate() -> None:
    hand = peer({PART: plain_settings(UP, SLOW, QUICK)})
    hand(Subscribe(PART))
    hand.link(UP, SLOW, QUICK)
    cut = []
    while hand.now < START + 20:
        for node in hand.machine.neighbours(PART):
            hand.hear(node, SlowDown(PART, MAX_PAUSE_MS))
        cut += of(Disconnect, hand.wait(0.05))
    assert [ended.reason for ended in cut] == ["link-slow"] * 2
    (kept,) = hand.machine.neighbours(PART)
    number, since = 0, hand.now
    while hand.now < since + 50:
        hand.hear(kept, SlowDown(PART, MAX_PAUSE_MS))
        number += 1
        made = of(Published, hand(Publish(PART, drafts(number))))
        while not made:  # it rests
            made = of(Published, hand.wait(0.001))
        got(hand, kept, made[-1])
        hand.wait(0.01)
    assert number >= 0.9 * 50 / 0.01


def test_neighbour_that_was_cut_for_complaining_is_refused_when_it_dials() -> None:
    hand, effects = relay(), list[Effect]()
    hand(Writable(SLOW))
    while not of(Disconnect, effects):
        hand.hear(SLOW, SlowDown(PART, MAX_PAUSE_MS))
        effects = hand.wait(0.5)
    hand(LinkDown(SLOW, "closed"))
    assert Disconnect(SLOW, "banned") in hand.link(SLOW)


def test_at_the_publisher_drafts_wait_and_then_leave_together() -> None:
    hand = relay()
    hand(Writable(SLOW))
    (first,) = of(Published, hand(Publish(PART, drafts(1))))
    assert len(of(Outcome, got(hand, QUICK, first))) == 1
    for each in (UP, SLOW, STUCK):
        assert hand.hear(each, SlowDown(PART, 200)) == []
    assert hand(Publish(PART, drafts(2)), Publish(PART, drafts(3, 4))) == []
    assert hand.machine.wakeup_at == START + 0.2
    effects = hand.wait(0.2)
    (frame,) = of(Published, effects)
    assert (frame.head.count, frame.head.previous) == (3, first.head.last)
    (forward,) = of(Forward, effects)
    assert [to for to, _ in forward.branches] == [UP, SLOW, QUICK, STUCK]
    assert [o.ticket for o in of(Outcome, got(hand, SLOW, frame))] == [2, 3, 4]


def test_publisher_with_most_links_full_rests_by_itself() -> None:
    hand = relay()
    hand(Congested(UP), Congested(STUCK))
    effects = hand(Publish(PART, drafts(1)))
    assert of(Forward, effects)[0].branches == [(QUICK, b"\1")]
    assert hand(Publish(PART, drafts(2)), Publish(PART, drafts(3))) == []
    assert of(Published, hand.wait(PAUSE_MS / 1000))[0].head.count == 2


def test_publisher_with_one_full_link_of_four_does_not_rest() -> None:
    hand = relay()
    for number in range(10):
        assert len(of(Published, hand(Publish(PART, drafts(number))))) == 1


@pytest.mark.parametrize("pause_ms", [10, MAX_PAUSE_MS])
def test_a_pause_is_as_long_as_it_says(pause_ms: int) -> None:
    hand = relay()
    hand(Writable(SLOW))
    (first,) = of(Published, hand(Publish(PART, drafts(1))))
    for each in (UP, SLOW, STUCK):
        hand.hear(each, SlowDown(PART, pause_ms))
    hand(Publish(PART, drafts(2)))
    assert hand.machine.wakeup_at == START + pause_ms / 1000
    (second,) = of(Published, hand.wait(pause_ms / 1000))
    assert got(hand, QUICK, first) != []
    assert of(Outcome, got(hand, QUICK, second))[0].ticket == 2


# --- What a storage node asks for ------------------------------------------------------------

STORAGE = SIGNERS[8]
NETWORK = b"n" * 32


class Registry:
    """Permits everything; the stream names one storage node."""

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return True

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return True

    def stores(self, stream: str, user: NodeId) -> bool:
        return user == STORAGE.node

    def doubt(self, stream: str, now: float) -> list[Effect]:
        return []


def stored() -> Hand:
    """Make a publisher with four neighbours in a stored stream."""
    settings = plain_settings(UP, SLOW, QUICK, STUCK)
    hand = peer({PART: settings}, network=NETWORK, permits=Registry())
    hand(Subscribe(PART))
    hand.link(UP, SLOW, QUICK, STUCK)
    return hand


def wish(at: float, signer: Signer = STORAGE, node: NodeId = STORAGE.node) -> StorageSlowDown:
    at_ms = int(at * 1000)
    digest = slow_down_digest(NETWORK, PART, node, 500, at_ms)
    return StorageSlowDown(PART, node, 500, at_ms, signer.sign(digest))


def test_storage_slow_down_is_heeded_and_passed_on_once() -> None:
    hand, word = stored(), wish(START)
    (first,) = of(Published, hand(Publish(PART, drafts(1))))
    got(hand, QUICK, first)
    assert hand.hear(UP, word) == [Send(to, word) for to in (SLOW, QUICK, STUCK)]
    assert hand.hear(SLOW, word) == []
    assert of(Published, hand(Publish(PART, drafts(2)))) == []
    assert len(of(Published, hand.wait(0.5))) == 1


def test_storage_slow_down_that_is_forged_costs_the_link() -> None:
    hand = stored()
    effects = hand.hear(UP, wish(START, signer=SIGNERS[7]))
    assert of(Disconnect, effects) == [Disconnect(UP, "forged")]
    assert of(Published, hand(Publish(PART, drafts(1)))) != []


def test_storage_slow_down_of_a_node_that_the_stream_does_not_name_is_ignored() -> None:
    hand = stored()
    assert hand.hear(UP, wish(START, SIGNERS[7], NODES[7])) == []
    assert of(Published, hand(Publish(PART, drafts(1)))) != []


@pytest.mark.parametrize("age_s", [-31, 31])
def test_storage_slow_down_of_another_time_is_ignored(age_s: float) -> None:
    hand = stored()
    assert hand.hear(UP, wish(START - age_s)) == []


def test_storage_slow_down_too_often_is_ignored() -> None:
    hand, heard = stored(), 0
    for _ in range(100):
        heard += len(sent(StorageSlowDown, hand.hear(UP, wish(hand.now)))) // 3
        hand.wait(0.01)
    assert heard == 20


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
    assert hand.machine.neighbours(PART) == (UP, QUICK, STUCK)
    assert hand.wait(0.625) == [Connect(SLOW)]
    hand.link(SLOW)
    forward = of(Forward, hand(data(UP, chain.frame(at=hand.now))))[0]
    assert [to for to, _ in forward.branches] == [SLOW, QUICK, STUCK]  # a new link starts afresh


def test_a_slow_link_that_goes_down_is_no_longer_slow() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    frame = chain.frame()
    hand(data(UP, frame))
    assert hand(LinkDown(SLOW, "reset")) == [Dropped(head(frame), "link-down", SLOW)]
    hand.link(SLOW)
    assert len(of(Forward, hand(data(UP, chain.frame())))[0].branches) == 3
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
    assert sorted(e.peer for e in of(Disconnect, effects)) == [UP, SLOW, QUICK, STUCK]
    assert leftovers(hand.machine) == {}
    assert hand.machine.wakeup_at is None


def test_a_link_that_has_ended_cannot_be_full() -> None:
    hand = relay()
    hand(LinkDown(SLOW, "reset"), Congested(SLOW))
    hand.link(SLOW)
    assert of(Disconnect, hand.wait(2 * CUT_AFTER_S)) == []
    assert len(of(Forward, hand(data(UP, Chain(PUBLISHER).frame())))[0].branches) == 3


def test_leaving_forgets_the_way_back() -> None:
    hand, chain = relay(), Chain(PUBLISHER)
    hand(data(UP, chain.frame()), data(UP, chain.frame()))
    assert leftovers(hand.machine)["upstreams"] == 1
    hand(Unsubscribe(PART), Writable(SLOW), Wakeup())
    hand.wait(10)
    assert leftovers(hand.machine) == {}
