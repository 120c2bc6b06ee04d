"""`anabranch mock`: made-up data as JSON lines, to publish and to play with."""

import os
import sys
import time
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Annotated

import typer

from anabranch.cli.console import fail, handled
from anabranch.core.errors import LocalError
from anabranch.live.mock.vehicles import RATE, Message, Vehicles, encode

app = typer.Typer(no_args_is_help=True, help="Make up data that looks real.")


@app.callback()
def mock() -> None:
    """Make up data that looks real: JSON lines on standard output."""


@app.command()
@handled()
def vehicles(
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds.")] = None,
    count: Annotated[int | None, typer.Option(help="Stop after so many messages.")] = None,
    rate: Annotated[float, typer.Option(help="Messages a second, and so many vehicles.")] = RATE,
    seed: Annotated[int, typer.Option(help="Same seed, same vehicles.")] = 1,
    start_ms: Annotated[
        int | None,
        typer.Option(help="When it begins, in ms since 1970, to get the same bytes; else now."),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not wait for their time.")] = False,
) -> None:
    """Let a city's vehicles report where they are, each once a second."""
    if seconds is not None and not seconds > 0:
        fail(f"--seconds {seconds:g} is nothing: choose more than 0")
    if count is not None and count < 1:
        fail(f"--count {count} is nothing: choose 1 or more")
    try:
        fleet = Vehicles(seed, rate, int(time.time() * 1000) if start_ms is None else start_ms)
    except LocalError as error:
        fail(f"--{error}")
    messages = iter(fleet)
    if seconds is not None:
        messages = takewhile(lambda timed: timed[0] < seconds, messages)
    _print(islice(messages, count), fast)


def _print(messages: Iterator[tuple[float, Message]], fast: bool) -> None:
    """Write messages when their time has come, until nobody reads them any more."""
    out = sys.stdout.buffer
    begun_at = time.monotonic()
    try:
        try:
            for offset_s, message in messages:
                if not fast:
                    early_s = begun_at + offset_s - time.monotonic()
                    if early_s > 0:
                        out.flush()
                        time.sleep(early_s)
                out.write(encode(message) + b"\n")
        finally:
            out.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain of the pipe that is closed.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
