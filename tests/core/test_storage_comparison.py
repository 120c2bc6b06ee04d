"""What a storage node finds by comparison, and what others can and cannot do to it with that."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from anabranch.core.changes import Right
from anabranch.core.comparison_server import ComparisonServer
from anabranch.core.errors import RemoteError
from anabranch.core.frame_ranges import digest_of
from anabranch.core.frames import name, peek
from anabranch.core.ids import MAX_SKEW_S
from anabranch.core.log_standing import FIND_S
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import AskLacking, AskRanges, Control, Lacking, Lead, Ranges
from anabranch.core.messages.storage import MAX_NAMED, FrameRange
from anabranch.core.storage_comparison import (
    ANSWER_S,
    CATCH_UP_S,
    EVERY_S,
    IDLE_S,
    LATE_S,
    MAX_AGE_S,
    MAX_BACK_OFF_S,
    MAX_REPORTS,
    SOON_S,
    TICK_S,
    StoreRetention,
)
from anabranch.core.store import Adopt, NamesIn, Order, Settle
from anabranch.sim.stores import MemoryStore
from comparison_desk import MEMBER, PUBLISHERS, ComparingDesk, Member, parts_of
from machines import NODES, PART, SIGNERS, START, Chain, forged, of
from storage_desk import STRANGER

ROUND_S = 4.0  # in which a comparison is made, and another one soon after it


def made(count: int, at: float = START - 60, publisher: int = 0) -> list[bytes]:
    chain = Chain(PUBLISHERS[publisher])
    return [chain.frame(at=at + each / 100) for each in range(count)]


def with_frames(frames: Sequence[bytes], at: float = START - 50) -> Member:
    member = Member()
    member.take(frames, at)
    return member


def kinds(asked: Sequence[Control]) -> list[type]:
    return [type(ask) for ask in asked]


def asks(desk: ComparingDesk, seconds: float) -> list[Control]:
    """Return what the member is asked while it answers nothing."""
    sent = desk.wait(seconds) + desk.settle()
    return [e.message for e in of(Send, sent) if type(e.message) in (AskRanges, AskLacking)]


class Liar(Member):
    """A member that changes its answers."""

    def __init__(self, ranges: Any = None, lacking: Any = None) -> None:
        super().__init__()
        self._ranges, self._lacking = ranges, lacking

    def answer(self, sender: Any, ask: Control, now: float) -> list[Control]:
        told: list[Control] = []
        for answer in super().answer(sender, ask, now):
            change = self._ranges if type(answer) is Ranges else self._lacking
            told.append(change(answer) if change is not None else answer)
        return told


def boast(report: Ranges) -> Ranges:
    """Claim one frame more than there is."""
    ranges = tuple(
        msgspec.structs.replace(each, count=each.count + 1, digest=b"x" * 16)
        for each in report.ranges
    )
    return msgspec.structs.replace(report, ranges=ranges)


# --- What is found --------------------------------------------------------------------------


def test_frames_published_while_storage_was_away_are_stored_without_a_later_frame() -> None:
    desk, frames = ComparingDesk(), made(300)
    asked = desk.talk(with_frames(frames), ROUND_S)
    assert desk.log == frames
    assert kinds(asked)[:3] == [AskRanges, AskLacking, AskLacking]
    assert desk.machine.comparisons.counts["taken"] == 300


def test_frames_of_a_publisher_that_has_gone_come_from_whoever_has_them() -> None:
    desk = ComparingDesk()
    ours, theirs = made(10), made(10, publisher=1)
    desk.take(*ours)
    desk.settle()
    desk.talk(with_frames([*ours, *theirs]), ROUND_S)
    assert sorted(desk.log) == sorted([*ours, *theirs])


def test_frames_of_an_equal_range_between_two_that_differ_are_not_asked_for() -> None:
    desk, frames = ComparingDesk(), made(200)
    desk.take(*frames[5:-5])
    desk.settle()
    asked = desk.talk(with_frames(frames), ROUND_S)
    wanted = [(ask.low, ask.high) for ask in asked if type(ask) is AskLacking]
    middle = peek(frames[100]).last
    assert len(wanted) >= 2
    assert not any(low <= middle <= high for low, high in wanted)
    assert sorted(desk.log) == sorted(frames)


def test_where_nothing_is_lacking_no_frame_is_asked_for() -> None:
    desk, member, chain = ComparingDesk(), Member(), Chain(PUBLISHERS[0])
    for _ in range(200):
        frame = chain.frame(at=desk.now)
        member.take([frame], desk.now)
        desk.take(frame)
        asked = desk.talk(member, 0.1)
        assert set(kinds(asked)) <= {AskRanges}
    assert desk.machine.comparisons.counts["taken"] == 0


def test_frames_on_their_way_to_the_disk_are_not_asked_for() -> None:
    desk, frames = ComparingDesk(), made(20)
    desk.talk(Member(), ROUND_S)
    desk.take(*frames[:10])
    assert desk.writes  # the others wait until this is done
    desk.take(*frames[10:])
    member, effects = with_frames(frames), list[Effect]()
    while not of(Send, effects):
        effects = desk.wait(TICK_S)
    [ask] = [effect.message for effect in of(Send, effects)]
    desk.hear(MEMBER, *member.answer(NODES[0], ask, desk.now))
    assert desk.finds
    assert of(Send, desk.look()) == []
    desk.settle()
    assert desk.log == frames


def test_frames_are_fetched_from_one_node_at_a_time() -> None:
    desk, frames = ComparingDesk(size=2), made(3)
    member = with_frames(frames)
    sent = desk.wait(FIND_S + TICK_S)
    asked = {e.to: e.message for e in of(Send, sent) if type(e.message) is AskRanges}
    assert set(asked) == {MEMBER, NODES[1]}
    fetched: list[Send] = []
    for peer, ask in asked.items():
        desk.hear(peer, *member.answer(NODES[0], ask, desk.now))
        fetched += [e for e in of(Send, desk.settle()) if type(e.message) is AskLacking]
    assert [each.to for each in fetched] == [MEMBER]
    again = [e for e in of(Send, desk.wait(TICK_S)) if type(e.message) is AskRanges]
    assert [each.to for each in again] == [NODES[1]]


def test_a_frame_that_comes_twice_is_stored_once() -> None:
    desk, frames = ComparingDesk(), made(10)
    desk.talk(with_frames(frames), ROUND_S)
    desk.take(*frames)
    desk.talk(with_frames(frames), 2 * EVERY_S)
    assert desk.log == frames
    assert desk.state.held == 0


def test_only_new_frames_are_compared_later() -> None:
    desk, frames = ComparingDesk(), made(20)
    member = with_frames(frames[:10])
    desk.talk(member, ROUND_S)
    member.take(frames[10:], desk.now)
    asked = desk.talk(member, 2 * EVERY_S)
    ranges = [ask for ask in asked if type(ask) is AskRanges]
    assert all(ask.cursor > 0 for ask in ranges)
    assert [len(ask.names) // 36 for ask in asked if type(ask) is AskLacking] == [0]
    assert desk.log == frames


def test_storage_nodes_compare_with_each_other_while_there_is_no_leader() -> None:
    desk, frames = ComparingDesk(size=5), made(5)  # two of five are no majority
    for other in desk.others[1:]:
        desk.link(other, up=False)
    fellow = Member()
    fellow.take(frames, START - 50)
    effects = desk.wait(FIND_S + 2 * TICK_S)
    [ask] = [
        e.message for e in of(Send, effects) if e.to == NODES[1] and type(e.message) is AskRanges
    ]
    for _ in range(2):
        desk.hear(NODES[1], *fellow.answer(NODES[0], ask, desk.now))
        found = [e.message for e in of(Send, desk.settle()) if e.to == NODES[1]]
        if found:
            [ask] = found
    desk.settle()
    assert desk.status.primary is None
    assert desk.state.held == 5


def test_a_storage_node_answers_another_one_with_its_recent_frames() -> None:
    desk, frames = ComparingDesk(size=3), made(3)
    parts = parts_of(NODES[0], MEMBER)
    state, _ = parts.join(PART, START)
    assert state is not None
    for frame in frames:
        parts.recent.add(state.key, frame, START)
    desk.machine.attach(parts)
    desk.wait(5.0)
    [told] = of(Send, desk.hear(NODES[1], AskRanges(ticket=4, part=PART)))
    assert isinstance(told.message, Ranges)
    assert [each.count for each in told.message.ranges] == [3]
    [handed] = of(
        Send, desk.hear(NODES[1], AskLacking(ticket=5, part=PART, report=4, low=0, high=1 << 62))
    )
    assert handed.message == Lacking(ticket=5, frames=tuple(frames))
    assert of(Send, desk.hear(STRANGER, AskRanges(ticket=6, part=PART))) == []


# --- When -----------------------------------------------------------------------------------


def test_the_first_comparison_is_at_once_and_is_made_again_soon() -> None:
    desk, member = ComparingDesk(), Member()
    assert kinds(desk.talk(member, TICK_S)) == [AskRanges]
    assert kinds(desk.talk(member, SOON_S - 0.6)) == []
    assert kinds(desk.talk(member, 1.2 + TICK_S)) == [AskRanges]


def test_a_member_without_new_frames_is_asked_less_often() -> None:
    desk, member = ComparingDesk(), Member()
    desk.talk(member, 100.0)
    assert len(desk.talk(member, 10 * IDLE_S)) == pytest.approx(10, abs=1)


def test_a_process_that_was_stopped_compares_at_once() -> None:
    desk, member = ComparingDesk(), Member()
    desk.talk(member, 100.0)
    desk.now += LATE_S + TICK_S + 0.1
    assert kinds(desk.talk(member, 0.1)) == [AskRanges]


def test_a_new_leader_lets_everything_be_compared_again() -> None:
    desk, frames = ComparingDesk(size=3), made(5)
    member = with_frames(frames)
    desk.talk(member, 30.0)
    asked = desk.talk(member, 30.0)
    assert all(ask.cursor for ask in asked if type(ask) is AskRanges)
    desk.hear(NODES[1], Lead(PART, desk.status.epoch + 1, 0))
    [first, *_] = desk.talk(member, 2 * TICK_S)
    assert isinstance(first, AskRanges)
    assert first.cursor == 0


def test_a_link_that_comes_again_lets_everything_be_compared_again() -> None:
    desk, member = ComparingDesk(), with_frames(made(5))
    desk.talk(member, 30.0)
    desk.link(MEMBER, up=False)
    desk.link(MEMBER)
    [first, *_] = desk.talk(member, 2 * TICK_S)
    assert first == AskRanges(ticket=first.ticket, part=PART, cursor=0, after=first.after)


def test_a_comparison_with_an_earlier_leader_does_not_count_for_the_next_one() -> None:
    desk, frames = ComparingDesk(size=3), made(5)
    member = with_frames(frames)
    asked = asks(desk, FIND_S + 2 * TICK_S)
    ask = next(e for e in asked if type(e) is AskRanges)
    desk.hear(NODES[1], Lead(PART, desk.status.epoch + 1, 0))
    desk.wait(TICK_S)  # another comparison begins
    assert desk.hear(MEMBER, *member.answer(NODES[0], ask, desk.now)) == []
    assert not any(type(find.query) is NamesIn for find in desk.finds)


def test_a_stream_that_is_deleted_while_it_is_compared_is_compared_no_more() -> None:
    desk, member = ComparingDesk(), with_frames(made(5))
    [ask] = asks(desk, TICK_S)
    desk.registry.confirmed = desk.now + 1.0
    desk.registry.state.created = None
    desk.learn()
    desk.settle()
    assert desk.state.length == 0
    for answer in member.answer(NODES[0], ask, desk.now):
        desk.hear(MEMBER, answer)
    assert of(Send, desk.settle()) == []
    assert asks(desk, 60.0) == []


def test_a_follower_gets_the_log_of_its_leader_before_it_compares() -> None:
    desk, member = ComparingDesk(size=3), with_frames(made(5))
    desk.hear(NODES[1], Lead(PART, desk.status.epoch + 1, 5))  # its log has five messages
    desk.settle()
    assert desk.talk(member, CATCH_UP_S - 5.0) == []
    assert kinds(desk.talk(member, 10.0)) != []  # it does not come
    assert desk.state.held == 5


def test_a_stream_that_names_this_node_no_more_is_not_compared() -> None:
    desk, member = ComparingDesk(), Member()
    desk.talk(member, 5.0)
    assert desk.machine.sizes()["comparisons"][0] == 1
    desk.registry.name([1])
    desk.learn()
    assert desk.talk(member, 100.0) == []
    assert desk.machine.sizes()["comparisons"][0] == 0


# --- What is not taken ----------------------------------------------------------------------


def test_frames_of_a_publisher_without_permission_are_not_taken() -> None:
    desk, good = ComparingDesk(), made(3)
    bad = [Chain(SIGNERS[33]).frame(at=START - 60) for _ in range(3)]
    desk.talk(with_frames([*good, *bad]), ROUND_S)
    assert desk.log == good
    assert desk.machine.comparisons.counts["unpermitted"] > 0
    assert desk.registry.doubts > 0


def test_a_permission_that_comes_late_lets_the_frames_be_taken_later() -> None:
    desk, late = ComparingDesk(), [Chain(SIGNERS[33]).frame(at=START - 60)]
    member = with_frames(late)
    desk.talk(member, ROUND_S)
    assert desk.log == []
    desk.registry.let(SIGNERS[33].node, Right.PUBLISH)
    desk.talk(member, 10 * EVERY_S)
    assert desk.log == late


def test_a_removed_publisher_cannot_add_to_the_past_with_an_accomplice() -> None:
    desk = ComparingDesk()
    publisher = PUBLISHERS[0].node
    desk.registry.let(publisher, 0)
    assert desk.registry.wrote(PART.stream, publisher)
    assert not desk.registry.permits(PART, publisher, desk.now)
    backdated = made(3, at=START - 3_600)
    desk.talk(with_frames(backdated), ROUND_S)
    assert desk.log == []
    assert desk.machine.comparisons.counts["unpermitted"] == 6  # each of them twice


@pytest.mark.parametrize(
    ("age_s", "reason"), [(-MAX_SKEW_S - 600, "future"), (MAX_AGE_S + 600, "old")]
)
def test_frames_out_of_time_are_not_taken(age_s: float, reason: str) -> None:
    desk, frames = ComparingDesk(), made(3, at=START - age_s)
    liar = Liar()
    liar.take(frames, START - 50)
    ask = AskRanges(ticket=1, part=PART)
    # A liar reports old frames though they were not asked for.
    liar._ranges = lambda report: msgspec.structs.replace(
        Member.answer(liar, NODES[0], ask, desk.now)[0],
        ticket=report.ticket,
        cursor=report.cursor + 10,
    )
    desk.talk(liar, ROUND_S)
    assert desk.log == []
    assert desk.machine.comparisons.counts[reason] >= 3


def test_frames_that_are_hours_old_are_taken_from_a_member() -> None:
    desk, frames = ComparingDesk(), made(3, at=START - 86_400)
    desk.talk(with_frames(frames), ROUND_S)
    assert desk.log == frames


def test_frames_that_the_store_deleted_for_their_age_do_not_come_back() -> None:
    desk = ComparingDesk(retention=StoreRetention(keep_ms=3_600_000))
    old, new = made(3, at=START - 3_700), made(3, at=START - 3_000)
    desk.talk(with_frames([*old, *new]), ROUND_S)
    assert desk.log == new


def test_frames_that_the_store_deleted_for_their_size_do_not_come_back() -> None:
    deleted, kept = made(3, at=START - 600), made(2, at=START - 300, publisher=1)
    store, placed_ms = MemoryStore(), int((START - 299) * 1000)
    store.write([Order(PART, 1, placed_ms, tuple(kept)), Adopt(PART, 1), Settle(PART, 2)])
    log = store._parts[PART]
    log.change(start=1)
    log.log.pop(0)
    desk = ComparingDesk(store=store, retention=StoreRetention(is_size_bound=True))
    lost = made(2, at=START - 200)
    desk.talk(with_frames([*deleted, *lost]), ROUND_S)
    assert not set(deleted) & set(desk.log)
    assert set(lost) <= set(desk.log)


def test_of_one_publisher_only_so_many_bytes_are_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.core.storage_comparison.PUBLISHER_BYTES", 10_000)
    monkeypatch.setattr("anabranch.core.storage_comparison.PUBLISHER_BYTES_PER_S", 1_000)
    desk, many, others = ComparingDesk(), made(100), made(3, publisher=1)
    member = with_frames([*many, *others])
    desk.talk(member, 2.0)
    assert desk.machine.comparisons.counts["too-much"] > 0
    assert 8_000 < sum(len(frame) for frame in desk.log if frame in many) <= 12_000
    assert set(others) <= set(desk.log)
    desk.talk(member, 20 * EVERY_S)
    assert sorted(desk.log) == sorted([*many, *others])


def test_frames_for_which_there_was_no_room_are_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, frames = ComparingDesk(), made(30)
    monkeypatch.setattr("anabranch.core.storage_disk.MAX_UNSAVED_BYTES", 3_000)
    desk.talk(with_frames(frames), 20 * EVERY_S)
    assert desk.machine.dropped > 0
    assert sorted(desk.log) == sorted(frames)


# --- Members that lie -----------------------------------------------------------------------


def test_a_claim_that_is_not_honoured_costs_the_link() -> None:
    desk, liar = ComparingDesk(), Liar(ranges=boast)
    liar.take(made(3), START - 50)
    with pytest.raises(RemoteError, match="unhonoured-claim"):
        desk.talk(liar, ROUND_S)
    desk.settle()
    assert desk.log == []
    desk.take(*made(3, publisher=1))  # the log goes on
    desk.settle()
    assert len(desk.log) == 3


def test_a_member_that_hands_over_fewer_frames_than_it_claimed_loses_its_link() -> None:
    drop = lambda page: msgspec.structs.replace(page, frames=page.frames[:-1])  # noqa: E731
    desk, liar = ComparingDesk(), Liar(lacking=drop)
    liar.take(made(3), START - 50)
    with pytest.raises(RemoteError, match="unhonoured-claim"):
        desk.talk(liar, ROUND_S)


def test_a_member_that_promises_pages_without_frames_loses_its_link() -> None:
    empty = lambda page: msgspec.structs.replace(page, frames=(), more=True)  # noqa: E731
    desk, liar = ComparingDesk(), Liar(lacking=empty)
    liar.take(made(3), START - 50)
    with pytest.raises(RemoteError, match="unhonoured-claim"):
        desk.talk(liar, ROUND_S)


def test_a_forged_frame_costs_the_link() -> None:
    spoil = lambda page: msgspec.structs.replace(  # noqa: E731
        page, frames=tuple(map(forged, page.frames))
    )
    desk, liar = ComparingDesk(), Liar(lacking=spoil)
    liar.take(made(3), START - 50)
    with pytest.raises(RemoteError, match="forged"):
        desk.talk(liar, ROUND_S)
    desk.settle()
    assert desk.log == []


def test_frames_that_were_not_asked_for_cost_the_link() -> None:
    frames = made(6)
    changes: list[Any] = [
        lambda page: (*page.frames, *made(1, at=START)),  # beyond the range
        lambda page: page.frames[::-1],  # not in their order
        lambda page: (*page.frames, page.frames[-1]),  # one of them twice
        lambda page: frames[:1] * 2,
    ]
    for change in changes:
        desk = ComparingDesk()
        liar = Liar(lacking=lambda p: msgspec.structs.replace(p, frames=tuple(change(p))))  # noqa: B023
        liar.take(frames, START - 50)
        with pytest.raises(RemoteError, match="unasked-frame"):
            desk.talk(liar, ROUND_S)


def test_a_frame_that_the_storage_node_has_costs_the_link_when_it_comes_again() -> None:
    desk, frames = ComparingDesk(), made(6)
    desk.take(frames[2])
    desk.talk(Member(), 0.1)
    liar = Liar(lacking=lambda page: msgspec.structs.replace(page, frames=tuple(frames)))
    liar.take(frames, START - 50)
    with pytest.raises(RemoteError, match="unasked-frame"):
        desk.talk(liar, ROUND_S)


@pytest.mark.parametrize(
    "ranges",
    [
        (FrameRange(low=9, high=8, count=1, digest=b"x" * 16),),
        tuple(FrameRange(low=5, high=9, count=1, digest=b"x" * 16) for _ in range(2)),
        tuple(FrameRange(low=at, high=at, count=8_192, digest=b"x" * 16) for at in (1, 2)),
    ],
)
def test_ranges_that_are_none_cost_the_link(ranges: tuple[FrameRange, ...]) -> None:
    lie = lambda report: msgspec.structs.replace(report, ranges=ranges, cursor=9)  # noqa: E731
    with pytest.raises(RemoteError, match="wrong-ranges"):
        ComparingDesk().talk(Liar(ranges=lie), ROUND_S)


def test_a_report_that_does_not_go_on_costs_the_link() -> None:
    lie = lambda report: msgspec.structs.replace(report, more=True)  # noqa: E731
    with pytest.raises(RemoteError, match="wrong-ranges"):
        ComparingDesk().talk(Liar(ranges=lie), ROUND_S)


def test_a_false_digest_alone_makes_few_questions_and_fewer_with_time() -> None:
    desk, frames = ComparingDesk(), made(3)
    desk.take(*frames)
    desk.talk(Member(), 0.1)
    lie = lambda report: msgspec.structs.replace(  # noqa: E731
        report,
        ranges=(FrameRange(low=0, high=1 << 62, count=1, digest=b"x" * 16),),
        cursor=report.cursor + 1,
    )
    liar = Liar(ranges=lie, lacking=lambda page: Lacking(ticket=page.ticket))
    desk.talk(liar, 3_000.0)
    asked = desk.talk(liar, 10 * MAX_BACK_OFF_S)
    assert 8 <= kinds(asked).count(AskLacking) <= 11
    assert desk.log == frames


def test_a_member_whose_reports_do_not_end_is_asked_for_so_many_of_them() -> None:
    state = {"cursor": 1}

    def lie(report: Ranges) -> Ranges:
        state["cursor"] += 1
        return msgspec.structs.replace(report, cursor=state["cursor"], more=True)

    asked = ComparingDesk().talk(Liar(ranges=lie), 1.0)
    assert kinds(asked) == [AskRanges] * MAX_REPORTS


def test_a_member_that_does_not_answer_is_asked_less_and_less_often() -> None:
    desk = ComparingDesk()
    assert kinds(asks(desk, 30.0)) == [AskRanges] * 3, "two are repeated soon, as packets are lost"
    assert kinds(asks(desk, 70.0)) == [AskRanges] * 2
    assert kinds(asks(desk, 3_000.0)).count(AskRanges) <= 12
    assert desk.machine.sizes()["comparisons under way"][0] <= 1


def test_one_that_does_not_answer_keeps_nobody_else_from_being_compared() -> None:
    desk, frames = ComparingDesk(size=2), made(3)  # the other storage node says nothing
    desk.talk(with_frames(frames), FIND_S + ROUND_S)
    assert desk.state.held + desk.state.length == 3


def test_an_answer_that_was_not_asked_for_or_is_late_changes_nothing() -> None:
    desk, frames = ComparingDesk(), made(3)
    member = with_frames(frames)
    [ask] = asks(desk, TICK_S)
    [report] = member.answer(NODES[0], ask, desk.now)
    assert isinstance(report, Ranges)
    for other in (STRANGER, NODES[5]):
        assert desk.hear(other, report) == []
    assert desk.hear(MEMBER, msgspec.structs.replace(report, ticket=report.ticket + 1)) == []
    assert desk.hear(MEMBER, Lacking(ticket=report.ticket, frames=tuple(frames))) == []
    desk.wait(ANSWER_S + TICK_S)
    assert desk.hear(MEMBER, report) == []
    assert desk.settle() == []
    assert desk.log == []


def test_a_member_that_is_busy_is_asked_again_later() -> None:
    desk, frames = ComparingDesk(), made(3)
    busy = Liar(ranges=lambda report: Ranges(ticket=report.ticket, problem="busy"))
    busy.take(frames, START - 50)
    assert kinds(desk.talk(busy, 5.0)) == [AskRanges]
    busy._ranges = None
    desk.talk(busy, 3 * EVERY_S)
    assert desk.log == frames


def test_a_question_holds_a_bounded_number_of_names() -> None:
    desk, frames = ComparingDesk(), made(3 * MAX_NAMED // 2)
    desk.take(*frames[::2])
    desk.talk(Member(), 0.1)
    asked = desk.talk(with_frames(frames), ROUND_S)
    assert max(len(ask.names) // 36 for ask in asked if type(ask) is AskLacking) <= MAX_NAMED
    assert sorted(desk.log) == sorted(frames)


def test_the_digest_of_a_member_and_of_a_storage_node_are_the_same() -> None:
    frames = made(5)
    member = with_frames(frames)
    [report] = member.answer(NODES[0], AskRanges(ticket=1, part=PART), START)
    assert isinstance(report, Ranges)
    [found] = report.ranges
    assert found.digest == digest_of(sorted(map(name, frames)))
    assert (found.low, found.high) == (peek(frames[0]).last, peek(frames[-1]).last)
    assert isinstance(member.server, ComparisonServer)
