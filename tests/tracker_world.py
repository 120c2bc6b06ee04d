"""Trackers with disks and a clock, for tests of the machine that a tracker's process runs."""

import random
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
    Wakeup,
)
from anabranch.core.messages import Contact, WriteChange, Written
from anabranch.core.tracker_node import TrackerNode
from anabranch.overlays.regular_graph import RegularGraph
from chains import NET, OWNER, WRITER, Disk, Writer
from machines import KEYS, START, beyond

Rows = list[tuple[str, int, bytes]]


class World:
    """Trackers with disks and a clock, linked by wires that lose nothing."""

    def __init__(self) -> None:
        self.now = START
        self.nodes: dict[NodeId, Any] = {}
        self.disks: dict[NodeId, Disk] = {}
        self.wires: set[frozenset[NodeId]] = set()
        self.cut: set[NodeId] = set()  # who can be reached by nobody
        self.out: list[tuple[NodeId, Effect]] = []  # what trackers said to others, in order

    def add(self, me: NodeId, rows: Rows, follow: Contact | None = None) -> Any:
        rng = random.Random(me)
        node = TrackerNode(me, NET, KEYS.verify, rng, RegularGraph[NodeId], rows, follow)
        self.nodes[me] = node
        self.disks.setdefault(me, Disk())
        self.feed(me, Wakeup())
        return node

    def feed(self, me: NodeId, event: Any) -> None:
        """Let an event happen, and all that follows at once."""
        node, disk = self.nodes[me], self.disks[me]
        effects = node.handle(event, self.now)
        for effect in disk.settle(effects, lambda e: node.handle(e, self.now)):
            self.perform(me, effect)
        assert beyond(node) == {}

    def perform(self, me: NodeId, effect: Effect) -> None:
        """Carry out what a tracker wants; what is for nobody here is written down."""
        if type(effect) is Send and effect.to in self.nodes:
            if frozenset((me, effect.to)) in self.wires:
                self.feed(effect.to, Received(me, codec.encode(effect.message)))
        elif type(effect) is Connect and effect.peer in self.nodes:
            self.dial(me, effect.peer)
        elif type(effect) is Disconnect:
            self.wires.discard(frozenset((me, effect.peer)))
            self.out.append((me, effect))
            if effect.peer in self.nodes:
                self.feed(effect.peer, LinkDown(me, effect.reason))
        else:
            self.out.append((me, effect))

    def dial(self, me: NodeId, other: NodeId) -> None:
        if {me, other} & self.cut:
            self.feed(me, LinkDown(other, "refused"))
            return
        self.wires.add(frozenset((me, other)))
        self.feed(other, LinkUp(me))
        self.feed(me, LinkUp(other))

    def isolate(self, node: NodeId) -> None:
        """Let nobody reach a tracker any more."""
        self.cut.add(node)
        for wire in [wire for wire in self.wires if node in wire]:
            self.wires.discard(wire)
            for end in wire:
                if end in self.nodes:
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

    def join(self, node: NodeId, *trackers: NodeId) -> None:
        """Link a node, which is no tracker, with trackers."""
        for tracker in trackers:
            self.wires.add(frozenset((node, tracker)))
            self.feed(tracker, LinkUp(node))

    def say(self, node: NodeId, tracker: NodeId, message: Any) -> list[Any]:
        """Let a node speak; return what it is told meanwhile."""
        before = len(self.out)
        self.feed(tracker, Received(node, codec.encode(message)))
        return self.told(node, before)

    def told(self, node: NodeId, since: int = 0) -> list[Any]:
        sends = [effect for _, effect in self.out[since:] if type(effect) is Send]
        return [send.message for send in sends if send.to == node]

    def write(self, writer: Writer, action: Any) -> None:
        """Have the owner's change written by the writer."""
        self.join(OWNER.node, WRITER)
        [answer] = self.say(OWNER.node, WRITER, WriteChange(1, writer.next(action)))
        writer.add(action)
        assert answer == Written(1, writer.state.height)
