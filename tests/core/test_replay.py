"""History: exactly what was selected, from whoever has it, and then what is live."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import replay as module
from anabranch.core import subscription
from anabranch.core.frames import peek
from anabranch.core.machine import Deliver, HistoryEnded, Missed, PageEnded
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import LATE as LATE_IN_LOG
from anabranch.core.messages.storage import Selection
from anabranch.core.replay import NO_STORAGE, NONSENSE
from anabranch.core.resends import DOWN, LATE
from machines import SIGNERS, START, Chain, of
from reading_world import (
    BUSY,
    DEAD,
    EMPTY,
    FORGES,
    GOOD,
    KEEPERS,
    LIARS,
    LOOPS,
    SILENT,
    Application,
    ReadingWorld,
    kind_of,
    numbers_of,
)

LONG_S = 60.0


def past(count: int, size: int = 3, chains: int = 2, before_s: float = 1000.0) -> list[bytes]:
    """Make frames of two publishers, in turn; the last is of `size` messages."""
    makers = [Chain(SIGNERS[20 + i]) for i in range(chains)]
    return [
        makers[i % chains].frame(*[b"x"] * (1 + i % size), at=START - before_s + i)
        for i in range(count)
    ]


def read(frames: list[bytes], history: Selection, page_bytes: int = 500) -> Application:
    """Read a history, and nothing live."""
    world = ReadingWorld(GOOD, page_bytes=page_bytes)
    world.keep(*frames)
    app = world.open(history=history, live=False)
    world.run(LONG_S)
    assert app.ended == [""]
    world.end()
    return app


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("page_bytes", [1, 100_000])
def test_frame_that_is_late_in_the_log_is_delivered_as_late(
    by_number: bool, page_bytes: int
) -> None:
    first, second, third = past(3, chains=1)
    world = ReadingWorld(GOOD, page_bytes=page_bytes)
    world.keep(first, third, second, marks=(0, peek(first).last + 1, LATE_IN_LOG))
    app = world.open(history=Selection(by_number=by_number), live=False)
    world.run(LONG_S)
    assert app.ended == [""]
    late = {each.head.last: each.late for each in of(Deliver, world.effects)}
    assert late == {peek(first).last: False, peek(second).last: True, peek(third).last: False}
    world.end()


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("page_bytes", [1, 500, 100_000])
def test_everything_comes_page_by_page(by_number: bool, page_bytes: int) -> None:
    frames = past(20)
    app = read(frames, Selection(by_number=by_number), page_bytes)
    assert app.numbers == numbers_of(*frames)
    assert (app.pages == 1) is (page_bytes == 100_000)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    last=st.integers(1, 40),
    whose=st.sampled_from((0, 20, 28)),
    by_number=st.booleans(),
    page_bytes=st.sampled_from((1, 500, 100_000)),
)
def test_exactly_the_last_messages_come(
    sizes: list[int], last: int, whose: int, by_number: bool, page_bytes: int
) -> None:
    makers = [Chain(SIGNERS[20 + i]) for i in range(2)]
    frames = [
        makers[i % 2].frame(*[b"x"] * size, at=START - 1000 + i) for i, size in enumerate(sizes)
    ]
    prefix = bytes(makers[0].key[:whose])
    wanted = [frame for frame in frames if peek(frame).chain.startswith(prefix)]
    selection = Selection(last=last, whose=prefix, by_number=by_number)
    assert read(frames, selection, page_bytes).numbers == numbers_of(*wanted)[-last:]


@settings(max_examples=100, deadline=None)
@given(
    start=st.integers(0, 45),
    length=st.integers(1, 45),
    page_bytes=st.sampled_from((1, 500, 100_000)),
)
def test_exactly_the_offsets_come(start: int, length: int, page_bytes: int) -> None:
    frames = past(20)
    app = read(frames, Selection(start=start, end=start + length), page_bytes)
    assert app.numbers == numbers_of(*frames)[start : start + length]


def test_the_last_before_an_end_are_counted_from_there() -> None:
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(b"a", b"b", at=START - 100 + i) for i in range(20)]
    app = read(frames, Selection(end=10, last=3))
    assert app.numbers == numbers_of(*frames)[7:10]


@pytest.mark.parametrize("whose", [0, 20])
def test_what_comes_later_is_not_among_the_last(whose: int) -> None:
    world, chain = ReadingWorld(GOOD, page_bytes=1), Chain(SIGNERS[9])
    frames = [chain.frame(b"a", b"b", at=START - 100 + i) for i in range(8)]
    world.keep(*frames[:5])
    selection = Selection(last=5, whose=bytes(chain.key[:whose]))
    app = world.open(history=selection, live=False)
    world.later(0.05, lambda: world.keep(*frames[5:]))
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames[:5])[-5:]


@settings(max_examples=100, deadline=None)
@given(first=st.integers(0, 38), count=st.integers(0, 38), by_number=st.booleans())
def test_exactly_the_numbers_come(first: int, count: int, by_number: bool) -> None:
    frames = past(20)
    numbers = numbers_of(*frames)
    after, upto = numbers[first], numbers[min(first + count, len(numbers) - 1)]
    app = read(frames, Selection(after=after, upto=upto, by_number=by_number))
    assert app.numbers == [number for number in numbers if after < number <= upto]


def test_the_next_page_is_asked_for_when_there_is_room() -> None:
    world, frames = ReadingWorld(GOOD, page_bytes=1), past(3)
    world.keep(*frames)
    world.drain_s = 5.0
    app = world.open(history=Selection())
    world.run(4.0)
    assert app.pages == 1
    assert len(world.asked_for("pages")) == 1
    assert world.held == {KEEPERS[0]}
    world.run(20.0)
    assert app.numbers == numbers_of(*frames)
    assert app.pages == 3
    kinds = [type(e) for e in world.effects if type(e) in (Deliver, PageEnded, HistoryEnded)]
    assert kinds == [Deliver, PageEnded] * 3 + [HistoryEnded]


def test_a_log_in_another_order_is_put_in_order() -> None:
    frames = past(12, chains=1)
    shuffled = [frames[i] for i in (1, 0, 3, 5, 2, 4, 11, 6, 7, 10, 8, 9)]
    for page_bytes in (1, 500, 100_000):
        assert read(shuffled, Selection(), page_bytes).numbers == numbers_of(*frames)
    app = read(shuffled, Selection(last=10), 100_000)
    assert app.numbers == sorted(numbers_of(*shuffled)[-10:])


def test_what_a_page_parts_from_its_successor_comes_late_and_not_never() -> None:
    frames = past(12, size=1, chains=1)
    shuffled = [frames[i] for i in (0, 2, 1, 3, 5, 4, 6, 7, 8, 9, 11, 10)]
    for wanted in (Selection(start=1), Selection(last=11), Selection(start=4)):
        for page_bytes in (1, 100_000):  # a frame on each page, and all on one
            app = read(shuffled, wanted, page_bytes)
            first = wanted.start or 1
            assert sorted(app.numbers) == sorted(numbers_of(*shuffled[first:]))
            assert len(set(app.numbers)) == len(app.numbers)


def test_what_the_log_lacks_is_missed_and_the_history_ends_after_that() -> None:
    frames = past(6, chains=1)
    lacking = [frame for i, frame in enumerate(frames) if i != 3]
    world = ReadingWorld(GOOD, SILENT)
    world.keep(*lacking)
    app = world.open(history=Selection(), live=False)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*lacking)
    assert app.missed() == [(peek(frames[2]).last, peek(frames[4]).first)]
    ends = [type(e) for e in world.effects if type(e) in (Deliver, Missed, HistoryEnded)]
    assert ends[-4:] == [Missed, Deliver, Deliver, HistoryEnded]


def test_a_log_that_begins_late_is_read_from_there_without_a_word() -> None:
    world, frames = ReadingWorld(GOOD), past(8, chains=1)
    world.keep(*frames[4:])
    app = world.open(history=Selection(), live=False)
    world.run(LONG_S)
    assert (app.numbers, app.missed(), app.ended) == (numbers_of(*frames[4:]), [], [""])


@pytest.mark.parametrize("kind", [DEAD, SILENT, BUSY, *LIARS])
def test_another_storage_node_goes_on_where_one_fails(kind: str) -> None:
    world, frames = ReadingWorld(GOOD, GOOD, page_bytes=500), past(30)
    world.keep(*frames)
    app = world.open(history=Selection())
    world.run(0.1)
    assert 0 < len(app.numbers) < len(numbers_of(*frames))
    asked = world.asked_for("pages")[-1][0]
    world.kinds[asked] = kind
    if kind == DEAD:
        world.cut(asked)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
    assert app.ended == [""]
    assert {node for node, _ in world.asked} == set(KEEPERS[:2])


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(DEAD, DOWN), (SILENT, LATE), (LOOPS, NONSENSE)],
)
def test_if_nobody_answers_it_ends_and_says_why(kind: str, problem: str) -> None:
    world = ReadingWorld(kind, kind)
    app = world.open(history=Selection())
    world.run((module.MAX_ROUNDS - 1) * module.ROUND_S - 0.1)
    assert app.ended == []
    world.run(LONG_S)
    assert app.ended == [problem]
    if kind != DEAD:
        asked = [node for node, _ in world.asked_for("pages")]
        assert asked.count(KEEPERS[0]) == module.MAX_ROUNDS
    frame = Chain(SIGNERS[9]).frame(at=world.now)
    world.come(frame)
    assert app.numbers == numbers_of(frame)
    world.end()


def test_without_storage_nodes_it_says_so_and_what_is_live_goes_on() -> None:
    world = ReadingWorld()
    app = world.open(history=Selection(last=5))
    assert app.ended == [NO_STORAGE]
    frame = Chain(SIGNERS[9]).frame()
    world.come(frame)
    assert app.numbers == numbers_of(frame)


def test_if_all_lie_what_is_good_is_taken() -> None:
    world, frames = ReadingWorld(GOOD, GOOD, page_bytes=500), past(20, chains=2)
    world.keep(*frames)
    world.writers.discard(SIGNERS[20].node)  # as far as we know one of the two never wrote
    app = world.open(history=Selection())
    world.run(LONG_S)
    ours = [frame for frame in frames if peek(frame).publisher == SIGNERS[21].node]
    assert app.ended == [""]
    assert app.numbers == numbers_of(*ours)


@pytest.mark.parametrize("kinds", [(GOOD, DEAD), (DEAD, GOOD), (SILENT, GOOD)])
def test_nor_do_those_who_do_not_answer_keep_it_from_us(kinds: tuple[str, ...]) -> None:
    world, frames = ReadingWorld(*kinds, page_bytes=100_000), past(20, chains=2)
    world.keep(*frames)
    world.writers.discard(SIGNERS[20].node)
    app = world.open(history=Selection())
    world.run(LONG_S)
    ours = [frame for frame in frames if peek(frame).publisher == SIGNERS[21].node]
    assert (app.ended, app.numbers) == ([""], numbers_of(*ours))


def test_one_that_forges_alone_does_not_keep_what_is_good_from_us() -> None:
    world, frames = ReadingWorld(FORGES), past(4)
    world.keep(*frames)
    app = world.open(history=Selection(last=7))
    world.run(LONG_S)
    assert (app.numbers, app.ended) == ([], [""])


def test_a_storage_node_that_hides_all_is_found_out_by_what_is_live() -> None:
    world = ReadingWorld(EMPTY, GOOD, GOOD, seed=3)
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 100 + i) for i in range(5)]
    world.keep(*frames)
    world.kinds = {KEEPERS[0]: EMPTY}
    app = world.open(history=Selection())
    world.run(1.0)
    assert (app.numbers, app.ended) == ([], [""])
    world.kinds = {KEEPERS[0]: EMPTY, KEEPERS[1]: GOOD}
    world.come(now := chain.frame(at=world.now))
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames, now)


class _Endless(ReadingWorld):
    """Its storage nodes say for ever that more follows, a little further on."""

    def page_of(self, asked: Resend) -> Resent:
        selection = asked.selection
        if self.kinds[self.asked[-1][0]] == GOOD:
            return super().page_of(asked)
        return Resent(asked.ticket, following=Selection(start=selection.start + 1), high=9)


def test_one_that_never_comes_to_an_end_is_left() -> None:
    world, frames = _Endless("endless", GOOD, seed=2), past(60, size=5)
    world.keep(*frames)
    app = world.open(history=Selection(), live=False)
    world.run(LONG_S)
    assert app.ended == [""]
    by_liar = [
        asked for node, asked in world.asked if node == KEEPERS[0] and not asked.selection.by_number
    ]
    assert len(by_liar) <= module.MAX_EMPTY_PAGES + 1


def test_a_history_longer_than_there_is_room_waits_for_its_gap(monkeypatch: Any) -> None:
    monkeypatch.setattr(subscription, "MAX_WAITING_FRAMES", 8)
    world, frames = ReadingWorld(GOOD, page_bytes=1), past(40, chains=1)
    # All of it waits for the first frame, which lies at the end of the log.
    world.keep(frames[0], *frames[2:], frames[1])
    app = world.open(history=Selection(), live=False)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
    assert app.missed() == []


def test_who_closes_in_the_middle_leaves_nothing() -> None:
    world = ReadingWorld(SILENT, GOOD, page_bytes=1)
    world.keep(*past(5))
    world.drain_s = 100.0
    world.open(history=Selection())
    world.open(2, history=Selection(last=5))
    world.run(1.0)
    world.close(1)
    world.close(2)
    world.run(LONG_S)
    world.end()
    assert {name for name, (size, _) in world.reader.sizes().items() if size} == set()
    assert of(HistoryEnded, world.effects) == []


def test_a_page_that_was_asked_for_in_vain_does_not_count_twice() -> None:
    world, frames = ReadingWorld(GOOD), past(3)
    world.keep(*frames)
    app = world.open(history=Selection())
    world.run(LONG_S)
    (asked,) = [each for each in world.asked if kind_of(each[1]) == "pages"]
    world.up.add(asked[0])
    world.hear(asked[0], world.page_of(asked[1]))
    assert app.numbers == numbers_of(*frames)
    assert of(Missed, world.effects) == []
