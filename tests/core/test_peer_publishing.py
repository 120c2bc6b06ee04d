"""Publishing through a Peer: neighbours or none yet, and one outcome for every draft."""

from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Connect,
    Deliver,
    Draft,
    Effect,
    Forward,
    Hold,
    LinkDown,
    Notice,
    Outcome,
    Publish,
    Published,
    Retire,
    Subscribe,
    Unsubscribe,
    Wakeup,
)
from anabranch.core.messages import Got, SlowDown
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.overlay import Carried
from anabranch.core.parts import MAX_PARTS
from anabranch.core.publishing import CONFIRM_S, MAX_STRANDED_FRAMES, STRANDED_FOR_S
from anabranch.core.waiting_drafts import FRAME_MESSAGES, MAX_WAITING_DRAFTS
from machines import (
    NODES,
    OTHER,
    OWNER,
    PART,
    START,
    Hand,
    Plain,
    StreamPart,
    drafts,
    head,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B = NODES[1:3]


def publisher() -> Hand:
    """Make a node with two neighbours to be, none of which is linked yet."""
    return peer({PART: plain_settings(A, B), OTHER: plain_settings(A)})


def tickets(effects: list[Effect], result: str) -> list[int]:
    outcomes = of(Outcome, effects)
    assert all(outcome.result == result for outcome in outcomes)
    return [outcome.ticket for outcome in outcomes]


def got(hand: Hand, peer: NodeId, published: Published, part: StreamPart = PART) -> list[Effect]:
    """Let a neighbour say that it has a frame."""
    return hand.hear(peer, Got(part, published.head.chain, (published.head.last,)))


def test_publishing_makes_a_member_and_what_finds_no_neighbour_waits() -> None:
    hand = publisher()
    connect_a, connect_b, published = hand(Publish(PART, drafts(1, 2)))
    assert (connect_a, connect_b) == (Connect(A), Connect(B))
    assert isinstance(published, Published)
    assert published.head.count == 2
    assert hand.machine.wakeup_at == START + STRANDED_FOR_S
    assert hand.link(B) == [Forward(Plain.code, published.head, [(B, b"\1")], published.frame)]
    assert hand.machine.wakeup_at == START + CONFIRM_S
    assert got(hand, B, published) == [
        Outcome(1, "sent", published.head.first),
        Outcome(2, "sent", published.head.last),
    ]
    assert hand.link(A) == []
    assert (hand.machine.wakeup_at, len(hand.machine._outgoing)) == (None, 0)


def test_what_waited_goes_to_the_first_neighbour_in_its_order() -> None:
    hand = publisher()
    made = [of(Published, hand(Publish(PART, drafts(n))))[0] for n in range(3)]
    effects = hand.link(A)
    assert [f.frame for f in of(Forward, effects)] == [p.frame for p in made]
    assert tickets([e for p in made for e in got(hand, A, p)], "sent") == [0, 1, 2]
    hand(LinkDown(A, "reset"))
    assert of(Forward, hand.link(B)) == []


def test_with_neighbours_a_message_leaves_at_once() -> None:
    hand = publisher()
    hand(Publish(PART, []))
    hand.link(A, B)
    published, forward = hand(Publish(PART, drafts(7)))
    assert forward.branches == [(A, b"\1"), (B, b"\1")]
    assert got(hand, B, published) == [Outcome(7, "sent", published.head.last)]
    assert got(hand, A, published) == []  # it is known already
    assert len(hand.machine._outgoing) == 0
    assert hand.wait(60) == []


def test_a_subscriber_gets_its_own_messages_even_alone() -> None:
    hand = publisher()
    hand(Subscribe(PART))
    published, deliver = hand(Publish(PART, drafts(1)))
    assert deliver == Deliver(PART, published.head, published.frame, 0)
    assert len(of(Forward, hand.link(A))) == 1
    assert of(Deliver, hand.link(B)) == []


def test_messages_that_wait_too_long_have_their_outcome() -> None:
    hand = publisher()
    hand(Publish(PART, drafts(1)))
    hand.wait(1)
    hand(Publish(PART, drafts(2)))
    assert tickets(hand.wait(STRANDED_FOR_S - 1), "no-neighbour") == [1]
    assert tickets(hand.wait(1), "no-neighbour") == [2]
    assert of(Forward, hand.link(A)) == []


def test_messages_that_are_too_many_have_their_outcome() -> None:
    hand = publisher()
    first = MAX_STRANDED_FRAMES
    made = [of(Published, hand(Publish(PART, drafts(ticket))))[0] for ticket in range(first)]
    waiting = range(first, first + MAX_WAITING_DRAFTS)
    assert hand(Publish(PART, drafts(*waiting))) == []
    assert tickets(hand(Publish(PART, drafts(-1))), "queue-full") == [-1]
    assert [f.frame for f in of(Forward, hand.link(A))] == [p.frame for p in made]
    outcome, published, forward = got(hand, A, made[0])  # one that is sent makes room for one
    assert (outcome.ticket, published.head.count) == (0, FRAME_MESSAGES)
    assert forward.frame == published.frame
    assert tickets(hand(Publish(PART, drafts(-2))), "") == []


def test_what_cannot_be_taken_is_said_at_once() -> None:
    hand = publisher()
    large = Draft(bytes(MAX_CONTENT_BYTES + 1), 0, 1)
    assert tickets(hand(Publish(PART, [large])), "too-large") == [1]
    effects = hand(Publish(PART, drafts(*range(MAX_WAITING_DRAFTS + 2))))
    assert tickets(effects, "queue-full") == [MAX_WAITING_DRAFTS, MAX_WAITING_DRAFTS + 1]
    frames = -(-MAX_WAITING_DRAFTS // FRAME_MESSAGES)
    assert len(of(Published, effects)) == frames


def test_publishing_where_there_is_no_stream() -> None:
    hand, nowhere = publisher(), StreamPart(f"{OWNER}/nowhere", 0)
    notice, first, second = hand(Publish(nowhere, drafts(1, 2)))
    assert isinstance(notice, Notice)
    assert notice.kind == "no-such-stream"
    assert [first, second] == [Outcome(1, "no-such-stream"), Outcome(2, "no-such-stream")]


def test_publishing_to_one_part_too_many() -> None:
    many = [StreamPart(f"{OWNER}/{number}", 0) for number in range(MAX_PARTS + 1)]
    hand = peer(dict.fromkeys(many, plain_settings(A)))
    for part in many[:-1]:
        hand(Subscribe(part))
    notice, outcome = hand(Publish(many[-1], drafts(1)))
    assert notice.kind == "too-many-parts"
    assert outcome == Outcome(1, "too-many-parts")


def test_retiring_accounts_for_what_has_not_left() -> None:
    hand = publisher()
    hand(Publish(PART, drafts(1)))
    assert tickets(hand(Retire(PART)), "no-neighbour") == [1]
    assert hand(Retire(PART)) == []
    assert leftovers(hand.machine) == {"unheld links": 2}  # dials that are still under way
    assert of(Forward, hand.link(A, B)) == []


def test_each_time_a_node_begins_to_publish_it_begins_a_chain() -> None:
    hand = publisher()
    hand(Subscribe(PART))
    hand.link(A)
    heads = []
    for ticket in range(70):  # more than a duplicate detector keeps of one publisher
        heads += [p.head for p in of(Published, hand(Publish(PART, drafts(ticket))))]
        hand(Retire(PART))
        hand.wait(0.001)
    assert len({h.chain for h in heads}) == 70
    assert {h.previous for h in heads} == {0}
    assert {h.publisher for h in heads} == {hand.machine.me.node}


def test_a_clock_that_is_set_back_stops_nobody_from_publishing() -> None:
    hand = publisher()
    hand(Subscribe(PART))
    hand.link(A)
    for _ in range(65):
        hand(Publish(PART, drafts(1)), Retire(PART))
    hand.now -= 3600
    for some in ((2, 3), (4,)):
        (published,) = of(Published, hand(Publish(PART, drafts(*some))))
        assert tickets(got(hand, A, published), "sent") == [*some]


def test_two_parts_wait_each_for_its_own_neighbours() -> None:
    hand = publisher()
    one, two = of(Published, hand(Publish(PART, drafts(1)), Publish(OTHER, drafts(2))))
    assert [f.frame for f in of(Forward, hand.link(B))] == [one.frame]
    assert tickets(got(hand, B, one), "sent") == [1]
    assert [f.frame for f in of(Forward, hand.link(A))] == [two.frame]
    assert tickets(got(hand, A, two, OTHER), "sent") == [2]
    hand.wait(CONFIRM_S)
    assert hand.machine.wakeup_at is None


def test_a_pause_ends_while_nobody_is_there() -> None:
    hand = publisher()
    published = of(Published, hand(Publish(PART, [])) + hand(Publish(PART, drafts(1))))[0]
    hand.link(A)
    assert tickets(got(hand, A, published), "sent") == [1]
    hand.hear(A, SlowDown(PART, 100))
    hand(Publish(PART, drafts(2)), Publish(PART, drafts(3)), LinkDown(A, "reset"))
    made = of(Published, hand.wait(1))
    assert [p.head.count for p in made] == [2]
    assert head(made[0].frame).previous == published.head.last
    assert of(Forward, hand.link(A))[0].frame == made[0].frame
    assert tickets(got(hand, A, made[0]), "sent") == [2, 3]


def test_a_wakeup_too_early_or_too_late_does_no_harm() -> None:
    hand = publisher()
    hand(Publish(PART, drafts(1)))
    assert hand(Wakeup(), Wakeup()) == []
    hand.now += 2 * STRANDED_FOR_S
    assert tickets(hand(Wakeup()), "no-neighbour") == [1]
    assert hand(Wakeup()) == []
    assert hand.machine.wakeup_at is None


def test_what_an_overlay_does_before_it_can_send_is_done() -> None:
    class Seeking(Plain):
        """Looks for a neighbour only when there is something to send."""

        def join(self, part: StreamPart, settings: object, now: float) -> list[Effect]:
            self.parts[part] = ()
            return []

        def publish(self, part: StreamPart, carried: Carried, now: float) -> list[Effect]:
            return super().publish(part, carried, now) or [Hold(A)]

    hand = peer({PART: plain_settings(A)}, {"plain": Seeking})
    published, connect = hand(Publish(PART, drafts(1)))
    assert isinstance(published, Published)
    assert connect == Connect(A)
    assert tickets(hand(Retire(PART), Unsubscribe(PART)), "no-neighbour") == [1]
