"""What tests of machines share: names, keys, packets, a plain overlay, a hand on the clock."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from anabranch.core import codec, frames
from anabranch.core.identity import CheapKeys, Signer
from anabranch.core.ids import (
    FrameHead,
    NodeId,
    StreamPart,
    chain_key,
    next_number,
    part_key,
    show,
    stream_part,
)
from anabranch.core.machine import (
    Copies,
    Draft,
    Effect,
    Event,
    Forward,
    Hold,
    LinkUp,
    Machine,
    Received,
    Release,
    Send,
    Wakeup,
)
from anabranch.core.messages import Contact, Control, Instruction, Status
from anabranch.core.overlay import (
    Carried,
    Directory,
    Overlay,
    OverlayFactory,
    PartSettings,
    RecentFrames,
)
from anabranch.core.peer import Peer
from anabranch.core.tracker import QUIET_S, Tracker
from anabranch.overlays import TOPOLOGIES

START = 1_000_000.0
MAX_WAKEUPS = 100_000

KEYS = CheapKeys()
# Sorted, so that the node with the lower place has the lower name.
SIGNERS = sorted((KEYS.identity(b"secret %d" % i) for i in range(40)), key=lambda s: s.node)
NODES = [signer.node for signer in SIGNERS]
OWNER = show(NODES[0])
PART = stream_part(f"{OWNER}/one")
OTHER = stream_part(f"{OWNER}/other", 3)

T = TypeVar("T")


class Hand:
    """Feeds events to a machine, and lets time pass by firing its one timer."""

    def __init__(self, machine: Any, now: float = START) -> None:
        self.machine: Machine = machine
        self.now = now

    def __call__(self, *events: Event) -> list[Effect]:
        """Let events happen now."""
        return [effect for event in events for effect in self.machine.handle(event, self.now)]

    def hear(self, sender: NodeId, *messages: Control) -> list[Effect]:
        """Let control messages come from `sender`."""
        return self(*(Received(sender, codec.encode(message)) for message in messages))

    def link(self, *peers: NodeId) -> list[Effect]:
        """Let links come up."""
        return self(*map(LinkUp, peers))

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, waking the machine exactly when it asked for it."""
        until = self.now + seconds
        effects: list[Effect] = []
        for _ in range(MAX_WAKEUPS):
            at = self.machine.wakeup_at
            if at is None or at > until:
                self.now = until
                return effects
            self.now = max(self.now, at)
            effects += self(Wakeup())
            due = self.machine.wakeup_at
            assert due is None or due > self.now, "a wakeup did not do what was due"
        raise AssertionError("the machine never rests")


class Plain(Overlay):
    """The simplest overlay: the part's contacts are the neighbours, and every frame floods."""

    code = 200
    sees_copies = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parts: dict[StreamPart, tuple[Contact, ...]] = {}
        self.copies: list[tuple[NodeId, bool]] = []
        self.links: list[tuple[NodeId, bool, str]] = []
        self.rtts: dict[NodeId, float] = {}

    def join(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
        self.parts[part] = settings.trackers
        return [Hold(contact.node, contact.address) for contact in settings.trackers]

    def leave(self, part: StreamPart, now: float) -> list[Effect]:
        return [Release(contact.node) for contact in self.parts.pop(part)]

    def publish(self, part: StreamPart, carried: Carried, now: float) -> list[Effect]:
        return self._flood(part, carried, None, b"\1")

    def carry(
        self, part: StreamPart, carried: Carried, came_from: NodeId, first: bool, now: float
    ) -> list[Effect]:
        self.copies.append((came_from, first))
        if not first:
            return []
        return self._flood(part, carried, came_from, bytes([carried.route[0] + 1]))

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        self.links.append((peer, up, reason))
        return []

    def rtt(self, peer: NodeId, seconds: float, now: float) -> list[Effect]:
        self.rtts[peer] = seconds
        return []

    def neighbours(self, part: StreamPart) -> list[NodeId]:
        return sorted(c.node for c in self.parts.get(part, ()) if self.linked(c.node))

    def hops(self, route: bytes) -> int:
        return route[0]

    def _flood(
        self, part: StreamPart, carried: Carried, came_from: NodeId | None, route: bytes
    ) -> list[Effect]:
        branches = [(peer, route) for peer in self.neighbours(part) if peer != came_from]
        return [Forward(self.code, carried.head, branches, carried.frame)] if branches else []


def plain_settings(*neighbours: NodeId) -> PartSettings:
    """Let a part have these neighbours in the plain overlay."""
    return PartSettings("plain", 4, tuple(map(Contact, neighbours)))


def peer(
    parts: Mapping[StreamPart, PartSettings],
    overlays: Mapping[str, OverlayFactory] | None = None,
    signer: Signer = SIGNERS[0],
    directory: Directory | None = None,
    address: str = "",
    **options: Any,
) -> Hand:
    """Make a Peer that knows these parts."""
    rng = random.Random(1)
    known, find = overlays or {"plain": Plain}, directory or parts.get
    return Hand(Peer(signer, KEYS.verify, find, known, rng, rng.randbytes, address, **options))


class Chain:
    """A publisher's chain in one part, and the frames it makes."""

    def __init__(self, signer: Signer, part: StreamPart = PART, number: int = 1) -> None:
        self.signer = signer
        self.part = part_key(part)
        self.key = chain_key(signer.node, number)
        self.newest = 0

    def frame(self, *contents: bytes, at: float = START) -> bytes:
        """Make the next frame of the chain."""
        previous, drafts = self.newest, []
        for content in contents or (b"hello",):
            self.newest = next_number(self.newest, int(at * 1000))
            drafts.append((self.newest, Draft(content)))
        return frames.build(self.part, self.key, previous, drafts, self.signer.sign)


def forged(frame: bytes) -> bytes:
    """Change the last byte of the body and leave the head and the signature alone."""
    place = len(frame) - frames.SIGNATURE_BYTES - 1
    return frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]


def packet(frame: bytes, overlay: int = Plain.code, route: bytes = b"\2") -> bytes:
    """Wrap a frame for a link."""
    return codec.carry_head(overlay, route) + frame


def data(sender: NodeId, frame: bytes, overlay: int = Plain.code, route: bytes = b"\2") -> Received:
    """Let a frame come from `sender`."""
    return Received(sender, packet(frame, overlay, route))


def head(frame: bytes) -> FrameHead:
    """Read a frame's head."""
    return frames.peek(frame)


def copies(sender: NodeId, *made: bytes) -> Copies:
    """Say that copies of these frames came from `sender`."""
    return Copies(head(made[0]).part, sender, [frame[: frames.HEAD.size] for frame in made])


def of(kind: type[T], effects: list[Effect]) -> list[T]:
    """Pick the effects of one kind."""
    return [effect for effect in effects if type(effect) is kind]


def sent(kind: type[T], effects: list[Effect]) -> list[tuple[NodeId, T]]:
    """Pick the control messages of one kind with their addressees."""
    return [
        (effect.to, effect.message)
        for effect in effects
        if type(effect) is Send and type(effect.message) is kind
    ]


def drafts(*tickets: int, content: bytes = b"x") -> list[Draft]:
    """Make one draft per ticket."""
    return [Draft(content, 0, ticket) for ticket in tickets]


def leftovers(machine: Machine) -> dict[str, int]:
    """Return the tables that are not empty."""
    return {name: size for name, (size, _) in machine.sizes().items() if size}


def beyond(machine: Machine) -> dict[str, tuple[int, int]]:
    """Return the tables that exceed their bound."""
    return {name: both for name, both in machine.sizes().items() if both[0] > both[1]}


class Field:
    """A tracker, and nodes of PART that do as they are told and report it."""

    def __init__(self, degree: int = 4, directory: Any = None, seed: int = 1) -> None:
        settings = PartSettings(degree=degree)
        known = {PART: settings, OTHER: settings}
        rng = random.Random(seed)
        tracker = Tracker(NODES[0], directory or known.get, rng, TOPOLOGIES)
        self.hand: Any = Hand(tracker)
        self.told: dict[NodeId, Instruction] = {}

    def join(self, *nodes: NodeId) -> list[Effect]:
        """Let new nodes report."""
        self.hand.link(*nodes)
        return [e for node in nodes for e in self.hand.hear(node, Status(PART, 0))]

    def settle(self, *nodes: NodeId) -> None:
        """Let nodes join, and everybody carry out and report what they are told."""
        self.join(*nodes)
        while told := self.take(self.hand.wait(QUIET_S)):
            self.report(*told)

    def take(self, effects: list[Effect]) -> list[NodeId]:
        """Hand out the instructions for PART; return who got one."""
        told = []
        for effect in effects:
            assert type(effect) is Send
            if type(effect.message) is Instruction and effect.message.part == PART:
                self.told[effect.to] = effect.message
                told.append(effect.to)
        return told

    def neighbours(self, node: NodeId) -> tuple[NodeId, ...]:
        """Return whom a node was told to have."""
        told = self.told[node]
        return tuple(sorted([c.node for c in told.connect] + list(told.accept)))

    def report(self, *nodes: NodeId, missing: Sequence[NodeId] = ()) -> list[Effect]:
        """Let nodes report that they have whom they were told, but for some."""
        effects: list[Effect] = []
        for node in nodes:
            has = tuple(peer for peer in self.neighbours(node) if peer not in missing)
            effects += self.hand.hear(node, Status(PART, self.told[node].counter, has))
        return effects


class Member:
    """An overlay of a node without its Peer: a test says which links stand."""

    def __init__(
        self, overlay: type[Overlay], place: int, trackers: Sequence[Contact], degree: int = 3
    ) -> None:
        self.me = Contact(NODES[place], f"{place}:1")
        self.settings = PartSettings("", degree, tuple(trackers))
        self.links: dict[NodeId, None] = {}
        self.recent = RecentFrames()
        rng = random.Random(place)
        self.overlay: Any = overlay(self.me, rng, self.recent, self.links.__contains__)
        self.now = START

    def join(self, part: StreamPart = PART) -> list[Effect]:
        return self.overlay.join(part, self.settings, self.now)

    def hear(self, sender: NodeId, message: Control) -> list[Effect]:
        return self.overlay.receive(sender, message, self.now)

    def up(self, *peers: NodeId) -> list[Effect]:
        """Let links come up."""
        effects: list[Effect] = []
        for node in peers:
            self.links[node] = None
            effects += self.overlay.link(node, True, "", self.now)
        return effects

    def down(self, *peers: NodeId) -> list[Effect]:
        """Let links end, or dials fail."""
        effects: list[Effect] = []
        for node in peers:
            self.links.pop(node, None)
            effects += self.overlay.link(node, False, "reset", self.now)
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass."""
        until = self.now + seconds
        effects: list[Effect] = []
        while (at := self.overlay.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self.overlay.wake(self.now)
            assert self.overlay.wakeup_at is None or self.overlay.wakeup_at > self.now
        self.now = until
        return effects

    @property
    def neighbours(self) -> list[NodeId]:
        return list(self.overlay.neighbours(PART))
