"""Conditions that are looked at by storage nodes: exactly as Spark would."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from anabranch.core.ids import StreamPart
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.spark.filters import Chosen
from anabranch.spark.offsets import Span

ME, OTHER = "0x" + "ab" * 20, "0x" + "cd" * 20
SPANS = [Span(StreamPart(f"{ME}/{name}", n), 0, 100) for name in ("a", "b") for n in range(2)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    EqualTo: lambda row, value: row == value,
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
}


def chosen(*filters: Filter) -> Chosen:
    found = Chosen()
    assert found.take(filters) == []
    return found


@given(st.sampled_from(list(COMPARISONS)), st.integers(0, 60), st.integers(0, 60))
def test_offsets_are_compared(kind: type, value: int, row: int) -> None:
    found = chosen(kind(("offset",), value))
    start, end = found.offsets
    assert (start <= row < end) == COMPARISONS[kind](row, value)


@given(st.sampled_from(list(COMPARISONS)), st.integers(-3_000, 60_000), st.integers(0, 60))
def test_times_are_compared_to_the_microsecond(kind: type, value_us: int, row_ms: int) -> None:
    value = EPOCH + timedelta(microseconds=value_us)
    found = chosen(kind(("timestamp",), value))
    start, end = found.times_ms
    assert (start <= row_ms < end) == COMPARISONS[kind](row_ms * 1000, value_us)
    if found.to_ms is not None:
        assert found.to_ms >= 0


def test_conditions_add_up() -> None:
    found = chosen(
        GreaterThan(("offset",), 3), LessThan(("offset",), 9), GreaterThanOrEqual(("offset",), 2)
    )
    assert found.trim(SPANS[:1]) == [Span(SPANS[0].part, 4, 9)]


def test_streams_and_partitions_are_left_out() -> None:
    found = chosen(EqualTo(("stream",), f"{ME}/b"), In(("partition",), (1, 7)))
    assert found.trim(SPANS) == [SPANS[3]]
    assert chosen(EqualTo(("stream",), "nobody's")).trim(SPANS) == []


@pytest.mark.parametrize(
    ("filters", "publisher", "spans"),
    [
        ([EqualTo(("publisher",), ME)], ME, 4),
        ([In(("publisher",), (ME,))], ME, 4),
        ([In(("publisher",), (ME, "me"))], ME, 4),
        ([EqualTo(("publisher",), ME), EqualTo(("publisher",), OTHER)], None, 0),
        ([EqualTo(("publisher",), ME.upper())], None, 0),  # no publisher is written so
    ],
)
def test_one_publisher_is_looked_for(
    filters: list[Filter], publisher: str | None, spans: int
) -> None:
    found = chosen(*filters)
    assert (found.publisher, len(found.trim(SPANS))) == (publisher, spans)


def test_times_that_exclude_each_other_need_no_reading() -> None:
    at = EPOCH + timedelta(days=1)
    assert chosen(GreaterThan(("timestamp",), at), LessThan(("timestamp",), at)).trim(SPANS) == []


def test_what_cannot_be_looked_at_is_left_to_spark() -> None:
    left = [
        In(("publisher",), (ME, OTHER)),
        EqualTo(("value",), b"x"),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("publisher",), None),
        EqualTo(("value", "offset"), 3),
        In(("offset",), (1, 2)),
        IsNotNull(("key",)),
        GreaterThan(("partition",), 0),
    ]
    found = Chosen()
    assert found.take([*left, IsNotNull(("offset",))]) == left
    assert found.trim(SPANS) == SPANS
    assert (found.publisher, found.from_ms, found.to_ms) == (None, None, None)
    assert found.offsets == (0, MAX_NUMBER)
