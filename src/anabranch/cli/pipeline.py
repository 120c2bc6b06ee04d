"""`anabranch pipeline`: the jobs on Spark, which spark-submit runs from the same file."""

from anabranch.spark.jobs import app

__all__ = ["app"]
