"""The source as Spark's users meet it: read once, in tables, with clear errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import EqualTo, GreaterThan

from anabranch import Stream
from anabranch.core.errors import LocalError
from anabranch.live.errors import AnabranchError
from anabranch.spark.options import parse_options
from anabranch.spark.reading import Task
from anabranch.spark.session import explain
from anabranch.spark.source import AnabranchSource, BatchReader
from spark.network import RunningNetwork, running_network

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
MANY = 600


class Place:
    """A network with a public stream of two partitions and a private one."""

    def __init__(self, network: RunningNetwork) -> None:
        self.network = network
        self.key_file = network.new_key_file("owner")
        self.owner = network.join(self.key_file)
        run = network.run
        create = self.owner.create_stream("cars", partitions=2, public=["subscribe"], storage=2)
        self.cars: Stream = run(create)
        self.private: Stream = run(self.owner.create_stream("private", storage=1))
        for partition in range(2):
            numbers = range(partition, MANY, 2)
            contents = ({"n": n, "line": f"line {n % 7}"} for n in numbers)
            network.store(self.cars, contents, partition=partition)
        network.store(self.private, ({"n": n} for n in range(20)))

    def options(self, key_file: Path | None = None, **options: str) -> dict[str, str]:
        return self.network.options(key_file or self.key_file, **options)

    def table(self, spark: SparkSession, **options: Any) -> DataFrame:
        return spark.read.format("anabranch").options(**self.options(**options)).load()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_network(tmp_path_factory.mktemp("source"), storage=2) as network:
        yield Place(network)


def numbers(table: DataFrame) -> list[int]:
    return sorted(json.loads(bytes(row.value))["n"] for row in table.select("value").collect())


def test_a_stream_is_a_table(place: Place, spark: SparkSession) -> None:
    place.network.store(place.cars, [{"n": MANY}], key="one of many")
    table = place.table(spark, subscribe="cars", minPartitions="5")
    assert [(field.name, field.dataType.simpleString()) for field in table.schema] == [
        ("stream", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("sequence", "int"),
        ("publisher", "string"),
        ("chain", "string"),
        ("late", "boolean"),
        ("key", "binary"),
        ("value", "binary"),
    ]
    rows = table.collect()
    assert sorted(json.loads(bytes(row.value))["n"] for row in rows) == list(range(MANY + 1))
    places = {(row.partition, row.offset) for row in rows}
    assert len(places) == len(rows)
    assert {row.stream for row in rows} == {place.cars.id}
    assert {row.publisher for row in rows} == {place.owner.me}
    keys = {row.key and bytes(row.key): json.loads(bytes(row.value))["n"] for row in rows}
    assert keys[b"one of many"] == MANY
    assert set(keys) == {None, b"one of many"}
    assert table.rdd.getNumPartitions() >= 5


def test_offsets_and_assignments_limit_what_is_read(place: Place, spark: SparkSession) -> None:
    table = place.table(
        spark,
        assign='{"cars": [1]}',
        startingOffsets='{"cars": {"1": 10}}',
        endingOffsets='{"cars": {"1": 20}}',
    )
    assert numbers(table) == [2 * offset + 1 for offset in range(10, 20)]


def test_values_of_private_streams_are_decrypted_checked_and_decoded(
    place: Place, spark: SparkSession
) -> None:
    reader = place.network.new_key_file("reader")
    place.network.run(place.private.grant(place.network.join(reader).me, "subscribe"))
    table = place.table(
        spark,
        key_file=reader,
        subscribe=f"{place.private.id},{place.cars.id}",
        valueSchema="n BIGINT, line STRING",
        verify="true",
    )
    assert table.schema["value"].dataType.simpleString() == "struct<n:bigint,line:string>"
    rows = table.where(f"stream = '{place.private.id}'").select("value.*").collect()
    assert [tuple(row) for row in rows] == [(n, None) for n in range(20)]
    assert table.where("value.line = 'line 3'").count() == len(range(3, MANY, 7))


def test_conditions_are_looked_at_before_anything_is_read(
    place: Place, spark: SparkSession
) -> None:
    whole = place.table(spark, subscribe="cars").collect()
    times = sorted({row.timestamp for row in whole})
    middle = times[len(times) // 2]
    condition = (
        f"timestamp > '{middle}' and partition = 1 and publisher = '{place.owner.me}' "
        "and offset < 250"
    )
    expected = {
        (row.partition, row.offset)
        for row in whole
        if row.timestamp > middle and row.partition == 1 and row.offset < 250
    }
    plans = []
    assert spark.conf.get(PUSHDOWN) == "true"  # as our sessions are opened
    for setting in ("false", "true"):
        spark.conf.set(PUSHDOWN, setting)
        table = place.table(spark, subscribe="cars").where(condition)
        assert {(row.partition, row.offset) for row in table.collect()} == expected
        plans.append(table._jdf.queryExecution().executedPlan().toString())
    assert "Filter" in plans[0].replace("RuntimeFilters", "")
    assert "Filter" not in plans[1].replace("RuntimeFilters", "")


def test_conditions_leave_out_whole_tasks(place: Place) -> None:
    reader = BatchReader(parse_options(place.options(subscribe="cars")), t.StructType())
    left = reader.pushFilters([EqualTo(("partition",), 0), GreaterThan(("offset",), 99)])
    assert left == []
    (task,) = reader.partitions()
    assert isinstance(task, Task)
    assert (task.span.part.partition, task.span.start) == (0, 100)


# --- Errors -------------------------------------------------------------------------------------


def read(source: AnabranchSource) -> None:
    """Do what Spark does before it starts tasks."""
    schema = source.schema()
    assert not isinstance(schema, str)
    source.reader(schema).partitions()


def test_a_mistake_is_answered_with_one_sentence(place: Place) -> None:
    stranger = place.network.new_key_file("stranger")
    fleeting = place.network.run(place.owner.create_stream("fleeting", public=["subscribe"]))
    genesis = place.network.address.partition("@")[0]
    beyond = '{"cars": {"0": 9999, "1": 0}}'
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"subscribe": "trams"}, "there is no stream"),
        ({"subscribe": place.private.id, "key_file": stranger}, "may not subscribe to"),
        ({"subscribe": fleeting.id}, "no storage node keeps"),
        ({"subscribe": "cars", "network": f"{genesis}@127.0.0.1:1"}, "127.0.0.1:1"),
        ({"subscribe": "cars", "topic": "x"}, "there is no option 'topic'"),
        ({"subscribe": "cars", "assign": "{}"}, "not both"),
        ({"assign": '{"cars": [7]}'}, "there is no partition 7"),
        ({"subscribe": "cars", "startingOffsets": "latest"}, "cannot begin at the latest"),
        ({"subscribe": "cars", "maxOffsetsPerTrigger": "5"}, "is for readStream"),
        ({"subscribe": "cars", "startingOffsets": beyond}, "offset 9999 of"),
        ({"subscribe": "cars", "valueSchema": "{}"}, "valueSchema is not the JSON"),
        ({"subscribe": "cars", "valueSchema": "n INTT"}, "valueSchema has 'INTT' after 'n'"),
    ]
    for options, words in mistakes:
        source = AnabranchSource(place.options(**options))
        with pytest.raises((LocalError, AnabranchError)) as caught:
            read(source)
        assert words in str(caught.value), options
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "trams"}, "there is no stream 0x"),
        ({"subscribe": "cars", "valueSchema": "n STRING"}, "the value of 0x"),
        ({"subscribe": "cars", "valueSchema": "n MAP<STRING, INT>"}, "valueSchema: value.n is map"),
    ],
)
def test_the_sentence_can_be_found_in_what_spark_says(
    place: Place, spark: SparkSession, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        place.table(spark, **options).collect()
    assert explain(caught.value).startswith(words)


def test_a_schema_of_ones_own_is_refused(place: Place) -> None:
    source = AnabranchSource(place.options(subscribe="cars"))
    with pytest.raises(LocalError, match="leave out schema"):
        source.reader(t.StructType([t.StructField("n", t.LongType())]))
