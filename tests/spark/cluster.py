"""A standalone Spark cluster on the loopback: a master and two workers of one core each.

They are processes of their own, started from the installed pyspark, and so are their executors.
A process has one Spark session, so a test's driver is another process: a command of ours, or a
script that opens its session with `cluster_session`.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from anabranch.spark.java import find_java
from anabranch.spark.session import open_session
from support.waiting import Limit, limit

WORKERS = 2
PATIENCE_S = 300.0
LOOK_EVERY_S = 0.2
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER_AT = re.compile(r"Successfully started service 'sparkMaster' on port (\d+)")
PROCESS = r"^ *(\d+) +(\d+) +(.*)$"
EXECUTOR = r"ExecutorBackend .*--executor-id (?P<number>\d+) .*--app-id (?P<app>\S+)"

# It ends what it started when its standard input closes: asked to, or because the tests ended.
WITH_PARENT = '"$@" & read -r _; kill "$!"; wait'


@dataclass(frozen=True)
class Tasks:
    """What the log of one executor tells."""

    begun: int
    finished: int


@dataclass(frozen=True)
class Cluster:
    """A cluster that stands."""

    master: str
    folder: Path  # its logs, and those of the executors

    def executors(self) -> dict[int, Path]:
        """Return the processes of the executors that live, with the folders they work in."""
        processes = [
            (int(pid), int(parent), command)
            for pid, parent, command in re.findall(PROCESS, listing(), re.MULTILINE)
        ]
        workers = {pid for pid, _, command in processes if f"--work-dir {self.folder}" in command}
        found = {}
        for pid, parent, command in processes:
            identity = re.search(EXECUTOR, command)
            if identity and parent in workers:
                (place,) = self.folder.glob(f"worker-*/{identity['app']}/{identity['number']}")
                found[pid] = place
        return found

    def kill_one_at_work(self, job: subprocess.Popen[str]) -> int:
        """Wait until both executors of a job have done something; kill one that does more.

        It is killed as if its machine lost its power. Return its process.
        """
        until = Limit(PATIENCE_S)
        while not until.passed and job.poll() is None:
            executors = self.executors()
            done = self.tasks()
            if len(executors) == WORKERS and set(executors.values()) <= set(done):
                tasks = {pid: done[place] for pid, place in executors.items()}
                busy = [pid for pid, each in tasks.items() if each.begun > each.finished]
                if busy and all(each.finished for each in tasks.values()):
                    os.kill(busy[0], signal.SIGKILL)
                    return busy[0]
            time.sleep(LOOK_EVERY_S)
        raise AssertionError(f"not both were seen at work: {self.executors()}, {self.tasks()}")

    def tasks(self) -> dict[Path, Tasks]:
        """Return, for the folder of each executor there ever was, what it has done."""
        found = {}
        for log in sorted(self.folder.glob("worker-*/app-*/*/stderr")):
            text = log.read_text(errors="replace")
            begun, finished = (text.count(f" {word} task ") for word in ("Running", "Finished"))
            found[log.parent] = Tasks(begun, finished)
        return found


def listing() -> str:
    """Return a line for each process: its number, its parent's, its command."""
    command = ["ps", "-ww", "-eo", "pid=,ppid=,args="]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def standing_cluster(folder: Path) -> Iterator[Cluster]:
    """Start a cluster, and end it with everything that belongs to it."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        log = folder / "master.log"
        started.append(start(log, "master.Master", "--port", "0", "--webui-port", "0"))
        wait_for(lambda: MASTER_AT.search(log.read_text()) is not None, log)
        at = MASTER_AT.search(log.read_text())
        assert at is not None
        master = f"spark://127.0.0.1:{at[1]}"
        for number in range(WORKERS):
            options = ("--cores", "1", "--memory", "2g", "--port", "0", "--webui-port", "0")
            work = ("--work-dir", str(folder / f"worker-{number}"), master)
            started.append(start(folder / f"worker-{number}.log", "worker.Worker", *options, *work))
        wait_for(lambda: log.read_text().count("Registering worker ") == WORKERS, log)
        yield Cluster(master, folder)
    finally:
        for process in reversed(started):
            process.communicate(timeout=limit(PATIENCE_S))  # closes its standard input first


def start(log: Path, daemon: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a master or a worker."""
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_NO_DAEMONIZE": "1",
    }
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{daemon}", "--host", "127.0.0.1"]
    with log.open("wb") as output:
        return subprocess.Popen(
            ["sh", "-c", WITH_PARENT, "sh", *command, *options],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )


def wait_for(true: Callable[[], bool], log: Path) -> None:
    """Wait until something is true, or fail with the end of a log."""
    until = Limit(PATIENCE_S)
    while not true():
        assert not until.passed, log.read_text(errors="replace")[-2000:]
        time.sleep(LOOK_EVERY_S)


def cluster_session(master: str, **conf: str) -> SparkSession:
    """Open a session on a cluster: in a process of its own, and small."""
    small = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
    return open_session("cluster", master, **(small | conf))
