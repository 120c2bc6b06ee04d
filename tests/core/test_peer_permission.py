"""A Peer and the permissions of the registry: frames in doubt, and our own drafts."""

from anabranch.core.changes import Right
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Follow,
    Learned,
    LinkDown,
    Outcome,
    Publish,
    Published,
    Send,
    Subscribe,
)
from anabranch.core.messages import Got, ReadChain
from anabranch.core.permission import DOUBT_FOR_S, MAX_DOUBTFUL_PER_PEER
from anabranch.core.service import Service
from machines import (
    NODES,
    OTHER,
    PART,
    SIGNERS,
    Chain,
    Hand,
    copies,
    data,
    drafts,
    forged,
    head,
    leftovers,
    of,
    peer,
    plain_settings,
)

A, B, KEEPER = NODES[1:4]
PUBLISHER = SIGNERS[9]
ASKED = Send(KEEPER, ReadChain(1, PART.stream))


class Reader(Service):
    """Reads the registry when it is told to, and holds what a test has written there."""

    events = (Follow,)

    def __init__(self, *may: NodeId) -> None:
        self.publishers = list(may)
        self.silent = False

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return publisher in self.publishers

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return right is Right.SUBSCRIBE  # everybody

    def stores(self, stream: str, user: NodeId) -> bool:
        return False

    def doubt(self, stream: str, now: float) -> list[Effect]:
        return [] if self.silent else [ASKED]

    def tell(self, event: Follow, now: float) -> list[Effect]:  # type: ignore[override]
        return [Learned(event.chain, 1)]


def subscriber(*may: NodeId) -> tuple[Hand, Reader]:
    reader = Reader(*may)
    known = {PART: plain_settings(A, B), OTHER: plain_settings(A)}
    hand = peer(known, permits=reader, services=[reader])
    hand(Subscribe(PART))
    hand.link(A, B)
    return hand, reader


def learn(hand: Hand, chain: str = PART.stream) -> list[Effect]:
    """Let the registry's word come."""
    learned, *rest = hand(Follow(chain))
    assert learned == Learned(chain, 1)
    return rest


def test_who_may_publish_is_heard() -> None:
    hand, _ = subscriber(PUBLISHER.node)
    frame = Chain(PUBLISHER).frame()
    assert of(Deliver, hand(data(A, frame)))


def test_a_frame_without_permission_waits_asks_and_is_dropped() -> None:
    hand, _ = subscriber()
    frame = Chain(PUBLISHER).frame()
    assert hand(data(A, frame)) == [ASKED]
    assert hand.wait(DOUBT_FOR_S - 0.01) == []
    assert hand.wait(0.01) == [Dropped(head(frame), "unpermitted", A)]
    assert of(Disconnect, hand.wait(600)) == []
    assert "doubtful packets" not in leftovers(hand.machine)


def test_a_frame_that_was_permitted_meanwhile_is_taken_as_if_it_had_just_come() -> None:
    hand, reader = subscriber()
    chain = Chain(PUBLISHER)
    frame = chain.frame()
    hand(data(A, frame, route=b"\1"), data(B, frame))
    reader.publishers.append(PUBLISHER.node)
    deliver, forward, got, copy = learn(hand)
    assert (deliver.frame, forward.branches) == (frame, [(B, b"\2")])
    assert got == Send(A, Got(PART, chain.key, (chain.newest,)))
    assert copy == copies(B, frame)
    assert hand.wait(60) == []


def test_what_is_not_permitted_was_never_seen() -> None:
    hand, reader = subscriber()
    frame = Chain(PUBLISHER).frame()
    hand(data(A, frame))
    hand.wait(DOUBT_FOR_S)
    reader.publishers.append(PUBLISHER.node)
    assert of(Deliver, hand(data(B, frame)))


def test_a_forgery_in_doubt_is_punished_as_ever() -> None:
    hand, _ = subscriber()
    assert Disconnect(A, "forged") in hand(data(A, forged(Chain(PUBLISHER).frame())))


def test_the_word_on_another_stream_or_no_grant_changes_nothing() -> None:
    hand, reader = subscriber()
    hand(data(A, Chain(PUBLISHER).frame()))
    assert learn(hand) == []
    reader.publishers.append(PUBLISHER.node)
    assert learn(hand, OTHER.stream) == []
    assert of(Deliver, learn(hand))


def test_what_came_over_a_link_that_is_gone_is_dropped() -> None:
    hand, reader = subscriber()
    frame = Chain(PUBLISHER).frame()
    hand(data(A, frame), LinkDown(A, "reset"))
    reader.publishers.append(PUBLISHER.node)
    assert learn(hand) == [Dropped(head(frame), "link-down", A)]


def test_many_frames_without_permission_are_a_flood() -> None:
    hand, _ = subscriber()
    chain = Chain(PUBLISHER)
    effects = hand(*(data(A, chain.frame()) for _ in range(2_000)))
    assert len(of(Dropped, effects)) == 2_000 - MAX_DOUBTFUL_PER_PEER
    assert of(Disconnect, effects) == []
    assert Disconnect(A, "flood") in hand(data(A, chain.frame()))


def test_a_permission_that_is_taken_back_ends_at_once() -> None:
    hand, reader = subscriber(PUBLISHER.node)
    chain = Chain(PUBLISHER)
    assert of(Deliver, hand(data(A, chain.frame())))
    reader.publishers.clear()
    learn(hand)
    assert hand(data(A, chain.frame())) == [ASKED]


# --- Our own --------------------------------------------------------------------------------


def outcomes(effects: list[Effect]) -> list[tuple[int, str]]:
    return [(outcome.ticket, outcome.result) for outcome in of(Outcome, effects)]


def test_drafts_without_permission_are_refused_at_once_if_there_is_nobody_to_ask() -> None:
    hand, reader = subscriber()
    reader.silent = True
    assert hand(Publish(PART, drafts(1, 2))) == [Outcome(n, "unpermitted") for n in (1, 2)]


def test_drafts_in_doubt_wait_for_the_registrys_word() -> None:
    hand, reader = subscriber()
    assert hand(Publish(PART, drafts(1))) == [ASKED]
    assert hand(Publish(PART, drafts(2))) == []  # it has been asked
    reader.publishers.append(NODES[0])
    (published,) = of(Published, learn(hand))
    assert published.head.count == 2


def test_drafts_that_the_registrys_word_does_not_permit_are_refused() -> None:
    hand, _ = subscriber()
    hand(Publish(PART, drafts(1)))
    assert outcomes(learn(hand)) == [(1, "unpermitted")]
    hand(Publish(PART, drafts(2)))
    assert outcomes(hand.wait(DOUBT_FOR_S)) == [(2, "unpermitted")]
    assert outcomes(hand.wait(60)) == []


def test_it_is_the_publishers_key_that_needs_the_permission() -> None:
    reader = Reader(NODES[9])
    reader.silent = True
    known = {PART: plain_settings(A)}
    for node, may in ((NODES[0], True), (NODES[9], False)):
        signer = SIGNERS[9] if may else SIGNERS[0]
        hand = peer(known, signer=signer, node=node, permits=reader, services=[reader])
        assert bool(of(Published, hand(Publish(PART, drafts(1))))) is may
