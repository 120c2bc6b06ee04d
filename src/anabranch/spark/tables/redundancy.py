"""How many copies of a message come to a node that has it already."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.frames import carried, published


def redundancy(records: DataFrame) -> DataFrame:
    """Count copies: run, part, nodes, frames, received, duplicates, per_node (duplicates of one
    frame at one node, in the mean), and the least and greatest of the nodes.

    Paper 000 expects degree - 2 of them (Equation 4).
    """
    copies = (
        carried(records)
        .where(sf.col("received") + sf.col("duplicates") > 0)
        .groupBy("run", "part", sf.col("peer").alias("node"))
        .agg(sf.sum("received").alias("received"), sf.sum("duplicates").alias("duplicates"))
    )
    own = (
        published(records)
        .groupBy("run", "part", sf.col("source").alias("node"))
        .agg(sf.count("*").alias("published"))
    )
    names = ("published", "received", "duplicates")
    per_node = copies.join(own, ["run", "part", "node"], "full").select(
        *("run", "part", "node"), *(sf.coalesce(name, sf.lit(0)).alias(name) for name in names)
    )
    counted = per_node.groupBy("run", "part").agg(
        sf.count("*").alias("nodes"),
        sf.sum("published").alias("frames"),
        sf.sum("received").alias("received"),
        sf.sum("duplicates").alias("duplicates"),
        sf.min("duplicates").alias("least"),
        sf.max("duplicates").alias("greatest"),
    )
    frames = sf.when(sf.col("frames") > 0, sf.col("frames"))
    return counted.select(
        *("run", "part", "nodes", "frames", "received", "duplicates"),
        (sf.col("duplicates") / (frames * sf.col("nodes"))).alias("per_node"),
        (sf.col("least") / frames).alias("per_node_least"),
        (sf.col("greatest") / frames).alias("per_node_greatest"),
    )
