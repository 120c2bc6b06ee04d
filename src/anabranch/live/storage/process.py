"""A storage node in a process: it is in the overlays of the streams that name it, and keeps them.

Its folder holds everything it must not forget: its key and the logs. The key is the storage node:
one that has lost its folder is another storage node.
"""

import asyncio
import ssl as tls
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import msgspec

from anabranch.core.changes import SetStorage, TrackerEntry, named
from anabranch.core.identity import Identity, KnownKeys, Verify
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Damaged, Find, Found, LossAccepted, Write, Wrote
from anabranch.core.messages.registry import NETWORK
from anabranch.core.part_log import LogStatus
from anabranch.core.registry_reader import RegistryReader
from anabranch.core.storage import Storage, StorageFactory, UserOf
from anabranch.core.storage_comparison import StoreRetention
from anabranch.core.store import Missing
from anabranch.live.address import NetworkAddress
from anabranch.live.client import Network, connect
from anabranch.live.errors import AnabranchError, Closed
from anabranch.live.keys import load_or_make_key
from anabranch.live.page_server import PageLimits
from anabranch.live.storage.damage import SCRUB_DAYS, Damage, damage_of
from anabranch.live.storage.disk import LogDisk
from anabranch.live.storage.http import StorageHttp
from anabranch.live.storage.losses import taken_requests
from anabranch.live.storage.ports import Ports, remember, remembered
from anabranch.live.storage.scrub import Scrub
from anabranch.live.storage.sqlite import SqliteLogStore
from anabranch.live.subscription import Subscription
from anabranch.live.transports.limits import Prefix
from anabranch.live.transports.websocket import ANY_HOST, Limits, WebSocketTransport
from anabranch.traces.recorder import Recorder

LOOK_EVERY_S = 1.0  # how often it looks for streams that name it
LOOK_AT = 200  # how many of all streams at a time
# Everybody who reads a stream's past, or publishes to it, may turn to its storage nodes.
LIMITS = Limits(
    pending_per_address=256,
    links_per_address=4_096,
    burst=2_000,
    per_s=500,
    pending=4_096,
    links=16_384,
)


class Retention:
    """How long and how much is kept: for ever, and all, unless it is said."""

    def __init__(self, days: float | None = None, gigabytes: float | None = None) -> None:
        self.keep_ms = None if days is None else int(days * 86_400_000)
        self.keep_bytes = None if gigabytes is None else int(gigabytes * 1e9)


class StorageProcess:
    """One storage node, its logs and its pages."""

    storage: Storage
    http: StorageHttp

    def __init__(
        self,
        folder: Path,
        address: NetworkAddress,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http_port: int = 0,
        advertise: str | None = None,
        ssl: tls.SSLContext | None = None,
        client_ssl: tls.SSLContext | None = None,
        retention: Retention | None = None,
        scrub_days: float = SCRUB_DAYS,
        recorder: Recorder | None = None,
        trusted: tuple[Prefix, ...] = (),
        restored: bool = False,
    ) -> None:
        self.identity = load_or_make_key(folder / "storage.key")
        self._address = address
        self._folder = folder
        last = remembered(folder)
        port, http_port = port or last.port, http_port or last.http_port
        self._where = (host, port, http_port)
        self._client_ssl = client_ssl
        self._trusted = trusted  # proxies
        retention = retention or Retention()
        self._is_restored = restored  # the folder is a copy of an earlier time, perhaps
        self.store = SqliteLogStore(folder / "logs.sqlite")
        self.scrub = Scrub(self.store, folder, scrub_days)
        self._known_damage: dict[StreamPart, tuple[Missing, ...]] = {}
        self._deletes = StoreRetention(retention.keep_ms, retention.keep_bytes is not None)
        self._disk = LogDisk(self.store, retention.keep_ms, retention.keep_bytes)
        self.transport = WebSocketTransport(
            self.identity,
            address.genesis,
            host,
            port,
            ssl=ssl,
            client_ssl=client_ssl,
            advertise=advertise,
            limits=msgspec.structs.replace(LIMITS, trusted=trusted),
        )
        self.network = Network(
            str(address),
            address.genesis,
            address.ws_urls,
            self.identity,
            self.identity,
            self.transport,
            recorder=recorder,
            key_store=folder / "keys.sqlite",
            keeps=self._keeps,
            handlers={Write: self._write, Find: self._find},
        )
        self._kept: dict[str, Subscription] = {}
        self._seen: dict[str, None] = {}  # streams that we have looked at
        self._turn = 0
        self._looking: asyncio.Task[None] | None = None

    @property
    def failed(self) -> asyncio.Event:
        """Happens when this process can do nothing more, by a mistake of its own."""
        return self.network.node.failed

    @property
    def problem(self) -> str:
        """What is wrong with this storage node; nothing, if all is well."""
        if self.failed.is_set():
            return f"this storage node failed by a mistake of its own: {self._failure!r}; report it"
        return self.storage.problem

    @property
    def _failure(self) -> BaseException | None:
        return self.network.node.driver.failure

    # --- Coming and going -----------------------------------------------------------------

    async def start(self) -> None:
        """Join the network, and begin to keep what names us."""
        try:
            await self.network.__aenter__()
        except BaseException:
            await self._disk.close()
            raise
        try:
            host, _, http_port = self._where
            self.http = StorageHttp(
                node=self.identity.node,
                network=self._address.genesis,
                registry=self.network.node.registry,
                find=self._disk.look_up,
                status=self._status,
                parts=self.storage.parts,
                clock=self.network.node.driver.now,
                host=host,
                port=http_port,
                verify=KnownKeys().verify,
                problem=lambda: self.problem,
                damage=self.damage,
                sizes=self._sizes,
                limits=PageLimits(trusted=self._trusted),
                compared=self.storage.comparisons.counts,
                registry_age_s=self.network.node.registry_age_s,
            )
            await self.http.start()
            ports = (self.transport.port, urlsplit(self.http.address).port or 0)
            remember(self._folder, Ports(*ports))
            await self._look()
            self.scrub.start()
            self._looking = asyncio.create_task(self._keep_looking())
        except BaseException:
            await self.network.close(0.0)
            await self._disk.close()
            raise

    async def stop(self) -> None:
        """Leave, with everything on the disk that is under way to it."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.to_thread(self.scrub.stop)
        await self.http.stop()
        await self.network.close(0.0)
        await self._disk.close()

    # --- The machine and its disk ---------------------------------------------------------

    def _keeps(
        self,
        identity: Identity,
        network: bytes,
        verify: Verify,
        registry: RegistryReader,
        rng: Random,
    ) -> StorageFactory:
        if self._is_restored:
            self.store.require_recovery()
        states = self.store.states()
        make = partial(Storage, identity, network, verify, registry, rng, states)

        def storage(user_of: UserOf) -> Storage:
            self.storage = make(user_of, retention=self._deletes)
            self.storage.is_restored = self._is_restored
            return self.storage

        return storage

    def _write(self, effect: Write) -> None:
        self._disk.write(effect, self._done)

    def _find(self, effect: Find) -> None:
        self._disk.find(effect, self._done)

    def _done(self, event: Wrote | Found) -> None:
        self.network.node.driver.feed(event)

    def _status(self, part: StreamPart) -> LogStatus | None:
        """Return how a log stands; the machine may not have heard of what retention has deleted."""
        status = self.storage.status(part)
        starts = [state.start for state in self.store.states() if state.part == part]
        if status is None or not starts:
            return status
        return msgspec.structs.replace(status, start=max(status.start, *starts))

    def damage(self) -> Damage:
        """Return the damage on the disk, and how far the scrub is."""
        statuses = {part: self.storage.status(part) for part in self.storage.parts()}
        known = {part: status for part, status in statuses.items() if status is not None}
        return damage_of(self.store, self.scrub.shown(), known)

    def _report_damage(self) -> None:
        """Tell the machine of damage that the scrub, or a reader over HTTP, has found."""
        missing = self.store.missing()
        changed = [
            part
            for part in dict.fromkeys([*missing, *self._known_damage])
            if missing.get(part) != self._known_damage.get(part)
        ]
        self._known_damage = missing
        for part in changed:
            self.network.node.driver.feed(Damaged(part))

    async def _sizes(self) -> dict[StreamPart, int]:
        """Return how much of the disk each part takes."""
        rows = self.store.overview()
        return {StreamPart(row["stream"], row["partition"]): row["bytes"] for row in rows}

    # --- The streams that name us ---------------------------------------------------------

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._report_damage()
            for stream in taken_requests(self._folder):
                self.network.node.driver.feed(LossAccepted(stream))
            try:
                await self._look()
            except Closed:
                return  # the node has left, or has failed: there is nothing to look for
            except AnabranchError:
                continue  # the registry is out of reach: what we keep goes on

    async def _look(self) -> None:
        """See which streams name us, and be in their overlays.

        What we have a log of comes first, then what is new, then some of all others in turn: an
        old stream may name us from now on.
        """
        names = await self.network.streams()
        new = [name for name in names if name not in self._seen]
        logs = [state.part.stream for state in self.store.states()]
        turn = self._turn % len(names) if names else 0
        others = (names[turn:] + names[:turn])[:LOOK_AT]
        self._turn = turn + LOOK_AT
        for name in dict.fromkeys([*logs, *self._kept, *new[:LOOK_AT], *others]):
            await self.network.node.follow(name)
            await self._attend(name)
            self._seen[name] = None
        self._seen = {name: None for name in names if name in self._seen}

    async def _attend(self, name: str) -> None:
        """Be in the overlays of a stream if it names us, and only then."""
        state, kept = self.network.node.registry.stream(name), self._kept.get(name)
        created = state.created if state is not None else None
        parts: tuple[StreamPart, ...] = ()
        if created is not None and self.identity.node in created.storage:
            parts = tuple(StreamPart(name, number) for number in range(created.partitions))
        if kept is not None and kept.parts != parts:
            self._kept.pop(name).close()
            kept = None
        if parts and kept is None:
            node = self.network.node
            subscription = Subscription(parts, node.enter, self._left(name), reads=False)
            self._kept[name] = await subscription.__aenter__()

    def _left(self, name: str) -> Callable[[Subscription], None]:
        def leave(subscription: Subscription) -> None:
            if self._kept.get(name) is subscription:  # the stream was deleted: it may come again
                del self._kept[name]
            self.network.node.leave(subscription)

        return leave

    # --- Our place in the network ---------------------------------------------------------

    def entry(self) -> TrackerEntry:
        """Return what the network should say of us."""
        pages = urlsplit(self.http.address)
        http = self.http.address
        if pages.hostname in ANY_HOST:  # that is where we listen, not where others look
            http = f"http://{urlsplit(self.transport.address).hostname}:{pages.port}"
        return TrackerEntry(self.identity.node, self.transport.address, http)

    async def take_place(self, owner: Identity | None = None) -> bool:
        """See that the network names us, as we are now; only its owner's key can change that."""
        mine = self.entry()
        state = self.network.node.registry.network_state
        if mine in state.storage:
            return True
        if owner is None or state.owner != owner.node:
            return False
        connection = connect(str(self._address), key=owner, client_ssl=self._client_ssl)
        async with connection as network:
            registry = network.node.registry
            await network.change(
                NETWORK, lambda: SetStorage(named(registry.network_state.storage, mine))
            )
        return True
