"""A transport whose links are as long as those of another network, between nodes that are near.

It wraps the transport that really reaches them. What comes in is held for as long as its way would
have taken, and handed over in order. Measured round trips have the way there and back added to
them, and opening a link takes as many trips as it would, so that a node knows no better.

Loops count whole milliseconds. What is due within half of one is handed over as soon as the loop
wakes for this transport: a packet is 0.2 to 0.4 ms off in the mean, never more than 0.5 ms early,
and late by a few on a busy machine. With its sign the error is -0.4 ms on a way of 4 ms and under
0.1 ms on long ones. Shorter ways than half a millisecond are not held at all: a machine's own delay
is as long.
"""

import asyncio
import heapq
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.core.packets import Packets
from anabranch.live.transports import Link, LinkOwner, Transport

SHORTEST_S = 0.0005  # a way that is shorter is not held; nor is what has less than this to go
WAKE_EARLY_S = 0.0003  # about as much as uvloop's timers are late in the mean
OPENING_ROUND_TRIPS = 4  # TCP, the upgrade to a WebSocket, and two to prove the keys
MAX_HELD_BYTES = 64 << 20  # a link with more than this on its way is cut


class Way(NamedTuple):
    """How far another node is, one way and the other."""

    there_s: float
    back_s: float

    @property
    def round_trip_s(self) -> float:
        """Return what the way adds to a round trip."""
        return sum(trip_s for trip_s in self if trip_s >= SHORTEST_S)


class DelayedLink:
    """A link to a node that seems far away."""

    def __init__(self, home: "DelayedTransport", below: Link, way: Way) -> None:
        self.peer, self.host = below.peer, below.host
        self.way = way
        self.rtt_s = None if below.rtt_s is None else below.rtt_s + way.round_trip_s
        self.newest_at = 0.0  # when the last of what is on its way arrives
        self.held_bytes = 0
        self.ended = False  # below; the word of it is on its way
        self.over = False
        self._home = home
        self._below = below

    def send(self, *packets: bytes) -> None:
        """Queue packets; it is the receiver who holds them."""
        self._below.send(*packets)

    def withdraw(self, names: list[bytes]) -> int:
        """Take frames with these heads out of the queue; return how many bytes that were."""
        return self._below.withdraw(names)

    def close(self, reason: str) -> None:
        """End the link; its owner hears nothing more of it."""
        if not self.over:
            self._home.forget(self)
            self._below.close(reason)


class DelayedTransport:
    """Wraps a transport; `ways` tells how far others are, and who is not named is near."""

    owner: LinkOwner

    def __init__(
        self,
        below: Transport,
        ways: Mapping[NodeId, Way],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = ""
        self.is_address_given = below.is_address_given
        self._below = below
        self._ways = ways
        self._clock = clock
        self._links: dict[NodeId, DelayedLink] = {}
        self._dials: set[NodeId] = set()  # that are held
        self._held: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0

    # --- Transport ------------------------------------------------------------------------

    async def start(self, owner: LinkOwner) -> None:
        """Begin to listen, and to tell `owner`."""
        self.owner = owner
        await self._below.start(self)
        self.address = self._below.address

    def dial(self, peer: NodeId, address: str) -> None:
        """Reach `peer`, after as many trips as opening a link takes."""
        way = self._ways.get(peer)
        if way is None:
            self._below.dial(peer, address)
        elif peer not in self._dials and peer not in self._links:
            self._dials.add(peer)
            at = self._clock() + OPENING_ROUND_TRIPS * way.round_trip_s
            self._hold(at, lambda: self._reach(peer, address))

    def check(self, check: DialCheck, done: Callable[[bool], None]) -> None:
        """Tell whether a node proves itself at an address, at once."""
        self._below.check(check, done)

    def hasten(self) -> None:
        """Let what is queued leave now."""
        self._below.hasten()

    async def find(self, address: str) -> NodeId:
        """Reach whoever proves itself at an address; its link_up comes before this returns."""
        peer = await self._below.find(address)
        if peer in self._ways:  # which is known only now
            await asyncio.sleep(OPENING_ROUND_TRIPS * self._ways[peer].round_trip_s)
        return peer

    async def stop(self) -> None:
        """End every link; what is held does not arrive any more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        await self._below.stop()

    def forget(self, link: DelayedLink) -> None:
        """Let a link be over, and tell nobody."""
        link.over = True
        if self._links.get(link.peer) is link:
            del self._links[link.peer]

    # --- What the transport below says ----------------------------------------------------

    def link_up(self, link: Link) -> None:
        """A link stands; what was still to be said of an older one is said first."""
        peer = link.peer
        self._dials.discard(peer)
        if peer in self._links:
            self._end(self._links[peer], "replaced")
        way = self._ways.get(peer)
        if way is not None:
            link = self._links[peer] = DelayedLink(self, link, way)
        self.owner.link_up(link)

    def link_down(self, peer: NodeId, reason: str) -> None:
        """A link ended, which takes as long to be known here as a packet; or a dial failed."""
        link = self._links.get(peer)
        if link is None or link.ended:
            self.owner.link_down(peer, reason)
        else:
            link.ended = True
            self._carry(link, lambda: self._end(link, reason))

    def received(self, peer: NodeId, packets: Packets) -> None:
        """Packets came, and have their way still to go."""
        link = self._links.get(peer)
        if link is None or (link.way.back_s < SHORTEST_S and not link.held_bytes):
            self.owner.received(peer, packets)
            return
        link.held_bytes += packets.size
        if link.held_bytes <= MAX_HELD_BYTES:
            self._carry(link, lambda: self._arrive(link, packets))
        elif not link.ended:
            link.close("link-full")
            self.owner.link_down(peer, "link-full")

    def rtt(self, peer: NodeId, seconds: float) -> None:
        """The round trip was measured anew, without the way."""
        link = self._links.get(peer)
        if link is not None:
            seconds += link.way.round_trip_s
            link.rtt_s = seconds
        self.owner.rtt(peer, seconds)

    def congested(self, peer: NodeId) -> None:
        """The link below is full."""
        self.owner.congested(peer)

    def writable(self, peer: NodeId) -> None:
        """The link below has room again."""
        self.owner.writable(peer)

    # --- What is on its way ---------------------------------------------------------------

    def _carry(self, link: DelayedLink, arrive: Callable[[], None]) -> None:
        """Let something arrive at the end of a link's way, after all that is on it already."""
        delay_s = link.way.back_s if link.way.back_s >= SHORTEST_S else 0.0
        link.newest_at = max(link.newest_at, self._clock() + delay_s)
        self._hold(link.newest_at, arrive)

    def _arrive(self, link: DelayedLink, packets: Packets) -> None:
        link.held_bytes -= packets.size
        if not link.over:
            self.owner.received(link.peer, packets)

    def _end(self, link: DelayedLink, reason: str) -> None:
        if not link.over:
            self.forget(link)
            self.owner.link_down(link.peer, reason)

    def _reach(self, peer: NodeId, address: str) -> None:
        if peer in self._dials:  # else a link came from there meanwhile, and has answered
            self._dials.discard(peer)
            self._below.dial(peer, address)

    def _hold(self, at: float, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._held, (at, self._sequence, call))
        self._arm()

    def _arm(self) -> None:
        """Wake for what is due next."""
        if not self._held:
            return
        due_at = self._held[0][0]
        if self._timer is not None:
            if self._armed_at <= due_at:
                return
            self._timer.cancel()
        self._armed_at = due_at
        delay_s = max(0.0, due_at - self._clock() - WAKE_EARLY_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        soon = self._clock() + SHORTEST_S
        while self._held and self._held[0][0] <= soon:
            heapq.heappop(self._held)[2]()
        self._arm()
