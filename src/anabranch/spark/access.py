"""How Spark's processes reach a network: where it is, and in which files the reader's keys lie.

An option may end up in a plan, a log or a page of Spark's, so no option holds a key: only the name
of a profile, or the paths of files. Executors open the same paths, and need them only for streams
that are not public.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from anabranch.core.changes import Right
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, StreamPart
from anabranch.live.address import parse_address
from anabranch.live.client import Network, connect
from anabranch.live.errors import NotPermitted, NotStored
from anabranch.live.key_store import default_key_store
from anabranch.live.keys import load_key, load_or_make_key
from anabranch.live.profiles import current_profile, default_key_file, find_profile
from anabranch.live.storage.tokens import make_token

ACCESS_OPTIONS = ("network", "profile", "keyFile", "keyStore")
MAX_IDENTITIES = 16  # keys that a worker's process remembers

_KEY_DIGITS = re.compile(r"(?:0x)?[0-9a-fA-F]{64}")

T = TypeVar("T")


class Access(msgspec.Struct, frozen=True):
    """A network, and the files of the keys that are ours in it; safe to send and to show."""

    network: str
    key_file: str
    key_store: str


class StoredStream(msgspec.Struct, frozen=True):
    """A stream that can be read: its partitions, and the storage nodes that serve them."""

    name: str
    partitions: int
    network: bytes
    storage: tuple[tuple[NodeId, str], ...]  # and where their pages are
    is_public: bool  # everybody may subscribe to it: it is not encrypted, and needs no token
    copies: int = 1  # storage nodes that keep it, whether or not they have pages

    @property
    def parts(self) -> list[StreamPart]:
        """Its partitions, in order."""
        return [StreamPart(self.name, partition) for partition in range(self.partitions)]


def parse_access(options: Mapping[str, str]) -> Access:
    """Find the network and the keys that the options mean; files are named as seen from here."""
    given = {name.lower(): value for name, value in options.items()}
    if "key" in given or _KEY_DIGITS.fullmatch(given.get("keyfile", "").strip()):
        raise LocalError(
            "a key does not belong into an option, where others may see it: name the file that "
            "holds it (keyFile), or a profile"
        )
    address, profile = given.get("network"), given.get("profile")
    if address is not None and profile is not None:
        raise LocalError("give the option network or the option profile, not both")
    if address is None:
        found = current_profile(profile)
        network, key_file = found.address, found.key_file
    else:
        chosen = None if "keyfile" in given else find_profile()
        network = parse_address(address)
        key_file = default_key_file() if chosen is None else chosen.key_file
    if "keyfile" in given:
        key_file = Path(given["keyfile"]).expanduser()
        identity = load_key(key_file)
    else:
        identity = load_or_make_key(key_file)
    store = Path(given["keystore"]).expanduser() if "keystore" in given else None
    return Access(
        str(network),
        str(key_file.absolute()),
        str((store or default_key_store(identity.node)).absolute()),
    )


@lru_cache(MAX_IDENTITIES)
def identity_of(access: Access) -> Identity:
    """Load the key; a worker's process does so once."""
    return load_key(Path(access.key_file))


def open_network(access: Access, **more: Any) -> Network:
    """Name the network; `async with` joins it."""
    return connect(
        access.network, key=Path(access.key_file), key_store=Path(access.key_store), **more
    )


def token(access: Access, stored: StoredStream, node: NodeId) -> str | None:
    """Make what shows us to a storage node; nobody asks for it where everybody may read."""
    if stored.is_public:
        return None
    return make_token(identity_of(access), stored.network, node, time.time())


def wait_for(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a loop of its own, whether or not one runs here already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(start())).result()


def look_up(access: Access, names: Iterable[str]) -> list[StoredStream]:
    """Ask the registry about streams that are to be read; a path alone is one's own stream."""

    async def ask() -> list[StoredStream]:
        async with open_network(access) as network:
            return [await _look_up(network, name) for name in names]

    return wait_for(ask)


def serves_at(url: str) -> bool:
    """Tell whether pages can be asked for at what a storage node says of itself."""
    try:
        where = urlsplit(url)
        return where.scheme in ("http", "https") and bool(where.hostname) and where.port != 0
    except ValueError:
        return False


async def _look_up(network: Network, name: str) -> StoredStream:
    stream = await network.stream(name)
    node = network.node
    state = node.registry.stream(stream.id)
    assert state is not None
    created, now = state.created, node.driver.now()
    assert created is not None
    if not state.may(node.identity.node, Right.SUBSCRIBE, now):
        raise NotPermitted(
            f"{network.me} may not subscribe to {stream.id}: its owner can permit it with "
            f"`anabranch stream grant {stream.id} {network.me} subscribe`"
        )
    if not created.storage:
        raise NotStored(
            f"no storage node keeps {stream.id}: name some with "
            f"`anabranch stream edit {stream.id} --storage ...`"
        )
    places = {entry.node: entry.http for entry in node.registry.storage if serves_at(entry.http)}
    storage = tuple((keeper, places[keeper]) for keeper in created.storage if keeper in places)
    if not storage:
        raise NotStored(
            f"none of the storage nodes of {stream.id} serves pages over HTTP: start them with "
            "--http-port"
        )
    is_public = state.is_public(Right.SUBSCRIBE, now)
    copies = len(created.storage)
    return StoredStream(stream.id, created.partitions, node.network, storage, is_public, copies)
