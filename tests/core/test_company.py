"""The company a node keeps: introductions on every link, no neighbours without permission."""

import pytest

from anabranch.core import company
from anabranch.core.changes import PUBLIC, Right
from anabranch.core.company import REVIEW_EVERY_S
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Disconnect,
    Effect,
    Follow,
    Forward,
    Learned,
    LinkDown,
    Notice,
    Outcome,
    Publish,
    Published,
    Send,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.mandate import MANDATE_S, RENEW_S, introduce
from anabranch.core.messages import (
    Bye,
    Contact,
    Got,
    Instruction,
    Introduce,
    Meet,
    ReadChain,
    Refused,
    SlowDown,
    Status,
)
from anabranch.core.overlay import PartSettings
from anabranch.core.service import Service
from anabranch.overlays.random_regular import ATTEMPT_EVERY_S, RandomRegular
from machines import NODES, PART, SIGNERS, START, Hand, beyond, drafts, leftovers, of, peer, sent

NET = b"n" * 32
ME, TRACKER, KEEPER, A, B, C = NODES[0], *NODES[20:25]
USER_A, USER_B, USER_C = SIGNERS[10:13]
ASKED = Send(KEEPER, ReadChain(1, PART.stream))
SETTINGS = PartSettings("random-regular", 4, (Contact(TRACKER),))


class Rights(Service):
    """The registry as a test writes it: rights with the time at which they end."""

    events = (Follow,)

    def __init__(self) -> None:
        self.held: dict[NodeId, tuple[Right, float]] = {}
        self.asked_for: list[NodeId] = []
        self.storage: list[NodeId] = []

    def grant(self, user: NodeId, right: Right, until: float = float("inf")) -> None:
        self.held[user] = (right, until)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return self.may(part.stream, publisher, Right.PUBLISH, now)

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        self.asked_for.append(user)
        held = [self.held.get(who, (Right(0), 0.0)) for who in (user, PUBLIC)]
        return stream == PART.stream and any(r & right and now < until for r, until in held)

    def stores(self, stream: str, user: NodeId) -> bool:
        return user in self.storage

    def doubt(self, stream: str, now: float) -> list[Effect]:
        return [ASKED]

    def tell(self, event: Follow, now: float) -> list[Effect]:  # type: ignore[override]
        return [Learned(event.chain, 1)]


def node(rights: Rights, *wanted: NodeId) -> Hand:
    """Make a node whose tracker has told it to have these neighbours; all links stand."""
    hand = peer(
        {PART: SETTINGS},
        {"random-regular": RandomRegular},
        network=NET,
        mandate=lambda now: introduce(SIGNERS[0], NET, ME, now),
        permits=rights,
        services=[rights],
    )
    hand(Subscribe(PART))
    hand.link(TRACKER, *wanted)
    hand.hear(TRACKER, Instruction(PART, 1, (), wanted))
    return hand


def known(*users: NodeId) -> Rights:
    """Let these users subscribe, and us publish."""
    rights = Rights()
    rights.grant(ME, Right.PUBLISH)
    for user in users:
        rights.grant(user, Right.SUBSCRIBE)
    return rights


def meets(hand: Hand, who: NodeId, user: object = None) -> list[Effect]:
    """Let a peer introduce itself, if it has a user, and meet us."""
    if user is not None:
        assert hand.hear(who, introduce(user, NET, who, hand.now)) == []  # type: ignore[arg-type]
    return hand.hear(who, Meet(PART))


def learn(hand: Hand) -> list[Effect]:
    """Let the registry's word come."""
    learned, *rest = hand(Follow(PART.stream))
    assert learned == Learned(PART.stream, 1)
    return rest


def neighbours(hand: Hand) -> list[NodeId]:
    return list(hand.machine.neighbours(PART))  # type: ignore[attr-defined]


# --- Introducing ourselves ------------------------------------------------------------------


def test_the_first_word_on_every_link_says_for_whom_we_act() -> None:
    hand = node(known())
    for who in (KEEPER, A, B):
        effects = hand.link(who)
        assert effects[0] == Send(who, introduce(SIGNERS[0], NET, ME, START))
        assert len(sent(Introduce, effects)) == 1
    hand(LinkDown(A, "reset"))
    first, *_ = hand.link(A)
    assert first == Send(A, introduce(SIGNERS[0], NET, ME, START))


def test_it_comes_before_the_status_and_the_meet() -> None:
    hand = node(known(), A)
    hand(LinkDown(A, "reset"), LinkDown(TRACKER, "reset"))
    effects = hand.link(TRACKER, A)
    said = [(e.to, type(e.message)) for e in of(Send, effects)]
    assert said == [(TRACKER, Introduce), (TRACKER, Status), (A, Introduce), (A, Meet)]


def test_it_is_renewed_on_all_standing_links_at_half_its_time() -> None:
    hand = node(known(), A)
    hand(LinkDown(B, "refused"))
    assert sent(Introduce, hand.wait(RENEW_S - 0.01)) == []
    renewed = sent(Introduce, hand.wait(0.01))
    word = introduce(SIGNERS[0], NET, ME, START + RENEW_S)
    assert renewed == [(TRACKER, word), (A, word)]
    assert hand.link(B)[0] == Send(B, word)


def test_without_a_mandate_nobody_is_greeted() -> None:
    hand = peer({PART: SETTINGS}, {"random-regular": RandomRegular})
    hand(Subscribe(PART))
    assert sent(Introduce, hand.link(TRACKER, A)) == []


def test_who_turns_us_away_hears_it_again() -> None:
    hand = node(known(USER_A.node), A)
    meets(hand, A, USER_A)
    again = introduce(SIGNERS[0], NET, ME, START)
    assert sent(Introduce, hand.hear(A, Bye(PART))) == [(A, again)]
    effects = hand.hear(TRACKER, Refused(PART, "unpermitted"))
    assert effects == [Send(TRACKER, again), Notice(PART, "refused", "unpermitted")]
    hand.link(B)
    assert hand.hear(B, Bye(PART), Refused(PART, "unpermitted")) == []  # what is that to us?


# --- Introductions of others ----------------------------------------------------------------


def test_an_introduction_that_does_not_hold_costs_the_link() -> None:
    hand = node(known(USER_A.node), A)
    stolen = introduce(USER_A, NET, B, START)
    assert Disconnect(A, "mandate-forged") in hand.hear(A, stolen)
    assert of(Disconnect, hand.link(A)) == [Disconnect(A, "banned")]


def test_an_introduction_goes_with_the_link() -> None:
    rights = known(USER_A.node)
    hand = node(rights, A)
    meets(hand, A, USER_A)
    assert neighbours(hand) == [A]
    hand(LinkDown(A, "reset"))
    assert "introductions" not in leftovers(hand.machine)
    assert hand.hear(A, introduce(USER_A, NET, A, START)) == []  # over a link that is gone
    assert "introductions" not in leftovers(hand.machine)
    hand.link(A)
    meets(hand, A)
    assert neighbours(hand) == []


def test_a_flood_of_introductions_costs_the_link() -> None:
    hand = node(known(), A)
    word = introduce(USER_A, NET, A, START)
    effects = hand.hear(A, *[word] * 2_001)
    assert Disconnect(A, "flood") in effects


# --- Meeting --------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [Right.PUBLISH, Right.SUBSCRIBE])
def test_who_may_publish_or_subscribe_is_met(right: Right) -> None:
    rights = known()
    rights.grant(USER_A.node, right)
    hand = node(rights, A)
    assert sent(Meet, meets(hand, A, USER_A)) == [(A, Meet(PART, True, 2_250))]
    assert neighbours(hand) == [A]


@pytest.mark.parametrize("right", [Right(0), Right.GRANT | Right.EDIT | Right.DELETE])
def test_who_may_neither_is_turned_away_and_the_registry_is_asked(right: Right) -> None:
    rights = known()
    rights.grant(USER_A.node, right)
    hand = node(rights, A)
    assert meets(hand, A, USER_A) == [ASKED]
    assert neighbours(hand) == []
    assert learn(hand) == [Send(A, Bye(PART))]
    assert learn(hand) == []
    assert neighbours(hand) == []


def test_who_has_not_said_for_whom_it_acts_is_turned_away() -> None:
    hand = node(known(USER_A.node), A)
    assert meets(hand, A) == [Send(A, Bye(PART))]
    assert neighbours(hand) == []
    meets(hand, A, USER_A)
    assert neighbours(hand) == [A]


def test_a_fresh_grant_is_good_as_soon_as_the_registry_has_answered() -> None:
    rights = known()
    hand = node(rights, A)
    meets(hand, A, USER_A)
    rights.grant(USER_A.node, Right.SUBSCRIBE)
    assert sent(Meet, learn(hand)) == [(A, Meet(PART, True, 2_250))]
    assert neighbours(hand) == [A]
    assert leftovers(hand.machine).get("waiting meets") is None


def test_who_had_to_wait_gets_what_was_recent_when_it_came() -> None:
    rights = known(USER_B.node)
    hand = node(rights, A, B)
    meets(hand, B, USER_B)
    (published,) = of(Published, hand(Publish(PART, drafts(1))))
    hand.hear(B, Got(PART, published.head.chain, (published.head.last,)))
    hand.now += 1.0
    hand.hear(A, introduce(USER_A, NET, A, hand.now), Meet(PART, recent_ms=1_500))
    hand.now += 1.0
    rights.grant(USER_A.node, Right.SUBSCRIBE)
    (forward,) = of(Forward, learn(hand))
    assert [to for to, _ in forward.branches] == [A]


def test_without_an_answer_it_may_come_again() -> None:
    rights = known()
    hand = node(rights, A)
    meets(hand, A, USER_A)
    rights.grant(USER_A.node, Right.SUBSCRIBE)
    assert sent(Meet, hand.wait(ATTEMPT_EVERY_S)) == [(A, Meet(PART, False, 4_250))]
    meets(hand, A)
    assert neighbours(hand) == [A]


def test_those_who_wait_are_bounded_and_go_with_their_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(company, "MAX_WAITING", 2)
    hand = node(known(), A, B, C)
    for who, user in ((A, USER_A), (B, USER_B), (C, USER_C)):
        meets(hand, who, user)
    assert hand.machine.sizes()["waiting meets"] == (2, 2)
    hand(LinkDown(C, "reset"))
    assert learn(hand) == [Send(B, Bye(PART))]


def test_for_one_whom_the_tracker_did_not_name_the_registry_is_not_asked() -> None:
    hand = node(known(), A)
    hand.link(B)
    assert meets(hand, B, USER_B) == [Send(B, Bye(PART))]


@pytest.mark.parametrize("right", [Right.PUBLISH, Right.SUBSCRIBE])
def test_where_everybody_may_nobody_is_looked_up(right: Right) -> None:
    rights = known()
    rights.grant(PUBLIC, right)
    hand = node(rights, A, B)
    rights.asked_for.clear()
    meets(hand, A)
    meets(hand, B, USER_B)
    hand.wait(3 * REVIEW_EVERY_S)
    assert neighbours(hand) == [A, B]
    assert set(rights.asked_for) == {PUBLIC}


def test_a_tracker_that_names_colluders_gives_them_nothing() -> None:
    hand = node(known(USER_A.node), A, B, C)
    meets(hand, A, USER_A)
    meets(hand, B, USER_B)
    meets(hand, C)
    effects = hand(Publish(PART, drafts(1)))
    (forward,) = of(Forward, effects)
    assert [to for to, _ in forward.branches] == [A]
    (published,) = of(Published, effects)
    # Nor can they say in its stead that they have what was published, or slow it down.
    chain, number = published.head.chain, published.head.last
    for who in (B, C):
        assert hand.hear(who, Got(PART, chain, (number,)), SlowDown(PART, 1_000)) == []
    assert of(Published, hand(Publish(PART, drafts(2)))) != []
    assert of(Outcome, hand.hear(A, Got(PART, chain, (number,)))) == [Outcome(1, "sent", number)]
    hand.hear(A, SlowDown(PART, 1_000))
    assert of(Published, hand(Publish(PART, drafts(3)))) == []


# --- Parting --------------------------------------------------------------------------------


def parting(who: NodeId) -> list[Effect]:
    return [Notice(PART, "neighbour-unpermitted", who.hex()), Send(who, Bye(PART))]


def test_a_neighbour_whose_rights_are_taken_back_is_left_at_once() -> None:
    rights = known(USER_A.node, USER_B.node)
    hand = node(rights, A, B)
    meets(hand, A, USER_A)
    meets(hand, B, USER_B)
    del rights.held[USER_A.node]
    assert learn(hand) == parting(A)
    assert neighbours(hand) == [B]
    assert meets(hand, A) == [ASKED]
    assert neighbours(hand) == [B]
    (forward,) = of(Forward, hand(Publish(PART, drafts(1))))
    assert [to for to, _ in forward.branches] == [B]


def test_one_that_loses_one_right_and_keeps_the_other_stays() -> None:
    rights = known()
    rights.grant(USER_A.node, Right.PUBLISH | Right.SUBSCRIBE)
    hand = node(rights, A)
    meets(hand, A, USER_A)
    rights.grant(USER_A.node, Right.PUBLISH)
    learn(hand)
    assert neighbours(hand) == [A]


def test_a_right_that_expires_ends_within_seconds() -> None:
    rights = known()
    rights.grant(USER_A.node, Right.SUBSCRIBE, until=START + 60)
    hand = node(rights, A)
    meets(hand, A, USER_A)
    hand.wait(60 - 0.01)
    assert neighbours(hand) == [A]
    effects = hand.wait(REVIEW_EVERY_S)
    assert parting(A)[0] in effects
    assert parting(A)[1] in effects
    assert neighbours(hand) == []


def test_a_mandate_that_is_not_renewed_ends() -> None:
    hand = node(known(USER_A.node), A)
    meets(hand, A, USER_A)
    hand.wait(MANDATE_S - 1)
    assert neighbours(hand) == [A]
    hand.wait(1 + REVIEW_EVERY_S)
    assert neighbours(hand) == []


def test_one_that_is_renewed_goes_on() -> None:
    hand = node(known(USER_A.node), A)
    meets(hand, A, USER_A)
    hand.wait(RENEW_S)
    hand.hear(A, introduce(USER_A, NET, A, hand.now))
    hand.wait(MANDATE_S - 1)
    assert neighbours(hand) == [A]


def test_what_closes_a_public_stream_parts_those_who_never_said_who_they_are() -> None:
    rights = known(USER_B.node)
    rights.grant(PUBLIC, Right.SUBSCRIBE)
    hand = node(rights, A, B)
    meets(hand, A)
    meets(hand, B, USER_B)
    del rights.held[PUBLIC]
    learn(hand)
    assert neighbours(hand) == [B]


def test_nothing_is_looked_at_where_we_have_no_part() -> None:
    hand = node(known(USER_A.node), A)
    meets(hand, A, USER_A)
    hand(Unsubscribe(PART))
    hand.wait(REVIEW_EVERY_S)
    hand(LinkDown(A, "reset"), LinkDown(TRACKER, "reset"))
    hand.wait(60)
    at = hand.machine.wakeup_at
    assert at == START + RENEW_S
    assert beyond(hand.machine) == {}
