"""`anabranch tracker`, `anabranch node` and `anabranch up`: the processes of a network."""

import asyncio
import textwrap
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from anabranch.cli.console import fail, handled, print_json, progress_bar
from anabranch.cli.options import (
    Address,
    AsJson,
    Data,
    KeyFile,
    Profile,
    TlsCert,
    TlsKey,
    TrustedProxy,
    WithParent,
    network_of,
    prefixes_of,
    tls_context,
    warn_of_few_descriptors,
)
from anabranch.cli.times import parse_duration
from anabranch.core.ids import show
from anabranch.core.machine import Notice
from anabranch.live.address import DEFAULT_PORT, parse_address
from anabranch.live.carrier import Carrier
from anabranch.live.client import Network, connect
from anabranch.live.driver import Driver
from anabranch.live.keys import load_key
from anabranch.live.local import Child, LocalNetwork
from anabranch.live.loop import ending, run
from anabranch.live.node import Node
from anabranch.live.profiles import Profile as SavedProfile
from anabranch.live.profiles import config_path, save_profile
from anabranch.live.telemetry import Telemetry
from anabranch.traces.files import TraceWriter
from anabranch.traces.recorder import Recorder

if TYPE_CHECKING:  # its pages need a web server, which takes long to load: see `tracker`
    from anabranch.live.tracker import TrackerProcess

T = TypeVar("T")

Trace = Annotated[
    Path | None, typer.Option(help="Record everything: a file ending in .jsonl or .parquet.")
]
TraceLimit = Annotated[int | None, typer.Option(min=1, help="Records in the trace, at most.")]
ConfirmWithin = Annotated[
    str | None,
    typer.Option(
        help="Rights count here only if a tracker confirmed them within 30m, 1h...; a stream may "
        "demand more."
    ),
]


@handled()
def tracker(
    data: Annotated[Path, typer.Option(help="A folder for its key and the registry.")],
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="For nodes; 0: any that is free.")] = DEFAULT_PORT,
    http_port: Annotated[
        int | None, typer.Option(help="For people: the pages; by default the port after.")
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="The network to join; without it, a new one is founded.")
    ] = None,
    owner_key: Annotated[
        Path | None, typer.Option(help="The key of the network's owner; by default its own.")
    ] = None,
    name: Annotated[str, typer.Option(help="A name for a new network.")] = "",
    advertise: Annotated[
        str | None, typer.Option(help="The ws:// address that others dial, if it differs.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    trusted_proxy: TrustedProxy = None,
    trace: Trace = None,
    with_parent: WithParent = False,
    as_json: AsJson = False,
) -> None:
    """Run a tracker: it tells the nodes of a stream whom to connect to."""
    from anabranch.live.tracker import TrackerProcess

    trusted = prefixes_of(trusted_proxy)
    warn_of_few_descriptors()

    async def main() -> None:
        ended = ending(with_parent)
        with Recording(trace) as recorder:
            process = TrackerProcess(
                data,
                host=host,
                port=port,
                http_port=(port + 1 if port else 0) if http_port is None else http_port,
                join=parse_address(join) if join else None,
                owner=load_key(owner_key) if owner_key else None,
                name=name,
                advertise=advertise,
                ssl=tls_context(tls_cert, tls_key),
                recorder=recorder.recorder,
                trusted=trusted,
            )
            await process.start()
            try:
                listed = await process.take_place()
                _say_ready(process, listed, as_json)
                await one_of(ended, process.failed)
                if process.failed.is_set():
                    fail_by_mistake("tracker", process.driver)
            finally:
                await process.stop()

    run(main())


def _say_ready(process: "TrackerProcess", listed: bool, as_json: bool) -> None:
    entry = process.entry()
    if as_json:
        ports = (process.transport.port, int(entry.http.rpartition(":")[2]))
        print_json(
            {
                "event": "ready",
                "network": str(process.address),
                "node": show(entry.node),
                "address": entry.address,
                "http": entry.http,
                "port": ports[0],
                "http_port": ports[1],
                "listed": listed,
            }
        )
        return
    typer.echo(f"network  {process.address}")
    typer.echo(f"pages    {entry.http}")
    if not listed:
        typer.echo(
            "The network does not name this tracker yet. Its owner (--key FILE) can add it with:\n"
            f"  anabranch network add-tracker {show(entry.node)} {entry.address} {entry.http} "
            f"--address {process.address}"
        )


class Recording:
    """A trace file, if there is to be one."""

    def __init__(self, path: Path | None, limit: int | None = None) -> None:
        try:
            self._writer = TraceWriter(path, limit) if path is not None else None
        except OSError as error:
            fail(f"{path} cannot be written ({error.strerror}): name another file with --trace")
        self.recorder = Recorder(self._writer.write) if self._writer is not None else None

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def flush(self) -> None:
        """Write out what has gathered, so that whoever is killed has told the most of it."""
        if self._writer is not None:
            self._writer.flush()


@handled()
def node(
    streams: Annotated[
        list[str] | None, typer.Argument(help="The streams to carry, by name.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Carry every stream that this key may subscribe to, or publish to."
        ),
    ] = False,
    listen: Annotated[str | None, typer.Option(help="host:port; port 0: any.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="The ws:// address that others dial, if it differs.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    interval: Annotated[float, typer.Option(help="Seconds between lines of figures.")] = 10.0,
    trace: Trace = None,
    trace_limit: TraceLimit = None,
    data: Data = None,
    telemetry: Annotated[
        str | None, typer.Option(help="A stream to publish what it records to, as it happens.")
    ] = None,
    confirm_within: ConfirmWithin = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    node_key: Annotated[
        Path | None, typer.Option(help="The node's own key, by which others know it.")
    ] = None,
    with_parent: WithParent = False,
    as_json: AsJson = False,
) -> None:
    """Run a node that carries streams, and prints what it counts."""
    _check_node(streams, every, interval)
    within = parse_duration(confirm_within)

    async def main() -> None:
        ended = ending(with_parent)
        with Recording(trace, trace_limit) as recording:
            network = network_of(
                profile,
                address,
                key,
                listen=listen,
                advertise=advertise,
                ssl=tls_context(tls_cert, tls_key),
                recorder=recording.recorder,
                node_key=node_key,
                data=data,
                confirm_within=within,
            )
            publishing = nullcontext() if telemetry is None else Telemetry(network, telemetry)
            async with network, publishing, Carrier(network, streams or (), every) as carrier:
                network.node.watch(lambda notice: say_notice(notice, as_json))
                say = partial(_say_node, network, carrier, publishing, as_json)
                await _tell_until(ended, network.node, interval, say, recording)

    run(main())


def _check_node(streams: list[str] | None, every: bool, interval: float) -> None:
    if not streams and not every:
        fail("name the streams to carry, or say --all")
    if interval <= 0:
        fail(f"--interval {interval}: give more than 0")


async def _tell_until(
    ended: asyncio.Event,
    node: Node,
    interval: float,
    say: Callable[[str], None],
    recording: Recording,
) -> None:
    """Say what is counted, every so often, until the node is asked to end."""
    say("ready")
    while not await one_of(ended, node.failed, timeout_s=interval):
        say("stats")
        recording.flush()
    if node.failed.is_set():
        fail_by_mistake("node", node.driver)
    say("stopped")


async def one_of(*events: asyncio.Event, timeout_s: float | None = None) -> bool:
    """Wait until something happens; tell whether it did in time."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when="FIRST_COMPLETED")
        return any(event.is_set() for event in events)
    finally:
        for task in waiting:
            task.cancel()


def fail_by_mistake(what: str, driver: Driver) -> NoReturn:
    """End a process that would do nothing more: whoever started it can start it again."""
    problem = f"this {what} failed by a mistake of its own: {driver.failure!r}; report it"
    typer.echo(f"error: {problem}", err=True)
    raise typer.Exit(1)


def say_notice(notice: Notice, as_json: bool) -> None:
    if not as_json:
        typer.echo(f"{notice.kind}: {notice.detail} {notice.part or ''}".rstrip(), err=True)


def _say_node(
    network: Network,
    carrier: Carrier,
    telemetry: Telemetry | nullcontext[None],
    as_json: bool,
    event: str,
) -> None:
    counted = network.metrics
    if isinstance(telemetry, Telemetry):
        counted["telemetry"] = telemetry.figures()
    if as_json:
        row: dict[str, Any] = {"event": event, "node": show(network.node.node)}
        row |= {"address": network.node.address, "links": len(network.node.driver.links)}
        print_json({**row, **counted})
        return
    delivered = sum(part["delivered"] for part in counted["parts"].values())
    lost = counted.get("telemetry", {}).get("dropped", 0)
    typer.echo(
        f"{event}: {show(network.node.node)} at {network.node.address}, "
        f"{len(network.node.driver.links)} links, {len(carrier.carried)} streams, "
        f"{delivered} messages delivered"
        + (f", {lost} records of its telemetry dropped" if lost else "")
    )


@handled()
def up(
    nodes: Annotated[int, typer.Option(help="Nodes that carry every stream.")] = 5,
    trackers: Annotated[int, typer.Option(help="Trackers; each keeps the registry.")] = 1,
    storage: Annotated[int, typer.Option(help="Storage nodes, which keep streams.")] = 1,
    port: Annotated[int, typer.Option(help="The first tracker's; 0: any that is free.")] = (
        DEFAULT_PORT
    ),
    data: Annotated[
        Path | None, typer.Option(help="A folder for keys and the registry; kept between runs.")
    ] = None,
    profile: Annotated[str, typer.Option(help="The profile to set.")] = "local",
    telemetry: Annotated[
        str | None, typer.Option(help="A stream of yours for what the nodes record; made if new.")
    ] = None,
    with_parent: WithParent = False,
    as_json: AsJson = False,
) -> None:
    """Run a whole network on this machine, until Ctrl-C, and make it the current profile."""
    if not 1 <= trackers <= 16 or not 0 <= nodes <= 64 or not 0 <= storage <= 16:
        fail("give 1 to 16 trackers, 0 to 64 nodes and 0 to 16 storage nodes")
    folder = data or config_path().parent / "networks" / profile

    async def main() -> None:
        ended = ending(with_parent)
        network = LocalNetwork(folder, port=port)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(network.stop)
            with progress_bar("starting", not as_json) as progress:
                starting = _start(network, trackers, nodes, storage, telemetry, progress)
                await _unless(ended, starting)
            if ended.is_set():
                return
            save_profile(SavedProfile(profile, parse_address(network.address), network.owner_key))
            _say_up(network, profile, as_json)
            while (dead := await _unless(ended, network.next_death())) is not None:
                ends = dead in network.trackers and not any(t.alive for t in network.trackers)
                _say_dead(dead, ends)
                if ends:
                    raise typer.Exit(1)

    run(main())


async def _start(
    local: LocalNetwork,
    trackers: int,
    nodes: int,
    storage: int,
    telemetry: str | None,
    progress: Callable[[float], None],
) -> None:
    if telemetry is None:
        await local.start(trackers, nodes, storage, progress)
        return
    await local.start(trackers, 0, storage, progress)
    async with connect(local.address, key=local.owner_key) as network:
        await network.create_stream(telemetry, storage=min(1, storage), exist_ok=True)
    more = ("--telemetry", telemetry)
    await asyncio.gather(*(local.add_node(more=more) for _ in range(nodes)))


def _say_dead(dead: Child, ends: bool) -> None:
    what = f"{dead.name} has ended by itself (exit code {dead.exit_code})"
    then = "the network ends with it" if ends else "the network goes on without it"
    typer.echo(f"error: {what}; {then}", err=True)
    if dead.last_words:
        typer.echo(f"It said:\n{textwrap.indent(dead.last_words, '  ')}", err=True)


async def _unless(ended: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Do something that takes a while; give it up when the process is asked to end."""
    working, asked = asyncio.create_task(work), asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({working, asked}, return_when="FIRST_COMPLETED")
        return None if ended.is_set() else await working
    finally:
        for task in (working, asked):
            task.cancel()
        await asyncio.gather(working, asked, return_exceptions=True)


def _say_up(network: LocalNetwork, profile: str, as_json: bool) -> None:
    pages = [str(tracker.ready["http"]) for tracker in network.trackers]
    if as_json:
        row = {"event": "ready", "network": network.address, "profile": profile}
        counts = {"nodes": len(network.nodes), "storage": len(network.storage)}
        print_json({**row, "pages": pages, **counts})
        return
    console = Console()
    console.print(f"[bold]{network.address}[/bold]", soft_wrap=True)
    console.print(
        f"{len(network.trackers)} tracker(s), {len(network.nodes)} nodes, "
        f"{len(network.storage)} storage node(s); "
        f"pages at {', '.join(pages)}; profile {profile}\n\n"
        "Try, in another terminal:\n"
        "  anabranch stream create city/vehicles --storage 1\n"
        "  anabranch subscribe city/vehicles\n"
        "  anabranch mock vehicles | anabranch publish city/vehicles\n"
        "  anabranch resend city/vehicles --last 10\n"
        "  anabranch top\n\n"
        "Ctrl-C ends the network; the next `up` takes it up again.",
        soft_wrap=True,
        highlight=False,
    )
