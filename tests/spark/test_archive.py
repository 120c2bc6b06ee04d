"""Streams into tables: each message once, however often the job stops, starts and repeats."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch import LocalError, Network, Stream
from anabranch.spark.archive import Archive, append_once, check_archive, start_archive
from spark.network import RunningNetwork, running_network
from support.waiting import limit

TIMEOUT_S = 60


class City:
    """A network with one stored stream, and somebody who publishes to it."""

    def __init__(self, network: RunningNetwork) -> None:
        self.network = network
        self.key = network.new_key_file("owner")
        self.client: Network = network.join(self.key)
        create = self.client.create_stream("city/vehicles", partitions=2, storage=1)
        self.stream: Stream = network.run(create)
        self.published = 0

    def publish(self, count: int) -> None:
        async def publish() -> None:
            for number in range(self.published, self.published + count):
                await self.stream.publish_stored({"n": number}, partition=number % 2)

        self.network.run(publish())
        self.published += count

    def archive(self, out: Path, **more: Any) -> Archive:
        options = self.network.options(self.key)
        return Archive((self.stream.id,), str(out), available_now=True, access=options, **more)


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    with running_network(tmp_path_factory.mktemp("network")) as network:
        yield City(network)


def run(spark: SparkSession, archive: Archive) -> list[tuple[int, int]]:
    """Run the job until it has what there is; return its batches and how many rows each took."""
    check_archive(archive)
    query = start_archive(spark, archive)
    assert query.awaitTermination(limit(TIMEOUT_S)), "it does not end"
    return [(progress.batchId, progress.numInputRows) for progress in query.recentProgress]


def numbers(table: DataFrame) -> list[int]:
    return sorted(json.loads(row.value)["n"] for row in table.collect())


def replay_last_batch(checkpoint: Path) -> None:
    """Forget that the last batch was done, as a driver does that dies before it notes it."""
    last = max(int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    for file in (checkpoint / "commits").iterdir():
        if file.name.strip(".").startswith(f"{last}"):
            file.unlink()


def test_parquet_has_each_message_once_over_stops_starts_and_repeats(
    spark: SparkSession, city: City, tmp_path: Path
) -> None:
    archive = city.archive(tmp_path / "table")
    before = city.published
    city.publish(20)
    assert run(spark, archive) == [(0, before + 20)]
    city.publish(11)
    assert run(spark, archive) == [(1, 11)]
    replay_last_batch(Path(archive.remembers))
    assert run(spark, archive) == [(1, 0)], "the batch is run again, and finds its rows there"
    table = spark.read.parquet(archive.out)
    assert numbers(table) == list(range(before + 31))
    assert table.columns[-3:] == ["folder", "partition", "date"]
    owner = city.stream.id.partition("/")[0]
    folders = sorted(path.name for path in Path(archive.out).glob("folder=*"))
    assert folders == [f"folder={owner}-city-vehicles"]
    assert {row.stream for row in table.collect()} == {city.stream.id}
    shutil.rmtree(Path(archive.out) / "_spark_metadata")
    with pytest.raises(LocalError, match=r"is gone, .* restore the table, or remove that"):
        check_archive(archive)


def test_delta_has_each_message_once_over_stops_starts_and_repeats(
    spark: SparkSession, city: City, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    archive = city.archive(tmp_path / "table", format="delta")
    before = city.published
    city.publish(20)
    run(spark, archive)
    city.publish(11)
    run(spark, archive)
    version = DeltaTable(archive.out).version()
    replay_last_batch(Path(archive.remembers))
    assert run(spark, archive) == [(1, 0)], "the batch is run again, and finds its rows there"
    table = DeltaTable(archive.out)
    assert table.version() == version, "a batch that is there already was written again"
    assert table.metadata().partition_columns == ["folder", "partition", "date"]
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(before + 31))
    query = json.loads((Path(archive.remembers) / "metadata").read_text())["id"]
    assert table.transaction_version(query) is not None
    shutil.rmtree(Path(archive.out) / "_delta_log")
    with pytest.raises(LocalError, match=r"is gone, .* restore the table, or remove that"):
        check_archive(archive)


def test_a_batch_of_another_query_is_not_taken_for_ours(
    spark: SparkSession, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    for name in ("first", "second", "first"):
        append_once(str(tmp_path / "table"), named(name))(some_rows(spark), 0)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 6


def test_there_is_a_table_even_if_nothing_came_yet(spark: SparkSession, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    append_once(str(tmp_path / "table"), named("archive"))(some_rows(spark).limit(0), 0)
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 0


def test_of_two_attempts_at_the_first_batch_one_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    out, began, over = str(tmp_path / "table"), tmp_path / "began", tmp_path / "over"
    append = append_once(out, named("archive"))

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for batch in batches:
            began.touch()
            while not over.exists():
                time.sleep(0.01)
            yield batch

    rows = some_rows(spark).coalesce(1)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(append, rows.mapInArrow(hold, rows.schema), 0)
        while not began.exists() and not held.done():
            wait([held], timeout=0.01)
        append(some_rows(spark), 0)
        over.touch()
        with pytest.raises(LocalError, match="see that this job runs once, and start it again"):
            held.result(limit(TIMEOUT_S))
    assert DeltaTable(out).to_pyarrow_table().num_rows == 3
    assert DeltaTable(out).metadata().partition_columns == ["folder", "partition", "date"]


def some_rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("id", "'f' folder", "0 partition", "current_date() date")


def named(name: str) -> "Future[str]":
    query: Future[str] = Future()
    query.set_result(name)
    return query


def test_what_cannot_be_done_is_said_before_spark_is_asked(tmp_path: Path) -> None:
    def archive(**more: Any) -> Archive:
        return Archive(**{"streams": ("0xaa/a",), "out": str(tmp_path / "out"), **more})

    with pytest.raises(LocalError, match="--format csv: choose of parquet, delta"):
        check_archive(archive(format="csv"))
    with pytest.raises(LocalError, match="leave one of them out"):
        check_archive(archive(available_now=True, trigger="1 second"))
    with pytest.raises(LocalError, match="cannot be written to"):
        check_archive(archive(out="/dev/null/table"))
    check_archive(archive())
    check_archive(archive())
    checkpoint = archive().remembers
    with pytest.raises(LocalError, match=r"of another job .streams: 0xaa/a, not 0xaa/b"):
        check_archive(archive(streams=("0xaa/b",)))
    with pytest.raises(LocalError, match=r"of another job .*format: parquet, not delta"):
        check_archive(archive(format="delta"))
    (tmp_path / "out" / "_spark_metadata").mkdir()
    shutil.rmtree(checkpoint)
    with pytest.raises(LocalError, match="holds a table already"):
        check_archive(archive())
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "metadata").write_text("{}")
    with pytest.raises(LocalError, match="the checkpoint of another program"):
        check_archive(archive(out=str(tmp_path / "new"), checkpoint=str(foreign)))
