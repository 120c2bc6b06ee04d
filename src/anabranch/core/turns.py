"""Whose question may go now: few are under way at once, and few of these at the same node.

Who looks something up for us says that it is busy when we ask for too much at once, and a link
that brings too many questions is cut (links.py). So those that are too many wait here, in turn,
and those for one node hold up none for another.
"""

from collections import deque
from typing import Generic, TypeVar

from anabranch.core.ids import NodeId
from anabranch.core.machine import Sizes
from anabranch.core.timers import Timers

MAX_UNDER_WAY = 64
MAX_PER_NODE = 6  # fewer than a storage node looks up for one peer (storage_resends.py)
PER_S = 150.0  # questions to one node; PATIENCE_PER_S of links.py is more,
MAX_AT_ONCE = 1_000  # and so many before that; PATIENCE is more

T = TypeVar("T")


class Turns(Generic[T]):
    """Things to be asked of nodes, in the order in which they may be."""

    def __init__(self) -> None:
        self._waiting: dict[NodeId, deque[T]] = {}  # bounded by those who ask: one each
        self._under_way: dict[NodeId, int] = {}
        self._sum = 0
        self._ready: dict[NodeId, None] = {}  # for which something waits, and has room
        self._paced: Timers[NodeId] = Timers()  # likewise, but not before a time
        self._paid: Timers[NodeId] = Timers()  # when all that was asked would have been due

    @property
    def has_turn(self) -> bool:
        """Whether somebody may have a turn now."""
        return bool(self._ready) and self._sum < MAX_UNDER_WAY

    @property
    def wakeup_at(self) -> float | None:
        """When somebody may have a turn who may not now."""
        return self._paced.next_at

    def wait(self, node: NodeId, thing: T) -> None:
        """Let something wait for its turn."""
        self._waiting.setdefault(node, deque()).append(thing)
        self._line_up(node)

    def take(self, now: float) -> T | None:
        """Return what has its turn, which is under way from now on; None if nothing has."""
        for node in self._paced.pop_due(now):
            self._ready[node] = None
        self._paid.pop_due(now)
        while self.has_turn:
            node = next(iter(self._ready))
            del self._ready[node]
            at = (self._paid.at(node) or now) - MAX_AT_ONCE / PER_S
            if at > now:
                self._paced.set(node, at)
                continue
            waiting = self._waiting[node]
            thing = waiting.popleft()
            if not waiting:
                del self._waiting[node]
            self._under_way[node] = self._under_way.get(node, 0) + 1
            self._sum += 1
            self._line_up(node)
            return thing
        return None

    def sent(self, node: NodeId, now: float) -> None:
        """Count a question that a node has got."""
        self._paid.set(node, max(self._paid.at(node) or now, now) + 1 / PER_S)

    def done(self, node: NodeId) -> None:
        """Something is under way no more."""
        self._sum -= 1
        self._under_way[node] -= 1
        if not self._under_way[node]:
            del self._under_way[node]
        self._line_up(node)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        most = max(self._under_way.values(), default=0)
        return {
            "resends asked": (self._sum, MAX_UNDER_WAY),
            "resends asked of one node": (most, MAX_PER_NODE),
        }

    def _line_up(self, node: NodeId) -> None:
        has_room = self._under_way.get(node, 0) < MAX_PER_NODE
        if node in self._waiting and has_room and node not in self._paced:
            self._ready[node] = None
