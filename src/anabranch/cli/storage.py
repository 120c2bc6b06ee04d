"""`anabranch storage`: the process that keeps streams."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anabranch.cli.console import fail, handled, print_json
from anabranch.cli.options import (
    Address,
    AsJson,
    Profile,
    TlsCert,
    TlsKey,
    TrustedProxy,
    WithParent,
    prefixes_of,
    tls_context,
    warn_of_few_descriptors,
)
from anabranch.cli.processes import Recording, Trace, fail_by_mistake, one_of, say_notice
from anabranch.core.ids import StreamPart, show
from anabranch.core.store import InUseError, Missing
from anabranch.live.address import NetworkAddress, parse_address
from anabranch.live.keys import load_key
from anabranch.live.loop import ending, run
from anabranch.live.profiles import current_profile
from anabranch.live.storage.damage import SCRUB_DAYS
from anabranch.live.storage.schema import take_lock

if TYPE_CHECKING:  # its pages need a web server, which takes long to load: see `storage`
    from anabranch.live.storage.process import StorageProcess
    from anabranch.live.storage.scrub import ScrubState

ANSWER_S = 10.0  # within which a node that runs begins with a scrub
POLL_S = 0.2
ACCEPT_S = 30.0  # within which a node asks the others, copies what they have, and goes on
MAX_SHOWN = 20  # damaged ranges
MAX_KEPT = 1e6  # days, or gigabytes: more is as good as everything


ScrubDays = Annotated[
    float, typer.Option(help="Read all that is kept once in so long; 0: only when asked.")
]
Restored = Annotated[
    bool,
    typer.Option(
        "--restored",
        help="The folder was restored from a copy: a majority of the other storage nodes has to "
        "say what is missing.",
    ),
]

app = typer.Typer(invoke_without_command=True)

OwnerKey = Annotated[
    Path | None, typer.Option(help="The network owner's key, to name this storage node with.")
]


@app.callback()
@handled()
def storage(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option(help="A folder for its key and what it keeps.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="For nodes; 0: any that is free.")] = 0,
    http_port: Annotated[int, typer.Option(help="For readers of columns, and people.")] = 0,
    keep_days: Annotated[
        float | None, typer.Option(help="Delete what is older; by default nothing.")
    ] = None,
    keep_gb: Annotated[
        float | None, typer.Option(help="Delete the oldest beyond so much; by default nothing.")
    ] = None,
    scrub_days: ScrubDays = SCRUB_DAYS,
    owner_key: OwnerKey = None,
    advertise: Annotated[
        str | None, typer.Option(help="The ws:// address that others dial, if it differs.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    trusted_proxy: TrustedProxy = None,
    restored: Restored = False,
    trace: Trace = None,
    profile: Profile = None,
    address: Address = None,
    with_parent: WithParent = False,
    as_json: AsJson = False,
) -> None:
    """Run a storage node: it keeps the streams that name it, and sends what is asked for again."""
    if context.invoked_subcommand is not None:
        return
    if data is None:
        fail("name a folder for its key and what it keeps: --data FOLDER")
    from anabranch.live.storage.process import Retention, StorageProcess

    _check_days(keep_days, keep_gb, scrub_days)

    async def main() -> None:
        ended = ending(with_parent)
        with Recording(trace) as recorder:
            process = StorageProcess(
                data,
                _network(profile, address),
                host=host,
                port=port,
                http_port=http_port,
                advertise=advertise,
                ssl=tls_context(tls_cert, tls_key),
                retention=Retention(keep_days, keep_gb),
                scrub_days=scrub_days,
                recorder=recorder.recorder,
                trusted=prefixes_of(trusted_proxy),
                restored=restored,
            )
            await _serve(process, ended, owner_key, as_json)

    run(main())


def _check_days(keep_days: float | None, keep_gb: float | None, scrub_days: float) -> None:
    for name, kept in (("--keep-days", keep_days), ("--keep-gb", keep_gb)):
        if kept is not None and not 0 < kept < MAX_KEPT:
            fail(f"{name} {kept:g}: give more than 0, or leave it out to keep everything")
    if not 0 <= scrub_days < MAX_KEPT:
        fail(f"--scrub-days {scrub_days:g}: give a number of days, or 0 for none")


async def _serve(
    process: "StorageProcess", ended: asyncio.Event, owner_key: Path | None, as_json: bool
) -> None:
    """Run a storage node to its end."""
    warn_of_few_descriptors()
    await process.start()
    try:
        process.network.node.watch(lambda notice: say_notice(notice, as_json))
        listed = await process.take_place(load_key(owner_key) if owner_key else None)
        _say_ready(process, listed, as_json)
        await one_of(ended, process.failed)
        if process.failed.is_set():
            fail_by_mistake("storage node", process.network.node.driver)
    finally:
        await process.stop()


@app.command()
@handled()
def scrub(
    data: Annotated[Path, typer.Option(help="The folder of a storage node.")],
    as_json: AsJson = False,
) -> None:
    """Read all that a storage node keeps now, and say what is damaged.

    If the node runs it does so itself, and repairs what it finds; else this command does, and the
    node repairs it when it is started.
    """
    from anabranch.live.storage.scrub import Scrub, ScrubState, read_state, request_scrub
    from anabranch.live.storage.sqlite import SqliteLogStore, load_missing

    path = data / "logs.sqlite"
    if not path.exists():
        fail(f"{data} is not the folder of a storage node: there is no {path.name} in it")

    def say_progress(state: ScrubState) -> None:
        if as_json:
            print_json({"event": "progress", "progress": state.progress, "rows": state.rows})

    try:
        store = SqliteLogStore(path)
    except InUseError:
        began = time.time()
        request_scrub(data)
        while (state := read_state(data)).is_running or state.finished_s < began:
            if state.started_s < began and time.time() > began + ANSWER_S:
                fail(f"the storage node that runs in {data} does not begin: look at its /health")
            if state.started_s >= began:
                say_progress(state)
            time.sleep(POLL_S)
        damage = load_missing(path)
    else:
        try:
            scrubbing = Scrub(store, data)
            scrubbing.run_once(say_progress)
            state = scrubbing.state
            damage = store.missing()
        finally:
            store.close()
    _say_scrubbed(state, damage, as_json)


@app.command("accept-loss")
@handled()
def accept_loss(
    stream: Annotated[str, typer.Argument(help="The stream: OWNER/PATH.")],
    data: Annotated[Path, typer.Option(help="The folder of a storage node.")],
    as_json: AsJson = False,
) -> None:
    """Go on without offsets that this storage node's disk has forgotten and no other node has.

    The node must run: it asks the others first, and copies what they have.
    """
    from anabranch.live.storage.losses import accepted, forgotten, request_loss

    if not forgotten(data, stream):
        fail(f"nothing of {stream} is missing in {data}: look at the node's /health")
    try:
        take_lock(data / "logs.sqlite").close()
    except InUseError:
        pass
    else:
        fail(f"no storage node runs in {data}: start it, since it has to ask the others first")
    known = accepted(data, stream)
    request_loss(data, stream)
    until = time.time() + ACCEPT_S
    while forgotten(data, stream):
        if time.time() > until:
            fail(f"the storage node that runs in {data} does not go on yet: look at its /health")
        time.sleep(POLL_S)
    losses = [each for each in accepted(data, stream) if each not in known]
    for state, loss in losses:
        row = {"stream": stream, "partition": state.part.partition}
        if as_json:
            print_json({"event": "accepted", **row, "start": loss.start, "end": loss.end})
        else:
            typer.echo(f"given up: {state.part} from offset {loss.start} up to {loss.end}")
    if not losses and not as_json:
        typer.echo("nothing was given up: another storage node had all of it")


def _say_scrubbed(
    state: "ScrubState", damage: "dict[StreamPart, tuple[Missing, ...]]", as_json: bool
) -> None:
    holes = [(part, hole) for part, each in sorted(damage.items()) for hole in each]
    ranges = [
        {"stream": part.stream, "partition": part.partition, "start": hole.start, "end": hole.end}
        for part, hole in holes
    ]
    messages = sum(hole.end - hole.start for _, hole in holes)
    if as_json:
        row = {"event": "done", "rows": state.rows, "found": state.found}
        row |= {"structure": state.structure, "damaged_messages": messages}
        print_json(row | {"ranges": ranges})
    else:
        typer.echo(f"{state.rows} frames read, {state.found} messages found damaged")
        if state.structure:
            typer.echo(f"the file was damaged, and is rebuilt: {state.structure}")
        for part, hole in holes[:MAX_SHOWN]:
            typer.echo(f"damaged: {part} offsets {hole.start} to {hole.end - 1}")
        typer.echo(f"{messages} messages are damaged and not repaired yet")
    if messages:
        raise typer.Exit(1)


def _network(profile: str | None, address: str | None) -> NetworkAddress:
    return current_profile(profile).address if address is None else parse_address(address)


def _say_ready(process: "StorageProcess", listed: bool, as_json: bool) -> None:
    entry = process.entry()
    if as_json:
        row = {"event": "ready", "node": show(entry.node), "address": entry.address}
        ports = (process.transport.port, int(entry.http.rpartition(":")[2]))
        row |= {"http": entry.http}
        print_json({**row, "port": ports[0], "http_port": ports[1], "listed": listed})
        return
    typer.echo(f"storage  {show(entry.node)}")
    typer.echo(f"address  {entry.address}")
    typer.echo(f"pages    {entry.http}")
    if not listed:
        typer.echo(
            "The network does not name this storage node yet. Its owner can add it with:\n"
            f"  anabranch network add-storage {show(entry.node)} {entry.address} {entry.http}"
        )
