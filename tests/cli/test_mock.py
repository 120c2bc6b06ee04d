"""`anabranch mock` as a person or a pipe meets it."""

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli.console import INTERRUPTED
from anabranch.cli.mock import app
from anabranch.live.mock.vehicles import START_MS, encode, vehicles
from support.processes import child
from support.waiting import limit

COMMAND = [sys.executable, "-c", "from anabranch.cli.mock import app; app()", "vehicles"]
TIMEOUT_S = 30.0


def mock(*options: str) -> Any:
    return CliRunner().invoke(app, ["vehicles", *options])


def test_the_lines_are_the_messages_byte_for_byte() -> None:
    result = mock("--fast", "--count", "1500", "--seed", "5", "--start-ms", str(START_MS))
    assert result.exit_code == 0, result.output
    expected = [encode(message) for _, message in islice(vehicles(5), 1500)]
    assert result.stdout_bytes.splitlines() == expected
    assert result.stderr == ""


def test_seconds_and_rate_say_how_many() -> None:
    result = mock("--fast", "--seconds", "3", "--rate", "50")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 150
    fewer = mock("--fast", "--seconds", "3", "--rate", "50", "--count", "20")
    assert len(fewer.stdout.splitlines()) == 20


def test_no_message_comes_before_its_time_unless_fast() -> None:
    result = mock("--seconds", "0.4", "--rate", "20")
    assert result.exit_code == 0, result.output
    times = [datetime.fromisoformat(json.loads(line)["at"]) for line in result.stdout.splitlines()]
    assert len(times) == 8
    assert max(times) <= datetime.now(UTC)
    soon = json.loads(mock("--fast", "--seconds", "1000", "--rate", "1").stdout.splitlines()[-1])
    assert datetime.fromisoformat(soon["at"]) > datetime.now(UTC)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--seconds", "0"), "--seconds 0 is nothing: choose more than 0"),
        (("--seconds", "nan"), "choose more than 0"),
        (("--count", "0"), "--count 0 is nothing: choose 1 or more"),
        (("--rate", "0"), "--rate 0: choose more than 0"),
        (("--rate", "1e9"), "--rate 1e+09: choose more than 0 and at most 100000"),
        (("--start-ms", "-5"), "--start-ms -5: choose milliseconds"),
    ],
)
def test_an_impossible_option_is_named_with_what_to_do(
    options: tuple[str, ...], advice: str
) -> None:
    result = mock("--fast", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert advice in result.stderr


@pytest.mark.parametrize("options", [(), ("--fast",)])
def test_it_ends_in_peace_when_nobody_reads_any_more(options: tuple[str, ...]) -> None:
    with child([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["vehicle"]
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(limit(TIMEOUT_S)) == 0


def test_it_ends_in_peace_when_somebody_stops_it() -> None:
    with child(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=limit(TIMEOUT_S))
        assert errors == b""
        assert process.returncode == INTERRUPTED
        assert all(json.loads(line)["vehicle"] for line in rest.splitlines())
