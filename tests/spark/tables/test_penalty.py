"""The relative delay penalty of a few pairs."""

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.tables import pair_penalties, penalties
from anabranch.traces.schema import Delivered, Published, Record, Rtt, Unicast
from spark.records import A, B, C, D, frame, row_of, rows_of, table_of

USER = "0x" + "9" * 40  # signs what node A publishes


def test_the_straight_way_is_told_or_half_a_round_trip_or_unknown(spark: SparkSession) -> None:
    trace: list[Record] = [
        Published(1.0, A, *frame(1, USER), 1, 300),
        Delivered(1.1, B, *frame(1, USER), 1, 1, 30.0),
        Delivered(2.1, B, *frame(2, USER), 1, 1, 50.0),
        Delivered(1.1, C, *frame(1, USER), 1, 2, 60.0),
        Delivered(1.1, D, *frame(1, USER), 1, 2, 900.0),
        Unicast(0.0, A, B, 10.0),
        Rtt(0.0, A, B, 99.0),  # the straight way is known better
        Rtt(0.0, A, C, 50.0),
        Rtt(0.1, A, C, 70.0),
    ]
    records = table_of(spark, trace)
    assert rows_of(pair_penalties(records), "source") == [
        {"node": B, "deliveries": 2, "mean_ms": 40.0, "direct_ms": 10.0, "rdp": 4.0},
        {"node": C, "deliveries": 1, "mean_ms": 60.0, "direct_ms": 30.0, "rdp": 2.0},
        {"node": D, "deliveries": 1, "mean_ms": 900.0, "direct_ms": None, "rdp": None},
    ]
    assert row_of(penalties(records)) == pytest.approx(
        {
            "pairs": 3,
            "direct_pairs": 2,
            "mean_ms": 50,
            "direct_ms": 20,
            "rdp": 2.5,
            "rdp_p50": 3,
            "rdp_p95": 3.9,
            "rdp_max": 4,
        }
    )
