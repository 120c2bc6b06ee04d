"""What most tables begin with: deliveries by the overlay, and who published what."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

FRAME = ["run", "part", "publisher", "chain", "number"]  # names a frame
CHAIN = ["run", "publisher", "chain"]

# A reader of the history is handed frames from before it came; this much its clock may be wrong.
CLOCKS_DIFFER_S = 1.0


def distinct(column: str) -> Column:
    """Count the different values of a column that has not many of them in a group.

    Spark's own count copies every row for each column that it counts so.
    """
    return sf.size(sf.collect_set(column)).cast("long")


def with_chain_id(frames: DataFrame) -> DataFrame:
    """Add `chain_id`, a number for the run, part, publisher and chain of a frame.

    To join by four long names costs several times as much. That two of a million chains have the
    same number is as likely as one in thirty million.
    """
    return frames.withColumn("chain_id", sf.xxhash64("run", "part", "publisher", "chain"))


def arrivals(records: DataFrame) -> DataFrame:
    """Return the deliveries that others' frames made: not those at the node that published.

    Streaming DataFrames will do.
    """
    return records.where((sf.col("kind") == "delivered") & (sf.col("hops") > 0)).select(
        *FRAME, "at", "node", "count", "hops", "delay_ms"
    )


def live_arrivals(records: DataFrame) -> DataFrame:
    """Return the arrivals without what readers of the history were handed.

    What was published before its reader last subscribed tells how old it was, not how fast the
    network is.
    """
    began = (
        records.where(sf.col("kind") == "subscribed")
        .groupBy("run", "part", "node")
        .agg(sf.min("at").alias("first"), sf.collect_set("at").alias("each"))
    )
    before = sf.filter("each", lambda began_at: began_at <= sf.col("at"))
    last = sf.coalesce(sf.array_max(before), sf.col("first"))
    # Most subscribe once, and to look through lists is slow.
    began_at = sf.when(sf.size("each") == 1, sf.col("first")).otherwise(last)
    published_at = sf.col("at") - sf.col("delay_ms") / 1000
    is_live = sf.col("first").isNull() | (published_at >= began_at - CLOCKS_DIFFER_S)
    joined = arrivals(records).join(sf.broadcast(began), ["run", "part", "node"], "left")
    return joined.where(is_live).drop("first", "each")


def published(records: DataFrame) -> DataFrame:
    """Return the frames that were published, and by which node: `source`.

    One that was published again, by whoever tried once more, is one frame.
    """
    return (
        records.where(sf.col("kind") == "published")
        .groupBy(*FRAME)
        .agg(
            sf.min("at").alias("published_at"),
            sf.min_by("node", "at").alias("source"),
            sf.min_by("count", "at").alias("count"),
        )
    )


def with_source(deliveries: DataFrame, records: DataFrame) -> DataFrame:
    """Add `source`, the node that published: its name and its publisher's are not always one."""
    sources = published(records).groupBy(*CHAIN).agg(sf.first("source").alias("source"))
    joined = deliveries.join(sf.broadcast(sources), CHAIN, "left")
    return joined.withColumn("source", sf.coalesce("source", "publisher"))


def carried(records: DataFrame) -> DataFrame:
    """Count by direction of a link: run, part, node, peer, sent, sent_bytes, received, duplicates,
    first_at, last_at.

    `node` sent to `peer`; received and duplicates are what `peer` says. Streaming will do.
    """
    kind, outward = sf.col("kind"), sf.col("kind") == "sent"
    return (
        records.where(kind.isin("sent", "received", "duplicate"))
        .groupBy(
            *("run", "part"),
            sf.when(outward, sf.col("node")).otherwise(sf.col("peer")).alias("node"),
            sf.when(outward, sf.col("peer")).otherwise(sf.col("node")).alias("peer"),
        )
        .agg(
            sf.count_if(outward).alias("sent"),
            sf.coalesce(sf.sum("size_bytes"), sf.lit(0)).alias("sent_bytes"),
            sf.count_if(kind == "received").alias("received"),
            sf.count_if(kind == "duplicate").alias("duplicates"),
            sf.min("at").alias("first_at"),
            sf.max("at").alias("last_at"),
        )
    )


def spans(records: DataFrame) -> DataFrame:
    """Tell when a run's first and last frame moved: run, first_at, last_at, seconds."""
    at = sf.col("published_at")
    born = published(records).select("run", at.alias("first_at"), at.alias("last_at"))
    moved = carried(records).select("run", "first_at", "last_at")
    return (
        born.unionByName(moved)
        .groupBy("run")
        .agg(sf.min("first_at").alias("first_at"), sf.max("last_at").alias("last_at"))
        .withColumn("seconds", sf.col("last_at") - sf.col("first_at"))
    )
