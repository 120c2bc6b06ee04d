"""Slow links: frames that wait for them, the budget of pauses, and when a slow link is cut.

No node stops reading because another node reads slowly. While a link is full, frames for it wait
here, bounded. A neighbour that sends `SlowDown` gets no frames of that part for a while: they wait
as well, and no other link is slowed. A neighbour with few fellows could stop the whole part so;
there its pauses are limited to a share of the time, and so are those of a neighbour that has asked
for too many. A copy that the neighbour itself sends
meanwhile is removed from the frames that wait for it. A link that stays full, or is told to pause
for most of the time, is cut, and its waiting frames are counted as dropped. Pauses are remembered
when a link has ended, or a neighbour that dials again would get a new budget each time.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey
from anabranch.core.links import MAX_HELD
from anabranch.core.machine import Dropped, Effect, Forward, Sizes
from anabranch.core.timers import Timers

MAX_WAITING_FRAMES = 4_096  # per link
MAX_WAITING_BYTES = 8 << 20  # per link
CUT_AFTER_S = 10.0
PAUSE_MS = 100
TELL_EVERY_S = 0.05  # per part and neighbour
MAX_UPSTREAMS = 512  # chains that were active last
MAX_TOLD = 512  # pairs of a part and a neighbour that were sent SlowDown last
MAX_PAUSES = 1_024  # neighbours that asked for pauses last, present or past
LINK_FULL, LINK_SLOW = "link-full", "link-slow"  # why a link is cut

# A node with fewer neighbours in a part than FEW cannot tell one liar from an overloaded part:
# there SlowDown takes at most this share of a link's time. A tenth of the publisher's rate is the
# promise; the difference is for frames that leave a little later than their pause ends.
FEW = 3
PAUSE_SHARE = 0.08
LEAST_PAUSE_S = 0.01  # a shorter one is not worth a timer
DRAIN_SHARE = 0.25  # of a link's time may be paused for ever without the link being cut

_Copy = tuple[PartKey, ChainKey, int]  # part, chain, last number: which frame waits


class _Waiting(msgspec.Struct):
    head: FrameHead
    overlay: int
    route: bytes
    frame: bytes


class _Outbox:
    """Frames that wait for one link, which is full, or paused in some parts."""

    __slots__ = ("bytes", "frames", "is_full", "paused")

    def __init__(self) -> None:
        self.frames: OrderedDict[_Copy, _Waiting] = OrderedDict()
        self.bytes = 0
        self.is_full = False
        self.paused: dict[PartKey, float] = {}  # parts in which it is paused, and until when

    def blocks(self, part: PartKey) -> bool:
        """Tell whether frames of a part have to wait."""
        return self.is_full or part in self.paused

    @property
    def is_half_full(self) -> bool:
        """Tell whether half of what may wait does."""
        return 2 * len(self.frames) > MAX_WAITING_FRAMES or 2 * self.bytes > MAX_WAITING_BYTES

    def take_unblocked(self) -> list[_Waiting]:
        """Remove the frames that need not wait any more."""
        if self.is_full:
            return []
        free = [copy for copy in self.frames if copy[0] not in self.paused]
        taken = [self.frames.pop(copy) for copy in free]
        self.bytes -= sum(len(waiting.frame) for waiting in taken)
        return taken


class _Pauses(msgspec.Struct, gc=False):
    """Pauses that one link was asked for."""

    at: float
    budget_s: float = PAUSE_MS / 1000  # left to it where it has few fellows, or asked for too much
    total_s: float = 0.0  # sum of its pauses, less DRAIN_SHARE of the time
    is_spent: bool = False  # it asked for too much, and total_s has not come down to 0 since

    def advance(self, now: float) -> None:
        """Let time pass."""
        passed_s, self.at = now - self.at, now
        self.budget_s = min(PAUSE_MS / 1000, self.budget_s + PAUSE_SHARE * passed_s)
        self.total_s = max(0.0, self.total_s - DRAIN_SHARE * passed_s)
        self.is_spent = self.total_s > (0.0 if self.is_spent else CUT_AFTER_S)


class KeptBack(msgspec.Struct, gc=False):
    """A Forward, split into the branches that may leave now and those that wait."""

    leaving: Forward | None
    dropped: list[Effect]  # by outboxes without room
    full: int  # branches that wait because their link is full
    resumed: list[Forward]  # of links whose pauses end because too much waits for them


class Congestion:
    """Outboxes of full and paused links, and the neighbours that first copies come from."""

    __slots__ = ("_cut_at", "_pauses", "_resume_at", "_told", "_upstream", "outboxes")

    def __init__(self) -> None:
        self.outboxes: dict[NodeId, _Outbox] = {}
        self._cut_at: Timers[NodeId] = Timers()
        self._resume_at: Timers[tuple[NodeId, PartKey]] = Timers()
        self._pauses: OrderedDict[NodeId, _Pauses] = OrderedDict()
        self._upstream: OrderedDict[tuple[PartKey, ChainKey], NodeId] = OrderedDict()
        self._told: OrderedDict[tuple[PartKey, NodeId], float] = OrderedDict()

    @property
    def wakeup_at(self) -> float | None:
        """When a link will have been full for too long, or a pause ends."""
        cut_at, resume_at = self._cut_at.next_at, self._resume_at.next_at
        if cut_at is None or resume_at is None:
            return cut_at if resume_at is None else resume_at
        return min(cut_at, resume_at)

    def full(self, peer: NodeId, now: float) -> None:
        """Begin to keep back all frames for `peer`."""
        outbox = self.outboxes.setdefault(peer, _Outbox())
        if not outbox.is_full:
            outbox.is_full = True
            self._cut_at.sooner(peer, now + CUT_AFTER_S)

    def writable(self, peer: NodeId) -> list[Forward]:
        """Release the frames that waited for a full link, in their order."""
        outbox = self.outboxes.get(peer)
        if outbox is None or not outbox.is_full:
            return []
        outbox.is_full = False
        self._cut_at.cancel(peer)
        return self._release(peer, outbox)

    def pause(
        self, peer: NodeId, part: PartKey, seconds: float, neighbours: int, now: float
    ) -> None:
        """Keep back frames of a part for `peer`, which asked for it; `neighbours`: of the part."""
        pauses = self._pauses.setdefault(peer, _Pauses(now))
        self._pauses.move_to_end(peer)
        if len(self._pauses) > MAX_PAUSES:
            self._pauses.popitem(last=False)
        pauses.advance(now)
        is_bounded = neighbours < FEW or pauses.is_spent
        if is_bounded:
            seconds = min(seconds, pauses.budget_s)
        outbox = self.outboxes.get(peer)
        before = outbox.paused.get(part, now) if outbox is not None else now
        added_s = now + seconds - before
        if added_s < LEAST_PAUSE_S:
            return
        outbox = self.outboxes.setdefault(peer, _Outbox())
        outbox.paused[part] = now + seconds
        self._resume_at.set((peer, part), now + seconds)
        if is_bounded:
            pauses.budget_s -= added_s
        pauses.total_s += added_s
        if pauses.total_s > CUT_AFTER_S:
            self._cut_at.set(peer, now)

    def resumed(self, now: float) -> list[Forward]:
        """Release the frames whose pauses have ended."""
        released: list[Forward] = []
        for peer, part in self._resume_at.pop_due(now):
            outbox = self.outboxes[peer]
            del outbox.paused[part]
            released += self._release(peer, outbox)
        return released

    def gone(self, peer: NodeId, reason: str) -> list[Effect]:
        """Count the frames that waited for a link that has ended."""
        self._cut_at.cancel(peer)
        outbox = self.outboxes.pop(peer, None)
        if outbox is None:
            return []
        for part in outbox.paused:
            self._resume_at.cancel((peer, part))
        return [Dropped(w.head, reason, peer) for w in outbox.frames.values()]

    def too_long(self, now: float) -> list[tuple[NodeId, str]]:
        """Return the peers whose links were full, or paused, for too long, with the reason."""
        due = [(peer, self.outboxes.get(peer)) for peer in self._cut_at.pop_due(now)]
        return [
            (peer, LINK_FULL if outbox is not None and outbox.is_full else LINK_SLOW)
            for peer, outbox in due
        ]

    def rest_s(self, part: PartKey, neighbours: Sequence[NodeId], now: float) -> float:
        """Return for how long a publisher rests: 0 unless most of its links wait."""
        full, paused_s = 0, list[float]()
        for peer in neighbours:
            outbox = self.outboxes.get(peer)
            if outbox is not None and outbox.is_full:
                full += 1
            elif outbox is not None and part in outbox.paused:
                paused_s.append(outbox.paused[part] - now)
        if 2 * (full + len(paused_s)) <= len(neighbours):
            return 0.0
        return PAUSE_MS / 1000 if 2 * full > len(neighbours) else max(paused_s)

    def keep_back(self, forward: Forward) -> KeptBack:
        """Split a Forward: branches over links that are full or paused wait."""
        head = forward.head
        leaving: list[tuple[NodeId, bytes]] = []
        kept = KeptBack(forward, [], 0, [])
        dropped = kept.dropped
        for peer, route in forward.branches:
            outbox = self.outboxes.get(peer)
            if outbox is None or not outbox.blocks(head.part):
                leaving.append((peer, route))
                continue
            kept.full += outbox.is_full
            frame = forward.frame
            self.suppress(peer, head)  # never twice in one outbox
            outbox.frames[head.part, head.chain, head.last] = _Waiting(
                head, forward.overlay, route, frame
            )
            outbox.bytes += len(frame)
            if not outbox.is_full and outbox.is_half_full:
                kept.resumed += self._end_pauses(peer, outbox)
                continue
            # The oldest goes first: real-time data is worth most when it is new.
            while len(outbox.frames) > MAX_WAITING_FRAMES or outbox.bytes > MAX_WAITING_BYTES:
                _, oldest = outbox.frames.popitem(last=False)
                outbox.bytes -= len(oldest.frame)
                dropped.append(Dropped(oldest.head, LINK_FULL, peer))
        if not leaving:
            kept.leaving = None
        elif len(leaving) < len(forward.branches):
            kept.leaving = Forward(forward.overlay, head, leaving, forward.frame)
        return kept

    def suppress(self, sender: NodeId, head: FrameHead) -> None:
        """Forget a copy that waits for `sender`, which has just shown that it has one."""
        outbox = self.outboxes.get(sender)
        if outbox is not None:
            waiting = outbox.frames.pop((head.part, head.chain, head.last), None)
            if waiting is not None:
                outbox.bytes -= len(waiting.frame)

    def came(self, part: PartKey, chain: ChainKey, sender: NodeId) -> None:
        """Remember the neighbour from which the first copies of a chain come."""
        key = (part, chain)
        self._upstream[key] = sender
        self._upstream.move_to_end(key)
        if len(self._upstream) > MAX_UPSTREAMS:
            self._upstream.popitem(last=False)

    def neighbour_to_slow(self, part: PartKey, chain: ChainKey, now: float) -> NodeId | None:
        """Return the neighbour that brings a chain, unless it was told a short while ago."""
        upstream = self._upstream.get((part, chain))
        if upstream is None:
            return None
        key = (part, upstream)
        if self._told.get(key, 0.0) > now - TELL_EVERY_S:
            return None
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        return upstream

    def upstream(self, part: PartKey, chain: ChainKey) -> NodeId | None:
        """Return the neighbour from which the first copies of a chain came last."""
        return self._upstream.get((part, chain))

    def left(self, part: PartKey) -> None:
        """Forget the chains of a part."""
        for key in [key for key in self._upstream if key[0] == part]:
            del self._upstream[key]
        for told in [told for told in self._told if told[0] == part]:
            del self._told[told]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        boxes = self.outboxes.values()
        return {
            "outbox frames": (max((len(b.frames) for b in boxes), default=0), MAX_WAITING_FRAMES),
            "outbox bytes": (max((b.bytes for b in boxes), default=0), MAX_WAITING_BYTES),
            "paused links": (len(self._resume_at), MAX_HELD),
            "neighbours that asked for pauses": (len(self._pauses), MAX_PAUSES),
            "upstreams": (len(self._upstream), MAX_UPSTREAMS),
            "neighbours told": (len(self._told), MAX_TOLD),
        }

    def _end_pauses(self, peer: NodeId, outbox: _Outbox) -> list[Forward]:
        """Let a link resume: no frame is dropped for the sake of a pause."""
        for part in outbox.paused:
            self._resume_at.cancel((peer, part))
        outbox.paused.clear()
        return self._release(peer, outbox)

    def _release(self, peer: NodeId, outbox: _Outbox) -> list[Forward]:
        released = outbox.take_unblocked()
        if not outbox.is_full and not outbox.paused:
            del self.outboxes[peer]
        return [Forward(w.overlay, w.head, [(peer, w.route)], w.frame) for w in released]
