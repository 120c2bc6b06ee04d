"""The service: who reads, what is handed to whom, and a Peer around it."""

import random
from functools import partial
from typing import Any

import pytest

from anabranch.core import reader as module
from anabranch.core.duplicates import SEEN
from anabranch.core.frames import peek
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Close,
    Connect,
    Deliver,
    Disconnect,
    Drained,
    Effect,
    Forward,
    HistoryEnded,
    Missed,
    Notice,
    Open,
    PageEnded,
    Publish,
    Subscribe,
)
from anabranch.core.messages import Contact, Resend, Resent
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.reader import FRESH_S, TOO_MANY, Reader
from anabranch.core.subscription import GAP_WAIT_S, NOT_FOUND
from machines import (
    KEYS,
    NODES,
    PART,
    SIGNERS,
    START,
    Chain,
    Hand,
    beyond,
    data,
    drafts,
    head,
    leftovers,
    of,
    peer,
    plain_settings,
    sent,
)
from reading_world import GOOD, ReadingWorld, kind_of, numbers_of

A, KEEPER, B = NODES[1], NODES[2], NODES[3]
LONG_S = 60.0


class KeyRoom:
    """What stands for a key exchange: it delivers everything with one key."""

    waiting = True  # it looks at every frame

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.said: list[tuple[int, Effect]] = []

    def deliver(self, part: Any, head: Any, frame: bytes, hops: int, *rest: Any) -> list[Effect]:
        _sender, _now, *wanted = rest
        return [Deliver(part, head, frame, hops, b"key", *wanted)]

    def follow(self, ticket: int, effect: Effect) -> list[Effect]:
        self.said.append((ticket, effect))
        return []

    def close(self, ticket: int, now: float) -> list[Effect]:
        self.closed.append(ticket)
        return []


def frames_of(count: int, at: float = START) -> list[bytes]:
    chain = Chain(SIGNERS[9])
    return [chain.frame(b"a", b"b", at=at + i / 1000) for i in range(count)]


# --- Who reads ------------------------------------------------------------------------------


def test_every_reader_has_its_own_order() -> None:
    world, frames = ReadingWorld(), frames_of(3)
    first = world.open(1)
    world.come(frames[0])
    second = world.open(2)
    loose = world.open(3, fills=False)
    world.come(frames[2], frames[1])
    assert first.numbers == numbers_of(*frames)
    assert loose.numbers == numbers_of(frames[2], frames[1])
    # The second came late: what it lacks of the chain's beginning is not sure to be for it.
    world.run(LONG_S)
    assert second.numbers == numbers_of(*frames[1:])
    assert second.missed() == []


def test_nobody_reads_what_is_of_another_part_or_after_closing() -> None:
    world, frames = ReadingWorld(), frames_of(2)
    app = world.open()
    assert world.reader.take(world.state, head(frames[0]), frames[0], 2, A, START) != []
    world.close()
    assert world.reader.take(world.state, head(frames[1]), frames[1], 2, A, START) == []
    assert app.numbers == []
    assert leftovers(world.reader) == {}
    world.close()
    assert world.reader.tell(Drained(1), START) == []


def test_who_wants_nothing_gets_nothing() -> None:
    world, frames = ReadingWorld(GOOD), frames_of(1)
    app = world.open(live=False)
    world.come(*frames)
    assert (app.ended, app.numbers) == ([""], [])


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_READERS", 2)
    world = ReadingWorld()
    apps = [world.open(ticket) for ticket in (1, 2, 3)]
    assert [app.ended for app in apps] == [[], [], [TOO_MANY]]
    world.come(*frames_of(1))
    assert [len(app.numbers) for app in apps] == [2, 2, 0]
    world.close(1)
    world.open(4)
    assert world.reader.sizes()["readers"] == (2, 2)


# --- What was missing -----------------------------------------------------------------------


def test_what_was_fetched_is_known_and_goes_to_all_who_lack_it() -> None:
    world, frames = ReadingWorld(GOOD), frames_of(3)
    world.state.plain = True
    apps = [world.open(1), world.open(2), world.open(3, fills=False)]
    world.keep(*frames)
    world.come(frames[0], frames[2])
    world.run(LONG_S)
    assert [app.numbers for app in apps[:2]] == [numbers_of(*frames)] * 2
    # Those who want it as it comes have not got it otherwise.
    assert apps[2].numbers == numbers_of(frames[0], frames[2], frames[1])
    assert world.plain == numbers_of(frames[1])
    missing = peek(frames[1])
    seen = world.state.seen
    assert seen.check(missing.chain, missing.previous, missing.first, missing.last) is SEEN
    assert frames[1] in world.parts.recent.since(world.state.key, 0.0)
    assert len(world.asked_for("gaps")) == 1


def test_what_is_still_on_its_way_is_left_to_the_overlay() -> None:
    world = ReadingWorld(GOOD)
    chain = Chain(SIGNERS[9])
    first = chain.frame(at=START - 10)
    young, younger = chain.frame(at=START + 1), chain.frame(at=START + 1.01)
    world.keep(first, young)
    world.run(1.02)
    app = world.open(history=Selection(end=1))
    world.come(younger)
    world.run(0.3)
    assert app.numbers == numbers_of(first, young, younger)
    assert world.now < START + 1 + FRESH_S
    assert young not in world.parts.recent.since(world.state.key, 0.0)
    world.come(young)
    assert young in world.parts.recent.since(world.state.key, 0.0)
    assert app.numbers == numbers_of(first, young, younger)


def test_one_bad_frame_stops_nothing() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START + i / 1000) for i in range(6)]
    world.keep(*frames)
    world.writers.discard(SIGNERS[9].node)  # as far as we know it never wrote
    app = world.open()
    world.come(frames[0], frames[2])
    world.run(LONG_S)
    assert app.numbers == numbers_of(frames[0], frames[2])
    assert len(app.missed()) == 1
    world.come(*frames[3:])
    assert app.numbers == numbers_of(frames[0], *frames[2:])


# --- Keys -----------------------------------------------------------------------------------


def test_what_is_read_goes_through_the_key_exchange() -> None:
    keys: Any = KeyRoom()
    world, frames = ReadingWorld(GOOD, keys=keys), frames_of(4, START - 100)
    world.keep(*frames)
    world.state.plain = True
    world.open(5, history=Selection(last=3), live=False)
    world.run(1.0)
    lasts = [peek(frame).last for frame in frames]
    assert of(Deliver, world.effects) == [
        Deliver(PART, head(frames[2]), frames[2], 1, b"key", 5, lasts[1], MAX_NUMBER, 1),
        Deliver(PART, head(frames[3]), frames[3], 1, b"key", 5, lasts[2], MAX_NUMBER, 0),
    ]
    # It may keep frames back: what is said after them must not overtake them.
    assert keys.said == [(5, PageEnded(5)), (5, HistoryEnded(5))]
    world.close(5)
    assert keys.closed == [5]


def test_what_is_missed_does_not_overtake_what_waits_for_its_key() -> None:
    keys: Any = KeyRoom()
    world, frames = ReadingWorld(keys=keys), frames_of(3)
    world.open(5)
    world.come(frames[0], frames[2])
    world.run(60.0)
    after, before = peek(frames[0]).last, peek(frames[2]).first
    assert keys.said == [(5, Missed(5, PART, peek(frames[0]).chain, after, before, NOT_FOUND))]
    assert of(Missed, world.effects) == []


def test_who_does_not_read_needs_no_keys() -> None:
    keys: Any = KeyRoom()
    world, (frame,) = ReadingWorld(keys=keys), frames_of(1)
    world.open()
    world.state.reads = False
    assert world.reader.take(world.state, head(frame), frame, 2, A, START) == [
        Deliver(PART, head(frame), frame, 2, b"", 1, 0)
    ]


# --- In a Peer ------------------------------------------------------------------------------


class Stream:
    """What a registry says: one storage node, and everybody may publish."""

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        return (Contact(KEEPER, "keeper:1"),)

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        return True


def reading_peer() -> Hand:
    factory = partial(Reader, Stream(), KEYS.verify, random.Random(1))
    hand = peer({PART: plain_settings(A, B)}, reader=factory)
    assert of(Connect, hand(Subscribe(PART, plain=False), Open(1, PART))) == [
        Connect(A),
        Connect(B),
        Connect(KEEPER, "keeper:1"),
    ]
    hand.link(A)
    return hand


def asked_of_keeper(effects: list[Effect], kind: str) -> Resend:
    """Return the one question of a kind to the storage node."""
    asked = [(to, message) for to, message in sent(Resend, effects) if kind_of(message) == kind]
    ((to, message),) = asked
    assert to == KEEPER
    return message


def test_a_peer_delivers_in_order_and_asks_for_what_is_missing() -> None:
    hand, frames = reading_peer(), frames_of(3)
    lasts = [peek(frame).last for frame in frames]
    assert of(Deliver, hand(data(A, frames[0]))) == [
        Deliver(PART, head(frames[0]), frames[0], 2, b"", 1, 0)
    ]
    assert of(Deliver, hand(data(A, frames[2]))) == []
    hand.wait(GAP_WAIT_S)
    asked = asked_of_keeper(hand.link(KEEPER), "gaps")
    answer = Resent(asked.ticket, (frames[1],), (0,))
    assert of(Deliver, hand.hear(KEEPER, answer)) == [
        Deliver(PART, head(frames[1]), frames[1], 1, b"", 1, lasts[0]),
        Deliver(PART, head(frames[2]), frames[2], 2, b"", 1, lasts[1]),
    ]
    hand(Close(1))
    assert [each.reason for each in of(Disconnect, hand.wait(LONG_S))] == ["unheld"]
    assert beyond(hand.machine) == {}


def test_what_a_neighbour_had_is_passed_on_and_what_storage_had_is_not() -> None:
    for keeper_has_it in (False, True):
        hand, frames = reading_peer(), frames_of(3, START - 5)
        hand.link(B)
        hand(data(A, frames[0]), data(A, frames[2]))
        to, asked = KEEPER, asked_of_keeper([*hand.wait(GAP_WAIT_S), *hand.link(KEEPER)], "gaps")
        if not keeper_has_it:
            ((to, asked),) = sent(Resend, hand.hear(KEEPER, Resent(asked.ticket)))
        effects = hand.hear(to, Resent(asked.ticket, (frames[1],), (0,)))
        assert len(of(Deliver, effects)) == 2
        passed_on = [each.branches for each in of(Forward, effects) if each.frame == frames[1]]
        assert passed_on == ([] if keeper_has_it else [[(B if to == A else A, bytes([2]))]])


def test_a_peer_reads_what_it_publishes_itself() -> None:
    hand = reading_peer()
    (own,) = of(Deliver, hand(Publish(PART, drafts(1))))
    assert (own.to, own.hops) == (1, 0)


def test_a_peer_reads_history() -> None:
    hand, frames = reading_peer(), frames_of(2, START - 100)
    hand(Open(2, PART, Selection(last=9)))
    asked = asked_of_keeper(hand.link(KEEPER), "pages")
    rest = Selection(start=2)
    told = hand.hear(KEEPER, Resent(asked.ticket, (frames[0],), (0,), rest, high=4))
    assert [type(effect) for effect in told] == [Deliver, PageEnded]
    ((_, asked),) = sent(Resend, hand(Drained(2)))
    assert asked.selection == rest
    told = hand.hear(KEEPER, Resent(asked.ticket, (frames[1],), (2,), high=4))
    assert [type(effect) for effect in told] == [Deliver, PageEnded, HistoryEnded]
    hand(Close(1), Close(2))


def test_an_answer_that_somebody_else_was_asked_for_costs_the_link() -> None:
    hand, frames = reading_peer(), frames_of(3)
    hand(data(A, frames[0]), data(A, frames[2]))
    hand.wait(GAP_WAIT_S)
    asked = asked_of_keeper(hand.link(KEEPER), "gaps")
    told = hand.hear(A, Resent(asked.ticket, (frames[1],)))
    assert of(Disconnect, told) == [Disconnect(A, "unasked")]
    assert [notice.kind for notice in of(Notice, told)] == ["fault"]
    assert len(of(Deliver, hand.hear(KEEPER, Resent(asked.ticket, (frames[1],))))) == 2
