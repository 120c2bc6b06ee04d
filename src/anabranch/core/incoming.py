"""The hot path: what a node does with data that comes over a link.

Peek at the head, drop known copies, verify, mark as seen, deliver, forward. Marking before
verifying would let a forgery censor the real message. Who made a frame and sent it to us hears
that we have got it.
"""

from anabranch.core import codec, frames
from anabranch.core.congestion import Congestion
from anabranch.core.duplicates import CONTRADICTION, NEW, SEEN, TOO_OLD, Verdict
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import MAX_SKEW_S as MAX_SKEW_S
from anabranch.core.ids import SEQUENCE_BITS, FrameHead, NodeId
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.links import Links
from anabranch.core.machine import Deliver, Dropped, Effect, Send
from anabranch.core.messages import Got
from anabranch.core.overlay import Carried, Perform
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Permission
from anabranch.core.reader import Reader
from anabranch.core.storage import Storage

_WHY = {SEEN: "duplicate", CONTRADICTION: "contradiction", TOO_OLD: "too-old"}


class Incoming:
    """Takes frames from neighbours."""

    # A simulation has thousands of these, and every packet meets another one.
    __slots__ = (
        *("_apply", "_congestion", "_keys", "_links", "_parts", "_permission", "_recent"),
        *("_reader", "_serve", "_storage", "_verify", "wakeup_at"),
    )

    def __init__(
        self,
        parts: Parts,
        links: Links,
        congestion: Congestion,
        verify: Verify,
        permission: Permission,
        apply: Perform,
        serve: Perform,
        keys: KeyExchange | None = None,
        reader: Reader | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.wakeup_at: float | None = None  # when what the last packet set going is due
        self._parts = parts
        self._recent = parts.recent
        self._links = links
        self._congestion = congestion
        self._verify = verify
        self._permission = permission
        self._apply = apply  # an overlay's effects
        self._serve = serve  # a service's effects
        self._keys = keys
        self._reader = reader
        self._storage = storage

    def data(self, sender: NodeId, data: bytes, now: float) -> list[Effect]:
        """Take a data packet."""
        start = codec.frame_start(data)
        head = frames.peek(data, start)
        state = self._parts.get(head.part)
        if state is None or not state.overlay.accepts(state.part, sender):
            self._links.strain(sender, now)
            reason = "not-member" if state is None else "not-neighbour"
            return [Dropped(head, reason, sender)]
        verdict = state.seen.check(head.chain, head.previous, head.first, head.last)
        if verdict is not NEW:
            return self._copy(state, head, verdict, sender, data, start, now)
        if head.last >> SEQUENCE_BITS > (now + MAX_SKEW_S) * 1000:
            return [Dropped(head, "future", sender)]
        if head.first >> SEQUENCE_BITS < (now - MAX_SKEW_S) * 1000:
            return [Dropped(head, "old", sender)]
        overlay = state.overlay
        frame = data[start:]
        if codec.overlay_of(data) != overlay.code:
            raise RemoteError("wrong-overlay", str(codec.overlay_of(data)))
        permission = self._permission
        permitted = permission.everyone or permission.allows(state.part, head, now)
        if not self._verify(head.publisher, frames.digest(frame), frames.signature(frame)):
            raise RemoteError("forged", str(state.part))
        if not permitted:
            return self._doubt(state, head, sender, data, now)
        state.seen.mark(head.chain, head.previous, head.last)
        self._recent.add(state.key, frame, now)
        self._congestion.came(state.key, head.chain, sender)
        route = data[4:start]
        effects: list[Effect] = []
        if state.subscribed:
            effects += self._deliver(state, head, frame, overlay.hops(route), sender, now)
        onward = overlay.carry(state.part, Carried(head, route, frame), sender, True, now)
        effects += self._apply(onward, now)
        if route == overlay.straight:  # who made it waits for this word
            effects.append(Send(sender, Got(state.part, head.chain, head.last)))
        self.wakeup_at = overlay.wakeup_at
        for service in (self._keys, self._reader, self._storage):
            if service is not None and service.wakeup_at is not None:
                self.wakeup_at = min(service.wakeup_at, self.wakeup_at or service.wakeup_at)
        return effects

    def _deliver(
        self, state: Part, head: FrameHead, frame: bytes, hops: int, sender: NodeId, now: float
    ) -> list[Effect]:
        """Hand a frame to those on this node who want it."""
        effects: list[Effect] = []
        if state.plain and (self._keys is None or not state.reads):
            effects.append(Deliver(state.part, head, frame, hops))
        elif state.plain and self._keys is not None:
            effects += self._keys.deliver(state.part, head, frame, hops, sender, now)
        if self._reader is not None:
            effects += self._reader.take(state, head, frame, hops, sender, now)
        if self._storage is not None:
            effects += self._storage.take(state, head, frame, now)
        return effects

    def _copy(
        self,
        state: Part,
        head: FrameHead,
        verdict: Verdict,
        sender: NodeId,
        data: bytes,
        start: int,
        now: float,
    ) -> list[Effect]:
        """A copy of what we have, or what cannot be: it ends here, unverified."""
        if self._congestion.outboxes:
            self._congestion.suppress(sender, head)
        effects: list[Effect] = [Dropped(head, _WHY[verdict], sender)]
        if verdict is not SEEN:
            return effects
        overlay, route = state.overlay, data[4:start]
        if route == overlay.straight:  # our first word of it may have been lost
            effects.append(Send(sender, Got(state.part, head.chain, head.last)))
        if overlay.sees_copies:
            carried = Carried(head, route, data[start:])
            effects += self._apply(overlay.carry(state.part, carried, sender, False, now), now)
            self.wakeup_at = overlay.wakeup_at
        return effects

    def _doubt(
        self, state: Part, head: FrameHead, sender: NodeId, data: bytes, now: float
    ) -> list[Effect]:
        """A frame of who may not publish, as far as we know: keep it and ask the registry."""
        permission = self._permission
        self._links.strain(sender, now)
        effects = permission.keep_back(state.part, head, sender, data, now)
        effects += self._serve(permission.ask(state.part.stream, now), now)
        self.wakeup_at = permission.wakeup_at
        return effects
