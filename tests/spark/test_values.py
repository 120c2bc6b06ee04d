"""JSON into columns: many at once, and the bad ones apart."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from anabranch.core.errors import LocalError
from anabranch.spark.values import Decoder, check_type

CAR = pa.struct([("line", pa.string()), ("speed", pa.float64()), ("stops", pa.list_(pa.int32()))])
whole = st.fixed_dictionaries(
    {
        "line": st.none() | st.text(),
        "speed": st.floats(-1e6, 1e6),
        "stops": st.lists(st.integers(0, 9)),
    }
)
BAD = [b"", b" ", b"null", b"5", b"[]", b"{", b'{"speed": "fast"}', b'{"speed": 1} {"speed": 2}',
       b'{"line": "a\nb"}', b"\xff", b'{"stops": [1.5]}', b'{"line": 1}']  # fmt: skip


def decode(values: list[bytes], kind: Any = CAR) -> tuple[list[Any], dict[int, str]]:
    decoded, bad = Decoder(kind).decode(pa.array(values, pa.binary()))
    decoded.validate(full=True)
    assert decoded.type == kind
    return decoded.to_pylist(), bad


@given(st.lists(whole, max_size=20), st.sampled_from([None, 1]))
def test_objects_become_structs(cars: list[dict[str, Any]], indent: int | None) -> None:
    values = [json.dumps(car, indent=indent, ensure_ascii=False).encode() for car in cars]
    assert decode(values) == (cars, {})


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(BAD)), max_size=30))
def test_the_bad_ones_are_found_among_the_good(rows: list[tuple[bool, bytes]]) -> None:
    values = [b'{"speed": %d}' % n if good else bad for n, (good, bad) in enumerate(rows)]
    decoded, bad = decode(values)
    assert set(bad) == {place for place, (good, _) in enumerate(rows) if not good}
    for place, (good, _) in enumerate(rows):
        assert (decoded[place] or {}).get("speed") == (float(place) if good else None)
        assert (decoded[place] is None) == (not good)


def test_fields_may_be_missing_or_more() -> None:
    assert decode([b'{"more": {"x": [1]}, "speed": 3}', b"{}"]) == (
        [{"line": None, "speed": 3.0, "stops": None}, {"line": None, "speed": None, "stops": None}],
        {},
    )


def test_the_reason_says_what_does_not_fit() -> None:
    assert decode([b"{}", b"x"])[1] == {
        1: "it is not JSON (JSON is malformed: invalid character (byte 0))"
    }
    assert decode([b"[1]"])[1] == {0: "it is no JSON object"}
    assert "it does not fit the schema" in decode([b'{"speed": "x"}'])[1][0]


def test_times_dates_and_decimals() -> None:
    kind = pa.struct(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("paid", pa.decimal128(10, 2)),
            ("inner", pa.struct([("days", pa.list_(pa.date32()))])),
        ]
    )
    value = {"at": "2024-02-01T10:00:00.5Z", "day": "2024-02-29", "paid": 1.25}
    inner = {"inner": {"days": ["2024-01-01"]}}
    assert decode([json.dumps(value | inner).encode(), b'{"day": "soon"}'], kind) == (
        [
            {
                "at": datetime(2024, 2, 1, 10, 0, 0, 500_000, UTC),
                "day": date(2024, 2, 29),
                "paid": Decimal("1.25"),
                "inner": {"days": [date(2024, 1, 1)]},
            },
            None,
        ],
        {1: decode([b'{"day": "soon"}'], kind)[1][0]},
    )


def test_a_slice_of_a_batch_is_decoded_as_what_it_is() -> None:
    values = pa.array([b"bad", b'{"speed": 1}', b'{"speed": 2}', b"bad"], pa.binary()).slice(1, 2)
    decoded, bad = Decoder(CAR).decode(values)
    assert ([row["speed"] for row in decoded.to_pylist()], bad) == ([1.0, 2.0], {})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (t.MapType(t.StringType(), t.LongType()), "value.x is map<string,bigint>"),
        (t.BinaryType(), "value.x is binary"),
        (t.ArrayType(t.StructType([t.StructField("y", t.VariantType())])), "value.x\\[\\].y is"),
    ],
)
def test_types_that_are_not_decoded_are_refused(kind: t.DataType, words: str) -> None:
    with pytest.raises(LocalError, match=words):
        check_type(t.StructType([t.StructField("x", kind)]))


def test_a_field_that_must_be_there_is_refused() -> None:
    with pytest.raises(LocalError, match=r"value\.x is NOT NULL"):
        check_type(t.StructType([t.StructField("x", t.LongType(), nullable=False)]))
