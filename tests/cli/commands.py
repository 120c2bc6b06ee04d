"""Runs commands as people and scripts do: in this process where that is enough, or as real ones."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner

from anabranch.cli import app
from support.processes import child, completed
from support.waiting import limit, wait_until

PATIENCE_S = 40.0
COMMAND = (sys.executable, "-m", "anabranch")

Json = dict[str, Any]


def answers(*arguments: str) -> list[Json]:
    """Run a command that succeeds; return its lines, each of which is a JSON object."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def answer(*arguments: str) -> Json:
    """Run a command that answers with one JSON object."""
    rows = answers(*arguments)
    assert len(rows) == 1
    return rows[0]


def shown(*arguments: str) -> str:
    """Run a command that succeeds; return what a person sees."""
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*arguments: str) -> str:
    """Run a command that cannot be done; return the one line that it says."""
    result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return one_line(result.stderr)


def one_line(stderr: str) -> str:
    """Return the text of an error, which stands on one line."""
    assert stderr.startswith("error: "), stderr
    assert len(stderr.splitlines()) == 1, stderr
    return stderr.removeprefix("error: ").strip()


def run(
    *arguments: str, stdin: str | bytes = b"", env: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Run a command as a process of its own; return its exit code and what it says."""
    done = completed(
        [*COMMAND, *arguments],
        PATIENCE_S,
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        env=None if env is None else os.environ | env,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextmanager
def started(*arguments: str, stdin: Any = subprocess.DEVNULL) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the test; it is ended with the context if it has not ended.

    A test that waits in vain for its words waits for a while only: then it is ended as well.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child([*COMMAND, *arguments], PATIENCE_S, stdin=stdin, text=True, **pipes) as process:
        yield process


def interrupted(process: subprocess.Popen[str]) -> str:
    """Press Ctrl-C: the process ends without complaint. Return what it still printed."""
    assert process.stdout is not None
    assert process.stderr is not None
    process.send_signal(signal.SIGINT)
    # Not communicate(), which knows nothing of the half line that readline() may have taken.
    out, err = process.stdout.read(), process.stderr.read()
    assert process.wait(limit(PATIENCE_S)) in (0, 130)
    assert err == ""
    return out


def next_line(process: subprocess.Popen[str]) -> Json:
    """Wait for the next JSON line of a process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"the process ended: {process.stderr.read()}")
    return dict(json.loads(line))


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds; fail, saying what, if it never does."""
    wait_until(condition, what, PATIENCE_S)


def wait_for_nodes(stream: str, count: int) -> None:
    """Wait until a stream has so many nodes, as the tracker sees it."""

    def there() -> bool:
        parts = answers("topology", stream)
        return bool(parts) and parts[0]["nodes"] >= count

    eventually(there, f"{count} nodes in {stream}")
