"""The company a node keeps: who it acts for itself, and which peers may be its neighbours.

A tracker says who is whose neighbour, and may err or lie. So a node takes part in an overlay only
with those who act for a user that may publish or subscribe there, as the registry has it, and with
the storage nodes that the stream names. Whoever may not, as far as we know, waits until the
registry has been asked. We look again when it changes, and every few seconds, since rights expire.
Where everybody may, and where there is no registry, nobody need introduce himself.
"""

from collections.abc import Callable, Sequence

from anabranch.core.changes import PUBLIC, PUBLISH, SUBSCRIBE
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.links import Links
from anabranch.core.machine import Effect, Notice, Send, Sizes
from anabranch.core.mandate import RENEW_S, Introductions
from anabranch.core.messages import AboutParts, Bye, Introduce, Meet, Refused
from anabranch.core.messages.links import MAX_RECENT_MS
from anabranch.core.overlay import Perform
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Permits

REVIEW_EVERY_S = 5.0
MAX_WAITING = 256  # who would meet us and may not, until the registry has been asked

Mandate = Callable[[float], Introduce]  # what our user signs for us now


class Company:
    """Our own introduction, those of our peers, and who of them is welcome where."""

    def __init__(
        self,
        introductions: Introductions,
        mandate: Mandate | None,
        permits: Permits | None,
        parts: Parts,
        links: Links,
        apply: Perform,
        serve: Perform,
    ) -> None:
        self._introductions = introductions
        self._mandate = mandate
        self._permits = permits
        self._parts = parts
        self._links = links
        self._apply = apply  # an overlay's effects
        self._serve = serve  # a service's effects
        self._mine: Introduce | None = None
        self._renew_at = 0.0
        self._review_at: float | None = None
        self._waiting: dict[tuple[StreamPart, NodeId], tuple[Meet, float]] = {}  # and since when

    @property
    def wakeup_at(self) -> float | None:
        """When to introduce ourselves anew, or to look at our neighbours again."""
        if self._mine is None:
            return self._review_at
        return self._renew_at if self._review_at is None else min(self._review_at, self._renew_at)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {"waiting meets": (len(self._waiting), MAX_WAITING), **self._introductions.sizes()}

    # --- Introductions --------------------------------------------------------------------

    def greet(self, *peers: NodeId, now: float) -> list[Effect]:
        """Say for whom we act: the first word on every link."""
        if self._mandate is None:
            return []
        if self._mine is None or now >= self._renew_at:
            self._mine, self._renew_at = self._mandate(now), now + RENEW_S
        return [Send(peer, self._mine) for peer in peers]

    def remind(self, state: Part, sender: NodeId, message: AboutParts, now: float) -> list[Effect]:
        """Say it again to who turns us away: our first word may have been lost."""
        turned_away = type(message) is Bye and state.overlay.accepts(state.part, sender)
        refused = type(message) is Refused and state.overlay.follows(state.part, sender)
        return self.greet(sender, now=now) if turned_away or refused else []

    def introduced(self, peer: NodeId, introduction: Introduce, now: float) -> list[Effect]:
        """Take a peer's introduction; RemoteError if it does not hold."""
        self._links.strain(peer, now)
        if self._links.is_up(peer):
            self._introductions.take(peer, introduction, now)
        return []

    def user_of(self, peer: NodeId, now: float) -> NodeId | None:
        """Return for whom a peer acts, as it has proved; None: it has not."""
        return self._introductions.user(peer, now)

    def gone(self, peer: NodeId) -> None:
        """Forget a peer whose link has ended."""
        self._introductions.gone(peer)
        for key in [key for key in self._waiting if key[1] == peer]:
            del self._waiting[key]

    # --- Neighbours -----------------------------------------------------------------------

    def welcomes(self, part: StreamPart, peer: NodeId, now: float) -> bool:
        """Tell whether a peer may be our neighbour in a part."""
        return not self._unfit(part, (peer,), now)

    def is_neighbour(self, state: Part, peer: NodeId, now: float) -> bool:
        """Tell whether a peer was to be our neighbour, and may be."""
        accepted = state.overlay.accepts(state.part, peer)
        return accepted and self.welcomes(state.part, peer, now)

    def turn_away(self, state: Part, peer: NodeId, meet: Meet, now: float) -> list[Effect]:
        """Do not meet who may not be there; whose right may be just too new for us has to wait."""
        known = self._introductions.user(peer, now) is not None
        if self._permits is None or not known or not state.overlay.accepts(state.part, peer):
            return [Send(peer, Bye(state.part))]
        self._waiting[state.part, peer] = (meet, now)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return self._serve(self._permits.doubt(state.part.stream, now), now)

    def learned(self, state: Part, now: float) -> list[Effect]:
        """The registry has spoken: meet who may be met now, and part from who may not be."""
        effects = self.review(state, now)
        for key in [key for key in self._waiting if key[0] == state.part]:
            (meet, since), peer = self._waiting.pop(key), key[1]
            if not self.welcomes(state.part, peer, now):
                effects.append(Send(peer, Bye(state.part)))
                continue
            if meet.recent_ms:  # it asked for what was recent when it came
                recent_ms = min(MAX_RECENT_MS, meet.recent_ms + int((now - since) * 1000))
                meet = Meet(meet.part, meet.reply, recent_ms)
            effects += self._apply(state.overlay.receive(peer, meet, now), now)
        return effects

    def review(self, state: Part, now: float) -> list[Effect]:
        """Part from neighbours who may not be there any more, as if they had said goodbye."""
        effects: list[Effect] = []
        bye = Bye(state.part)
        neighbours = tuple(state.overlay.neighbours(state.part))
        for peer in self._unfit(state.part, neighbours, now):
            effects += [Notice(state.part, "neighbour-unpermitted", peer.hex()), Send(peer, bye)]
            effects += self._apply(state.overlay.receive(peer, bye, now), now)
        return effects

    def _unfit(self, part: StreamPart, peers: Sequence[NodeId], now: float) -> list[NodeId]:
        if self._permits is None or not peers or self._has_place(part.stream, PUBLIC, now):
            return []
        users = [(peer, self._introductions.user(peer, now)) for peer in peers]
        return [p for p, user in users if not user or not self._has_place(part.stream, user, now)]

    def _has_place(self, stream: str, user: NodeId, now: float) -> bool:
        assert self._permits is not None
        may = self._permits.may
        if may(stream, user, SUBSCRIBE, now) or may(stream, user, PUBLISH, now):
            return True
        return self._permits.stores(stream, user)

    # --- Time -----------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Let our neighbours be looked at again in a while."""
        if self._permits is not None and self._review_at is None:
            self._review_at = now + REVIEW_EVERY_S

    def wake(self, now: float) -> list[Effect]:
        """Renew our introduction when half of its time is over; look at our neighbours again."""
        effects: list[Effect] = []
        if self._mine is not None and now >= self._renew_at:
            effects += self.greet(*self._links.standing(), now=now)
        if self._review_at is not None and now >= self._review_at:
            self._review_at = now + REVIEW_EVERY_S if len(self._parts) else None
            for state in self._parts:
                effects += self.review(state, now)
        return effects
