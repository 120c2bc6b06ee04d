"""A peer with a valid key that takes its place in an overlay, and then says whatever a test likes.

It proves itself as every node does, reports to the tracker, dials whom it is told to and meets its
neighbours. From then on nothing that it sends is made by the code of an honest node.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from picows import WSMsgType

from anabranch.core import codec, frames
from anabranch.core.ids import NodeId, StreamPart, chain_key, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages import Control, Instruction, Meet, Status
from anabranch.core.messages.data import CONTENT_TEXT
from anabranch.live.keys import new_key
from anabranch.live.transports import Link
from anabranch.live.transports.websocket import WebSocketTransport
from anabranch.overlays.random_regular import RandomRegular
from live.networks import LiveNetwork, eventually

ONE_HOP = b"\x01"


class HostilePeer:
    """One such peer; within its context it listens and dials."""

    def __init__(self, live: LiveNetwork, stream: str) -> None:
        self.identity = new_key()[0]
        self.node = self.identity.node
        self.part = StreamPart(stream, 0)
        self.met: set[NodeId] = set()  # the neighbours that take us for theirs
        self.ends: dict[NodeId, str] = {}  # why the last link to a node ended
        self.carried: list[bytes] = []  # the data packets that neighbours sent us
        self.links: dict[NodeId, Link] = {}
        self._network = live.address.genesis
        self._tracker_url = live.address.ws_urls[0]
        self._tracker = NodeId(b"")
        self._told: Instruction | None = None
        self._transport = WebSocketTransport(self.identity, self._network, "127.0.0.1")

    async def __aenter__(self) -> "HostilePeer":
        await self._transport.start(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.stop()

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._transport.address

    # --- What a test lets it do -----------------------------------------------------------

    async def take_place(self, neighbours: int) -> None:
        """Let the tracker place us, and wait until so many have met us."""
        self._tracker = await self._transport.find(self._tracker_url)
        self.say(self._tracker, Status(self.part, 0, address=self.address))
        await eventually(lambda: len(self.met) == neighbours, "the hostile peer has neighbours")

    async def reach(self, address: str) -> NodeId:
        """Link up with a node that nobody told us of."""
        return await self._transport.find(address)

    async def come_again(self, peer: NodeId, address: str) -> str:
        """Dial a node that has cut us off; return why the new link ends."""
        self.ends.pop(peer, None)
        self._transport.dial(peer, address)
        return await self.end_of(peer)

    async def end_of(self, peer: NodeId) -> str:
        """Wait until a node ends its link with us; return its reason."""
        await eventually(lambda: peer in self.ends, "the link is ended")
        return self.ends[peer]

    def say(self, peer: NodeId, message: Control) -> None:
        """Send a control message."""
        self.send(peer, codec.encode(message))

    def send(self, peer: NodeId, packet: bytes) -> None:
        """Send any bytes as one packet."""
        self.links[peer].send(packet)

    def send_raw(self, peer: NodeId, message: bytes) -> None:
        """Send a WebSocket message that no transport would make, with its tag."""
        link: Any = self.links[peer]
        link._socket.send(WSMsgType.BINARY, message + link._mac.tag(message))

    # --- What the transport says ----------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """Greet whoever comes."""
        self.links[link.peer] = link
        self.ends.pop(link.peer, None)
        if self._told is not None and link.peer != self._tracker:
            self.say(link.peer, Meet(self.part))

    def link_down(self, peer: NodeId, reason: str) -> None:
        """Remember why."""
        self.links.pop(peer, None)
        self.met.discard(peer)
        self.ends[peer] = reason

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        """Do as a node does with instructions and greetings; keep frames."""
        for packet in packets:
            if packet[:2] == codec.DATA_HEAD:
                self.carried.append(packet)
                continue
            message = codec.decode(packet)
            if type(message) is Instruction:
                self._instructed(message)
            elif type(message) is Meet:
                self._meet(peer, message)

    def _instructed(self, message: Instruction) -> None:
        self._told = message
        for contact in message.connect:
            if contact.node not in self.links:
                self._transport.dial(contact.node, contact.address)
        for peer in self._wanted():
            if peer in self.links:
                self.say(peer, Meet(self.part))
        self._report()

    def _meet(self, peer: NodeId, message: Meet) -> None:
        if not message.reply:
            self.say(peer, Meet(self.part, reply=True))
        self.met.add(peer)
        self._report()

    def _wanted(self) -> list[NodeId]:
        told = self._told
        return [] if told is None else sorted([*(c.node for c in told.connect), *told.accept])

    def _report(self) -> None:
        """Tell the tracker that its instruction has been carried out, once it has."""
        wanted = self._wanted()
        if self._told is not None and self.met.issuperset(wanted):
            counter, address = self._told.counter, self.address
            self.say(self._tracker, Status(self.part, counter, tuple(wanted), (), address))

    def rtt(self, peer: NodeId, seconds: float) -> None:
        """Nothing follows from it."""

    def congested(self, peer: NodeId) -> None:
        """Nothing follows from it."""

    def writable(self, peer: NodeId) -> None:
        """Nothing follows from it."""


def make_frame(
    part: StreamPart,
    publisher: NodeId,
    sign: Callable[[bytes], bytes],
    texts: Sequence[tuple[int, str]],
    previous: int = 0,
    chain: int = 7,
) -> bytes:
    """Make a frame of numbered texts in anybody's name, signed by whoever signs."""
    drafts = [(number, Draft(text.encode(), CONTENT_TEXT)) for number, text in texts]
    return frames.build(part_key(part), chain_key(publisher, chain), previous, drafts, sign)


def carry(frame: bytes, overlay: int = RandomRegular.code) -> bytes:
    """Make the packet in which a frame comes straight from who made it."""
    return codec.carry_head(overlay, ONE_HOP) + frame
