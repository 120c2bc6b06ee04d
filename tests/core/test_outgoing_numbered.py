"""Publishing under given numbers: one frame of exactly these drafts, the same wherever made."""

from anabranch.core import frames
from anabranch.core.duplicates import MAX_CHAINS_PER_PUBLISHER
from anabranch.core.ids import NodeId, chain_key, number_of
from anabranch.core.machine import (
    Deliver,
    Draft,
    Effect,
    Forward,
    Notice,
    Outcome,
    Publish,
    Published,
    PublishNumbered,
    Retire,
    Subscribe,
)
from anabranch.core.messages import Got, SlowDown
from anabranch.core.publishing import CONFIRM_S, MAX_GIVEN_CHAINS, STRANDED_FOR_S
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    START,
    Hand,
    data,
    drafts,
    leftovers,
    of,
    peer,
    plain_settings,
    sent,
)

A, B, STRANGER = NODES[1:4]
ME = SIGNERS[0]
FIRST = number_of(int(START * 1000), 0)


def node(*linked: NodeId, subscribed: bool = False) -> Hand:
    hand = peer({PART: plain_settings(A, B)})
    hand(Subscribe(PART) if subscribed else Publish(PART, []))
    hand.link(*linked)
    return hand


def numbered(*numbers: int, previous: int = 0, chain: int = 9, ticket: int = 5) -> PublishNumbered:
    given = [(number, Draft(b"%d" % number)) for number in numbers]
    return PublishNumbered(PART, chain, previous, given, ticket)


def got(hand: Hand, sender: NodeId, frame: bytes) -> list[Effect]:
    head = frames.peek(frame)
    return hand.hear(sender, Got(PART, head.chain, (head.last,)))


def offered(effects: list[Effect]) -> list[tuple[bytes, list[NodeId]]]:
    return [(f.frame, [to for to, _ in f.branches]) for f in of(Forward, effects)]


def test_drafts_leave_at_once_in_one_frame_of_their_chain_and_numbers() -> None:
    hand = node(A, subscribed=True)
    effects = hand(numbered(FIRST, FIRST + 3, previous=FIRST - 10))
    (published,) = of(Published, effects)
    head = published.head
    assert published.is_given
    assert head.chain == chain_key(ME.node, 9)
    assert (head.previous, head.first, head.last, head.count) == (FIRST - 10, FIRST, FIRST + 3, 2)
    assert [m.number for m in frames.messages(published.frame)] == [FIRST, FIRST + 3]
    assert [d.frame for d in of(Deliver, effects)] == [published.frame]
    assert offered(effects) == [(published.frame, [A])]
    assert of(Outcome, effects) == []
    assert got(hand, A, published.frame) == [Outcome(5, "sent", FIRST)]


def test_two_processes_sign_the_same_bytes() -> None:
    made = [of(Published, node(A)(numbered(FIRST, FIRST + 1)))[0].frame for _ in range(2)]
    assert made[0] == made[1]
    (other,) = of(Published, node(A)(numbered(FIRST, FIRST + 1, previous=1)))
    assert other.frame != made[0]


def test_what_was_published_before_is_offered_and_not_delivered_again() -> None:
    hand = node(A, B, subscribed=True)
    (first,) = of(Published, hand(numbered(FIRST, ticket=1)))
    got(hand, A, first.frame)
    again = hand(numbered(FIRST, ticket=2))
    assert (of(Published, again), of(Deliver, again)) == ([], [])
    assert offered(again) == [(first.frame, [A, B])]
    assert got(hand, B, first.frame) == [Outcome(2, "sent", FIRST)]


def test_what_another_process_published_is_not_delivered_again() -> None:
    frame = of(Published, node(A)(numbered(FIRST)))[0].frame
    hand = node(A, B, subscribed=True)
    assert len(of(Deliver, hand(data(A, frame)))) == 1
    again = hand(numbered(FIRST))
    assert (of(Published, again), of(Deliver, again)) == ([], [])
    assert got(hand, A, frame) == [Outcome(5, "sent", FIRST)]


def test_a_copy_says_that_it_is_there_to_who_made_it() -> None:
    hand, frame = node(A, B), of(Published, node(A)(numbered(FIRST)))[0].frame
    for _ in range(2):
        word = hand(data(A, frame, route=hand.machine._parts.find(PART).overlay.straight))
        assert [message.numbers for _, message in sent(Got, word)] == [(FIRST,)]


def test_while_it_is_unconfirmed_a_second_copy_stands_for_both() -> None:
    hand = node(A)
    (first,) = of(Published, hand(numbered(FIRST, ticket=1)))
    hand(numbered(FIRST, ticket=2))
    assert got(hand, A, first.frame) == [Outcome(1, "sent", FIRST), Outcome(2, "sent", FIRST)]
    assert "unconfirmed frames" not in leftovers(hand.machine)


def test_what_nobody_confirms_is_offered_again_and_given_up() -> None:
    hand = node(A)
    frame = of(Published, hand(numbered(FIRST)))[0].frame
    assert offered(hand.wait(CONFIRM_S)) == [(frame, [A])]
    ended = hand.wait(STRANDED_FOR_S)
    assert of(Outcome, ended) == [Outcome(5, "no-neighbour", FIRST)]


def test_many_chains_and_our_own_go_side_by_side() -> None:
    hand = node(A)
    made = [
        of(Published, hand(numbered(FIRST, chain=chain, ticket=chain)))[0] for chain in range(3)
    ]
    (own,) = of(Published, hand(Publish(PART, drafts(7))))
    assert not own.is_given
    assert own.head.chain not in {each.head.chain for each in made}
    for ticket in (2, 0, 1):
        assert got(hand, A, made[ticket].frame) == [Outcome(ticket, "sent", FIRST)]
    assert got(hand, A, own.frame) == [Outcome(7, "sent", own.head.last)]


def test_chains_that_are_idle_are_forgotten_and_what_comes_of_them_is_confirmed_all_the_same() -> (
    None
):
    hand = node(A)
    (first,) = of(Published, hand(numbered(FIRST, chain=0, ticket=1)))
    for chain in range(1, MAX_GIVEN_CHAINS + 1):
        made = of(Published, hand(numbered(FIRST, chain=chain)))[0]
        got(hand, A, made.frame)
    sizes = hand.machine.sizes()
    assert sizes["chains with given numbers"] == (MAX_GIVEN_CHAINS, MAX_GIVEN_CHAINS)
    assert MAX_GIVEN_CHAINS <= MAX_CHAINS_PER_PUBLISHER
    assert got(hand, A, first.frame) == [Outcome(1, "sent", FIRST)]


def test_a_neighbour_cannot_have_what_we_have_not_made() -> None:
    hand = node(A)
    (made,) = of(Published, hand(numbered(FIRST)))
    assert hand.hear(A, Got(PART, made.head.chain, (FIRST + 1,))) == []
    assert got(hand, A, made.frame) == [Outcome(5, "sent", FIRST)]


def test_a_neighbour_that_cannot_keep_up_slows_these_down_as_well() -> None:
    hand = node(A)
    (made,) = of(Published, hand(numbered(FIRST)))
    got(hand, A, made.frame)
    hand.hear(A, SlowDown(PART, 100))
    assert of(Published, hand(numbered(FIRST + 1, previous=FIRST))) == []
    assert len(of(Published, hand.wait(0.1))) == 1


def test_what_cannot_be_has_its_outcome_at_once() -> None:
    hand = node(A)
    assert hand(numbered(FIRST, FIRST)) == [Outcome(5, "bad-numbers")]
    nowhere = PublishNumbered(OTHER, 9, 0, [(FIRST, Draft(b"x"))], 6)
    notice, outcome = hand(nowhere)
    assert (type(notice), outcome) == (Notice, Outcome(6, "no-such-stream"))


def test_who_retires_hears_of_what_is_unconfirmed() -> None:
    hand = node()
    hand(numbered(FIRST))
    assert of(Outcome, hand(Retire(PART))) == [Outcome(5, "no-neighbour", FIRST)]
