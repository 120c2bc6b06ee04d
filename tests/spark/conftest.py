"""One Spark for all tests of a process: starting it costs more than most of them."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.session import SETTINGS, open_session
from spark.cluster import Cluster, standing_cluster

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# Tests are short: code that is compiled well would come too late for them.
QUICK = SETTINGS[JAVA_OPTIONS] + " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the session of this process, on two cores; its Java ends with the process."""
    settings = {JAVA_OPTIONS: QUICK, "spark.sql.shuffle.partitions": "2"}
    session = open_session("tests", "local[2]", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a standalone cluster, for drivers that are processes of their own."""
    with standing_cluster(tmp_path_factory.mktemp("cluster")) as standing:
        yield standing
