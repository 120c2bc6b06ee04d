"""`anabranch topology` and `anabranch top`: the network as its trackers see it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from anabranch.cli.console import fail, handled, print_json
from anabranch.cli.drawing import draw_topology
from anabranch.cli.options import Address, AsJson, KeyFile, Profile, network_of
from anabranch.live.errors import NoSuchStream
from anabranch.live.loop import ending, run
from anabranch.live.rates import Json, Rates

if TYPE_CHECKING:  # the web client takes long to load: only those who need it wait for it
    from anabranch.live.pages import Pages

MAX_ROWS = 40  # of nodes that `top` shows: the busiest


async def _pages(
    profile: str | None, address: str | None, key: Path | None, stream: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Learn from the network where its trackers' pages are, and what to ask them for."""
    async with network_of(profile, address, key) as network:
        query = {} if stream is None else {"stream": (await network.stream(stream)).id}
        return [entry["http"] for entry in await network.trackers()], query


@handled()
def topology(
    stream: Annotated[
        str | None, typer.Argument(help="Only this stream; by default all that have nodes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Draw it, too: a file ending in .svg.")] = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show who is whose neighbour, with round trips and predicted delays."""
    from anabranch.live.pages import Pages

    if out is not None and out.suffix != ".svg":
        fail(f"{out.name}: a drawing's name ends in .svg")

    async def main() -> list[Json]:
        addresses, query = await _pages(profile, address, key, stream)
        async with Pages(addresses) as pages:
            try:
                parts = await pages.parts(**query)
            except NoSuchStream:  # it exists, and no node is in it
                return []
            for part in parts:
                part["prediction"] = await _prediction(pages, part)
        return parts

    parts = run(main())
    for part in parts:
        print_json(part) if as_json else _show_part(part)
    if not parts and not as_json:
        nobody = "no stream has nodes" if stream is None else f"no node is in {stream}"
        typer.echo(f"{nobody}: subscribe to it, or publish to it", err=True)
    if out is not None and parts:
        try:
            out.write_text(draw_topology(parts[0]))
        except OSError as error:
            fail(f"{out} cannot be written ({error.strerror}): name another file with --out")
        typer.echo(f"drawn: {out}", err=True)


async def _prediction(pages: "Pages", part: Json) -> Json | None:
    try:
        return await pages.prediction(part["stream"], part["partition"])
    except NoSuchStream:  # everyone left it in this moment
        return None


def _show_part(part: Json) -> None:
    console = Console()
    console.print(f"\n[bold]{part['stream']}#{part['partition']}[/bold]: {part['nodes']} nodes")
    table = Table(box=box.SIMPLE)
    table.add_column("node")
    table.add_column("neighbours (round trip, ms)")
    for node, known in part["topology"].items():
        neighbours = [f"{n['node'][:10]} {_ms(n['rtt_ms'])}" for n in known["neighbours"]]
        table.add_row(node[:10], "   ".join(neighbours))
    console.print(table)
    predicted = part.get("prediction")
    if predicted and predicted["pairs"]:
        figures = ", ".join(
            f"{name} {predicted[name + '_ms']:.2f}" for name in ("min", "mean", "p50", "p99", "max")
        )
        console.print(f"predicted delays in ms, from round trips: {figures}", soft_wrap=True)


def _ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


# --- top ------------------------------------------------------------------------------------


@handled()
def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(help="End after so many looks.")] = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Watch the network: streams, rates, delays and drops, per node."""
    from anabranch.live.pages import Pages

    if interval <= 0:
        fail(f"--interval {interval}: give more than 0")
    if count is not None and count < 1:
        fail(f"--count {count}: give 1 or more")

    async def main() -> None:
        addresses, _ = await _pages(profile, address, key)
        ended = ending()
        rates = Rates()
        looks = 0
        with _shown(as_json) as show:
            async with Pages(addresses) as pages:
                while not ended.is_set():
                    show(rates.update(await pages.ask("/reports")))
                    looks += 1
                    if looks == count:
                        break
                    await _wait(ended, interval)

    run(main())


@contextmanager
def _shown(as_json: bool) -> Iterator[Callable[[Json], None]]:
    """Show one look after the other: to a program on lines, to a person on the whole screen."""
    if as_json:
        yield print_json
        return
    console = Console()
    with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        yield lambda seen: live.update(_screen(seen), refresh=True)


async def _wait(ended: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(ended.wait(), seconds)
    except TimeoutError:
        return


def _short(stream: str, partition: int) -> str:
    """Shorten a stream's owner, so that its own name has room."""
    owner, _, path = stream.partition("/")
    return f"{owner[:6]}…/{path}#{partition}"


def _table(title: str) -> Table:
    """Make a table that is narrow enough for 80 columns."""
    return Table(box=box.SIMPLE, padding=(0, 0, 0, 1), title=title, title_justify="left")


def _screen(seen: dict[str, Any]) -> Group:
    streams = _table("streams, messages a second")
    streams.add_column("stream", overflow="fold", min_width=14)
    for column in ("nodes", "links", "published", "delivered", "unstored", "p50 ms", "p99 ms"):
        streams.add_column(column, justify="right")
    for row in seen["streams"]:
        streams.add_row(
            _short(row["stream"], row["partition"]),
            str(row["nodes"]),
            str(row["links"]),
            f"{row['published_per_s']:.1f}",
            f"{row['delivered_per_s']:.1f}",
            str(row["unstored"]),
            f"{row['delay_p50_ms']:.1f}",
            f"{row['delay_p99_ms']:.1f}",
        )
    nodes = _table("nodes, messages a second")
    nodes.add_column("node")
    counts = ("delivered", "copies", "dropped", "missed", "unstored")
    for column in (*counts, "p50 ms", "p99 ms", "cpu", "can be dialled", "registry age"):
        nodes.add_column(column, justify="right")
    for row in seen["nodes"][:MAX_ROWS]:
        nodes.add_row(
            row["node"][:10],
            f"{row['delivered_per_s']:.1f}",
            f"{row['duplicates_per_s']:.1f}",
            str(row["dropped"]),
            str(row["missed"]),
            str(row["unstored"]),
            f"{row['delay_p50_ms']:.1f}",
            f"{row['delay_p99_ms']:.1f}",
            f"{row['cpu_percent']:.0f}%",
            "yes" if row["dialable"] else "no",
            f"{row['registry_age_s']} s",
        )
    return Group(streams, nodes)
