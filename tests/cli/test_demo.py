"""`anabranch demo` as a person or a script meets it, at its smallest."""

import json
from pathlib import Path

import pytest

from cli.commands import refusal, run

KEYS = ["node_processes", "trackers", "killed_nodes", "killed_trackers", "seconds", "offered_per_s"]
KEYS += ["published", "published_per_s", "delivered", "lost_at_nodes_alive_throughout"]
KEYS += ["delay_p50_ms", "delay_p99_ms", "duplicates_per_node_per_message"]
KEYS += ["predicted_mean_delay_ms", "measured_mean_delay_ms", "cpu_us_per_delivery"]
KEYS += ["report"]


def test_kills_lose_nothing_at_the_nodes_that_stay() -> None:
    code, out, err = run("demo", "--seconds", "6", "--nodes", "6", "--json", "--no-report")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert list(row) == KEYS
    assert (row["node_processes"], row["trackers"]) == (6, 2)
    assert (row["killed_nodes"], row["killed_trackers"]) == (2, 1)
    assert row["published"] > 0
    # Three nodes stay beside the publisher, and each has everything.
    assert row["lost_at_nodes_alive_throughout"] == 0
    assert row["delivered"] >= 3 * row["published"]
    assert row["report"] is None


def test_without_the_pipeline_the_demonstration_says_so_and_succeeds(tmp_path: Path) -> None:
    # A Java that is none: the pipeline cannot start, whatever else this machine has.
    environment = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    page = tmp_path / "page.html"
    arguments = ("demo", "--seconds", "5", "--nodes", "5", "--out", str(page))
    code, _, err = run(*arguments, env=environment)
    assert code == 0, err
    [line] = [line for line in err.splitlines() if "no report" in line]
    assert "Java" in line
    assert not page.exists()


@pytest.mark.parametrize("arguments", [["--nodes", "4"], ["--seconds", "1"]])
def test_wrong_input_is_answered_in_one_line(arguments: list[str]) -> None:
    assert "give 5 to 64 nodes and at least 5 seconds" in refusal("demo", *arguments)
