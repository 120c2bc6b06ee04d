"""What transports are tested with: owners that remember, a loop that complains, raw clients."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvloop
from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from anabranch.core.handshake import Dialling, Ready, decode
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId
from anabranch.core.link_mac import MAC_BYTES, LinkMac
from anabranch.live.transports import Link
from anabranch.live.transports.batches import ECHO, batches, split
from anabranch.live.transports.websocket import Limits, Timing, WebSocketTransport
from support.waiting import within

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
PATIENCE_S = 30.0  # for a test that hangs; none waits this long and goes on
NETWORK = b"n" * 32
# In the order of their node ids, which decides between crossing dials.
SMALL, MIDDLE, LARGE = sorted(
    (Identity(bytes([number]) * 32) for number in (1, 2, 3)), key=lambda identity: identity.node
)
QUICK = Timing(crossing_s=0.05, linger_s=0.5, tick_s=0.01)
OPEN = Limits(burst=100_000)


def run(test: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Run a test; fail if it hangs, leaves a task behind, or the loop met an error."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
        before = asyncio.all_tasks()
        await within(PATIENCE_S, test)
        assert asyncio.all_tasks() == before

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(watched())
    assert complaints == []


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not condition():  # noqa: ASYNC110 (what is awaited has no event to set)
        await asyncio.sleep(0.001)


class Owner:
    """Remembers what its transport tells it, and checks that it makes sense."""

    def __init__(self) -> None:
        self.links: dict[NodeId, Link] = {}
        self.ups: list[NodeId] = []
        self.downs: list[tuple[NodeId, str]] = []
        self.batches: list[list[bytes]] = []
        self.rtts: list[float] = []
        self.pressure: list[str] = []

    @property
    def packets(self) -> list[bytes]:
        return [packet for batch in self.batches for packet in batch]

    def link_up(self, link: Link) -> None:
        assert link.peer not in self.links
        self.links[link.peer] = link
        self.ups.append(link.peer)

    def link_down(self, peer: NodeId, reason: str) -> None:
        self.links.pop(peer, None)
        self.downs.append((peer, reason))

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        assert peer in self.links
        self.batches.append(list(packets))

    def rtt(self, peer: NodeId, seconds: float) -> None:
        assert peer in self.links
        self.rtts.append(seconds)

    def congested(self, peer: NodeId) -> None:
        assert peer in self.links
        self.pressure.append("congested")

    def writable(self, peer: NodeId) -> None:
        assert peer in self.links
        self.pressure.append("writable")


class Endpoint:
    """A transport on 127.0.0.1, and its owner."""

    def __init__(self, identity: Identity, network: bytes = NETWORK, **options: Any) -> None:
        options = {"host": "127.0.0.1", "timing": QUICK, "limits": OPEN, **options}
        self.node = identity.node
        self.owner = Owner()
        self.transport = WebSocketTransport(identity, network, **options)

    @property
    def address(self) -> str:
        return self.transport.address

    def link(self, other: "Endpoint") -> Link:
        return self.owner.links[other.node]

    def dial(self, other: "Endpoint") -> None:
        self.transport.dial(other.node, other.address)


@asynccontextmanager
async def started(*endpoints: Endpoint) -> AsyncIterator[None]:
    """Start endpoints; in the end stop them, and see that nothing is left."""
    for endpoint in endpoints:
        await endpoint.transport.start(endpoint.owner)
    try:
        yield
    finally:
        for endpoint in endpoints:
            await endpoint.transport.stop()
    for endpoint in endpoints:
        assert set(endpoint.transport.sizes().values()) == {0}


async def linked(one: Endpoint, other: Endpoint) -> None:
    """Wait until two endpoints have dialled and both ends stand."""
    one.dial(other)
    await until(lambda: other.node in one.owner.links and one.node in other.owner.links)


@contextmanager
def silent_address() -> Iterator[str]:
    """An address where the system takes connections and nobody ever answers them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}"


REQUEST, ANSWER = ECHO + b"\0", ECHO + b"\1"


class RawClient(WSListener):
    """A WebSocket client that sends anything; `echo`: it answers echo requests."""

    def __init__(self, echo: bool = True) -> None:
        self.heard: list[bytes] = []  # messages without their tags, and without echoes
        self.asked: list[bytes] = []  # by echo requests
        self.pongs: list[bytes] = []
        self.mac: LinkMac | None = None  # from the Proof on
        self.echo = echo
        self.closed: tuple[int, str] | None = None
        self.gone = False
        self.socket: WSTransport

    def on_ws_connected(self, transport: WSTransport) -> None:
        self.socket = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            self.closed = (int(frame.get_close_code()), frame.get_close_reason())
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif frame.msg_type == WSMsgType.BINARY:
            self._hear(frame.get_payload_as_bytes())
        elif frame.msg_type == WSMsgType.PONG:
            self.pongs.append(frame.get_payload_as_bytes())

    def _hear(self, message: bytes) -> None:
        if self.mac is None:
            self.heard.append(message)
            return
        covered = message[:-MAC_BYTES]
        if len(self.heard) > 1 and not message.startswith(ECHO):  # no echo, and no Ready
            covered = split(message)[1]
        self.mac.check(covered, message[-MAC_BYTES:])
        if not message.startswith(ECHO):
            self.heard.append(message[:-MAC_BYTES])
        elif message.startswith(REQUEST):
            self.asked.append(covered.removeprefix(REQUEST))
            if self.echo:
                self.say_tagged(ANSWER + self.asked[-1])

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.gone = True

    def say(self, payload: bytes, kind: WSMsgType = WSMsgType.BINARY, fin: bool = True) -> None:
        self.socket.send(kind, payload, fin)

    def say_tagged(self, message: bytes) -> None:
        """Send a message of any content, with its tag."""
        assert self.mac is not None
        self.say(message + self.mac.tag(message))

    def say_packets(self, *packets: bytes) -> None:
        """Send packets as a transport does."""
        assert self.mac is not None
        for message in batches(list(packets), self.mac.tag):
            self.say(bytes(message))

    async def answer(self, number: int) -> bytes:
        """Wait for the `number`th message, from 1."""
        await until(lambda: len(self.heard) >= number or self.gone)
        return self.heard[number - 1]


async def raw_client(address: str, echo: bool = True) -> RawClient:
    """Connect without a word; a client that does not `echo` leaves echo requests unanswered."""
    _, client = await ws_connect(lambda: RawClient(echo), address)
    assert isinstance(client, RawClient)
    return client


async def welcomed_client(
    address: str, identity: Identity, echo: bool = True
) -> tuple[RawClient, bytes]:
    """Connect and say Hello; return the Proof that is due."""
    client = await raw_client(address, echo)
    opening = Dialling(identity, NETWORK, os.urandom, None)
    client.say(opening.open())
    _, proof = opening.prove(await client.answer(1), KnownKeys().verify)
    client.mac = opening.mac
    return client, proof


async def waiting_client(address: str, identity: Identity) -> RawClient:
    """Connect and prove an identity, without waiting for the Ready."""
    client, proof = await welcomed_client(address, identity)
    client.say(proof)
    return client


async def proved_client(address: str, identity: Identity, echo: bool = True) -> RawClient:
    """Connect and prove an identity, up to the Ready."""
    client, proof = await welcomed_client(address, identity, echo)
    client.say(proof)
    assert decode(await client.answer(2), Ready)
    return client
