"""The simulated underlay: how long a packet takes on a lane, and what may befall it there.

A link between two nodes is two lanes, one each way. Every fault is one named field; what happens
to a packet is a function of the fields, the lane, and the injected randomness.
"""

import math
import random
from typing import Protocol

import msgspec

from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.machine import (
    Answered,
    Deliver,
    HistoryEnded,
    Learned,
    Machine,
    Missed,
    Notice,
    Outcome,
    PageEnded,
    Receipt,
    Received,
)
from anabranch.core.messages import Control
from anabranch.sim.disks import Disk

HIGH_MARK_S = 0.25  # a lane with more than this much waiting is congested,
LOW_MARK_S = 0.05  # and writable again when less than this is left
HIGH_MARK_PACKETS = 256  # so is one with more packets than this that the far end has not taken,
LOW_MARK_PACKETS = 64  # until it has all but these


class Underlay(Protocol):
    """The network below: one-way delays between places."""

    def delay_s(self, a: int, b: int) -> float:
        """Return how long a packet takes from place `a` to place `b`."""


class Constant:
    """Every two places are equally far apart."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_s = delay_ms / 1000

    def delay_s(self, a: int, b: int) -> float:
        """Return the one delay there is."""
        return self._delay_s


class Plane:
    """Places at random on a square: a base delay and so much for the distance."""

    def __init__(self, places: int, base_ms: float, across_ms: float, rng: random.Random) -> None:
        self._at = [(rng.random(), rng.random()) for _ in range(places)]
        self._base_s = base_ms / 1000
        self._across_s = across_ms / 1000

    def delay_s(self, a: int, b: int) -> float:
        """Return the delay over the distance between the two."""
        (ax, ay), (bx, by) = self._at[a], self._at[b]
        return self._base_s + self._across_s * math.hypot(ax - bx, ay - by)

    def place(self, index: int) -> tuple[float, float]:
        """Return where a place lies, in units of the side."""
        return self._at[index]


class PacketFaults(msgspec.Struct, frozen=True):
    """What may befall a packet."""

    loss: float = 0.0  # probability
    duplication: float = 0.0  # probability
    jitter_ms: float = 0.0  # uniform, added to every packet; packets may overtake each other
    spread_ms: float = 0.0  # uniform, added to the delay of every packet or taken from it
    deviation_percent: float = 0.0  # normal: standard deviation, in percent of the lane's delay
    in_order: bool = False  # packets on a lane do not overtake each other, as on TCP
    reordering: float = 0.0  # probability of being held up for `reordering_ms`
    reordering_ms: float = 50.0
    bandwidth_kbps: float = 0.0  # of each lane, kilobytes a second; 0 is unlimited

    def any(self) -> bool:
        """Tell whether packets need more than their delay."""
        return self != PacketFaults()


NO_FAULTS = PacketFaults()


class SimNode:
    """A machine, where it is, and its links."""

    __slots__ = (
        "alive",
        "armed_at",
        "busy_until",
        "dialable",
        "disk",
        "id",
        "lanes",
        "longest_wait_s",
        "machine",
        "packet_s",
        "place",
        "side",
        "taken",
    )

    def __init__(self, node: NodeId, place: int, machine: Machine) -> None:
        self.id = node
        self.place = place
        self.machine = machine
        self.alive = True
        self.dialable = True
        self.side = 0  # of a partition
        self.lanes: dict[NodeId, Lane] = {}
        self.armed_at: float | None = None
        self.disk = Disk()
        # The rest is for nodes whose capacity is bounded: see inboxes.py.
        self.packet_s = 0.0  # how long it is busy with every packet
        self.busy_until = 0.0
        self.taken = 0  # packets
        self.longest_wait_s = 0.0  # of a packet, before its turn came


ToReader = Missed | PageEnded | HistoryEnded | Receipt  # what is told to who reads, or publishes


class Observer:
    """Sees what machines do; the defaults look away."""

    def published(self, node: SimNode, head: FrameHead, frame: bytes, now: float) -> None:
        """A node made a frame."""

    def handed(self, node: SimNode, deliver: Deliver, now: float) -> None:
        """The same as `delivered`, before it, and with the key that opens the frame."""

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        """A node handed a frame to its application."""

    def packet(self, node: SimNode, event: Received, now: float) -> None:
        """A data packet reached a node."""

    def accepted(self, node: SimNode, head: FrameHead) -> None:
        """A node took a frame from a neighbour, or had it already."""

    def outcome(self, node: SimNode, outcome: Outcome, now: float) -> None:
        """A node told its application what became of a draft."""

    def told(self, node: SimNode, word: Learned | Answered, now: float) -> None:
        """A node's registry has spoken."""

    def reader(self, node: SimNode, word: ToReader, now: float) -> None:
        """A node told its application of a gap, of history, or of a receipt."""

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        """A node has something to say to its operator."""

    # The rest is shown only in runs that are watched closely.

    def sent(self, node: SimNode, to: NodeId, message: Control) -> None:
        """A node sent a control message over a link that stands."""

    def forwarded(self, node: SimNode, peers: list[NodeId], head: FrameHead) -> None:
        """A node sent a frame to some neighbours."""

    def verified(self, node: NodeId, publisher: NodeId, digest: bytes, signature: bytes) -> None:
        """A node verified a signature."""


class Application:
    """What runs on the nodes and uses the registry; this one does not listen."""

    def told(self, node: SimNode, word: Learned | Answered) -> None:
        """A node's registry has spoken."""


class Raw(msgspec.Struct, gc=False):
    """An effect that only machines which misbehave have: send these very bytes."""

    to: NodeId
    data: bytes


class Lane:
    """One direction of a link."""

    __slots__ = (
        "back",
        "blocked",
        "congested",
        "delay_s",
        "newest_at",
        "open",
        "sent_until",
        "source",
        "target",
        "unread",
    )

    def __init__(self, source: SimNode, target: SimNode, delay_s: float) -> None:
        self.source = source
        self.target = target
        self.delay_s = delay_s
        self.open = True
        self.blocked = False  # a partition lies across it
        self.sent_until = 0.0  # when what waits on it will have left
        self.newest_at = 0.0  # when the last of what was sent in order arrives
        self.unread = 0  # packets that were sent and the far end, with its bounds, has not taken
        self.congested = False
        self.back: Lane = self

    def waiting_s(self, now: float) -> float:
        """Return how long what waits on the lane will take to leave."""
        return max(0.0, self.sent_until - now)

    def full(self, now: float) -> bool:
        """Tell whether the sender should wait."""
        return self.waiting_s(now) > HIGH_MARK_S or self.unread > HIGH_MARK_PACKETS


def arrivals(
    lane: Lane, size: int, now: float, faults: PacketFaults, rng: random.Random
) -> list[float]:
    """Return when a packet arrives: not at all, once, or twice."""
    leaves = max(now, lane.sent_until)
    if faults.bandwidth_kbps:
        leaves += size / (faults.bandwidth_kbps * 1000)
        lane.sent_until = leaves
    if lane.blocked or (faults.loss and rng.random() < faults.loss):
        return []
    copies = 2 if faults.duplication and rng.random() < faults.duplication else 1
    times = []
    for _ in range(copies):
        at = leaves + lane.delay_s
        if faults.jitter_ms:
            at += rng.random() * faults.jitter_ms / 1000
        if faults.spread_ms:
            at = max(leaves, at + rng.uniform(-1, 1) * faults.spread_ms / 1000)
        if faults.deviation_percent:
            deviation_s = rng.gauss(0.0, faults.deviation_percent / 100) * lane.delay_s
            at = max(leaves, at + deviation_s)
        if faults.reordering and rng.random() < faults.reordering:
            at += faults.reordering_ms / 1000
        if faults.in_order:
            at = lane.newest_at = max(at, lane.newest_at)
        times.append(at)
    return times
