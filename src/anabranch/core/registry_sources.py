"""Whom a reader of the registry asks: the writer while it answers, otherwise a stand-in.

At most two trackers are held at once. The writer is the network's first tracker; it is held
always. While it cannot be reached, or does not answer, one of the others is held beside it, and
the next when that one fails, and so on. Before the network has been read, the tracker that
the node found stands for all of them.
"""

from collections.abc import Sequence

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release, Sizes
from anabranch.core.messages import Contact
from anabranch.core.timers import Timers

DIAL_S = 3.0  # how long a tracker may take to be reached before another is tried
REST_S = 3.0  # how long one that could not be reached is not tried anew in another's stead
SLOW_S = 10.0  # how long a tracker that did not answer is passed over
MAX_HELD = 2


class Sources:
    """The trackers of a network as a reader sees them."""

    def __init__(self, found: Contact, me: NodeId | None = None) -> None:
        self._me = me
        self._found = found
        self._contacts: tuple[Contact, ...] = (found,)
        self._held: dict[NodeId, None] = {}  # first the writer
        self._up: dict[NodeId, None] = {}  # every link of ours, so bounded by those
        self._failed: dict[NodeId, None] = {}  # of the held: those that could not be reached
        self._timers: Timers[tuple[str, NodeId]] = Timers()  # dial, slow, rest

    @property
    def wakeup_at(self) -> float | None:
        """When a dial has taken too long, or a slow tracker is to be tried again."""
        return self._timers.next_at

    @property
    def writer(self) -> NodeId:
        """Who takes changes."""
        return self._contacts[0].node

    def is_up(self, tracker: NodeId) -> bool:
        """Tell whether a link to a tracker that we hold stands."""
        return tracker in self._held and tracker in self._up

    def current(self) -> NodeId | None:
        """Return whom to ask now; None while nobody can be asked."""
        if self._is_pending(self.writer):
            return None  # the stand-in may be behind: better a short wait than old news
        up = [tracker for tracker in self._held if tracker in self._up]
        quick = [tracker for tracker in up if ("slow", tracker) not in self._timers]
        return next(iter(quick or up), None)

    def start(self, now: float) -> list[Effect]:
        """Hold the tracker that was found."""
        return self._hold(self._found, now)

    def know(self, trackers: Sequence[Contact], now: float) -> list[Effect]:
        """Learn the network's trackers, of which the first is the writer."""
        found = self._found
        listed = [contact for contact in trackers if contact.node != self._me]
        # The address at which we found a tracker is known to work; the listed one may not.
        listed = [found if contact.node == found.node else contact for contact in listed]
        others = [contact for contact in listed[1:] if contact.node != found.node]
        if any(contact.node == found.node for contact in listed[1:]):
            others.insert(0, found)
        self._contacts = (*listed[:1], *others) or (found,)
        return self._arrange(now)

    def link(self, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        if up:
            self._up[peer] = None
            self._failed.pop(peer, None)
            self._timers.cancel(("slow", peer))
        else:
            self._up.pop(peer, None)
        if peer not in self._held:
            return []
        self._timers.cancel(("dial", peer))
        if not up:
            self._fail(peer, now)
        return self._arrange(now)

    def pass_over(self, tracker: NodeId, now: float) -> list[Effect]:
        """Ask somebody else for a while: this one did not answer."""
        if tracker in self._held:
            self._timers.set(("slow", tracker), now + SLOW_S)
            self._timers.set(("rest", tracker), now + REST_S)
        return self._arrange(now)

    def stop(self) -> list[Effect]:
        """Let go of everybody."""
        effects: list[Effect] = []
        for tracker in list(self._held):
            effects += self._release(tracker)
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Give up on dials that take too long, and try slow trackers again."""
        for kind, tracker in self._timers.pop_due(now):
            if kind == "dial":
                self._fail(tracker, now)
        return self._arrange(now)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {"held trackers": (len(self._held), MAX_HELD)}

    def _fail(self, tracker: NodeId, now: float) -> None:
        self._failed[tracker] = None
        self._timers.set(("rest", tracker), now + REST_S)

    def _is_pending(self, tracker: NodeId) -> bool:
        held = tracker in self._held
        return held and tracker not in self._up and tracker not in self._failed

    def _is_good(self, tracker: NodeId) -> bool:
        return tracker in self._up and ("slow", tracker) not in self._timers

    def _arrange(self, now: float) -> list[Effect]:
        """Hold the writer; hold a stand-in beside it exactly while the writer is no good."""
        effects: list[Effect] = []
        writer = self._contacts[0]
        if writer.node not in self._held:
            for tracker in [held for held in self._held if held in self._failed]:
                effects += self._release(tracker)
            for tracker in list(self._held)[1:]:
                effects += self._release(tracker)
            effects += self._hold(writer, now)
            self._held = {writer.node: None, **self._held}
        stand_ins = list(self._held)[1:]
        if self._is_good(writer.node):
            for tracker in stand_ins:
                effects += self._release(tracker)
        elif not self._is_pending(writer.node):
            effects += self._stand_in(stand_ins, now)
        return effects

    def _stand_in(self, held: list[NodeId], now: float) -> list[Effect]:
        if any(self._is_good(tracker) or self._is_pending(tracker) for tracker in held):
            return []
        for contact in self._contacts[1:]:
            if contact.node not in self._held and ("rest", contact.node) not in self._timers:
                released = [effect for tracker in held for effect in self._release(tracker)]
                return released + self._hold(contact, now)
        return []  # everybody failed a short while ago: the Peer dials this one again

    def _hold(self, contact: Contact, now: float) -> list[Effect]:
        self._held[contact.node] = None
        self._failed.pop(contact.node, None)
        if contact.node not in self._up:
            self._timers.set(("dial", contact.node), now + DIAL_S)
        return [Hold(contact.node, contact.address)]

    def _release(self, tracker: NodeId) -> list[Effect]:
        del self._held[tracker]
        self._failed.pop(tracker, None)
        self._timers.cancel(("dial", tracker))
        self._timers.cancel(("slow", tracker))
        return [Release(tracker)]
