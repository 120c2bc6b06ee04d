"""Windows over time: what falls into which, in batches and on a stream."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.tables.notices import notices
from anabranch.spark.tables.windows import delay_windows, load_windows
from anabranch.spark.traces import SCHEMA
from support.waiting import limit

OF_FRAME = {"run": "r", "part": "s#0", "publisher": "p", "chain": "1", "number": 1}


def delivered(at: float, delay_ms: float, count: int = 1) -> dict[str, object]:
    more = {"kind": "delivered", "node": "b", "count": count, "hops": 1, "delay_ms": delay_ms}
    return {**OF_FRAME, **more, "at": at}


ROWS: list[dict[str, object]] = [
    *(delivered(1000.0 + i, float(i + 1), count=2) for i in range(4)),
    delivered(1012.0, 50.0),
    {**OF_FRAME, "kind": "published", "at": 1001.0, "node": "a", "count": 3, "size_bytes": 9},
    {**OF_FRAME, "kind": "sent", "at": 1001.0, "node": "a", "peer": "b", "size_bytes": 100},
    {**OF_FRAME, "kind": "duplicate", "at": 1002.0, "node": "a", "peer": "b"},
    *(
        {"run": "r", "kind": "noted", "at": at, "node": "a", "what": "w", "detail": d}
        for at, d in ((5.0, "second"), (4.0, "first"))
    ),
]


def seconds(start: datetime) -> float:
    return start.timestamp()


def summary(table: DataFrame) -> list[tuple[float, int, int, float, float, float]]:
    names = ("deliveries", "messages", "mean_ms", "p50_ms", "max_ms")
    rows = [(seconds(row["start"]), *(row[n] for n in names)) for row in table.collect()]
    return sorted(rows)


FIRST = (1000.0, 4, 8, 2.5, 2.0, 4.0)


def test_delays_and_load_fall_into_windows_of_the_nodes_clocks(spark: SparkSession) -> None:
    records = spark.createDataFrame(ROWS, SCHEMA)
    assert summary(delay_windows(records)) == [FIRST, (1010.0, 1, 1, 50.0, 50.0, 50.0)]
    load = {(row["node"], seconds(row["start"])): row for row in load_windows(records).collect()}
    a, b = load["a", 1000.0], load["b", 1010.0]
    assert (a["published"], a["sent"], a["sent_bytes"], a["duplicates"]) == (3, 1, 100, 1)
    assert (b["delivered"], b["sent"], b["sent_bytes"]) == (1, 0, 0)
    [row] = notices(records).collect()
    assert (row["times"], row["nodes"], row["detail"], row["last_at"]) == (2, 1, "first", 5.0)


def test_on_a_stream_a_window_comes_once_younger_records_have_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    # A minute later than the first window, so that it cannot change any more.
    rows = [*ROWS, delivered(1070.0, 1.0)]
    (folder / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = spark.readStream.schema(SCHEMA).json(str(folder))
    writer = delay_windows(records).writeStream.format("memory").queryName("windows")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(limit(60))
    assert summary(spark.table("windows"))[0] == FIRST


def test_a_fast_clock_does_not_close_the_windows_of_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = datetime.now(UTC).timestamp()
    first = [delivered(now - 60, 1.0), delivered(now + 300, 1.0)]
    # Spark heeds what a batch says of the time in the one after the next.
    batches = [first, [delivered(now - 5, 1.0)], [delivered(now - 4, 1.0)]]
    for index, rows in enumerate(batches):
        path = tmp_path / f"{index}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (index, index))
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    table = delay_windows(reader.json(str(tmp_path)))
    writer = table.writeStream.format("memory").queryName("fast").outputMode("append")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(limit(60))
    late = [
        s["numRowsDroppedByWatermark"] for p in query.recentProgress for s in p["stateOperators"]
    ]
    assert sum(late) == 0
