"""Watches a run: safety at every step, liveness at the end.

Safety: nothing is delivered twice in one life of a node; nothing is delivered that was not
published and signed, byte for byte; nothing is delivered to a node that did not subscribe, and
in a noiseless overlay nothing reaches it either; no bound is exceeded; every draft has at most
one outcome, and where that is `sent` another node has the message. Liveness: once the faults
stop, degrees return to d and every live subscriber gets every later message.
"""

from collections import Counter

from anabranch.core import codec, frames
from anabranch.core.errors import RemoteError
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart, part_key, show
from anabranch.core.machine import Notice, Outcome, Received
from anabranch.core.messages import Control
from anabranch.core.publishing import SENT
from anabranch.overlays import OVERLAYS
from anabranch.sim.calm_checker import CalmChecker
from anabranch.sim.cluster import Cluster
from anabranch.sim.network import Observer, SimNode

MAX_VIOLATIONS = 20

Name = tuple[ChainKey, int]  # of a frame: its chain and the number of its last message
Reach = dict[PartKey, dict[NodeId, dict[NodeId, None]]]  # per part: whom a node reaches


class Checker(Observer):
    """Keeps the books of a run and writes down what may not be."""

    def __init__(self, cluster: Cluster, overlay: str) -> None:
        self.violations: list[str] = []
        self.frames: dict[Name, tuple[bytes, float, NodeId, PartKey]] = {}
        self.has: dict[NodeId, dict[Name, None]] = {node.id: {} for node in cluster.peers}
        self.delays_ms: list[float] = []
        self.hops: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.strict_noise = False  # packets may still be under way to one who has just left
        self.received = 0
        self.calm: CalmChecker | None = None  # of a run without faults
        self._cluster = cluster
        self._noiseless = OVERLAYS[overlay].noiseless
        self._members: dict[tuple[NodeId, PartKey], bool] = {}  # value: whether it subscribes
        self._tickets: dict[int, None] = {}
        self._numbered: dict[tuple[NodeId, int], list[Name]] = {}  # by publisher and message
        self._arrived: dict[Name, None] = {}  # what some other node has

    # --- What the scenario says -----------------------------------------------------------

    def joined(self, node: SimNode, part: StreamPart, subscribes: bool) -> None:
        """A node becomes a member."""
        self._members[node.id, part_key(part)] = subscribes

    def left(self, node: SimNode, part: StreamPart) -> None:
        """A node is a member no more."""
        self._members.pop((node.id, part_key(part)), None)

    def died(self, node: SimNode) -> None:
        """A node's next life begins with nothing delivered."""
        self.has[node.id] = {}

    # --- What the simulator shows ---------------------------------------------------------

    def published(self, node: SimNode, head: FrameHead, frame: bytes, now: float) -> None:
        """Enter a frame into the books."""
        if self.calm is not None:
            self.calm.published(head, now)
        self.frames[head.chain, head.last] = (frame, now, node.id, head.part)
        for number in range(head.first, head.last + 1):
            self._numbered.setdefault((node.id, number), []).append((head.chain, head.last))

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        """Hold a delivery against the books."""
        name = (head.chain, head.last)
        entry = self.frames.get(name)
        if entry is None or entry[0] != frame:
            self.complain(f"{show(node.id)} delivered what nobody published")
        elif entry[2] != node.id:
            self.delays_ms.append(delay_s * 1000)
            self.hops.append(hops)
        if name in self.has[node.id]:
            self.complain(f"{show(node.id)} delivered {name[1]} twice")
        if not self._members.get((node.id, head.part), False):
            self.complain(f"{show(node.id)} delivered without a subscription")
        try:
            self._open(frame)
        except RemoteError as error:
            self.complain(f"{show(node.id)} delivered a frame that does not open: {error}")
        self.has[node.id][name] = None

    def packet(self, node: SimNode, event: Received, now: float) -> None:
        """Hold a packet against the membership."""
        self.received += 1
        if not (self.strict_noise and self._noiseless):
            return
        try:
            head = frames.peek(event.data, codec.frame_start(event.data))
        except RemoteError:
            return  # garbage from a peer that misbehaves is nobody's message
        if head.part in self._parts() and (node.id, head.part) not in self._members:
            self.complain(f"{show(node.id)} received data of a part it is not in")

    def accepted(self, node: SimNode, head: FrameHead) -> None:
        """Note that a frame has come to somebody."""
        name = (head.chain, head.last)
        if name not in self._arrived and name in self.frames and self.frames[name][2] != node.id:
            self._arrived[name] = None

    def outcome(self, node: SimNode, outcome: Outcome, now: float) -> None:
        """Count what became of drafts; what was sent must be somewhere."""
        self.outcomes[outcome.result] += 1
        if outcome.result == SENT:
            # Messages of one moment in several parts have the same number: one of them is meant.
            names = self._numbered.get((node.id, outcome.number), [])
            if not any(name in self._arrived for name in names):
                self.complain(f"{show(node.id)} calls {outcome.number} sent, and nobody has it")
        if outcome.ticket in self._tickets:
            self.complain(f"draft {outcome.ticket} has two outcomes")
        self._tickets[outcome.ticket] = None

    # --- Of a run without faults ----------------------------------------------------------

    def watch_calm(self) -> None:
        """Let every repair be a violation, since nothing is lost in this run."""
        self.calm = CalmChecker(self._cluster, self.complain)

    def sent(self, node: SimNode, to: NodeId, message: Control) -> None:
        """Show a control message to the checker of calm runs."""
        if self.calm is not None:
            self.calm.sent(node.id, to, message)

    def forwarded(self, node: SimNode, peers: list[NodeId], head: FrameHead) -> None:
        """Show it a frame that leaves."""
        if self.calm is not None:
            self.calm.forwarded(node.id, peers, head)

    def verified(self, node: NodeId, publisher: NodeId, digest: bytes, signature: bytes) -> None:
        """Show it a signature that is verified."""
        if self.calm is not None:
            self.calm.verified(node, publisher, digest, signature)

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        """Show it a notice."""
        if self.calm is not None:
            self.calm.noticed(node.id, notice)

    # --- What is asked at the end ---------------------------------------------------------

    def bounds(self) -> None:
        """Hold every bounded table of every machine against its bound."""
        if self.calm is not None:
            self.calm.look(self._cluster.sim.now)
        for node in [*self._cluster.peers, *self._cluster.trackers]:
            if node.alive:
                for name, (size, bound) in node.machine.sizes().items():
                    if size > bound:
                        self.complain(f"{show(node.id)} has {size} {name}, bound {bound}")

    def degrees(self, part: StreamPart, members: list[SimNode]) -> None:
        """Every member has its d neighbours, or all the others; and neighbours are mutual.

        A node that is placed last after faults may have fewer, but has some.
        """
        degree = min(self._cluster.degree_of(part), len(members) - 1)
        ids = {node.id: node for node in members}
        # In an odd number of nodes one odd degree must fall short by one.
        last = self._cluster.placed_last(part)
        short = len(members) > degree and (len(members) * degree % 2 or len(last) > 0)
        for node in members:
            neighbours = self._cluster.neighbours(node, part)
            for peer in neighbours:
                if peer not in ids:
                    self.complain(f"{show(node.id)} has a neighbour that is no member")
                elif node.id not in self._cluster.neighbours(ids[peer], part):
                    self.complain(f"{show(node.id)} and {show(peer)} disagree on their link")
            if node.id in last and neighbours:
                continue
            if len(neighbours) == degree - 1 and short:
                short = 0
            elif len(neighbours) != degree:
                self.complain(f"{show(node.id)} has {len(neighbours)} neighbours of {degree}")

    def mute(self, names: list[Name], members: dict[StreamPart, list[SimNode]]) -> list[str]:
        """Say who could not publish: of the frames with these names, it made none."""
        made = {(self.frames[name][2], self.frames[name][3]) for name in names}
        return [
            f"{show(node.id)} could not publish to {part}"
            for part, nodes in members.items()
            for node in nodes
            if self._publishes(node, part) and (node.id, part_key(part)) not in made
        ]

    def missing(self, names: list[Name], reach: Reach) -> list[str]:
        """Say which subscribers lack which of these frames, though they could be reached."""
        lacking: list[str] = []
        for name in names:
            _, _, publisher, part = self.frames[name]
            for node in reach[part].get(publisher, ()):
                if self._expects(node, part) and name not in self.has[node]:
                    lacking.append(f"{show(node)} never got {name[1]} of {show(publisher)}")
        return lacking

    def figures(self) -> dict[str, int]:
        """Return what is counted beside what every run counts."""
        return {}

    def settled(self) -> None:
        """Look at what has become of everybody's beliefs: here there are none."""

    def ended(self) -> None:
        """Look at the whole run once it is over."""

    def _publishes(self, node: SimNode, part: StreamPart) -> bool:
        return True

    def _expects(self, node: NodeId, part: PartKey) -> bool:
        """Tell whether a node is to get what is published in a part."""
        return self._members[node, part]

    def _open(self, frame: bytes) -> list[frames.Message]:
        return frames.messages(frame)

    def _parts(self) -> list[PartKey]:
        return [part_key(part) for part in self._cluster.parts]

    def complain(self, text: str) -> None:
        """Write down what may not be."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(f"{self._cluster.sim.now:.3f} {text}")


def reachable(
    cluster: Cluster, part: StreamPart, honest: list[SimNode]
) -> dict[NodeId, dict[NodeId, None]]:
    """Return, for each honest node, the honest nodes it reaches over honest ones."""
    ids = {node.id: node for node in honest}
    components: dict[NodeId, dict[NodeId, None]] = {}
    for start in ids:
        if start in components:
            continue
        found: dict[NodeId, None] = {start: None}
        todo = [start]
        while todo:
            node = todo.pop()
            for peer in cluster.neighbours(ids[node], part):
                if peer in found or peer not in ids:
                    continue
                if node in cluster.neighbours(ids[peer], part):  # data flows once both say so
                    found[peer] = None
                    todo.append(peer)
        for node in found:
            components[node] = found
    return components
