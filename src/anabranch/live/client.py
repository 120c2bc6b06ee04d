"""The API that users import: connect to a network, create streams, publish, subscribe.

A client is a full node in the caller's process: it joins the overlays of its streams and carries
their messages, and no server stands between it and the others.
"""

import asyncio
import random
import socket
import ssl as tls
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from math import inf
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from anabranch.core.changes import PUBLIC, Action, CreateStream, TrackerEntry
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, show
from anabranch.core.machine import Answered
from anabranch.core.messages import Contact
from anabranch.core.messages.registry import NETWORK, ChainList, ListChains, WriteChange
from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.core.publishing import STRANDED_FOR_S
from anabranch.core.registry_keeper import MAX_CHAINS
from anabranch.core.registry_view import AGAIN, DONE, judge
from anabranch.core.unstored import LEAST_UNSTORED_BYTES, MAX_UNSTORED_BYTES
from anabranch.live.address import NetworkAddress, parse_address
from anabranch.live.assembly import Keeps
from anabranch.live.data_folder import FOLDER_UNSTORED_BYTES, DataFolder
from anabranch.live.driver import Handlers
from anabranch.live.errors import (
    AnabranchError,
    NetworkUnreachable,
    NoSuchStream,
    NotPermitted,
    StreamExists,
)
from anabranch.live.key_store import KeyStore, default_key_store
from anabranch.live.keys import load_key, new_key, parse_key
from anabranch.live.leaving import CLOSE_WAIT_S, not_stored
from anabranch.live.node import Node
from anabranch.live.observer import Observer
from anabranch.live.profiles import current_profile, profile_identity
from anabranch.live.questions import PATIENCE_S
from anabranch.live.stream import Stream
from anabranch.live.terms import (
    check_move,
    check_public,
    check_settings,
    confirm_within_of,
    contact_of,
    full_name,
    node_of,
    rights_of,
)
from anabranch.live.transports import Transport
from anabranch.live.transports.websocket import WebSocketTransport
from anabranch.traces.recorder import Recorder

DRAIN_S = 10.0
LINGER_S = 5.0  # how long others may go on asking for the key of our last messages
WRITE_ATTEMPTS = 5
BUSY_S = 0.5  # how long to leave a registry alone that has enough to do
AGAIN_S = 2.0  # how long news of somebody else's change may take
REFUSALS = ("forbidden", "exists", "no-such-stream")  # by the registry, and not for a wrong value

Key = str | bytes | Path | Identity
Actions = Action | Sequence[Action]


def connect(
    address: str | None = None,
    *,
    key: Key | None = None,
    profile: str | None = None,
    listen: str | None = None,
    advertise: str | None = None,
    node_key: Key | None = None,
    ssl: tls.SSLContext | None = None,
    client_ssl: tls.SSLContext | None = None,
    patience_s: float = STRANDED_FOR_S,
    key_store: Path | str | None = None,
    recorder: Recorder | None = None,
    data: Path | str | None = None,
    close_wait_s: float = CLOSE_WAIT_S,
    unstored_bytes: int | None = None,
    confirm_within: timedelta | float | None = None,
) -> "Network":
    """Name a network; `async with` joins it.

    Without an address, the current profile's network and key are used. `key` is who you are: what
    you publish is signed with it; it may be 64 hex digits, a file, or an Identity. Several
    processes may use one key at once, since a node's own name is made anew for each connection
    unless `node_key` gives it. `listen` is `host:port` (default: the interface that reaches the
    tracker, any port), `advertise` what others dial if that differs. With `ssl` this node listens
    at a wss:// address; `client_ssl` replaces the system's certificates when it dials one. A
    message that no neighbour has taken within `patience_s` is given up, and `publish` says so.
    The keys of private streams are kept in `key_store`, by default a file beside the profiles.

    Messages of a stream with storage nodes are kept until a majority of these has signed for
    them: at most `unstored_bytes` in memory (64 MiB), above which the oldest are given up. With
    a folder, `data`, they are also kept there (256 MiB), with the node's own key, and offered again
    by the next process that uses the folder; one process may use it at a time. Leaving waits for
    the storage nodes, for at most `close_wait_s`, and raises NotStored if that is not enough.
    `confirm_within`: rights count here only if a tracker has confirmed them within that time.
    """
    identity, parsed = _choose(address, key, profile)
    folder = None if data is None else DataFolder(Path(data))
    node_identity = _node_identity(node_key, folder)
    return Network(
        str(parsed),
        parsed.genesis,
        parsed.ws_urls,
        identity,
        node_identity,
        _websocket(node_identity, parsed, listen, advertise, ssl, client_ssl),
        patience_s,
        recorder,
        None if key_store is None else Path(key_store),
        folder=folder,
        close_wait_s=close_wait_s,
        unstored_bytes=unstored_bytes,
        confirm_within_s=confirm_within_of(confirm_within) or inf,
    )


def _choose(
    address: str | None, key: Key | None, profile: str | None
) -> tuple[Identity, NetworkAddress]:
    """Return the user's key and the network, from the arguments or from a profile."""
    if address is None:
        chosen = current_profile(profile)
        return (profile_identity(chosen) if key is None else as_identity(key)), chosen.address
    if profile is not None:
        raise LocalError("give an address or a profile, not both")
    if key is None:
        raise LocalError(
            "give a key: connect(address, key=...); `anabranch key new --out FILE` makes one"
        )
    return as_identity(key), parse_address(address)


def _node_identity(node_key: Key | None, folder: DataFolder | None) -> Identity:
    """Return the node's own key: the one that is given, or the folder's, or a new one."""
    if node_key is not None:
        return as_identity(node_key)
    return new_key()[0] if folder is None else folder.node_identity()


def as_identity(key: Key) -> Identity:
    """Take a key in any of the forms that users have it in."""
    if isinstance(key, Identity):
        return key
    if isinstance(key, bytes):
        return Identity(key)
    if isinstance(key, Path):
        return load_key(key)
    return Identity(parse_key(key))


def _websocket(
    identity: Identity,
    address: NetworkAddress,
    listen: str | None,
    advertise: str | None,
    ssl: tls.SSLContext | None,
    client_ssl: tls.SSLContext | None,
) -> Transport:
    if listen is None:
        host, port = _own_host(address), 0
    else:
        host, _, text = listen.rpartition(":")
        if not host or not text.isdigit():
            raise LocalError(f"{listen!r} is no place to listen: write host:port, or host:0")
        port = int(text)
    return WebSocketTransport(
        identity,
        address.genesis,
        host.strip("[]"),
        port,
        ssl=ssl,
        client_ssl=client_ssl,
        advertise=advertise,
    )


def _own_host(address: NetworkAddress) -> str:
    """Return the address of ours from which the tracker is reached; nothing is sent to find out."""
    for url in address.ws_urls:
        parts = urlsplit(url)
        try:
            found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)
            with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
                probe.connect(found[0][4])
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


class Network:
    """A network that this process is, or will be, a node of."""

    def __init__(
        self,
        address: str,
        genesis: bytes,
        urls: Sequence[str],
        identity: Identity,
        node_identity: Identity,
        transport: Transport,
        patience_s: float = STRANDED_FOR_S,
        recorder: Recorder | None = None,
        key_store: Path | None = None,
        keeps: Keeps | None = None,
        handlers: Handlers = MappingProxyType({}),
        folder: DataFolder | None = None,
        close_wait_s: float = CLOSE_WAIT_S,
        unstored_bytes: int | None = None,
        confirm_within_s: float = inf,
    ) -> None:
        if close_wait_s < 0:
            raise LocalError(f"close_wait_s is {close_wait_s}: give 0 or more seconds")
        if unstored_bytes is None:
            unstored_bytes = MAX_UNSTORED_BYTES if folder is None else FOLDER_UNSTORED_BYTES
        if unstored_bytes < LEAST_UNSTORED_BYTES:
            raise LocalError(f"unstored_bytes is {unstored_bytes}: at least {LEAST_UNSTORED_BYTES}")
        self._close_wait_s = close_wait_s
        self._folder = folder
        self._is_told = False  # what is not stored
        self.address = address
        self._urls = urls
        self._identity = identity
        self._observer = Observer(node_identity.node, recorder)
        store = KeyStore(key_store or default_key_store(identity.node), genesis, identity)
        self.node = Node(
            identity,
            transport,
            node_identity.node,
            genesis,
            self._observer,
            store,
            patience_s,
            keeps,
            handlers,
            unstored_bytes,
            folder,
            confirm_within_s,
        )

    async def __aenter__(self) -> "Network":
        await self.node.start(self._urls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Whoever leaves because of an error does not want to wait for messages under way; but
        # those that have left would be of no use without their key.
        patient = kind is None or issubclass(kind, Exception)
        if kind is None:
            await self.node.stop(DRAIN_S, LINGER_S, self._close_wait_s)
            self._tell_unstored()
        else:
            await self.node.stop(0.0, LINGER_S if patient else 0.0)

    async def close(self, drain_s: float = DRAIN_S, close_wait_s: float | None = None) -> None:
        """Leave: what was published is handed over first, for at most `drain_s`.

        Then it is waited until it is stored, for at most `close_wait_s`: by default as long as
        `connect` was told, and not at all if `drain_s` is 0. Raises NotStored, once, if messages
        are not stored by then.
        """
        wait_s = (self._close_wait_s if drain_s else 0.0) if close_wait_s is None else close_wait_s
        await self.node.stop(drain_s, min(drain_s, LINGER_S), wait_s)
        self._tell_unstored()

    def _tell_unstored(self) -> None:
        """Raise what was left behind, once, unless another exception is under way."""
        left = self.node.left_unstored
        if left and not self._is_told and sys.exc_info()[1] is None:
            self._is_told = True
            raise not_stored(left, self._folder)

    @property
    def me(self) -> str:
        """The address that our messages are signed with."""
        return show(self._identity.node)

    @property
    def metrics(self) -> dict[str, Any]:
        """What this node has counted so far."""
        return self._observer.snapshot()

    # --- Streams --------------------------------------------------------------------------

    async def create_stream(
        self,
        path: str,
        *,
        partitions: int = 1,
        degree: int = DEFAULT_DEGREE,
        overlay: str = "random-regular",
        public: str | Iterable[str] = (),
        metadata: str = "",
        trackers: Iterable[Contact | str] = (),
        storage: int | Iterable[str] = (),
        confirm_within: timedelta | float = 0,
        exist_ok: bool = False,
    ) -> Stream:
        """Create `<your address>/<path>`. `public` names the rights that everyone has.

        A stream that not everyone may subscribe to is encrypted. `trackers` are its own, if it
        has any; `storage` are the addresses of the storage nodes that keep it, or how many of the
        network's shall: three go on when one of them is gone. Rights count as long as they
        last; with `confirm_within` only if a tracker has confirmed them within that time. With
        `exist_ok` a stream that is there already is taken as it is.
        """
        check_settings(partitions, overlay, degree)
        name = full_name(path, self.me)
        await self.node.follow(name)
        state = self.node.registry.stream(name)
        if state is not None and state.created is not None:
            if exist_ok:
                return Stream(self, name)
            raise StreamExists(
                f"{name} exists: use it as it is (exist_ok, --exist-ok), or delete it first"
            )
        check_public(PUBLIC, int(rights_of(public)))
        keepers = self.choose_storage(storage)
        check_move((), keepers)
        action = CreateStream(
            partitions=partitions,
            overlay=overlay,
            degree=degree,
            metadata=metadata,
            public=int(rights_of(public)),
            trackers=tuple(map(contact_of, trackers)),
            storage=keepers,
            confirm_within_s=confirm_within_of(confirm_within) or 0,
        )
        try:
            await self.change(name, action)
        except StreamExists:
            if not exist_ok:
                raise
        return Stream(self, name)

    def choose_storage(
        self, wanted: int | Iterable[str], before: Sequence[NodeId] = ()
    ) -> tuple[NodeId, ...]:
        """Return storage nodes by name; or so many of the network's, taken at random.

        Those that keep the stream already, `before`, are taken first.
        """
        if not isinstance(wanted, int):
            return tuple(map(node_of, wanted))
        known = [entry.node for entry in self.node.registry.storage]
        if not 0 <= wanted <= len(known):
            raise LocalError(
                f"{wanted} storage nodes: this network has {len(known)}: "
                "`anabranch storage` runs one more"
            )
        kept = [node for node in before if node in known][:wanted]
        others = [node for node in known if node not in kept]
        return (*kept, *random.SystemRandom().sample(others, wanted - len(kept)))

    async def stream(self, name: str) -> Stream:
        """Return a stream by its full name, or by its path if it is your own."""
        name = full_name(name, self.me)
        await self.node.stream(name)
        return Stream(self, name)

    async def streams(self, prefix: str = "") -> list[str]:
        """Return the names of the streams there are, sorted."""
        names: list[str] = []
        more = True
        while more:
            asked = ListChains(0, prefix, names[-1] if names else "")
            answer = await self.node.request(asked)
            assert isinstance(answer, ChainList)
            if sorted({*names[-1:], *answer.chains}) != [*names[-1:], *answer.chains]:
                raise AnabranchError("a tracker listed the streams out of order: ask again")
            names += answer.chains
            more = answer.more and bool(answer.chains) and len(names) < MAX_CHAINS
        return names

    async def change(self, chain: str, actions: Actions | Callable[[], Actions]) -> None:
        """Sign a change, have it written, and wait until we have read it back.

        A function is asked for its actions anew whenever somebody else's change came before ours.
        """
        registry = self.node.registry
        attempts, until = 0, self.node.driver.now() + PATIENCE_S
        while attempts < WRITE_ATTEMPTS:
            await self.node.follow(chain)
            version = registry.version(chain)
            proposal = self._propose(chain, actions() if callable(actions) else actions)
            answer = await self.node.request(proposal)
            verdict = judge(Answered(0, answer))
            if verdict.result == DONE:
                written = partial(registry.includes, proposal)
                if await self.node.reach(chain, written, PATIENCE_S):
                    return
                raise NetworkUnreachable(f"{chain} was changed, and no tracker told us of it yet")
            if verdict.problem.startswith("busy") and self.node.driver.now() < until:
                await asyncio.sleep(BUSY_S)
                continue
            if verdict.result != AGAIN:
                raise _refused(chain, verdict.problem)
            attempts += 1
            # Somebody else's change came first, and we are about to read it; or the trackers have
            # not told each other of the last one yet.
            await self.node.reach(chain, lambda: registry.version(chain) > version, AGAIN_S)  # noqa: B023
        raise AnabranchError(f"{chain} is being changed by many at once: try again later")

    def _propose(self, chain: str, actions: Actions) -> WriteChange:
        """Make a change; what the registry would refuse is refused here, in the same words."""
        now = self.node.driver.now()
        try:
            return self.node.registry.propose(self._identity, chain, actions, now)
        except LocalError as error:
            problem = error.__cause__
            if isinstance(problem, RemoteError) and problem.reason in REFUSALS:
                raise _refused(chain, str(problem)) from error
            raise

    async def trackers(self) -> list[dict[str, str]]:
        """Return the network's trackers; the first writes the registry while it is there."""
        await self.node.follow(NETWORK)
        return [_shown(entry) for entry in self.node.registry.network_state.trackers]

    async def storage_nodes(self) -> list[dict[str, str]]:
        """Return the network's storage nodes."""
        await self.node.follow(NETWORK)
        return [_shown(entry) for entry in self.node.registry.network_state.storage]


def _shown(entry: TrackerEntry) -> dict[str, str]:
    return {"node": show(entry.node), "address": entry.address, "http": entry.http}


def _refused(chain: str, problem: str) -> AnabranchError:
    if problem.startswith("forbidden"):
        return NotPermitted(f"{chain}: {problem}")
    if problem.startswith("unreachable"):
        return NetworkUnreachable(f"{chain}: {problem}")
    if problem.startswith("exists"):
        return StreamExists(f"{chain} exists already: use it, or choose another name")
    if problem.startswith("no-such-stream"):
        return NoSuchStream(f"{chain}: there is no such stream (any more)")
    return AnabranchError(f"{chain}: the registry refused: {problem}")
