"""`anabranch pipeline` is there, and costs those who do not use it nothing."""

import subprocess
import sys
from pathlib import Path

from cli.commands import Json, answer, eventually, next_line, refusal, run, shown, started

SLOW = ("pyspark", "pandas", "pyarrow", "matplotlib", "deltalake")


def test_its_jobs_are_listed() -> None:
    help_text = shown("pipeline", "--help")
    assert all(name in help_text for name in ("archive", "telemetry", "report"))


def test_the_command_line_loads_nothing_of_spark() -> None:
    listing = "import sys, anabranch.cli; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "anabranch.spark.jobs" in loaded
    assert not [name for name in SLOW if name in loaded]


def test_without_a_network_or_java_one_line_says_so(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    nobody = f"anabranch://{'00' * 32}@127.0.0.1:9"
    assert "127.0.0.1:9" in refusal(
        "pipeline", "archive", "0x" + "ab" * 20 + "/x", *out, "--network", nobody
    )
    (tmp_path / "trace.jsonl").touch()
    environment = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    code, said, error = run("pipeline", "report", str(tmp_path / "trace.jsonl"), env=environment)
    assert (code, said) == (2, "")
    assert error.startswith("error: ")
    assert "Java" in error
    assert len(error.splitlines()) == 1


def test_a_node_publishes_its_telemetry_and_says_how_much(network: Json) -> None:
    answer("stream", "create", "ops/telemetry", "--exist-ok")
    answer("stream", "create", "ops/work", "--exist-ok")
    arguments = ("node", "ops/work", "--telemetry", "ops/telemetry", "--interval", "0.2", "--json")
    with started(*arguments) as node:
        next_line(node)
        answer("publish", "ops/work", "1")
        lines: list[Json] = []

        def told() -> bool:
            lines.append(next_line(node))
            return bool(lines[-1]["telemetry"]["published"])

        eventually(told, "telemetry that was published")
        assert lines[-1]["telemetry"]["dropped"] == 0
    words = refusal("node", "ops/work", "--telemetry", "ops/nothing")
    assert "there is no stream" in words
