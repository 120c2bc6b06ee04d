"""What all commands share: how they answer, how they fail, and how they show progress."""

import asyncio
import itertools
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import itemgetter
from types import TracebackType
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress

from anabranch.core.errors import LocalError
from anabranch.live.errors import AnabranchError, HistoryLost

INCOMPLETE = 1  # not all that was asked for could be had
INTERRUPTED = 130  # what shells report of a program that Ctrl-C ended
LINES_WAITING = 1_000  # lines that wait to be printed; whoever has more waits with them
BYTES_WAITING = 1 << 20
STDOUT, STDERR = 1, 2


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
        if isinstance(error, HistoryLost) and error.lost:  # what was printed is right, but not all
            typer.echo(f"error: {' '.join(str(error).splitlines())}", err=True)
            raise typer.Exit(INCOMPLETE) from error
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
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        print_line(f"{name:<{width}}  {shown}")


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


class Printer:
    """Prints on a thread of its own: a reader that is slow holds up who prints, and nobody else.

    Leaving the context waits until everything is printed, for as long as its reader takes. Once
    nobody reads on, `on_closed` is called and what is still to be printed goes nowhere.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._waiting: list[tuple[int, bytes]] = []
        self._waiting_bytes = 0
        self._writing = False
        self._over = False  # nothing is printed any more
        self._failure: OSError | None = None
        self._turn = asyncio.Lock()  # which keeps the order of those who wait for room
        self._written = asyncio.Event()
        self._batches: queue.SimpleQueue[list[tuple[int, bytes]] | None] = queue.SimpleQueue()

    async def __aenter__(self) -> "Printer":
        loop = asyncio.get_running_loop()
        # Python does not wait for this thread at its end: its reader may never read on.
        threading.Thread(target=self._write_all, args=(loop,), daemon=True).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._writing and not self._over:
            await self._next_written()
        self._batches.put(None)
        if self._failure is not None and kind is None:
            raise LocalError(
                f"the output cannot be written ({self._failure.strerror}): send it elsewhere"
            ) from self._failure

    async def print(self, line: str, to: int = STDOUT) -> None:
        """Print a line, in its turn; wait for room first."""
        # A message may hold halves of characters, which no output can show as they are.
        data = f"{line}\n".encode(errors="backslashreplace")
        async with self._turn:
            while not self._over and self._full():
                await self._next_written()
            if self._over:
                return
            self._waiting.append((to, data))
            self._waiting_bytes += len(data)
            if not self._writing:
                self._hand_over()

    def give_up(self) -> None:
        """Print nothing more, and wait for nobody."""
        self._over = True
        self._waiting.clear()
        self._written.set()

    def _full(self) -> bool:
        return len(self._waiting) >= LINES_WAITING or self._waiting_bytes >= BYTES_WAITING

    async def _next_written(self) -> None:
        self._written.clear()
        await self._written.wait()

    def _hand_over(self) -> None:
        self._writing = bool(self._waiting)
        if self._writing:
            self._batches.put(self._waiting)
            self._waiting, self._waiting_bytes = [], 0

    def _wrote(self, error: OSError | None) -> None:
        if error is None:
            self._hand_over()
            self._written.set()
            return
        if not isinstance(error, BrokenPipeError):  # one that has had enough is no failure
            self._failure = error
        self.give_up()
        self._on_closed()

    def _write_all(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what is handed over; everything else of this class happens on the loop."""
        while (batch := self._batches.get()) is not None:
            error = None
            try:
                for to, data in _joined(batch):
                    _write(to, data)
            except OSError as problem:
                error = problem
            with suppress(RuntimeError):  # the loop has ended: nobody waited for this
                loop.call_soon_threadsafe(self._wrote, error)


def _joined(batch: list[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Take neighbouring lines together that go to one place."""
    for to, lines in itertools.groupby(batch, key=itemgetter(0)):
        yield to, b"".join(data for _, data in lines)


def _write(to: int, data: bytes) -> None:
    # Not through sys.stdout: Python could not end while a thread holds the lock of its buffer.
    left = memoryview(data)
    while left:
        left = left[os.write(to, left) :]


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
