"""The API that users import: connect to a network, create streams, publish, subscribe.

A client is a full node in the caller's process: it joins the overlays of its streams and carries
their messages, and no server stands between it and the others.
"""

import socket
import ssl as tls
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from anabranch.core.changes import Action, CreateStream
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Identity
from anabranch.core.ids import MAX_PARTITIONS, show
from anabranch.core.messages import Contact
from anabranch.core.messages.registry import NETWORK, ChainList, ListChains, WriteChange, Written
from anabranch.core.messages.tracker import MAX_NEIGHBOURS
from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.core.publishing import STRANDED_FOR_S
from anabranch.core.registry import ChainState, make_change
from anabranch.live.address import NetworkAddress, parse_address
from anabranch.live.errors import AnabranchError, NoSuchStream, NotPermitted, StreamExists
from anabranch.live.keys import load_key, new_key, parse_key
from anabranch.live.node import Node
from anabranch.live.observer import Observer
from anabranch.live.profiles import current_profile, profile_identity
from anabranch.live.stream import Stream, full_name, rights_of
from anabranch.live.transports import Transport
from anabranch.live.transports.websocket import WebSocketTransport
from anabranch.overlays import OVERLAYS
from anabranch.traces.recorder import Recorder

DRAIN_S = 10.0
WRITE_ATTEMPTS = 5
REFUSALS = ("forbidden", "exists", "no-such-stream")  # by the registry, and not for a wrong value

Key = str | bytes | Path | Identity


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
    recorder: Recorder | None = None,
) -> "Network":
    """Name a network; `async with` joins it.

    Without an address, the current profile's network and key are used. `key` is who you are: what
    you publish is signed with it; it may be 64 hex digits, a file, or an Identity. Several
    processes may use one key at once, since a node's own name is made anew for each connection
    unless `node_key` gives it. `listen` is `host:port` (default: the interface that reaches the
    tracker, any port), `advertise` what others dial if that differs. With `ssl` this node listens
    at a wss:// address; `client_ssl` replaces the system's certificates when it dials one. A
    message that no neighbour has taken within `patience_s` is given up, and `publish` says so.
    """
    if address is None:
        chosen = current_profile(profile)
        identity = profile_identity(chosen) if key is None else as_identity(key)
        parsed = chosen.address
    else:
        if profile is not None:
            raise LocalError("give an address or a profile, not both")
        if key is None:
            raise LocalError(
                "give a key: connect(address, key=...); `anabranch key new --out FILE` makes one"
            )
        identity = as_identity(key)
        parsed = parse_address(address)
    node_identity = new_key()[0] if node_key is None else as_identity(node_key)
    return Network(
        str(parsed),
        parsed.genesis,
        parsed.ws_urls,
        identity,
        node_identity,
        _websocket(node_identity, parsed, listen, advertise, ssl, client_ssl),
        patience_s,
        recorder,
    )


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
    ) -> None:
        self.address = address
        self._urls = urls
        self._identity = identity
        self._observer = Observer(node_identity.node, recorder)
        self.node = Node(
            identity, transport, node_identity.node, genesis, self._observer, patience_s
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
        # Whoever leaves because of an error does not want to wait for messages under way.
        await self.close(DRAIN_S if kind is None else 0.0)

    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Leave: what was published is handed over first, for at most `drain_s`."""
        await self.node.stop(drain_s)

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
        trackers: Iterable[Contact] = (),
        exist_ok: bool = False,
    ) -> Stream:
        """Create `<your address>/<path>`. `public` names the rights that everyone has.

        With `exist_ok` a stream that is there already is taken as it is.
        """
        if overlay not in OVERLAYS:
            raise LocalError(f"there is no overlay {overlay!r}: choose of {', '.join(OVERLAYS)}")
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise LocalError(f"{partitions} partitions: a stream has 1 to {MAX_PARTITIONS}")
        if not 2 <= degree <= MAX_NEIGHBOURS:
            raise LocalError(f"a degree of {degree}: a node has 2 to {MAX_NEIGHBOURS} neighbours")
        name = full_name(path, self.me)
        await self.node.follow(name)
        state = self.node.registry.stream(name)
        if state is not None and state.created is not None:
            if exist_ok:
                return Stream(self, name)
            raise StreamExists(
                f"{name} exists: use it as it is (exist_ok, --exist-ok), or delete it first"
            )
        action = CreateStream(
            partitions=partitions,
            overlay=overlay,
            degree=degree,
            metadata=metadata,
            public=int(rights_of(public)),
            trackers=tuple(trackers),
        )
        try:
            await self.change(name, action)
        except StreamExists:
            if not exist_ok:
                raise
        return Stream(self, name)

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
            names += answer.chains
            more = answer.more and bool(answer.chains)
        return names

    async def change(self, chain: str, action: Action | Callable[[], Action]) -> None:
        """Sign a change, have it written, and wait until we have read it back.

        A function is asked for its action anew whenever somebody else's change came before ours.
        """
        for _ in range(WRITE_ATTEMPTS):
            await self.node.follow(chain)
            state = self.node.registry.state(chain)
            height = state.height
            change = self._sign(state, action() if callable(action) else action)
            answer = await self.node.request(WriteChange(0, change))
            assert isinstance(answer, Written)
            if answer.problem and not answer.problem.startswith("stale"):
                raise _refused(chain, answer.problem)
            # Whether it was ours or somebody else's: there is a change that we must read.
            await self.node.reach(chain, height + 1)
            if not answer.problem:
                return
        raise AnabranchError(f"{chain} is being changed by many at once: try again later")

    def _sign(self, state: ChainState, action: Action) -> bytes:
        """Make a change; what the registry would refuse is refused here, in the same words."""
        try:
            return make_change(self._identity, state, action, self.node.driver.now())
        except LocalError as error:
            problem = error.__cause__
            if isinstance(problem, RemoteError) and problem.reason in REFUSALS:
                raise _refused(state.chain, str(problem)) from error
            raise

    async def trackers(self) -> list[dict[str, str]]:
        """Return the network's trackers; the first keeps the registry."""
        await self.node.follow(NETWORK)
        state = self.node.registry.network_state
        return [
            {"node": show(entry.node), "address": entry.address, "http": entry.http}
            for entry in state.trackers
        ]


def _refused(chain: str, problem: str) -> AnabranchError:
    if problem.startswith("forbidden"):
        return NotPermitted(f"{chain}: {problem}")
    if problem.startswith("exists"):
        return StreamExists(f"{chain} exists already: use it, or choose another name")
    if problem.startswith("no-such-stream"):
        return NoSuchStream(f"{chain}: there is no such stream (any more)")
    return AnabranchError(f"{chain}: the registry refused: {problem}")
