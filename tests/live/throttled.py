"""A transport some of whose links are slow, as if a thin cable lay under them.

Everything else is the transport that it wraps. What is sent over a slow link waits in a queue
that is emptied at a rate; the owner hears when the queue passes its marks.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.live.transports import Link, LinkOwner, Transport
from anabranch.live.transports.batches import without

HIGH_MARK_BYTES = 256 * 1024
LOW_MARK_BYTES = 64 * 1024
TURN_S = 0.01  # how often the queue of a slow link is emptied


class ThrottledLink:
    """A link whose owner sees it slow."""

    def __init__(self, home: "ThrottledTransport", below: Link) -> None:
        self.peer = below.peer
        self.rtt_s = below.rtt_s
        self.host = below.host
        self.queued_bytes = 0
        self._home = home
        self._below = below
        self._queue: deque[bytes] = deque()
        self._full = False
        self._over = False

    def send(self, *packets: bytes) -> None:
        """Queue packets; where the link is fast, they leave at once."""
        for packet in packets:
            self._send(packet)

    def _send(self, packet: bytes) -> None:
        if self.peer not in self._home.bytes_per_s and not self._queue:
            self._below.send(packet)
            return
        if not self._queue:
            asyncio.get_running_loop().call_later(TURN_S, self._turn, 0.0)
        self._queue.append(packet)
        self.queued_bytes += len(packet)
        if self.queued_bytes > HIGH_MARK_BYTES and not self._full:
            self._full = True
            self._home.owner.congested(self.peer)

    def withdraw(self, names: list[bytes]) -> int:
        """Take frames with these heads out of the queue; return how many bytes that were."""
        kept, size = without(list(self._queue), names)
        self._queue = deque(kept)
        self.queued_bytes -= size
        return size + self._below.withdraw(names)

    def close(self, reason: str) -> None:
        """End the link, and what waits with it."""
        self.end()
        self._below.close(reason)

    def end(self) -> None:
        """Send nothing more."""
        self._over = True
        self._queue.clear()

    def _turn(self, left: float) -> None:
        """Send as much as the link carries in a turn."""
        if self._over:
            return
        left += self._home.bytes_per_s.get(self.peer, float("inf")) * TURN_S
        while self._queue and len(self._queue[0]) <= left:
            packet = self._queue.popleft()
            left -= len(packet)
            self.queued_bytes -= len(packet)
            self._below.send(packet)
        if self._queue:
            asyncio.get_running_loop().call_later(TURN_S, self._turn, left)
        if self._full and self.queued_bytes < LOW_MARK_BYTES:
            self._full = False
            self._home.owner.writable(self.peer)


class ThrottledTransport:
    """Wraps a transport; `bytes_per_s` says which links are slow, and may change at any time."""

    owner: LinkOwner

    def __init__(self, below: Transport) -> None:
        self.bytes_per_s: dict[NodeId, float] = {}
        self.links: dict[NodeId, ThrottledLink] = {}
        self.lost: list[tuple[NodeId, str]] = []
        self._below = below

    @property
    def address(self) -> str:
        """Where others dial us."""
        return self._below.address

    async def start(self, owner: LinkOwner) -> None:
        """Begin to listen, and to tell `owner`."""
        self.owner = owner
        await self._below.start(self)

    def dial(self, peer: NodeId, address: str) -> None:
        """Reach `peer`."""
        self._below.dial(peer, address)

    @property
    def is_address_given(self) -> bool:
        """Whether the operator named the address."""
        return self._below.is_address_given

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        """Tell whether `peer` proves itself at an address."""
        self._below.check(check, done)

    def hasten(self) -> None:
        """Let what is queued leave now."""
        self._below.hasten()

    async def find(self, address: str) -> NodeId:
        """Reach whoever proves itself at an address."""
        return await self._below.find(address)

    async def stop(self) -> None:
        """End every link."""
        for link in self.links.values():
            link.end()
        await self._below.stop()

    # --- What the transport below says ----------------------------------------------------

    def link_up(self, link: Link) -> None:
        """A link stands."""
        self.links[link.peer] = throttled = ThrottledLink(self, link)
        self.owner.link_up(throttled)

    def link_down(self, peer: NodeId, reason: str) -> None:
        """A link ended, or could not be dialled."""
        if peer in self.links:
            self.links.pop(peer).end()
            self.lost.append((peer, reason))
        self.owner.link_down(peer, reason)

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        """Packets came."""
        self.owner.received(peer, packets)

    def rtt(self, peer: NodeId, seconds: float) -> None:
        """The round trip was measured anew."""
        self.owner.rtt(peer, seconds)

    def congested(self, peer: NodeId) -> None:
        """The link below is full as well."""
        self.owner.congested(peer)

    def writable(self, peer: NodeId) -> None:
        """The link below has room again."""
        self.owner.writable(peer)
