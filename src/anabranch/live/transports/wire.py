"""The socket below a connection: picows' protocol, bounded from its first byte.

picows asks for a listener only when the upgrade request is there, and says not who sent it.
Standing in its protocol's place we know the address at once: whoever is over a limit costs us no
signature, and nobody who has not proved itself can make us hold more than a few bytes.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from picows import WSAutoPingStrategy, WSListener, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # missing in its stubs

from anabranch.live.transports.batches import MAX_MESSAGE_BYTES
from anabranch.live.transports.connection import Connection

MAX_UNPROVED_BYTES = 64 * 1024  # the upgrade may have 16 KiB, the handshake has some hundred bytes
READ_BUFFER_BYTES = 16 * 1024
UNSENT_LOW_MARK_BYTES = 128 * 1024  # beyond that, what waits shall wait here, where it is counted
TOO_MANY_REQUESTS = 429

# What picows logs is the remote side's doing; links report it with a reason. Without a handler
# Python would print it on standard error.
_log = logging.getLogger("anabranch.picows")
_log.setLevel(logging.WARNING)  # connections that come and go are nobody's news
_log.addHandler(logging.NullHandler())

Open = Callable[["Wire"], Connection | None]


class Harbour(Protocol):
    """Where wires come and go: the transport."""

    def arrived(self, wire: "Wire") -> None:
        """A socket is connected."""

    def proved(self, wire: "Wire") -> None:
        """Who came has shown whose key it holds."""

    def gone(self, wire: "Wire") -> None:
        """It is no more."""


class Wire(WSProtocol):  # type: ignore[misc]
    """One socket. `open_connection` makes its listener after the upgrade; None refuses it."""

    def __init__(
        self,
        harbour: Harbour,
        open_connection: Open,
        timeout_s: float,
        host: str | None = None,
        path: str | None = None,
    ) -> None:
        self.place: str | None = None  # where a dialler counts; None: it is not counted
        self.dialled = host is not None
        self.proved = False
        self._harbour = harbour
        self._lost = False
        self._unproved_bytes = 0

        def listen(
            request: Any, response: Any = None
        ) -> WSListener | WSUpgradeResponseWithListener:
            connection = open_connection(self)
            if connection is not None:
                return connection
            refusal = WSUpgradeResponse.create_error_response(TOO_MANY_REQUESTS, b"too many")
            return WSUpgradeResponseWithListener(refusal, None)

        super().__init__(
            *(host, path, self.dialled, listen, _log, True, timeout_s),
            # No pings or pongs of picows' own: a connection does them, to hear that it is alive.
            *(False, timeout_s, timeout_s, WSAutoPingStrategy.PING_WHEN_IDLE, False),
            *(MAX_MESSAGE_BYTES, None, READ_BUFFER_BYTES),
        )

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The socket is connected."""
        super().connection_made(transport)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_MARK_BYTES
            )
        self._harbour.arrived(self)

    def buffer_updated(self, count: int) -> None:
        """Bytes came."""
        if not self.proved:
            self._unproved_bytes += count
            if self._unproved_bytes > MAX_UNPROVED_BYTES:
                self.abort()
                return
        super().buffer_updated(count)

    def prove(self) -> None:
        """Note that the other end has shown whose key it holds."""
        self.proved = True
        # From here on nothing is counted, and nothing of ours stands between the socket and picows.
        self.buffer_updated = super().buffer_updated  # type: ignore[method-assign]
        self.transport.underlying_transport.set_protocol(self)
        self._harbour.proved(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is no more."""
        if not self._lost:
            self._lost = True
            self.__dict__.pop("buffer_updated", None)  # which holds us
            super().connection_lost(error)
            self._harbour.gone(self)

    def remote_address(self) -> str | None:
        """Return the other end's IP address, if it is still known."""
        name = self.transport.underlying_transport.get_extra_info("peername")
        return name[0] if name else None

    def remote_host(self) -> str:
        """Return the other end's IP address as it is written in an address; empty if unknown."""
        address = (self.remote_address() or "").partition("%")[0]
        return address.removeprefix("::ffff:") if "." in address else address

    def abort(self) -> None:
        """Drop the socket and what waits in it."""
        if self.transport is not None:
            self.transport.disconnect(False)

    def discard(self) -> None:
        """Drop a socket that was given up while it was being connected.

        uvloop does not say of such a one that it is lost, even if it has said that it was made.
        """
        if self.transport is not None:
            self.abort()
            self.connection_lost(None)
