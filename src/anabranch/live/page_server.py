"""Serves the pages of a tracker or a storage node, with bounds on connections and on their time.

A connection that sends no request, or sends it byte by byte, costs a descriptor. So a request has
to be complete within a few seconds, connections are bounded by place and in all, and when there is
no room the connection that has waited longest for its request makes room for a newcomer. If all
have their requests it is the one that has taken nothing of its answer for longest.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import cast

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from anabranch.core.errors import LocalError
from anabranch.live.address import MAX_PORT
from anabranch.live.descriptors import current_limit, share_of_pages
from anabranch.live.loop import close_server
from anabranch.live.transports.limits import Prefix, is_loopback, is_within, place_of

STOP_S = 5.0  # how long requests under way may take when it stops
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 2\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
)
TOO_MANY = b'{"problem":"too-many-connections","error":"too many connections: ask again in 2 s"}'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageLimits(msgspec.Struct, frozen=True):
    """Bounds on the connections to the pages of one process."""

    connections: int = 0  # 0: the share of the descriptors that this process may have
    per_place: int = 64  # from one IPv4 address or IPv6 /64; not for loopback and trusted proxies
    request_s: float = 10.0  # for the request line and headers, and again for a body
    idle_s: float = 15.0  # between two requests of a connection
    stall_s: float = 120.0  # how long a reader may take nothing of an answer
    trusted: tuple[Prefix, ...] = ()  # proxies, many of whose users share an address


DEFAULT_LIMITS = PageLimits()


class PageServer:
    """Serves an application's pages at one place."""

    def __init__(
        self, whose: str, host: str, port: int, limits: PageLimits = DEFAULT_LIMITS
    ) -> None:
        """`whose` pages they are stands in the message if they cannot be served."""
        self.counts: Counter[str] = Counter()
        self.limits = limits
        self.bound = limits.connections or share_of_pages(current_limit())
        self.gates: dict[_Gate, None] = {}
        self.waiting: OrderedDict[_Gate, None] = OrderedDict()  # for a request, the oldest first
        self.stalled: OrderedDict[_Gate, None] = OrderedDict()  # take nothing, the longest first
        self._places: Counter[str] = Counter()
        self._by_protocol: dict[asyncio.BaseProtocol, _Gate] = {}
        self._whose = whose
        self._where = (host, port)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self, app: web.Application) -> str:
        """Begin to listen; return where."""
        host, port = self._where
        if not 0 <= port <= MAX_PORT:
            raise LocalError(f"there is no port {port} for the pages: they go to {MAX_PORT}")
        app.middlewares.insert(0, self._bounded)
        limits = self.limits
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=STOP_S,
            keepalive_timeout=limits.idle_s,
            lingering_time=limits.request_s,
        )
        await self._runner.setup()
        make = self._runner.server
        assert make is not None
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Gate(self, make()), host, port)
        except OSError as error:
            await self.stop()
            raise LocalError(
                f"the {self._whose}'s pages cannot be served at {host}:{port} ({error.strerror}): "
                "choose another port, or 0 for any that is free"
            ) from error
        bound = self._server.sockets[0].getsockname()
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}"

    async def stop(self) -> None:
        """Stop listening, and let requests under way end."""
        if self._server is not None:
            await close_server(self._server)
        if self._runner is not None:
            runner, self._runner = self._runner, None
            for gate in list(self.waiting):
                gate.end("stopped")
            await runner.cleanup()
            for gate in list(self.gates):  # those whose answers are not taken
                gate.end("stopped")
            await asyncio.sleep(0)  # sockets close in the next turn of the loop

    @property
    def figures(self) -> Collector:
        """Its connections, for Prometheus."""
        return _Figures(self)

    # --- Connections ----------------------------------------------------------------------

    def admit(self, gate: "_Gate", place: str) -> bool:
        """Count a new connection, or refuse it; the longest waiting one makes room if need be."""
        is_place_full = bool(place) and self._places[place] >= self.limits.per_place
        if is_place_full or len(self.gates) >= self.bound:
            useless = self._useless(place if is_place_full else None)
            if useless is None:
                self.counts["refused"] += 1
                return False
            useless.end("evicted")
        self._count(gate, place)
        return True

    def _useless(self, place: str | None) -> "_Gate | None":
        """Return the connection, of one place or of all, that makes room; None if all are used."""
        found = (each for each in self.waiting if place in (None, each.place))
        slow = (
            each
            for each in self.stalled
            if place in (None, each.place) and each.has_stalled(self.limits.request_s)
        )
        return next(found, None) or next(slow, None)

    def _count(self, gate: "_Gate", place: str) -> None:
        gate.place = place
        self.gates[gate] = None
        self.waiting[gate] = None
        self._by_protocol[gate.inner] = gate
        if place:
            self._places[place] += 1

    def leave(self, gate: "_Gate") -> None:
        """Count a connection no more."""
        if gate not in self.gates:
            return
        del self.gates[gate], self._by_protocol[gate.inner]
        self.waiting.pop(gate, None)
        self.stalled.pop(gate, None)
        if gate.place:
            self._places[gate.place] -= 1
            if not self._places[gate.place]:
                del self._places[gate.place]

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request whose headers have come; its body has to come in time as well."""
        gate = self._by_protocol.get(request.protocol)
        if gate is None:
            return await handler(request)
        gate.begin()
        try:
            if request.can_read_body:
                try:
                    async with asyncio.timeout(self.limits.request_s):
                        await request.read()
                except TimeoutError:
                    self.counts["timed-out"] += 1
                    raise web.HTTPRequestTimeout(text="the body took too long") from None
            self.waiting.pop(gate, None)
            return await handler(request)
        finally:
            if gate in self.gates:
                self.waiting[gate] = None
                self.waiting.move_to_end(gate)
                gate.wait(self.limits.idle_s)


class _Gate(asyncio.Protocol):
    """One connection: refuses it, limits its time, or passes it on to aiohttp."""

    def __init__(self, server: PageServer, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.place = ""
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_admitted = False
        self._timer: asyncio.TimerHandle | None = None  # until a request has to be there
        self._stall_timer: asyncio.TimerHandle | None = None  # until an answer has to go on
        self._stalled_at = 0.0

    # --- What the server does -------------------------------------------------------------

    def begin(self) -> None:
        """Its request has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wait(self, seconds: float) -> None:
        """End the connection unless a request comes in time."""
        self.begin()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._too_late)

    def end(self, why: str) -> None:
        """End the connection at once, and count it."""
        self._server.counts[why] += 1
        self._server.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def has_stalled(self, seconds: float) -> bool:
        """Tell whether nothing of an answer has been taken for so long."""
        now = asyncio.get_running_loop().time()
        return self._stall_timer is not None and now >= self._stalled_at + seconds

    def _too_late(self) -> None:
        transport, self._timer = self._transport, None
        if transport is not None and transport.get_write_buffer_size():
            if self._stall_timer is None:
                self._stall()  # the last of an answer is on its way
            self.wait(self._server.limits.idle_s)
        else:
            self.end("timed-out")

    def _go_on(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
            self._server.stalled.pop(self, None)

    def _stall(self) -> None:
        self._go_on()
        loop, seconds = asyncio.get_running_loop(), self._server.limits.stall_s
        self._stall_timer = loop.call_later(seconds, self.end, "stalled")
        self._stalled_at = loop.time()
        self._server.stalled[self] = None

    # --- What the transport says ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it in a few words."""
        # The transport of uvloop is one, and no subclass.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer: Sequence[object] | None = transport.get_extra_info("peername")
        address = str(peer[0]) if peer else ""
        trusted = self._server.limits.trusted
        shared = not address or is_loopback(address) or is_within(address, trusted)
        if not self._server.admit(self, "" if shared else place_of(address)):
            transport.write(REFUSAL % (len(TOO_MANY), TOO_MANY))
            transport.close()
            return
        self._is_admitted = True
        self.wait(self._server.limits.request_s)
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what comes."""
        if self._is_admitted:
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass on that no more comes."""
        return self.inner.eof_received() if self._is_admitted else None

    def pause_writing(self) -> None:
        """The reader takes nothing of the answer: it may do so for a while."""
        if self._is_admitted:
            self._stall()
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        """The reader goes on."""
        if self._is_admitted:
            self._go_on()
            self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Count it no more."""
        self.begin()
        self._go_on()
        self._server.leave(self)
        if self._is_admitted:
            self.inner.connection_lost(error)


class _Figures(Collector):
    """Connections to the pages of one process."""

    def __init__(self, server: PageServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Return all figures."""
        server = self._server
        yield GaugeMetricFamily(
            "anabranch_page_connections", "Connections to these pages.", len(server.gates)
        )
        yield GaugeMetricFamily(
            "anabranch_page_connections_bound", "How many there may be.", server.bound
        )
        ended = CounterMetricFamily(
            "anabranch_page_connections_ended",
            "Connections that were refused, evicted for a newcomer, or ended for taking too long.",
            labels=["why"],
        )
        for why in ("refused", "evicted", "timed-out", "stalled"):
            ended.add_metric([why], server.counts[why])
        yield ended
