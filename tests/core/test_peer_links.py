"""A Peer's links: held by its overlays, cut for a fault, and what overlays hear of it."""

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.links import BAN_FOR_S, MAX_UNHELD, UNHELD_FOR_S
from anabranch.core.machine import (
    Connect,
    Deliver,
    Disconnect,
    Effect,
    Forward,
    Hold,
    LinkDown,
    LinkUp,
    Received,
    Release,
    Rtt,
    Send,
    Subscribe,
    Unsubscribe,
    Wakeup,
)
from anabranch.core.messages import Control, Meet
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    Plain,
    data,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B, C = NODES[1:4]
GARBAGE = b"garbage"


def member() -> Hand:
    """Make a subscriber with two neighbours."""
    hand = peer({PART: plain_settings(A, B), OTHER: plain_settings(A)})
    hand(Subscribe(PART))
    hand.link(A, B)
    return hand


def overlay(hand: Hand) -> Plain:
    found = hand.machine._parts.overlays["plain"]
    assert isinstance(found, Plain)
    return found


def test_a_link_that_fails_is_dialled_again_and_again() -> None:
    hand = member()
    assert hand(LinkDown(A, "reset")) == []
    assert hand.machine.neighbours(PART) == (B,)
    assert hand.wait(0.374) == []
    assert hand.wait(0.251) == [Connect(A)]
    hand(LinkDown(A, "refused"))
    assert hand.wait(0.749) == []
    assert hand.wait(0.501) == [Connect(A)]
    hand.link(A)
    assert hand.machine.neighbours(PART) == (A, B)
    assert hand.machine.wakeup_at is None


def test_overlays_hear_of_every_link() -> None:
    hand = member()
    hand(LinkDown(A, "reset"), LinkUp(C), LinkDown(C, "closed"))
    assert overlay(hand).links == [
        *((A, True, ""), (B, True, ""), (A, False, "reset")),
        *((C, True, ""), (C, False, "closed")),
    ]


def test_overlays_hear_of_the_links_that_the_node_ends_itself() -> None:
    hand = member()
    hand.link(C)
    hand(Received(A, GARBAGE))
    assert overlay(hand).links[-1] == (A, False, "protocol-version")
    hand.link(A)
    assert overlay(hand).links[-1] == (A, False, "banned")
    assert hand.wait(UNHELD_FOR_S) == [Disconnect(C, "unheld")]
    assert overlay(hand).links[-1] == (C, False, "unheld")


def test_overlays_hear_of_unheld_links_that_had_to_go() -> None:
    hand = member()
    for number in range(MAX_UNHELD):
        hand.link(NodeId(A[:-1] + bytes([number])))
    assert hand.link(C) == [Disconnect(NodeId(A[:-1] + b"\0"), "too-many-unheld")]
    assert overlay(hand).links[-2:] == [
        (A[:-1] + b"\0", False, "too-many-unheld"),
        (C, True, ""),
    ]


def test_a_release_that_leaves_too_many_links_is_told_too() -> None:
    hand = member()
    for number in range(MAX_UNHELD):
        hand.link(NodeId(C[:-1] + bytes([number])))
    ended = of(Disconnect, hand(Unsubscribe(PART)))
    assert len(ended) == 2
    assert [peer for peer, up, _ in overlay(hand).links if not up] == [e.peer for e in ended]


def test_round_trips_are_told_to_overlays_while_there_is_a_link() -> None:
    hand = member()
    assert hand(Rtt(A, 0.05), Rtt(C, 0.01)) == []
    assert overlay(hand).rtts == {A: 0.05}
    hand(LinkUp(C, 0.02), Received(B, GARBAGE), LinkUp(B, 0.03))
    assert overlay(hand).rtts == {A: 0.05, C: 0.02}  # who is banned does not count


def test_a_fault_costs_the_link_for_a_while() -> None:
    hand, chain = member(), Chain(SIGNERS[9])
    hand(Received(A, GARBAGE))
    assert hand.machine.neighbours(PART) == (B,)
    assert hand.link(A) == [Disconnect(A, "banned")]
    assert [deliver.hops for deliver in of(Deliver, hand(data(B, chain.frame())))] == [2]
    assert hand.wait(BAN_FOR_S - 0.1) == []
    assert hand.wait(0.1) == [Connect(A)]
    hand.link(A)
    assert hand.machine.neighbours(PART) == (A, B)


def test_a_stream_joined_while_its_neighbour_is_banned_gets_it_later() -> None:
    hand = member()
    hand(Received(A, GARBAGE), Unsubscribe(PART))
    hand.wait(30)
    assert hand(Subscribe(OTHER)) == []
    assert hand.wait(BAN_FOR_S - 30) == [Connect(A)]
    hand.link(A)
    assert hand.machine.neighbours(OTHER) == (A,)


def test_control_that_nobody_asked_for_costs_the_link_when_it_is_too_much() -> None:
    hand = member()
    assert of(Disconnect, hand.hear(A, *[Meet(OTHER)] * 2_000)) == []
    assert of(Disconnect, hand.hear(A, Meet(OTHER))) == [Disconnect(A, "flood")]
    assert of(Disconnect, hand.hear(B, *[Meet(PART)] * 2_001)) == [Disconnect(B, "flood")]


def test_leaving_during_a_dial_waits_for_its_end() -> None:
    hand = peer({PART: plain_settings(A, B)})
    hand(Subscribe(PART), Unsubscribe(PART))
    assert hand.machine.neighbours(PART) == ()
    hand(LinkDown(A, "refused"))
    assert leftovers(hand.machine) == {"unheld links": 1}
    hand.link(B)
    assert hand.wait(UNHELD_FOR_S) == [Disconnect(B, "unheld")]
    assert leftovers(hand.machine) == {}
    assert hand.machine.wakeup_at is None


def test_a_link_that_others_dial_is_kept_while_it_is_held() -> None:
    hand = peer({PART: plain_settings(A)})
    hand.link(A)
    assert hand(Subscribe(PART)) == []
    assert hand.wait(600) == []
    assert hand.machine.neighbours(PART) == (A,)


class Restless(Plain):
    """Holds another peer at every control message, and lets it go a while later."""

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        self.wakeup_at = now + 3
        return [Hold(C, "there"), Send(sender, Meet(message.part, True))]

    def wake(self, now: float) -> list[Effect]:
        self.wakeup_at = None
        return [Release(C)]


def test_an_overlay_has_its_links_and_its_timer_through_the_peer() -> None:
    hand = peer({PART: plain_settings(A)}, {"plain": Restless})
    hand(Subscribe(PART))
    hand.link(A)
    assert hand.hear(A, Meet(PART)) == [Connect(C, "there"), Send(A, Meet(PART, True))]
    assert hand.machine.wakeup_at == START + 3
    hand.link(C)
    assert hand.wait(3) == []
    assert hand.machine.wakeup_at == START + 3 + UNHELD_FOR_S
    assert hand.wait(UNHELD_FOR_S) == [Disconnect(C, "unheld")]
    assert hand(Wakeup()) == []


class Timed(Plain):
    """Wants to be woken a while after each frame."""

    sees_copies = True

    def carry(
        self, part: StreamPart, carried: object, came_from: NodeId, first: bool, now: float
    ) -> list[Effect]:
        self.wakeup_at = now + (1 if first else 0.5)
        return []

    def wake(self, now: float) -> list[Effect]:
        self.wakeup_at = None
        return [Send(A, Meet(PART))]


def test_a_timer_that_an_overlay_sets_with_a_frame_is_not_missed() -> None:
    hand, frame = peer({PART: plain_settings(A)}, {"plain": Timed}), Chain(SIGNERS[9]).frame()
    hand(Subscribe(PART))
    hand.link(A)
    assert of(Forward, hand(data(A, frame))) == []
    assert hand.machine.wakeup_at == START + 1
    hand(data(A, frame))
    assert hand.machine.wakeup_at == START + 0.5
    assert hand.wait(1) == [Send(A, Meet(PART))]
    assert hand.machine.wakeup_at is None
