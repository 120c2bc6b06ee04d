"""How Spark finds the format `anabranch` by itself: it looks into packages called pyspark_*."""

from anabranch.spark.source import AnabranchSource as DefaultSource

__all__ = ["DefaultSource"]
