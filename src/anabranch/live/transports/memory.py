"""Links within one process and one loop, for tests and examples: no sockets and no keys.

A hub is the network. What a link carries arrives in order after a delay; what is sent in one
turn of the loop arrives together. Nothing is ever congested: there is no queue but the way.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.core.packets import Packets
from anabranch.live.transports import LinkOwner, TransportError
from anabranch.live.transports.batches import without

SCHEME = "memory:"

Delay = float | Callable[[NodeId, NodeId], float]  # seconds one way, from the first to the second


class MemoryHub:
    """Who can be reached, and who is linked with whom."""

    def __init__(self) -> None:
        self.transports: dict[NodeId, MemoryTransport] = {}

    def cut(self, one: NodeId, other: NodeId) -> None:
        """End the link between two nodes, as if a cable broke: both hear of it."""
        for here, there in ((one, other), (other, one)):
            if here in self.transports:
                self.transports[here].lose(there, "cut")


class MemoryLink:
    """One end of a link."""

    def __init__(self, home: "MemoryTransport", peer: NodeId) -> None:
        self.peer = peer
        self.rtt_s: float | None = home.delay_to(peer) + home.hub.transports[peer].delay_to(
            home.node
        )
        self.host = ""
        self.other: MemoryLink | None = None  # the other end, once both stand
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._queue: list[bytes] = []
        self._way: deque[tuple[float, list[bytes], str]] = deque()  # arrival, packets or an end
        self._over = False

    def send(self, *packets: bytes) -> None:
        """Queue packets; all that is queued in one turn of the loop arrives together."""
        if self._over:
            return
        if not self._queue:
            self._loop.call_soon(self._flush)
        self._queue += packets

    def withdraw(self, names: list[bytes]) -> int:
        """Take frames with these heads out of the queue; return how many bytes that were."""
        self._queue, size = without(self._queue, names)
        return size

    def close(self, reason: str) -> None:
        """End the link; its owner hears nothing more of it."""
        if not self._over:
            self._flush()
            self._over = True
            self._home.links.pop(self.peer)
            self._depart([], reason)

    def drop(self) -> None:
        """End here and now; what is on its way does not arrive."""
        self._over = True
        self._queue.clear()
        self._way.clear()

    def arrive(self, packets: list[bytes], end: str) -> None:
        """Take what the other end sent."""
        if self._over:
            return
        if end:
            self._home.lose(self.peer, end)
        else:
            self._home.owner.received(self.peer, Packets.of(packets))

    def _flush(self) -> None:
        if self._queue:
            packets, self._queue = self._queue, []
            self._depart(packets, "")

    def _depart(self, packets: list[bytes], end: str) -> None:
        arrival = self._loop.time() + self._home.delay_to(self.peer)
        if self._way:
            arrival = max(arrival, self._way[-1][0])
        self._way.append((arrival, packets, end))
        if len(self._way) == 1:
            self._loop.call_at(arrival, self._deliver)

    def _deliver(self) -> None:
        """Hand over what is due, in order, however the loop rounds time."""
        if not self._way:
            return
        _, packets, end = self._way.popleft()
        if self._way:
            self._loop.call_at(self._way[0][0], self._deliver)
        if self.other is not None:
            self.other.arrive(packets, end)


class MemoryTransport:
    """Reaches the other nodes of a hub."""

    owner: LinkOwner

    def __init__(self, node: NodeId, hub: MemoryHub, delay_s: Delay = 0.0) -> None:
        self.node = node
        self.hub = hub
        self.address = ""
        self.is_address_given = True
        self.links: dict[NodeId, MemoryLink] = {}
        self._delay = delay_s
        self._dials: dict[NodeId, asyncio.TimerHandle] = {}

    def delay_to(self, peer: NodeId) -> float:
        """Return how long a packet is under way."""
        return self._delay(self.node, peer) if callable(self._delay) else self._delay

    # --- Transport ------------------------------------------------------------------------

    async def start(self, owner: LinkOwner) -> None:
        """Be there for the others, and begin to tell `owner`."""
        assert self.node not in self.hub.transports, "a node is in a hub once"
        self.owner = owner
        self.address = SCHEME + self.node.hex()
        self.hub.transports[self.node] = self

    def dial(self, peer: NodeId, address: str) -> None:
        """Reach `peer`; a link_up or a link_down answers, never before this call returns."""
        if peer not in self.links and peer not in self._dials:
            loop, delay = asyncio.get_running_loop(), 2 * self.delay_to(peer)
            self._dials[peer] = loop.call_later(delay, self._arrive, peer, address)

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        """Tell whether a node is at an address."""
        peer = check.peer
        reached = _node_at(check.address) == peer and peer in self.hub.transports
        asyncio.get_running_loop().call_soon(done, reached)

    def hasten(self) -> None:
        """Nothing is gained here: what is queued is under way in the loop's next turn."""

    async def find(self, address: str) -> NodeId:
        """Reach whoever is at an address; its link_up comes before this returns."""
        node = _node_at(address)
        if node is None:
            raise TransportError(f"{address!r} is not an address: write {SCHEME}<node in hex>")
        if node == self.node:
            raise TransportError(f"{address} is this node's own address: give another node's")
        await asyncio.sleep(2 * self.delay_to(node))
        if node not in self.hub.transports or self.node not in self.hub.transports:
            raise TransportError(f"nothing listens at {address}: has that transport been started?")
        self._join(node)
        return node

    async def stop(self) -> None:
        """Send what is queued, and end every link; the owner is not told."""
        self.hub.transports.pop(self.node, None)
        for dial in self._dials.values():
            dial.cancel()
        self._dials.clear()
        for link in list(self.links.values()):
            link.close("stopped")

    # --- Inside ---------------------------------------------------------------------------

    def lose(self, peer: NodeId, reason: str) -> None:
        """End the link to `peer` and tell the owner, if there is one."""
        link = self.links.pop(peer, None)
        if link is not None:
            link.drop()
            self.owner.link_down(peer, reason)

    def _arrive(self, peer: NodeId, address: str) -> None:
        del self._dials[peer]
        if not address:
            reason = "no-address"
        elif _node_at(address) is None:
            reason = "bad-address"
        elif peer == self.node:
            reason = "self-dial"
        elif _node_at(address) not in self.hub.transports:
            reason = "refused"
        elif _node_at(address) != peer:
            reason = "wrong-node"
        else:
            self._join(peer)
            return
        self.owner.link_down(peer, reason)

    def _join(self, peer: NodeId) -> None:
        """Make both ends at once, unless the other's dial was faster; it answers ours as well."""
        there = self.hub.transports[peer]
        if peer in self.links and self.node in there.links:
            return
        # One end may still believe in a link that the other has closed.
        self.lose(peer, "replaced")
        there.lose(self.node, "replaced")
        ours, theirs = MemoryLink(self, peer), MemoryLink(there, self.node)
        ours.other, theirs.other = theirs, ours
        for home, link in ((there, theirs), (self, ours)):
            home.links[link.peer] = link
            dial = home._dials.pop(link.peer, None)
            if dial is not None:
                dial.cancel()
        for home, link in ((there, theirs), (self, ours)):
            home.owner.link_up(link)
            if home.links.get(link.peer) is link and link.rtt_s is not None:
                home.owner.rtt(link.peer, link.rtt_s)


def _node_at(address: str) -> NodeId | None:
    if not address.startswith(SCHEME):
        return None
    try:
        return NodeId(bytes.fromhex(address.removeprefix(SCHEME)))
    except ValueError:
        return None
