"""One Spark for all tests of a process: starting it costs more than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.session import SETTINGS, open_session
from spark.cluster import Cluster, standing_cluster

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Tests are short and their tables small. Code that is generated, and compiled well, would come too
# late for them, and so would better plans. Each hash table takes a page at least, of 16 MiB where
# Spark chooses. Jobs, clusters and examples are tested with the settings that users have.
QUICK = {
    JAVA_OPTIONS: SETTINGS[JAVA_OPTIONS] + " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.buffer.pageSize": "1m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the session of this process, on two cores; its Java ends with the process."""
    session = open_session("tests", "local[2]", **QUICK)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a standalone cluster, for drivers that are processes of their own."""
    with standing_cluster(tmp_path_factory.mktemp("cluster")) as standing:
        yield standing
