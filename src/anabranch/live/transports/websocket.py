"""Links over WebSockets: listening, dialling, and the one timer of all connections."""

import asyncio
import errno
import os
import ssl as tls
from collections.abc import Callable

from picows import WSCloseCode
from picows.url import WSParsedURL

from anabranch.core.encryption import Entropy
from anabranch.core.errors import LocalError
from anabranch.core.handshake import NETWORK_BYTES, Accepting, Dialling
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.core.messages.tracker import MAX_ADDRESS_LENGTH
from anabranch.live.address import MAX_PORT
from anabranch.live.descriptors import current_limit, fit
from anabranch.live.loop import close_server
from anabranch.live.transports import LinkOwner, TransportError
from anabranch.live.transports.checks import Check, Targets
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.dials import CROSSED, Dial, connect, explain, read_address
from anabranch.live.transports.limits import Admission, Limits, is_within, place_of
from anabranch.live.transports.links import Links
from anabranch.live.transports.timing import Timing
from anabranch.live.transports.wire import Wire

__all__ = ["Limits", "Timing", "WebSocketTransport"]

ANY_HOST = ("", "0.0.0.0", "::")
DEFAULT_LIMITS = Limits()
DEFAULT_TIMING = Timing()


class WebSocketTransport:
    """Reaches other nodes at ws:// and wss:// addresses; listens if it is given a host."""

    def __init__(
        self,
        identity: Identity,
        network: bytes,
        host: str | None = None,
        port: int = 0,
        *,
        ssl: tls.SSLContext | None = None,
        client_ssl: tls.SSLContext | None = None,
        advertise: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        timing: Timing = DEFAULT_TIMING,
        entropy: Entropy = os.urandom,
    ) -> None:
        _check(network, host, port, advertise)
        self.address = ""
        self.is_address_given = advertise is not None
        self.port = 0  # where we listen, whatever address others know us by
        self._identity = identity
        self._network = network
        self._host, self._port, self._advertise = host, port, advertise
        self._server_ssl, self._client_ssl = ssl, client_ssl
        self._limits = limits = fit(limits, current_limit())
        self._timing = timing
        self._entropy = entropy
        self._links = Links(identity.node, timing)
        self.hasten = self._links.hasten  # without a call between: single packets ask for it
        self._admission = Admission(limits)
        self._wires: set[Wire] = set()
        self._pending: dict[str, dict[Wire, None]] = {}  # by place, the oldest first
        self._refusing: set[Wire] = set()  # over a limit; told so when they ask
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._stopping = False

    def sizes(self) -> dict[str, int]:
        """Return how many there are of everything that comes and goes."""
        return {
            "links": len(self._links.up),
            "held": len(self._links.held),
            "dials": len(self._links.dials) + len(self._links.finds),
            "tasks": len(self._tasks),
            "wires": len(self._wires),
            "refusing": len(self._refusing),
            "pending": self._admission.pending,
            "counted": self._admission.links,
        }

    # --- Transport ------------------------------------------------------------------------

    async def start(self, owner: LinkOwner) -> None:
        """Begin to listen, and to tell `owner`."""
        self._links.owner = owner
        if self._host is not None:
            await self._listen(self._host)
        self._tick()

    def dial(self, peer: NodeId, address: str) -> None:
        """Reach `peer`; a link_up or a link_down answers, never before this call returns."""
        if self._stopping or peer in self._links.up:
            return  # of that link the owner has been told already
        if peer in self._links.dials:
            self._links.dials[peer].asked = True
            return
        self._begin(Dial(peer, address, asked=True))

    async def find(self, address: str) -> NodeId:
        """Reach whoever proves itself at an address; its link_up comes before this returns."""
        dial = Dial(None, address, asked=False)
        self._begin(dial)
        try:
            reason = await asyncio.shield(dial.outcome)
        finally:
            if not dial.asked:
                self._links.settle(dial, "cancelled")
        if reason:
            raise TransportError(explain(reason, address, self._network, self._timing.dial_s))
        assert dial.peer is not None
        return dial.peer

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        """Tell whether a node proves itself at an address, without a link."""
        url = read_address(check.address)
        if url is None or self._stopping:
            asyncio.get_running_loop().call_soon(done, False)
            return
        task = asyncio.create_task(self._check(check, url, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Send what is queued, within a bounded time, and end every link; the owner is not told."""
        self._stopping = True
        if self._server is not None:
            await close_server(self._server)
        self._links.close()
        for wire in list(self._wires):
            if wire.listener is None:
                wire.abort()
            else:
                wire.listener.finish("stopped", WSCloseCode.GOING_AWAY)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._until_empty()
        for wire in list(self._wires):
            wire.abort()
        await self._until_empty()
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            await self._server.wait_closed()

    # --- Wires ----------------------------------------------------------------------------

    def arrived(self, wire: Wire) -> None:
        """A socket is connected; who came to us is counted, and refused if it is one too many."""
        self._wires.add(wire)
        if wire.dialled:
            return
        address = wire.remote_address()
        if address is None or self._stopping:
            wire.abort()
            return
        place = place_of(address)
        is_proxy = is_within(address, self._limits.trusted)
        now = asyncio.get_running_loop().time()
        if self._admission.admit(place, now, is_proxy, self._evict):
            wire.place = place
            self._pending.setdefault(place, {})[wire] = None
        elif len(self._refusing) < self._limits.refusals:
            self._refusing.add(wire)
        else:
            wire.abort()

    def proved(self, wire: Wire) -> None:
        """Who came to us has shown whose key it holds."""
        if wire.place is not None:
            self._forget_pending(wire, wire.place)
            self._admission.prove(wire.place)

    def gone(self, wire: Wire) -> None:
        """A socket is no more."""
        self._wires.discard(wire)
        self._refusing.discard(wire)
        if wire.place is not None:
            self._forget_pending(wire, wire.place)
            self._admission.release(wire.place, wire.proved)
        if not self._wires and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # --- Inside ---------------------------------------------------------------------------

    def _evict(self, place: str | None) -> bool:
        """End the oldest unproved connection of a place, or of the one that has most of them."""
        if place is None:
            place = max(self._pending, key=lambda each: len(self._pending[each]), default="")
        pending = self._pending.get(place)
        if not pending:
            return False
        wire = next(iter(pending))
        self._forget_pending(wire, place)
        self._admission.release(place, proved=False)
        wire.place = None
        wire.abort()
        return True

    def _forget_pending(self, wire: Wire, place: str) -> None:
        pending = self._pending.get(place)
        if pending is not None:
            pending.pop(wire, None)
            if not pending:
                del self._pending[place]

    async def _listen(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        patience = self._timing.dial_s if self._server_ssl is not None else None
        try:
            self._server = await loop.create_server(
                lambda: Wire(self, self._accept, self._timing.dial_s),
                host,
                self._port,
                ssl=self._server_ssl,
                ssl_handshake_timeout=patience,
            )
        except OSError as error:
            raise TransportError(_why_not_listening(error, host, self._port)) from error
        names = [listening.getsockname() for listening in self._server.sockets]
        # A name such as localhost may stand for two addresses, which do not share a free port.
        name = host if len(names) == 1 or self._port else names[0][0]
        scheme = "ws" if self._server_ssl is None else "wss"
        shown = f"[{name}]" if ":" in name else name
        self.port = names[0][1]
        self.address = self._advertise or f"{scheme}://{shown}:{self.port}"

    def _accept(self, wire: Wire) -> Connection | None:
        if wire in self._refusing:
            return None
        opening = Accepting(self._identity, self._network, self._entropy)
        return Connection(self._links, wire, opening)

    def _begin(self, dial: Dial) -> None:
        under_way = len(self._links.dials) + len(self._links.finds)
        self._links.file(dial)
        url = read_address(dial.address)
        if url is not None and under_way < self._limits.dials and not self._stopping:
            dial.task = asyncio.create_task(self._reach(dial))
            self._tasks.add(dial.task)
            dial.task.add_done_callback(self._tasks.discard)
            return
        reason = "stopped" if self._stopping else "too-many-dials"
        if url is None:
            reason = "bad-address" if dial.address else "no-address"
        asyncio.get_running_loop().call_soon(self._links.settle, dial, reason)

    async def _reach(self, dial: Dial) -> None:
        url = read_address(dial.address)
        assert url is not None
        opening = Dialling(self._identity, self._network, self._entropy, dial.peer)
        wire = Wire(
            *(self, lambda _: dial.connection, self._timing.dial_s),
            *(url.netloc, url.resource_name),
        )
        dial.connection = Connection(self._links, wire, opening, dial)
        reason = ""
        try:
            async with asyncio.timeout(self._timing.dial_s):
                reason = await connect(wire, url, self._client_ssl)
                if not reason:
                    await asyncio.wait([dial.outcome])
        except TimeoutError:
            reason = CROSSED if dial.crossed else "timeout"
        finally:
            if wire.listener is None:
                wire.discard()
        if reason:
            self._links.settle(dial, reason)

    async def _check(
        self, check: DialCheck, url: WSParsedURL, done: Callable[[bool], None]
    ) -> None:
        owner = Check(self._timing, self._links.verify, done)
        opening = Dialling(self._identity, self._network, self._entropy, check.peer)
        wire = Wire(
            *(self, lambda wire: owner.connection(wire, opening), self._timing.dial_s),
            *(url.netloc, url.resource_name),
        )
        targets = Targets(check, self.port, self._limits.trusted)
        try:
            async with asyncio.timeout(self._timing.dial_s):
                ip = await targets.resolve(url.host, url.port)
                if ip is None or await connect(wire, url, self._client_ssl, ip):
                    owner.settle(False)
        except TimeoutError:
            owner.settle(False)
        finally:
            if wire.listener is None:
                wire.discard()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timing.tick_s, self._tick)
        for wire in list(self._wires):
            if wire.listener is not None:
                wire.listener.tick()
        self._links.tick()

    async def _until_empty(self) -> None:
        """Wait until the last socket is gone, but not for long."""
        if self._wires:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=self._timing.linger_s)


def _check(network: bytes, host: str | None, port: int, advertise: str | None) -> None:
    if not 0 <= port <= MAX_PORT:
        raise LocalError(f"there is no port {port}: they go from 0, for any, to {MAX_PORT}")
    if len(network) != NETWORK_BYTES:
        raise LocalError(f"a network is named by {NETWORK_BYTES} bytes, these are {len(network)}")
    if host in ANY_HOST and advertise is None:
        raise LocalError(
            f"nobody can dial {host!r}: say with advertise at which address others reach this "
            "node, such as ws://example.org:7700"
        )
    if advertise is not None and (
        read_address(advertise) is None or len(advertise) > MAX_ADDRESS_LENGTH
    ):
        raise LocalError(f"others cannot dial {advertise!r}: write ws://host:port")


def _why_not_listening(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: stop what listens there, or choose another port "
            "(0 takes any free one)"
        )
    return f"cannot listen on port {port} of {host}: {error}"
