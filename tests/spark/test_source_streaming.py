"""The source read continuously: every message once, over restarts, new partitions and failures."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from anabranch import Stream
from anabranch.core.errors import LocalError
from anabranch.live.errors import HistoryLost
from anabranch.spark import logs, source
from anabranch.spark.options import parse_options
from anabranch.spark.reading import Task
from anabranch.spark.session import explain
from anabranch.spark.source import AnabranchSource, StreamReader
from spark.network import RunningNetwork, running_network
from support.waiting import limit


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("streaming"), storage=3) as running:
        yield running


class Place:
    """A stream of two partitions, and how it is read."""

    def __init__(self, network: RunningNetwork, name: str) -> None:
        self.network = network
        path = network.folder / "owner.key"
        self.key_file = path if path.exists() else network.new_key_file("owner")
        owner = network.join(self.key_file)
        create = owner.create_stream(name, partitions=2, public=["subscribe"], storage=3)
        self.stream: Stream = network.run(create)

    def publish(self, numbers: range, partition: int = 0) -> None:
        self.network.store(self.stream, ({"n": n} for n in numbers), partition=partition)

    def options(self, **options: str) -> dict[str, str]:
        return self.network.options(self.key_file, subscribe=self.stream.id, **options)

    def reader(self, **options: str) -> StreamReader:
        found = AnabranchSource(self.options(**options))
        schema = found.schema()
        assert not isinstance(schema, str)
        return found.streamReader(schema)

    def at(self, *offsets: int) -> dict[str, int]:
        return {f"{self.stream.id}#{n}": offset for n, offset in enumerate(offsets)}


# --- Offsets ------------------------------------------------------------------------------------


def test_where_a_query_begins(network: RunningNetwork) -> None:
    place = Place(network, "begin")
    place.publish(range(10), 0)
    place.publish(range(5), 1)
    assert place.reader().initialOffset() == place.at(10, 5)
    assert place.reader(startingOffsets="earliest").initialOffset() == place.at(0, 0)
    named = json.dumps({place.stream.id: {"0": 3, "1": -1}})
    assert place.reader(startingOffsets=named).initialOffset() == place.at(3, 5)
    assert place.reader(startingTimestamp="0").initialOffset() == place.at(0, 0)
    beyond = json.dumps({place.stream.id: {"0": 11, "1": 0}})
    with pytest.raises(HistoryLost, match=r"offset 11 of .*#0 is out of range"):
        place.reader(startingOffsets=beyond).initialOffset()
    lax = place.reader(startingOffsets=beyond, failOnDataLoss="false")
    assert lax.initialOffset() == place.at(10, 0)
    with pytest.raises(LocalError, match="a stream does not end"):
        place.reader(endingOffsets="latest")


def test_how_far_a_batch_goes(network: RunningNetwork) -> None:
    place = Place(network, "batches")
    place.publish(range(90), 0)
    place.publish(range(10), 1)
    reader = place.reader(maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    assert reader.latestOffset(place.at(0, 0), limit) == place.at(18, 2)
    assert reader.latestOffset(place.at(0, 0), ReadAllAvailable()) == place.at(90, 10)
    assert reader.latestOffset(place.at(90, 10), limit) == place.at(90, 10)
    assert reader.reportLatestOffset() == place.at(90, 10)
    assert place.reader().getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_where_it_was_begun(network: RunningNetwork) -> None:
    place = Place(network, "now")
    place.publish(range(10))
    reader = place.reader()
    reader.prepareForTriggerAvailableNow()
    place.publish(range(10, 15))
    assert reader.latestOffset(place.at(0, 0), ReadAllAvailable()) == place.at(10, 0)
    assert reader.latestOffset(place.at(10, 0), ReadAllAvailable()) == place.at(10, 0)


def test_a_stream_that_was_made_anew_is_noticed(
    network: RunningNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(network, "anew")
    place.publish(range(4))
    start = place.at(50, 0)  # as a checkpoint of the stream before has it
    assert place.reader().latestOffset(start, ReadAllAvailable()) == start  # it may still come
    monkeypatch.setattr(source, "SHORTER_S", 0.0)
    with pytest.raises(HistoryLost, match=r"#0 was read up to 50, .* have it up to 4: if it was"):
        place.reader().latestOffset(start, ReadAllAvailable())
    lax = place.reader(failOnDataLoss="false")
    for _ in range(3):
        assert lax.latestOffset(start, ReadAllAvailable()) == start
    assert len(caplog.messages) == 1


def test_a_new_partition_is_read_from_its_start(
    network: RunningNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RENEW_S", 0.0)
    place = Place(network, "growing")
    place.publish(range(4))
    reader = place.reader()
    start = reader.initialOffset()
    network.run(place.stream.edit(partitions=3))
    place.publish(range(6), 2)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == place.at(4, 0, 6)
    (task,) = reader.partitions(start, end)
    assert isinstance(task, Task)
    assert (task.span.part.partition, task.span.start, task.span.end) == (2, 0, 6)


# --- Queries ------------------------------------------------------------------------------------


def run_query(
    spark: SparkSession, place: Place, folder: Path, **options: str
) -> list[dict[str, Any]]:
    """Read all there is into a table; return what Spark says of the batches."""
    options = {"startingOffsets": "earliest", **options}
    stream = spark.readStream.format("anabranch").options(**place.options(**options)).load()
    query = (
        stream.selectExpr("partition", "offset", "int(get_json_object(string(value), '$.n')) n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    try:
        assert query.awaitTermination(limit(60)), "the query does not end"
    finally:
        query.stop()
    return [json.loads(progress.json) for progress in query.recentProgress]


def table(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(folder / "table")).collect())


def test_a_query_goes_on_where_it_ended(
    network: RunningNetwork, spark: SparkSession, tmp_path: Path
) -> None:
    place = Place(network, "going")
    place.publish(range(50), 0)
    place.publish(range(50, 70), 1)
    batches = run_query(spark, place, tmp_path, maxOffsetsPerTrigger="30")
    assert [batch["numInputRows"] for batch in batches] == [30, 30, 10]
    assert table(spark, tmp_path) == list(range(70))
    assert batches[-1]["sources"][0]["endOffset"] == place.at(50, 20)

    # One of three storage nodes is gone: its offsets are the others' too.
    network.run(network.live.storage.pop().stop())
    place.publish(range(70, 100), 1)
    run_query(spark, place, tmp_path)
    assert table(spark, tmp_path) == list(range(100))


def test_a_query_of_nothing_says_so(network: RunningNetwork, spark: SparkSession) -> None:
    place = Place(network, "nothing")
    options = place.options() | {"subscribe": "other"}
    stream = spark.readStream.format("anabranch").options(**options).load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="there is no stream") as caught:
        query.awaitTermination(limit(60))
    assert explain(caught.value).startswith("there is no stream 0x")


def test_a_parsed_checkpoint_names_its_parts(network: RunningNetwork) -> None:
    place = Place(network, "parts")
    reader = place.reader()
    with pytest.raises(LocalError, match="names no part of a stream"):
        reader.partitions({}, {"topic-0": 5})
    assert reader.partitions(place.at(5, 5), place.at(5, 5)) == []
    assert parse_options(place.options()).streams == (place.stream.id,)
