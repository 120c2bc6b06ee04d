"""The same things over time, in windows; on streaming DataFrames as well.

A window counts what happened in it by the nodes' own clocks. On a stream it is finished once
records are seen that are LATE younger: what comes still later is left out, and Spark counts it.
There, what a node with a fast clock says of the future counts as of now, or else it would finish
the windows of all others before their time.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.frames import arrivals

WINDOW_S = 10
WIDTH = f"{WINDOW_S} seconds"
LATE = "30 seconds"
PERCENTS = (50, 95, 99)
ACCURACY = 1_000  # of percentiles: one rank in so many; a window's state stays small


def delay_windows(records: DataFrame, width: str = WIDTH) -> DataFrame:
    """Summarise delays: run, part, start, deliveries, messages, mean_ms, p50_ms to p99_ms, max_ms.

    Readers of the history are not told apart, since a stream cannot be joined with its past.
    """
    percents = sf.percentile_approx(
        "delay_ms", sf.array(*(sf.lit(p / 100) for p in PERCENTS)), sf.lit(ACCURACY)
    )
    summary = (
        arrivals(records)
        .withColumn("time", _time(records))
        .withWatermark("time", LATE)
        .groupBy("run", "part", sf.window("time", width).alias("window"))
        .agg(
            sf.count("*").alias("deliveries"),
            sf.sum("count").alias("messages"),
            sf.mean("delay_ms").alias("mean_ms"),
            percents.alias("percents"),
            sf.max("delay_ms").alias("max_ms"),
        )
    )
    named = [sf.col("percents")[i].alias(f"p{p}_ms") for i, p in enumerate(PERCENTS)]
    start = sf.col("window.start").alias("start")
    first = ("deliveries", "messages", "mean_ms")
    return summary.select("run", "part", start, *first, *named, "max_ms")


def _time(records: DataFrame) -> Column:
    at = sf.timestamp_seconds("at")
    return sf.least(at, sf.current_timestamp()) if records.isStreaming else at


def load_windows(records: DataFrame, width: str = WIDTH) -> DataFrame:
    """Tell what each node does: run, node, start, published and delivered (messages), sent,
    received, duplicates and dropped (frames), sent_bytes."""
    kind, count = sf.col("kind"), sf.coalesce("count", sf.lit(0))
    moving = ("published", "delivered", "sent", "received", "duplicate", "dropped")
    return (
        records.where(kind.isin(*moving))
        .withColumn("time", _time(records))
        .withWatermark("time", LATE)
        .groupBy("run", "node", sf.window("time", width).alias("window"))
        .agg(
            sf.sum(sf.when(kind == "published", count).otherwise(0)).alias("published"),
            sf.sum(sf.when(kind == "delivered", count).otherwise(0)).alias("delivered"),
            sf.count_if(kind == "sent").alias("sent"),
            sf.count_if(kind == "received").alias("received"),
            sf.count_if(kind == "duplicate").alias("duplicates"),
            sf.count_if(kind == "dropped").alias("dropped"),
            sf.sum(sf.when(kind == "sent", sf.col("size_bytes")).otherwise(0)).alias("sent_bytes"),
        )
        .select(
            *("run", "node", sf.col("window.start").alias("start"), "published", "delivered"),
            *("sent", "received", "duplicates", "dropped", "sent_bytes"),
        )
    )
