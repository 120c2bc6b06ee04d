"""Trackers with disks and a clock, for tests of the machine that a tracker's process runs."""

import random
from collections import deque
from collections.abc import Iterable
from typing import Any

from anabranch.core import codec
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Connect,
    Disconnect,
    Effect,
    LinkDown,
    LinkUp,
    Received,
    Send,
    Store,
    Stored,
    Wakeup,
)
from anabranch.core.messages import Contact, WriteChange, Written
from anabranch.core.tracker_node import TrackerNode
from anabranch.overlays import TOPOLOGIES
from chains import NET, OWNER, WRITER, Disk, Writer
from machines import KEYS, START, beyond

Rows = list[tuple[str, int, bytes]]


class World:
    """Trackers with disks and a clock, linked by wires that lose nothing and keep the order."""

    def __init__(self) -> None:
        self.now = START
        self.nodes: dict[NodeId, Any] = {}
        self.disks: dict[NodeId, Disk] = {}
        self.wires: set[frozenset[NodeId]] = set()
        self.cut: set[NodeId] = set()  # who can be reached by nobody
        self.apart: set[frozenset[NodeId]] = set()  # pairs that cannot reach each other
        self.out: list[tuple[NodeId, Effect]] = []  # what trackers said to others, in order
        self._waiting: deque[tuple[NodeId, Any]] = deque()  # what is to happen to whom

    def add(self, me: NodeId, rows: Rows, follow: Contact | None = None) -> Any:
        rng = random.Random(me)
        node = TrackerNode(me, NET, KEYS.verify, rng, TOPOLOGIES, rows, follow)
        self.nodes[me] = node
        if me not in self.disks:
            self.disks[me] = Disk()
            self.disks[me].rows = list(rows)
        self.feed(me, Wakeup())
        return node

    def feed(self, me: NodeId, event: Any) -> None:
        """Let an event happen, and all that follows at once."""
        self.feed_all((me, event))

    def feed_all(self, *events: tuple[NodeId, Any]) -> None:
        """Let events happen before anything that follows from them."""
        self._waiting.extend(events)
        while self._waiting:
            me, event = self._waiting.popleft()
            if me not in self.nodes or self._is_lost(me, event):
                continue
            for effect in self.nodes[me].handle(event, self.now):
                self.perform(me, effect)
            assert beyond(self.nodes[me]) == {}

    def _is_lost(self, me: NodeId, event: Any) -> bool:
        return type(event) is Received and frozenset((me, event.sender)) not in self.wires

    def perform(self, me: NodeId, effect: Effect) -> None:
        """Carry out what a tracker wants; what is for nobody here is written down."""
        if type(effect) is Store:
            disk = self.disks[me]
            if not disk.problem:
                disk.rows.append((effect.chain, effect.sequence, effect.change))
            self._waiting.append((me, Stored(effect.token, disk.problem)))
        elif type(effect) is Send and effect.to in self.nodes:
            self._waiting.append((effect.to, Received(me, codec.encode(effect.message))))
        elif type(effect) is Connect:
            self.out.append((me, effect))
            self.dial(me, effect.peer)
        elif type(effect) is Disconnect:
            self.wires.discard(frozenset((me, effect.peer)))
            self.out.append((me, effect))
            self._waiting.append((effect.peer, LinkDown(me, effect.reason)))
        else:
            self.out.append((me, effect))

    def dial(self, me: NodeId, other: NodeId) -> None:
        wire = frozenset((me, other))
        if wire in self.wires:
            return
        if {me, other} & self.cut or wire in self.apart or other not in self.nodes:
            self._waiting.append((me, LinkDown(other, "refused")))
            return
        self.wires.add(wire)
        self._waiting.append((other, LinkUp(me)))
        self._waiting.append((me, LinkUp(other)))

    # --- Faults ---------------------------------------------------------------------------

    def isolate(self, node: NodeId) -> None:
        """Let nobody reach a tracker any more."""
        self.cut.add(node)
        self._break([wire for wire in self.wires if node in wire])

    def part(self, *groups: Iterable[NodeId]) -> None:
        """Let trackers of different groups not reach each other."""
        group = {node: at for at, nodes in enumerate(groups) for node in nodes}
        self.apart = {frozenset((a, b)) for a in group for b in group if group[a] != group[b]}
        self._break([wire for wire in self.wires if wire in self.apart])

    def heal(self) -> None:
        """Let everybody reach everybody again, and find out about it."""
        self.cut.clear()
        self.apart.clear()
        self.wait(7)

    def stop(self, node: NodeId) -> None:
        """End a tracker's process; its disk stays."""
        del self.nodes[node]
        self._break([wire for wire in self.wires if node in wire])

    def _break(self, wires: list[frozenset[NodeId]]) -> None:
        for wire in sorted(wires, key=sorted):
            self.wires.discard(wire)
            for end in sorted(wire):
                self.feed(end, LinkDown(next(iter(wire - {end})), "reset"))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = [(n.wakeup_at, me) for me, n in self.nodes.items() if n.wakeup_at is not None]
            if not due or min(due)[0] > until:
                self.now = until
                return
            at, me = min(due)
            self.now = max(self.now, at)
            self.feed(me, Wakeup())

    # --- Nodes that are no trackers -------------------------------------------------------

    def join(self, node: NodeId, *trackers: NodeId) -> None:
        """Link a node, which is no tracker, with trackers."""
        for tracker in trackers:
            wire = frozenset((node, tracker))
            if wire not in self.wires:
                self.wires.add(wire)
                self.feed(tracker, LinkUp(node))

    def say(self, node: NodeId, tracker: NodeId, message: Any) -> list[Any]:
        """Let a node speak; return what it is told meanwhile."""
        before = len(self.out)
        self.feed(tracker, Received(node, codec.encode(message)))
        return self.told(node, before)

    def told(self, node: NodeId, since: int = 0) -> list[Any]:
        sends = [effect for _, effect in self.out[since:] if type(effect) is Send]
        return [send.message for send in sends if send.to == node]

    def write(self, writer: Writer, action: Any, tracker: NodeId = WRITER) -> None:
        """Have the owner's change written, by whoever writes for this tracker."""
        self.join(OWNER.node, tracker)
        change = writer.next(action)
        answers = self.say(OWNER.node, tracker, WriteChange(1, change))
        writer.take(change)
        assert Written(1, writer.history.height) in answers
