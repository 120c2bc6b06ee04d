"""Queries while they run: what went wrong is told, and so is what came too late."""

import os
import threading
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.queries import Batch, follow
from anabranch.spark.terminal import Teller
from support.waiting import limit

TIMEOUT_S = 60


def lines_of(spark: SparkSession, folder: Path, *files: str) -> DataFrame:
    """Return a stream of lines, a file in each batch."""
    folder.mkdir()
    for index, text in enumerate(files):
        (folder / f"{index}.txt").write_text(text)
        os.utime(folder / f"{index}.txt", (1_000 + index, 1_000 + index))
    return spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder))


def start(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    writer = rows.writeStream.format("noop").queryName("lines").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


@pytest.mark.parametrize(("said", "is_told"), [("broken", True), ("KeyboardInterrupt", False)])
def test_an_error_is_told_even_if_one_is_asked_to_end_at_the_same_time(
    spark: SparkSession, tmp_path: Path, said: str, is_told: bool
) -> None:
    rows = lines_of(spark, tmp_path / "lines", "a\n").select(sf.raise_error(sf.lit(said)))
    query = start(rows, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=said):
        query.awaitTermination(limit(TIMEOUT_S))
    ended = threading.Event()
    ended.set()
    if is_told:
        with pytest.raises(StreamingQueryException, match="broken"):
            follow([query], lambda batch: None, ended)
    else:
        follow([query], lambda batch: None, ended)


def test_rows_that_are_too_late_for_their_window_are_counted(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What is too late is settled by what was there a batch before.
    lines = lines_of(spark, tmp_path / "lines", "9000\n", "9001\n", "100\n9002\n")
    times = lines.select(sf.timestamp_seconds(sf.col("value").cast("long")).alias("time"))
    windows = times.withWatermark("time", "30 seconds").groupBy(sf.window("time", "10 seconds"))
    query = start(windows.count(), tmp_path / "checkpoint")
    batches: list[Batch] = []
    follow([query], batches.append, threading.Event())
    assert [(batch.rows, batch.late) for batch in batches] == [(1, 0), (1, 0), (2, 1)]
    with Teller(as_json=False) as tell:
        for batch in batches:
            tell(batch)
    assert capsys.readouterr().err.startswith("1 rows or more came too late for their windows")
