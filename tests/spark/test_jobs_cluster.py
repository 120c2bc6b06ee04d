"""A job, submitted to a real cluster, with one of its two executors killed at work."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from anabranch.spark import jobs
from anabranch.spark.java import find_java
from spark.cluster import PATIENCE_S, Cluster
from spark.copier import QUICK_JAVA
from spark.network import running_network
from support.processes import child
from support.waiting import limit

PARTITIONS = 4  # each is a task of every batch
MESSAGES = 2_000
PER_BATCH = "250"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}


def test_an_archive_is_whole_though_an_executor_dies(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "table"
    with running_network(tmp_path / "network", storage=2) as network:
        key = network.new_key_file("owner")
        client = network.join(key)
        create = client.create_stream("city/vehicles", partitions=PARTITIONS, storage=2)
        stream = network.run(create)
        for partition in range(PARTITIONS):
            numbers = range(partition, MESSAGES, PARTITIONS)
            network.store(stream, ({"n": number} for number in numbers), partition=partition)
        options = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
        access = ["--network", network.address, "--key", str(key)]
        said = tmp_path / "driver.log"
        with (
            said.open("w") as log,
            child(
                [
                    *(str(SUBMIT), "--master", cluster.master, *options),
                    *(jobs.__file__, "archive", stream.id, "--out", str(out)),
                    *("--available-now", "--max-per-trigger", PER_BATCH, "--json", *access),
                ],
                env=os.environ
                | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as job,
        ):
            try:
                killed = cluster.kill_one_at_work(job)  # which sees both at work before
                printed, _ = job.communicate(timeout=limit(PATIENCE_S))
            finally:
                job.kill()
    assert job.returncode == 0, said.read_text()[-2_000:]
    assert killed not in cluster.executors()
    batches = [json.loads(line) for line in printed.splitlines()]
    assert sum(batch["rows"] for batch in batches) == MESSAGES
    rows = spark.read.parquet(str(out)).select("value").collect()
    assert Counter(json.loads(row.value)["n"] for row in rows) == Counter(range(MESSAGES))
