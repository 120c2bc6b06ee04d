"""Who may publish, as far as this node knows, and the frames of those of whom it is not sure.

The registry's word reaches nodes at different times. A frame whose publisher has no permission
here may be carried by a neighbour who has read of one: the frame is kept back for a moment while
the registry is asked, and looked at again when it has answered. A permission is asked for anew
every second, so that one which expires is not used for longer than that.
"""

from collections import deque
from typing import Protocol

import msgspec

from anabranch.core.changes import Right
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart, publisher_of
from anabranch.core.machine import Dropped, Effect, Sizes

DOUBT_FOR_S = 2.0
TRUST_FOR_S = 1.0
MAX_TRUSTED = 4_096  # chains whose permission was looked up within the last second
MAX_DOUBTFUL = 256
MAX_DOUBTFUL_BYTES = 1 << 20
MAX_DOUBTFUL_PER_PEER = 32


class Permits(Protocol):
    """What knows the permissions: a reader of the registry."""

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether `publisher` may publish to `part`."""

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user (or everybody: PUBLIC) has a right to a stream."""

    def stores(self, stream: str, user: NodeId) -> bool:
        """Tell whether a stream names a user's node as one that stores it."""

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Ask for the newest word on a stream; empty where that was just done or is no use."""


class Doubtful(msgspec.Struct):
    """A packet that waits for the registry's word on its publisher."""

    part: StreamPart
    head: FrameHead
    sender: NodeId
    data: bytes
    until: float


class Permission:
    """Whose frames may pass, and what is kept back until that is known."""

    __slots__ = ("_bytes", "_doubtful", "_per_peer", "_permits", "_trusted", "everyone")

    def __init__(self, permits: Permits | None) -> None:
        self.everyone = permits is None  # may publish: the hot path asks this first
        self._permits = permits
        self._trusted: dict[tuple[PartKey, ChainKey], float] = {}  # until when
        self._doubtful: deque[Doubtful] = deque()  # oldest first
        self._bytes = 0
        self._per_peer: dict[NodeId, int] = {}

    @property
    def wakeup_at(self) -> float | None:
        """When the oldest packet has been kept back long enough."""
        return self._doubtful[0].until if self._doubtful else None

    def allows(self, part: StreamPart, head: FrameHead, now: float) -> bool:
        """Tell whether the publisher of a frame may publish."""
        return self.allows_chain(part, head.part, head.chain, now)

    def allows_chain(self, part: StreamPart, key: PartKey, chain: ChainKey, now: float) -> bool:
        """Tell whether the publisher of a chain may publish; who could a moment ago still can."""
        if self._trusted.get((key, chain), 0.0) > now:
            return True
        if not self.permits(part, publisher_of(chain), now):
            return False
        if len(self._trusted) >= MAX_TRUSTED:
            self._trusted.clear()
        self._trusted[key, chain] = now + TRUST_FOR_S
        return True

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether somebody may publish, as the registry has it now."""
        return self._permits is None or self._permits.permits(part, publisher, now)

    def ask(self, stream: str, now: float) -> list[Effect]:
        """Ask the registry for its newest word on a stream."""
        return self._permits.doubt(stream, now) if self._permits is not None else []

    def keep_back(
        self, part: StreamPart, head: FrameHead, sender: NodeId, data: bytes, now: float
    ) -> list[Effect]:
        """Keep a packet until more is known; if there is no room for it, it is dropped."""
        if (
            self._per_peer.get(sender, 0) >= MAX_DOUBTFUL_PER_PEER
            or len(self._doubtful) >= MAX_DOUBTFUL
            or self._bytes + len(data) > MAX_DOUBTFUL_BYTES
        ):
            return [Dropped(head, "unpermitted", sender)]
        self._put(Doubtful(part, head, sender, data, now + DOUBT_FOR_S))
        return []

    def renew(self) -> None:
        """Look every permission up again: one may have been taken back."""
        self._trusted.clear()

    def learned(self, stream: str, now: float) -> list[Doubtful]:
        """The registry has spoken of a stream: hand over what may pass now, in its order."""
        self.renew()
        passing: list[Doubtful] = []
        for _ in range(len(self._doubtful)):
            packet = self._take()
            if packet.part.stream == stream and self.allows(packet.part, packet.head, now):
                passing.append(packet)
            else:
                self._put(packet)
        return passing

    def expire(self, now: float) -> list[Effect]:
        """Drop what nobody has permitted in time."""
        effects: list[Effect] = []
        while self._doubtful and self._doubtful[0].until <= now:
            packet = self._take()
            effects.append(Dropped(packet.head, "unpermitted", packet.sender))
        return effects

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "trusted chains": (len(self._trusted), MAX_TRUSTED),
            "doubtful packets": (len(self._doubtful), MAX_DOUBTFUL),
            "doubtful bytes": (self._bytes, MAX_DOUBTFUL_BYTES),
            "doubtful packets of a peer": (
                max(self._per_peer.values(), default=0),
                MAX_DOUBTFUL_PER_PEER,
            ),
        }

    def _take(self) -> Doubtful:
        packet = self._doubtful.popleft()
        self._bytes -= len(packet.data)
        self._per_peer[packet.sender] -= 1
        if not self._per_peer[packet.sender]:
            del self._per_peer[packet.sender]
        return packet

    def _put(self, packet: Doubtful) -> None:
        self._doubtful.append(packet)
        self._bytes += len(packet.data)
        self._per_peer[packet.sender] = self._per_peer.get(packet.sender, 0) + 1
