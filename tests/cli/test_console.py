"""What all commands share, seen from outside: output, errors, Ctrl-C and closed pipes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import typer
from typer.testing import CliRunner

from anabranch.cli.console import handled, print_json, say
from anabranch.core.errors import LocalError
from anabranch.live.errors import NoSuchStream
from support.processes import child
from support.waiting import limit

PROGRAM = """
import typer
from anabranch.cli.console import handled, print_json
app = typer.Typer()
@app.command()
@handled()
def command() -> None:
    """
ROWS_FOR_EVER = "n = 0\n    while True:\n        print_json({'n': n}); n += 1"
WAIT_IN_ASYNCIO = """import asyncio
    async def wait() -> None:
        print_json({"ready": True})
        await asyncio.Event().wait()
    asyncio.run(wait())"""


def command(act: Callable[[], None]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @handled()
    def run(name: str = "nobody") -> None:
        act()

    return app


def start(body: str) -> "AbstractContextManager[subprocess.Popen[str]]":
    return child(
        [sys.executable, "-c", PROGRAM + body + "\napp()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@pytest.mark.parametrize("error", [LocalError, NoSuchStream])
def test_what_a_user_can_mend_is_one_line(error: type[Exception]) -> None:
    def act() -> None:
        raise error("it is\nbroken: mend it")

    result = CliRunner().invoke(command(act), [])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: it is broken: mend it\n"


def test_our_own_mistake_is_not_hidden() -> None:
    def act() -> None:
        raise ValueError("ours")

    assert isinstance(CliRunner().invoke(command(act), []).exception, ValueError)


def test_a_handled_command_keeps_its_options() -> None:
    result = CliRunner().invoke(command(lambda: None), ["--name", "somebody"])
    assert result.exit_code == 0, result.output


def test_handled_leaves_other_exit_codes_alone() -> None:
    def act() -> None:
        raise typer.Exit(7)

    assert CliRunner().invoke(command(act), []).exit_code == 7


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": 1, "b": "two\nlines, é"})
    say({"c": None}, as_json=True)
    assert capsys.readouterr().out == '{"a": 1, "b": "two\\nlines, \\u00e9"}\n{"c": null}\n'


def test_a_person_reads_one_value_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say({"a": 1, "long": "x"}, as_json=False)
    say({}, as_json=False)
    assert capsys.readouterr().out == "a     1\nlong  x\n"


def test_a_reader_that_has_had_enough_ends_the_command_in_peace() -> None:
    with start(ROWS_FOR_EVER) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == '{"n": 0}\n'
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(limit(60)) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("body", [ROWS_FOR_EVER, WAIT_IN_ASYNCIO], ids=["rows", "asyncio"])
def test_ctrl_c_is_exit_code_130_and_no_traceback(body: str) -> None:
    with start(body) as program:
        assert program.stdout is not None
        assert program.stdout.readline().startswith("{")
        os.kill(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=limit(60))
        assert program.returncode == 130
        assert errors == ""
