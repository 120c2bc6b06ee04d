"""The hot path: what a node does with data that comes over a link.

Peek at the head, drop known copies, verify, mark as seen, deliver, forward. Marking before
verifying would let a forgery censor the real message. Who made a frame and sent it to us hears
that we have got it.
"""

from collections.abc import Sequence

import msgspec

from anabranch.core import codec, frames
from anabranch.core.congestion import Congestion
from anabranch.core.duplicates import CONTRADICTION, NEW, SEEN, TOO_OLD, Verdict
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD_BYTES
from anabranch.core.identity import Verify
from anabranch.core.ids import MAX_SKEW_S as MAX_SKEW_S
from anabranch.core.ids import (
    NODE_ID_BYTES,
    SEQUENCE_BITS,
    ChainKey,
    FrameHead,
    NodeId,
    StreamPart,
)
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.links import Links
from anabranch.core.machine import Copies, Deliver, Dropped, Effect, Forward, Send
from anabranch.core.messages import Got
from anabranch.core.messages.links import MAX_GOT
from anabranch.core.overlay import Carried, Perform
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Permission
from anabranch.core.reader import Reader
from anabranch.core.storage import Storage

_WHY = {CONTRADICTION: "contradiction", TOO_OLD: "too-old"}

_VERSION, _DATA = codec.DATA_HEAD
_SHORTEST = 4 + HEAD_BYTES
_LONGEST_BEFORE = 4 + codec.MAX_ROUTE_BYTES


class _Fresh(msgspec.Struct, gc=False):
    """A frame that may be new; its name is its head as it came."""

    state: Part
    head: FrameHead
    name: bytes
    route: bytes
    frame: bytes


class Incoming:
    """Takes frames from neighbours."""

    # A simulation has thousands of these, and every packet meets another one.
    __slots__ = (
        *("_apply", "_congestion", "_keys", "_known", "_links", "_moved", "_parts"),
        *("_permission", "_reader", "_recent", "_serve", "_storage", "_verify", "_waiting"),
        *("confirmed", "fresh", "has_moved"),
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
        # What came with these packets from who made it, who is to hear that we have got it.
        self.confirmed: dict[tuple[StreamPart, ChainKey], list[int]] = {}
        self.fresh: list[_Fresh] = []  # what may be new, and waits for `settle`
        self._waiting: set[bytes] = set()
        self.has_moved = False  # whether anything was set going since `due` was asked
        self._parts = parts
        self._known = parts.known
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
        self._moved = tuple(
            each for each in (keys, reader, storage, permission) if each is not None
        )

    def take(
        self,
        sender: NodeId,
        data: bytes,
        edges: Sequence[int],
        place: int,
        now: float,
        effects: list[Effect],
    ) -> int:
        """Take the data packets from a place among the edges on; return where the first other is.

        Known copies end here, and what may be new waits for `settle`. Whatever is to be done goes
        to the end of `effects`. When a packet raises RemoteError, those before it are settled.
        """
        known, waiting, outboxes = self._known, self._waiting, self._congestion.outboxes
        young, old = known.young, known.old
        neighbourly: Part | None = None  # a part in which `sender` is our neighbour
        copies: Copies | None = None
        while place < len(edges):
            at, end = edges[place], edges[place + 1]
            if end - at > _SHORTEST and data[at] == _VERSION and data[at + 1] == _DATA:
                start = at + 4 + data[at + 3]
            elif data.startswith(codec.DATA_HEAD, at, end):
                start = end  # too short for a frame
            else:
                break
            place += 2
            name = data[start : start + HEAD_BYTES]
            copied = young.get(name) or old.get(name)
            if copied is None and name in waiting:  # the same once more
                self.settle(sender, now, effects)
                young, old = known.young, known.old
                copied = young.get(name) or old.get(name)
            if (
                copied is not None
                and (
                    (state := copied.state) is neighbourly
                    or state.overlay.accepts(state.part, sender)
                )
                and copied.size == end - start
            ):
                neighbourly, overlay = state, state.overlay
                route = data[at + 4 : start]
                if outboxes or overlay.sees_copies or route == overlay.straight:
                    self._copy(state, sender, route, data, start, end, now, effects)
                elif copies is not None and copies.part is state.key:
                    copies.names.append(name)
                else:
                    copies = Copies(state.key, sender, [name])
                    effects.append(copies)
                continue
            try:
                self._look(sender, data, at, start, end, name, now, effects)
            except RemoteError:
                self.settle(sender, now, effects)
                raise
        return place

    def _look(
        self,
        sender: NodeId,
        data: bytes,
        at: int,
        start: int,
        end: int,
        name: bytes,
        now: float,
        effects: list[Effect],
    ) -> None:
        """Take the head apart of the frame that begins at `start`, in a packet from `at`."""
        if start == end or start - at > _LONGEST_BEFORE or end - at > codec.MAX_DATA_BYTES:
            start = codec.frame_start(data, at, end)  # which says what is wrong, as a rule
        head = frames.peek(data, start, end)
        state = self._parts.get(head.part)
        if state is None or not state.overlay.accepts(state.part, sender):
            self._links.strain(sender, now)
            reason = "not-member" if state is None else "not-neighbour"
            effects.append(Dropped(head, reason, sender))
            return
        verdict = state.seen.check(head.chain, head.previous, head.first, head.last)
        if verdict is SEEN:
            self._copy(state, sender, data[at + 4 : start], data, start, end, now, effects)
        elif verdict is not NEW:
            self._refuse(head, verdict, sender, effects)
        elif head.last >> SEQUENCE_BITS > (now + MAX_SKEW_S) * 1000:
            effects.append(Dropped(head, "future", sender))
        elif head.first >> SEQUENCE_BITS < (now - MAX_SKEW_S) * 1000:
            effects.append(Dropped(head, "old", sender))
        elif data[at + 2] != state.overlay.code:
            raise RemoteError("wrong-overlay", str(data[at + 2]))
        else:
            self.fresh.append(_Fresh(state, head, name, data[at + 4 : start], data[start:end]))
            self._waiting.add(name)

    def settle(self, sender: NodeId, now: float, effects: list[Effect]) -> None:
        """Verify what may be new, and let it go on.

        All signatures are checked in a row, and then all else is done in a row: either is faster
        while the processor has nothing else in mind.
        """
        if not self.fresh:
            return
        fresh, self.fresh = self.fresh, []
        self._waiting.clear()
        verify, proof, genuine = self._verify, frames.proof, 0
        known = self._storage.verified if self._storage is not None else ()
        for new in fresh:
            if new.frame in known:  # it was in a page of the leader's log
                genuine += 1
                continue
            publisher: NodeId = new.head.chain[:NODE_ID_BYTES]  # type: ignore[assignment]
            covered, signature = proof(new.frame)
            if not verify(publisher, covered, signature):
                break
            genuine += 1
        for new in fresh[:genuine]:
            self._pass(new, sender, now, effects)
        if genuine < len(fresh):
            raise RemoteError("forged", str(fresh[genuine].state.part))

    def _pass(self, new: _Fresh, sender: NodeId, now: float, effects: list[Effect]) -> None:
        """Mark a verified frame as seen, and let it go on."""
        state, head, route, frame = new.state, new.head, new.route, new.frame
        part, overlay, permission = state.part, state.overlay, self._permission
        if not (permission.everyone or permission.allows_chain(part, head.part, head.chain, now)):
            self.has_moved = True
            data = codec.carry_head(overlay.code, route) + frame
            effects += self._doubt(state, head, sender, data, now)
            return
        # Those before it may have changed what is new, or even where we are.
        if self._parts.get(head.part) is not state:
            effects.append(Dropped(head, "not-member", sender))
            return
        verdict = state.seen.take(head.chain, head.previous, head.first, head.last)
        if verdict is SEEN:
            self._copy(state, sender, route, frame, 0, len(frame), now, effects)
            return
        if verdict is not NEW:
            self._refuse(head, verdict, sender, effects)
            return
        self._known.add(new.name, state, len(frame))
        self._recent.add(state.key, frame, now)
        self._congestion.came(state.key, head.chain, sender)
        keys, reader, hops = self._keys, self._reader, overlay.hops(route)
        keys_at, overlay_at = keys.wakeup_at if keys is not None else None, overlay.wakeup_at
        if state.subscribed and (state.plain or self._storage is not None):
            self.has_moved = True
            self._deliver(state, head, frame, hops, sender, now, effects)
        elif state.subscribed and reader is not None:  # as nearly always
            reader_at = reader.wakeup_at
            effects += reader.take(state, head, frame, hops, sender, now)
            if reader.wakeup_at is not reader_at:
                self.has_moved = True
        onward = overlay.carry(part, Carried(head, route, frame), sender, True, now)
        if overlay.wakeup_at is not overlay_at or (
            keys is not None and keys.wakeup_at is not keys_at
        ):
            self.has_moved = True
        if len(onward) == 1 and type(onward[0]) is Forward and not self._congestion.outboxes:
            effects.append(onward[0])  # as nearly always
        else:
            effects += self._apply(onward, now)
        if route == overlay.straight:  # who made it waits for our word
            self.confirmed.setdefault((part, head.chain), []).append(head.last)

    def _refuse(
        self, head: FrameHead, verdict: Verdict, sender: NodeId, effects: list[Effect]
    ) -> None:
        """Let a frame end here that cannot be."""
        if self._congestion.outboxes:
            self._congestion.suppress(sender, head)
        effects.append(Dropped(head, _WHY[verdict], sender))

    def confirm(self, sender: NodeId) -> list[Effect]:
        """Say what we have got of the packets that `sender` has just brought."""
        confirmed, self.confirmed = self.confirmed, {}
        return [
            Send(sender, Got(part, chain, tuple(numbers[at : at + MAX_GOT])))
            for (part, chain), numbers in confirmed.items()
            for at in range(0, len(numbers), MAX_GOT)
        ]

    def due(self) -> float | None:
        """Return when what was set going by data is due, the first of it."""
        self.has_moved = False
        first: float | None = None
        for moved in (*self._moved, *self._parts.overlays.values()):
            at = moved.wakeup_at
            if at is not None and (first is None or at < first):
                first = at
        return first

    def _deliver(
        self,
        state: Part,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId,
        now: float,
        effects: list[Effect],
    ) -> None:
        """Hand a frame to those on this node who want it."""
        if state.plain:
            keys = self._keys
            if keys is None or not state.reads or keys.passes(frame):
                effects.append(Deliver(state.part, head, frame, hops))
            else:
                effects += keys.deliver(state.part, head, frame, hops, sender, now)
        if self._reader is not None:
            effects += self._reader.take(state, head, frame, hops, sender, now)
        if self._storage is not None:
            effects += self._storage.take(state, head, frame, now)

    def _copy(
        self,
        state: Part,
        sender: NodeId,
        route: bytes,
        data: bytes,
        start: int,
        end: int,
        now: float,
        effects: list[Effect],
    ) -> None:
        """A copy of what we have, from `start` to `end`: it ends here, unverified."""
        effects.append(Copies(state.key, sender, [data[start : start + HEAD_BYTES]]))
        overlay = state.overlay
        if route == overlay.straight:  # our first word of it may have been lost
            head = frames.peek(data, start, end)
            self.confirmed.setdefault((state.part, head.chain), []).append(head.last)
        if self._congestion.outboxes:
            self._congestion.suppress(sender, frames.peek(data, start, end))
        if overlay.sees_copies:
            self.has_moved = True
            carried = Carried(frames.peek(data, start, end), route, data[start:end])
            effects += self._apply(overlay.carry(state.part, carried, sender, False, now), now)

    def _doubt(
        self, state: Part, head: FrameHead, sender: NodeId, data: bytes, now: float
    ) -> list[Effect]:
        """A frame of who may not publish, as far as we know: keep it and ask the registry."""
        permission = self._permission
        self._links.strain(sender, now)
        effects = permission.keep_back(state.part, head, sender, data, now)
        return effects + self._serve(permission.ask(state.part.stream, now), now)
