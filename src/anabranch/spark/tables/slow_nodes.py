"""Which nodes are late, or too slow for what their neighbours send them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.delays import quantile
from anabranch.spark.tables.frames import live_arrivals, with_chain_id

# How far outside the middle half of the nodes, in widths of that half, one is slow (Tukey's outer
# fence); and a node that is less late than this is not worth a word.
FENCE = 3.0
LEAST_LATE_MS = 1.0

QUEUE_REASONS = ("link-full", "parted")  # why copies for a node that reads too slowly are dropped


def slow_nodes(records: DataFrame) -> DataFrame:
    """Compare each node with the others: run, node, deliveries, late_ms (the median of how much
    later a frame came than in the mean of all nodes), late_p95_ms, queue_drops (copies that
    others dropped because it read too slowly), slow.

    Slow is who lies above the third quartile of the run's nodes by three times the distance of
    the quartiles, or had copies dropped.
    """
    arrived = with_chain_id(live_arrivals(records))
    means = arrived.groupBy("chain_id", "number").agg(sf.mean("delay_ms").alias("mean_ms"))
    late = arrived.join(means, ["chain_id", "number"]).withColumn(
        "late_ms", sf.col("delay_ms") - sf.col("mean_ms")
    )
    nodes = (
        late.groupBy("run", "node")
        .agg(sf.count("*").alias("deliveries"), quantile("late_ms", [0.5, 0.95]).alias("late"))
        .select(
            *("run", "node", "deliveries"),
            sf.col("late")[0].alias("late_ms"),
            sf.col("late")[1].alias("late_p95_ms"),
        )
    )
    quartiles = nodes.groupBy("run").agg(quantile("late_ms", [0.25, 0.75]).alias("quartiles"))
    low, high = sf.col("quartiles")[0], sf.col("quartiles")[1]
    fences = quartiles.select("run", (high + FENCE * (high - low)).alias("fence_ms"))
    full = (
        records.where((sf.col("kind") == "dropped") & sf.col("reason").isin(*QUEUE_REASONS))
        .groupBy("run", sf.col("peer").alias("node"))
        .agg(sf.count("*").alias("queue_drops"))
    )
    drops = sf.coalesce("queue_drops", sf.lit(0))
    is_late = (sf.col("late_ms") > sf.col("fence_ms")) & (sf.col("late_ms") >= LEAST_LATE_MS)
    return (
        nodes.join(full, ["run", "node"], "full")
        .join(sf.broadcast(fences), "run", "left")
        .select(
            *("run", "node", sf.coalesce("deliveries", sf.lit(0)).alias("deliveries")),
            *("late_ms", "late_p95_ms", drops.alias("queue_drops")),
            (sf.coalesce(is_late, sf.lit(False)) | (drops > 0)).alias("slow"),
        )
    )
