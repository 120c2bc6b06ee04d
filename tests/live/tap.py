"""A wiretap: somebody on the wire who passes everything on and keeps what the WebSockets carry.

What a dialler sends is masked, by a mask that stands beside it: whoever listens takes it off.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

_MASKED, _SHORT, _LONG = 0x80, 126, 127


class Tap:
    """Listens at a port of its own, and passes on to another one."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._streams: list[bytearray] = []  # one for each direction of each connection
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def caught(self) -> bytes:
        """All payloads of all connections, in both directions, as who listens reads them."""
        return b"|".join(payload for stream in self._streams for payload in payloads(bytes(stream)))

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self._streams) // 2

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a dialler to whom it wanted, and listen."""
        target, back = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = {
            asyncio.create_task(self._pump(*way)) for way in ((reader, back), (target, writer))
        }
        self._pumps |= pumps
        await asyncio.wait(pumps)
        self._pumps -= pumps

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caught = bytearray()
        self._streams.append(caught)
        try:
            while data := await reader.read(65_536):
                caught += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one side is gone, and the other one will be
        finally:
            writer.close()

    async def stop(self) -> None:
        """Cut every wire."""
        for pump in list(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)


@asynccontextmanager
async def tapped(target: int) -> AsyncIterator[Tap]:
    """Tap a port: what is dialled instead is the tap's own."""
    tap = Tap(target)
    server = await asyncio.start_server(tap.accept, "127.0.0.1", 0)
    tap.port = server.sockets[0].getsockname()[1]
    try:
        yield tap
    finally:
        server.close()
        await tap.stop()
        await server.wait_closed()


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def payloads(stream: bytes) -> Iterator[bytes]:
    """Read the WebSocket frames of one direction, after the upgrade."""
    at = stream.find(b"\r\n\r\n") + 4
    while at + 2 <= len(stream):
        masked, size = stream[at + 1] & _MASKED, stream[at + 1] & ~_MASKED
        at += 2
        more = {_SHORT: 2, _LONG: 8}.get(size, 0)
        if more:
            size, at = int.from_bytes(stream[at : at + more]), at + more
        mask = stream[at : at + 4] if masked else b"\0\0\0\0"
        at += 4 if masked else 0
        payload = stream[at : at + size]
        at += size
        yield bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
