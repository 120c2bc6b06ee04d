"""Publishing: numbers, batches, pauses, and one outcome for every draft."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.ids import FrameHead, chain_key, number_of, part_key
from anabranch.core.machine import Draft, Effect, Outcome
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.publishing import (
    EXPIRED,
    FRAME_CONTENT_BYTES,
    FRAME_MESSAGES,
    MAX_STRANDED_BYTES,
    MAX_STRANDED_FRAMES,
    MAX_WAITING_BYTES,
    MAX_WAITING_DRAFTS,
    NO_SUCH_TYPE,
    QUEUE_FULL,
    SENT,
    STRANDED_FOR_S,
    TOO_LARGE,
    Publishing,
    outcomes,
)
from machines import KEYS, PART, SIGNERS, START, drafts, of

ME = SIGNERS[0]
KEY, CHAIN = part_key(PART), chain_key(ME.node, 7)
FIRST = number_of(int(START * 1000), 0)


def publishing() -> Publishing:
    return Publishing(KEY, CHAIN, ME.sign)


def heads(mine: Publishing, now: float = START) -> list[FrameHead]:
    """Make every frame that may leave now."""
    made = []
    while (frame := mine.next_frame(now)) is not None:
        made.append(frames.peek(frame[0]))
    return made


def test_drafts_of_one_call_leave_in_one_signed_frame() -> None:
    mine = publishing()
    assert mine.add([Draft(b"a", 1, 5), Draft(b"b", 2, 6)]) == []
    made = mine.next_frame(START)
    assert made is not None
    frame, tickets = made
    assert tickets == [(5, FIRST), (6, FIRST + 1)]
    assert frames.peek(frame) == FrameHead(KEY, CHAIN, 0, FIRST, FIRST + 1, 2)
    assert KEYS.verify(ME.node, frames.digest(frame), frames.signature(frame))
    assert [(m.content, m.content_type) for m in frames.messages(frame)] == [(b"a", 1), (b"b", 2)]
    assert mine.next_frame(START) is None
    assert mine.wakeup_at is None


def test_each_frame_names_the_message_before_it_whatever_the_clock_does() -> None:
    mine, made = publishing(), []
    for now in (START, START, START + 1, START - 5):
        mine.add(drafts(0))
        made += heads(mine, now)
    later = number_of(int(START * 1000) + 1000, 0)
    assert [(h.previous, h.last) for h in made] == [
        *((0, FIRST), (FIRST, FIRST + 1), (FIRST + 1, later), (later, later + 1))
    ]


def test_a_frame_is_bounded_in_messages_and_in_bytes() -> None:
    mine = publishing()
    mine.add(drafts(*range(FRAME_MESSAGES + 1)))
    assert [h.count for h in heads(mine)] == [FRAME_MESSAGES, 1]
    mine.add(drafts(1, 2, 3, content=bytes(FRAME_CONTENT_BYTES // 2)))
    assert [h.count for h in heads(mine)] == [2, 1]
    mine.add([*drafts(1), *drafts(2, content=bytes(MAX_CONTENT_BYTES)), *drafts(3)])
    assert [h.count for h in heads(mine)] == [1, 1, 1]


def test_what_is_too_large_is_refused_before_it_has_a_number() -> None:
    mine = publishing()
    much = Draft(bytes(MAX_CONTENT_BYTES + 1), 0, 8)
    assert mine.add([*drafts(7), much, *drafts(9)]) == [Outcome(8, TOO_LARGE)]
    made = mine.next_frame(START)
    assert made is not None
    assert made[1] == [(7, FIRST), (9, FIRST + 1)]


@pytest.mark.parametrize(("content_type", "fits"), [(-1, 0), (0, 1), (255, 1), (256, 0)])
def test_a_content_type_that_no_frame_can_hold_is_refused(content_type: int, fits: int) -> None:
    mine = publishing()
    refused = mine.add([Draft(b"x", content_type, 8)])
    assert [o.result for o in of(Outcome, refused)] == [NO_SUCH_TYPE] * (1 - fits)
    assert len(heads(mine)) == fits


def test_during_a_pause_drafts_wait_and_then_leave_together() -> None:
    mine = publishing()
    mine.pause(0.1, START)
    assert mine.wakeup_at is None  # nothing waits
    mine.add(drafts(1))
    mine.add(drafts(2))
    assert mine.next_frame(START + 0.099) is None
    assert mine.wakeup_at == START + 0.1
    mine.pause(0.02, START + 0.05)  # a shorter pause does not end a longer one
    assert mine.wakeup_at == START + 0.1
    assert [h.count for h in heads(mine, START + 0.1)] == [2]


def test_what_waits_is_bounded_in_number_and_in_bytes() -> None:
    mine = publishing()
    mine.pause(1, START)
    assert mine.add(drafts(*range(MAX_WAITING_DRAFTS))) == []
    assert mine.add(drafts(-1, -2)) == [Outcome(-1, QUEUE_FULL), Outcome(-2, QUEUE_FULL)]
    assert len(heads(mine, START + 1)) == -(-MAX_WAITING_DRAFTS // FRAME_MESSAGES)
    assert mine.sizes()["waiting bytes"] == (0, MAX_WAITING_BYTES)
    mine.pause(1, START + 1)
    many = drafts(*range(MAX_WAITING_BYTES // MAX_CONTENT_BYTES), content=bytes(MAX_CONTENT_BYTES))
    assert mine.add(many) == []
    assert mine.add(drafts(-3)) == [Outcome(-3, QUEUE_FULL)]
    assert mine.add(drafts(-4, content=b"")) == []
    assert mine.sizes()["waiting bytes"] == (MAX_WAITING_BYTES, MAX_WAITING_BYTES)


# --- Frames without a neighbour -------------------------------------------------------------


def test_a_stranded_frame_is_handed_over_once() -> None:
    mine = publishing()
    assert not mine.has_stranded()
    assert mine.strand(b"one", [(1, 10)], START) == []
    assert mine.strand(b"two", [(2, 20)], START + 1) == []
    assert mine.has_stranded()
    assert mine.wakeup_at == START + STRANDED_FOR_S
    taken = mine.take_stranded()
    assert [(s.frame, s.tickets) for s in taken] == [(b"one", [(1, 10)]), (b"two", [(2, 20)])]
    assert (mine.take_stranded(), mine.wakeup_at) == ([], None)
    assert mine.sizes()["stranded bytes"][0] == 0


def test_a_stranded_frame_expires() -> None:
    mine = publishing()
    mine.strand(b"one", [(1, 10), (2, 11)], START)
    mine.strand(b"two", [(3, 12)], START + 1)
    assert mine.expire(START + STRANDED_FOR_S - 0.01) == []
    assert mine.expire(START + STRANDED_FOR_S) == [
        Outcome(1, EXPIRED, 10),
        Outcome(2, EXPIRED, 11),
    ]
    assert mine.wakeup_at == START + 1 + STRANDED_FOR_S


def test_stranded_frames_are_bounded_and_the_oldest_expire() -> None:
    mine = publishing()
    for number in range(MAX_STRANDED_FRAMES):
        assert mine.strand(b"x", [(number, 0)], START) == []
    assert mine.strand(b"x", [(-1, 0)], START) == [Outcome(0, EXPIRED, 0)]
    large = bytes(MAX_STRANDED_BYTES // 2)
    assert len(mine.strand(large, [(-2, 0)], START)) == 1
    assert len(mine.strand(large, [(-3, 0)], START)) == MAX_STRANDED_FRAMES - 1
    assert mine.strand(b"x", [(-4, 0)], START) == [Outcome(-2, EXPIRED, 0)]
    assert mine.sizes()["stranded frames"] == (2, MAX_STRANDED_FRAMES)
    assert mine.sizes()["stranded bytes"] == (len(large) + 1, MAX_STRANDED_BYTES)


def test_closing_accounts_for_all_that_has_not_left() -> None:
    mine = publishing()
    mine.strand(b"one", [(1, 10)], START)
    mine.pause(1, START)
    mine.add(drafts(2, 3))
    assert sorted(o.ticket for o in of(Outcome, mine.close())) == [1, 2, 3]
    assert mine.wakeup_at is None
    assert [size for size, _ in mine.sizes().values()] == [0, 0, 0, 0]
    assert mine.close() == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from([0, 1, 40_000, 600_000]), max_size=4)),
        st.tuples(st.sampled_from(["sent", "strand", "take", "pause"]), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([0.05, 1.0, 30.0])),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_draft_has_exactly_one_outcome(steps: list[tuple[str, object]]) -> None:
    mine, now, ticket = publishing(), START, 0
    effects: list[Effect] = []
    for word, what in steps:
        if word == "add":
            for size in what:  # type: ignore[attr-defined]
                ticket += 1
                effects += mine.add([Draft(bytes(size), 0, ticket)])
        elif word == "wait":
            now += what  # type: ignore[operator]
            effects += mine.expire(now)
        elif word == "pause":
            mine.pause(0.1, now)
        elif word == "take":
            for stranded in mine.take_stranded():
                effects += outcomes(stranded.tickets, SENT)
        elif (made := mine.next_frame(now)) is not None:
            frame, tickets = made
            gone = word == "sent"
            effects += outcomes(tickets, SENT) if gone else mine.strand(frame, tickets, now)
    effects += mine.close()
    assert sorted(o.ticket for o in of(Outcome, effects)) == list(range(1, ticket + 1))
