"""Who should have been delivered what, and was."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from anabranch.spark.tables.frames import arrivals, distinct, published, with_chain_id

JOINING_S = 5.0  # after it subscribed, a node may still be on its way into the overlay
ARRIVES_WITHIN_S = 10.0  # whoever leaves sooner after a message was published may miss it
# A node that was killed cannot tell that it ended. It is taken for gone after its last record if
# others had something to record for longer than this; what is published then it may still miss.
SILENT_AFTER_S = ARRIVES_WITHIN_S

MEMBER = ["run", "node", "part"]


def subscriptions(records: DataFrame) -> DataFrame:
    """Return who wanted what, and when: run, node, part, since, until, stopped.

    `until` is null while it lasts; `stopped` tells that the node ended, and did not unsubscribe.
    """
    begun = records.where(sf.col("kind") == "subscribed").select(
        *MEMBER, "at", sf.lit(False).alias("ends"), sf.lit(False).alias("stops")
    )
    left = records.where(sf.col("kind") == "unsubscribed").select(
        *MEMBER, "at", sf.lit(True).alias("ends"), sf.lit(False).alias("stops")
    )
    stopped = records.where(sf.col("kind") == "stopped").select("run", "node", "at")
    ended = begun.select(*MEMBER).distinct().join(stopped, ["run", "node"])
    ended = ended.select(*MEMBER, "at", sf.lit(True).alias("ends"), sf.lit(True).alias("stops"))
    # An episode is what lies between two ends; to subscribe again within one changes nothing.
    before = (
        Window.partitionBy(*MEMBER).orderBy("at", "ends").rowsBetween(Window.unboundedPreceding, -1)
    )
    episode = sf.coalesce(sf.sum(sf.col("ends").cast("int")).over(before), sf.lit(0))
    events = begun.unionByName(left).unionByName(ended).withColumn("episode", episode)
    return (
        events.groupBy(*MEMBER, "episode")
        .agg(
            sf.min(sf.when(~sf.col("ends"), sf.col("at"))).alias("since"),
            sf.max(sf.when(sf.col("ends"), sf.col("at"))).alias("until"),
            sf.max("stops").alias("stopped"),
        )
        .where(sf.col("since").isNotNull())
        .drop("episode")
    )


def _ended_by_silence(subscribed: DataFrame, records: DataFrame) -> DataFrame:
    """End the subscriptions of nodes that were not heard of any more; add `silent`."""
    of_run = Window.partitionBy("run")
    heard = (
        records.groupBy("run", "node")
        .agg(sf.max("at").alias("heard_at"))
        .withColumn("run_until", sf.max("heard_at").over(of_run))
    )
    until, gone_at = sf.col("until"), sf.col("heard_at") + SILENT_AFTER_S
    silent = sf.coalesce(until.isNull() & (sf.col("run_until") > gone_at), sf.lit(False))
    return (
        subscribed.join(heard, ["run", "node"], "left")
        .withColumn("silent", silent)
        .withColumn("until", sf.when(sf.col("silent"), gone_at).otherwise(until))
        .drop("heard_at", "run_until")
    )


def expectations(records: DataFrame) -> DataFrame:
    """Return every delivery that was due: a frame, and a node that wanted it when it was published.

    Columns: run, part, publisher, chain, number, published_at, source, count, node, since, until,
    stopped, silent (`until` is when the node was last heard of, and a little more), steady (the
    node wanted it well before and long after), delivered.
    """
    subscribed = _ended_by_silence(subscriptions(records), records)
    wanted = (sf.col("since") <= sf.col("published_at")) & (
        sf.col("until").isNull() | (sf.col("until") > sf.col("published_at"))
    )
    due = (
        published(records)
        .join(sf.broadcast(subscribed), ["run", "part"])
        .where(wanted & (sf.col("node") != sf.col("source")))
    )
    arrived = with_chain_id(arrivals(records)).select("chain_id", "number", "node").distinct()
    came = arrived.withColumn("delivered", sf.lit(True))
    joined = sf.col("published_at") - sf.col("since") >= JOINING_S
    stayed = sf.col("until").isNull() | (
        sf.col("until") - sf.col("published_at") >= ARRIVES_WITHIN_S
    )
    return (
        with_chain_id(due)
        .join(came, ["chain_id", "number", "node"], "left")
        .drop("chain_id")
        .withColumn("delivered", sf.coalesce("delivered", sf.lit(False)))
        .withColumn("steady", joined & stayed)
    )


def coverage(records: DataFrame) -> DataFrame:
    """Compare what should have been delivered with what was: run, part, frames, subscribers,
    expected, delivered, coverage; and the same of the nodes that were subscribed throughout, from
    5 s before a frame was published to 10 s after: steady_expected, _delivered, _coverage.
    """
    steady, delivered = sf.col("steady"), sf.col("delivered")
    counted = (
        expectations(records)
        .groupBy("run", "part")
        .agg(
            distinct("node").alias("subscribers"),
            sf.count("*").alias("expected"),
            sf.count_if(delivered).alias("delivered"),
            sf.count_if(steady).alias("steady_expected"),
            sf.count_if(steady & delivered).alias("steady_delivered"),
        )
    )
    frames = published(records).groupBy("run", "part").agg(sf.count("*").alias("frames"))
    share = sf.col("delivered") / sf.col("expected")
    steady_share = sf.when(
        sf.col("steady_expected") > 0, sf.col("steady_delivered") / sf.col("steady_expected")
    )
    return counted.join(frames, ["run", "part"]).select(
        *("run", "part", "frames", "subscribers", "expected", "delivered"),
        share.alias("coverage"),
        *("steady_expected", "steady_delivered"),
        steady_share.alias("steady_coverage"),
    )
