"""A wiretap: an attacker on the path of a link, who reads it and may change what passes.

What a dialler sends is masked, by a mask that stands beside it: the tap takes it off, and masks
what it passes on with zeros.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

BINARY, CLOSE, PING, PONG = 0x2, 0x8, 0x9, 0xA  # opcodes of WebSocket frames
_FINAL, _MASKED, _SHORT, _LONG = 0x80, 0x80, 126, 127


class Frame(NamedTuple):
    """A WebSocket frame without its mask."""

    opcode: int
    payload: bytes
    from_dialler: bool


Edit = Callable[[Frame], list[Frame]]  # returns what passes in the place of a frame


class Tap:
    """Listens at a port of its own, and passes on to another one.

    Frames that an `edit` gives another direction than they had return to their sender.
    """

    def __init__(self, target: int, edit: Edit | None = None) -> None:
        self.port = 0
        self.edit = edit
        self.delay_s = 0.0  # of everything that passes
        self._target = target
        self._streams: list[bytearray] = []  # one for each direction of each connection
        self._writers: dict[bool, asyncio.StreamWriter] = {}  # of the newest, by `from_dialler`
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def caught(self) -> bytes:
        """All payloads of all connections, in both directions, as who listens reads them."""
        return b"|".join(payload for stream in self._streams for payload in payloads(bytes(stream)))

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self._streams) // 2

    def insert(self, frame: Frame) -> None:
        """Add a frame to the newest connection, as if its other end had sent it."""
        self._writers[frame.from_dialler].write(encode(frame))

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a dialler to whom it wanted, and listen."""
        target, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers = {True: back, False: writer}
        pumps = {
            asyncio.create_task(self._pump(*way, from_dialler))
            for *way, from_dialler in ((reader, back, True), (target, writer, False))
        }
        self._pumps |= pumps
        await asyncio.wait(pumps)
        self._pumps -= pumps

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_dialler: bool
    ) -> None:
        caught = bytearray()
        self._streams.append(caught)
        writers, passed = self._writers, 0
        try:
            while data := await reader.read(65_536):
                caught += data
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.edit is None:
                    writer.write(data)
                else:
                    passed = self._pass_on(caught, passed, from_dialler, writers)
                await writer.drain()
        except ConnectionError:
            pass  # one side is gone, and the other one will be
        finally:
            writer.close()

    def _pass_on(
        self,
        caught: bytearray,
        passed: int,
        from_dialler: bool,
        writers: dict[bool, asyncio.StreamWriter],
    ) -> int:
        """Pass on the upgrade as it is, and frames as the `edit` likes; return up to where."""
        assert self.edit is not None
        if not passed and b"\r\n\r\n" in caught:
            passed = caught.index(b"\r\n\r\n") + 4
            writers[from_dialler].write(bytes(caught[:passed]))
        while passed and (found := read_frame(caught, passed)) is not None:
            opcode, payload, passed = found
            for frame in self.edit(Frame(opcode, payload, from_dialler)):
                writers[frame.from_dialler].write(encode(frame))
        return passed

    async def stop(self) -> None:
        """Cut every wire."""
        for pump in list(self._pumps):
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)


@asynccontextmanager
async def tapped(target: int, edit: Edit | None = None) -> AsyncIterator[Tap]:
    """Tap a port: what is dialled instead is the tap's own."""
    tap = Tap(target, edit)
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
    while (found := read_frame(stream, at)) is not None:
        _, payload, at = found
        yield payload


def read_frame(stream: bytes | bytearray, at: int) -> tuple[int, bytes, int] | None:
    """Return the opcode and payload of a frame, and where it ends; None if it is not all there."""
    if at + 2 > len(stream):
        return None
    opcode = stream[at] & 0x0F
    masked, size = stream[at + 1] & _MASKED, stream[at + 1] & ~_MASKED
    at += 2
    more = {_SHORT: 2, _LONG: 8}.get(size, 0)
    if more:
        size, at = int.from_bytes(stream[at : at + more]), at + more
    mask = stream[at : at + 4] if masked else b"\0\0\0\0"
    at += 4 if masked else 0
    if at + size > len(stream):
        return None
    payload = stream[at : at + size]
    return opcode, bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)), at + size


def encode(frame: Frame) -> bytes:
    """Make the bytes of a WebSocket frame."""
    masked, size = _MASKED if frame.from_dialler else 0, len(frame.payload)
    if size < _SHORT:
        head = bytes((_FINAL | frame.opcode, masked | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | frame.opcode, masked | _SHORT)) + size.to_bytes(2)
    else:
        head = bytes((_FINAL | frame.opcode, masked | _LONG)) + size.to_bytes(8)
    return head + (b"\0\0\0\0" if masked else b"") + frame.payload
