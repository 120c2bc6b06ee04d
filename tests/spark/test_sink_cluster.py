"""The source and the sink on a real cluster, with one of its two executors killed at work."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from spark.cluster import PATIENCE_S, Cluster
from spark.copier import QUICK_JAVA, Orders
from spark.kills import COPIER
from spark.network import running_network
from spark.places import contents, place
from support.processes import child
from support.waiting import limit

MESSAGES = 4_000
PER_BATCH = "1000"
TASKS = "8"  # of each batch
SMALL = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JAVA}


def test_a_stream_is_copied_once_though_an_executor_dies(cluster: Cluster, tmp_path: Path) -> None:
    values = [json.dumps({"number": number}) for number in range(MESSAGES)]
    with running_network(tmp_path / "network", storage=2) as network:
        key_file = network.new_key_file("writer")
        with place(network, key_file, "from") as origin, place(network, key_file, "to") as there:
            network.store(origin.stream, values)
            read = {"subscribe": origin.stream.id, "startingOffsets": "earliest"}
            limits = {"maxOffsetsPerTrigger": PER_BATCH, "minPartitions": TASKS}
            source = network.options(key_file, **read, **limits)
            orders = Orders(
                source, there.options, str(tmp_path), True, ("copy",), cluster.master, SMALL
            )
            said = tmp_path / "driver.log"
            with (
                said.open("w") as log,
                child(
                    [sys.executable, str(COPIER), msgspec.json.encode(orders).decode()],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                ) as job,
            ):
                try:
                    killed = cluster.kill_one_at_work(job)  # which sees both at work before
                    job.wait(limit(PATIENCE_S))
                finally:
                    job.kill()
            assert (job.returncode, said.read_text()) == (0, "started\n")
            assert killed not in cluster.executors()
            for copied in (there.wait_for(MESSAGES), there.stored()):
                assert Counter(contents(copied)) == Counter(values)
