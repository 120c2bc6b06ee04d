"""The jobs as a person, a program and spark-submit meet them."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from anabranch import Network, Stream, Telemetry
from anabranch.lab.experiment import Params
from anabranch.lab.experiments.propagation import EXPERIMENT
from anabranch.spark import jobs
from anabranch.spark.java import find_java
from spark.network import RunningNetwork, running_network
from support.waiting import limit

SUBMIT_S = 120
MESSAGES = 40


class City:
    """A network with a stored stream, and another for the telemetry of one of its nodes."""

    def __init__(self, network: RunningNetwork) -> None:
        self.network = network
        self.key = network.new_key_file("owner")
        self.client: Network = network.join(self.key, key_store=None)
        self.node: Network = network.join(self.key, key_store=None)
        self.stream: Stream = network.run(self._make("city/vehicles"))
        self.telemetry: Stream = network.run(self._make("ops/telemetry"))
        self.told = network.run(self._publish())

    async def _make(self, path: str) -> Stream:
        return await self.client.create_stream(path, storage=1)

    async def _publish(self) -> int:
        """Publish, while a node that subscribes tells what it sees."""
        stream = await self.node.stream("city/vehicles")
        async with stream.subscribe() as messages, Telemetry(self.node, "ops/telemetry") as told:
            for number in range(MESSAGES):
                await self.stream.publish_stored({"n": number})
            count = 0
            async for _ in messages:
                count += 1
                if count == MESSAGES:
                    break
        await asyncio.sleep(0)
        return told.published

    @property
    def access(self) -> list[str]:
        return ["--network", self.network.address, "--key", str(self.key)]


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    with running_network(tmp_path_factory.mktemp("network")) as network:
        yield City(network)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(jobs.app, list(arguments))


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    return line.removeprefix("error: ")


def test_archive_tells_of_each_batch_and_goes_on_where_it_was(
    spark: SparkSession, city: City, tmp_path: Path
) -> None:
    out = str(tmp_path / "table")
    again = ["archive", "city/vehicles", "--out", out, "--available-now", *city.access]
    result = run(*again, "--max-per-trigger", "25", "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["batch"], row["rows"]) for row in rows] == [(0, 25), (1, MESSAGES - 25)]
    assert rows[-1]["offsets"] == {f"{city.stream.id}#0": MESSAGES}
    result = run(*again)
    assert result.stdout == f"0 rows in 0 batches: {out}\n"
    assert spark.read.parquet(out).count() == MESSAGES


def test_a_job_that_runs_on_ends_between_batches_when_it_is_asked_to(
    spark: SparkSession, city: City, tmp_path: Path
) -> None:
    out = tmp_path / "table"
    committed = out / "_checkpoint" / "commits" / "0"

    def interrupt() -> None:
        while not committed.exists() and not over.wait(0.05):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    over = threading.Event()
    waiting = threading.Thread(target=interrupt)
    waiting.start()
    try:
        result = run(
            "archive", "city/vehicles", "--out", str(out), "--trigger", "0 seconds", *city.access
        )
    finally:
        over.set()
        waiting.join()
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{MESSAGES} rows in 1 batches: {out}\n"
    assert not spark.streams.active


def test_telemetry_becomes_tables_and_a_page(
    spark: SparkSession, city: City, tmp_path: Path
) -> None:
    out = tmp_path / "tables"
    follow = ["telemetry", "--stream", "ops/telemetry", "--continuous", "--available-now"]
    result = run(*follow, "--out", str(out), "--json", *city.access)
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["query"] for row in told} == {"records", "delay_windows", "load_windows"}
    assert spark.read.parquet(str(out / "records")).count() == city.told
    [delays] = spark.read.parquet(str(out / "delays")).collect()
    assert (delays["part"], delays["messages"]) == (f"{city.stream.id}#0", MESSAGES)
    windows = spark.read.parquet(str(out / "delay_windows")).collect()
    assert sum(row["messages"] for row in windows) == MESSAGES
    page = tmp_path / "report.html"
    result = run("report", str(out), "--out", str(page), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"report": str(page), "records": city.told}
    assert "<h1>Network report</h1>" in page.read_text()
    assert "leave --run out" in refusal("report", str(out), "--out", str(page), "--run", "x")
    shutil.rmtree(out / "records")
    assert "is gone" in refusal(*follow, "--out", str(out), *city.access)


def test_spark_submit_runs_the_same_file(city: City, tmp_path: Path) -> None:
    out = tmp_path / "table"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[1]", "--conf", "spark.ui.enabled=false"),
            *("--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
            *(jobs.__file__, "archive", "city/vehicles", "--out", str(out)),
            *("--available-now", "--json", *city.access),
        ],
        env=os.environ
        | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home)}
        | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=limit(SUBMIT_S),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [row] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (row["query"], row["rows"]) == ("archive", MESSAGES)


def test_what_a_person_can_mend_is_said_in_one_line(
    spark: SparkSession, city: City, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert "there is no stream" in refusal("archive", "city/nothing", *out, *city.access)
    other = city.network.new_key_file("other")
    stranger = ["--network", city.network.address, "--key", str(other)]
    assert "may not subscribe" in refusal("archive", city.stream.id, *out, *stranger)
    assert "choose of" in refusal("archive", "city/vehicles", *out, "--format", "x", *city.access)
    assert "name traces" in refusal("report")
    assert "name traces" in refusal("telemetry", "x.jsonl", "--stream", "s", *out)
    assert "needs a stream" in refusal("telemetry", "x.jsonl", "--continuous", *out)
    live = ["telemetry", "--stream", "s", "--continuous", *out]
    assert "named by the stream" in refusal(*live, "--run", "x")
    assert "leave one of them out" in refusal(*live, "--available-now", "--trigger", "1 second")
    for option in (["--available-now"], ["--trigger", "1 second"]):
        assert "need --continuous" in refusal("telemetry", "x.jsonl", *option, *out)
    assert "--out DIR" in refusal("telemetry", "x.jsonl")
    assert "is no file" in refusal("report", "x.jsonl", "--out", str(tmp_path))
    assert "cannot be read (File name too long)" in refusal("report", "x" * 300)
    (tmp_path / "round").mkdir()
    (tmp_path / "round" / "round").symlink_to(tmp_path / "round")
    assert "remove this link" in refusal("report", str(tmp_path / "round"))
    assert "there is no such trace" in refusal("report", str(tmp_path / "none.jsonl"))
    (tmp_path / "bad.jsonl").write_text('{"kind": "published"}\n')
    page = ["--out", str(tmp_path / "page.html")]
    assert "bad.jsonl: this line is no record" in refusal(
        "report", str(tmp_path / "bad.jsonl"), *page
    )
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "empty.jsonl").touch()
    monkeypatch.chdir(tmp_path / "nothing")
    assert refusal("report", ".", *page).startswith("nothing: there are no records")
    assert not (tmp_path / "page.html").exists()
    figures = ["--out", str(tmp_path / "figures")]
    assert "nothing: nothing was delivered" in refusal("paper", ".", *figures)
    started = ["archive", "city/vehicles", *out, "--available-now", *city.access]
    assert "startingOffsets" in refusal(*started, "--starting", "sometimes")


def test_traces_are_named_without_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert jobs.names_of([".", "/", "a/b.jsonl"]) == f"{tmp_path.name}, /, b.jsonl"


def test_the_papers_tables_and_figures_come_out_of_traces(
    spark: SparkSession, tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    rows = list(EXPERIMENT.run(Params((4, 6), 1, traces=str(traces))))
    result = CliRunner().invoke(
        jobs.app, ["paper", str(traces), "--out", str(tmp_path / "new"), "--json"]
    )
    assert result.exit_code == 0, result.output
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["table"], row["nodes"]) for row in found] == [
        *(("table-2", 4), ("table-2", 6)),
        *(("table-3", 4), ("table-3", 6)),
    ]
    assert [row["mean_ms"] for row in found[:2]] == [row["mean_ms"] for row in rows]
    for name in ("figure-7.png", "figure-9.png"):
        assert (tmp_path / "new" / name).read_bytes().startswith(b"\x89PNG")
