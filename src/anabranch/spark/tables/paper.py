"""The tables of paper 000, section V-C, out of the traces of `propagation` runs.

A run is one topology; runs of equally many nodes are its repeats.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from anabranch.spark.tables.delays import curve, quantile
from anabranch.spark.tables.frames import distinct, live_arrivals
from anabranch.spark.tables.penalty import penalties
from anabranch.spark.tables.prediction import prediction
from anabranch.spark.tables.redundancy import redundancy


def propagation(records: DataFrame) -> DataFrame:
    """Return the rows of the lab's experiment of this name, as far as a trace tells them.

    Columns: nodes, mean_ms_min, mean_ms, mean_ms_max (of the repeats' means), p50_ms, p99_ms,
    max_ms (of all deliveries), rdp, duplicates, hops_mean, hops_max, estimated_ms, error_percent,
    repeats.
    """
    sizes = _sizes(records)
    means = records_by_run(records).join(sizes, "run").groupBy("nodes")
    summary = means.agg(
        *(fold("mean_ms").alias(f"mean_ms{name}") for name, fold in FOLDS.items()),
        sf.mean("rdp").alias("rdp"),
        sf.mean("duplicates").alias("duplicates"),
        sf.mean("estimated_ms").alias("estimated_ms"),
        sf.mean("error_percent").alias("error_percent"),
        sf.count("*").alias("repeats"),
    )
    pooled = (
        live_arrivals(records)
        .join(sf.broadcast(sizes), "run")
        .groupBy("nodes")
        .agg(
            quantile("delay_ms", [0.5, 0.99]).alias("percents"),
            sf.max("delay_ms").alias("max_ms"),
            sf.mean("hops").alias("hops_mean"),
            sf.max("hops").alias("hops_max"),
        )
    )
    return (
        summary.join(pooled, "nodes")
        .select(
            "nodes",
            *(_rounded(name) for name in ("mean_ms_min", "mean_ms", "mean_ms_max")),
            sf.round(sf.col("percents")[0], 3).alias("p50_ms"),
            sf.round(sf.col("percents")[1], 3).alias("p99_ms"),
            _rounded("max_ms"),
            *(_rounded(name, 4) for name in ("rdp", "duplicates", "hops_mean")),
            "hops_max",
            _rounded("estimated_ms"),
            _rounded("error_percent", 4),
            "repeats",
        )
        .orderBy("nodes")
    )


FOLDS = {"_min": sf.min, "": sf.mean, "_max": sf.max}


def records_by_run(records: DataFrame) -> DataFrame:
    """Return each run's means: run, mean_ms, rdp, duplicates, estimated_ms, error_percent."""
    means = live_arrivals(records).groupBy("run").agg(sf.mean("delay_ms").alias("mean_ms"))
    copies = redundancy(records).groupBy("run").agg(sf.mean("per_node").alias("duplicates"))
    told = (
        prediction(records)
        .groupBy("run")
        .agg(
            sf.mean("estimated_ms").alias("estimated_ms"),
            sf.mean("error_percent").alias("error_percent"),
        )
    )
    ratios = penalties(records).select("run", "rdp")
    return means.join(ratios, "run").join(copies, "run").join(told, "run")


def penalty_by_size(records: DataFrame) -> DataFrame:
    """Return what Figure 9 shows: nodes, rdp_min, rdp, rdp_max (of the repeats), repeats."""
    joined = penalties(records).select("run", "rdp").join(_sizes(records), "run")
    folds = [fold("rdp").alias(f"rdp{name}") for name, fold in FOLDS.items()]
    return joined.groupBy("nodes").agg(*folds, sf.count("*").alias("repeats")).orderBy("nodes")


def distribution_by_size(records: DataFrame) -> DataFrame:
    """Return what Figure 7 shows: nodes, share, delay_ms, of all repeats' deliveries together."""
    arrived = live_arrivals(records).join(sf.broadcast(_sizes(records)), "run")
    return curve(arrived, ["nodes"]).orderBy("nodes", "share")


def table_2(records: DataFrame) -> DataFrame:
    """Average message propagation delays: nodes, mean_ms_min, mean_ms, mean_ms_max,
    difference_ms and difference_percent (of the slowest topology from the fastest)."""
    means = (
        live_arrivals(records)
        .groupBy("run")
        .agg(distinct("node").alias("nodes"), sf.mean("delay_ms").alias("mean_ms"))
    )
    folds = [fold("mean_ms").alias(f"mean_ms{name}") for name, fold in FOLDS.items()]
    difference = sf.col("mean_ms_max") - sf.col("mean_ms_min")
    return (
        means.groupBy("nodes")
        .agg(*folds)
        .select(
            "nodes",
            *(_rounded(name) for name in ("mean_ms_min", "mean_ms", "mean_ms_max")),
            sf.round(difference, 3).alias("difference_ms"),
            _percent_of("mean_ms_min", difference).alias("difference_percent"),
        )
        .orderBy("nodes")
    )


def table_3(records: DataFrame) -> DataFrame:
    """Estimation accuracy: nodes, estimated_ms and measured_ms (means of the repeats' means),
    difference_ms, difference_percent (of the measured), mape (of the repeats, in percent)."""
    found = (
        prediction(records)
        .join(_sizes(records).withColumnRenamed("nodes", "size"), "run")
        .groupBy(sf.col("size").alias("nodes"))
        .agg(
            sf.mean("estimated_ms").alias("estimated_ms"),
            sf.mean("measured_ms").alias("measured_ms"),
            sf.mean("error_percent").alias("mape"),
        )
    )
    difference = sf.abs(sf.col("estimated_ms") - sf.col("measured_ms"))
    return found.select(
        *("nodes", _rounded("estimated_ms"), _rounded("measured_ms")),
        sf.round(difference, 3).alias("difference_ms"),
        _percent_of("measured_ms", difference).alias("difference_percent"),
        _rounded("mape", 4),
    ).orderBy("nodes")


def _sizes(records: DataFrame) -> DataFrame:
    return live_arrivals(records).groupBy("run").agg(distinct("node").alias("nodes"))


def _percent_of(whole: str, difference: Column) -> Column:
    return sf.round(sf.try_divide(100 * difference, sf.col(whole)), 4)


def _rounded(name: str, digits: int = 3) -> Column:
    return sf.round(name, digits).alias(name)
