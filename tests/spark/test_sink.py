"""The sink: every row once and in order, of tables and of queries that are run again."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from anabranch.core.frames import peek
from spark.network import RunningNetwork, running_network
from spark.places import Place, contents, place
from support.waiting import limit

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("sink"), storage=2) as running:
        yield running


@pytest.fixture(scope="module")
def writer(network: RunningNetwork) -> Path:
    return network.new_key_file("writer")


def write(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("anabranch").mode("append").options(**options, **more).save()


def test_a_table_arrives_once_each_and_in_order(
    spark: SparkSession, network: RunningNetwork, writer: Path
) -> None:
    frame = spark.range(0, 1_000, 1, 2).selectExpr(
        "format_string('%04d', id) value", "cast(id % 10 as string) key", "id"
    )
    with place(network, writer, "once", partitions=3) as there:
        write(frame, there.options, orderBy="id", copies="2")
        came = there.wait_for(1_000)
        assert Counter(contents(came)) == Counter(f"{n:04d}" for n in range(1_000))
        by_chain: dict[tuple[str, int], list[str]] = {}
        for message in came:
            by_chain.setdefault((message.chain, message.partition), []).append(message.content)
            assert message.content[-1:].encode() == message.key
        assert all(of_chain == sorted(of_chain) for of_chain in by_chain.values())
        assert {partition for _, partition in by_chain} == {0, 1, 2}
        assert sorted(contents(there.stored())) == sorted(contents(came))


def test_rows_name_their_partition_and_type(
    spark: SparkSession, network: RunningNetwork, writer: Path
) -> None:
    frame = spark.createDataFrame([(1, '{"n": 1}'), (0, '{"n": 0}')], "partition int, value string")
    with place(network, writer, "chosen", partitions=2) as there:
        write(frame, there.options, contentType="json")
        came = there.wait_for(2)
        assert sorted((m.partition, m.content["n"]) for m in came) == [(0, 0), (1, 1)]


def start(spark: SparkSession, folder: Path, there: Place, **more: str) -> StreamingQuery:
    frame = (
        spark.readStream.schema("n int").option("maxFilesPerTrigger", "1").json(str(folder / "in"))
    )
    rows = frame.selectExpr("cast(n as string) value", "cast(n as string) key").repartition(2)
    checkpoint = str(folder / "checkpoint")
    stream = rows.writeStream.format("anabranch").options(**there.options, **more)
    return stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def give(folder: Path, batch: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    lines = [json.dumps({"n": n}) for n in range(batch * 10, batch * 10 + 10)]
    (folder / "in" / f"{batch}.json").write_text("\n".join(lines))


@pytest.mark.parametrize("public", [["subscribe"], []], ids=["public", "private"])
def test_a_query_that_is_stopped_and_replayed_publishes_nothing_twice(
    spark: SparkSession,
    network: RunningNetwork,
    writer: Path,
    tmp_path: Path,
    public: list[str],
) -> None:
    with place(network, writer, f"query/{len(public)}", public=public, partitions=2) as there:
        for batch in range(2):
            give(tmp_path, batch)
        start(spark, tmp_path, there).awaitTermination(limit(TIMEOUT_S))
        there.wait_for(20)
        frames = there.frames()
        for batch in range(2):  # the last batch did not come to its end, as it seems
            commits = tmp_path / "checkpoint" / "commits"
            newest = max(int(p.name) for p in commits.iterdir() if p.name.isdecimal())
            (commits / f"{newest}").unlink()
            (commits / f".{newest}.crc").unlink(missing_ok=True)
            start(spark, tmp_path, there).awaitTermination(limit(TIMEOUT_S))
            assert there.frames() == frames
            if batch:
                give(tmp_path, 2)
                start(spark, tmp_path, there).awaitTermination(limit(TIMEOUT_S))
        came = there.wait_for(30)
        assert sorted(map(int, contents(came))) == list(range(30))
        assert sorted(map(int, contents(there.stored()))) == list(range(30))
        assert [message.gaps for message in came] == [()] * 30


def test_a_chain_goes_on_from_batch_to_batch(
    spark: SparkSession, network: RunningNetwork, writer: Path, tmp_path: Path
) -> None:
    with place(network, writer, "linked") as there:
        for batch in range(3):
            give(tmp_path, batch)
            start(spark, tmp_path, there).awaitTermination(limit(TIMEOUT_S))
        heads = sorted((peek(f) for f in there.frames().values()), key=lambda h: h.last)
        for chain in {head.chain for head in heads}:
            of_chain = [head for head in heads if head.chain == chain]
            assert len(of_chain) == 3
            assert [h.previous for h in of_chain] == [0, *(h.last for h in of_chain[:-1])]
