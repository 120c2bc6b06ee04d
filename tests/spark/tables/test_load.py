"""What three nodes and their links carried; how many copies were in vain; what there is at all."""

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.tables import links, load, redundancy, runs
from anabranch.spark.traces import UNREADABLE
from anabranch.traces.schema import (
    Delivered,
    Dropped,
    Duplicate,
    Noted,
    Published,
    Received,
    Record,
    Rtt,
    Sent,
)
from spark.records import PART, A, B, C, frame, row_of, rows_of, table_of

# A publishes to B and C, who pass it on to each other: over ten seconds.
TRACE: list[Record] = [
    Published(10.0, A, *frame(1), 2, 300),
    Sent(10.0, A, *frame(1), B, 400),
    Sent(10.0, A, *frame(1), C, 400),
    Delivered(10.0, A, *frame(1), 2, 0, 0.0),
    Received(11.0, B, *frame(1), A, 1),
    Delivered(11.0, B, *frame(1), 2, 1, 1000.0),
    Sent(11.0, B, *frame(1), C, 410),
    Received(12.0, C, *frame(1), A, 1),
    Delivered(12.0, C, *frame(1), 2, 1, 2000.0),
    Duplicate(13.0, C, *frame(1), B),
    Sent(12.5, C, *frame(1), B, 410),
    Duplicate(20.0, B, *frame(1), C),
    Dropped(14.0, B, *frame(7), "old", C),
    Rtt(1.0, A, B, 80.0),
    Rtt(2.0, A, B, 90.0),
    Noted(30.0, A, "fault"),
]


def test_what_nodes_did(spark: SparkSession) -> None:
    records = table_of(spark, TRACE)
    nodes = {row["node"]: row for row in rows_of(load(records))}
    assert nodes[A] == {
        "node": A,
        "published": 2,
        "delivered": 2,
        "sent": 2,
        "received": 0,
        "duplicates": 0,
        "dropped": 0,
        "sent_bytes": 800,
        "received_bytes": 0,
        "peers": 2,
        "seconds": 10.0,
        "delivered_per_s": 0.2,
        "sent_bytes_per_s": 80.0,
        "received_bytes_per_s": 0.0,
    }
    assert nodes[B] == {
        "node": B,
        "published": 0,
        "delivered": 2,
        "sent": 1,
        "received": 1,
        "duplicates": 1,
        "dropped": 1,
        "sent_bytes": 410,
        "received_bytes": 810,
        "peers": 1,
        "seconds": 10.0,
        "delivered_per_s": 0.2,
        "sent_bytes_per_s": 41.0,
        "received_bytes_per_s": 81.0,
    }
    assert nodes.keys() == {A, B, C}


def test_links_and_copies(spark: SparkSession) -> None:
    records = table_of(spark, TRACE)
    used = {(row["node"], row["peer"]): row for row in rows_of(links(records))}
    assert used[A, B] == pytest.approx(
        {
            "node": A,
            "peer": B,
            "frames": 1,
            "bytes": 400,
            "frames_per_s": 0.1,
            "bytes_per_s": 40.0,
            "useful": 1.0,
            "share": 400 / 1620,
            "rtt_ms": 90.0,
        }
    )
    assert (used[B, C]["useful"], used[B, C]["rtt_ms"]) == (0.0, None)
    assert used.keys() == {(A, B), (A, C), (B, C), (C, B)}
    assert row_of(redundancy(records)) == pytest.approx(
        {
            "part": PART,
            "nodes": 3,
            "frames": 1,
            "received": 2,
            "duplicates": 2,
            "per_node": 2 / 3,
            "per_node_least": 0,
            "per_node_greatest": 1,
        }
    )
    lines = table_of(spark, [Noted(0.5, "0x9", "", "no json")]).replace("noted", UNREADABLE)
    assert row_of(runs(records.unionByName(lines))) == {
        "records": 17,
        "unreadable": 1,
        "nodes": 3,
        "parts": 1,
        "first_at": 0.5,
        "last_at": 30.0,
        "seconds": 29.5,
        "published": 2,
        "delivered": 6,
        "dropped": 1,
    }
