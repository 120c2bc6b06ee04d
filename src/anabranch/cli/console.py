"""What all commands share: how they answer, how they fail, and how they show progress."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress

from anabranch.core.errors import LocalError
from anabranch.live.errors import AnabranchError

INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended


def fail(message: str) -> NoReturn:
    """Say in one line what is wrong and what to do."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


@contextmanager
def handled() -> Iterator[None]:
    """End the command in one line if the user can mend what went wrong, and quietly on Ctrl-C.

    It serves as a decorator of a command, too: `@handled()` below `@app.command()`.
    """
    try:
        yield
    except (LocalError, AnabranchError) as error:
        fail(" ".join(str(error).splitlines()))
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error


def print_json(row: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, now; end the command once nobody reads on."""
    print_line(json.dumps(row))


def say(row: Mapping[str, Any], as_json: bool) -> None:
    """Answer a program with JSON, and a person with one line for each value."""
    if as_json:
        print_json(row)
        return
    width = max(map(len, row), default=0)
    for name, value in row.items():
        print_line(f"{name:<{width}}  {value}")


def print_line(line: str) -> None:
    """Print one line, now; end the command once nobody reads on."""
    try:
        print(line, flush=True)
    except BrokenPipeError as error:
        # A reader such as `head` has had enough, which is no failure. What is still in the
        # buffer goes nowhere, or else Python would complain about it at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise typer.Exit(0) from error


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show progress, from 0 to 1, on standard error if somebody is there to see it."""
    console = Console(stderr=True)
    with Progress(
        console=console,
        transient=True,
        redirect_stdout=False,  # or else rich would send our rows to standard error, too
        disable=not (shown and console.is_terminal),
    ) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda done: bar.update(task, completed=done)
