"""`anabranch network`: which network this is, and which trackers it has."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.console import fail, handled, print_json, say
from anabranch.cli.options import Address, AsJson, KeyFile, Profile
from anabranch.cli.stream import with_network
from anabranch.core.changes import SetStorage, SetTrackers, TrackerEntry, named
from anabranch.core.errors import LocalError
from anabranch.core.ids import parse_node
from anabranch.core.ids import show as show_node
from anabranch.core.messages.registry import NETWORK
from anabranch.live.client import Network

app = typer.Typer(no_args_is_help=True, help="Look at the network, and name its trackers.")

Entries = tuple[TrackerEntry, ...]
Node = Annotated[str, typer.Argument(help="The tracker's address, 0x and 40 digits.")]


@app.command()
@handled()
def show(
    profile: Profile = None, address: Address = None, key: KeyFile = None, as_json: AsJson = False
) -> None:
    """Show the network's owner and its trackers; the first that is there writes the registry."""
    _show(with_network((profile, address, key), _info), as_json)


@app.command()
@handled()
def add_tracker(
    node: Node,
    place: Annotated[str, typer.Argument(help="Where nodes dial it: ws://host:port.")],
    http: Annotated[str, typer.Argument(help="Where its pages are: http://host:port.")] = "",
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Name a tracker, or say that one has moved; for the network's owner."""
    entry = _entry(node, place, http)
    _change((profile, address, key), lambda trackers: named(trackers, entry), as_json)


@app.command()
@handled()
def remove_tracker(
    node: Node,
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Name a tracker no more; for the network's owner."""

    def change(entries: Entries) -> Entries:
        left = _without(entries, node, "tracker")
        if not left:
            raise LocalError("a network needs one tracker: add another before you remove this")
        return left

    _change((profile, address, key), change, as_json)


@app.command()
@handled()
def add_storage(
    node: Annotated[str, typer.Argument(help="The storage node's address, 0x and 40 digits.")],
    place: Annotated[str, typer.Argument(help="Where nodes dial it: ws://host:port.")],
    http: Annotated[str, typer.Argument(help="Where it answers queries: http://host:port.")] = "",
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Name a storage node, or say that one has moved; for the network's owner."""
    entry = _entry(node, place, http)
    _change((profile, address, key), lambda nodes: named(nodes, entry), as_json, "storage")


@app.command()
@handled()
def remove_storage(
    node: Annotated[str, typer.Argument(help="The storage node's address, 0x and 40 digits.")],
    profile: Profile = None,
    address: Address = None,
    key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Name a storage node no more; for the network's owner."""

    def change(entries: Entries) -> Entries:
        return _without(entries, node, "storage node")

    _change((profile, address, key), change, as_json, "storage")


def _entry(node: str, place: str, http: str) -> TrackerEntry:
    for text, schemes in ((place, ("ws://", "wss://")), (http, ("http://", "https://"))):
        if text and not text.startswith(schemes):
            fail(f"{text!r} begins with neither {schemes[0]} nor {schemes[1]}")
    return TrackerEntry(parse_node(node), place, http)


def _without(entries: Entries, node: str, what: str) -> Entries:
    gone = parse_node(node)
    left = tuple(entry for entry in entries if entry.node != gone)
    if len(left) == len(entries):
        raise LocalError(f"{node} is no {what} of this network")
    return left


def _change(
    options: tuple[str | None, str | None, Path | None],
    change: Callable[[Entries], Entries],
    as_json: bool,
    what: str = "trackers",
) -> None:
    async def work(network: Network) -> dict[str, Any]:
        def decide() -> SetTrackers | SetStorage:  # anew if somebody else's change came first
            state = network.node.registry.network_state
            if what == "trackers":
                return SetTrackers(change(state.trackers))
            return SetStorage(change(state.storage))

        await network.change(NETWORK, decide)
        return await _info(network)

    _show(with_network(options, work), as_json)


async def _info(network: Network) -> dict[str, Any]:
    genesis = network.node.registry.network_state.genesis
    assert genesis is not None
    return {
        "network": network.address,
        "name": genesis.name,
        "owner": show_node(genesis.owner),
        "me": network.me,
        "trackers": await network.trackers(),
        "storage": await network.storage_nodes(),
    }


def _show(info: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(info)
        return
    trackers, storage = info.pop("trackers"), info.pop("storage")
    say({name: value for name, value in info.items() if value}, False)
    for what, entries in (("tracker", trackers), ("storage", storage)):
        for entry in entries:
            typer.echo(f"{what}  {entry['node']}  {entry['address']}  {entry['http']}")
