"""How well delays can be told beforehand: a tracker's estimate beside what was measured."""

import random
from math import inf
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.core.ids import NodeId
from anabranch.core.prediction import MAX_SOURCES, predict
from anabranch.spark.tables.frames import carried, live_arrivals, published, with_source

if TYPE_CHECKING:
    import pyarrow

PART = ["run", "part"]
MAX_FOLLOWED = 1 << 22  # pairs of a part; where there are more, a sample of the sources is followed

ESTIMATE = (
    "run string, part string, nodes long, links long, measured_links long, sources long, "
    "pairs long, unreachable_pairs long, estimated_ms double"
)


def prediction(records: DataFrame) -> DataFrame:
    """Compare the mean delay with its estimate: run, part, nodes, links, measured_links, sources,
    pairs, unreachable_pairs, estimated_ms, measured_ms, error_ms, error_percent.

    The estimate is that of `core.prediction` from all nodes that published, over the last topology
    and round trips of the trace; both means are over pairs of nodes. Its absolute error, averaged
    over runs, is the mean absolute percentage error (MAPE) of paper 000, section V-C.6.
    """
    edges = _edges(records)
    estimates = edges.groupBy(*PART).applyInArrow(_estimate, ESTIMATE)
    pairs = (
        with_source(live_arrivals(records), records)
        .groupBy(*PART, "source", "node")
        .agg(sf.mean("delay_ms").alias("delay_ms"))
    )
    measured = pairs.groupBy(*PART).agg(sf.mean("delay_ms").alias("measured_ms"))
    error = sf.abs(sf.col("estimated_ms") - sf.col("measured_ms"))
    return (
        estimates.join(measured, PART)
        .withColumn("error_ms", error)
        .withColumn("error_percent", sf.try_divide(100 * sf.col("error_ms"), sf.col("measured_ms")))
    )


def topology(records: DataFrame) -> DataFrame:
    """Return everybody's neighbours at last: run, part, node, neighbours.

    Live nodes record none: their neighbours are those to whom they sent the part's frames.
    """
    told = (
        records.where(sf.col("kind") == "topology")
        .groupBy(*PART, "node")
        .agg(sf.max_by("neighbours", "at").alias("neighbours"))
    )
    seen = (
        carried(records)
        .where(sf.col("sent") > 0)
        .join(told.select(*PART, "node"), [*PART, "node"], "left_anti")
        .groupBy(*PART, "node")
        .agg(sf.collect_set("peer").alias("neighbours"))
    )
    return told.unionByName(seen)


def _edges(records: DataFrame) -> DataFrame:
    """Return what an estimate needs, a row for each end of a link: who is a neighbour of whom,
    the round trips that both ends measured, and whether the node published."""
    rtts = (
        records.where(sf.col("kind") == "rtt")
        .groupBy("run", "node", "peer")
        .agg(sf.max_by("rtt_ms", "at").alias("rtt_ms"))
    )
    back = rtts.select(
        "run",
        sf.col("node").alias("peer"),
        sf.col("peer").alias("node"),
        sf.col("rtt_ms").alias("back_ms"),
    )
    sources = (
        published(records)
        .select(*PART, sf.col("source").alias("node"), sf.lit(True).alias("publishes"))
        .distinct()
    )
    return (
        topology(records)
        .select(*PART, "node", sf.explode_outer("neighbours").alias("peer"))
        .join(rtts, ["run", "node", "peer"], "left")
        .join(back, ["run", "node", "peer"], "left")
        .join(sources, [*PART, "node"], "left")
    )


def _estimate(edges: "pyarrow.Table") -> "pyarrow.Table":
    import pyarrow

    near: dict[NodeId, list[NodeId]] = {}
    rtts_us: dict[tuple[NodeId, NodeId], int] = {}
    publish: set[NodeId] = set()
    rows: list[dict[str, Any]] = edges.to_pylist()
    for row in sorted(rows, key=lambda row: (row["node"], row["peer"] or "")):
        node = NodeId(row["node"].encode())
        neighbours = near.setdefault(node, [])
        if row["publishes"]:
            publish.add(node)
        if row["peer"] is not None:
            peer = NodeId(row["peer"].encode())
            neighbours.append(peer)
            for pair, rtt_ms in (((node, peer), row["rtt_ms"]), ((peer, node), row["back_ms"])):
                if rtt_ms is not None and 0 < rtt_ms < inf:  # anything else is no round trip
                    rtts_us[pair] = round(1000 * rtt_ms)
    sources = [node for node in near if node in publish]
    most = max(MAX_SOURCES, MAX_FOLLOWED // max(1, len(near)))
    if len(sources) > most:
        sources = random.Random(0).sample(sources, most)
    found = predict(near, rtts_us, sources)
    first = rows[0]
    return pyarrow.Table.from_pylist(
        [
            {
                "run": first["run"],
                "part": first["part"],
                "nodes": found.nodes,
                "links": found.links,
                "measured_links": found.measured_links,
                "sources": found.sources,
                "pairs": found.pairs,
                "unreachable_pairs": found.unreachable_pairs,
                "estimated_ms": found.mean_ms,
            }
        ],
        pyarrow.schema(
            [
                *(("run", pyarrow.string()), ("part", pyarrow.string())),
                *(
                    (name, pyarrow.int64())
                    for name in ("nodes", "links", "measured_links", "sources")
                ),
                *(("pairs", pyarrow.int64()), ("unreachable_pairs", pyarrow.int64())),
                ("estimated_ms", pyarrow.float64()),
            ]
        ),
    )
