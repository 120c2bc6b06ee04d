"""Small traces, written by hand or simulated, as tables of records."""

from collections.abc import Iterable

import msgspec
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.traces import SCHEMA
from anabranch.traces import schema

RUN = "hand-made"
PART = "0x" + "1" * 40 + "/city/cars#0"
A, B, C, D = ("0x" + letter * 40 for letter in "abcd")
Row = dict[str, object]


def frame(number: int, publisher: str = A, part: str = PART) -> tuple[str, str, str, int]:
    """Name a frame."""
    return part, publisher, "00ff", number


def table_of(spark: SparkSession, records: Iterable[schema.Record], run: str = RUN) -> DataFrame:
    """Return records as rows."""
    rows = []
    for record in records:
        fields = msgspec.structs.asdict(record)
        kind = type(record).__name__.lower()
        fields |= {"run": run, "kind": kind}
        rows.append(tuple(fields.get(name) for name in SCHEMA.names))
    return spark.createDataFrame(rows, SCHEMA)


def rows_of(table: DataFrame, *leave_out: str) -> list[Row]:
    """Collect a table as dictionaries, in a fixed order."""
    rows = [row.asDict() for row in table.drop("run", *leave_out).collect()]
    return sorted(rows, key=lambda row: repr(list(row.values())))


def row_of(table: DataFrame, *leave_out: str) -> Row:
    """Collect the one row of a table."""
    (row,) = rows_of(table, *leave_out)
    return row
