"""Rows in a defined order: whatever order they come in, they become the same frames."""

import random
import zlib

import pyarrow
import pytest

from anabranch.core.errors import LocalError
from anabranch.core.waiting_drafts import FRAME_CONTENT_BYTES, FRAME_MESSAGES
from anabranch.spark import rows as task_rows
from anabranch.spark.rows import Row, arrange, cut, gather


def batches(rows: list[dict[str, object]], schema: pyarrow.Schema) -> list[pyarrow.RecordBatch]:
    half = len(rows) // 2
    parts = (rows[:half], rows[half:])
    return [pyarrow.RecordBatch.from_pylist(part, schema) for part in parts]


SCHEMA = pyarrow.schema(
    [("value", pyarrow.string()), ("key", pyarrow.binary()), ("at", pyarrow.int64())]
)


def test_the_order_in_which_rows_come_does_not_matter() -> None:
    rng = random.Random(1)
    rows: list[dict[str, object]] = [
        {"value": str(n % 7), "key": b"k%d" % (n % 3) if n % 4 else None, "at": n // 2}
        for n in range(200)
    ]
    seen = []
    for order_by in ((), ("at",)):
        arranged = []
        for _ in range(3):
            rng.shuffle(rows)
            arranged.append(arrange(batches(rows, SCHEMA), order_by, 4))
        assert arranged[0] == arranged[1] == arranged[2]
        assert sum(map(len, arranged[0].values())) == 200
        for partition, of_part in arranged[0].items():
            keyed = [row.key for row in of_part if row.key is not None]
            assert all(zlib.crc32(key) % 4 == partition for key in keyed)
        seen.append(arranged[0])
    assert seen[0] != seen[1]


def test_a_row_goes_where_it_says() -> None:
    schema = pyarrow.schema([("partition", pyarrow.int32()), ("value", pyarrow.binary())])
    rows: list[dict[str, object]] = [{"partition": 1, "value": b"b"}, {"value": b"a"}]
    assert arrange(batches(rows, schema), (), 3) == {1: [Row(b"b", None), Row(b"a", None)]}
    for bad in (-1, 3):
        with pytest.raises(LocalError, match="the stream has 0 to 2"):
            arrange(batches([{"partition": bad, "value": b"x"}], schema), (), 3)
    assert arrange([], (), 3) == {}


def test_rows_that_cannot_be_sent_are_refused() -> None:
    for row, said in (
        ({"value": None}, "a row has no value"),
        ({"value": "x" * 600_000}, "a value of 600,000 bytes"),
        ({"value": "x", "key": b"k" * 2_000}, "a key of 2,000 bytes"),
    ):
        with pytest.raises(LocalError, match=said):
            arrange(batches([row], SCHEMA), (), 1)


def test_columns_that_have_no_order_are_named() -> None:
    schema = pyarrow.schema([("value", pyarrow.string()), ("at", pyarrow.list_(pyarrow.int64()))])
    with pytest.raises(LocalError, match="name columns of simple types"):
        arrange(batches([{"value": "a", "at": [1]}, {"value": "b", "at": [0]}], schema), ("at",), 1)


def test_frames_are_cut_by_count_and_by_size() -> None:
    small = [Row(b"x", None)] * (2 * FRAME_MESSAGES + 1)
    assert cut(small) == [(0, 128), (128, 256), (256, 257)]
    large = [Row(bytes(FRAME_CONTENT_BYTES // 2), None)] * 3
    assert cut(large) == [(0, 2), (2, 3)]
    assert cut([Row(bytes(FRAME_CONTENT_BYTES * 2), b"k")] * 2) == [(0, 1), (1, 2)]
    assert cut([]) == []


def test_more_rows_than_memory_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    some: list[dict[str, object]] = [{"value": "x" * 100}] * 10
    monkeypatch.setattr(task_rows, "MAX_TASK_BYTES", 1_500)
    assert sum(batch.num_rows for batch in gather(batches(some, SCHEMA))) == 10
    with pytest.raises(LocalError, match="a task has rows of more than 1,500 bytes"):
        gather(batches(some * 2, SCHEMA))
