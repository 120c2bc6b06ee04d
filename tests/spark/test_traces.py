"""Trace files and telemetry messages become the same typed table."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow.parquet import write_table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit, when

from anabranch.core.errors import LocalError
from anabranch.spark.session import explain
from anabranch.spark.tables import runs
from anabranch.spark.traces import SCHEMA, UNREADABLE, of_kind, read_traces, records_of
from anabranch.traces.files import TraceWriter
from anabranch.traces.schema import (
    KINDS,
    Delivered,
    Dropped,
    Instruction,
    Linked,
    Noted,
    Record,
    Rtt,
    Stopped,
    Subscribed,
    Topology,
)
from spark.records import PART, A, B, frame, table_of

TRACE: list[Record] = [
    Delivered(1.5, B, *frame(77 << 20), 2, 1, 500.25),
    Dropped(1.7, B, *frame(77 << 20), "link-full"),
    Dropped(1.7, B, *frame(78 << 20), "old", A),
    Linked(0.5, A, B, True),
    Linked(0.6, A, B, False, "timeout"),
    Instruction(0.4, B, A, PART, 3, [A, B]),
    Rtt(0.5, A, B, 12.5),
    Topology(2.0, A, PART, []),
    Subscribed(0.1, A, PART),
    Noted(2.0, A, "fault"),
    Stopped(3.0, A),
]
DELIVERED = '{"kind":"delivered","at":1,"node":"n","part":"p","publisher":"q","chain":"c"'
ABSURD = (
    '{"kind":"stopped","at":NaN,"node":"a"}',
    '{"kind":"stopped","at":1700000000000,"node":"a"}',  # in milliseconds
    '{"kind":"rtt","at":1.0,"node":"a","peer":"b","rtt_ms":-20.0}',
    DELIVERED + ',"number":1,"count":1,"hops":1,"delay_ms":1e999}',
    DELIVERED + ',"number":1,"count":-1,"hops":1,"delay_ms":1.0}',
)


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TraceWriter(path) as writer:
        for record in TRACE:
            writer.write(record)
    return path


def test_both_forms_say_the_same_and_folders_hold_runs(spark: SparkSession, tmp_path: Path) -> None:
    lines = write(tmp_path / "traces" / "one run+.jsonl")
    write(tmp_path / "traces" / "deep" / "two.parquet")
    write(tmp_path / "traces" / ".hidden.parquet")
    (tmp_path / "traces" / "notes.txt").write_text("no trace")
    records = read_traces(spark, tmp_path / "traces")
    assert records.schema == SCHEMA
    expected = {run: table_of(spark, TRACE, run).collect() for run in ("one run+", "two")}
    assert sorted(map(repr, records.collect())) == sorted(
        repr(row) for rows in expected.values() for row in rows
    )
    again = tmp_path / "staged"
    records.write.parquet(str(again))
    assert {row["run"] for row in runs(read_traces(spark, again)).collect()} == {"one run+", "two"}
    records.drop("run").write.parquet(str(tmp_path / "nameless"))
    assert {row["run"] for row in read_traces(spark, tmp_path / "nameless").collect()} == {
        "nameless"
    }
    named = read_traces(spark, lines, again, run="night")
    assert [(row["run"], row["records"]) for row in runs(named).collect()] == [("night", 33)]


def test_a_kind_has_the_columns_of_its_record(spark: SparkSession) -> None:
    dropped = of_kind(table_of(spark, TRACE), "dropped")
    assert dropped.columns == ["run", *KINDS["dropped"].__struct_fields__]
    assert sorted((row["reason"], row["peer"]) for row in dropped.collect()) == [
        ("link-full", ""),
        ("old", A),
    ]
    with pytest.raises(LocalError, match=r"'drops': choose one of delivered, "):
        of_kind(table_of(spark, TRACE), "drops")


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"stopped","at":1.0',  # cut off
        "not json",
        '{"kind":"stopped","at":"yesterday","node":"a"}',
        '{"kind":"stopped","at":1.0}',  # of no node
        '{"kind":"ended","at":1.0,"node":"a"}',
        DELIVERED + ',"number":1,"count":1,"hops":1}',  # lacks its delay
        *ABSURD,
    ],
)
def test_a_line_that_is_no_record_is_named(spark: SparkSession, tmp_path: Path, line: str) -> None:
    path = tmp_path / "my trace.jsonl"
    path.write_text(f'{{"kind":"stopped","at":1.0,"node":"a"}}\n{line}\n')
    with pytest.raises(LocalError) as refused:
        read_traces(spark, path)
    complaint = str(refused.value)
    assert complaint.startswith(f"{path}: this line is no record: ")
    assert line[:10] in complaint
    with pytest.raises(PySparkException) as raised:
        read_traces(spark, path, check=False).where("kind = 'rtt'").collect()
    assert "this line is no record" in explain(raised.value)


def test_what_is_no_trace_is_said_so(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="no trace was named"):
        read_traces(spark)
    with pytest.raises(LocalError, match=r"gone\.jsonl: there is no such trace"):
        read_traces(spark, tmp_path / "gone.jsonl")
    with pytest.raises(LocalError, match=r"no file in this folder ends in \.jsonl or \.parquet"):
        read_traces(spark, tmp_path)
    (tmp_path / "trace.csv").write_text("")
    with pytest.raises(LocalError, match=r"trace\.csv: a trace's name ends in"):
        read_traces(spark, tmp_path / "trace.csv")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(LocalError, match=r"torn\.parquet"):
        read_traces(spark, tmp_path / "torn.parquet")
    spark.range(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(LocalError, match="other: no trace, for it has no column 'kind'"):
        read_traces(spark, tmp_path / "other")
    wrong = table_of(spark, TRACE).withColumn("number", lit("many"))
    wrong.write.parquet(str(tmp_path / "wrong"))
    with pytest.raises(LocalError, match="its column 'number' is string, not bigint"):
        read_traces(spark, tmp_path / "wrong")
    for column, value in {"rtt_ms": math.nan, "at": -1.0, "node": None}.items():
        absurd = table_of(spark, TRACE).withColumn(
            column,
            when(col("kind") == "rtt", lit(value).cast(SCHEMA[column].dataType)).otherwise(
                col(column)
            ),
        )
        write_table(absurd.drop("run").toArrow(), tmp_path / f"{column}.parquet")
        with pytest.raises(LocalError, match=rf"{column}\.parquet: this row is no record: .*rtt"):
            read_traces(spark, tmp_path / f"{column}.parquet")
    table_of(spark, TRACE).replace("rtt", "pings").write.parquet(str(tmp_path / "kinds"))
    with pytest.raises(LocalError, match=r"kinds/.*: no record is of kind 'pings'"):
        read_traces(spark, tmp_path / "kinds")


def test_telemetry_messages_hold_records(spark: SparkSession) -> None:
    sent = datetime(2026, 1, 2, tzinfo=UTC)
    lines = [
        '{"kind":"stopped","at":1.5,"node":"a"}\n{"kind":"linked","at":2,"node":"a","peer":"b","up":true}\n',
        '{"kind":"stopped","at":9.5,"node":"c"}\n{"kind":"stop\n',
    ]
    rows = [("0x1/ops", "0xme", sent, line.encode()) for line in lines]
    messages = spark.createDataFrame(
        rows, "stream string, publisher string, timestamp timestamp, value binary"
    )
    records = records_of(messages)
    assert records.schema == SCHEMA
    found = sorted(
        (row["kind"], row["at"], row["node"], row["reason"]) for row in records.collect()
    )
    assert found == [
        ("linked", 2.0, "a", ""),
        ("stopped", 1.5, "a", None),
        ("stopped", 9.5, "c", None),
        (UNREADABLE, sent.timestamp(), "0xme", None),
    ]
    (unreadable,) = records.where(records.kind == UNREADABLE).collect()
    assert (unreadable["run"], unreadable["detail"]) == ("0x1/ops", '{"kind":"stop')


def test_a_message_of_no_text_and_records_of_nowhen_are_unreadable(spark: SparkSession) -> None:
    sent = datetime(2026, 1, 2, tzinfo=UTC)
    soon, later = (f'{{"kind":"stopped","at":{sent.timestamp() + s},"node":"a"}}' for s in (1, 60))
    broken = b'{"kind":"stopped","at":1,"node":"\xff"}'  # but for two bytes, it would be one
    values = [b"\xff\xfe\n" + soon.encode(), broken, later.encode(), *map(str.encode, ABSURD)]
    rows = [("0x1/ops", "0xme", sent, value) for value in values]
    messages = spark.createDataFrame(
        rows, "stream string, publisher string, timestamp timestamp, value binary"
    )
    records = records_of(messages).collect()
    good = [(row["kind"], row["node"]) for row in records if row["kind"] != UNREADABLE]
    assert good == [("stopped", "a")]
    assert len(records) == 1 + 3 + len(ABSURD)
    assert {row["at"] for row in records if row["kind"] == UNREADABLE} == {sent.timestamp()}


def test_traces_of_the_same_name_are_not_one_run(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "my traces"
    for place in ("one day+/run", "two/run", "two/other"):
        write(folder / f"{place}.jsonl")
    read_traces(spark, folder / "two" / "run.jsonl").drop("run").write.parquet(
        str(folder / "three" / "run")
    )

    def names(*paths: str) -> dict[str, int]:
        table = runs(read_traces(spark, *(folder / path for path in paths)))
        return {row["run"]: row["records"] for row in table.collect()}

    of_all = {"one day+/run": 11, "two/run": 11, "two/other": 11, "three/run": 11}
    assert names("one day+", "two", "three") == of_all
    assert names("two", "two/run.jsonl") == {"run": 11, "other": 11}
    write(folder / "two" / "run.parquet")
    assert names("two") == {"run.jsonl": 11, "run.parquet": 11, "other.jsonl": 11}
