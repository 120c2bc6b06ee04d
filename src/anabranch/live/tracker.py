"""A tracker in a process: the tracker's machine behind a driver, its registry on the disk.

Its folder holds everything it must not forget: its key and the registry. The first tracker of a
network founds it; others join it, and serve it once the network's owner has named them.
"""

import asyncio
import os
import random
import ssl as tls
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from anabranch.core.changes import (
    GENESIS_VERSION,
    NONCE_BYTES,
    Genesis,
    SetTrackers,
    TrackerEntry,
    encode_genesis,
    named,
    network_name,
)
from anabranch.core.dial_checks import DialChecks
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.machine import Store, Stored, Wakeup
from anabranch.core.messages import Contact
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_keeper import RegistryKeeper
from anabranch.core.tracker_node import TrackerNode
from anabranch.live.address import Host, NetworkAddress
from anabranch.live.client import connect
from anabranch.live.clock import Clock
from anabranch.live.driver import Driver
from anabranch.live.errors import NetworkUnreachable
from anabranch.live.keys import load_or_make_key
from anabranch.live.observer import Observer
from anabranch.live.page_server import PageLimits
from anabranch.live.registry.sqlite import SqliteStore
from anabranch.live.tracker_http import About, TrackerHttp
from anabranch.live.transports import Transport, TransportError
from anabranch.live.transports.limits import Prefix, is_within
from anabranch.live.transports.websocket import ANY_HOST, Limits, WebSocketTransport
from anabranch.overlays import TOPOLOGIES
from anabranch.traces.recorder import Recorder

FIND_EVERY_S = 2.0  # how often a tracker that joins looks for the others
FIND_ATTEMPTS = 5
# Every node of a network turns to its trackers, and many may share one address.
LIMITS = Limits(
    pending_per_address=256,
    links_per_address=4_096,
    burst=2_000,
    per_s=500,
    pending=4_096,
    links=16_384,
)


class TrackerProcess:
    """One tracker, its registry and its pages."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int = 0,
        join: NetworkAddress | None = None,
        owner: Identity | None = None,
        name: str = "",
        advertise: str | None = None,
        ssl: tls.SSLContext | None = None,
        client_ssl: tls.SSLContext | None = None,
        recorder: Recorder | None = None,
        trusted: tuple[Prefix, ...] = (),
        through: Callable[[Transport], Transport] = lambda transport: transport,
    ) -> None:
        """`trusted` are proxies in front of this tracker, whose addresses are not those of nodes.

        `through` wraps the transport; one that seems far away, for example.
        """
        self.identity = load_or_make_key(folder / "tracker.key")
        self._where = (host, port, http_port)
        self._join = join
        self._owner = owner or self.identity
        self._name = name
        self._advertise = advertise
        self._ssl, self._client_ssl = ssl, client_ssl
        self._through = through
        self._trusted = trusted  # proxies
        self._clock = Clock()
        self._verify = KnownKeys().verify
        self._store = SqliteStore(folder / "registry.sqlite")
        # One thread, so that changes reach the disk in their order and the loop never waits.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="registry")
        self._observer = Observer(self.identity.node, recorder)
        self._problem = ""
        self.failed = asyncio.Event()  # by a mistake of ours
        self.network: bytes
        self.machine: TrackerNode
        self.transport: WebSocketTransport
        self._links: Transport  # the same, perhaps wrapped
        self.http: TrackerHttp
        self.driver: Driver

    @property
    def address(self) -> NetworkAddress:
        """Return the network's address through this tracker."""
        place = urlsplit(self.transport.address)
        secure = place.scheme == "wss"
        port = place.port or (443 if secure else 80)
        return NetworkAddress(self.network, (Host(str(place.hostname), port),), secure)

    async def start(self) -> None:
        """Take up the registry, begin to listen, and take our place in the network."""
        changes = self._store.load()
        genesis = next((c for chain, height, c in changes if (chain, height) == (NETWORK, 1)), None)
        self.network = self._recognise(genesis)
        if genesis is None and self._join is None:
            genesis = self._found()
            changes = self._store.load()
        host, port, http_port = self._where
        self.transport = WebSocketTransport(
            self.identity,
            self.network,
            host,
            port,
            ssl=self._ssl,
            client_ssl=self._client_ssl,
            advertise=self._advertise,
            limits=msgspec.structs.replace(LIMITS, trusted=self._trusted),
        )
        self._links = self._through(self.transport)
        self.driver = Driver(self._links, {Store: self._keep}, self._observer, self._clock)
        self.driver.on_failure(self._failed)
        try:
            await self._links.start(self.driver)
            follow = await self._whom_to_follow(changes)
            self.machine = TrackerNode(
                self.identity.node,
                self.network,
                self._verify,
                random.Random(int.from_bytes(os.urandom(16))),
                TOPOLOGIES,
                changes,
                follow,
                DialChecks(self._own_addresses(), self._is_proxy),
            )
            self.http = TrackerHttp(
                self.machine.tracker,
                About(self.network.hex(), self.identity.node),
                self._clock,
                host,
                http_port,
                lambda: self._problem,
                limits=PageLimits(trusted=self._trusted),
            )
            await self.http.start()
            self.driver.attach(self.machine)
            self.driver.feed(Wakeup())
        except BaseException:
            self.driver.detach()
            await self._links.stop()
            self._close()
            raise

    def _own_addresses(self) -> list[str]:
        """Return the addresses of this tracker, whatever names others know it by."""
        own = f"ws://{self._where[0] or '127.0.0.1'}:{self.transport.port}"
        return [self.transport.address, own]

    def _recognise(self, genesis: bytes | None) -> bytes:
        """Return the network's name: of the one we are in already, or of the one we join."""
        if genesis is None:
            return self._join.genesis if self._join is not None else b""
        network = network_name(genesis)
        if self._join is not None and self._join.genesis != network:
            self._close()
            raise LocalError(
                f"this folder belongs to the network {network.hex()}: give another with --data"
            )
        return network

    def _found(self) -> bytes:
        """Begin a network of which we are the first tracker."""
        created_ms = int(self._clock() * 1000)
        record = Genesis(
            GENESIS_VERSION, self._name, created_ms, self._owner.node, os.urandom(NONCE_BYTES)
        )
        genesis = encode_genesis(record)
        self.network = network_name(genesis)
        self._store.store(NETWORK, 1, genesis)
        return genesis

    async def _whom_to_follow(self, changes: Sequence[tuple[str, int, bytes]]) -> Contact | None:
        """Return a tracker whose registry we copy; None if we are the one who writes it."""
        ours = [row for row in changes if row[0] == NETWORK]
        trackers = RegistryKeeper(self.network, self._verify, ours).network_state.trackers
        if trackers and trackers[0].node == self.identity.node:
            return None
        others = [entry.contact for entry in trackers if entry.node != self.identity.node]
        if self._join is None:
            return others[0] if others else None
        try:  # where we were told to look, since the others may have moved
            return await self._find(self._join, 1 if others else FIND_ATTEMPTS)
        except NetworkUnreachable:
            if not others:
                raise
            return others[0]  # it may be away just now: what we have of the registry will do

    async def _find(self, network: NetworkAddress, attempts: int) -> Contact:
        """Reach another tracker of the network."""
        problem = ""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(FIND_EVERY_S)
            for url in network.ws_urls:
                try:
                    return Contact(await self._links.find(url), url)
                except TransportError as error:
                    problem = str(error)
        raise NetworkUnreachable(problem or "name another tracker of the network with --join")

    async def stop(self) -> None:
        """Send what is queued, and end."""
        self.driver.detach()
        await self.http.stop()
        await self._links.stop()
        self._close()

    def _is_proxy(self, host: str) -> bool:
        return bool(host) and is_within(host, self._trusted)

    def _close(self) -> None:
        self._disk.shutdown(wait=True)
        self._store.close()

    def _failed(self, error: BaseException) -> None:
        self._problem = f"this tracker failed by a mistake of its own: {error!r}; report it"
        self.failed.set()

    @property
    def problem(self) -> str:
        """What is wrong with this tracker; nothing, if all is well."""
        return self._problem

    # --- The disk -------------------------------------------------------------------------

    def _keep(self, effect: Store) -> None:
        written = self._disk.submit(self._store.store, effect.chain, effect.sequence, effect.change)
        loop = asyncio.get_running_loop()
        written.add_done_callback(
            lambda done: loop.call_soon_threadsafe(self._kept, effect.token, done.exception())
        )

    def _kept(self, token: int, error: BaseException | None) -> None:
        self._problem = "" if error is None else f"the registry cannot be written: {error}"
        self.driver.feed(Stored(token, self._problem))

    # --- Our place in the network ---------------------------------------------------------

    def entry(self) -> TrackerEntry:
        """Return what the network should say of us."""
        pages = urlsplit(self.http.address)
        http = self.http.address
        if pages.hostname in ANY_HOST:  # that is where we listen, not where others look
            host = str(self.address.hosts[0]).rpartition(":")[0]
            http = f"http://{host}:{pages.port}"
        return TrackerEntry(self.identity.node, self.transport.address, http)

    async def take_place(self) -> bool:
        """See that the network names us, as we are now; only its owner's key can change that."""
        try:
            return await self._take_place()
        except NetworkUnreachable:
            # Nobody keeps the registry just now. We serve by what we know of it.
            return self.entry() in self.machine.keeper.network_state.trackers

    async def _take_place(self) -> bool:
        # The others first: we may not have copied yet what they say of the network.
        others = self._join.hosts if self._join is not None else ()
        # We may not be reached from within by the address that others use.
        host = "127.0.0.1" if self._where[0] in ANY_HOST else self._where[0]
        hosts = (*others, *self.address.hosts, Host(host, self.transport.port))
        address = NetworkAddress(self.network, tuple(dict.fromkeys(hosts)), self.address.secure)
        connection = connect(str(address), key=self._owner, client_ssl=self._client_ssl)
        async with connection as network:
            state = network.node.registry.network_state
            mine = self.entry()
            if mine in state.trackers:
                return True
            if state.genesis is None or state.genesis.owner != self._owner.node:
                return False
            # Asked anew if another tracker was named in the meantime.
            registry = network.node.registry
            await network.change(
                NETWORK, lambda: SetTrackers(named(registry.network_state.trackers, mine))
            )
        return True
