"""`anabranch bench` as a person or a script meets it: small, since speed is not asserted."""

import csv
import json
from pathlib import Path

import pytest

from cli.commands import refusal, run, shown

KEYS = ["publishers", "subscribers", "degree", "size", "rate", "published", "failed", "seconds"]
KEYS += ["delivered", "expected", "duplicates", "dropped", "complete", "published_per_s"]
KEYS += ["delivered_per_s", "delay_mean_ms", "delay_p50_ms", "delay_p99_ms", "delay_max_ms"]
KEYS += ["cpu_us_per_delivery", "duplicates_per_delivery"]


def test_a_network_is_measured_and_nothing_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "figures.csv"
    small = ("--subscribers", "2", "--duration", "1", "--csv", str(file))
    code, out, err = run("bench", *small, "--json")
    assert (code, err) == (0, "")
    row = json.loads(out)
    assert list(row) == KEYS
    assert row["published"] > 0
    assert row["delivered"] == row["expected"] == 2 * row["published"]
    assert (row["failed"], row["dropped"], row["complete"]) == (0, 0, 1.0)
    text = shown("bench", *small, "--rate", "200", "--publishers", "2", "--size", "64")
    assert "200 in 1." in text
    assert "400 of 400" in text
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [list(kept) for kept in rows] == [KEYS, KEYS]
    assert rows[0]["published"] == str(row["published"])
    assert (rows[1]["published"], rows[1]["size"]) == ("200", "64")


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["--publishers", "0"], "1 to 64 publishers"),
        (["--subscribers", "65"], "1 to 64 subscribers"),
        (["--size", "0"], "messages have 1 to"),
        (["--duration", "0"], "a duration above 0"),
        (["--rate", "-1"], "a rate of 0 or more"),
        (["--csv", "/no/such/x.csv"], "cannot be written (No such file or directory)"),
    ],
)
def test_wrong_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    assert advice in refusal("bench", *arguments)
