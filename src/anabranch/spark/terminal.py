"""How jobs meet a person or a program: what they print, how they fail, and how they are ended."""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from anabranch.core.errors import LocalError
from anabranch.live.errors import AnabranchError
from anabranch.spark.queries import Batch

INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended
C = TypeVar("C", bound=Callable[..., None])


def told(command: C) -> C:
    """End a command in one line if something goes wrong, and quietly on Ctrl-C."""

    @wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (LocalError, AnabranchError) as error:
            _fail(" ".join(str(error).splitlines()))
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            # Spark's errors hold the stacks of two languages; all others are mistakes of ours.
            if not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            from anabranch.spark.session import explain

            _fail(explain(error))

    return run  # type: ignore[return-value]


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


@contextmanager
def ending() -> Iterator[threading.Event]:
    """Return an event that is set by Ctrl-C or SIGTERM: a batch under way is finished first."""
    ended = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: ended.set()) for number in numbers]
    try:
        yield ended
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Teller:
    """Tells of batches: as JSON to a program, on a line that is written over to a person."""

    def __init__(self, as_json: bool) -> None:
        self.rows = self.batches = self.late = 0
        self._as_json = as_json
        console = Console(stderr=True)
        shown = console.is_terminal and not as_json
        self._status = console.status("waiting for messages") if shown else None

    def __enter__(self) -> "Teller":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        if self.late and not self._as_json:
            typer.echo(
                f"{self.late:,} rows or more came too late for their windows, which were finished",
                err=True,
            )

    def __call__(self, batch: Batch) -> None:
        self.rows += batch.rows
        self.batches += 1
        self.late += batch.late
        if self._as_json:
            print(json.dumps(msgspec.to_builtins(batch)), flush=True)
        elif self._status is not None:
            stands = ", ".join(f"{part} at {offset}" for part, offset in batch.offsets.items())
            self._status.update(
                f"{batch.query}, batch {batch.batch}: {self.rows:,} rows so far, "
                f"{batch.rows_per_s:,.0f} a second; {stands}"[:300]
            )

    def finish(self, what: str) -> None:
        """Sum it up for a person."""
        if not self._as_json:
            typer.echo(f"{self.rows:,} rows in {self.batches:,} batches: {what}")


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print a small table: to a program, an object for each row, with the table's name."""
    if as_json:
        for row in rows:
            print(json.dumps({"table": title, **row}))
        return
    shown = Table(title=title, box=box.SIMPLE, title_justify="left")
    for name in rows[0] if rows else ():
        shown.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        shown.add_row(*map(str, row.values()))
    Console().print(shown)


class Steps:
    """Tells a person at a terminal which of some steps is being done."""

    def __init__(self, as_json: bool) -> None:
        console = Console(stderr=True)
        shown = console.is_terminal and not as_json
        self._bar = Progress(
            console=console, transient=True, redirect_stdout=False, disable=not shown
        )
        self._task = self._bar.add_task("", total=1.0)

    def __enter__(self) -> "Steps":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: float) -> None:
        self._bar.update(self._task, description=what, completed=done)
