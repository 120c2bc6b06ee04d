"""What all commands share: how they fail, and how they show progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import Progress


def fail(message: str) -> NoReturn:
    """Say in one line what is wrong and what to do."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


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
