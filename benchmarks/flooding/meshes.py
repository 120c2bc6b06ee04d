"""The least that a flood can be: sockets, a set of what was seen, and copies to all neighbours.

What waits for one neighbour leaves in one write. With signatures, every message is signed by its
publisher and checked once by every member. There is no registry, no order, no limit, no repair.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator
from random import Random
from typing import cast

from coincurve import PrivateKey, PublicKey

from flooding.harness import MEMBERS, SIZE, free_ports

DEGREE = 4
SECRET = hashlib.sha256(b"flood").digest()
LENGTH = 4  # bytes of a frame's length
NAME = 9  # bytes that no two messages share


class Mailbox:
    """Hands lists of messages to one reader."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._comes = asyncio.Event()

    def put(self, payload: bytes) -> None:
        """Let a message be read."""
        self._waiting.append(payload)
        self._comes.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield messages as they come."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            self._comes.clear()
            await self._comes.wait()


class Wire(asyncio.Protocol):
    """One socket to a neighbour."""

    def __init__(self, member: "MeshMember") -> None:
        self._member = member
        self._rest = b""
        self._waiting: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the socket."""
        self._transport = cast("asyncio.Transport", transport)
        self._member.wires.append(self)

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        data, at = self._rest + data, 0
        while at + LENGTH <= len(data):
            end = at + LENGTH + int.from_bytes(data[at : at + LENGTH])
            if end > len(data):
                break
            self._member.take(data[at:end], self)
            at = end
        self._rest = data[at:]

    def send(self, frame: bytes) -> None:
        """Let a frame leave with all others of this turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(frame)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._waiting))
        self._waiting.clear()

    def close(self) -> None:
        """Let the socket go."""
        self._transport.close()


class MeshMember:
    """Floods."""

    def __init__(self, signed: bool) -> None:
        self.wires: list[Wire] = []
        self._seen: set[bytes] = set()
        self._mailbox = Mailbox()
        self._key = PrivateKey(SECRET) if signed else None
        self._public = PublicKey.from_valid_secret(SECRET)
        self.server: asyncio.Server

    async def publish(self, payload: bytes) -> None:
        """Send to all neighbours."""
        if self._key is not None:
            payload += self._key.sign(payload)
        frame = len(payload).to_bytes(LENGTH) + payload
        self._seen.add(payload[:NAME])
        for wire in self.wires:
            wire.send(frame)

    def take(self, frame: bytes, sender: Wire) -> None:
        """Check, mark, forward, deliver; a copy is nothing new."""
        name = frame[LENGTH : LENGTH + NAME]
        if name in self._seen:
            return
        payload = frame[LENGTH : LENGTH + SIZE]
        if self._key is not None and not self._public.verify(frame[LENGTH + SIZE :], payload):
            return
        self._seen.add(name)
        for wire in self.wires:
            if wire is not sender:
                wire.send(frame)
        self._mailbox.put(payload)

    def receive(self) -> AsyncIterator[bytes]:
        """Yield what was new."""
        return self._mailbox.read()

    async def close(self) -> None:
        """Close all sockets."""
        self.server.close()
        for wire in self.wires:
            wire.close()


class Mesh:
    """Members with four neighbours each."""

    def __init__(self, signed: bool) -> None:
        self.name = "bare mesh, verifying" if signed else "bare mesh"
        self.signed = signed

    async def start(self) -> str:
        """Choose places and neighbours."""
        return json.dumps([free_ports(MEMBERS), regular_graph(Random(7))])

    async def join(self, index: int, where: str) -> MeshMember:
        """Listen, and connect to those who came before."""
        ports, edges = json.loads(where)
        member, loop = MeshMember(self.signed), asyncio.get_running_loop()
        member.server = await loop.create_server(lambda: Wire(member), "127.0.0.1", ports[index])
        for one, other in edges:
            if max(one, other) == index:
                there = ports[min(one, other)]
                await loop.create_connection(lambda: Wire(member), "127.0.0.1", there)
        return member

    async def stop(self) -> None:
        """Nothing runs beside the members."""

    def helpers(self) -> list[int]:
        """Return nobody."""
        return []


def regular_graph(rng: Random) -> list[tuple[int, int]]:
    """Return a random graph in which all have DEGREE neighbours, and all are connected."""
    while True:
        ends = [member for member in range(MEMBERS) for _ in range(DEGREE)]
        rng.shuffle(ends)
        pairs = {(min(pair), max(pair)) for pair in zip(ends[::2], ends[1::2], strict=True)}
        if len(pairs) == MEMBERS * DEGREE // 2 and all(a != b for a, b in pairs):
            reached = {0}
            for _ in range(MEMBERS):
                reached |= {b for a, b in pairs if a in reached} | {
                    a for a, b in pairs if b in reached
                }
            if len(reached) == MEMBERS:
                return sorted(pairs)
