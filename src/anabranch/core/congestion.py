"""Slow links: what waits for them, who is told, and when they are cut.

Nobody stops reading because somebody else reads slowly. When a link's queue passes its high
mark, frames for it wait here, bounded; the publishers of those frames are told to pause, hop by
hop back along the path on which the first copy came; a copy that the slow neighbour sends us
meanwhile is not sent to it; and a link that stays full is cut, and what waited is counted.
"""

from collections import OrderedDict

import msgspec

from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey
from anabranch.core.machine import Dropped, Effect, Forward, Sizes
from anabranch.core.timers import Timers

MAX_WAITING_FRAMES = 4_096  # per link
MAX_WAITING_BYTES = 8 << 20  # per link
CUT_AFTER_S = 10.0
PAUSE_MS = 100
TELL_EVERY_S = 0.05  # per chain
MAX_UPSTREAMS = 512  # chains that were active last

_Copy = tuple[PartKey, ChainKey, int]  # part, chain, last number: which frame waits


class _Waiting(msgspec.Struct):
    head: FrameHead
    overlay: int
    route: bytes
    frame: bytes


class _Told(msgspec.Struct, gc=False):
    at: float
    upstream: NodeId


class _Outbox:
    def __init__(self) -> None:
        self.frames: OrderedDict[_Copy, _Waiting] = OrderedDict()
        self.bytes = 0


class Congestion:
    """The outboxes of the links that are full, and the way back to the publishers."""

    __slots__ = ("_cut_at", "_told", "_upstream", "outboxes")

    def __init__(self) -> None:
        self.outboxes: dict[NodeId, _Outbox] = {}  # of the links that are full
        self._cut_at: Timers[NodeId] = Timers()
        self._upstream: OrderedDict[tuple[PartKey, ChainKey], NodeId] = OrderedDict()
        self._told: OrderedDict[tuple[PartKey, ChainKey], _Told] = OrderedDict()

    @property
    def wakeup_at(self) -> float | None:
        """When a link will have been full for too long."""
        return self._cut_at.next_at

    def full(self, peer: NodeId, now: float) -> None:
        """Begin to keep back what is for `peer`."""
        if peer not in self.outboxes:
            self.outboxes[peer] = _Outbox()
            self._cut_at.set(peer, now + CUT_AFTER_S)

    def writable(self, peer: NodeId) -> list[Forward]:
        """Let what waited for `peer` go, in its order."""
        outbox = self._close(peer)
        if outbox is None:
            return []
        return [
            Forward(w.overlay, w.head, [(peer, w.route)], w.frame) for w in outbox.frames.values()
        ]

    def gone(self, peer: NodeId, reason: str) -> list[Effect]:
        """Count what waited for a link that is no more."""
        outbox = self._close(peer)
        if outbox is None:
            return []
        return [Dropped(w.head, reason, peer) for w in outbox.frames.values()]

    def too_long(self, now: float) -> list[NodeId]:
        """Return the peers whose links have been full for too long."""
        return self._cut_at.pop_due(now)

    def keep_back(self, forward: Forward) -> tuple[Effect | None, list[Effect]]:
        """Split a Forward: what may leave now, and what is dropped because an outbox is full."""
        head = forward.head
        leaving = [b for b in forward.branches if b[0] not in self.outboxes]
        dropped: list[Effect] = []
        for peer, route in forward.branches:
            outbox = self.outboxes.get(peer)
            if outbox is None:
                continue
            frame = forward.frame
            self.suppress(peer, head)  # never twice in one outbox
            outbox.frames[head.part, head.chain, head.last] = _Waiting(
                head, forward.overlay, route, frame
            )
            outbox.bytes += len(frame)
            # The oldest goes first: real-time data is worth most when it is new.
            while len(outbox.frames) > MAX_WAITING_FRAMES or outbox.bytes > MAX_WAITING_BYTES:
                _, oldest = outbox.frames.popitem(last=False)
                outbox.bytes -= len(oldest.frame)
                dropped.append(Dropped(oldest.head, "link-full", peer))
        if len(leaving) == len(forward.branches):
            return forward, dropped
        if not leaving:
            return None, dropped
        return Forward(forward.overlay, head, leaving, forward.frame), dropped

    def suppress(self, sender: NodeId, head: FrameHead) -> None:
        """Forget a copy that waits for `sender`, who has just shown that it has one."""
        outbox = self.outboxes.get(sender)
        if outbox is not None:
            waiting = outbox.frames.pop((head.part, head.chain, head.last), None)
            if waiting is not None:
                outbox.bytes -= len(waiting.frame)

    def came(self, part: PartKey, chain: ChainKey, sender: NodeId) -> None:
        """Remember from whom the first copies of a chain come."""
        key = (part, chain)
        self._upstream[key] = sender
        self._upstream.move_to_end(key)
        if len(self._upstream) > MAX_UPSTREAMS:
            self._upstream.popitem(last=False)

    def whom_to_tell(self, part: PartKey, chain: ChainKey, now: float) -> NodeId | None:
        """Return who is next on the way back to a publisher, at most every 50 ms per chain."""
        key = (part, chain)
        told = self._told.get(key)
        if told is not None and told.at > now - TELL_EVERY_S:
            return None
        # The way is used up until another frame comes on it: nodes that take each other for the
        # way back, since frames overtook each other, would pass one word round for ever.
        upstream = self._upstream.pop(key, None)
        if upstream is not None:
            self._told[key] = _Told(now, upstream)
            self._told.move_to_end(key)
            if len(self._told) > MAX_UPSTREAMS:
                self._told.popitem(last=False)
        return upstream

    def upstream(self, part: PartKey, chain: ChainKey) -> NodeId | None:
        """Return from whom the first copies of a chain came last, whether or not it was told."""
        key = (part, chain)
        told = self._told.get(key)
        return self._upstream.get(key) or (told.upstream if told is not None else None)

    def left(self, part: PartKey) -> None:
        """Forget the chains of a part."""
        for key in [key for key in (*self._upstream, *self._told) if key[0] == part]:
            self._upstream.pop(key, None)
            self._told.pop(key, None)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        boxes = self.outboxes.values()
        return {
            "outbox frames": (max((len(b.frames) for b in boxes), default=0), MAX_WAITING_FRAMES),
            "outbox bytes": (max((b.bytes for b in boxes), default=0), MAX_WAITING_BYTES),
            "upstreams": (len(self._upstream), MAX_UPSTREAMS),
            "chains told": (len(self._told), MAX_UPSTREAMS),
        }

    def _close(self, peer: NodeId) -> _Outbox | None:
        self._cut_at.cancel(peer)
        return self.outboxes.pop(peer, None)
