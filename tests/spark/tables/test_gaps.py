"""Who should have had what, and why it did not: every cause once."""

from pyspark.sql import SparkSession

from anabranch.spark.tables import CAUSES, coverage, gaps, missing, subscriptions
from anabranch.traces.schema import (
    Delivered,
    Dropped,
    Linked,
    Published,
    Record,
    Rtt,
    Stopped,
    Subscribed,
    Unsubscribed,
)
from spark.records import PART, A, D, frame, row_of, rows_of, table_of

NODES = {cause: f"node that misses: {cause}" for cause in CAUSES}
AT = 100.0  # when the frame is published that all of them miss but D

OTHERS = {"publisher-stopped", "trace-ends"}
ELSEWHERE = {NODES[cause] for cause in {*OTHERS, "joining"}}

TRACE: list[Record] = [
    *(Subscribed(0.0, node, PART) for node in (A, D, *NODES.values()) if node not in ELSEWHERE),
    Subscribed(AT - 4, NODES["joining"], PART),
    Published(AT, A, *frame(1), 3, 300),
    Delivered(AT + 1, A, *frame(1), 3, 0, 0.0),
    Delivered(AT + 1, D, *frame(1), 3, 1, 1000.0),
    Delivered(AT + 1, D, *frame(1), 3, 1, 1000.0),  # to a second reader
    Dropped(AT + 1, NODES["refused"], *frame(1), "no-key", D),
    Dropped(AT + 1, D, *frame(1), "link-full", NODES["not-sent"]),
    Linked(AT + 2, NODES["not-sent"], D, False, "slow"),  # less telling than the drop
    Stopped(AT + 3, NODES["stopped"]),
    # Whoever is there still can be heard of; the one that is silent was killed.
    *(Rtt(AT + 20, node, D, 1.0) for c, node in NODES.items() if c not in ("stopped", "silent")),
    Rtt(AT - 3, NODES["silent"], D, 1.0),
    # Copies that came from a node say nothing about why another one did not come to it.
    Dropped(AT + 1, D, *frame(1), "unpermitted", NODES["unknown"]),
    Dropped(AT + 1, NODES["unknown"], *frame(1), "link-full", D),
    Unsubscribed(AT + 3, NODES["unsubscribed"], PART),
    Linked(AT - 4, NODES["link-lost"], D, False, "timeout"),
    Linked(AT - 6, NODES["unknown"], D, False, "timeout"),  # too long before
    Linked(AT - 1, NODES["unknown"], D, True),
    # Another publisher ends just after it has published.
    Subscribed(0.0, NODES["publisher-stopped"], "p#1"),
    Published(AT, "0xshort", *frame(1, "0xshort", "p#1"), 1, 300),
    Stopped(AT + 1, "0xshort"),
    # A third one publishes just before the trace ends.
    Subscribed(0.0, NODES["trace-ends"], "p#2"),
    Published(AT + 20, A, *frame(9, A, "p#2"), 1, 300),
]


def test_every_gap_has_its_cause(spark: SparkSession) -> None:
    records = table_of(spark, TRACE)
    found = {row["node"]: row for row in rows_of(gaps(records), "part")}
    assert {node: row["cause"] for node, row in found.items()} == {
        node: cause for cause, node in NODES.items()
    }
    details = {"refused": "no-key", "not-sent": "link-full", "link-lost": "timeout"}
    for cause, node in NODES.items():
        row = found[node]
        assert row["detail"] == details.get(cause, "")
        assert (row["frames"], row["messages"]) == (1, 1 if cause in OTHERS else 3)
        assert row["first_at"] == row["last_at"] == (AT + 20 if cause == "trace-ends" else AT)
    steady = {row["node"] for row in rows_of(missing(records)) if row["steady"]}
    assert NODES.keys() - {c for c, n in NODES.items() if n in steady} == {
        *("stopped", "silent", "unsubscribed", "joining")
    }
    (row,) = [row for row in rows_of(coverage(records)) if row["part"] == PART]
    assert row == {
        "part": PART,
        "frames": 1,
        "subscribers": 9,
        "expected": 9,
        "delivered": 1,
        "coverage": 1 / 9,
        "steady_expected": 5,
        "steady_delivered": 1,
        "steady_coverage": 0.2,
    }


def test_subscriptions_begin_and_end(spark: SparkSession) -> None:
    trace: list[Record] = [
        Subscribed(1.0, A, PART),
        Subscribed(2.0, A, PART),  # wants it otherwise now, but has wanted it all the time
        Unsubscribed(3.0, A, PART),
        Stopped(4.0, A),  # when it wanted nothing
        Subscribed(5.0, A, PART),
        Stopped(6.0, A),
        Subscribed(7.0, A, PART),
        Stopped(8.0, D),
    ]
    rows = rows_of(subscriptions(table_of(spark, trace)), "node", "part")
    assert rows == [
        {"since": 1.0, "until": 3.0, "stopped": False},
        {"since": 5.0, "until": 6.0, "stopped": True},
        {"since": 7.0, "until": None, "stopped": False},
    ]


def test_what_a_node_asks_for_after_it_was_published_is_not_due(spark: SparkSession) -> None:
    trace: list[Record] = [
        Subscribed(0.0, D, PART),
        Subscribed(101.0, "0xlate", PART),
        Subscribed(0.0, "0xgone", PART),
        Unsubscribed(99.0, "0xgone", PART),
        Published(100.0, A, *frame(1), 1, 300),
        Delivered(100.5, D, *frame(1), 1, 1, 500.0),
    ]
    records = table_of(spark, trace)
    assert row_of(coverage(records))["expected"] == 1
    assert rows_of(gaps(records)) == []


def test_a_node_that_was_killed_did_not_stay(spark: SparkSession) -> None:
    trace: list[Record] = [Subscribed(0.0, node, PART) for node in (D, "0xkilled")]
    for number in range(1, 11):
        at = 10.0 * number
        trace.append(Published(at, A, *frame(number), 1, 300))
        trace.append(Published(at + 1, A, *frame(number), 1, 300))  # tried once more
        trace.append(Delivered(at + 0.5, D, *frame(number), 1, 1, 500.0))
        if number <= 3:
            trace.append(Delivered(at + 0.5, "0xkilled", *frame(number), 1, 1, 500.0))
    records = table_of(spark, trace)
    row = row_of(coverage(records))
    assert (row["frames"], row["steady_expected"], row["steady_coverage"]) == (10, 13, 1.0)
    (gap,) = rows_of(gaps(records))
    assert (gap["node"], gap["cause"], gap["frames"]) == ("0xkilled", "silent", 1)
