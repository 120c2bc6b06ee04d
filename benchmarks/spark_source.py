"""How fast Spark reads a stored stream, beside Spark reading the same rows from Parquet.

    python benchmarks/spark_source.py [--json] [--messages N]

A tracker and a storage node run as processes of their own on the same two cores. Messages have 308
bytes, in signed frames of 32. Everything goes into Spark's noop sink; the ways of reading take
turns, in one run. `verify` checks every signature at the executors: what that takes longer is
printed beside what as many signatures take alone, in as many processes.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from anabranch import connect
from anabranch.core.frames import build, digest, signature
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.core.store import Order, Settle
from anabranch.live.keys import load_key
from anabranch.live.local import LocalNetwork
from anabranch.live.storage.sqlite import SqliteLogStore
from anabranch.spark.session import open_session

MESSAGES = 600_000
EACH = 32  # messages of a frame
SIZE = 308
PARTITIONS = 2
CORES = 2
ROUNDS = 5
BATCH = 512  # frames that are written at a time
BAR = 150_000  # messages a second
CHECKED = 2_000  # signatures that are checked alone

Figures = dict[str, float]


def signed_frames(part: StreamPart, key_file: Path, messages: int) -> list[bytes]:
    """Make the frames of a part, as its publisher would."""
    identity, chain = load_key(key_file), 7
    number, previous = number_of(int(time.time() * 1000) - 200_000, 0), 0
    frames = []
    for _ in range(messages // EACH):
        drafts = []
        for _ in range(EACH):
            number += 1
            drafts.append((number, Draft(number.to_bytes(8) + bytes(SIZE - 8), 0)))
        key = chain_key(identity.node, chain)
        frames.append(build(part_key(part), key, previous, drafts, identity.sign))
        previous = number
    return frames


async def prepare(folder: Path, messages: int) -> tuple[LocalNetwork, str, list[bytes]]:
    """Start a network whose storage node has a stream on its disk already."""
    network = LocalNetwork(folder)
    await network.start(1, 0, 1)
    async with connect(network.address, key=network.owner_key) as client:
        stream = await client.create_stream(
            "bench", partitions=PARTITIONS, public=["subscribe"], storage=1
        )
    storage = network.storage[0]
    await storage.stop()
    store, frames = SqliteLogStore(folder / "storage-0" / "logs.sqlite"), []
    for partition in range(PARTITIONS):
        part = StreamPart(stream.id, partition)
        frames = signed_frames(part, network.owner_key, messages // PARTITIONS)
        for at in range(0, len(frames), BATCH):
            now_ms = int(time.time() * 1000)
            store.write([[Order(part, 1, now_ms, tuple(frames[at : at + BATCH]))]])
        store.write([[Settle(part, len(frames) * EACH)]])
    store.close()
    await storage.start()
    return network, stream.id, frames


def check_signatures(frames: list[bytes]) -> float:
    """Return how long one signature takes, in seconds."""
    known = KnownKeys()
    publisher = load_publisher(frames[0])
    begin = time.perf_counter()
    for frame in frames:
        assert known.verify(publisher, digest(frame), signature(frame))
    return (time.perf_counter() - begin) / len(frames)


def load_publisher(frame: bytes) -> "object":
    """Return who signed a frame."""
    from anabranch.core.frames import peek

    return peek(frame).publisher


def signature_s(frames: list[bytes]) -> float:
    """Return how long a signature takes while every core checks some."""
    with ProcessPoolExecutor(CORES) as pool:
        return max(pool.map(check_signatures, [frames[:CHECKED]] * CORES))


def seconds(frame: DataFrame) -> float:
    """Read everything into nowhere; return how long that took."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def measure(
    spark: SparkSession, folder: Path, network: LocalNetwork, stream: str, frames: list[bytes]
) -> Figures:
    """Let the ways of reading take turns."""
    options = {
        "network": network.address,
        "keyFile": str(network.owner_key),
        "keyStore": str(folder / "keys.sqlite"),
        "subscribe": stream,
    }

    def source(**more: str) -> DataFrame:
        return spark.read.format("anabranch").options(**options, **more).load()

    parquet = str(folder / "table.parquet")
    source().write.option("compression", "none").parquet(parquet)
    total = len(frames) * PARTITIONS * EACH
    assert spark.read.parquet(parquet).distinct().count() == total
    ways: dict[str, Callable[[], DataFrame]] = {
        "source": source,
        "verify": lambda: source(verify="true"),
        "parquet": lambda: spark.read.parquet(parquet),
    }
    for way in ways.values():
        seconds(way())  # the first time costs more
    took: dict[str, list[float]] = {name: [] for name in ways}
    alone = []
    for _ in range(ROUNDS):
        for name, way in ways.items():
            took[name].append(seconds(way()))
        alone.append(signature_s(frames))
    middle = {name: statistics.median(times) for name, times in took.items()}
    each_s = statistics.median(alone)
    signatures_s = each_s * total / EACH / CORES
    return {
        "messages": total,
        "source_per_s": total / middle["source"],
        "verify_per_s": total / middle["verify"],
        "parquet_per_s": total / middle["parquet"],
        "ratio_to_parquet": middle["parquet"] / middle["source"],
        "verify_extra_s": middle["verify"] - middle["source"],
        "signatures_alone_s": signatures_s,
        "signature_us": each_s * 1e6,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    arguments = parser.parse_args()
    spark = open_session("benchmark", f"local[{CORES}]")
    with tempfile.TemporaryDirectory() as name, asyncio.Runner() as runner:
        folder = Path(name)
        prepared = runner.run(prepare(folder, arguments.messages))
        try:
            found = measure(spark, folder, *prepared)
        finally:
            runner.run(prepared[0].stop())
    spark.stop()
    if arguments.json:
        print(json.dumps(found))
        return
    print(
        f"source : {found['source_per_s']:,.0f} messages/s, Parquet {found['parquet_per_s']:,.0f}, "
        f"ratio {found['ratio_to_parquet']:.3f} (bar {BAR:,} messages/s)"
    )
    print(
        f"verify : {found['verify_per_s']:,.0f} messages/s: {found['verify_extra_s']:.2f} s more; "
        f"the signatures alone {found['signatures_alone_s']:.2f} s "
        f"({found['signature_us']:.0f} us each, on {CORES} cores)"
    )


if __name__ == "__main__":
    main()
