"""One node is late, one has copies dropped, the others are well."""

from pyspark.sql import SparkSession

from anabranch.spark.tables import slow_nodes
from anabranch.traces.schema import Delivered, Dropped, Record
from spark.records import A, frame, rows_of, table_of


def test_the_late_and_the_full_are_slow(spark: SparkSession) -> None:
    delays_ms = {"n1": 98.0, "n2": 99.0, "n3": 100.0, "n4": 101.0, "n5": 102.0, "late": 160.0}
    trace: list[Record] = [
        Delivered(1.0, node, *frame(number), 1, 1, delay_ms + 10 * number)
        for number in (1, 2, 3)
        for node, delay_ms in delays_ms.items()
    ]
    trace += [Dropped(1.0, A, *frame(4), "link-full", "n1")] * 2
    trace += [Dropped(1.0, A, *frame(4), "old", "n2"), Dropped(1.0, A, *frame(4), "parted", "mute")]
    rows = {row["node"]: row for row in rows_of(slow_nodes(table_of(spark, trace)))}
    assert {node for node, row in rows.items() if row["slow"]} == {"late", "n1", "mute"}
    assert rows["late"]["late_ms"] == 160 - 110  # the mean of the six
    assert rows["late"]["deliveries"] == 3
    assert rows["n1"]["queue_drops"] == 2
    assert rows["mute"] == {
        "node": "mute",
        "deliveries": 0,
        "late_ms": None,
        "late_p95_ms": None,
        "queue_drops": 1,
        "slow": True,
    }


def test_small_differences_are_no_fault(spark: SparkSession) -> None:
    delays_ms = {"n1": 1.0, "n2": 1.0, "n3": 1.0, "n4": 1.0, "n5": 1.5}
    trace: list[Record] = [
        Delivered(1.0, node, *frame(1), 1, 1, delay_ms) for node, delay_ms in delays_ms.items()
    ]
    assert not any(row["slow"] for row in rows_of(slow_nodes(table_of(spark, trace))))
