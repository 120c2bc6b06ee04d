"""`anabranch demo` as a person or a script meets it, at its smallest."""

import json

import pytest

from cli.commands import refusal, run

KEYS = ["node_processes", "trackers", "killed_nodes", "killed_trackers", "seconds", "offered_per_s"]
KEYS += ["published", "published_per_s", "delivered", "lost_at_nodes_alive_throughout"]
KEYS += ["delay_p50_ms", "delay_p99_ms", "duplicates_per_node_per_message"]
KEYS += ["predicted_mean_delay_ms", "measured_mean_delay_ms", "cpu_us_per_delivery"]


def test_kills_lose_nothing_at_the_nodes_that_stay() -> None:
    code, out, err = run("demo", "--seconds", "6", "--nodes", "6", "--json")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert list(row) == KEYS
    assert (row["node_processes"], row["trackers"]) == (6, 2)
    assert (row["killed_nodes"], row["killed_trackers"]) == (2, 1)
    assert row["published"] > 1_000
    # Three nodes stay beside the publisher, and each has everything.
    assert row["lost_at_nodes_alive_throughout"] == 0
    assert row["delivered"] >= 3 * row["published"]


@pytest.mark.parametrize("arguments", [["--nodes", "4"], ["--seconds", "1"]])
def test_wrong_input_is_answered_in_one_line(arguments: list[str]) -> None:
    assert "give 5 to 64 nodes and at least 5 seconds" in refusal("demo", *arguments)
