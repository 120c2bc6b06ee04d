"""`anabranch simulate` as a person or a script meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from anabranch.traces.files import read_trace

SMALL = 'name = "small"\nnodes = 6\nrun_for_s = 3.0\nsettle_for_s = 3.0\n'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_json_is_options_first_and_the_result_last_and_nothing_else(small: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(small), "--seed", "5", "--json"])
    assert result.exit_code == 0, result.output
    options, outcome = map(json.loads, result.stdout.splitlines())
    assert options["seed"] == outcome["seed"] == 5
    assert options["faults"]["packets"]["loss"] == 0
    assert len(outcome["trace_sha256"]) == 64
    assert outcome["violations"] == []


def test_the_table_opens_with_seed_and_options(small: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(small), "--seed", "5"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "small, seed 5"
    assert "nodes=6" in lines[1]
    assert "all checks hold" in lines[-1]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_trace_is_written_where_it_was_asked_for(small: Path, suffix: str) -> None:
    path = small.with_suffix(f".{suffix}")
    result = CliRunner().invoke(app, ["simulate", str(small), "--trace", str(path), "--json"])
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout.splitlines()[-1])
    assert sum(1 for _ in read_trace(path)) == outcome["trace_records"] > 100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no-such-scenario"], "one of byzantine, calm, city, quiet, rot, storage, storm, trust"),
        (["quiet", "--trace", "trace.csv"], "ends in .jsonl or .parquet"),
        (["quiet", "--trace", "no/such/folder/t.jsonl"], "No such file or directory"),
    ],
)
def test_bad_input_is_one_line_that_helps(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_scenario_may_lie_on_the_underlay_of_the_papers(tmp_path: Path) -> None:
    path = tmp_path / "world.toml"
    path.write_text(SMALL + 'underlay = "aws16"\n')
    result = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["delay_p50_ms"] > 4
    path.write_text(SMALL + 'underlay = "moon"\n')
    result = CliRunner().invoke(app, ["simulate", str(path)])
    assert result.exit_code == 2
    assert "one of constant, plane, aws16" in result.stderr


def test_random_draws_the_scenario_from_the_seed() -> None:
    arguments = ["simulate", "random", "--seed", "2", "--json"]
    first, again = (CliRunner().invoke(app, arguments).stdout for _ in range(2))
    assert first == again
    assert json.loads(first.splitlines()[0])["name"] == "random-2"


def test_a_typing_mistake_in_a_file_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "typo.toml"
    path.write_text("nodse = 5")
    result = CliRunner().invoke(app, ["simulate", str(path)])
    assert result.exit_code == 2
    assert "nodse" in result.stderr


def test_a_broken_rule_is_told_and_is_the_exit_code(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With duplicates the run is not calm: messages that are lost count, and nothing else.
    small.write_text(f"{SMALL}\n[faults.packets]\nduplication = 0.01\n")
    # Nodes that pass nothing on leave those without a message who are not its neighbours.
    monkeypatch.setattr("anabranch.overlays.RandomRegular.carry", lambda *args: [])
    result = CliRunner().invoke(app, ["simulate", str(small)])
    assert result.exit_code == 1
    assert "VIOLATION" in result.stderr
    assert "never got" in result.stderr
