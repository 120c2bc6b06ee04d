"""Peers of a private stream with a registry and a clock, for tests of the key exchange."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from anabranch.core import codec, frames
from anabranch.core.changes import CreateStream, Right
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.machine import (
    Deliver,
    Disconnect,
    Draft,
    Dropped,
    Effect,
    Event,
    Follow,
    Forward,
    KeepKey,
    Learned,
    LinkDown,
    LinkUp,
    Notice,
    Publish,
    Published,
    Received,
    Send,
    Subscribe,
    Wakeup,
)
from anabranch.core.mandate import introduce
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.peer import Peer
from anabranch.core.registry import Permission, StreamState
from anabranch.core.service import Service
from machines import KEYS, NODES, PART, SIGNERS, START, Plain, beyond, packet, plain_settings

NET = b"k" * 32
READ, WRITE = Right.SUBSCRIBE, Right.PUBLISH
GONE, HOLDER, NEWCOMER = 1, 2, 3  # places in a world whose publisher is dead


Fate = Callable[[NodeId, NodeId, Control], Sequence[Control]]  # sender, to: what arrives


def as_it_is(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
    """Lose nothing."""
    return [message]


def losing(kind: type) -> Fate:
    """Lose all messages of a kind."""
    return lambda sender, to, message: [] if type(message) is kind else [message]


class View(Service):
    """What one node knows of the registry: what it was when the node last read it."""

    events = (Follow,)

    def __init__(self, state: StreamState) -> None:
        self._registry = state
        self._known = state.copy()
        self._confirmed_at = 0.0
        self.in_doubt = False
        self.doubts = 0

    def stream(self, name: str) -> StreamState | None:
        return self._known if name == self._known.chain else None

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return stream == self._known.chain and self._known.may(user, right, now)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return self.may(part.stream, publisher, WRITE, now)

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        return stream == self._known.chain and self._known.wrote(publisher)

    def stores(self, stream: str, user: NodeId) -> bool:
        return False

    def doubt(self, stream: str, now: float) -> list[Effect]:
        self.in_doubt = True
        self.doubts += 1
        return []

    def confirmed_at(self, stream: str) -> float:
        return self._confirmed_at

    def tell(self, event: Event, now: float) -> list[Effect]:
        assert type(event) is Follow
        self._known = self._registry.copy()
        self._confirmed_at = now
        self.in_doubt = False
        return [Learned(event.chain, 1)]


class KeyWorld:
    """Peers in a graph; a message takes no time unless `fate` says what else becomes of it."""

    def __init__(self, *edges: tuple[int, int], part: StreamPart = PART) -> None:
        self.now = START
        self.part = part
        self.state = StreamState(part.stream, NET)
        self.state.created = CreateStream()
        self.edges = edges
        self.peers: dict[NodeId, Any] = {}
        self.views: dict[NodeId, View] = {}
        self.kept: dict[NodeId, list[KeepKey]] = {}
        self.effects: dict[NodeId, list[Effect]] = {}  # what is for the driver of each node
        self.wire: list[tuple[NodeId, NodeId, Control]] = []  # every control message there was
        self.started = 0  # how many nodes, those that came back among them
        self.reachable = True  # whether the registry answers
        self.fate: Fate = as_it_is
        self._queue: deque[tuple[NodeId, Event]] = deque()

    # --- The registry ---------------------------------------------------------------------

    def let(self, place: int, rights: int, expires: float = 0.0) -> None:
        """Write into the registry what a user may; nobody reads it yet."""
        self.state.permissions.pop(NODES[place], None)
        self.state.hold(NODES[place], Permission(rights, int(expires * 1000)))

    def remove(self, place: int) -> None:
        """Take all rights from a user, which the registry counts; nobody reads it yet."""
        self.let(place, 0)
        self.state.removals += 1

    def announce(self, *places: int) -> None:
        """Let nodes read the registry."""
        for place in places or [NODES.index(node) for node in self.peers]:
            self.do(place, Follow(self.part.stream))

    # --- Nodes ----------------------------------------------------------------------------

    def start(self, *places: int, subscribe: bool = True) -> None:
        """Start nodes, or start them anew, linked to those neighbours that run."""
        for place in places:
            node = NODES[place]
            view = self.views[node] = View(self.state)
            near = [NODES[b if a == place else a] for a, b in self.edges if place in (a, b)]
            self.peers[node] = self._peer(SIGNERS[place], view, near)
            self.effects.setdefault(node, [])
            self.do(place, Subscribe(self.part)) if subscribe else None
            for other in near:
                if other in self.peers:
                    self._queue += [(node, LinkUp(other)), (other, LinkUp(node))]
            self.run()

    def stop(self, place: int) -> None:
        """Let a node die."""
        node = NODES[place]
        del self.peers[node], self.views[node]
        for other in list(self.peers):
            self._queue.append((other, LinkDown(node, "reset")))
        self.run()

    def _peer(self, signer: Signer, view: View, near: list[NodeId]) -> Peer:
        self.started += 1
        entropy = random.Random(self.started).randbytes
        kept = self.kept.setdefault(signer.node, [])
        return Peer(
            signer,
            KEYS.verify,
            {self.part: plain_settings(*near)}.get,
            {"plain": Plain},
            random.Random(self.started),
            entropy,
            network=NET,
            mandate=lambda now: introduce(signer, NET, signer.node, now),
            permits=view,
            services=[view],
            keys=partial(KeyExchange, signer, KEYS, entropy, NET, view, list(kept)),
        )

    def do(self, place: int, event: Event) -> None:
        """Let something happen to a node, and to all others what follows."""
        self._queue.append((NODES[place], event))
        self.run()

    def publish(self, place: int, *contents: bytes) -> None:
        """Publish each in a frame of its own."""
        for content in contents:
            self.do(place, Publish(self.part, [Draft(content)]))

    def open(self, place: int, *frames_of: bytes, to: int = 9, **limits: int) -> None:
        """Let frames come to somebody who reads in order, as if from a storage node."""
        keys = self.peers[NODES[place]]._keys
        for frame in frames_of:
            head = frames.peek(frame)
            effects = keys.deliver(self.part, head, frame, 1, None, self.now, to, **limits)
            self._perform(NODES[place], effects)
        self.do(place, Wakeup())  # so that its Peer hears when it is to be woken

    def say(self, sender: int, to: int, message: Control) -> None:
        """Let a node send whatever it likes."""
        self.do(to, Received(NODES[sender], codec.encode(message)))

    # --- Time -----------------------------------------------------------------------------

    def run(self) -> None:
        """Let all that was sent arrive, and the registry answer."""
        while True:
            while self._queue:
                node, event = self._queue.popleft()
                if node in self.peers:
                    self._perform(node, self.peers[node].handle(event, self.now))
                    assert beyond(self.peers[node]) == {}
            doubtful = [node for node, view in self.views.items() if view.in_doubt]
            if not doubtful or not self.reachable:
                return
            self._queue += [(node, Follow(self.part.stream)) for node in doubtful]

    def wait(self, seconds: float) -> None:
        """Let time pass, waking every node exactly when it asked for it."""
        until = self.now + seconds
        while True:
            due = [(m.wakeup_at, n) for n, m in self.peers.items() if m.wakeup_at is not None]
            at, node = min(due, default=(until + 1, b""))
            if at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.do(NODES.index(NodeId(node)), Wakeup())

    def _perform(self, node: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send:
                for message in self.fate(node, effect.to, effect.message):
                    self.wire.append((node, effect.to, message))
                    self._queue.append((effect.to, Received(node, codec.encode(message))))
            elif type(effect) is Forward:
                for to, route in effect.branches:
                    data = packet(effect.frame, Plain.code, route)
                    self._queue.append((to, Received(node, data)))
            else:
                self.effects[node].append(effect)
                if type(effect) is KeepKey:
                    self.kept[node].append(effect)

    # --- What came of it ------------------------------------------------------------------

    def read(self, place: int, to: int = 0) -> list[bytes]:
        """Return the contents that a node delivered, each opened with the key that it got."""
        delivered = [each for each in self._of(place, Deliver) if each.to == to]
        return [m.content for d in delivered for m in frames.messages(d.frame, d.key)]

    def published(self, place: int = 1) -> list[bytes]:
        """Return the frames that a node has made."""
        return [made.frame for made in self._of(place, Published)]

    def dropped(self, place: int) -> list[str]:
        """Return why frames ended at a node, but for copies."""
        return [d.reason for d in self._of(place, Dropped) if d.reason != "duplicate"]

    def notices(self, place: int, kind: str) -> list[str]:
        return [notice.detail for notice in self._of(place, Notice) if notice.kind == kind]

    def ended(self, place: int) -> list[str]:
        """Return why a node cut links."""
        return [end.reason for end in self._of(place, Disconnect)]

    def requests(self, sender: int | None = None, to: int | None = None) -> list[KeyRequest]:
        """Return the key requests that were sent."""
        return self._sent(KeyRequest, sender, to)

    def answers(self, sender: int | None = None, to: int | None = None) -> list[KeyAnswer]:
        """Return the key answers that were sent."""
        return self._sent(KeyAnswer, sender, to)

    def opened_by(self, place: int, *frames_of: bytes) -> list[bytes]:
        """Return what a thief with every key that a node ever kept can read of frames."""
        found: list[bytes] = []
        for frame in frames_of:
            for key in self.kept[NODES[place]]:
                try:
                    found += [m.content for m in frames.messages(frame, key.secret)]
                except RemoteError:
                    continue
        return found

    def _sent(self, kind: Any, sender: int | None, to: int | None) -> list[Any]:
        return [
            message
            for source, target, message in self.wire
            if type(message) is kind
            and sender in (None, NODES.index(source))
            and to in (None, NODES.index(target))
        ]

    def _of(self, place: int, kind: Any) -> list[Any]:
        return [effect for effect in self.effects[NODES[place]] if type(effect) is kind]


def line(length: int, *readers: int, subscribe: bool = True) -> KeyWorld:
    """Make a row of nodes; the first publishes and the readers may read, and subscribe."""
    world = KeyWorld(*((place, place + 1) for place in range(1, length)))
    world.let(1, WRITE)
    for place in range(2, length + 1):
        world.let(place, READ if place in readers else WRITE)
    world.start(1, subscribe=False)
    for place in range(2, length + 1):
        world.start(place, subscribe=place in readers and subscribe)
    return world


def diamond() -> KeyWorld:
    """Let 4 hear of 1 through 2 and through 3; the first copies come from 2."""
    world = KeyWorld((1, 2), (2, 4), (1, 3), (3, 4))
    world.let(1, WRITE)
    for place in (2, 3, 4):
        world.let(place, READ)
    world.start(1, subscribe=False)
    world.start(2, 3, 4)
    return world


def bereaved(*edges: tuple[int, int], readers: tuple[int, ...] = (HOLDER, NEWCOMER)) -> KeyWorld:
    """Let a publisher be gone after a holder has read it; others have come since."""
    world = KeyWorld((GONE, HOLDER), *(edges or ((HOLDER, NEWCOMER),)))
    places = sorted({place for edge in edges for place in edge} | {HOLDER, NEWCOMER})
    for place in places:
        world.let(place, READ if place in readers else WRITE)
    world.let(GONE, WRITE)
    world.start(GONE, subscribe=False)
    world.start(HOLDER)
    world.publish(GONE, b"one", b"two")
    world.stop(GONE)
    for place in places:
        if place != HOLDER:
            world.start(place, subscribe=place in readers)
            if place not in readers:
                world.do(place, Subscribe(PART, reads=False))
    world.wire.clear()
    return world


def hear(world: KeyWorld, place: int = NEWCOMER) -> list[bytes]:
    """Let somebody read the past."""
    world.open(place, *world.published(GONE))
    return world.read(place, to=9)
