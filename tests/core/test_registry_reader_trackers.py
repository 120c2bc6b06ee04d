"""A reader and its trackers: two are read, whoever lies loses its link, and forks are joined."""

from typing import Any

import pytest

from anabranch.core.changes import CreateStream, DeleteStream, SetPermission, pack_page
from anabranch.core.errors import RemoteError
from anabranch.core.followed_chain import LAG_S
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Follow, Hold, Learned, Notice, Release
from anabranch.core.messages import ChainPage, Contact, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reads import ANSWER_S, REFRESH_S
from anabranch.core.registry_sources import TURN_S
from chains import (
    COPIER,
    ENTRIES,
    NET,
    SECOND,
    STREAM,
    THIRD,
    WRITER,
    Writer,
    created,
    page_of,
    reads,
)
from machines import NODES, SIGNERS, of
from reading import Reading

ANN, BOB = SIGNERS[1:3]
PART = StreamPart(STREAM, 0)
REVOKE = SetPermission(ANN.node, 0)
SECOND_CHANGE = pack_page(created(DeleteStream()).changes, 1)


# --- Lies -----------------------------------------------------------------------------------


def lie(reading: Reading, make: Any) -> RemoteError:
    """Let a tracker answer a read with something else than the truth."""
    [asked] = reading.tell(Follow(STREAM))
    with pytest.raises(RemoteError) as caught:
        reading.hear(WRITER, make(asked.message))
    return caught.value


def packed(asked: ReadChain, *changes: bytes, height: int = 1, head: bytes = NET) -> ChainPage:
    return ChainPage(asked.ticket, asked.chain, asked.after, height, head, pack_page(changes, 0))


def test_a_chain_that_does_not_hold_costs_the_tracker_its_link_and_is_read_elsewhere() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2], reach=False)
    forged = created().changes[0][:-1] + b"\0"
    assert lie(reading, lambda asked: packed(asked, forged)).reason == "change-forged"
    reading.writers[STREAM] = created()
    reading.down(WRITER)
    effects = reading.up(COPIER)
    assert (COPIER, STREAM, 0) in reads(effects)
    assert Learned(STREAM, 1) in effects


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda a: packed(a, height=3), "wrong-page"),
        (lambda a: packed(a, *created().changes, height=0), "wrong-page"),
        (lambda a: packed(a, *created().changes * 2, height=2), "wrong-page"),
        (lambda a: packed(a, *created().changes), "contradiction"),
        (lambda a: packed(a, b"junk" * 30), "change-malformed"),
        (lambda a: ChainPage(a.ticket, a.chain, 0, 1, NET, b"junk"), "page-malformed"),
        (lambda a: ChainPage(a.ticket, SECOND, 0, 0, NET), "wrong-page"),
        (lambda a: ChainPage(a.ticket, STREAM, 1, 0, NET), "wrong-page"),
        (lambda a: ChainPage(a.ticket, STREAM, 1, 2, NET, SECOND_CHANGE), "wrong-page"),
        (lambda a: packed(a, *Writer(SECOND).add(CreateStream()).changes), "wrong-chain"),
        (lambda a: packed(a, *created(DeleteStream()).changes[1:], height=2), "orphan"),
    ],
)
def test_a_lying_tracker_is_found_out(make: Any, reason: str) -> None:
    reading = Reading()
    reading.start()
    assert lie(reading, make).reason == reason
    assert not reading.reader.knows(STREAM)


def test_what_held_before_the_lie_counts() -> None:
    reading = Reading()
    reading.start()
    honest = created(REVOKE)
    forged = honest.changes[1][:-1] + b"\0"
    lie(reading, lambda asked: packed(asked, honest.changes[0], forged, height=2))
    reading.writers[STREAM] = honest
    reading.down(WRITER)
    assert of(Learned, reading.up(WRITER)) == [Learned(STREAM, 2)]


def test_answers_nobody_asked_for_are_ignored() -> None:
    reading = Reading()
    reading.start()
    [asked] = reading.tell(Follow(STREAM))
    assert reading.hear(NODES[9], page_of(asked.message, created())) == []
    assert reading.hear(WRITER, ChainPage(999, STREAM, 0, 5, NET)) == []
    assert not reading.reader.knows(STREAM)


# --- Two trackers ---------------------------------------------------------------------------


def test_every_chain_is_read_from_two() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    effects = reading.follow(created())
    assert sorted(reads(effects)) == sorted([(WRITER, STREAM, 0), (COPIER, STREAM, 0)])
    assert of(Learned, effects) == [Learned(STREAM, 1)]
    doubted = reading.run(reading.reader.doubt(STREAM, reading.now))
    assert sorted(reads(doubted)) == sorted([(WRITER, STREAM, 1), (COPIER, STREAM, 1)])


def test_a_doubt_is_answered_when_both_have_answered_and_news_at_once() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    granted = created(SetPermission(ANN.node, 3))
    reading.follow(granted)
    revoked = granted.fork().add(REVOKE)
    reading.now += 1
    first, second = reading.reader.doubt(STREAM, reading.now)
    assert reading.hear(WRITER, page_of(first.message, granted)) == []
    assert reading.reader.confirmed_at(STREAM) < reading.now
    assert reading.hear(COPIER, page_of(second.message, revoked)) == [Learned(STREAM, 3)]
    assert reading.reader.confirmed_at(STREAM) == reading.now
    assert not reading.reader.permits(PART, ANN.node, reading.now)


def test_a_witness_that_does_not_answer_delays_the_answer_and_no_more() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    reading.deaf = {COPIER}
    assert of(Learned, reading.follow(created())) == []
    assert of(Learned, reading.wait(ANSWER_S)) == [Learned(STREAM, 1)]
    assert reading.reader.knows(STREAM)


def test_the_first_of_the_list_is_the_source_whoever_was_found() -> None:
    reading = Reading(Contact(COPIER, "ws://found"))
    effects = reading.start(*ENTRIES[:2])
    assert of(Hold, effects) == [Hold(COPIER, "ws://found"), Hold(WRITER, ENTRIES[0].address)]
    assert reading.reader._readers == (WRITER, COPIER)
    reading.down(WRITER)
    assert reading.reader._readers == (COPIER,)
    reading.up(WRITER)
    assert reading.reader._readers == (WRITER, COPIER)


def test_each_minute_another_tracker_is_the_witness() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    reading.follow(created())
    witnesses = {reading.reader._readers[1]}
    effects = reading.wait(1.5 * TURN_S)
    witnesses.add(reading.reader._readers[1])
    assert witnesses == {COPIER, THIRD}
    [hold] = of(Hold, effects)
    assert (hold.peer, NETWORK, 1) in reads(effects)
    assert [release.peer for release in of(Release, effects)] == list(witnesses - {hold.peer})
    assert reading.reader._readers[0] == WRITER


def test_a_witness_whose_turn_comes_again_has_to_show_the_newest_change_again() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    reading.follow(created(SetPermission(ANN.node, 1)))
    effects = reading.wait(10 * TURN_S)
    turns = [hold.peer for hold in of(Hold, effects)]
    assert len(turns) >= 8
    asked = [(to, after) for to, chain, after in reads(effects) if chain == STREAM]
    assert asked.count((COPIER, 1)) == turns.count(COPIER)
    assert asked.count((THIRD, 1)) == turns.count(THIRD)


def test_turns_do_not_keep_the_source_from_being_asked() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    reading.follow(created())
    for _ in range(20):
        assert (WRITER, STREAM, 1) in reads(reading.wait(1.26 * REFRESH_S))


def test_a_fork_on_two_trackers_gives_the_union() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    base = created(SetPermission(ANN.node, 3))
    one = base.fork().add(REVOKE)
    two = base.fork().add(SetPermission(BOB.node, 3), SetPermission(ANN.node, 7))
    reading.stories = {WRITER: {STREAM: one}, COPIER: {STREAM: two}}
    reading.follow(base)
    both = one.fork().take(*two.changes)
    assert reading.reader.history(STREAM).head == both.history.head
    assert reading.reader.version(STREAM) == 5
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    assert reading.reader.permits(PART, BOB.node, reading.now)
    # Trackers that find together again are asked from where each of them was.
    reading.stories = {}
    reading.writers[STREAM] = both
    effects = reading.run(reading.reader.doubt(STREAM, reading.now))
    assert {(WRITER, STREAM, 3), (COPIER, STREAM, 4)} <= set(reads(effects))
    assert all(reading.reader._followed[STREAM].agrees(each) for each in (WRITER, COPIER))
    assert of(Notice, reading.wait(3 * LAG_S)) == []


def test_a_tracker_whose_order_changes_while_it_is_read_is_asked_again() -> None:
    reading = Reading()
    reading.start()
    base = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(150)))
    other = created(*(SetPermission(NODES[6], 1 + at % 2) for at in range(30)))
    [asked] = reading.tell(Follow(STREAM))
    [asked] = reading.hear(WRITER, page_of(asked.message, base))
    reading.writers[STREAM] = base.take(*other.changes)
    effects = reading.run([asked])
    assert of(Learned, effects) == [Learned(STREAM, 181)]
    assert reading.reader.history(STREAM).head == base.history.head


def test_a_tracker_whose_order_always_changes_is_passed_over() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    reading.writers[STREAM] = created()
    effects = reading.run([e for e in reading.tell(Follow(STREAM)) if e.to == COPIER])
    one = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(150)))
    two = created(*(SetPermission(NODES[6], 1 + at % 2) for at in range(150)))
    for turn in range(20):
        [ticket] = reading.reader._reads._tickets or [0]
        if not ticket:
            break
        after = reading.reader._followed[STREAM].view(WRITER).after
        story = (one, two)[turn % 2]
        page = page_of(ReadChain(ticket, STREAM, after, b"" if not after else NET), story)
        effects = reading.hear(WRITER, page)
    assert not reading.reader._reads._tickets
    assert reading.reader._readers == (COPIER,)
    assert of(Learned, effects) == [Learned(STREAM, reading.reader.version(STREAM))]
