"""What a tracker knows of one stream part: its graph, its nodes, and what they are owed."""

import random
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from anabranch.core.disputes import Disputes
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Sizes
from anabranch.core.messages import Contact, Instruction, Probe, Report

RETURNS = 3  # how often a node may leave and be back at once,
RETURNS_FOR_S = 10.0  # within this time: every time costs others neighbours
MAX_LEFT = 10_000  # per part
REJECTED_TIMES = 2  # its degree: users that a node may reject and still not be left alone
GATHER_S = 2.0  # after a restart: how long links are taken over before any are added
LEAP = 1 << 20  # more instructions than another tracker can have under way to one node


class Topology(Protocol):
    """The graph of one part: every change returns the nodes whose neighbours changed."""

    def join(self, node: NodeId) -> list[NodeId]:
        """Add a node and give it neighbours."""

    def leave(self, node: NodeId) -> list[NodeId]:
        """Remove a node and close the gap."""

    def cut(self, a: NodeId, b: NodeId) -> list[NodeId]:
        """Part two that could not connect, and find others for them."""

    def add(self, node: NodeId) -> None:
        """Add a node and no links."""

    def adopt(self, a: NodeId, b: NodeId) -> bool:
        """Take over a link as it stands."""

    def complete(self) -> list[NodeId]:
        """Fill what slots are open."""

    def mend(self) -> list[NodeId]:
        """Join what has come apart."""

    def neighbours(self, node: NodeId) -> Sequence[NodeId]:
        """Return a node's neighbours."""


class Improvement(NamedTuple):
    """What a round of improvement comes to: who is to be told, who measures whom, and when next."""

    changed: list[NodeId]
    probes: list[tuple[NodeId, NodeId]]
    every_s: float


@runtime_checkable
class Improving(Topology, Protocol):
    """A graph that improves by what its nodes measure."""

    def heard(self, node: NodeId, peer: NodeId, rtt_us: int, now: float) -> None:
        """Take a node's word for the round trip to a neighbour; 0 says that it has none."""

    def probed(self, node: NodeId, peer: NodeId, rtt_us: int, now: float) -> None:
        """Take the answer to a probe."""

    def improve(self, ready: Callable[[NodeId], bool], now: float) -> Improvement:
        """Change some links of nodes that are ready for it."""


class Order(Protocol):
    """The order in which a graph serves its nodes, where it may choose."""

    def waits(self, node: NodeId) -> bool:
        """Tell whether a node's unused slots stay empty for now."""

    def user(self, node: NodeId) -> Hashable:
        """Return the user of a node: of equal candidates a new user comes first."""


Suitable = Callable[[NodeId, NodeId], bool]
MakeTopology = Callable[[int, random.Random, Suitable, Order], Topology]


class Tally(msgspec.Struct):
    """How often something has happened within a while."""

    times: int = 0
    since: float = 0.0

    def within(self, seconds: float, now: float) -> int:
        """Return how often; after that many seconds the count begins anew."""
        if now >= self.since + seconds:
            self.times, self.since = 0, now
        return self.times

    def again(self, seconds: float, now: float) -> int:
        """Count once more."""
        self.times = self.within(seconds, now) + 1
        return self.times


class TrackedNode(msgspec.Struct):
    """What the tracker knows of a node in one part."""

    counter: int
    address: str
    user: NodeId
    reported: tuple[NodeId, ...]
    rtts_us: tuple[int, ...] = ()
    instructed: tuple[NodeId, ...] | None = None  # the neighbours it was last told, sorted
    sent_at: float = 0.0  # when we instructed it; 0: never yet
    dialable: bool = True  # whether others can dial it, as far as it knows
    restarted_at: float = 0.0
    moved_at: float = 0.0  # when it last had another address
    restarts: Tally = msgspec.field(default_factory=Tally)
    complaints: Tally = msgspec.field(default_factory=Tally)  # neighbours it could not reach
    heard_at: float = 0.0  # when its last status came
    report: Report | None = None  # its own account of the part, for people to look at
    report_at: float = 0.0


class TrackedPart:
    """One overlay: its graph, its nodes, and what is still to be said to them."""

    def __init__(self, part: StreamPart, degree: int, rng: random.Random, make: MakeTopology):
        self.part = part
        self.degree = degree
        self.began_at = 0.0
        self.nodes: dict[NodeId, TrackedNode] = {}
        self.owed: dict[NodeId, None] = {}  # an instruction, in the order of the changes
        self.first_change_at: float | None = None
        self.gathering = False
        self.disputes = Disputes()
        self._left: dict[NodeId, Tally] = {}
        self._make = make
        self.graph = make(degree, rng, self.suitable, self)

    @property
    def improving(self) -> Improving | None:
        """The graph, if it is one that improves."""
        return self.graph if isinstance(self.graph, Improving) else None

    def resize(self, degree: int, rng: random.Random) -> list[NodeId]:
        """Begin a graph of another degree, with all nodes; return whom to tell."""
        self.degree = degree
        self.disputes.stop_waiting()
        self.graph = self._make(degree, rng, self.suitable, self)
        for node in self.nodes:
            self.graph.join(node)
        return list(self.nodes)

    def suitable(self, a: NodeId, b: NodeId) -> bool:
        """Tell whether two nodes may be linked: one can be dialled, and they are not set apart."""
        return self.can_connect(a, b) and not self.disputes.are_apart(a, b)

    def can_connect(self, a: NodeId, b: NodeId) -> bool:
        """Tell whether one of two nodes can dial the other."""
        known_a, known_b = self.nodes.get(a), self.nodes.get(b)
        return known_a is None or known_b is None or known_a.dialable or known_b.dialable

    def waits(self, node: NodeId) -> bool:
        """A node that is in dispute with many users is placed last.

        One that has no neighbours at all gets some, unless it has rejected very many.
        """
        if not self.disputes.waits(node):
            return False
        few = self.disputes.users(node) <= REJECTED_TIMES * self.degree
        return not few or bool(self.graph.neighbours(node))

    def user(self, node: NodeId) -> NodeId:
        """Return the user of a node, or the node itself if its user is unknown."""
        return self.nodes[node].user

    def topology(self) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return every node with the neighbours it should have, all sorted."""
        return {node: tuple(sorted(self.graph.neighbours(node))) for node in sorted(self.nodes)}

    def rtts_us(self) -> dict[tuple[NodeId, NodeId], int]:
        """Return the round trips that the nodes reported, per reporting node."""
        return {
            (node, peer): rtt
            for node, known in self.nodes.items()
            for peer, rtt in zip(known.reported, known.rtts_us, strict=False)
            if rtt
        }

    def awaits(self) -> bool:
        """Tell whether anybody is spoken of as a neighbour whom we have not heard yet."""
        nodes = self.nodes
        return any(peer not in nodes for node in nodes.values() for peer in node.reported)

    def note_leaving(self, node: NodeId, now: float) -> None:
        """Count how often a node has left within a short time."""
        tally = self._left.pop(node, None) or Tally()
        tally.again(RETURNS_FOR_S, now)
        self._left[node] = tally
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    def may_return(self, node: NodeId, now: float) -> bool:
        """Tell whether a node may come back: not if it comes and goes all the time.

        Where everybody is everybody's neighbour it costs nobody another one.
        """
        if len(self.nodes) <= self.degree:
            return True
        tally = self._left.get(node)
        return tally is None or tally.within(RETURNS_FOR_S, now) <= RETURNS

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            **self.disputes.sizes(),
            "nodes that left": (len(self._left), MAX_LEFT),
        }

    def take_over(self, node: NodeId) -> list[NodeId]:
        """Add a node that was here before, with the links that both ends report."""
        self.graph.add(node)
        changed = []
        for peer in self.nodes[node].reported:
            is_reported = peer in self.nodes and self.is_reported(node, peer)
            if is_reported and self.graph.adopt(node, peer):
                changed.append(peer)  # it may have been told otherwise since
        return changed

    def move(self, node: NodeId, address: str, dialable: bool, now: float) -> list[NodeId]:
        """Note a node's new address; return whom to tell: all, if who dials changes with it."""
        known = self.nodes[node]
        before = known.dialable, bool(known.address)
        known.address, known.dialable, known.moved_at = address, dialable, now
        changed = self._part_undialable(node)
        peers = self.graph.neighbours(node)
        if before == (dialable, bool(address)):
            return changed + [p for p in peers if dials(p, self.nodes[p], node, known)]
        return [*changed, node, *peers]

    def _part_undialable(self, node: NodeId) -> list[NodeId]:
        """Part a node from the neighbours that it cannot reach; links that stand are kept."""
        changed: list[NodeId] = []
        for peer in self.graph.neighbours(node):
            if not self.can_connect(node, peer) and not self.is_reported(node, peer):
                changed += self.graph.cut(node, peer)
        return [each for each in changed if each in self.nodes]

    def is_reported(self, a: NodeId, b: NodeId) -> bool:
        """Tell whether both ends of a link report it; the word of one does not count."""
        return b in self.nodes[a].reported and a in self.nodes[b].reported

    def dispute(self, a: NodeId, b: NodeId, now: float) -> list[NodeId]:
        """Part two nodes of which one reports no link; return the nodes whose neighbours change."""
        disputes = self.disputes
        disputes.record((a, self.user(a)), (b, self.user(b)), now)
        for node in (a, b):
            disputes.judge(node, len(self.nodes), now)
        return self.graph.cut(a, b)

    def separate(self, a: NodeId, b: NodeId, now: float) -> list[NodeId]:
        """Part two nodes that could not connect and are not in dispute."""
        self.disputes.set_apart(a, b, now)
        return self.graph.cut(a, b)

    def learn(self, node: NodeId, now: float) -> None:
        """Let the graph know the round trips that a node has just reported."""
        improving, known = self.improving, self.nodes[node]
        if improving is not None:
            for peer, rtt_us in zip(known.reported, known.rtts_us, strict=False):
                if rtt_us:
                    improving.heard(node, peer, rtt_us, now)

    def is_settled(self, node: NodeId) -> bool:
        """Tell whether a node has done all it was told, and nothing is owed to it."""
        known = self.nodes[node]
        return node not in self.owed and tuple(sorted(known.reported)) == known.instructed

    def improve(self, now: float) -> tuple[Improvement, list[tuple[NodeId, Probe]]]:
        """Let the graph improve by a round; return that, and who is to measure whom."""
        improving = self.improving
        assert improving is not None
        if self.gathering:
            return Improvement([], [], GATHER_S), []
        done = improving.improve(self.is_settled, now)
        return done, [probe for a, b in done.probes for probe in self._probe(a, b)]

    def _probe(self, a: NodeId, b: NodeId) -> list[tuple[NodeId, Probe]]:
        """Let two nodes measure their round trip: one dials, and both tell."""
        if not dials(a, self.nodes[a], b, self.nodes[b]):
            a, b = b, a
        dialled = Contact(b, self.nodes[b].address)
        return [(b, Probe(self.part, (), (a,))), (a, Probe(self.part, (dialled,)))]

    def instruct(self, now: float) -> list[tuple[NodeId, Instruction]]:
        """Return what is owed, under new counters; who need not change is told nothing."""
        owed, self.owed = self.owed, {}
        told: list[tuple[NodeId, Instruction]] = []
        for node in owed:
            known = self.nodes.get(node)
            if known is None:
                continue
            neighbours = tuple(sorted(self.graph.neighbours(node)))
            if neighbours == known.instructed:
                continue
            # One whom somebody else instructed may be at work on more than it has reported.
            known.counter += 1 if known.sent_at or not known.counter else LEAP
            known.instructed = neighbours
            known.sent_at = now
            told.append((node, self._instruction(node, known, neighbours)))
        return told

    def _instruction(
        self, node: NodeId, known: TrackedNode, neighbours: Sequence[NodeId]
    ) -> Instruction:
        """Say which neighbours to dial and which to accept."""
        dialled = [p for p in neighbours if dials(node, known, p, self.nodes[p])]
        connect = tuple(Contact(p, self.nodes[p].address) for p in dialled)
        accept = tuple(p for p in neighbours if p not in dialled)
        return Instruction(self.part, known.counter, connect, accept)


def dials(a: NodeId, known_a: TrackedNode, b: NodeId, known_b: TrackedNode) -> bool:
    """Of two neighbours the one with the lower name dials, unless only that one can be dialled."""
    if known_a.dialable != known_b.dialable:
        return known_b.dialable
    if bool(known_a.address) == bool(known_b.address):
        return a < b
    return bool(known_b.address)
