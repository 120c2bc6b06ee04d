"""The data pipeline: streams into Spark, and what comes out of it back into streams."""
