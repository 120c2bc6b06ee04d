"""`anabranch stream`: create streams, look at them, and say who may do what."""

import datetime
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from anabranch.cli.console import fail, handled, print_json, say
from anabranch.cli.options import Address, AsJson, KeyFile, Profile, network_of
from anabranch.cli.times import parse_duration
from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.live.client import Network
from anabranch.live.loop import run

app = typer.Typer(no_args_is_help=True, help="Create streams, and say who may use them.")

Name = Annotated[str, typer.Argument(help="0x<owner>/<path>, or the path of one of your own.")]
Who = Annotated[str, typer.Argument(help="An address, or public for everyone.")]
OwnTrackers = Annotated[
    list[str] | None,
    typer.Option(help="A tracker of the stream's own: 0x...=ws://host:port; may be repeated."),
]
OwnStorage = Annotated[
    list[str] | None,
    typer.Option(
        help="A storage node to keep it: 0x..., may be repeated; or how many of them, such as 3."
    ),
]
ConfirmWithin = Annotated[
    str | None,
    typer.Option(help="Rights count only if a tracker confirmed them within 30m, 1h... or never."),
]
T = TypeVar("T")


class _Permission(msgspec.Struct, forbid_unknown_fields=True):
    """One line of a file of permissions."""

    who: str
    rights: list[str]
    expires_ms: int = 0


def with_network(
    options: tuple[str | None, str | None, Path | None], work: Callable[[Network], Awaitable[T]]
) -> T:
    """Join the network, do something, and leave."""

    async def main() -> T:
        async with network_of(*options) as network:
            return await work(network)

    return run(main())


@app.command()
@handled()
def create(
    path: Annotated[str, typer.Argument(help="Its name under your address, e.g. city/vehicles.")],
    partitions: Annotated[int, typer.Option(help="How many overlays share its load.")] = 1,
    degree: Annotated[int, typer.Option(help="Neighbours of each node.")] = DEFAULT_DEGREE,
    overlay: Annotated[str, typer.Option(help="How neighbours are found.")] = "random-regular",
    public: Annotated[
        list[str] | None, typer.Option(help="A right that everyone has: publish, subscribe...")
    ] = None,
    metadata: Annotated[str, typer.Option(help="Whatever you want to say of it.")] = "",
    tracker: OwnTrackers = None,
    storage: OwnStorage = None,
    confirm_within: ConfirmWithin = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Take a stream that is there already.")
    ] = False,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream of your own."""
    within = parse_duration(confirm_within)

    async def work(network: Network) -> dict[str, Any]:
        stream = await network.create_stream(
            path,
            partitions=partitions,
            degree=degree,
            overlay=overlay,
            public=public or (),
            metadata=metadata,
            trackers=tracker or (),
            storage=_storage(storage),
            confirm_within=within or 0,
            exist_ok=exist_ok,
        )
        return stream.info()

    _show(with_network((profile, address, key), work), as_json)


@app.command()
@handled()
def edit(
    name: Name,
    partitions: Annotated[int | None, typer.Option(help="More than it has.")] = None,
    degree: Annotated[int | None, typer.Option(help="Neighbours of each node.")] = None,
    overlay: Annotated[str | None, typer.Option(help="How neighbours are found.")] = None,
    metadata: Annotated[str | None, typer.Option(help="Whatever you want to say of it.")] = None,
    tracker: OwnTrackers = None,
    no_trackers: Annotated[
        bool, typer.Option("--no-trackers", help="Let the network's trackers serve it.")
    ] = False,
    storage: OwnStorage = None,
    no_storage: Annotated[bool, typer.Option("--no-storage", help="Let nobody keep it.")] = False,
    confirm_within: ConfirmWithin = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Change how a stream is set up; what is not named stays as it is."""
    if (tracker and no_trackers) or (storage and no_storage):
        fail("say who serves the stream, or that nobody does, not both")
    within = parse_duration(confirm_within)

    async def work(network: Network) -> dict[str, Any]:
        stream = await network.stream(name)
        await stream.edit(
            partitions=partitions,
            degree=degree,
            overlay=overlay,
            metadata=metadata,
            trackers=(tracker or ()) if tracker or no_trackers else None,
            storage=_storage(storage) if storage or no_storage else None,
            confirm_within=within,
        )
        return stream.info()

    _show(with_network((profile, address, key), work), as_json)


@app.command("list")
@handled()
def list_streams(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "",
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the streams of the network."""
    names = with_network((profile, address, key), lambda network: network.streams(prefix))
    for name in names:
        print_json({"id": name}) if as_json else typer.echo(name)
    if not names and not as_json:
        typer.echo("no streams yet: anabranch stream create NAME", err=True)


@app.command()
@handled()
def show(
    name: Name,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what the registry says of a stream."""

    async def work(network: Network) -> dict[str, Any]:
        return (await network.stream(name)).info()

    _show(with_network((profile, address, key), work), as_json)


@app.command()
@handled()
def grant(
    name: Name,
    who: Who,
    rights: Annotated[list[str], typer.Argument(help="publish, subscribe, grant, edit, delete.")],
    expires: Annotated[
        str | None, typer.Option(help="Until when: an ISO date, or e.g. 30m, 12h, 7d.")
    ] = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give somebody rights on a stream."""
    expires_ms = _expiry(expires)

    async def work(network: Network) -> dict[str, Any]:
        stream = await network.stream(name)
        await stream.grant(who, *rights, expires_ms=expires_ms)
        return stream.info()

    _show(with_network((profile, address, key), work), as_json)


@app.command()
@handled()
def revoke(
    name: Name,
    who: Who,
    rights: Annotated[list[str] | None, typer.Argument(help="By default all.")] = None,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Take rights on a stream away from somebody."""

    async def work(network: Network) -> dict[str, Any]:
        stream = await network.stream(name)
        await stream.revoke(who, *(rights or ()))
        return stream.info()

    _show(with_network((profile, address, key), work), as_json)


@app.command()
@handled()
def permit(
    name: Name,
    file: Annotated[
        typer.FileText,
        typer.Argument(help='Lines such as {"who": "0x...", "rights": ["publish"]}; - is stdin.'),
    ],
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Set the rights of many in one change: each has exactly those that its line names."""
    permissions, ends = _permissions(file)

    async def work(network: Network) -> dict[str, Any]:
        stream = await network.stream(name)
        await stream.set_permissions(permissions, ends)
        return stream.info()

    _show(with_network((profile, address, key), work), as_json)


@app.command()
@handled()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a stream; everyone leaves it."""
    if not yes and as_json:
        fail(f"a program that means to delete {name} says --yes")
    if not yes:
        typer.confirm(f"delete {name}?", abort=True)

    async def work(network: Network) -> str:
        stream = await network.stream(name)
        await stream.delete()
        return stream.id

    say({"deleted": with_network((profile, address, key), work)}, as_json)


def _permissions(file: Iterable[str]) -> tuple[dict[str, list[str]], dict[str, int]]:
    permissions: dict[str, list[str]] = {}
    ends: dict[str, int] = {}
    try:
        lines = list(file)
    except UnicodeDecodeError:
        fail('this file is not text: write lines such as {"who": "0x...", "rights": ["publish"]}')
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Permission)
        except (msgspec.DecodeError, RecursionError) as error:
            shape = '{"who": "0x...", "rights": ["publish"]}'
            fail(f"line {at} is no permission ({error}): write {shape}")
        if row.who in permissions:
            fail(f"line {at} names {row.who} a second time: name it once, with all its rights")
        permissions[row.who], ends[row.who] = row.rights, row.expires_ms
    return permissions, ends


def _expiry(text: str | None) -> int:
    if text is None:
        return 0
    now = datetime.datetime.now(datetime.UTC)
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    if text[:-1].isdigit() and text[-1:] in units:
        try:
            until = now + datetime.timedelta(seconds=int(text[:-1]) * units[text[-1]])
        except OverflowError:
            fail(f"{text!r} is too far away: leave --expires out, for ever")
    else:
        try:
            until = datetime.datetime.fromisoformat(text)
        except ValueError:
            fail(f"{text!r} is no time: write 30m, 12h, 7d, or a date such as 2030-01-31T12:00")
    until = until if until.tzinfo else until.astimezone()
    if until <= now:
        fail(f"{text!r} is over already")
    return int(until.timestamp() * 1000)


def _show(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    permissions = info.pop("permissions")
    say({name: value for name, value in info.items() if value not in ("", [])}, False)
    table = Table(box=box.SIMPLE)
    for column in ("who", "may", "until"):
        table.add_column(column, no_wrap=column == "who", overflow="fold")
    table.add_row("the owner", "everything", "")
    for held in permissions:
        table.add_row(held["who"], ", ".join(held["rights"]), _date(held["expires_ms"]))
    Console().print(table)


def _date(at_ms: int) -> str:
    if not at_ms:
        return ""
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    over = " (over)" if at <= datetime.datetime.now(datetime.UTC) else ""
    return at.isoformat(timespec="seconds") + over


def _storage(named: list[str] | None) -> int | list[str]:
    """Read what --storage says: addresses, or how many of the network's storage nodes."""
    if named and len(named) == 1 and named[0].isdigit():
        return int(named[0])
    return named or []
