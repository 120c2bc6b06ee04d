"""What a tracker knows of one stream part: its graph, its nodes, and what they are owed."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.messages import Report


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


Suitable = Callable[[NodeId, NodeId], bool]
MakeTopology = Callable[[int, random.Random, Suitable], Topology]


class TrackedNode(msgspec.Struct):
    """What the tracker knows of a node in one part."""

    counter: int
    address: str
    reported: tuple[NodeId, ...]
    rtts_us: tuple[int, ...] = ()
    instructed: tuple[NodeId, ...] | None = None  # the neighbours it was last told, sorted
    sent_at: float = 0.0  # when we instructed it; 0: never yet
    restarted_at: float = 0.0
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
        self.apart: dict[tuple[NodeId, NodeId], float] = {}
        self.graph = make(degree, rng, self.suitable)

    def suitable(self, a: NodeId, b: NodeId) -> bool:
        """Two nodes may be linked unless they could not connect a short while ago."""
        return not self.apart or pair(a, b) not in self.apart

    def awaits(self) -> bool:
        """Tell whether anybody is spoken of as a neighbour whom we have not heard yet."""
        nodes = self.nodes
        return any(peer not in nodes for node in nodes.values() for peer in node.reported)

    def reconcile(self, node: NodeId) -> None:
        """Let a node that left or restarted be tried again by everyone."""
        for apart in [apart for apart in self.apart if node in apart]:
            del self.apart[apart]


def pair(a: NodeId, b: NodeId) -> tuple[NodeId, NodeId]:
    """Name a link whichever end is named first."""
    return (a, b) if a < b else (b, a)


def dials(a: NodeId, known_a: TrackedNode, b: NodeId, known_b: TrackedNode) -> bool:
    """Of two neighbours the one with the lower name dials, unless only that one can be dialled."""
    if bool(known_a.address) == bool(known_b.address):
        return a < b
    return bool(known_b.address)
