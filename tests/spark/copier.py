"""A driver that copies a stream, in a process of its own: into a table, and into another stream.

    python copier.py ORDERS

It says `started`, and goes on until it is killed; or, if its orders say `to_the_end`, until it has
copied all there is, and then writes down the table as Spark reads it.
"""

import json
import os
import sys
import threading
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.session import SETTINGS, open_session, register

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Drivers that are killed soon have nothing of code that is compiled well.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

QUERIES = ("table", "copy")
# Everything that names a message, and what it says.
COLUMNS = (
    "partition",
    "unix_millis(timestamp) timestamp_ms",
    "sequence",
    "publisher",
    "chain",
    "string(key) key",
    "string(value) value",
)


class Orders(msgspec.Struct, frozen=True):
    """What to copy from where to where."""

    source: dict[str, str]
    sink: dict[str, str]
    folder: str
    to_the_end: bool = False
    queries: tuple[str, ...] = QUERIES
    master: str = "local[2]"
    conf: dict[str, str] = {}

    @property
    def table(self) -> str:
        """The folder of the table."""
        return f"{self.folder}/table"

    @property
    def written_down(self) -> Path:
        """The file with the table's rows, in the end."""
        return Path(self.folder, "table.json")

    def checkpoint(self, query: str) -> Path:
        """Return the folder in which a query remembers how far it came."""
        return Path(self.folder, f"{query}-checkpoint")


def read(spark: SparkSession, orders: Orders) -> DataFrame:
    """Read the stream, for one query."""
    register(spark)
    rows = spark.readStream.format("anabranch").options(**orders.source).load()
    return rows.selectExpr(*COLUMNS)


def start(spark: SparkSession, orders: Orders) -> list[StreamingQuery]:
    """Start the queries."""
    found = []
    for name in orders.queries:
        rows = read(spark, orders)
        if name == "table":
            writer = rows.writeStream.format("parquet").option("path", orders.table)
        else:
            values = rows.selectExpr("key", "value")
            writer = values.writeStream.format("anabranch").options(**orders.sink)
        checkpoint = str(orders.checkpoint(name))
        writer = writer.queryName(name).option("checkpointLocation", checkpoint)
        if orders.to_the_end:
            writer = writer.trigger(availableNow=True)
        found.append(writer.start())
    return found


def write_down(spark: SparkSession, orders: Orders) -> None:
    """Write down what is in the table."""
    rows = [list(row) for row in spark.read.parquet(orders.table).collect()]
    orders.written_down.write_text(json.dumps(rows))


def end_with_parent() -> None:
    """End when standard input closes: whoever gave the orders is gone."""
    sys.stdin.read()
    os._exit(1)


def main(orders: Orders) -> None:
    """Copy as ordered."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    conf = {
        JAVA_OPTIONS: f"{SETTINGS[JAVA_OPTIONS]} {QUICK_JAVA}",
        "spark.sql.shuffle.partitions": "2",
        **orders.conf,
    }
    spark = open_session("copier", orders.master, **conf)
    queries = start(spark, orders)
    print("started", flush=True)
    if not orders.to_the_end:
        spark.streams.awaitAnyTermination()
        raise AssertionError("a query ended, and nobody had asked it to")
    for query in queries:
        query.awaitTermination()
    if "table" in orders.queries:
        write_down(spark, orders)
    spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Orders))
