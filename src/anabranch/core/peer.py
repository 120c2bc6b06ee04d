"""The Peer: what a node does in every overlay it is a member of.

The hot path is `_data`: peek at the head, drop known copies, verify, mark as seen, deliver,
forward. Marking before verifying would let a forgery censor the real message. Everything else
here is bookkeeping: links on behalf of the overlays, membership, publishing, slow links.
"""

import random
from collections.abc import Callable, Mapping

from anabranch.core import codec, frames
from anabranch.core.congestion import PAUSE_MS, Congestion
from anabranch.core.duplicates import CONTRADICTION, NEW, SEEN, TOO_OLD, Verdict
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import (
    SEQUENCE_BITS,
    ChainKey,
    FrameHead,
    NodeId,
    PartKey,
    StreamPart,
    chain_key,
)
from anabranch.core.links import Links
from anabranch.core.machine import (
    Congested,
    Deliver,
    Disconnect,
    Dropped,
    Effect,
    Event,
    Forward,
    Hold,
    LinkDown,
    LinkUp,
    Notice,
    Outcome,
    Publish,
    Published,
    Received,
    Release,
    Retire,
    Rtt,
    Send,
    Sizes,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
    fullest,
)
from anabranch.core.messages import Contact, SlowDown
from anabranch.core.overlay import Carried, Directory, OverlayFactory
from anabranch.core.parts import Part, Parts
from anabranch.core.publishing import SENT, Publishing, outcomes

MAX_SKEW_S = 300.0

Entropy = Callable[[int], bytes]

_WHY = {SEEN: "duplicate", CONTRADICTION: "contradiction", TOO_OLD: "too-old"}


class Peer:
    """A node's protocol machine."""

    wakeup_at: float | None = None

    def __init__(
        self,
        signer: Signer,
        verify: Verify,
        directory: Directory,
        overlays: Mapping[str, OverlayFactory],
        rng: random.Random,
        entropy: Entropy,
        address: str = "",
    ) -> None:
        self.me = Contact(signer.node, address)
        self._signer = signer
        self._verify = verify
        self._entropy = entropy
        self._links = Links()
        self._congestion = Congestion()
        self._parts = Parts(self.me, directory, overlays, rng, self._links.is_up)
        self._recent = self._parts.recent
        self._busy: dict[PartKey, Part] = {}  # parts whose publishing waits for something
        self._handlers: dict[type, Callable[..., list[Effect]]] = {
            Received: self._received,
            Wakeup: self._wakeup,
            LinkUp: self._link_up,
            LinkDown: self._link_down,
            Rtt: self._rtt,
            Congested: self._congested,
            Writable: self._writable,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Publish: self._publish,
            Retire: self._retire,
        }

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""
        return self._handlers[type(event)](event, now)

    def neighbours(self, part: StreamPart) -> tuple[NodeId, ...]:
        """Return our neighbours in a part, sorted; none if we are no member."""
        state = self._parts.find(part)
        return tuple(state.overlay.neighbours(part)) if state else ()

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        return fullest([self._links.sizes(), self._congestion.sizes(), self._parts.sizes()])

    # --- Packets --------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Effect]:
        data = event.data
        try:
            if data[:2] == codec.DATA_HEAD:
                return self._data(event.sender, data, now)
            return self._control(event.sender, data, now)
        except RemoteError as error:
            return self._punish(event.sender, error, now)

    def _data(self, sender: NodeId, data: bytes, now: float) -> list[Effect]:
        start = codec.frame_start(data)
        head = frames.peek(data, start)
        state = self._parts.get(head.part)
        if state is None or not state.overlay.accepts(state.part, sender):
            self._links.strain(sender, now)
            reason = "not-member" if state is None else "not-neighbour"
            return [Dropped(head, reason, sender)]
        verdict = state.seen.check(head.chain, head.previous, head.first, head.last)
        if verdict is not NEW:
            return self._copy(state, head, verdict, sender, data, now)
        if head.last >> SEQUENCE_BITS > (now + MAX_SKEW_S) * 1000:
            return [Dropped(head, "future", sender)]
        overlay = state.overlay
        frame = data[start:]
        if codec.overlay_of(data) != overlay.code:
            raise RemoteError("wrong-overlay", str(codec.overlay_of(data)))
        if not self._verify(head.publisher, frames.digest(frame), frames.signature(frame)):
            raise RemoteError("forged", str(state.part))
        state.seen.mark(head.chain, head.previous, head.last)
        self._recent.add(state.key, frame, now)
        self._congestion.came(state.key, head.chain, sender)
        route = data[4:start]
        effects: list[Effect] = []
        if state.subscribed:
            effects.append(Deliver(state.part, head, frame, overlay.hops(route)))
        onward = overlay.carry(state.part, Carried(head, route, frame), sender, True, now)
        effects += self._applied(onward, now)
        self._wake_by(overlay.wakeup_at)
        return effects

    def _copy(
        self,
        state: Part,
        head: FrameHead,
        verdict: Verdict,
        sender: NodeId,
        data: bytes,
        now: float,
    ) -> list[Effect]:
        """A copy of what we have, or what cannot be: it ends here, unverified."""
        if self._congestion.outboxes:
            self._congestion.suppress(sender, head)
        dropped = Dropped(head, _WHY[verdict], sender)
        if verdict is not SEEN or not state.overlay.sees_copies:
            return [dropped]
        start = codec.frame_start(data)
        carried = Carried(head, data[4:start], data[start:])
        onward = state.overlay.carry(state.part, carried, sender, False, now)
        effects = [dropped, *self._applied(onward, now)]
        self._wake_by(state.overlay.wakeup_at)
        return effects

    def _control(self, sender: NodeId, data: bytes, now: float) -> list[Effect]:
        message = codec.decode(data)
        state = self._parts.find(message.part)
        if state is not None and type(message) is SlowDown:
            return self._slow_down(state, sender, message, now)
        self._links.strain(sender, now)
        if state is None:
            return []
        return self._after(self._applied(state.overlay.receive(sender, message, now), now), now)

    def _punish(self, peer: NodeId, error: RemoteError, now: float) -> list[Effect]:
        """A peer that breaks the protocol loses its link."""
        effects: list[Effect] = [Notice(None, "fault", f"{error.reason} from {peer.hex()}")]
        effects += self._ended(self._links.ban(peer, error.reason, now), now)
        return self._after(effects, now)

    # --- Links ----------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> list[Effect]:
        effects = self._ended(self._links.up(event.peer, now), now)
        if self._links.is_up(event.peer):
            for overlay in self._parts.overlays.values():
                if event.rtt_s is not None:
                    overlay.rtt(event.peer, event.rtt_s)
                effects += self._applied(overlay.link(event.peer, True, "", now), now)
        return self._after(effects, now)

    def _link_down(self, event: LinkDown, now: float) -> list[Effect]:
        self._links.down(event.peer, now)
        return self._after(self._lost(event.peer, event.reason, now), now)

    def _lost(self, peer: NodeId, reason: str, now: float) -> list[Effect]:
        effects = self._congestion.gone(peer, "link-down")
        for overlay in self._parts.overlays.values():
            effects += self._applied(overlay.link(peer, False, reason, now), now)
        return effects

    def _ended(self, effects: list[Effect], now: float) -> list[Effect]:
        """Add what follows for others where we end a link ourselves."""
        lost = [e for e in effects if type(e) is Disconnect]
        for ended in lost:
            effects += self._lost(ended.peer, ended.reason, now)
        return effects

    def _rtt(self, event: Rtt, now: float) -> list[Effect]:
        if self._links.is_up(event.peer):
            for overlay in self._parts.overlays.values():
                overlay.rtt(event.peer, event.seconds)
        return []

    # --- Slow links -----------------------------------------------------------------------

    def _congested(self, event: Congested, now: float) -> list[Effect]:
        if self._links.is_up(event.peer):
            self._congestion.full(event.peer, now)
        return self._after([], now)

    def _writable(self, event: Writable, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for forward in self._congestion.writable(event.peer):
            state = self._parts.get(forward.head.part)
            if state is not None and event.peer in state.overlay.neighbours(state.part):
                effects.append(forward)
            else:  # we left the part meanwhile, or changed neighbours
                effects.append(Dropped(forward.head, "parted", event.peer))
        return self._after(effects, now)

    def _slow_down(
        self, state: Part, sender: NodeId, message: SlowDown, now: float
    ) -> list[Effect]:
        if not state.overlay.accepts(state.part, sender):
            self._links.strain(sender, now)
            return []
        return self._after(self._tell(state, message.chain, message.pause_ms, now), now)

    def _tell(self, state: Part, chain: ChainKey, pause_ms: int, now: float) -> list[Effect]:
        """Pass the word towards the publisher, or heed it if that is us."""
        if state.publishing is not None and state.publishing.chain == chain:
            state.publishing.pause(pause_ms / 1000, now)
            return []
        upstream = self._congestion.whom_to_tell(state.key, chain, now)
        return [Send(upstream, SlowDown(state.part, chain, pause_ms))] if upstream else []

    # --- Membership and publishing --------------------------------------------------------

    def _subscribe(self, event: Subscribe, now: float) -> list[Effect]:
        state, effects = self._member(event.part, now)
        if state is not None:
            state.subscribed = True
        return self._after(effects, now)

    def _unsubscribe(self, event: Unsubscribe, now: float) -> list[Effect]:
        state = self._parts.find(event.part)
        if state is None:
            return []
        state.subscribed = False
        return self._after(self._leave_if_idle(state, now), now)

    def _publish(self, event: Publish, now: float) -> list[Effect]:
        state, effects = self._member(event.part, now)
        if state is None:
            return effects + [Outcome(draft.ticket, "no-such-stream") for draft in event.drafts]
        if state.publishing is None:
            chain = chain_key(self.me.node, int.from_bytes(self._entropy(8)))
            state.publishing = Publishing(state.key, chain, self._signer.sign)
        effects += state.publishing.add(event.drafts)
        return self._after(effects + self._pump(state, state.publishing, now), now)

    def _retire(self, event: Retire, now: float) -> list[Effect]:
        state = self._parts.find(event.part)
        if state is None or state.publishing is None:
            return []
        effects = state.publishing.close()
        state.publishing = None
        self._busy.pop(state.key, None)
        return self._after(effects + self._leave_if_idle(state, now), now)

    def _member(self, part: StreamPart, now: float) -> tuple[Part | None, list[Effect]]:
        state, effects = self._parts.join(part, now)
        return state, self._applied(effects, now)

    def _leave_if_idle(self, state: Part, now: float) -> list[Effect]:
        if not state.idle:
            return []
        self._congestion.left(state.key)
        return self._applied(self._parts.leave(state, now), now)

    def _pump(self, state: Part, publishing: Publishing, now: float) -> list[Effect]:
        """Send what may leave now."""
        effects: list[Effect] = []
        while (made := publishing.next_frame(now)) is not None:
            frame, tickets = made
            head = frames.peek(frame)
            if state.seen.check(head.chain, head.previous, head.first, head.last) is NEW:
                state.seen.mark(head.chain, head.previous, head.last)
            self._recent.add(state.key, frame, now)
            effects.append(Published(head, frame))
            if state.subscribed:
                effects.append(Deliver(state.part, head, frame, 0))
            taken, onward = self._offer(state, head, frame, now)
            effects += onward
            effects += outcomes(tickets, SENT) if taken else publishing.strand(frame, tickets, now)
        if publishing.wakeup_at is None:
            self._busy.pop(state.key, None)
        else:
            self._busy[state.key] = state
        return effects

    def _offer(
        self, state: Part, head: FrameHead, frame: bytes, now: float
    ) -> tuple[bool, list[Effect]]:
        """Give our own frame to the overlay; say whether somebody was there to take it."""
        onward = state.overlay.publish(state.part, Carried(head, b"", frame), now)
        taken = any(type(effect) is Forward for effect in onward)
        return taken, self._applied(onward, now)

    # --- After every event that is not data -----------------------------------------------

    def _applied(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do ourselves what is ours to do of an overlay's effects: links, and slow links."""
        done: list[Effect] = []
        for effect in effects:
            if type(effect) is Forward and self._congestion.outboxes:
                done += self._keep_back(effect, now)
            elif type(effect) is Hold:
                done += self._links.hold(effect.peer, effect.address, effect.dial, now)
            elif type(effect) is Release:
                done += self._ended(self._links.release(effect.peer, now), now)
            else:
                done.append(effect)
        return done

    def _keep_back(self, forward: Forward, now: float) -> list[Effect]:
        head = forward.head
        leaving, effects = self._congestion.keep_back(forward)
        state = self._parts.get(head.part)
        if leaving is not forward and state is not None:
            effects += self._tell(state, head.chain, PAUSE_MS, now)
        return effects if leaving is None else [leaving, *effects]

    def _after(self, effects: list[Effect], now: float) -> list[Effect]:
        """Bring the state up to date with a change that is not data: flush, re-arm the timer."""
        for state in list(self._busy.values()):
            publishing = state.publishing
            if publishing and publishing.has_stranded() and state.overlay.neighbours(state.part):
                for stranded in publishing.take_stranded():
                    head = frames.peek(stranded.frame)
                    effects += self._offer(state, head, stranded.frame, now)[1]
                    effects += outcomes(stranded.tickets, SENT)
                effects += self._pump(state, publishing, now)
        times = [self._links.wakeup_at, self._congestion.wakeup_at]
        times += [overlay.wakeup_at for overlay in self._parts.overlays.values()]
        times += [s.publishing.wakeup_at for s in self._busy.values() if s.publishing]
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    def _wake_by(self, at: float | None) -> None:
        if at is not None and (self.wakeup_at is None or at < self.wakeup_at):
            self.wakeup_at = at

    def _wakeup(self, event: Wakeup, now: float) -> list[Effect]:
        effects = self._ended(self._links.wake(now), now)
        for peer in self._congestion.too_long(now):
            effects += self._links.cut(peer, "link-full", now)
            effects += self._lost(peer, "link-full", now)
        for overlay in self._parts.overlays.values():
            if overlay.wakeup_at is not None and overlay.wakeup_at <= now:
                effects += self._applied(overlay.wake(now), now)
        for state in list(self._busy.values()):
            if state.publishing is not None:
                effects += state.publishing.expire(now)
                effects += self._pump(state, state.publishing, now)
        return self._after(effects, now)
