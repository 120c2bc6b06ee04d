"""The rows that a task writes: checked, in a defined order, and each in its partition."""

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from anabranch.core.errors import LocalError
from anabranch.core.message_key import join_key
from anabranch.core.messages.data import MAX_CONTENT_BYTES, MAX_KEY_BYTES
from anabranch.core.waiting_drafts import FRAME_CONTENT_BYTES, FRAME_MESSAGES

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("partition", "key", "value")
MAX_TASK_BYTES = 1 << 30  # of the rows of one task, which are put in order in memory
_TYPES = {
    "value": (BinaryType, StringType),
    "key": (BinaryType, StringType),
    "partition": (ByteType, ShortType, IntegerType, LongType),
}
_NAMES = {
    "value": "binary or string",
    "key": "binary or string",
    "partition": "an integer",
}


class Row(msgspec.Struct, frozen=True, gc=False):
    """What becomes a message."""

    value: bytes
    key: bytes | None

    @property
    def size(self) -> int:
        """Return how many bytes of a frame it takes."""
        return len(self.value) + (len(self.key) if self.key is not None else 0)


def check_columns(schema: StructType, order_by: Iterable[str]) -> None:
    """Refuse a table that cannot be written."""
    if "value" not in schema.names:
        raise LocalError(
            f"there is no column value among {', '.join(schema.names)}: the sink writes value "
            "(binary or string), and key and partition if they are there"
        )
    for name in COLUMNS:
        if name in schema.names and not isinstance(schema[name].dataType, _TYPES[name]):
            raise LocalError(
                f"the column {name} is {schema[name].dataType.simpleString()}, and must be "
                f"{_NAMES[name]}: cast it, or use to_json(struct(...))"
            )
    for name in order_by:
        if name not in schema.names:
            raise LocalError(
                f"the option orderBy names {name}, and the columns are {', '.join(schema.names)}"
            )


def gather(batches: "Iterable[pyarrow.RecordBatch]") -> "list[pyarrow.RecordBatch]":
    """Take all rows of a task, as they are to be put in order; refuse more than memory may hold."""
    found, size = [], 0
    for batch in batches:
        size += batch.nbytes
        if size > MAX_TASK_BYTES:
            raise LocalError(
                f"a task has rows of more than {MAX_TASK_BYTES:,} bytes, and puts them in order in "
                "memory: use repartition so that there are more tasks, or smaller batches"
            )
        if batch.num_rows:
            found.append(batch)
    return found


def arrange(
    batches: "Iterable[pyarrow.RecordBatch]", order_by: tuple[str, ...], partitions: int
) -> dict[int, list[Row]]:
    """Return the rows of each partition, in an order that only the rows themselves decide."""
    import pyarrow

    found = list(batches)
    if not any(batch.num_rows for batch in found):
        return {}
    table = pyarrow.Table.from_batches(found)
    names = [name for name in COLUMNS if name in table.column_names]
    try:
        # Those that are equal in all of these are equal, so that it does not matter which is first.
        table = table.sort_by([(name, "ascending") for name in (*order_by, *names)])
    except pyarrow.ArrowException as error:
        raise LocalError(
            f"rows cannot be put in order by {', '.join((*order_by, *names))} ({error}): name "
            "columns of simple types in the option orderBy"
        ) from error
    columns = [
        table[name].to_pylist() if name in names else [None] * table.num_rows for name in COLUMNS
    ]
    rows: dict[int, list[Row]] = {}
    for turn, (partition, key, value) in enumerate(zip(*columns, strict=True)):
        row = _row(key, value)
        rows.setdefault(_place(partition, row.key, turn, partitions), []).append(row)
    return rows


def cut(rows: list[Row]) -> list[tuple[int, int]]:
    """Divide rows into frames, from the first position up to the last, without it."""
    frames: list[tuple[int, int]] = []
    start = size = 0
    for at, row in enumerate(rows):
        is_full = at - start == FRAME_MESSAGES or size + row.size > FRAME_CONTENT_BYTES
        if at > start and is_full:
            frames.append((start, at))
            start, size = at, 0
        size += row.size
    return [*frames, (start, len(rows))] if rows else []


def _row(key: bytes | str | None, value: bytes | str | None) -> Row:
    if value is None:
        raise LocalError("a row has no value: leave such rows out, or give them one")
    row = Row(_bytes(value), None if key is None else _bytes(key))
    if row.key is not None and len(row.key) > MAX_KEY_BYTES:
        raise LocalError(f"a key of {len(row.key):,} bytes: at most {MAX_KEY_BYTES:,} can be sent")
    size = len(join_key(row.value, 0, row.key)[0])
    if size > MAX_CONTENT_BYTES:
        raise LocalError(
            f"a value of {len(row.value):,} bytes: at most {MAX_CONTENT_BYTES:,} can be sent, with "
            "its key; split it, or send a reference to it"
        )
    return row


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _place(partition: int | None, key: bytes | None, turn: int, partitions: int) -> int:
    """Choose a partition: the one named, else by the key as publishers do, else in turn."""
    if partition is not None:
        if not 0 <= partition < partitions:
            raise LocalError(
                f"a row is for partition {partition}: the stream has 0 to {partitions - 1}"
            )
        return partition
    return turn % partitions if key is None else zlib.crc32(key) % partitions
