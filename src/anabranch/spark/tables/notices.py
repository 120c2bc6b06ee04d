"""What machines had to say to their operators."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf


def notices(records: DataFrame) -> DataFrame:
    """Count them: run, what, times, nodes, detail (of the first), first_at, last_at."""
    return (
        records.where(sf.col("kind") == "noted")
        .groupBy("run", "what")
        .agg(
            sf.count("*").alias("times"),
            sf.countDistinct("node").alias("nodes"),
            sf.min_by("detail", "at").alias("detail"),
            sf.min("at").alias("first_at"),
            sf.max("at").alias("last_at"),
        )
    )
