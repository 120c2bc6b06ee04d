"""How long a live message takes until it is in a streaming query's sink.

    python benchmarks/spark_latency.py [--json] [--seconds N] [--rate N]

A tracker and three storage nodes run as processes of their own on the same two cores. Messages of
308 bytes say when they were published; the query's sink notes when it has them. A subscriber notes
the same beside it, without storage and Spark in between.
"""

import argparse
import asyncio
import json
import statistics
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch import Network, Stream, connect
from anabranch.live.local import LocalNetwork
from anabranch.spark.session import open_session

RATE = 1_000
SECONDS = 30.0
WARM_UP_S = 10.0  # a query's first batches are slow, and not counted
SIZE = 308
TICK_S = 0.01
STORAGE = 3
PATIENCE_S = 120.0
BAR_S = 1.5  # for 95 of 100 messages
# Half of a short batch is Spark's way of writing small files; these are for queries without state.
SETTINGS = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem"}

Delays = list[tuple[float, float]]  # when each message was published, and how long it took
Figures = dict[str, float]


def content(now: float) -> bytes:
    """Make a message that says when it was published."""
    return struct.pack("!d", now).ljust(SIZE, b"\0")


def delays(contents: Sequence[bytes], now: float) -> Delays:
    """Return how long messages were under way that have come now."""
    sent = [struct.unpack_from("!d", each)[0] for each in contents]
    return [(each, now - each) for each in sent]


def start_query(
    spark: SparkSession, options: dict[str, str], folder: Path, noted: Delays
) -> StreamingQuery:
    """Start a query whose sink notes what has come, and when."""

    def note(batch: DataFrame, number: int) -> None:
        values = batch.select("value").toArrow()["value"].to_pylist()
        noted.extend(delays(values, time.time()))

    rows = spark.readStream.format("anabranch").options(**options).load()
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.foreachBatch(note).start()


async def publish(stream: Stream, rate: int, until: float) -> int:
    """Publish at a rate, each message when it is due; return how many were."""
    began, published = time.time(), 0
    async with asyncio.TaskGroup() as tasks:
        while (now := time.time()) < until:
            while published < (now - began) * rate:
                tasks.create_task(stream.publish(content(time.time())))
                published += 1
            await asyncio.sleep(TICK_S)
    return published


async def subscribe(network: Network, name: str, noted: Delays) -> None:
    """Note what comes live, and when."""
    async with (await network.stream(name)).subscribe() as messages:
        async for message in messages:
            noted.extend(delays([message.content], time.time()))


async def until_noted(noted: Delays, count: int, query: StreamingQuery) -> None:
    """Wait until so many messages have come."""
    until = time.monotonic() + PATIENCE_S
    while len(noted) < count:
        if query.exception() is not None or time.monotonic() > until:
            raise SystemExit(f"{len(noted)} of {count} messages came: {query.exception()}")
        await asyncio.sleep(0.1)


async def measure(spark: SparkSession, folder: Path, rate: int, seconds: float) -> Figures:
    """Run a network and a query; return how long messages took to both."""
    async with AsyncExitStack() as stack:
        local = LocalNetwork(folder)
        stack.push_async_callback(local.stop)
        await local.start(1, 0, STORAGE)
        here, there = [
            await stack.enter_async_context(connect(local.address, key=local.owner_key))
            for _ in range(2)
        ]
        stream = await here.create_stream("live", public=["subscribe"], storage=STORAGE)
        of_query: Delays = []
        live: Delays = []
        subscribing = asyncio.create_task(subscribe(there, stream.id, live))
        stack.callback(subscribing.cancel)
        options = {
            "network": local.address,
            "keyFile": str(local.owner_key),
            "keyStore": str(folder / "keys.sqlite"),
            "subscribe": stream.id,
            "startingOffsets": "earliest",
        }
        query = await asyncio.to_thread(start_query, spark, options, folder, of_query)
        stack.push_async_callback(asyncio.to_thread, query.stop)
        await stream.publish(content(time.time()))
        await until_noted(of_query, 1, query)
        began = time.time() + WARM_UP_S
        published = 1 + await publish(stream, rate, began + seconds)
        await until_noted(of_query, published, query)
        assert len(of_query) == published, "something came twice"
        return figures(of_query, live, query.recentProgress, began, seconds)


def figures(
    of_query: Delays, live: Delays, batches: Sequence[Any], began: float, seconds: float
) -> Figures:
    """Summarise what was published after the warm-up."""
    took = [delay for sent, delay in of_query if sent >= began]
    percentiles = statistics.quantiles(took, n=100)
    of_live = statistics.quantiles([delay for sent, delay in live if sent >= began], n=100)
    each_s = [
        batch.durationMs["triggerExecution"] / 1000 for batch in batches if batch.numInputRows
    ]
    return {
        "messages": len(took),
        "per_s": len(took) / seconds,
        "p50_s": percentiles[49],
        "p95_s": percentiles[94],
        "p99_s": percentiles[98],
        "max_s": max(took),
        "batch_s": statistics.median(each_s),
        "live_p50_s": of_live[49],
        "live_p95_s": of_live[94],
        "p95_to_bar": percentiles[94] / BAR_S,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rate", type=int, default=RATE)
    arguments = parser.parse_args()
    spark = open_session("benchmark", "local[2]", **SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(spark, Path(folder), arguments.rate, arguments.seconds))
    spark.stop()
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"to the sink : p50 {found['p50_s']:.2f} s, p95 {found['p95_s']:.2f} s, p99 "
        f"{found['p99_s']:.2f} s at {found['per_s']:,.0f} messages/s; p95 is "
        f"{found['p95_to_bar']:.2f} of the bar ({BAR_S} s)"
    )
    print(
        f"beside it   : a batch takes {found['batch_s']:.2f} s; a subscriber has messages after "
        f"p50 {found['live_p50_s'] * 1000:.0f} ms, p95 {found['live_p95_s'] * 1000:.0f} ms"
    )


if __name__ == "__main__":
    main()
