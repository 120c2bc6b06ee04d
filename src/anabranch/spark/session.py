"""Opens Spark: tuned for jobs of seconds, silent, the same on a laptop and on a cluster."""

import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from anabranch.core.errors import LocalError
from anabranch.spark.java import Java, find_java

if TYPE_CHECKING:  # it is slow to import, and optional
    from pyspark.sql import SparkSession

MASTER = "local[*]"
MASTER_FORM = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+"
)
MASTER_ANSWERS_WITHIN_S = 5.0
LOOPBACK = "127.0.0.1"
LEAST_MEMORY_MIB, MOST_MEMORY_MIB = 1_024, 4_096
# Set by spark-submit, which has started Java and chosen the master itself.
SUBMITTED = "PYSPARK_GATEWAY_PORT"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Storage nodes look at conditions on times and publishers themselves (filters.py).
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
}
LOCAL_SETTINGS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    # Less work for each file, and a streaming batch writes several.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
}

# What Spark puts around an error's own words.
TRACEBACK = "Traceback (most recent call last):"
RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(: (?P<text>.*))?$", re.MULTILINE | re.DOTALL)
BEFORE = re.compile(
    r"An error occurred while calling \S+\s*: [\w.$]+: |\[[A-Z_.0-9]+\] "
    r"|Query \[id = [^]]*\] terminated with exception: "
)
AFTER = re.compile(r"\s+SQLSTATE: |\n=== Streaming Query ===|\n\s*at |;\s*\n")


def open_session(name: str = "anabranch", master: str | None = None, **conf: str) -> "SparkSession":
    """Open a Spark session, or return the one that this process has.

    It runs on `local[*]` unless another master is named. Under spark-submit the master and the
    settings are those that spark-submit was given. Whoever opens a session stops it.
    """
    running = running_master()
    settings = dict(conf)
    if running is not None:
        if master not in (None, running):
            raise LocalError(f"Spark runs on {running} in this process: stop that session first")
    elif SUBMITTED not in os.environ:
        settings = settings_of(check_master(master or MASTER)) | settings
        start_java(settings)
    from pyspark.sql import SparkSession

    return SparkSession.builder.appName(name).config(map=dict(settings)).getOrCreate()


def register(session: "SparkSession") -> None:
    """Make the format known to a session, anew: call it before the `load` of each of its queries.

    A session finds the format by its name as well. But then all queries share one map of settings,
    which each of them adds to when it starts, and another whose tasks are being sent just then
    fails by that. What is loaded after this call has a map of its own.
    """
    from anabranch.spark.source import AnabranchSource

    session.dataSource.register(AnabranchSource)


@contextmanager
def own_session(
    name: str = "anabranch", master: str | None = None, **conf: str
) -> "Iterator[SparkSession]":
    """Open a session and stop it in the end, but only if this process had none."""
    was_there = running_master() is not None
    session = open_session(name, master, **conf)
    try:
        yield session
    finally:
        if not was_there:
            session.stop()


def running_master() -> str | None:
    """Return the master of the session that this process has, if it has one."""
    try:
        from pyspark import SparkContext
    except ModuleNotFoundError as error:
        raise LocalError(
            f"Spark needs {error.name}: install it with pip install 'anabranch[spark]'"
        ) from error
    running = SparkContext._active_spark_context
    return None if running is None else running.master


def settings_of(master: str) -> dict[str, str]:
    """Return what suits this master."""
    settings = SETTINGS | {"spark.master": master}
    if master.startswith("local"):
        settings |= LOCAL_SETTINGS | {"spark.driver.memory": f"{local_memory_mib()}m"}
    elif {host for host, _ in addresses_of(master)} & {LOOPBACK, "localhost"}:
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return settings


def local_memory_mib() -> int:
    """Return how much memory Java may take if all of Spark runs in it: some of what there is.

    Spark's own gigabyte is little for a driver that is all executors too.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    except (AttributeError, OSError, ValueError):  # a system that does not say
        there = 0
    return min(max(there // 4, LEAST_MEMORY_MIB), MOST_MEMORY_MIB)


def check_master(master: str) -> str:
    """Return the master, or raise LocalError at once where Spark would try for a minute."""
    if not MASTER_FORM.fullmatch(master):
        raise LocalError(
            f"{master!r} is no Spark master: write for example local[2] or spark://host:7077"
        )
    addresses = addresses_of(master)
    for address in addresses:
        try:
            socket.create_connection(address, MASTER_ANSWERS_WITHIN_S).close()
        except OSError:
            continue
        return master
    if addresses:
        raise LocalError(f"no Spark master answers at {master}: start one there, or take {MASTER}")
    return master


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports of a standalone cluster's masters; of others, none."""
    if not master.startswith("spark://"):
        return []
    found = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise LocalError(f"{master!r} lacks a port: write for example spark://host:7077")
        found.append((host.strip("[]"), int(port)))
    return found


def start_java(settings: Mapping[str, str]) -> None:
    """Start the Java process, which ends with this one; what it prints is not for the terminal."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger

    # These print, with all of Java's stack, what is raised at the same time.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    # Workers would take the first python3 of the PATH, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is not None:
        return  # it outlives a session that was stopped
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with tempfile.TemporaryFile() as printed:
        try:
            gateway = launch_gateway(  # type: ignore[no-untyped-call]
                conf, {"stdout": printed, "stderr": printed}
            )
        except PySparkRuntimeError as error:
            raise LocalError(why_not(java, printed)) from error
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def why_not(java: Java, printed: BinaryIO) -> str:
    """Tell why Java did not start, as far as it said so."""
    printed.seek(0)
    lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines()]
    told = [line for line in lines if line and not line.startswith(("WARNING:", "at "))]
    return f"Spark did not start with {java}: {told[0] if told else 'it did not say why'}"


# --- Errors ---------------------------------------------------------------------------------


@contextmanager
def explained() -> Iterator[None]:
    """Raise as a LocalError, of one line, what goes wrong in Spark."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise LocalError(explain(error)) from error


def explain(error: BaseException) -> str:
    """Say in one line what went wrong, without the stacks of Java and Python around it."""
    text = str(error).strip()
    _, traced, stack = text.rpartition(TRACEBACK)
    raised = RAISED.search(stack) if traced else None
    if raised:
        kind, said = raised["kind"], one_line(raised["text"] or "")
        # Our own errors are sentences; of others, the name of the type helps.
        return said if said and kind.startswith("anabranch.") else f"{kind}: {said}".strip(": ")
    while found := BEFORE.match(text):
        text = text[found.end() :]
    return one_line(text) or type(error).__name__


def one_line(text: str) -> str:
    """Return what was said, up to where Spark goes on."""
    return " ".join(AFTER.split(text)[0].split())
