"""How long messages take, and over how many hops.

Delays are those of frames: from publishing to the hands of another node's application. Readers
of the history are left out. Percentiles are exact, and interpolated as NumPy does; for more than
some ten million deliveries in a run pass `accuracy`, such as 10,000: percentiles then are
`approx_percentile`'s, off by one rank in `accuracy` at most, in bounded memory.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.frames import distinct, live_arrivals

PERCENTS = (50, 90, 95, 99)
STEPS = 1000  # of a distribution's curve
PART = ["run", "part"]


def quantile(column: str, shares: float | Sequence[float], accuracy: int | None = None) -> Column:
    """Return the value, or the values, that these shares of the rows do not exceed."""
    wanted = sf.lit(shares) if isinstance(shares, float) else sf.array(*map(sf.lit, shares))
    if accuracy is None:
        return sf.percentile(column, wanted)
    return sf.percentile_approx(column, wanted, accuracy)


def delays(records: DataFrame, accuracy: int | None = None) -> DataFrame:
    """Summarise delays: run, part, nodes, deliveries, messages, mean, min, p50 to p99, max (ms)."""
    percents = quantile("delay_ms", [p / 100 for p in PERCENTS], accuracy)
    summary = (
        live_arrivals(records)
        .groupBy(*PART)
        .agg(
            distinct("node").alias("nodes"),
            sf.count("*").alias("deliveries"),
            sf.sum("count").alias("messages"),
            sf.mean("delay_ms").alias("mean_ms"),
            sf.min("delay_ms").alias("min_ms"),
            percents.alias("percents"),
            sf.max("delay_ms").alias("max_ms"),
        )
    )
    named = [sf.col("percents")[i].alias(f"p{p}_ms") for i, p in enumerate(PERCENTS)]
    first = ["nodes", "deliveries", "messages", "mean_ms", "min_ms"]
    return summary.select(*PART, *first, *named, "max_ms")


def distribution(records: DataFrame, accuracy: int | None = None) -> DataFrame:
    """Return the distribution of the delay as a curve: run, part, share (0 to 1), delay_ms."""
    return curve(live_arrivals(records), PART, accuracy)


def curve(arrived: DataFrame, by: Sequence[str], accuracy: int | None = None) -> DataFrame:
    """Return the distribution of `delay_ms` in each group, in a thousand steps."""
    steps = sf.sequence(sf.lit(0), sf.lit(STEPS))
    if accuracy is None:
        # Spark's percentile goes through all values once for each share: too often for so many.
        ordered = arrived.groupBy(*by).agg(
            sf.sort_array(sf.collect_list("delay_ms")).alias("ordered")
        )
        found = ordered.select(*by, sf.transform(steps, _interpolate).alias("delay_ms"))
    else:
        shares = [step / STEPS for step in range(STEPS + 1)]
        found = arrived.groupBy(*by).agg(quantile("delay_ms", shares, accuracy).alias("delay_ms"))
    return found.select(*by, sf.posexplode("delay_ms").alias("step", "delay_ms")).select(
        *by, (sf.col("step") / STEPS).alias("share"), "delay_ms"
    )


def _interpolate(step: Column) -> Column:
    """Return what a share of the values in `ordered` do not exceed."""
    last = sf.size("ordered") - 1
    place = last * step / STEPS
    below = sf.floor(place).cast("int")
    low = sf.get("ordered", below)
    high = sf.get("ordered", sf.least(below + 1, last))
    return low + (place - below) * (high - low)


def hops(records: DataFrame) -> DataFrame:
    """Count deliveries by hops: run, part, hops, deliveries, share of the part's, mean_ms."""
    counted = (
        live_arrivals(records)
        .groupBy(*PART, "hops")
        .agg(sf.count("*").alias("deliveries"), sf.mean("delay_ms").alias("mean_ms"))
    )
    total = counted.groupBy(*PART).agg(sf.sum("deliveries").alias("total"))
    share = sf.col("deliveries") / sf.col("total")
    return counted.join(total, PART).select(
        *PART, "hops", "deliveries", share.alias("share"), "mean_ms"
    )
