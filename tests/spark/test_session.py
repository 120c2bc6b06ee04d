import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.core.errors import LocalError
from anabranch.spark.session import (
    addresses_of,
    check_master,
    explain,
    explained,
    open_session,
    own_session,
    register,
    settings_of,
)
from support.processes import child
from support.waiting import limit, wait_until

PATIENCE_S = 120.0


def test_a_process_has_one_session(spark: SparkSession) -> None:
    assert open_session() is spark
    assert open_session(master="local[2]", **{"spark.sql.shuffle.partitions": "3"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    with own_session() as borrowed:
        assert borrowed is spark
    assert spark.range(3).count() == 3
    with pytest.raises(LocalError, match="runs on local"):
        open_session(master="local[7]")


def test_queries_need_not_share_what_they_add_to_when_they_start(spark: SparkSession) -> None:
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    maps = []
    for _ in range(2):
        register(spark)
        maps.append(sources.lookupDataSource("anabranch").dataSourceCls().envVars())
    maps[0]["tea"] = "hot"
    assert "tea" not in maps[1]


def test_an_error_of_a_worker_is_its_own_sentence(spark: SparkSession) -> None:
    def fail_clearly(batches: object) -> object:
        raise LocalError("there is no tea: boil some")

    def fail_otherwise(batches: object) -> object:
        return {}["tea"]

    for function, told in (
        (fail_clearly, "there is no tea: boil some"),
        (fail_otherwise, "KeyError: 'tea'"),
    ):
        with pytest.raises(LocalError) as caught, explained():
            spark.range(2).mapInArrow(function, "id long").collect()  # type: ignore[arg-type]
        assert str(caught.value) == told


def test_an_error_of_spark_is_one_line(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.parquet(str(tmp_path / "nowhere"))
    assert explain(caught.value) == f"Path does not exist: file:{tmp_path}/nowhere."
    with pytest.raises(PySparkException) as caught:
        spark.range(1).selectExpr("tea(id)")
    assert explain(caught.value).startswith("Cannot resolve routine `tea` on search path")
    with (
        pytest.raises(LocalError, match="Failed to find the data source: tea") as told,
        explained(),
    ):
        spark.read.format("tea").load()
    assert len(str(told.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_an_error_of_a_streaming_query_is_what_it_died_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    def refuse(frame: object, epoch: int) -> None:
        raise LocalError("the cup\nis full")

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("one\n")
    query = (
        spark.readStream.text(str(tmp_path / "in"))
        .writeStream.foreachBatch(refuse)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(limit(PATIENCE_S))
    assert explain(caught.value) == "the cup is full"


def test_errors_of_others_pass() -> None:
    with pytest.raises(KeyError), explained():
        raise KeyError("tea")
    assert explain(KeyError("tea")) == "'tea'"
    assert explain(TimeoutError()) == "TimeoutError"


@pytest.mark.parametrize(
    ("master", "advice"),
    [
        ("sprak://host:7077", "is no Spark master: write for example"),
        ("local[many]", "is no Spark master"),
        ("", "is no Spark master"),
        ("spark://host", "lacks a port"),
        ("spark://127.0.0.1:1,localhost:1", "no Spark master answers at spark://127.0.0.1:1"),
    ],
)
def test_a_master_that_cannot_be_is_refused_at_once(master: str, advice: str) -> None:
    with pytest.raises(LocalError, match=advice):
        check_master(master)


def test_settings_follow_the_master() -> None:
    assert settings_of("local[2]")["spark.driver.host"] == "127.0.0.1"
    assert settings_of("spark://127.0.0.1:7077")["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_of("spark://far:7077")
    assert addresses_of("spark://[::1]:7077,b:2") == [("::1", 7077), ("b", 2)]
    assert check_master("yarn") == "yarn"


DRIVER = """
from anabranch.spark.session import explain, open_session
session = open_session(master="local[1]")
print(session.sparkContext._gateway.proc.pid, flush=True)
try:
    session.sparkContext.parallelize([0]).map(lambda zero: 1 / zero).count()
except Exception as error:
    print(explain(error), flush=True)
input()
"""


def test_java_is_silent_and_ends_with_a_process_that_is_killed() -> None:
    with child(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        java = int(driver.stdout.readline())
        assert driver.stdout.readline() == "ZeroDivisionError: division by zero\n"
        os.kill(java, 0)  # it lives
        driver.send_signal(signal.SIGKILL)
        assert driver.communicate(timeout=limit(PATIENCE_S)) == ("", "")
        wait_until(lambda: not lives(java), f"the end of Java, {java}", PATIENCE_S)


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_java_takes_some_of_the_memory_there_is_where_all_of_spark_runs_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"SC_PAGE_SIZE": 4_096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    for gib, mib in ((2, 1_024), (8, 2_048), (64, 4_096)):
        sizes["SC_PHYS_PAGES"] = (gib << 30) // 4_096
        assert settings_of("local[2]")["spark.driver.memory"] == f"{mib}m"
    monkeypatch.delattr(os, "sysconf")
    assert settings_of("local[2]")["spark.driver.memory"] == "1024m"
    assert "spark.driver.memory" not in settings_of("yarn")
