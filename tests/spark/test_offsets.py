"""Ranges of offsets: where they begin and end, how they are shared out and cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart
from anabranch.live.errors import HistoryLost
from anabranch.live.storage.columnar import Offsets
from anabranch.spark.offsets import (
    MAX_PIECES,
    ROWS_FOR_TWO,
    ROWS_PER_TASK,
    Span,
    begin_new,
    cut,
    merge,
    parse_part,
    resolve,
    share,
    spans_between,
)
from anabranch.spark.options import EARLIEST, LATEST, Limit

NAME = "0x" + "ab" * 20 + "/cars"
PARTS = [StreamPart(NAME, partition) for partition in range(3)]
positions = st.dictionaries(
    st.sampled_from([f"{NAME}#{n}" for n in range(20)]), st.integers(0, 10**6), min_size=1
)


class Known:
    """Logs of which everything is known: partition n has offsets from 10 n up to 100."""

    def offsets(self, part: StreamPart, timestamp_ms: int | None = None) -> Offsets:
        found = None if timestamp_ms is None else min(timestamp_ms // 2, 100)
        return Offsets(10 * part.partition, 100, found)


def places(found: dict[str, int]) -> list[int]:
    return [found[str(part)] for part in PARTS]


def test_words_stand_for_offsets() -> None:
    assert places(resolve(Limit(EARLIEST), PARTS, Known())) == [0, 10, 20]
    assert places(resolve(Limit(LATEST), PARTS, Known())) == [100, 100, 100]
    named = Limit(each={str(PARTS[0]): 5, str(PARTS[1]): EARLIEST, str(PARTS[2]): LATEST})
    assert places(resolve(named, PARTS, Known())) == [5, 10, 100]


def test_times_stand_for_offsets() -> None:
    assert places(resolve(Limit(60, is_time=True), PARTS, Known())) == [30, 30, 30]
    assert places(resolve(Limit(900, is_time=True), PARTS, Known())) == [100, 100, 100]


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_that_is_not_there_is_an_error_or_mended(offset: int) -> None:
    limit = Limit(each={str(PARTS[1]): offset})
    with pytest.raises(HistoryLost, match=f"offset {offset} .*#1 .* from 10 up to 100; set failOn"):
        resolve(limit, PARTS[1:2], Known())
    mended = resolve(limit, PARTS[1:2], Known(), must_be_there=False)
    assert mended == {str(PARTS[1]): min(max(offset, 10), 100)}


def test_every_part_needs_an_offset_and_no_other_has_one() -> None:
    with pytest.raises(LocalError, match=r"no offset is given for .*#1"):
        resolve(Limit(each={str(PARTS[0]): 5}), PARTS[:2], Known())
    with pytest.raises(LocalError, match=r"given for .*#1, which is not read"):
        resolve(Limit(each={str(PARTS[0]): 5, str(PARTS[1]): 5}), PARTS[:1], Known())


@given(positions, positions, st.integers(1, 10**6))
def test_a_share_is_fair(start: dict[str, int], sizes: dict[str, int], most: int) -> None:
    end = {name: start.get(name, 0) + size for name, size in sizes.items()}
    shared = share(start, end, most)
    taken = {name: shared[name] - start.get(name, 0) for name in end}
    total = sum(sizes.values())
    assert sum(taken.values()) == min(most, total)
    for name, size in sizes.items():
        assert 0 <= taken[name] <= size
        if total > most:
            assert abs(taken[name] - size * most / total) <= 1


def test_the_smallest_do_not_wait_for_the_largest() -> None:
    end = {f"{NAME}#0": 1, f"{NAME}#1": 1_000_000}
    assert share({}, end, 10) == {f"{NAME}#0": 1, f"{NAME}#1": 9}


@given(positions, st.none() | st.integers(1, 50))
def test_pieces_cover_everything_once(sizes: dict[str, int], least: int | None) -> None:
    spans = spans_between({}, sizes)
    pieces = cut(spans, least)
    assert all(0 < piece.size <= ROWS_PER_TASK for piece in pieces)
    for span in spans:
        mine = [piece for piece in pieces if piece.part == span.part]
        assert (mine[0].start, mine[-1].end) == (span.start, span.end)
        assert all(a.end == b.start for a, b in pairwise(mine))


@pytest.mark.parametrize(
    ("sizes", "least", "pieces"),
    [
        ([100], None, 1),
        ([ROWS_FOR_TWO], None, 2),
        ([ROWS_PER_TASK * 3], None, 3),
        ([100, 100], 6, 6),
        ([3], 10, 3),
        ([0], 10, 0),
    ],
)
def test_how_many_tasks_there_are(sizes: list[int], least: int | None, pieces: int) -> None:
    spans = [Span(part, 5, 5 + size) for part, size in zip(PARTS, sizes, strict=False)]
    assert len(cut(spans, least)) == pieces


def test_a_part_that_is_new_begins_at_0() -> None:
    found = spans_between({f"{NAME}#0": 7}, {f"{NAME}#0": 9, f"{NAME}#1": 3})
    assert found == [Span(PARTS[0], 7, 9), Span(PARTS[1], 0, 3)]


def test_a_part_that_is_new_begins_where_its_log_does() -> None:
    start, end = {f"{NAME}#0": 7}, {f"{NAME}#0": 9, f"{NAME}#2": 30}
    assert begin_new(start, end, Known()) == {f"{NAME}#0": 7, f"{NAME}#2": 20}


def test_a_storage_node_that_lies_does_not_make_tasks_without_end() -> None:
    pieces = cut([Span(PARTS[0], 0, 1 << 62), Span(PARTS[1], 0, 10)])
    assert len(pieces) <= MAX_PIECES + 2
    assert sum(piece.size for piece in pieces) == (1 << 62) + 10


def test_offsets_never_go_back() -> None:
    # The storage node that knew most is gone, and the others have yet to hear of it.
    seen = {f"{NAME}#0": 5, f"{NAME}#2": 0, f"{NAME}#3": 4}
    assert merge({f"{NAME}#0": 7, f"{NAME}#1": 2}, seen) == {
        f"{NAME}#0": 7,
        f"{NAME}#1": 2,
        f"{NAME}#3": 4,  # and not #2, of which there is nothing
    }


def test_a_checkpoint_of_something_else_is_refused() -> None:
    assert parse_part(f"{NAME}#2") == PARTS[2]
    with pytest.raises(LocalError, match="names no part of a stream"):
        parse_part("topic-0")
