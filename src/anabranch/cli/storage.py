"""`anabranch storage`: the process that keeps streams."""

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
from anabranch.core.ids import show
from anabranch.live.address import NetworkAddress, parse_address
from anabranch.live.keys import load_key
from anabranch.live.loop import ending, run
from anabranch.live.profiles import current_profile

if TYPE_CHECKING:  # its pages need a web server, which takes long to load: see `storage`
    from anabranch.live.storage.process import StorageProcess

MAX_KEPT = 1e6  # days, or gigabytes: more is as good as everything


@handled()
def storage(
    data: Annotated[Path, typer.Option(help="A folder for its key and what it keeps.")],
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="For nodes; 0: any that is free.")] = 0,
    http_port: Annotated[int, typer.Option(help="For readers of columns, and people.")] = 0,
    keep_days: Annotated[
        float | None, typer.Option(help="Delete what is older; by default nothing.")
    ] = None,
    keep_gb: Annotated[
        float | None, typer.Option(help="Delete the oldest beyond so much; by default nothing.")
    ] = None,
    owner_key: Annotated[
        Path | None, typer.Option(help="The network owner's key, to name this storage node with.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(help="The ws:// address that others dial, if it differs.")
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    trusted_proxy: TrustedProxy = None,
    trace: Trace = None,
    profile: Profile = None,
    address: Address = None,
    with_parent: WithParent = False,
    as_json: AsJson = False,
) -> None:
    """Run a storage node: it keeps the streams that name it, and sends what is asked for again."""
    from anabranch.live.storage.process import Retention, StorageProcess

    _check_kept(keep_days, keep_gb)
    trusted = prefixes_of(trusted_proxy)
    warn_of_few_descriptors()

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
                recorder=recorder.recorder,
                trusted=trusted,
            )
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

    run(main())


def _check_kept(days: float | None, gigabytes: float | None) -> None:
    for name, kept in (("--keep-days", days), ("--keep-gb", gigabytes)):
        if kept is not None and not 0 < kept < MAX_KEPT:
            fail(f"{name} {kept:g}: give more than 0, or leave it out to keep everything")


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
