"""Publishing: numbers, batches, pauses, and one outcome for every draft."""

import pytest

from anabranch.core import frames
from anabranch.core.ids import FrameHead, chain_key, number_of, part_key
from anabranch.core.machine import Draft, Outcome
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.publishing import (
    CONFIRM_S,
    EXPIRED,
    MAX_STRANDED_BYTES,
    MAX_STRANDED_FRAMES,
    SENT,
    STRANDED_FOR_S,
    UNPERMITTED,
    Publishing,
    Unconfirmed,
)
from anabranch.core.waiting_drafts import (
    FRAME_CONTENT_BYTES,
    FRAME_MESSAGES,
    MAX_WAITING_BYTES,
    MAX_WAITING_DRAFTS,
    NO_SUCH_TYPE,
    QUEUE_FULL,
    TOO_LARGE,
)
from machines import KEYS, NODES, PART, SIGNERS, START, drafts, of

ME = SIGNERS[0]
KEY, CHAIN = part_key(PART), chain_key(ME.node, 7)
FIRST = number_of(int(START * 1000), 0)


def publishing() -> Publishing:
    return Publishing(KEY, CHAIN, ME.sign)


def heads(mine: Publishing, now: float = START) -> list[FrameHead]:
    """Make every frame that may leave now, and let it arrive."""
    made = []
    while (frame := mine.next_frame(now)) is not None:
        assert frames.peek(frame.frame) == frame.head
        mine.tried(frame, True, now)
        mine.confirm(CHAIN, frame.head.last)
        made.append(frame.head)
    return made


def test_drafts_of_one_call_leave_in_one_signed_frame() -> None:
    mine = publishing()
    assert mine.waiting.add([Draft(b"a", 1, 5), Draft(b"b", 2, 6)]) == []
    made = mine.next_frame(START)
    assert made is not None
    frame = made.frame
    assert made.tickets == [(5, FIRST), (6, FIRST + 1)]
    assert frames.peek(frame) == made.head == FrameHead(KEY, CHAIN, 0, FIRST, FIRST + 1, 2)
    assert KEYS.verify(ME.node, frames.digest(frame), frames.signature(frame))
    assert [(m.content, m.content_type) for m in frames.messages(frame)] == [(b"a", 1), (b"b", 2)]
    assert mine.next_frame(START) is None
    assert mine.wakeup_at == START + STRANDED_FOR_S


def test_each_frame_names_the_message_before_it_whatever_the_clock_does() -> None:
    mine, made = publishing(), []
    for now in (START, START, START + 1, START - 5):
        mine.waiting.add(drafts(0))
        made += heads(mine, now)
    later = number_of(int(START * 1000) + 1000, 0)
    assert [(h.previous, h.last) for h in made] == [
        *((0, FIRST), (FIRST, FIRST + 1), (FIRST + 1, later), (later, later + 1))
    ]


def test_a_frame_is_bounded_in_messages_and_in_bytes() -> None:
    mine = publishing()
    mine.waiting.add(drafts(*range(FRAME_MESSAGES + 1)))
    assert [h.count for h in heads(mine)] == [FRAME_MESSAGES, 1]
    mine.waiting.add(drafts(1, 2, 3, content=bytes(FRAME_CONTENT_BYTES // 2)))
    assert [h.count for h in heads(mine)] == [2, 1]
    mine.waiting.add([*drafts(1), *drafts(2, content=bytes(MAX_CONTENT_BYTES)), *drafts(3)])
    assert [h.count for h in heads(mine)] == [1, 1, 1]


def test_what_is_too_large_is_refused_before_it_has_a_number() -> None:
    mine = publishing()
    much = Draft(bytes(MAX_CONTENT_BYTES + 1), 0, 8)
    assert mine.waiting.add([*drafts(7), much, *drafts(9)]) == [Outcome(8, TOO_LARGE)]
    made = mine.next_frame(START)
    assert made is not None
    assert made.tickets == [(7, FIRST), (9, FIRST + 1)]


@pytest.mark.parametrize(("content_type", "fits"), [(-1, 0), (0, 1), (255, 1), (256, 0)])
def test_a_content_type_that_no_frame_can_hold_is_refused(content_type: int, fits: int) -> None:
    mine = publishing()
    refused = mine.waiting.add([Draft(b"x", content_type, 8)])
    assert [o.result for o in of(Outcome, refused)] == [NO_SUCH_TYPE] * (1 - fits)
    assert len(heads(mine)) == fits


def test_during_a_pause_drafts_wait_and_then_leave_together() -> None:
    mine = publishing()
    mine.pause(0.1, START)
    assert mine.wakeup_at is None  # nothing waits
    mine.waiting.add(drafts(1))
    mine.waiting.add(drafts(2))
    assert mine.next_frame(START + 0.099) is None
    assert mine.wakeup_at == START + 0.1
    mine.pause(0.02, START + 0.05)  # a shorter pause does not end a longer one
    assert mine.wakeup_at == START + 0.1
    assert [h.count for h in heads(mine, START + 0.1)] == [2]


def test_who_keeps_asking_for_pauses_cannot_silence_us() -> None:
    mine = publishing()
    made = 0
    for step in range(100):  # a second's pause is asked for ten times a second
        now = START + step / 10
        mine.pause(1.0, now)
        mine.waiting.add(drafts(step))
        made += len(heads(mine, now))
    assert made == 9  # one frame after each pause, with all that waited


def test_what_waits_is_bounded_in_number_and_in_bytes() -> None:
    mine = publishing()
    mine.pause(1, START)
    assert mine.waiting.add(drafts(*range(MAX_WAITING_DRAFTS))) == []
    assert mine.waiting.add(drafts(-1, -2)) == [Outcome(-1, QUEUE_FULL), Outcome(-2, QUEUE_FULL)]
    assert len(heads(mine, START + 1)) == -(-MAX_WAITING_DRAFTS // FRAME_MESSAGES)
    assert mine.sizes()["waiting bytes"] == (0, MAX_WAITING_BYTES)
    mine.pause(1, START + 1)
    many = drafts(*range(MAX_WAITING_BYTES // MAX_CONTENT_BYTES), content=bytes(MAX_CONTENT_BYTES))
    assert mine.waiting.add(many) == []
    assert mine.waiting.add(drafts(-3)) == [Outcome(-3, QUEUE_FULL)]
    assert mine.waiting.add(drafts(-4, content=b"")) == []
    assert mine.sizes()["waiting bytes"] == (MAX_WAITING_BYTES, MAX_WAITING_BYTES)


# --- Frames that nobody has confirmed -------------------------------------------------------


def made(mine: Publishing, *tickets: int, now: float = START, offered: bool = True) -> Unconfirmed:
    """Make one frame of some drafts, and offer it."""
    mine.waiting.add(drafts(*tickets))
    frame = mine.next_frame(now)
    assert frame is not None
    mine.tried(frame, offered, now)
    return frame


def test_a_frame_is_sent_when_a_neighbour_has_it_and_only_then() -> None:
    mine = publishing()
    frame = made(mine, 1, 2)
    assert mine.unconfirmed() == [frame]
    assert mine.confirm(CHAIN, FIRST) == []  # the number of no frame's last message
    assert mine.confirm(CHAIN, FIRST + 1) == [Outcome(1, SENT, FIRST), Outcome(2, SENT, FIRST + 1)]
    assert mine.confirm(CHAIN, FIRST + 1) == []
    assert (mine.unconfirmed(), mine.wakeup_at) == ([], None)
    assert mine.sizes()["unconfirmed bytes"][0] == 0


def test_what_was_never_offered_cannot_be_confirmed() -> None:
    mine = publishing()
    frame = made(mine, 1, offered=False)
    assert mine.confirm(CHAIN, frame.head.last) == []
    mine.tried(frame, True, START)
    assert len(mine.confirm(CHAIN, frame.head.last)) == 1


def test_a_word_is_settled_when_nothing_waits_for_it_and_it_can_be_true() -> None:
    mine = publishing()
    one, two = made(mine, 1), made(mine, 2)
    assert not mine.has_settled(CHAIN, [one.head.last])
    mine.confirm(CHAIN, one.head.last)
    assert not mine.has_settled(CHAIN, [one.head.last])  # another frame still waits
    mine.confirm(CHAIN, two.head.last)
    assert mine.has_settled(CHAIN, [one.head.last, two.head.last])
    assert not mine.has_settled(CHAIN, [one.head.last, two.head.last + 1])  # nobody can have that
    assert not mine.has_settled(chain_key(ME.node, 8), [one.head.last])


def test_a_frame_says_nothing_of_those_before_it() -> None:
    # The neighbour that was sent the first one may have died with it.
    mine = publishing()
    one, two, three = (made(mine, ticket) for ticket in (1, 2, 3))
    assert mine.confirm(CHAIN, two.head.last) == [Outcome(2, SENT, two.head.last)]
    assert mine.unconfirmed() == [one, three]
    assert mine.confirm(CHAIN, one.head.last) == [Outcome(1, SENT, one.head.last)]


def test_without_neighbours_a_frame_waits_and_is_given_up_in_the_end() -> None:
    mine = publishing()
    one, two = made(mine, 1, 2, offered=False), made(mine, 3, now=START + 1, offered=False)
    assert mine.wakeup_at == START + STRANDED_FOR_S
    assert mine.expire(START + STRANDED_FOR_S - 0.01) == []
    assert mine.expire(START + STRANDED_FOR_S) == [
        Outcome(1, EXPIRED, one.head.first),
        Outcome(2, EXPIRED, one.head.last),
    ]
    assert mine.wakeup_at == START + 1 + STRANDED_FOR_S
    assert mine.confirm(CHAIN, one.head.last) == []
    assert mine.unconfirmed() == [two]


def test_how_long_a_frame_waits_is_the_applications_choice() -> None:
    mine = Publishing(KEY, CHAIN, ME.sign, 5.0)
    made(mine, 1)
    assert mine.expire(START + 4.9) == []
    assert [o.result for o in of(Outcome, mine.expire(START + 5))] == [EXPIRED]


def test_what_goes_unconfirmed_is_due_again_every_two_seconds() -> None:
    mine = publishing()
    mine.neighbours = (NODES[1],)
    one = made(mine, 1)
    two = made(mine, 2, now=START + 1)
    assert mine.wakeup_at == START + CONFIRM_S
    assert mine.due_again(START + CONFIRM_S - 0.01) == []
    assert mine.due_again(START + CONFIRM_S) == [one]
    mine.tried(one, True, START + CONFIRM_S)
    assert mine.wakeup_at == START + 1 + CONFIRM_S
    assert mine.due_again(START + 1 + CONFIRM_S) == [two]
    mine.tried(two, True, START + 1 + CONFIRM_S)
    assert mine.due_again(START + 2 * CONFIRM_S) == [one]


def test_many_frames_do_not_each_have_a_moment_of_their_own() -> None:
    mine, now, looks = publishing(), START, 0
    mine.neighbours = (NODES[1],)
    for ticket in range(200):
        made(mine, ticket, now=START + ticket / 100)
    while now < START + 8:
        now = mine.wakeup_at or now
        looks += 1
        for frame in mine.due_again(now):
            assert CONFIRM_S <= now - frame.tried_at <= 1.25 * CONFIRM_S
            mine.tried(frame, True, now)
    assert looks <= 4 * (8 - CONFIRM_S) / CONFIRM_S + 1


def test_nothing_is_offered_again_while_nobody_is_there_or_during_a_pause() -> None:
    mine = publishing()
    mine.neighbours = (NODES[1],)
    frame = made(mine, 1)
    mine.pause(3, START)
    assert mine.wakeup_at == START + 3
    assert mine.due_again(START + CONFIRM_S) == []
    assert mine.due_again(START + 3) == [frame]
    mine.neighbours = ()
    assert mine.due_again(START + 9) == []
    assert mine.wakeup_at == START + STRANDED_FOR_S


def test_when_too_much_is_unconfirmed_drafts_wait() -> None:
    mine = publishing()
    first, *_ = [made(mine, ticket) for ticket in range(MAX_STRANDED_FRAMES)]
    mine.waiting.add(drafts(-1))
    assert mine.full
    assert mine.next_frame(START) is None
    assert mine.wakeup_at == START + STRANDED_FOR_S  # and not at once, again and again
    assert mine.sizes()["unconfirmed frames"] == (MAX_STRANDED_FRAMES, MAX_STRANDED_FRAMES)
    mine.confirm(CHAIN, first.head.last)
    assert [h.count for h in heads(mine)] == [1]


def test_what_is_unconfirmed_is_bounded_in_bytes_too() -> None:
    mine = publishing()
    for ticket in range(2 * MAX_STRANDED_BYTES // MAX_CONTENT_BYTES):
        mine.waiting.add(drafts(ticket, content=bytes(MAX_CONTENT_BYTES)))
        mine.next_frame(START)
    size, bound = mine.sizes()["unconfirmed bytes"]
    assert bound - 2 * MAX_CONTENT_BYTES < size <= bound == MAX_STRANDED_BYTES
    assert mine.waiting.count


def test_closing_accounts_for_all_that_is_not_confirmed() -> None:
    mine = publishing()
    made(mine, 1)
    mine.pause(1, START)
    mine.waiting.add(drafts(2, 3))
    closed = of(Outcome, mine.close("no-such-stream"))
    assert [(o.ticket, o.result) for o in closed] == [(n, "no-such-stream") for n in (1, 2, 3)]
    assert mine.wakeup_at is None
    assert {size for size, _ in mine.sizes().values()} == {0}
    assert mine.close() == []


def test_in_doubt_whether_we_may_publish_drafts_wait_for_a_while() -> None:
    mine = publishing()
    mine.doubted_until = START + 2
    mine.waiting.add(drafts(1, 2))
    assert mine.next_frame(START) is None
    assert mine.wakeup_at == START + 2
    assert mine.expire(START + 1.9) == []
    assert mine.expire(START + 2) == [Outcome(1, UNPERMITTED), Outcome(2, UNPERMITTED)]
    mine.waiting.add(drafts(3))
    assert [h.count for h in heads(mine, START + 2)] == [1]
