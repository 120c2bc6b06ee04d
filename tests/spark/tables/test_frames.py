"""Tables of a simulated storm are what plain Python makes of the same records."""

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.sim.faults import Faults
from anabranch.sim.network import PacketFaults
from anabranch.sim.scenario import Run, Scenario
from anabranch.spark.tables import (
    TABLES,
    coverage,
    delays,
    hops,
    links,
    load,
    missing,
    redundancy,
    shared,
)
from anabranch.traces.recorder import Recorder
from anabranch.traces.schema import (
    Delivered,
    Duplicate,
    Published,
    Received,
    Record,
    Sent,
    Stopped,
    Subscribed,
    Unsubscribed,
)
from spark.records import rows_of, table_of

STORM = Scenario(
    nodes=12,
    publishers=3,
    parts=2,
    messages_per_s=4,
    run_for_s=10,
    settle_for_s=4,
    faults=Faults(
        PacketFaults(loss=0.3),
        crash_every_s=1,
        crash_for_s=2,
        churn_every_s=1,
        churn_for_s=2,
        partition_every_s=4,
        partition_for_s=3,
    ),
)


@pytest.fixture(scope="module")
def trace() -> list[Record]:
    records: list[Record] = []
    Run(STORM, 3, Recorder(records.append)).go()
    return records


@pytest.fixture(scope="module")
def records(spark: SparkSession, trace: list[Record]) -> Iterator[DataFrame]:
    with shared(table_of(spark, trace).persist()) as table:
        yield table
        table.unpersist()


def name(record: Published | Delivered) -> tuple[str, str, int]:
    return record.publisher, record.chain, record.number


def due(trace: list[Record]) -> dict[str, set[tuple[tuple[str, str, int], str]]]:
    """Who wanted what when it was published, in the order of the trace."""
    wanted: dict[str, set[str]] = defaultdict(set)
    expected: dict[str, set[tuple[tuple[str, str, int], str]]] = defaultdict(set)
    for record in trace:
        match record:
            case Subscribed():
                wanted[record.part].add(record.node)
            case Unsubscribed():
                wanted[record.part].discard(record.node)
            case Stopped():
                for nodes in wanted.values():
                    nodes.discard(record.node)
            case Published():
                others = wanted[record.part] - {record.node}
                expected[record.part] |= {(name(record), node) for node in others}
    return expected


def test_delays_and_hops(records: DataFrame, trace: list[Record]) -> None:
    began: dict[tuple[str, str], float] = {}
    arrived: dict[str, list[Delivered]] = defaultdict(list)
    for record in trace:
        if isinstance(record, Subscribed):
            began[record.node, record.part] = record.at
        if not isinstance(record, Delivered) or not record.hops:
            continue
        if record.at - record.delay_ms / 1000 >= began[record.node, record.part] - 1:
            arrived[record.part].append(record)
    assert len(arrived) == 2
    for row in rows_of(delays(records)):
        delays_ms = [record.delay_ms for record in arrived[str(row["part"])]]
        assert row["deliveries"] == len(delays_ms) > 100
        percents = [row[f"p{percent}_ms"] for percent in (50, 90, 95, 99)]
        np.testing.assert_allclose(percents, np.quantile(delays_ms, [0.5, 0.9, 0.95, 0.99]))
        assert row["mean_ms"] == pytest.approx(np.mean(delays_ms))
    counted = Counter((part, r.hops) for part, found in arrived.items() for r in found)
    assert {
        (row["part"], row["hops"]): row["deliveries"] for row in rows_of(hops(records))
    } == counted


def test_copies_load_and_links(records: DataFrame, trace: list[Record]) -> None:
    duplicates = Counter(r.part for r in trace if isinstance(r, Duplicate))
    received = Counter(r.part for r in trace if isinstance(r, Received))
    for row in rows_of(redundancy(records)):
        part = str(row["part"])
        assert (row["duplicates"], row["received"]) == (duplicates[part], received[part])
    sent = [r for r in trace if isinstance(r, Sent)]
    per_link = Counter((r.node, r.peer) for r in sent)
    assert {
        (row["node"], row["peer"]): row["frames"] for row in rows_of(links(records))
    } == per_link
    out, into = Counter[str](), Counter[str]()
    for record in sent:
        out[record.node] += record.size_bytes
        into[record.peer] += record.size_bytes
    delivered = Counter[str]()
    for each in trace:
        if isinstance(each, Delivered):
            delivered[each.node] += each.count
    for row in rows_of(load(records)):
        node = str(row["node"])
        assert (row["sent_bytes"], row["received_bytes"]) == (out[node], into[node])
        assert row["delivered"] == delivered[node]


def test_coverage_and_gaps(records: DataFrame, trace: list[Record]) -> None:
    expected = due(trace)
    came = {(name(r), r.node) for r in trace if isinstance(r, Delivered)}
    for row in rows_of(coverage(records)):
        pairs = expected[str(row["part"])]
        assert (row["expected"], row["delivered"]) == (len(pairs), len(pairs & came))
    lost = set().union(*expected.values()) - came
    rows = rows_of(missing(records))
    assert len(rows) == len(lost) > 10
    assert {((r["publisher"], r["chain"], r["number"]), r["node"]) for r in rows} == lost
    causes = Counter(row["cause"] for row in rows)
    assert {"unsubscribed", "stopped", "joining", "link-lost"} <= causes.keys()


def test_every_table_can_be_made_of_a_storm(records: DataFrame) -> None:
    assert all(table(records).columns[0] == "run" for table in TABLES.values())
    assert {row["run"] for row in TABLES["prediction"](records).collect()} == {"hand-made"}
