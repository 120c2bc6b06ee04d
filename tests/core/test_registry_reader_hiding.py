"""A reader whose trackers hide things: liars are found out and left, honest ones are not."""

from typing import Any

import pytest

from anabranch.core.changes import CreateStream, DeleteStream, Right, SetPermission
from anabranch.core.followed_chain import LAG_S
from anabranch.core.ids import StreamPart, show
from anabranch.core.machine import Effect, Hold, Learned, Notice, Release, Send
from anabranch.core.messages import ChainChanged
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import AGAIN_S
from anabranch.core.registry_reads import REFRESH_S
from anabranch.core.registry_sources import LEFT_S, TURN_S
from anabranch.core.rendezvous import trackers_for
from chains import COPIER, ENTRIES, OWNER, SECOND, STREAM, THIRD, WRITER, Writer, created, reads
from machines import NODES, SIGNERS, of
from reading import Reading

ANN, BOB = SIGNERS[1:3]
PART = StreamPart(STREAM, 0)
REVOKE = SetPermission(ANN.node, 0)
FOUND_OUT_S = LAG_S + AGAIN_S
HOUR_S = 3_600


def accused(effects: list[Effect]) -> list[str]:
    """Who was found out."""
    notices = [notice for notice in of(Notice, effects) if notice.kind == "stale-tracker"]
    return [notice.detail.split()[0] for notice in notices]


# --- What is hidden -------------------------------------------------------------------------


def hiding(liar: bytes, *entries: Any, **options: Any) -> tuple[Reading, Writer]:
    """Let a tracker hide from the reader that Ann was removed; the others show it."""
    reading = Reading(**options)
    reading.start(*entries)
    granted = created(SetPermission(ANN.node, 3))
    reading.follow(granted)
    reading.wait(2 * LAG_S)
    reading.stories[liar] = {STREAM: granted.fork()}
    assert reading.reader.permits(PART, ANN.node, reading.now)
    granted.add(REVOKE)
    return reading, granted


@pytest.mark.parametrize("liar", [WRITER, COPIER])
def test_a_hidden_revocation_counts_when_the_honest_tracker_is_read(liar: bytes) -> None:
    reading, granted = hiding(liar, *ENTRIES[:2])
    honest = ({WRITER, COPIER} - {liar}).pop()
    pushed = reading.hear(honest, ChainChanged(STREAM, 3, granted.history.head))
    assert of(Learned, reading.run(pushed)) == [Learned(STREAM, 3)]
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    assert accused(reading.wait(FOUND_OUT_S - 0.1)) == []
    effects = reading.wait(0.1)
    assert accused(effects) == [show(liar)]
    assert Learned(NETWORK, 2) in effects
    assert reading.reader._readers[0] == honest
    assert not reading.reader.permits(PART, ANN.node, reading.now)


def test_it_is_found_out_in_bounded_time_even_if_nobody_pushes() -> None:
    reading, _ = hiding(WRITER, *ENTRIES[:2])
    effects = reading.wait(1.25 * REFRESH_S + FOUND_OUT_S + 0.1)
    assert accused(effects) == [show(WRITER)]
    assert not reading.reader.permits(PART, ANN.node, reading.now)


def test_who_was_found_out_is_left_for_a_while_and_then_has_another_chance() -> None:
    reading, _ = hiding(WRITER, *ENTRIES)
    before = reading.reader.directory(PART).trackers
    assert before == trackers_for(PART, ENTRIES)
    reading.run(reading.reader.doubt(STREAM, reading.now))
    effects = reading.wait(FOUND_OUT_S)
    assert accused(effects) == [show(WRITER)]
    assert Release(WRITER) in effects
    assert [c.node for c in reading.reader.directory(PART).trackers][-1] == WRITER
    assert set(reading.reader.directory(PART).trackers) == set(before)
    effects = reading.wait(LEFT_S - 0.1)
    assert WRITER not in {to for to, _, _ in reads(effects)}
    assert accused(effects) == []
    del reading.stories[WRITER]
    effects = reading.wait(0.1)
    assert of(Hold, effects) == [Hold(WRITER, "ws://found")]
    assert Learned(NETWORK, 2) in effects
    assert reading.reader.directory(PART).trackers == before
    assert accused(reading.wait(2 * LEFT_S)) == []


def test_who_goes_on_hiding_is_found_out_again() -> None:
    reading, _ = hiding(WRITER, *ENTRIES)
    effects = reading.wait(3 * LEFT_S)
    assert set(accused(effects)) == {show(WRITER)}
    assert 2 <= len(accused(effects)) <= 3


def test_all_are_compared_in_time() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    granted = created(SetPermission(ANN.node, 3))
    reading.stories[THIRD] = {STREAM: granted.fork()}
    reading.follow(granted.add(REVOKE))
    effects = reading.wait(2 * 1.25 * TURN_S + FOUND_OUT_S)
    assert set(accused(effects)) == {show(THIRD)}


def test_who_hides_something_confirms_nothing() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2], confirm_within_s=HOUR_S)
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 3, granted.history.head)))
    assert reading.reader.may(STREAM, OWNER.node, Right.SUBSCRIBE, reading.now)
    reading.down(WRITER)
    reading.wait(HOUR_S)
    assert not reading.reader.may(STREAM, OWNER.node, Right.SUBSCRIBE, reading.now)
    reading.stories.clear()
    reading.wait(1.25 * REFRESH_S)
    assert reading.reader.may(STREAM, OWNER.node, Right.SUBSCRIBE, reading.now)


def test_a_tracker_cannot_tell_what_we_know_from_others() -> None:
    reading, granted = hiding(WRITER, *ENTRIES[:2])
    pushed = reading.hear(COPIER, ChainChanged(STREAM, 3, granted.history.head))
    reading.run(pushed)
    effects = reading.wait(LAG_S)
    [(to, asked)] = [(e.to, e.message) for e in effects if type(e) is Send]
    assert (to, asked.after, asked.head) == (WRITER, 2, granted.history.head_at(2))


# --- False accusations ----------------------------------------------------------------------


def test_a_slow_but_honest_replica_is_not_accused() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2])
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 3, granted.history.head)))
    effects = reading.wait(LAG_S - 0.1)
    reading.stories.clear()  # now it has caught up
    effects += reading.wait(5 * REFRESH_S)
    assert accused(effects) == []
    assert reading.reader._readers == (WRITER, COPIER)


def test_one_that_catches_up_before_it_is_asked_once_more_is_not_accused() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2])
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 3, granted.history.head)))
    effects = reading.wait(LAG_S)
    assert (COPIER, STREAM, 2) in reads(effects)
    reading.stories.clear()
    assert accused(reading.wait(5 * REFRESH_S)) == []


def test_one_that_has_caught_up_once_has_its_second_chance_again() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2])
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 3, granted.history.head)))
    reading.wait(LAG_S)  # it is suspected now
    reading.stories[COPIER] = {STREAM: granted.fork()}
    reading.wait(LAG_S)
    granted.add(SetPermission(BOB.node, 1))
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 4, granted.history.head)))
    assert accused(reading.wait(FOUND_OUT_S - 0.1)) == []
    assert accused(reading.wait(0.1)) == [show(COPIER)]


def test_a_replica_that_is_always_a_little_behind_a_busy_chain_is_not_accused() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    writer = created()
    late = writer.fork()
    reading.stories[COPIER] = {STREAM: late}
    reading.follow(writer)
    for turn in range(60):
        late.take(*writer.changes[: max(1, turn - 2)])  # three changes, so six seconds, behind
        writer.add(SetPermission(BOB.node, 1 + turn % 2))
        pushed = reading.hear(WRITER, ChainChanged(STREAM, turn + 2, writer.history.head))
        assert accused(reading.run(pushed) + reading.wait(2)) == []


def test_one_that_is_too_far_behind_a_busy_chain_is() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    writer = created()
    reading.stories[COPIER] = {STREAM: writer.fork()}
    reading.follow(writer)
    effects: list[Effect] = []
    for turn in range(10):
        writer.add(SetPermission(BOB.node, 1 + turn % 2))
        pushed = reading.hear(WRITER, ChainChanged(STREAM, turn + 2, writer.history.head))
        effects += reading.run(pushed) + reading.wait(2)
    assert accused(effects) == [show(COPIER)]


def test_a_tracker_that_has_just_come_back_has_time_to_catch_up() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2])
    reading.down(COPIER)
    reading.wait(LEFT_S)
    reading.up(COPIER)
    effects = reading.wait(LAG_S - 0.1)
    reading.stories.clear()
    assert accused(effects + reading.wait(5 * REFRESH_S)) == []
    assert reading.reader.version(STREAM) == granted.history.height


def test_one_that_has_come_back_and_hides_is_found_out_after_that_time() -> None:
    reading, _ = hiding(COPIER, *ENTRIES[:2])
    reading.down(COPIER)
    reading.wait(LEFT_S)
    reading.up(COPIER)
    assert accused(reading.wait(FOUND_OUT_S - 0.1)) == []
    assert accused(reading.wait(0.1)) == [show(COPIER)]


def test_one_that_comes_back_again_and_again_has_not() -> None:
    reading, granted = hiding(COPIER, *ENTRIES[:2])
    reading.run(reading.hear(WRITER, ChainChanged(STREAM, 3, granted.history.head)))
    effects: list[Effect] = []
    for _ in range(10):
        reading.down(COPIER)
        effects += reading.up(COPIER) + reading.wait(LAG_S / 2)
    assert accused(effects) == [show(COPIER)]


def test_while_all_are_accused_all_are_used() -> None:
    """Two trackers cannot see each other, and each has what the other lacks."""
    reading = Reading()
    reading.start(*ENTRIES[:2])
    base = created(SetPermission(ANN.node, 3))
    one, two = base.fork().add(REVOKE), base.fork().add(SetPermission(BOB.node, 1))
    reading.stories = {WRITER: {STREAM: one}, COPIER: {STREAM: two}}
    reading.follow(base)
    effects = reading.wait(2 * FOUND_OUT_S)
    assert sorted(accused(effects)) == sorted([show(WRITER), show(COPIER)])
    assert reading.reader._readers == (WRITER, COPIER)
    assert reading.reader.directory(PART).trackers == trackers_for(PART, ENTRIES[:2])
    two.add(SetPermission(NODES[7], 1))
    reading.wait(2 * REFRESH_S)
    assert reading.reader.permits(PART, NODES[7], reading.now)


def test_a_liar_that_has_others_accused_is_not_alone_with_us() -> None:
    """It shows a change that it keeps from the honest tracker, and then hides one of theirs."""
    reading = Reading()
    reading.start(*ENTRIES[:2])
    granted = created(SetPermission(ANN.node, 3))
    bait = Writer(SECOND).add(CreateStream())
    reading.stories = {COPIER: {SECOND: bait.fork()}, WRITER: {STREAM: granted.fork()}}
    reading.follow(granted)
    reading.follow(bait.add(DeleteStream()))
    assert accused(reading.wait(2 * FOUND_OUT_S)) == [show(COPIER)]
    granted.add(REVOKE)
    effects = reading.wait(1.25 * REFRESH_S)
    assert not reading.reader.permits(PART, ANN.node, reading.now)
    assert accused(effects + reading.wait(FOUND_OUT_S)) == [show(WRITER)]
