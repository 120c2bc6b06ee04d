"""Confirmed publishing: a frame is sent when a neighbour has it, and is offered until one does."""

from collections.abc import Sequence

import pytest

from anabranch.core.ids import NodeId, StreamPart, chain_key
from anabranch.core.machine import (
    Congested,
    Disconnect,
    Dropped,
    Effect,
    Forward,
    LinkDown,
    Outcome,
    Publish,
    Published,
    Retire,
    Subscribe,
)
from anabranch.core.messages import Got, SlowDown
from anabranch.core.overlay import Carried
from anabranch.core.publishing import CONFIRM_S, MAX_FLYING_BYTES, OFFER_BYTES, STRANDED_FOR_S
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    Chain,
    Hand,
    Plain,
    data,
    drafts,
    head,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B, C, STRANGER = NODES[1:5]


def publisher(*linked: NodeId) -> Hand:
    """Make a node that publishes to three neighbours, some of which are linked."""
    hand = peer({PART: plain_settings(A, B, C), OTHER: plain_settings(A)})
    hand(Publish(PART, []))
    hand.link(*linked)
    return hand


def publish(hand: Hand, *tickets: int) -> Published:
    (published,) = of(Published, hand(Publish(PART, drafts(*tickets))))
    return published


def got(hand: Hand, sender: NodeId, published: Published) -> list[Effect]:
    return hand.hear(sender, Got(PART, published.head.chain, (published.head.last,)))


def offers(effects: Sequence[Effect]) -> list[tuple[bytes, list[NodeId]]]:
    forwards = of(Forward, list(effects))
    return [(forward.frame, [to for to, _ in forward.branches]) for forward in forwards]


def test_what_nobody_confirms_is_offered_to_all_again_and_again() -> None:
    hand = publisher(A, B)
    frame = publish(hand, 1).frame
    for _ in range(3):
        assert hand.wait(CONFIRM_S - 0.01) == []
        assert offers(hand.wait(0.01)) == [(frame, [A, B])]
    effects = hand.wait(STRANDED_FOR_S)
    assert [(o.ticket, o.result) for o in of(Outcome, effects)] == [(1, "no-neighbour")]
    assert len(of(Forward, effects)) == STRANDED_FOR_S / CONFIRM_S - 4
    assert hand.wait(60) == []
    assert hand.machine.wakeup_at is None


def test_a_new_neighbour_is_offered_what_nobody_has_and_the_others_are_not() -> None:
    hand = publisher(A)
    one, two = publish(hand, 1), publish(hand, 2)
    got(hand, A, two)
    assert offers(hand.link(B)) == [(one.frame, [B])]
    assert of(Outcome, got(hand, B, one)) == [Outcome(1, "sent", one.head.last)]
    assert offers(hand.link(C)) == []


def test_a_neighbour_that_is_back_is_offered_it_again() -> None:
    hand = publisher(A)
    one = publish(hand, 1)
    hand(LinkDown(A, "reset"))
    hand.wait(5 * CONFIRM_S)  # there is nobody to offer it to
    assert offers(hand.link(A)) == [(one.frame, [A])]
    assert len(of(Outcome, got(hand, A, one))) == 1


def test_a_neighbour_that_went_while_nothing_waited_is_new_when_it_returns() -> None:
    hand = publisher(A)
    got(hand, A, publish(hand, 1))
    hand(LinkDown(A, "reset"))
    two = publish(hand, 2)
    assert offers(hand.link(A)) == [(two.frame, [A])]


def test_a_later_frame_does_not_confirm_one_that_died_on_another_link() -> None:
    hand = publisher(A)
    lost = publish(hand, 1)
    hand(LinkDown(A, "reset"))
    hand.link(B)
    late = publish(hand, 2)
    assert of(Outcome, got(hand, B, late)) == [Outcome(2, "sent", late.head.last)]
    assert of(Outcome, got(hand, B, lost)) == [Outcome(1, "sent", lost.head.last)]


def test_a_word_that_cannot_be_is_ignored_and_too_many_cost_the_link() -> None:
    hand = publisher(A, B, STRANGER)
    published = publish(hand, 1)
    number, chain = published.head.last, published.head.chain
    strange = [
        (STRANGER, Got(PART, chain, (number,))),
        (A, Got(PART, chain, (number + 1,))),
        (A, Got(PART, Chain(SIGNERS[9]).key, (number,))),
        (A, Got(OTHER, chain, (number,))),
    ]
    for sender, word in strange:
        assert hand.hear(sender, word) == []
    for sender, word in strange[:2]:
        assert of(Disconnect, hand.hear(sender, *[word] * 2_001)) == [Disconnect(sender, "flood")]
    assert len(of(Outcome, got(hand, B, published))) == 1


def test_words_of_honest_neighbours_are_never_a_flood() -> None:
    hand = publisher(A, B)
    for ticket in range(3_000):
        published = publish(hand, ticket)
        for sender in (A, B):
            assert of(Disconnect, got(hand, sender, published)) == []
    hand(Retire(PART), Publish(PART, []))
    for _ in range(3_000):  # of a chain that we have ended meanwhile
        assert got(hand, A, published) == []


def test_an_old_word_does_not_confirm_a_chain_begun_anew() -> None:
    hand = publisher(A)
    old = publish(hand, 1)
    hand(Subscribe(PART), Retire(PART))
    new = publish(hand, 2)
    assert got(hand, A, old) == []
    assert [o.ticket for o in of(Outcome, got(hand, A, new))] == [2]


def test_retiring_accounts_for_what_nobody_confirmed() -> None:
    hand = publisher(A)
    publish(hand, 1)
    assert of(Outcome, hand(Retire(PART)))[0].result == "no-neighbour"
    assert hand.wait(60) == [Disconnect(A, "unheld")]
    assert leftovers(hand.machine) == {"unheld links": 2}  # dials that are still under way


def test_while_told_to_slow_down_nothing_is_offered_again() -> None:
    hand = publisher(A)
    published = publish(hand, 1)
    hand.wait(CONFIRM_S - 0.5)
    hand.wait(0.45)
    hand.hear(A, SlowDown(PART, 100))
    assert hand.wait(0.099) == []
    assert offers(hand.wait(0.001)) == [(published.frame, [A])]


def test_what_a_full_queue_drops_another_neighbour_confirms() -> None:
    hand = publisher(A, B)
    hand(Congested(A))
    published = publish(hand, 1)
    assert of(Dropped, hand(LinkDown(A, "reset"))) == [Dropped(published.head, "link-down", A)]
    assert len(of(Outcome, got(hand, B, published))) == 1


class Reluctant(Plain):
    """Has neighbours and sends nothing of its own until it is ready."""

    ready = False

    def publish(self, part: StreamPart, carried: Carried, now: float) -> list[Effect]:
        return super().publish(part, carried, now) if self.ready else []


def test_what_the_overlay_did_not_take_was_not_offered_and_is_tried_again() -> None:
    hand = peer({PART: plain_settings(A)}, {"plain": Reluctant})
    hand(Publish(PART, []))
    hand.link(A)
    published = publish(hand, 1)
    assert got(hand, A, published) == []
    assert hand.wait(CONFIRM_S) == []
    hand.machine._parts.overlays["plain"].ready = True
    assert offers(hand.wait(CONFIRM_S)) == [(published.frame, [A])]
    assert len(of(Outcome, got(hand, A, published))) == 1


def test_patience_is_the_applications() -> None:
    hand = peer({PART: plain_settings(A)}, patience_s=3.0)
    publish(hand, 1)
    assert hand.wait(2.9) == []
    assert [o.result for o in of(Outcome, hand.wait(0.1))] == ["no-neighbour"]


def test_a_part_of_many_that_wait_is_woken_by_itself() -> None:
    parts = {StreamPart(PART.stream, place): plain_settings(A) for place in range(50)}
    hand = peer(parts)
    for place, part in enumerate(parts):
        hand(Publish(part, drafts(place)))
        hand.wait(0.01)
    hand.link(A)
    outcomes = of(Outcome, hand.wait(70))
    assert [o.ticket for o in outcomes] == list(range(50))
    assert len(hand.machine._outgoing) == 0


# --- Much at once ---------------------------------------------------------------------------


def publish_much(hand: Hand, *tickets: int, part: StreamPart = PART) -> list[Published]:
    """Publish messages of which two are as much as is offered at a time."""
    effects = hand(Publish(part, drafts(*tickets, content=bytes(500_000))))
    assert of(Forward, effects) == []
    return of(Published, effects)


def to(peer: NodeId, *published: Published) -> list[tuple[bytes, list[NodeId]]]:
    return [(p.frame, [peer]) for p in published]


def test_much_is_offered_little_by_little_as_it_is_confirmed() -> None:
    hand = publisher()
    made = publish_much(hand, *range(8))
    assert offers(hand.link(A)) == to(A, *made[:2])
    for number, published in enumerate(made):
        outcome, *more = got(hand, A, published)
        assert outcome == Outcome(number, "sent", published.head.last)
        assert offers(more) == to(A, *made[number + 2 : number + 3])
        assert got(hand, A, published) == []
    assert hand.wait(CONFIRM_S) == []
    assert (hand.machine.wakeup_at, len(hand.machine._outgoing)) == (None, 0)


def test_without_a_word_all_of_it_is_offered_in_turn() -> None:
    hand = publisher()
    made = publish_much(hand, *range(5))
    turns = [offers(hand.link(A))] + [offers(hand.wait(CONFIRM_S)) for _ in range(3)]
    one, two, three, four, five = made
    pairs = [(one, two), (three, four), (five, one), (two, three)]
    assert turns == [to(A, *pair) for pair in pairs]
    outcomes = of(Outcome, hand.wait(STRANDED_FOR_S))
    assert [(o.ticket, o.result) for o in outcomes] == [(n, "no-neighbour") for n in range(5)]


def test_what_is_new_waits_behind_what_is_old() -> None:
    hand = publisher()
    made = publish_much(hand, 1, 2, 3)
    hand.link(A)
    late = publish(hand, 4)
    assert got(hand, A, late) == []  # nobody can have it
    assert offers(got(hand, A, made[1])) == to(A, made[2], late)
    (published, forward) = hand(Publish(PART, drafts(5)))  # nothing is old any more
    assert forward.frame == published.frame


def test_a_second_newcomer_is_offered_the_oldest_and_the_first_nothing_twice() -> None:
    hand = publisher()
    one, two, three = publish_much(hand, 1, 2, 3)
    hand.link(A)
    assert offers(hand.link(B)) == to(B, one, two)
    assert offers(got(hand, B, one)) == [(three.frame, [A, B])]


def test_a_link_that_dies_under_it_is_offered_it_again_from_the_oldest() -> None:
    hand = publisher()
    made = publish_much(hand, *range(4))
    for _ in range(3):
        assert offers(hand.link(A)) == to(A, *made[:2])
        hand(LinkDown(A, "link-full"))
        assert of(Forward, hand.wait(1)) == []
    hand.link(A)
    assert len([o for p in made for o in of(Outcome, got(hand, A, p))]) == 4


def test_a_pause_is_for_what_is_old_too() -> None:
    hand = publisher()
    made = publish_much(hand, *range(5))
    hand.link(A)
    hand.hear(A, SlowDown(PART, 100))
    assert offers(got(hand, A, made[0])) == []
    assert offers(hand.wait(0.099)) == []
    assert offers(hand.wait(0.001)) == to(A, made[2])


def test_what_is_much_only_over_all_parts_is_offered_little_by_little_too() -> None:
    parts = [StreamPart(PART.stream, place) for place in range(40)]
    hand = peer(dict.fromkeys(parts, plain_settings(A)))
    made = {p.frame: (p, part) for part in parts for p in publish_much(hand, 1, 2, part=part)}
    flying = [frame for frame, _ in offers(hand.link(A))]
    assert MAX_FLYING_BYTES - OFFER_BYTES < sum(map(len, flying)) <= MAX_FLYING_BYTES
    offered, sent = [*flying], 0
    while flying:
        published, part = made[flying.pop(0)]
        effects = hand.hear(A, Got(part, published.head.chain, (published.head.last,)))
        sent += len(of(Outcome, effects))
        flying += [frame for frame, _ in offers(effects)]
        offered += [frame for frame, _ in offers(effects)]
        assert sum(map(len, flying)) <= MAX_FLYING_BYTES
    assert sorted(offered) == sorted(made)  # each once,
    for part in parts:  # and in the order of its part
        assert [f for f in offered if made[f][1] == part] == [f for f in made if made[f][1] == part]
    assert sent == 80
    assert hand.wait(CONFIRM_S) == []
    assert hand.machine.wakeup_at is None


def test_parts_that_waited_for_others_go_on_when_those_are_gone() -> None:
    parts = [StreamPart(PART.stream, place) for place in range(8)]
    hand = peer(dict.fromkeys(parts, plain_settings(A)))
    made = [p.frame for part in parts for p in publish_much(hand, 1, 2, part=part)]
    offered = offers(hand.link(A))
    assert [frame for frame, _ in offered] == made[: len(offered)]
    gone = hand(*map(Retire, parts[:4]))
    assert {frame for frame, _ in offers(gone)} == set(made[8:]) - {f for f, _ in offered}


# --- The key of a node and the key of a publisher -------------------------------------------


def test_a_node_may_publish_in_the_name_of_another_key() -> None:
    hand = peer({PART: plain_settings(A)}, signer=SIGNERS[9], node=NODES[0])
    hand(Subscribe(PART))
    hand.link(A)
    published = publish(hand, 1)
    assert published.head.publisher == NODES[9]
    assert hand.machine.me.node == NODES[0]
    (overlay,) = hand.machine._parts.overlays.values()
    assert overlay.me.node == NODES[0]
    assert [o.ticket for o in of(Outcome, got(hand, A, published))] == [1]
    # Another node with the same publisher's key has a chain of its own.
    twin = Chain(SIGNERS[9])
    assert twin.key != published.head.chain
    frame = twin.frame()
    assert hand(data(A, frame))[0].head == head(frame)


@pytest.mark.parametrize("node", [None, NODES[5]])
def test_a_node_goes_by_its_publishers_name_unless_it_has_one(node: NodeId | None) -> None:
    hand = peer({PART: plain_settings(A)}, signer=SIGNERS[9], node=node)
    assert hand.machine.me.node == (node or NODES[9])
    published = publish(hand, 1)
    assert published.head.chain[:20] == chain_key(NODES[9], 0)[:20]
