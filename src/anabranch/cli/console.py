"""What all commands share: how they fail."""

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Say in one line what is wrong and what to do."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)
