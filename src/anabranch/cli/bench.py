"""`anabranch bench`: what a network on this machine carries, and how fast."""

import csv
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from anabranch.cli.console import fail, handled, print_json, progress_bar
from anabranch.cli.options import AsJson
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.live.load import Load, Outcome, load_network, measure
from anabranch.live.loop import run


@handled()
def bench(
    publishers: Annotated[int, typer.Option(help="Nodes that publish, in this process.")] = 1,
    subscribers: Annotated[int, typer.Option(help="Nodes that subscribe, a process each.")] = 4,
    size: Annotated[int, typer.Option(help="Bytes of each message.")] = 308,
    rate: Annotated[
        float, typer.Option(help="Messages a second, all together; 0: as many as it carries.")
    ] = 0.0,
    duration: Annotated[float, typer.Option(help="Seconds.")] = 10.0,
    in_flight: Annotated[
        int, typer.Option(help="Messages under way per publisher, when the rate is 0.")
    ] = 256,
    degree: Annotated[int, typer.Option(help="Neighbours of each node.")] = DEFAULT_DEGREE,
    out: Annotated[
        Path | None, typer.Option("--csv", help="Add the figures to this file, one row a run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure throughput and delay on a network of its own, started for this and ended after."""
    if not 1 <= publishers <= 64 or not 1 <= subscribers <= 64:
        fail("give 1 to 64 publishers and 1 to 64 subscribers")
    if not 1 <= size <= MAX_CONTENT_BYTES:
        fail(f"--size {size}: messages have 1 to {MAX_CONTENT_BYTES} bytes")
    if duration <= 0 or rate < 0 or not 1 <= in_flight <= 4096:
        fail("give a duration above 0, a rate of 0 or more, and 1 to 4096 messages in flight")
    if out is not None:
        _check_csv(out)
    load = Load(size, rate, duration, in_flight)
    outcome = run(_bench(publishers, subscribers, degree, load, not as_json))
    row: dict[str, object] = {
        "publishers": publishers,
        "subscribers": subscribers,
        "degree": degree,
        "size": size,
    }
    row |= {"rate": rate, **msgspec.structs.asdict(outcome)}
    if out is not None:
        _append(out, row)
    print_json(row) if as_json else _show(outcome)
    if outcome.complete < 1.0:
        typer.echo(f"{outcome.expected - outcome.delivered} deliveries are missing", err=True)
        raise typer.Exit(1)


async def _bench(
    publishers: int, subscribers: int, degree: int, load: Load, shown: bool
) -> Outcome:
    async with AsyncExitStack() as stack:
        with progress_bar("starting", shown) as progress:
            starting = load_network(publishers, subscribers, degree, progress)
            streams, local = await stack.enter_async_context(starting)
        with progress_bar("publishing", shown) as progress:
            return await measure(streams, local.nodes, load, progress)


def _check_csv(path: Path) -> None:
    """Learn before the run, not after it, that the figures cannot be kept."""
    try:
        path.open("a").close()
    except OSError as error:
        fail(f"{path} cannot be written ({error.strerror}): name another file with --csv")


def _append(path: Path, row: dict[str, object]) -> None:
    is_new = path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _show(outcome: Outcome) -> None:
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_row("published", f"{outcome.published:,} in {outcome.seconds:.1f} s")
    table.add_row("", f"{outcome.published_per_s:,.0f} a second")
    table.add_row("delivered", f"{outcome.delivered:,} of {outcome.expected:,}")
    table.add_row("", f"{outcome.delivered_per_s:,.0f} a second")
    table.add_row("delay", f"{outcome.delay_p50_ms:.1f} ms p50, {outcome.delay_p99_ms:.1f} ms p99")
    table.add_row("cpu", f"{outcome.cpu_us_per_delivery:.1f} µs a delivery, all processes")
    table.add_row("duplicates", f"{outcome.duplicates_per_delivery:.2f} copies a delivery")
    Console(file=sys.stdout).print(table)
