"""Where a time lies in a log: held to what one finds by looking at every message."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.incoming import MAX_SKEW_S
from anabranch.core.messages.storage import Selection
from anabranch.core.store import Answer, LogQuery, Page
from anabranch.live.storage.columns import Wanted
from anabranch.live.storage.ranges import (
    MAX_SCANS,
    Moment,
    RangeReader,
    RequestError,
    find_moment,
)
from live.storage.shelf import BEGAN_MS, Shelf, Writer
from machines import PART

SKEW_MS = int(MAX_SKEW_S * 1000)

T = TypeVar("T")


def moment(shelf: Shelf, timestamp_ms: int) -> Moment:
    status = shelf.status(PART)
    assert status is not None
    return asyncio.run(find_moment(shelf.find, PART, status, timestamp_ms))


def plainly(shelf: Shelf, timestamp_ms: int) -> int:
    """Look at every message."""
    high = shelf.state().high
    answer = shelf.store.find(Page(PART, Selection(), high, 1 << 40))
    for row in answer.placed:
        assert row.offset is not None
        for offset, message in enumerate(frames.messages(row.entry.frame), row.offset):
            if message.timestamp_ms >= timestamp_ms:
                return offset
    return high


@given(
    st.lists(
        st.tuples(
            st.integers(0, SKEW_MS),  # how long after the one before it was placed
            st.integers(-SKEW_MS, SKEW_MS),  # how far ahead of that its publisher dated it
            st.integers(1, 3),  # messages
        ),
        max_size=12,
    ),
    st.integers(-SKEW_MS, 12 * SKEW_MS),
)
def test_the_first_message_of_a_time_is_found(
    placed: list[tuple[int, int, int]], later_ms: int
) -> None:
    shelf, at_ms = Shelf(), BEGAN_MS
    shelf.put([])
    for place, (wait_ms, ahead_ms, count) in enumerate(placed):
        at_ms += wait_ms
        writer = Writer(chain=place)
        contents = [b"%d" % n for n in range(count)]
        made = writer.frame(*contents, at_ms=at_ms + ahead_ms - 2 * SKEW_MS // 100, apart_ms=2000)
        shelf.put([made], at_ms)
    found = moment(shelf, BEGAN_MS + later_ms)
    assert found == Moment(plainly(shelf, BEGAN_MS + later_ms), True)


def test_a_long_log_is_halved_and_not_read_through() -> None:
    shelf, writer = Shelf(), Writer()
    count, apart_ms = 4_000, 10_000
    for n in range(count):
        at_ms = BEGAN_MS + n * apart_ms
        shelf.put([writer.frame(b"x", at_ms=at_ms)], at_ms, settle=n == count - 1)
    assert moment(shelf, BEGAN_MS + 3_000 * apart_ms) == Moment(3_000, True)
    assert len(shelf.looked) < 20


def test_of_an_encrypted_frame_the_first_message_stands_for_all() -> None:
    shelf, writer = Shelf(), Writer()
    shelf.put([writer.frame(b"a"), writer.encrypted(5, BEGAN_MS + 1), writer.frame(b"b")])
    assert moment(shelf, BEGAN_MS) == Moment(0, True)
    assert moment(shelf, BEGAN_MS + 1) == Moment(1, True)
    assert moment(shelf, BEGAN_MS + 2) == Moment(7, True)


def test_what_is_damaged_may_be_of_that_time() -> None:
    shelf, writer = Shelf(), Writer()
    made = [writer.frame(b"%d" % n, at_ms=BEGAN_MS + n) for n in range(5)]
    shelf.put(made)
    shelf.damage(made[3])
    assert moment(shelf, BEGAN_MS + 3) == Moment(0, False)


def test_a_search_that_takes_too_long_says_how_far_it_came() -> None:
    shelf = Shelf()
    shelf.put([Writer().frame(b"x")])
    asked = 0

    async def slow(query: LogQuery, make: Callable[[Answer], T]) -> T:
        """Find nothing, a step at a time, as a store does that looks only so far."""
        nonlocal asked
        asked += 1
        assert isinstance(query, Page)
        start = query.selection.start + 1
        return make(Answer(following=Selection(start, 1 << 40, after=query.selection.after)))

    class Long:
        start, high, length, held, epoch, primary = 0, 1 << 40, 1 << 40, 0, 1, None

    status: Any = Long()
    found = asyncio.run(find_moment(slow, PART, status, BEGAN_MS))
    assert found == Moment(MAX_SCANS, False)
    assert asked == MAX_SCANS + 1


def test_a_store_that_finds_too_little_is_not_believed() -> None:
    shelf, writer = Shelf(), Writer()
    shelf.put([writer.frame(b"%d" % n) for n in range(5)])

    async def forgetful(query: LogQuery, make: Callable[[Answer], T]) -> T:
        return await shelf.find(query, lambda answer: make(Answer(answer.placed[:-1])))

    reader = RangeReader(Wanted(PART, 0, 5), forgetful, shelf.status)
    with pytest.raises(RequestError) as caught:
        asyncio.run(reader.read_page())
    assert (caught.value.problem, caught.value.details) == (
        "damaged",
        {"offset": 4, "missing": [[4, 5]]},
    )


def test_a_disk_that_fails_is_said() -> None:
    shelf = Shelf()
    shelf.put([Writer().frame(b"x")])
    shelf.problem = "the disk is on fire"
    with pytest.raises(RequestError, match="on fire") as caught:
        moment(shelf, BEGAN_MS)
    assert (caught.value.status, caught.value.problem) == (503, "failing")
