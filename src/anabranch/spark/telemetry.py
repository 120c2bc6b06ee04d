"""Traces and telemetry into tables, once or for as long as a network runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from anabranch.core.errors import LocalError
from anabranch.spark import tables
from anabranch.spark.places import ADDRESS, Job, claim, inside, make_folder
from anabranch.spark.queries import trigger_of
from anabranch.spark.session import register
from anabranch.spark.tables.notices import notices
from anabranch.spark.tables.windows import delay_windows, load_windows
from anabranch.spark.traces import SCHEMA, read_traces, records_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Progress = Callable[[str, float], None]  # what is done now, and how far all is

WINDOWS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "delay_windows": delay_windows,
    "load_windows": load_windows,
}
TABLES: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    **tables.TABLES,
    **WINDOWS,
    "notices": notices,
}
RECORDS = "records"  # the folder of the records themselves, beside those of the tables
LIVE = "live"  # the folder of the windows that a continuous job has finished so far
CHECKPOINT = "_checkpoint"
CONTINUOUS_TRIGGER = "5 seconds"


def read_records(spark: SparkSession, traces: Sequence[str], run: str | None) -> DataFrame:
    """Read traces; a line that is no record is found when they are staged."""
    return read_traces(spark, *traces, run=run, check=False)


def read_stream(spark: SparkSession, options: Mapping[str, str], run: str | None) -> DataFrame:
    """Read all records of a telemetry stream that are stored."""
    return records_of(spark.read.format("anabranch").options(**options).load(), run)


def are_columns(traces: Sequence[str]) -> bool:
    """Tell whether traces are Parquet all, of which each table reads only its columns anyway."""
    return all(
        trace.endswith(".parquet")
        or (Path(trace).is_dir() and not any(Path(trace).rglob("*.jsonl")))
        for trace in traces
    )


def stage(records: DataFrame, folder: str) -> DataFrame:
    """Write records to Parquet and read them back: a dozen tables each read only their columns."""
    place = inside(folder, RECORDS)
    records.write.mode("overwrite").parquet(place)
    return records.sparkSession.read.schema(SCHEMA).parquet(place)


def write_tables(records: DataFrame, out: str, progress: Progress) -> None:
    """Write every table into a folder of its own."""
    for index, (name, table) in enumerate(TABLES.items()):
        progress(name, index / len(TABLES))
        table(records).coalesce(1).write.mode("overwrite").parquet(inside(out, name))


def holds_tables(place: str) -> bool:
    """Tell whether a folder is one that `write_tables` has written to."""
    return not ADDRESS.match(place) and all((Path(place) / name).is_dir() for name in TABLES)


def read_tables(spark: SparkSession, place: str) -> dict[str, DataFrame]:
    """Read the tables of such a folder."""
    return {name: spark.read.parquet(inside(place, name)) for name in TABLES}


# --- For as long as a network runs ----------------------------------------------------------


def check_continuous(stream: str, out: str) -> None:
    """Refuse what cannot be done before Spark is started for it; the checkpoint is ours after."""
    make_folder(out)
    job = Job("telemetry", (stream,), out, "parquet")
    tables = {place: inside(out, CHECKPOINT, name) for name, place in live_places(out).items()}
    claim(inside(out, CHECKPOINT), job, tables)


def live_places(out: str) -> dict[str, str]:
    """Return where the queries of a continuous job write, by their names."""
    return {RECORDS: inside(out, RECORDS)} | {name: inside(out, LIVE, name) for name in WINDOWS}


def start_continuous(
    spark: SparkSession,
    options: Mapping[str, str],
    out: str,
    available_now: bool = False,
    trigger: str | None = None,
) -> "list[StreamingQuery]":
    """Begin to write the records of a telemetry stream, and the windows as they are finished."""
    when = trigger_of(available_now, trigger or CONTINUOUS_TRIGGER)
    places = live_places(out)
    frames = {RECORDS: lambda records: records, **WINDOWS}
    started = []
    for name, table in frames.items():
        register(spark)  # so that none of them fails while the next one starts
        messages = spark.readStream.format("anabranch").options(**options).load()
        writer = table(records_of(messages)).writeStream.queryName(name).trigger(**when)
        writer = writer.option("checkpointLocation", inside(out, CHECKPOINT, name))
        started.append(writer.format("parquet").option("compression", "zstd").start(places[name]))
    return started


def finish_continuous(spark: SparkSession, out: str, progress: Progress) -> None:
    """Make all tables anew from the records: complete, with the windows that were still open."""
    records = spark.read.schema(SCHEMA).parquet(inside(out, RECORDS))
    if records.isEmpty():
        raise LocalError("the telemetry stream holds no records yet: there are no tables to make")
    write_tables(records, out, progress)
