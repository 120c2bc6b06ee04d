"""What a trace holds at all."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.traces import UNREADABLE


def runs(records: DataFrame) -> DataFrame:
    """Sum up each run: run, records, unreadable (lines that are none), nodes, parts, first_at,
    last_at, seconds, published and delivered (messages), dropped (frames)."""
    kind = sf.col("kind")
    per_node = records.groupBy("run", "node", "part").agg(
        sf.count("*").alias("records"),
        sf.count_if(kind == UNREADABLE).alias("unreadable"),
        sf.min("at").alias("first_at"),
        sf.max("at").alias("last_at"),
        sf.sum(sf.when(kind == "published", sf.col("count")).otherwise(0)).alias("published"),
        sf.sum(sf.when(kind == "delivered", sf.col("count")).otherwise(0)).alias("delivered"),
        sf.count_if(kind == "dropped").alias("dropped"),
    )
    is_there = sf.col("unreadable") < sf.col("records")
    summed = ("records", "unreadable", "published", "delivered", "dropped")
    sums = {name: sf.sum(name).alias(name) for name in summed}
    summary = per_node.groupBy("run").agg(
        *sums.values(),
        sf.countDistinct(sf.when(is_there, sf.col("node"))).alias("nodes"),
        sf.countDistinct(sf.when(sf.col("part") != "", sf.col("part"))).alias("parts"),
        sf.min("first_at").alias("first_at"),
        sf.max("last_at").alias("last_at"),
    )
    return summary.select(
        *("run", "records", "unreadable", "nodes", "parts", "first_at", "last_at"),
        (sf.col("last_at") - sf.col("first_at")).alias("seconds"),
        *("published", "delivered", "dropped"),
    )
