"""Records in, tables out: pure functions from DataFrame to DataFrame.

`TABLES` are those that say something about any run, by name; each function tells its columns.
Frames are counted where nothing else is said; a frame holds one or more messages.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from anabranch.spark.tables.coverage import coverage, expectations, subscriptions
from anabranch.spark.tables.delays import delays, distribution, hops
from anabranch.spark.tables.frames import arrivals, carried, live_arrivals, published
from anabranch.spark.tables.gaps import CAUSES, gaps, missing
from anabranch.spark.tables.load import links, load
from anabranch.spark.tables.paper import (
    distribution_by_size,
    penalty_by_size,
    propagation,
    table_2,
    table_3,
)
from anabranch.spark.tables.penalty import pair_penalties, penalties
from anabranch.spark.tables.prediction import prediction, topology
from anabranch.spark.tables.redundancy import redundancy
from anabranch.spark.tables.runs import runs
from anabranch.spark.tables.slow_nodes import slow_nodes

TABLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "runs": runs,
    "delays": delays,
    "distribution": distribution,
    "hops": hops,
    "penalties": penalties,
    "redundancy": redundancy,
    "coverage": coverage,
    "gaps": gaps,
    "prediction": prediction,
    "load": load,
    "links": links,
    "slow_nodes": slow_nodes,
}

PAPER: dict[str, Callable[[DataFrame], DataFrame]] = {"table-2": table_2, "table-3": table_3}

# What several tables begin with.
SHARED: tuple[Callable[[DataFrame], DataFrame], ...] = (
    arrivals,
    published,
    carried,
    expectations,
)


@contextmanager
def shared(records: DataFrame) -> Iterator[DataFrame]:
    """Let Spark work out but once, within `with`, what the tables of these records have in common.

    The tables find it by themselves: they ask for the same thing in the same words.
    """
    kept = [make(records).persist() for make in SHARED]
    try:
        yield records
    finally:
        for each in kept:
            each.unpersist()


__all__ = [
    "CAUSES",
    "PAPER",
    "TABLES",
    "arrivals",
    "carried",
    "coverage",
    "delays",
    "distribution",
    "distribution_by_size",
    "expectations",
    "gaps",
    "hops",
    "links",
    "live_arrivals",
    "load",
    "missing",
    "pair_penalties",
    "penalties",
    "penalty_by_size",
    "prediction",
    "propagation",
    "published",
    "redundancy",
    "runs",
    "shared",
    "slow_nodes",
    "subscriptions",
    "table_2",
    "table_3",
    "topology",
]
