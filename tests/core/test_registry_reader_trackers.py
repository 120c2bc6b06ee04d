"""A reader and its trackers: liars are found out, and somebody else is asked."""

from typing import Any

import pytest

from anabranch.core.changes import (
    CreateStream,
    DeleteStream,
    SetPermission,
    pack_page,
)
from anabranch.core.errors import RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Follow,
    Hold,
    Learned,
    Release,
)
from anabranch.core.messages import (
    ChainPage,
    Contact,
    ReadChain,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_reader import (
    ANSWER_S,
    NO_GENESIS_S,
)
from anabranch.core.registry_sources import SLOW_S
from chains import (
    COPIER,
    ENTRIES,
    NET,
    SECOND,
    STREAM,
    THIRD,
    WRITER,
    Reading,
    Writer,
    created,
    page_of,
    reads,
)
from machines import NODES, SIGNERS, START, of

ANN = SIGNERS[1]
PART = StreamPart(STREAM, 0)


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
    reading.start(*ENTRIES[:2])
    forged = created().changes[0][:-1] + b"\0"
    assert lie(reading, lambda asked: packed(asked, forged)).reason == "change-forged"
    effects = reading.link(WRITER, False)
    assert effects == [Hold(COPIER, ENTRIES[1].address)]
    effects = reading.link(COPIER)
    assert (COPIER, STREAM, 0) in reads(effects)
    reading.writers[STREAM] = created()
    assert Learned(STREAM, 1) in reading.serve(effects)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda a: packed(a, height=3), "wrong-page"),
        (lambda a: packed(a, *created().changes, height=0), "wrong-page"),
        (lambda a: packed(a, *created().changes), "contradiction"),
        (lambda a: packed(a, b"junk" * 30), "change-malformed"),
        (lambda a: ChainPage(a.ticket, a.chain, 0, 1, NET, b"junk"), "page-malformed"),
        (lambda a: ChainPage(a.ticket, SECOND, 0, 0, NET), "wrong-page"),
        (lambda a: ChainPage(a.ticket, STREAM, 1, 0, NET), "wrong-page"),
        (lambda a: packed(a, *Writer(SECOND).add(CreateStream()).changes), "wrong-chain"),
        (lambda a: packed(a, *created(DeleteStream()).changes[1:], height=2), "stale"),
    ],
)
def test_a_lying_tracker_is_found_out(make: Any, reason: str) -> None:
    reading = Reading()
    reading.start()
    assert lie(reading, make).reason == reason
    assert not reading.reader.knows(STREAM)


def test_another_history_than_ours_is_a_contradiction() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created(SetPermission(ANN.node, 1)))
    other = created(SetPermission(ANN.node, 3))
    [asked] = reading.reader.doubt(STREAM, reading.now)
    with pytest.raises(RemoteError, match="contradiction"):
        reading.hear(WRITER, page_of(asked.message, other))
    assert reading.reader.stream(STREAM).permissions[ANN.node].rights == 1


def test_a_tracker_that_is_behind_is_not_at_fault_and_takes_nothing_away() -> None:
    reading = Reading()
    reading.start()
    reading.follow(created(SetPermission(ANN.node, 1)))
    [asked] = reading.reader.doubt(STREAM, reading.now)
    assert reading.hear(WRITER, page_of(asked.message, created())) == [Learned(STREAM, 2)]
    assert reading.reader.state(STREAM).height == 2


def test_answers_nobody_asked_for_are_ignored() -> None:
    reading = Reading()
    reading.start()
    [asked] = reading.tell(Follow(STREAM))
    assert reading.hear(NODES[9], page_of(asked.message, created())) == []
    assert reading.hear(WRITER, ChainPage(999, STREAM, 0, 5, NET)) == []
    assert not reading.reader.knows(STREAM)


# --- Whom to ask ----------------------------------------------------------------------------


def test_the_writer_is_asked_once_it_is_known() -> None:
    reading = Reading(Contact(COPIER, "ws://found"))
    effects = reading.start(*ENTRIES)
    assert of(Hold, effects) == [Hold(COPIER, "ws://found"), Hold(WRITER, ENTRIES[0].address)]
    assert reading.tell(Follow(STREAM)) == []  # the copier may be behind: the writer is dialled
    effects = reading.link(WRITER)
    assert effects[0] == Release(COPIER)
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 2), (WRITER, STREAM, 0)])


def test_while_the_writer_is_gone_a_stand_in_is_asked() -> None:
    reading = Reading()
    reading.start(*ENTRIES)
    reading.follow(created())
    assert reading.link(WRITER, False) == [Hold(COPIER, ENTRIES[1].address)]
    assert reading.link(COPIER, False) == [Release(COPIER), Hold(THIRD, ENTRIES[2].address)]
    effects = reading.link(THIRD)
    assert {to for to, _, _ in reads(effects)} == {THIRD}
    reading.serve(effects)
    effects = reading.link(WRITER)
    assert effects[0] == Release(THIRD)
    assert {to for to, _, _ in reads(effects)} == {WRITER}


def test_a_tracker_that_does_not_answer_is_passed_over_for_a_while() -> None:
    reading = Reading()
    reading.start(*ENTRIES[:2])
    reading.writers[STREAM] = created()
    reading.deaf = {WRITER}
    reading.tell(Follow(STREAM))
    effects = reading.wait(ANSWER_S)
    assert of(Hold, effects) == [Hold(COPIER, ENTRIES[1].address)]
    assert reads(effects) == [(WRITER, STREAM, 0)]  # until the other is reached
    effects = reading.answer(reading.link(COPIER))
    assert sorted(reads(effects)) == sorted([(COPIER, NETWORK, 2), (COPIER, STREAM, 0)])
    assert of(Learned, effects) == [Learned(STREAM, 1)]
    reading.deaf = set()
    assert of(Release, reading.wait(SLOW_S - 0.1)) == []
    effects = reading.wait(0.1)
    assert of(Release, effects) == [Release(COPIER)]
    assert sorted(reads(effects)) == sorted([(WRITER, NETWORK, 2), (WRITER, STREAM, 1)])


def test_a_tracker_that_does_not_know_the_network_yet_is_asked_again() -> None:
    reading = Reading()
    reading.reader.start(START)
    [asked] = reading.link(WRITER)
    empty = ChainPage(asked.message.ticket, NETWORK, 0, 0, NET)
    assert reading.hear(WRITER, empty) == []
    assert not reading.reader.knows(NETWORK)
    assert of(Learned, reading.wait(NO_GENESIS_S)) == [Learned(NETWORK, 1)]
