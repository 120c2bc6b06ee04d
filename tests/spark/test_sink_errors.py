"""What a sink cannot do is said in one sentence, and nothing is published."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructType

from anabranch.core.errors import LocalError
from anabranch.live.errors import NoSuchStream
from anabranch.spark.session import explain
from anabranch.spark.sink import MAX_TASKS, SinkStreamWriter, SinkWriter, check_task
from spark.network import RunningNetwork, running_network
from spark.places import Place, place

TEXT = StructType().add("value", StringType())
BY_NAME = {
    "string": StringType(),
    "int": IntegerType(),
    "double": DoubleType(),
}


def columns_of(text: str) -> StructType:
    """Read `name type, name type` without Spark."""
    schema = StructType()
    for column in text.split(", "):
        name, _, kind = column.partition(" ")
        schema.add(name, BY_NAME[kind])
    return schema


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNetwork]:
    with running_network(tmp_path_factory.mktemp("errors")) as running:
        yield running


@pytest.fixture(scope="module")
def there(network: RunningNetwork) -> Iterator[Place]:
    with place(network, network.new_key_file("owner"), "there", partitions=2, storage=1) as made:
        yield made


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stream": " "}, "name the stream"),
        ({"copies": "2"}, "has 1 storage nodes"),
        ({"copies": "none"}, "write a number"),
        ({"topic": "x"}, "there is no option 'topic'"),
        ({"orderBy": "when"}, "orderBy names when"),
        ({"contentType": "xml"}, "write bytes, text, json"),
    ],
)
def test_options_that_make_no_sense(there: Place, more: dict[str, str], said: str) -> None:
    with pytest.raises(LocalError, match=said):
        SinkWriter({**there.options, **more}, TEXT)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("value int", "the column value is int, and must be binary or string"),
        ("n int", "there is no column value among n"),
        ("value string, key double", "the column key is double"),
        ("value string, partition string", "the column partition is string, and must be an int"),
    ],
)
def test_columns_that_cannot_be_written(there: Place, columns: str, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        SinkWriter(there.options, columns_of(columns))


def test_streams_that_cannot_be_written_to(network: RunningNetwork, there: Place) -> None:
    stranger = network.options(network.new_key_file("stranger"), stream=there.stream.id)
    with pytest.raises(LocalError, match=r"may not publish to .* can permit it"):
        SinkWriter(stranger, TEXT)
    with pytest.raises(NoSuchStream, match="there is no stream"):
        SinkWriter({**there.options, "stream": "nowhere"}, TEXT)
    with (
        place(network, Path(there.options["keyFile"]), "unstored", storage=0) as unstored,
        pytest.raises(LocalError, match="no storage node keeps"),
    ):
        SinkWriter(unstored.options, TEXT)


def test_what_is_written_stays(there: Place) -> None:
    for kind in (SinkWriter, SinkStreamWriter):
        with pytest.raises(LocalError, match="cannot be taken back"):
            kind(there.options, TEXT, True)


def test_a_query_names_its_checkpoint(there: Place, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"option\('checkpointLocation'"):
        SinkStreamWriter(there.options, TEXT)
    with pytest.raises(LocalError, match="has no batch"):
        SinkStreamWriter({**there.options, "checkpointLocation": str(tmp_path)}, TEXT)


def test_more_tasks_than_nodes_can_tell_apart() -> None:
    check_task(MAX_TASKS - 1)
    with pytest.raises(LocalError, match=r"use coalesce\(256\)"):
        check_task(MAX_TASKS)


def test_spark_says_no_more_than_we_do(spark: SparkSession, there: Place) -> None:
    good = spark.createDataFrame([("a",)], "value string")

    def problem(frame: DataFrame, **more: str) -> str:
        with pytest.raises(PySparkException) as caught:
            frame.write.format("anabranch").mode("append").options(**there.options | more).save()
        return explain(caught.value)

    assert problem(good, stream="nowhere").startswith("there is no stream")
    placed = good.selectExpr("value", "2 partition")
    assert problem(placed) == "a row is for partition 2: the stream has 0 to 1"
    assert there.came == []
