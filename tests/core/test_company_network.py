"""Nodes, mandates and a tracker together: who may, is in; who may not, gets nothing at all."""

import random
from collections import deque
from typing import Any

from anabranch.core import codec
from anabranch.core.changes import Right
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Connect,
    Deliver,
    Disconnect,
    Effect,
    Event,
    Follow,
    Forward,
    Learned,
    LinkDown,
    LinkUp,
    Notice,
    Publish,
    Received,
    Send,
    Subscribe,
    Wakeup,
)
from anabranch.core.mandate import Introductions, introduce
from anabranch.core.messages import Contact, Introduce
from anabranch.core.overlay import PartSettings
from anabranch.core.peer import Peer
from anabranch.core.service import Service
from anabranch.core.tracker import Tracker
from anabranch.overlays import TOPOLOGIES
from anabranch.overlays.random_regular import ATTEMPT_EVERY_S, SETTLE_S, RandomRegular
from machines import KEYS, NODES, PART, SIGNERS, START, beyond, drafts

NET = b"n" * 32
TRACKER = NODES[0]
SETTINGS = {PART: PartSettings("random-regular", 4, (Contact(TRACKER, "tracker"),))}
MEMBERS, OUTSIDER = NODES[1:8], NODES[8]
USER_OF = {node: SIGNERS[20 + i] for i, node in enumerate(NODES[:9])}  # not the node's own key


class Registry(Service):
    """One table of rights that everybody reads, each when it is told to."""

    events = (Follow,)

    def __init__(self, table: dict[NodeId, Right]) -> None:
        self.table = table
        self.read = dict(table)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return self.may(part.stream, publisher, Right.PUBLISH, now)

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return bool(self.read.get(user, Right(0)) & right)

    def stores(self, stream: str, user: NodeId) -> bool:
        return False

    def doubt(self, stream: str, now: float) -> list[Effect]:
        self.read = dict(self.table)
        return [Learned(stream, len(self.read))]

    def tell(self, event: Follow, now: float) -> list[Effect]:  # type: ignore[override]
        return self.doubt(event.chain, now)


class Guard:
    """A tracker that admits whom the table names; or, if it lies, everybody."""

    def __init__(self, table: dict[NodeId, Right], lies: bool) -> None:
        self.introductions = Introductions(NET, KEYS.verify)
        self.table = table
        admits = None if lies else self.admits
        rng = random.Random(1)
        self.inner = Tracker(TRACKER, SETTINGS.get, rng, TOPOLOGIES, admits)

    @property
    def wakeup_at(self) -> float | None:
        return self.inner.wakeup_at

    def admits(self, part: StreamPart, node: NodeId, now: float) -> bool:
        user = self.introductions.user(node, now)
        return user is not None and bool(self.table.get(user))

    def handle(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Received and type(word := codec.decode(event.data)) is Introduce:
            self.introductions.take(event.sender, word, now)
            return []
        return self.inner.handle(event, now)


class World:
    """Machines on wires that lose nothing and take no time."""

    def __init__(self, lies: bool = False) -> None:
        self.now = START
        self.table = {USER_OF[n].node: Right.PUBLISH | Right.SUBSCRIBE for n in MEMBERS}
        self.guard = Guard(self.table, lies)
        self.machines: dict[NodeId, Any] = {TRACKER: self.guard}
        self.registries = {node: Registry(self.table) for node in (*MEMBERS, OUTSIDER)}
        self.wires: set[frozenset[NodeId]] = set()
        self.waiting: deque[tuple[NodeId, Event]] = deque()
        self.delivered: list[NodeId] = []
        self.notices: list[tuple[NodeId, str]] = []
        self.shown: list[NodeId] = []  # to whom any frame was sent
        for node in (*MEMBERS, OUTSIDER):
            self.machines[node] = self._peer(node)

    def _peer(self, node: NodeId) -> Peer:
        rng, registry = random.Random(node), self.registries[node]
        return Peer(
            USER_OF[node],
            KEYS.verify,
            SETTINGS.get,
            {"random-regular": RandomRegular},
            rng,
            rng.randbytes,
            node.hex(),
            node=node,
            network=NET,
            mandate=lambda now: introduce(USER_OF[node], NET, node, now),
            permits=registry,
            services=[registry],
        )

    def tell(self, node: NodeId, event: Event) -> None:
        """Let an event happen, and all that follows at once."""
        self.waiting.append((node, event))
        while self.waiting:
            who, what = self.waiting.popleft()
            for effect in self.machines[who].handle(what, self.now):
                self._perform(who, effect)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            due = [(m.wakeup_at, n) for n, m in self.machines.items() if m.wakeup_at is not None]
            at, node = min(due)
            if at > until:
                break
            self.now = max(self.now, at)
            self.tell(node, Wakeup())
        self.now = until

    def publish(self, node: NodeId) -> None:
        self.delivered, self.shown = [], []
        self.tell(node, Publish(PART, drafts(1)))

    def neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        return self.machines[node].neighbours(PART)

    def _perform(self, me: NodeId, effect: Effect) -> None:
        if type(effect) is Send:
            self._carry(me, effect.to, codec.encode(effect.message))
        elif type(effect) is Forward:
            for to, route in effect.branches:
                self.shown.append(to)
                self._carry(me, to, codec.carry_head(effect.overlay, route) + effect.frame)
        elif type(effect) is Connect:
            self.wires.add(frozenset((me, effect.peer)))
            self.waiting += [(me, LinkUp(effect.peer)), (effect.peer, LinkUp(me))]
        elif type(effect) is Disconnect:
            self.wires.discard(frozenset((me, effect.peer)))
            self.waiting.append((effect.peer, LinkDown(me, effect.reason)))
        elif type(effect) is Deliver:
            self.delivered.append(me)
        elif type(effect) is Notice:
            self.notices.append((me, effect.kind))

    def _carry(self, me: NodeId, to: NodeId, data: bytes) -> None:
        if frozenset((me, to)) in self.wires:
            self.waiting.append((to, Received(me, data)))


def world(*nodes: NodeId, lies: bool = False) -> World:
    made = World(lies)
    for node in nodes:
        made.tell(node, Subscribe(PART))
    made.wait(2 * SETTLE_S)
    return made


def revoke(made: World, node: NodeId, *hear: NodeId) -> None:
    """Take back what a node's user may; the tracker, and these nodes, read of it at once."""
    del made.table[USER_OF[node].node]
    made.guard.inner.review(PART.stream, made.now)
    for each in hear:
        made.tell(each, Follow(PART.stream))


def test_those_who_may_find_each_other_and_who_may_not_gets_nothing() -> None:
    made = world(*MEMBERS, OUTSIDER)
    assert all(len(made.neighbours(node)) == 4 for node in MEMBERS)
    assert made.neighbours(OUTSIDER) == ()
    assert (OUTSIDER, "refused") in made.notices
    made.publish(MEMBERS[0])
    assert sorted(made.delivered) == sorted(MEMBERS)
    assert OUTSIDER not in made.shown


def test_a_tracker_that_lets_everybody_in_does_not_help_them() -> None:
    made = world(*MEMBERS, OUTSIDER, lies=True)
    assert OUTSIDER in made.guard.inner.nodes(PART)
    assert all(OUTSIDER not in made.neighbours(node) for node in MEMBERS)
    for node in MEMBERS:
        made.publish(node)
        assert OUTSIDER not in made.shown
        assert OUTSIDER not in made.delivered


def test_a_fresh_grant_is_good_within_seconds() -> None:
    made = world(*MEMBERS, OUTSIDER)
    made.table[USER_OF[OUTSIDER].node] = Right.SUBSCRIBE
    made.tell(OUTSIDER, Follow(PART.stream))  # nobody else has read of it
    made.wait(ATTEMPT_EVERY_S + 0.5)
    assert len(made.neighbours(OUTSIDER)) == 4
    made.publish(MEMBERS[0])
    assert OUTSIDER in made.delivered


def test_who_loses_its_rights_loses_its_neighbours_whatever_it_does_itself() -> None:
    made = world(*MEMBERS, OUTSIDER)
    gone, others = MEMBERS[3], [node for node in MEMBERS if node != MEMBERS[3]]
    revoke(made, gone, *others)
    for node in others:
        assert gone not in made.neighbours(node)
    made.publish(others[0])
    assert gone not in made.shown
    made.wait(60)
    made.publish(others[1])
    assert gone not in made.shown
    assert sorted(made.delivered) == sorted(others)
    assert all(len(made.neighbours(node)) == 4 for node in others)
    assert all(beyond(made.machines[node]) == {} for node in MEMBERS)


def test_the_nodes_alone_keep_it_out_if_the_tracker_lies() -> None:
    made = world(*MEMBERS, lies=True)
    gone, others = MEMBERS[3], [node for node in MEMBERS if node != MEMBERS[3]]
    revoke(made, gone, *others)
    made.wait(60)
    made.publish(others[0])
    assert gone not in made.shown
    assert sorted(made.delivered) == sorted(others)
