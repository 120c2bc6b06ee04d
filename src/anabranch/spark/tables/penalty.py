"""What a message loses on its way through the overlay, against one that is sent straight.

The relative delay penalty (paper 000, section V-A) is the mean delay in the overlay over the mean
delay of the network below. Records of kind `unicast` tell the latter for any two nodes; without
them, half a round trip tells it for those that had a link.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.delays import quantile
from anabranch.spark.tables.frames import live_arrivals, with_source

PAIR = ["run", "source", "node"]


def pair_penalties(records: DataFrame) -> DataFrame:
    """Return each pair's: run, source, node, deliveries, mean_ms, direct_ms, rdp.

    Where nobody knows the straight way, direct_ms and rdp are null.
    """
    unknown = sf.lit(None).cast("double")
    arrived = with_source(live_arrivals(records), records).select(
        *PAIR, "delay_ms", unknown.alias("unicast_ms"), unknown.alias("rtt_ms")
    )
    told = records.where(sf.col("kind").isin("unicast", "rtt")).select(
        "run",
        sf.col("node").alias("source"),
        sf.col("peer").alias("node"),
        unknown.alias("delay_ms"),
        sf.col("delay_ms").alias("unicast_ms"),
        "rtt_ms",
    )
    # Put side by side and summed up at once, they need not be joined: there are n * n of each.
    pairs = (
        arrived.unionByName(told)
        .groupBy(*PAIR)
        .agg(
            sf.count("delay_ms").alias("deliveries"),
            sf.mean("delay_ms").alias("mean_ms"),
            sf.coalesce(sf.mean("unicast_ms"), sf.mean("rtt_ms") / 2).alias("direct_ms"),
        )
        .where(sf.col("deliveries") > 0)
    )
    ratio = sf.when(sf.col("direct_ms") > 0, sf.col("mean_ms") / sf.col("direct_ms"))
    return pairs.withColumn("rdp", ratio)


def penalties(records: DataFrame) -> DataFrame:
    """Return each run's: run, pairs, direct_pairs, mean_ms, direct_ms, rdp, and of the pairs' rdp
    the p50, p95 and max.

    The means are over those pairs whose straight way is known, `direct_pairs` of the `pairs`.
    """
    known = sf.col("direct_ms").isNotNull()
    summary = (
        pair_penalties(records)
        .groupBy("run")
        .agg(
            sf.count("*").alias("pairs"),
            sf.count_if(known).alias("direct_pairs"),
            sf.mean(sf.when(known, sf.col("mean_ms"))).alias("mean_ms"),
            sf.mean("direct_ms").alias("direct_ms"),
            quantile("rdp", [0.5, 0.95]).alias("percents"),
            sf.max("rdp").alias("rdp_max"),
        )
    )
    return summary.select(
        *("run", "pairs", "direct_pairs", "mean_ms", "direct_ms"),
        sf.when(sf.col("direct_ms") > 0, sf.col("mean_ms") / sf.col("direct_ms")).alias("rdp"),
        sf.col("percents")[0].alias("rdp_p50"),
        sf.col("percents")[1].alias("rdp_p95"),
        "rdp_max",
    )
