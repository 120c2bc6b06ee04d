"""Delays and hops of a trace whose figures are easily worked out by hand."""

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.tables import delays, distribution, hops
from anabranch.traces.schema import Delivered, Record, Subscribed
from spark.records import PART, A, B, C, D, frame, row_of, rows_of, table_of

TRACE: list[Record] = [
    Subscribed(100.0, B, PART),
    Subscribed(100.0, C, PART),
    Delivered(101.0, A, *frame(1), 3, 0, 0.0),  # its own
    Delivered(101.01, B, *frame(1), 3, 1, 10.0),
    Delivered(101.02, C, *frame(1), 3, 2, 20.0),
    Delivered(102.03, B, *frame(2), 1, 2, 30.0),
    Delivered(102.04, D, *frame(2), 1, 2, 40.0),  # nobody knows since when D wants it
    Delivered(103.0, C, *frame(0), 1, 1, 60_000.0),  # from the history, older than C's interest
    Subscribed(200.0, C, PART),  # again
    Delivered(201.0, C, *frame(3), 1, 1, 50_000.0),  # what it missed meanwhile
]


def test_delays_of_others_frames_as_they_came(spark: SparkSession) -> None:
    records = table_of(spark, TRACE)
    assert row_of(delays(records)) == pytest.approx(
        {
            "part": PART,
            "nodes": 3,
            "deliveries": 4,
            "messages": 8,
            "mean_ms": 25,
            "min_ms": 10,
            "p50_ms": 25,
            "p90_ms": 37,
            "p95_ms": 38.5,
            "p99_ms": 39.7,
            "max_ms": 40,
        }
    )
    approximate = row_of(delays(records, accuracy=100))
    assert (approximate["p50_ms"], approximate["p99_ms"]) == (20, 40)  # values that occurred
    curve = {row["share"]: row["delay_ms"] for row in rows_of(distribution(records))}
    assert len(curve) == 1001
    assert [curve[share] for share in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([10, 17.5, 25, 40])
    assert rows_of(hops(records), "part") == [
        {"hops": 1, "deliveries": 1, "share": 0.25, "mean_ms": 10.0},
        {"hops": 2, "deliveries": 3, "share": 0.75, "mean_ms": 30.0},
    ]
