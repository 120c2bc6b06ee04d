"""What a member tells a storage node of the frames that it has, and which frames it hands over."""

from typing import cast

import msgspec
import pytest

from anabranch.core import codec
from anabranch.core.comparison_server import (
    BUSY,
    FLIGHT_S,
    MAX_AT_ONCE,
    MAX_NEW_FRAMES,
    MAX_PAGE_FRAMES,
    MAX_REPORTS,
    PER_S,
    REPORT_S,
)
from anabranch.core.errors import RemoteError
from anabranch.core.frame_ranges import digest_of
from anabranch.core.frames import name, peek
from anabranch.core.machine import Send
from anabranch.core.messages import AskLacking, AskRanges, Control, Lacking, Ranges
from anabranch.core.messages.storage import MAX_NUMBER, MAX_RANGES, FrameRange
from comparison_desk import PUBLISHERS, Member
from machines import NODES, OTHER, PART, START, Chain, of

ASKER = NODES[0]
LATER = START + FLIGHT_S


def made(count: int, step_s: float = 0.0, publisher: int = 0) -> list[bytes]:
    """Make frames of one chain."""
    chain = Chain(PUBLISHERS[publisher])
    return [chain.frame(at=START + at * step_s) for at in range(count)]


def report(member: Member, cursor: int = 0, after: int = 0, now: float = LATER) -> Ranges:
    ask = AskRanges(ticket=1, part=PART, cursor=cursor, after=after)
    [answer] = member.answer(ASKER, ask, now)
    assert codec.decode(codec.encode(answer)) == answer
    return cast(Ranges, answer)


def ask_lacking(
    names: bytes = b"", low: int = 0, high: int = MAX_NUMBER, cursor: bytes = b""
) -> AskLacking:
    return AskLacking(ticket=2, part=PART, report=1, low=low, high=high, names=names, cursor=cursor)


def lacking(member: Member, ask: AskLacking, now: float = LATER) -> Lacking:
    [answer] = member.answer(ASKER, ask, now)
    assert codec.decode(codec.encode(answer)) == answer
    return cast(Lacking, answer)


def test_a_report_covers_all_frames_that_are_no_longer_in_flight() -> None:
    member, frames = Member(), made(3)
    member.take(frames[:2], START)
    member.take(frames[2:], START + 1)
    names = [name(frame) for frame in frames]
    low, high = peek(frames[0]).last, peek(frames[1]).last
    told = report(member)
    assert told.ranges == (FrameRange(low=low, high=high, count=2, digest=digest_of(names[:2])),)
    assert not told.more
    later = report(member, cursor=told.cursor, now=LATER + 1)
    assert [each.count for each in later.ranges] == [1]
    assert later.cursor == told.cursor + 1
    assert report(member, cursor=later.cursor, now=LATER + 9) == Ranges(
        ticket=1, cursor=later.cursor
    )


@pytest.mark.parametrize("beyond", [3, MAX_NUMBER])
def test_cursor_beyond_the_newest_frame_finds_nothing(beyond: int) -> None:
    member = Member()
    member.take(made(2), START)
    assert report(member, cursor=beyond) == Ranges(ticket=1, cursor=beyond)


def test_a_frame_that_is_too_young_counts_where_it_lies_in_a_range() -> None:
    member, (first, young, last) = Member(), made(3)
    member.take([first, last], START)
    member.take([young], START + 1)
    [told] = report(member).ranges
    assert (told.count, told.digest) == (3, digest_of([name(f) for f in (first, young, last)]))


def test_frames_before_a_number_are_not_reported() -> None:
    member, frames = Member(), made(4, step_s=0.01)
    member.take(frames, START)
    told = report(member, after=peek(frames[1]).last)
    assert [(each.low, each.count) for each in told.ranges] == [(peek(frames[2]).last, 2)]


def test_reports_go_on_where_the_last_one_ended() -> None:
    member, frames = Member(), made(MAX_NEW_FRAMES + 100)
    member.take(frames, START)
    first = report(member)
    assert first.more
    assert sum(each.count for each in first.ranges) == MAX_NEW_FRAMES
    second = report(member, cursor=first.cursor)
    assert not second.more
    assert sum(each.count for each in second.ranges) == 100


def test_a_quiet_stream_has_as_many_ranges_as_fit_a_report() -> None:
    member, frames = Member(), made(MAX_RANGES + 10, step_s=60.0)
    member.take(frames, START)
    told = report(member)
    assert len(told.ranges) == MAX_RANGES
    assert told.more
    assert len(report(member, cursor=told.cursor).ranges) == 10


def test_only_the_frames_that_are_lacking_are_handed_over() -> None:
    member, frames = Member(), made(5)
    member.take(frames, START)
    report(member)
    known = name(frames[0]) + name(frames[3])
    assert lacking(member, ask_lacking(known)).frames == (frames[1], frames[2], frames[4])
    low, high = peek(frames[1]).last, peek(frames[2]).last
    assert lacking(member, ask_lacking(known, low, high)).frames == (frames[1], frames[2])


def test_many_lacking_frames_come_page_by_page() -> None:
    member, frames = Member(), made(MAX_PAGE_FRAMES + 5)
    member.take(frames, START)
    report(member)
    page = lacking(member, ask_lacking())
    assert (page.frames, page.more) == (tuple(frames[:MAX_PAGE_FRAMES]), True)
    rest = lacking(member, ask_lacking(cursor=name(page.frames[-1])))
    assert (rest.frames, rest.more) == (tuple(frames[MAX_PAGE_FRAMES:]), False)


def test_frames_that_were_reported_are_there_though_the_cache_has_dropped_them() -> None:
    member, frames = Member(), made(2)
    member.take(frames, START)
    report(member)
    state = member.parts.find(PART)
    assert state is not None
    member.parts.recent.forget(state.key)
    assert lacking(member, ask_lacking()).frames == tuple(frames)
    report(member, now=LATER + REPORT_S)
    assert lacking(member, ask_lacking(), now=LATER + REPORT_S) == Lacking(ticket=2, problem=BUSY)


def test_frames_of_a_report_that_another_one_has_replaced_are_not_handed_over() -> None:
    member, frames = Member(), made(2)
    member.take(frames, START)
    report(member)
    older = msgspec.structs.replace(ask_lacking(), report=0)
    assert lacking(member, older) == Lacking(ticket=2, problem=BUSY)
    assert lacking(member, ask_lacking()).frames == tuple(frames)


def test_a_node_that_is_no_storage_node_of_the_stream_gets_no_answer() -> None:
    member = Member(stores=lambda stream, node: node != ASKER)
    member.take(made(2), START)
    asks: list[Control] = [AskRanges(ticket=1, part=PART), ask_lacking()]
    assert [member.answer(ASKER, ask, LATER) for ask in asks] == [[], []]
    assert member.server.sizes()["storage nodes that compare"][0] == 0


def test_of_a_part_it_is_not_in_it_has_nothing() -> None:
    [answer] = Member().answer(ASKER, AskRanges(ticket=1, part=OTHER, cursor=7), LATER)
    assert answer == Ranges(ticket=1, cursor=7)


def test_a_storage_node_that_asks_too_much_is_told_to_wait() -> None:
    member = Member()
    for _ in range(int(MAX_AT_ONCE)):
        assert not report(member).problem
    assert report(member).problem == BUSY
    assert not report(member, now=LATER + 1.5 / PER_S).problem
    member.server.gone(ASKER)
    assert not report(member).problem


def test_reports_stay_ready_for_a_bounded_number_of_storage_nodes() -> None:
    member = Member()
    member.take(made(1), START)
    for place in range(MAX_REPORTS):
        member.answer(NODES[place], AskRanges(ticket=1, part=PART), LATER)
    assert member.server.sizes()["comparison reports"] == (MAX_REPORTS, MAX_REPORTS)
    ask = AskRanges(ticket=1, part=PART)
    assert member.answer(NODES[MAX_REPORTS], ask, LATER) == [Ranges(ticket=1, problem=BUSY)]
    member.server.gone(NODES[3])
    [answer] = member.answer(NODES[MAX_REPORTS], ask, LATER)
    assert cast(Ranges, answer).ranges


def test_names_that_are_none_cost_the_link() -> None:
    member = Member()
    member.take(made(1), START)
    report(member)
    with pytest.raises(RemoteError, match="frame-names"):
        member.server.ask_lacking(ASKER, ask_lacking(b"x" * 35), LATER)
    effects = member.server.ask_lacking(ASKER, ask_lacking(), LATER)
    assert len(of(Send, effects)) == 1
