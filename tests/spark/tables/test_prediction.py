"""A line of three nodes: what a tracker would have said, and what was measured."""

import math

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.tables import prediction, table_2, table_3
from anabranch.traces.schema import Delivered, Published, Record, Rtt, Sent, Topology
from spark.records import PART, A, B, C, frame, row_of, table_of

SENT: list[Record] = [
    Published(10.0, A, *frame(1), 1, 300),
    Sent(10.0, A, *frame(1), B, 400),
    Delivered(10.011, B, *frame(1), 1, 1, 11.0),
    Sent(10.0, B, *frame(1), C, 400),
    Sent(10.0, C, *frame(1), B, 400),
    Delivered(10.033, C, *frame(1), 1, 2, 33.0),
    Rtt(1.0, A, B, 500.0),  # long ago
    Rtt(9.0, A, B, 18.0),
    Rtt(9.0, B, A, 22.0),
    Rtt(9.0, C, B, 40.0),  # only one end has measured it
]
# From A, the only one that published: 10 ms to B and 20 more to C, against 11 and 33.
EXPECTED = {
    "part": PART,
    "nodes": 3,
    "links": 2,
    "measured_links": 2,
    "sources": 1,
    "pairs": 2,
    "unreachable_pairs": 0,
    "estimated_ms": 20,
    "measured_ms": 22,
    "error_ms": 2,
    "error_percent": 100 / 11,
}


def test_the_last_topology_and_the_last_round_trips_count(spark: SparkSession) -> None:
    told: list[Record] = [
        Topology(1.0, A, PART, [B, C]),
        *(Topology(9.0, node, PART, near) for node, near in ((A, [B]), (B, [A, C]), (C, [B]))),
    ]
    assert row_of(prediction(table_of(spark, SENT + told))) == pytest.approx(EXPECTED)


def test_live_nodes_neighbours_are_those_they_send_to(spark: SparkSession) -> None:
    assert row_of(prediction(table_of(spark, SENT))) == pytest.approx(EXPECTED)


def test_a_round_trip_below_zero_is_none_and_no_delay_gives_no_percentage(
    spark: SparkSession,
) -> None:
    trace: list[Record] = [
        Published(10.0, A, *frame(1), 1, 300),
        Sent(10.0, A, *frame(1), B, 400),
        Delivered(10.0, B, *frame(1), 1, 1, 0.0),
        Rtt(9.0, A, B, -20.0),
        Rtt(9.0, B, A, math.inf),
    ]
    records = table_of(spark, trace)
    row = row_of(prediction(records))
    assert (row["measured_links"], row["estimated_ms"], row["error_percent"]) == (0, None, None)
    assert row_of(table_2(records))["difference_percent"] is None
    assert row_of(table_3(records))["difference_percent"] is None
