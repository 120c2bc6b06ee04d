"""What nodes and links carry."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.frames import carried, spans

LINK = ["run", "node", "peer"]


def links(records: DataFrame) -> DataFrame:
    """Tell how links are used, one row for each direction: run, node, peer, frames and bytes sent,
    frames_per_s, bytes_per_s over the run, useful (the share of what came that was no duplicate),
    share (of the run's bytes), rtt_ms (the last that was measured, null without).
    """
    used = _by_link(records)
    totals = used.groupBy("run").agg(sf.sum("sent_bytes").alias("run_bytes"))
    measured = (
        records.where(sf.col("kind") == "rtt")
        .groupBy(*LINK)
        .agg(sf.max_by("rtt_ms", "at").alias("rtt_ms"))
    )
    seconds = sf.when(sf.col("seconds") > 0, sf.col("seconds"))
    came = sf.col("received") + sf.col("duplicates")
    return (
        used.join(sf.broadcast(totals.join(spans(records), "run")), "run")
        .join(measured, LINK, "left")
        .select(
            *LINK,
            sf.col("sent").alias("frames"),
            sf.col("sent_bytes").alias("bytes"),
            (sf.col("sent") / seconds).alias("frames_per_s"),
            (sf.col("sent_bytes") / seconds).alias("bytes_per_s"),
            sf.when(came > 0, sf.col("received") / came).alias("useful"),
            sf.when(sf.col("run_bytes") > 0, sf.col("sent_bytes") / sf.col("run_bytes")).alias(
                "share"
            ),
            "rtt_ms",
        )
    )


def load(records: DataFrame) -> DataFrame:
    """Tell what each node does: run, node, published and delivered (messages), sent, received,
    duplicates and dropped (frames), sent_bytes, received_bytes, peers, seconds (of the run), and
    by second: delivered_per_s, sent_bytes_per_s, received_bytes_per_s.

    received_bytes are what its neighbours sent it.
    """
    count = sf.coalesce("count", sf.lit(0))
    own = (
        records.where(sf.col("kind").isin("published", "delivered", "dropped"))
        .groupBy("run", "node")
        .agg(
            sf.sum(sf.when(sf.col("kind") == "published", count).otherwise(0)).alias("published"),
            sf.sum(sf.when(sf.col("kind") == "delivered", count).otherwise(0)).alias("delivered"),
            sf.count_if(sf.col("kind") == "dropped").alias("dropped"),
        )
    )
    used = _by_link(records)
    outward = used.groupBy("run", "node").agg(
        sf.sum("sent").alias("sent"),
        sf.sum("sent_bytes").alias("sent_bytes"),
        sf.count("*").alias("peers"),
    )
    inward = used.groupBy("run", sf.col("peer").alias("node")).agg(
        sf.sum("received").alias("received"),
        sf.sum("duplicates").alias("duplicates"),
        sf.sum("sent_bytes").alias("received_bytes"),
    )
    every = own.join(outward, ["run", "node"], "full").join(inward, ["run", "node"], "full")
    counted = (
        *("published", "delivered", "sent", "received", "duplicates", "dropped"),
        *("sent_bytes", "received_bytes", "peers"),
    )
    seconds = sf.when(sf.col("seconds") > 0, sf.col("seconds"))
    rates = ("delivered", "sent_bytes", "received_bytes")
    filled = every.select("run", "node", *(sf.coalesce(c, sf.lit(0)).alias(c) for c in counted))
    return filled.join(sf.broadcast(spans(records).select("run", "seconds")), "run").select(
        *("run", "node", *counted, "seconds"),
        *((sf.col(name) / seconds).alias(f"{name}_per_s") for name in rates),
    )


def _by_link(records: DataFrame) -> DataFrame:
    """Return what links carried of all parts."""
    sums = [sf.sum(name).alias(name) for name in ("sent", "sent_bytes", "received", "duplicates")]
    return carried(records).groupBy(*LINK).agg(*sums)
