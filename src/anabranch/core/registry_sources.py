"""Whom a reader of the registry asks: a source and, so that it cannot lie alone, a witness.

The source is the first tracker of the network's list that is any good. The witness is one of the
others, and each minute the next of them, so that all are compared in time. The first tracker is
held always, since we return to it; while it is no good, two of the others are held. Before the
network has been read, the tracker that the node found stands for all of them.

A tracker that was found to hide changes is left for a while: it comes after all others. Only
where nobody else is there to be the witness it stays that, which does no harm. Otherwise a liar
who shows us a change, and keeps it from the honest trackers for long enough, would let us leave
them and be the only one whom we hear.
"""

import random
from collections.abc import Sequence

from anabranch.core.changes import MAX_NETWORK_TRACKERS
from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release, Sizes
from anabranch.core.messages import Contact
from anabranch.core.timers import Timers

DIAL_S = 3.0  # how long a tracker may take to be reached before another is tried
REST_S = 3.0  # how long one that could not be reached is not tried anew in another's stead
SLOW_S = 10.0  # how long a tracker that did not answer is passed over
TURN_S = 60.0  # about how long one tracker is the witness
LEFT_S = 60.0  # how long a tracker that was found out is left
MAX_READERS = 2
MAX_HELD = 3

DIAL, REST, SLOW, TURN, LEFT = "dial", "rest", "slow", "turn", "left"
_NOBODY = NodeId(b"")


class Sources:
    """The trackers of a network as a reader sees them."""

    def __init__(self, found: Contact, rng: random.Random, others: Sequence[Contact] = ()) -> None:
        """`others` were found, too: should the first be false, one of these need not be."""
        self.left: frozenset[NodeId] = frozenset()  # trackers that were found out a while ago
        self._found = {contact.node: contact for contact in (*reversed(others), found)}
        self._rng = rng
        self._contacts = tuple(reversed(self._found.values()))  # in the order of the list
        self._held: dict[NodeId, None] = {}
        self._up: dict[NodeId, float] = {}  # every link of ours, so bounded by those; since when
        self._came: dict[NodeId, float] = {}  # trackers: since when they may be expected to know
        self._failed: dict[NodeId, None] = {}  # of the held: those that could not be reached
        self._last: NodeId | None = None  # who was held last in its turn
        self._timers: Timers[tuple[str, NodeId]] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When a dial has taken too long, a turn ends, or a tracker is to be tried again."""
        return self._timers.next_at

    def holds(self, tracker: NodeId) -> bool:
        """Tell whether a tracker is one of those that we need a link to."""
        return tracker in self._held

    def readers(self) -> tuple[NodeId, ...]:
        """Return whom to ask now: the source, and the witness if there is one."""
        order = [contact.node for contact in self._order()]
        ranked = [tracker for tracker in order if tracker in self._held]
        ranked += [tracker for tracker in self._held if tracker not in order]
        up = [tracker for tracker in ranked if tracker in self._up]
        quick = [tracker for tracker in up if (SLOW, tracker) not in self._timers]
        return tuple(quick[:MAX_READERS] or up[:1])

    def came_at(self, tracker: NodeId) -> float:
        """Return since when a tracker has had the time to learn what others know.

        Its link to us is as old as its process, or older; but a tracker that lets its links end
        again and again has had that time all the same.
        """
        return self._came.get(tracker, 0.0)

    # --- What happens ---------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Hold the trackers that were found."""
        return self._arrange(now)

    def know(self, trackers: Sequence[Contact], now: float) -> list[Effect]:
        """Learn the network's trackers, in the order of its list."""
        # The address at which we found a tracker is known to work; the listed one may not.
        listed = tuple(self._found.get(contact.node, contact) for contact in trackers)
        self._contacts = listed or self._contacts
        nodes = [contact.node for contact in self._contacts]
        came = self._up | self._came
        self._came = {node: came[node] for node in nodes if node in came}
        for node in self.left.difference(nodes):
            self._timers.cancel((LEFT, node))
        self.left = self.left.intersection(nodes)
        return self._arrange(now)

    def link(self, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        if up:
            self._up[peer] = now
            self._failed.pop(peer, None)
            self._timers.cancel((SLOW, peer))
            known = any(contact.node == peer for contact in self._contacts)
            if known and now >= self._came.get(peer, -LEFT_S) + LEFT_S:
                self._came[peer] = now
        else:
            self._up.pop(peer, None)
        if peer not in self._held:
            return []
        self._timers.cancel((DIAL, peer))
        if not up:
            self._fail(peer, now)
        return self._arrange(now)

    def pass_over(self, tracker: NodeId, now: float) -> list[Effect]:
        """Ask somebody else for a while: this one did not answer."""
        if tracker in self._held:
            self._timers.set((SLOW, tracker), now + SLOW_S)
            self._timers.set((REST, tracker), now + REST_S)
        return self._arrange(now)

    def leave(self, tracker: NodeId, now: float) -> list[Effect]:
        """Turn to others: this one was found out."""
        self._timers.set((LEFT, tracker), now + LEFT_S)
        self.left |= {tracker}
        return self._arrange(now)

    def wake(self, now: float) -> list[Effect]:
        """Give up on dials that take too long, end turns, and try trackers again."""
        turned: list[Effect] = []
        for kind, tracker in self._timers.pop_due(now):
            if kind == DIAL:
                self._fail(tracker, now)
            elif kind == LEFT:
                self.left -= {tracker}
            elif kind == TURN:
                turned += self._turn(now)
        return turned + self._arrange(now)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "held trackers": (len(self._held), MAX_HELD),
            "left trackers": (len(self.left), MAX_NETWORK_TRACKERS),
        }

    # --- Whom to hold ---------------------------------------------------------------------

    def _order(self) -> list[Contact]:
        """All trackers, those that were left after the others."""
        return sorted(self._contacts, key=lambda contact: contact.node in self.left)

    def _pool(self) -> list[Contact]:
        """Those who take turns as the witness."""
        others = self._order()[1:]
        honest = [contact for contact in others if contact.node not in self.left]
        return honest if any(self._is_worth_trying(c.node) for c in honest) else others

    def _arrange(self, now: float) -> list[Effect]:
        """Hold the first, and beside it one other, or two while the first is no good."""
        first, pool = self._order()[0], self._pool()
        effects = self._dismiss(first, pool)
        if first.node not in self._held:
            effects += self._hold(first, now)
        places = 1 if self._is_good(first.node) or self._is_pending(first.node) else 2
        others = sorted(
            (tracker for tracker in self._held if tracker != first.node),
            key=lambda tracker: (not self._is_good(tracker), not self._is_pending(tracker)),
        )
        for at, tracker in enumerate(others):
            is_of_use = self._is_good(tracker) or self._is_pending(tracker)
            if at >= places:
                effects += self._release(tracker)
            elif not is_of_use and (contact := self._next(pool)) is not None:
                effects += self._release(tracker) + self._hold(contact, now)
        while len(self._held) - 1 < places and (contact := self._next(pool)) is not None:
            effects += self._hold(contact, now)
        if len(pool) > 1 and (TURN, _NOBODY) not in self._timers:
            self._timers.set((TURN, _NOBODY), now + TURN_S * (0.75 + 0.5 * self._rng.random()))
        return effects

    def _dismiss(self, first: Contact, pool: Sequence[Contact]) -> list[Effect]:
        """Let go of those who are neither the first nor in the pool, once one of these is up."""
        wanted = {first.node, *(contact.node for contact in pool)}
        if not any(self._is_good(tracker) for tracker in self._held if tracker in wanted):
            return []
        unwanted = [tracker for tracker in self._held if tracker not in wanted]
        return [effect for tracker in unwanted for effect in self._release(tracker)]

    def _turn(self, now: float) -> list[Effect]:
        """Let the next of the pool be the witness."""
        first, contact = self._order()[0].node, self._next(self._pool())
        others = [tracker for tracker in self._held if tracker != first]
        if contact is None or not others:
            return []
        return self._release(others[0]) + self._hold(contact, now)

    def _next(self, pool: Sequence[Contact]) -> Contact | None:
        """Return whose turn it is: at first anybody's, then the next who can be tried."""
        nodes = [contact.node for contact in pool]
        if nodes and self._last is None:
            self._last = self._rng.choice(nodes)
        start = nodes.index(self._last) + 1 if self._last in nodes else 0
        for contact in [*pool[start:], *pool[:start]]:
            if contact.node not in self._held and (REST, contact.node) not in self._timers:
                return contact
        return None

    def _is_worth_trying(self, tracker: NodeId) -> bool:
        return tracker not in self._failed and (REST, tracker) not in self._timers

    def _fail(self, tracker: NodeId, now: float) -> None:
        self._failed[tracker] = None
        self._timers.set((REST, tracker), now + REST_S)

    def _is_pending(self, tracker: NodeId) -> bool:
        return tracker not in self._up and tracker not in self._failed

    def _is_good(self, tracker: NodeId) -> bool:
        return tracker in self._up and (SLOW, tracker) not in self._timers

    def _hold(self, contact: Contact, now: float) -> list[Effect]:
        self._held[contact.node] = None
        if contact != self._order()[0]:
            self._last = contact.node
        self._failed.pop(contact.node, None)
        if contact.node not in self._up:
            self._timers.set((DIAL, contact.node), now + DIAL_S)
        return [Hold(contact.node, contact.address)]

    def _release(self, tracker: NodeId) -> list[Effect]:
        del self._held[tracker]
        self._failed.pop(tracker, None)
        self._timers.cancel((DIAL, tracker))
        self._timers.cancel((SLOW, tracker))
        return [Release(tracker)]
