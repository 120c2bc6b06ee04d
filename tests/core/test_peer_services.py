"""Services of a Peer: their messages, events, links and timers; and what the registry changes."""

import pytest

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Answered,
    Connect,
    Disconnect,
    Effect,
    Event,
    Follow,
    Hold,
    Learned,
    LinkDown,
    Notice,
    Outcome,
    Publish,
    Published,
    Release,
    Request,
    Send,
    Subscribe,
    Wakeup,
)
from anabranch.core.messages import ChainChanged, ChainPage, Contact, Control, Meet, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.overlay import PartSettings
from anabranch.core.service import Service
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    Plain,
    copies,
    data,
    drafts,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B, C, KEEPER = NODES[1:5]
SECOND = StreamPart(PART.stream, 1)


class Notes(Service):
    """Holds a keeper, and notes what it is told."""

    messages = (ChainPage, ChainChanged)
    events = (Follow, Request)

    def __init__(self) -> None:
        self.noted: list[object] = []

    def start(self, now: float) -> list[Effect]:
        self.noted.append("start")
        self.wakeup_at = now + 5
        return [Hold(KEEPER, "there")]

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        self.noted.append((sender, message))
        if type(message) is ChainPage:
            raise RemoteError("bad-chain", "")
        return [Send(sender, ReadChain(1, NETWORK))]

    def tell(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Follow:
            return [Learned(event.chain, 1)]
        assert type(event) is Request
        return [Release(KEEPER), Answered(event.ticket, None, "nobody")]

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        self.noted.append((peer, up, reason))
        return []

    def wake(self, now: float) -> list[Effect]:
        self.noted.append("wake")
        self.wakeup_at = None
        return [Notice(None, "awake")]

    def sizes(self) -> dict[str, tuple[int, int]]:
        return {"things noted": (len(self.noted), 10_000)}


def node(service: Service | None = None) -> tuple[Hand, Notes]:
    service = service or Notes()
    known = {PART: plain_settings(A), OTHER: plain_settings(B)}
    return peer(known, services=[service]), service  # type: ignore[return-value]


def test_services_begin_before_the_first_event_and_once() -> None:
    hand, service = node()
    assert hand(Subscribe(PART)) == [Connect(KEEPER, "there"), Connect(A)]
    assert hand(Subscribe(PART)) == []
    assert service.noted == ["start"]
    assert hand.machine.wakeup_at == START + 5


@pytest.mark.parametrize("event", [Wakeup(), data(A, Chain(SIGNERS[9]).frame())])
def test_whatever_the_first_event_is(event: Event) -> None:
    hand, _ = node()
    assert hand(event)[0] == Connect(KEEPER, "there")
    assert hand.machine.wakeup_at == START + 5


def test_their_messages_come_to_them_and_their_answers_leave() -> None:
    hand, service = node()
    hand.link(KEEPER)
    word = ChainChanged(PART.stream, 3)
    assert hand.hear(KEEPER, word) == [Send(KEEPER, ReadChain(1, NETWORK))]
    assert service.noted[-1] == (KEEPER, word)


def test_their_events_come_to_them() -> None:
    hand, _ = node()
    hand.link(KEEPER)
    answered = hand(Request(7, ReadChain(1, NETWORK)))
    assert answered == [Answered(7, None, "nobody")]
    assert hand.wait(10) == [Notice(None, "awake"), Disconnect(KEEPER, "unheld")]  # released


def test_they_hear_of_links_and_are_woken() -> None:
    hand, service = node()
    hand.link(KEEPER)
    hand(LinkDown(KEEPER, "reset"))
    assert service.noted[1:] == [(KEEPER, True, ""), (KEEPER, False, "reset")]
    assert Notice(None, "awake") in hand.wait(5)
    assert service.noted[-1] == "wake"


def test_their_tables_are_shown() -> None:
    hand, _ = node()
    hand.link(KEEPER)
    assert hand.machine.sizes()["things noted"] == (2, 10_000)


def test_what_a_service_finds_wrong_costs_the_link() -> None:
    hand, _ = node()
    hand.link(KEEPER)
    assert Disconnect(KEEPER, "bad-chain") in hand.hear(
        KEEPER, ChainPage(1, NETWORK, 0, 1, bytes(32))
    )


def test_whom_a_service_chose_is_no_flooder_and_others_are() -> None:
    hand, _ = node()
    hand.link(KEEPER, C)
    words = [ChainChanged(NETWORK, 1)] * 2_001
    assert of(Disconnect, hand.hear(KEEPER, *words)) == []
    assert of(Disconnect, hand.hear(C, *words)) == [Disconnect(C, "flood")]
    hand(Request(1, ReadChain(1, NETWORK)))  # the service lets it go
    assert of(Disconnect, hand.hear(KEEPER, *words)) == [Disconnect(KEEPER, "flood")]


def test_messages_for_which_there_is_no_service_are_ignored_and_counted() -> None:
    hand, _ = node()
    hand.link(KEEPER)
    assert of(Disconnect, hand.hear(KEEPER, *[ReadChain(1, NETWORK)] * 2_000)) == []
    ended = hand.hear(KEEPER, ReadChain(1, NETWORK))
    assert of(Disconnect, ended) == [Disconnect(KEEPER, "flood")]


def test_a_node_without_services_ignores_the_registry() -> None:
    hand = peer({PART: plain_settings(A)})
    hand.link(A)
    assert hand.hear(A, ChainChanged(NETWORK, 1)) == []


# --- What is learned of the registry --------------------------------------------------------


class World:
    """A node that is in two parts of a stream and one of another, and a registry to change."""

    def __init__(self, overlays: dict[str, type[Plain]] | None = None) -> None:
        self.known: dict[StreamPart, PartSettings] = {
            PART: plain_settings(A),
            SECOND: plain_settings(B),
            OTHER: plain_settings(C),
        }
        self.hand = peer(self.known, overlays, services=[Notes()])
        self.hand(Subscribe(PART), Subscribe(SECOND), Subscribe(OTHER), Publish(PART, []))
        self.hand.link(A, B, C, KEEPER)

    def learn(self, chain: str = PART.stream) -> list[Effect]:
        learned, *rest = self.hand(Follow(chain))
        assert learned == Learned(chain, 1)
        return rest

    def neighbours(self) -> list[tuple[NodeId, ...]]:
        return [self.hand.machine.neighbours(part) for part in (PART, SECOND, OTHER)]


def test_a_stream_that_is_deleted_is_left_and_drafts_hear_of_it() -> None:
    world = World()
    hand = world.hand
    (published,) = of(Published, hand(Publish(PART, drafts(1, 2))))
    del world.known[PART], world.known[SECOND]
    gone = "the registry knows it no more"
    assert world.learn() == [
        Outcome(1, "no-such-stream", published.head.first),
        Outcome(2, "no-such-stream", published.head.last),
        Notice(PART, "deleted", gone),
        Notice(SECOND, "deleted", gone),
    ]
    assert world.neighbours() == [(), (), (C,)]
    assert len(hand.machine._outgoing) == 0
    assert of(Outcome, hand(Publish(PART, drafts(3)))) == [Outcome(3, "no-such-stream")]
    hand.wait(11)
    assert leftovers(hand.machine)["parts"] == 1


def test_a_partition_less_is_left_and_the_others_stay() -> None:
    world = World()
    del world.known[SECOND]
    assert [notice.part for notice in of(Notice, world.learn())] == [SECOND]
    assert world.neighbours() == [(A,), (), (C,)]


def test_other_settings_are_taken_over() -> None:
    world = World()
    world.known[PART] = plain_settings(B)
    assert world.learn(OTHER.stream) == []
    assert world.learn() == []
    assert world.neighbours() == [(B,), (B,), (C,)]
    assert [e.peer for e in of(Disconnect, world.hand.wait(60))] == [A]


def test_the_networks_own_chain_concerns_every_part() -> None:
    world = World()
    world.known |= {PART: plain_settings(B), OTHER: plain_settings(KEEPER)}
    assert world.learn(NETWORK) == []
    assert world.neighbours() == [(B,), (B,), (KEEPER,)]


def test_what_has_not_changed_is_left_alone() -> None:
    class Strict(Plain):
        def change(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
            raise AssertionError(part)

    world = World({"plain": Strict})
    assert world.learn() == world.learn(NETWORK) == []


def test_another_kind_of_overlay_takes_the_part_over_with_all_that_was_seen() -> None:
    class Second(Plain):
        code = 201

    world = World({"plain": Plain, "second": Second})
    hand, chain = world.hand, Chain(SIGNERS[9])
    frame = chain.frame()
    hand(data(A, frame))
    published = of(Published, hand(Publish(PART, drafts(1))))[0]
    world.known[PART] = PartSettings("second", 4, (Contact(B),))
    (forward,) = world.learn()
    assert (forward.overlay, forward.branches) == (201, [(B, b"\1")])  # not confirmed yet
    assert forward.frame == published.frame
    assert hand(data(B, frame, overlay=201)) == [copies(B, frame)]
    assert len(hand(data(B, chain.frame(), overlay=201))) == 1


def test_an_overlay_that_nobody_knows_is_as_good_as_deleted() -> None:
    world = World()
    world.known[PART] = PartSettings("unheard-of")
    assert [notice.kind for notice in of(Notice, world.learn())] == ["deleted"]


def test_what_a_tracker_says_of_its_part_is_no_flood() -> None:
    class Led(Plain):
        def follows(self, part: StreamPart, sender: NodeId) -> bool:
            return sender == A

    hand = peer({PART: plain_settings(A, B)}, {"plain": Led})
    hand(Subscribe(PART))
    hand.link(A, B)
    assert of(Disconnect, hand.hear(A, *[Meet(PART)] * 2_001)) == []
    assert of(Disconnect, hand.hear(A, *[Meet(OTHER)] * 2_001)) == [Disconnect(A, "flood")]
