"""Disputes of one stream part: pairs of nodes of which one end reports that no link stands.

The tracker cannot know which end is right, so both are treated alike. A pair in dispute is set
apart for a while, and the tracker chooses other neighbours for both. A node that is in dispute with
many users, both in number and compared with the other nodes of the part, is placed last: its unused
slots stay empty for a time that doubles with every further user. So a node that rejects its
neighbours to be given nearer ones has fewer neighbours instead, while each of the nodes that it
rejects is in dispute with a single user. A restart does not end the disputes of a node, because it
costs a liar nothing; but no node is in dispute with one that is gone. A node that turns out to be
undialable is excused, since that explains its disputes; once an hour, or a liar could close its
port now and then.
"""

from anabranch.core.ids import NodeId
from anabranch.core.machine import Sizes

APART_S = 20.0  # how long a pair in dispute is set apart
REMEMBERED_S = 3600.0  # how long a dispute counts
MANY_USERS = 2  # in dispute with a node before it can be placed last
MANY_TIMES = 2.0  # the mean number of users in dispute with a node of the part
WAIT_FIRST_S = 300.0  # how long the slots of a node that is placed last stay empty at first,
WAIT_MOST_S = 1800.0  # and at most
MAX_APART = 10_000  # pairs, per part
MAX_DISPUTES = 20_000  # per part
MAX_EXCUSED = 1_000  # per part


class Disputes:
    """The pairs that are set apart, the users in dispute with each node, and nodes that wait."""

    def __init__(self) -> None:
        self.apart: dict[tuple[NodeId, NodeId], float] = {}
        # By the two ends, once for each: since when, and the user of the second; oldest first.
        self._counted: dict[tuple[NodeId, NodeId], tuple[float, NodeId]] = {}
        self._users: dict[NodeId, dict[NodeId, int]] = {}  # of a node: disputes with each user
        self._with: dict[NodeId, dict[NodeId, None]] = {}  # nodes that are in dispute with a node
        self._waiting: dict[NodeId, float] = {}  # nodes that are placed last, and until when
        self._excused: dict[NodeId, float] = {}  # nodes, and until when they are not again

    def are_apart(self, a: NodeId, b: NodeId) -> bool:
        """Tell whether a pair is set apart."""
        return bool(self.apart) and pair(a, b) in self.apart

    def waits(self, node: NodeId) -> bool:
        """Tell whether a node is placed last, so that its unused slots stay empty for now."""
        return node in self._waiting

    def users(self, node: NodeId) -> int:
        """Return how many users are in dispute with a node."""
        return len(self._users.get(node, ()))

    def set_apart(self, a: NodeId, b: NodeId, now: float) -> None:
        """Set a pair apart for a while, although it is not in dispute."""
        ends = pair(a, b)
        self.apart.pop(ends, None)
        self.apart[ends] = now + APART_S
        if len(self.apart) > MAX_APART:
            del self.apart[next(iter(self.apart))]

    def record(self, a: tuple[NodeId, NodeId], b: tuple[NodeId, NodeId], now: float) -> None:
        """Record a dispute between two ends, each a node and its user, and set the pair apart."""
        self.set_apart(a[0], b[0], now)
        self._count(a[0], b[0], b[1], now)
        self._count(b[0], a[0], a[1], now)

    def judge(self, node: NodeId, nodes: int, now: float) -> float | None:
        """Place a node last if it is in dispute with many users; return until when, or None."""
        users = self.users(node)
        if users < MANY_USERS:
            return None
        mean = sum(map(len, self._users.values())) / nodes
        if users <= MANY_TIMES * mean:
            return None
        doubled = min(users - MANY_USERS, 16)
        until = now + min(WAIT_MOST_S, WAIT_FIRST_S * 2**doubled)
        self._waiting[node] = max(until, self._waiting.get(node, until))
        return self._waiting[node]

    def forgive(self, now: float) -> None:
        """Let pairs be linked again and nodes be placed again whose time is over."""
        while self.apart and (ends := next(iter(self.apart))) and self.apart[ends] <= now:
            del self.apart[ends]
        self._waiting = {node: until for node, until in self._waiting.items() if until > now}
        self._excused = {node: until for node, until in self._excused.items() if until > now}
        while self._counted and (oldest := next(iter(self._counted))):
            if self._counted[oldest][0] + REMEMBERED_S > now:
                break
            self._forget(oldest)

    def annul(self, node: NodeId) -> None:
        """Count no disputes of others with a node that left, restarted or fell silent.

        It may have been gone when they reported that they had no link with it. Disputes of the node
        itself stay, or it could return to be rid of them.
        """
        for ends in [ends for ends in self.apart if node in ends]:
            del self.apart[ends]
        for other in list(self._with.get(node, ())):
            self._end((other, node))

    def excuse(self, node: NodeId, now: float) -> bool:
        """End the disputes of a node that has proved to be undialable; once in a while only."""
        if self._excused.get(node, now) > now or not self.users(node):
            return False
        self._excused.pop(node, None)
        self._excused[node] = now + REMEMBERED_S
        if len(self._excused) > MAX_EXCUSED:
            del self._excused[next(iter(self._excused))]
        for ends in [ends for ends in self._counted if node in ends]:
            self._end(ends)
        return True

    def end_since(self, node: NodeId, since: float) -> None:
        """End the disputes of a node that began when it had fallen silent already."""
        for ends in [
            ends for ends, (at, _) in self._counted.items() if node in ends and at > since
        ]:
            self._end(ends)

    def stop_waiting(self) -> None:
        """Place every node again, because all of them get new neighbours."""
        self._waiting.clear()

    @property
    def due_at(self) -> float | None:
        """When the next pair or node is forgiven."""
        times = [*self._waiting.values()]
        if self.apart:
            times.append(next(iter(self.apart.values())))
        return min(times, default=None)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "pairs apart": (len(self.apart), MAX_APART),
            "disputes": (len(self._counted), MAX_DISPUTES),
            "nodes placed last": (len(self._waiting), MAX_DISPUTES),
            "excused nodes": (len(self._excused), MAX_EXCUSED),
        }

    def _count(self, node: NodeId, other: NodeId, user: NodeId, now: float) -> None:
        if (node, other) in self._counted:
            self._forget((node, other))
        self._counted[node, other] = now, user
        users = self._users.setdefault(node, {})
        users[user] = users.get(user, 0) + 1
        self._with.setdefault(other, {})[node] = None
        if len(self._counted) > MAX_DISPUTES:
            self._forget(next(iter(self._counted)))

    def _end(self, ends: tuple[NodeId, NodeId]) -> None:
        """End a dispute that was none; its first end may be placed again."""
        self._forget(ends)
        if self.users(ends[0]) < MANY_USERS:
            self._waiting.pop(ends[0], None)

    def _forget(self, ends: tuple[NodeId, NodeId]) -> None:
        node, other = ends
        _, user = self._counted.pop(ends)
        users, nodes = self._users[node], self._with[other]
        users[user] -= 1
        if not users[user]:
            del users[user]
        if not users:
            del self._users[node]
        del nodes[node]
        if not nodes:
            del self._with[other]


def pair(a: NodeId, b: NodeId) -> tuple[NodeId, NodeId]:
    """Return the name of a link, which does not depend on the order of its ends."""
    return (a, b) if a < b else (b, a)
