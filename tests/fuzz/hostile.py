"""What must hold whatever bytes arrive; `check` turns any input into packets and tries it.

An input is a list of decisions, so that a fuzzer which only knows how to change bytes makes
packets that are nearly right, and whole conversations: who says what to whom, and when.
The same input means the same everywhere, whether or not atheris found it.

- Decoding raises RemoteError or nothing, and what decodes comes back the same.
- A Peer and a Tracker never raise, keep every table within its bound, ask to be woken later
  and not at once again, and send only what others can decode.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec.inspect as mi
import stored
import trusted
from choices import Choices
from register import Register
from values import value

from anabranch.core import codec, frames
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart, chain_key, number_of, part_key, show, stream_part
from anabranch.core.machine import (
    Congested,
    Connect,
    Deliver,
    Disconnect,
    Draft,
    Effect,
    Event,
    Forward,
    LinkDown,
    LinkUp,
    Machine,
    Publish,
    Received,
    ReceivedBatch,
    Retire,
    Rtt,
    Send,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
)
from anabranch.core.message_key import join_key, split_key
from anabranch.core.messages import Contact, Instruction, KeyRequest, Meet
from anabranch.core.messages.data import KEYED
from anabranch.core.overlay import Directory, PartSettings
from anabranch.core.packets import Packets
from anabranch.core.peer import Peer
from anabranch.core.tracker import Tracker
from anabranch.overlays import OVERLAYS, TOPOLOGIES
from anabranch.sim.static_registry import StaticRegistry
from wire_types import CONTROL_TYPES

T = TypeVar("T")

START_S = 1_000.0
MAX_STEPS = 32
MEASURE_EVERY = 8  # events
WAKEUPS_AT_ONCE = 8

KEYS = trusted.KEYS
SIGNERS = [KEYS.identity(bytes([name])) for name in range(1, 8)]
ME, TRACKER, *NEIGHBOURS = [signer.node for signer in SIGNERS]
NODES = [ME, TRACKER, *NEIGHBOURS]
PARTS = [stream_part(f"{show(ME)}/{name}") for name in ("joined", "another", "unknown")]
SETTINGS = PartSettings(trackers=(Contact(TRACKER), Contact(NEIGHBOURS[-1])))

GOLDEN = Path(__file__).parents[1] / "core" / "golden"


def recorded_packets() -> list[bytes]:
    """Return one good packet of each kind, from the files that hold the wire format."""
    packets = (GOLDEN / "packets.txt").read_text().splitlines()
    rows = (GOLDEN / "frame.txt").read_text().splitlines()
    frame = "".join(row.split()[1] for row in rows if row and row[0] != "#")
    control = [bytes.fromhex(line) for line in packets if line.startswith(" ")]
    return [*control, codec.carry_head(1, b"\1") + bytes.fromhex(frame)]


RECORDED = recorded_packets()


# --- Packets, nearly right ------------------------------------------------------------------


def edited(packet: bytes, choices: Choices) -> bytes:
    """Replace, remove or add a few bytes."""
    data = bytearray(packet)
    for _ in range(choices.below(5)):
        at = choices.below(len(data) + 1)
        data[at : at + choices.below(4)] = choices.bytes(choices.below(5))
    return bytes(data)


CONTROLS = [mi.type_info(kind) for kind in CONTROL_TYPES]


def control_packet(choices: Choices) -> bytes:
    """Say something about a part, sensible or not."""
    with suppress(OverflowError):
        return codec.encode(value(choices.pick(CONTROLS), choices, NODES, PARTS))
    return b""


def data_packet(choices: Choices) -> bytes:
    """Carry a frame that is well signed, in the usual range of numbers."""
    signer = choices.pick(SIGNERS[1:])
    chain = chain_key(signer.node, choices.below(2))
    first = number_of(int(START_S * 1000), 0) + choices.below(30) - 5
    previous = choices.pick([first - 1, 0, first - 3, first - 10])
    numbers = [first, first + 1, first + 2 + choices.below(4)][: 1 + choices.below(3)]
    kind = choices.pick([0, 1, KEYED, KEYED + 1])
    drafts = [(number, Draft(bytes(choices.below(4)), kind)) for number in numbers]
    lock = trusted.LOCK if choices.one_in(3) else None
    frame = frames.build(part_key(choices.pick(PARTS)), chain, previous, drafts, signer.sign, lock)
    return codec.carry_head(choices.pick([1, 1, 0]), bytes(choices.below(3))) + frame


def words(choices: Choices) -> bytes:
    """Ask for a key, or introduce somebody, well signed: in the sender's name or another's."""
    signer = choices.pick(SIGNERS[1:])
    if choices.below(2):
        return codec.encode(trusted.introduction(signer, choices.pick(NODES), START_S))
    part, chain = choices.pick(PARTS), chain_key(choices.pick(NODES), choices.below(2))
    publisher, key_id = choices.pick(NODES), trusted.LOCK.key.id
    asked = trusted.key_request(signer, part.stream, publisher, key_id, START_S)
    ticket = bytes([choices.below(4)]) * 16
    return codec.encode(KeyRequest(part, chain, ticket, 1 + choices.below(4), asked))


def packet(choices: Choices) -> bytes:
    """Make what a peer could send."""
    make = choices.pick([control_packet, data_packet, control_packet, data_packet, words, None])
    good = choices.pick(RECORDED) if make is None else make(choices)
    return edited(good, choices) if choices.one_in(4) else good


# --- Decoding -------------------------------------------------------------------------------


def check_packet(data: bytes) -> None:
    """Read bytes in every way there is."""
    assert read(codec.kind, data) in (codec.CONTROL, codec.DATA, codec.BULK, None)
    message = read(codec.decode, data)
    if message is not None:
        assert codec.decode(codec.encode(message)) == message
    check_frame(data)
    trusted.read_all(data)
    start = read(codec.frame_start, data)
    if start is not None:
        check_frame(data[start:])


def read(function: Callable[[bytes], T], data: bytes) -> T | None:
    """Call a function that may find fault with the sender, and with nothing else."""
    try:
        return function(data)
    except RemoteError:
        return None


def check_frame(data: bytes) -> None:
    """Open a frame, make it anew from what it held, and open that."""
    read(lambda locked: frames.messages(locked, trusted.LOCK.key.secret), data)
    head, opened = read(frames.peek, data), read(frames.messages, data)
    if head is None or opened is None:
        assert opened is None
        return
    drafts = [(m.number, Draft(m.content, m.content_type)) for m in opened]
    again = frames.build(head.part, head.chain, head.previous, drafts, lambda _: bytes(64))
    assert (frames.peek(again), frames.messages(again)) == (head, opened)
    for message in opened:
        key, content, kind = split_key(message.content, message.content_type)
        if kind < KEYED:
            assert join_key(content, kind, key) == (message.content, message.content_type)


def plain_bytes(choices: Choices) -> None:
    """Take the whole input for a packet."""
    check_packet(choices.bytes(1 << 20))


def near_packets(choices: Choices) -> None:
    """Try a packet that is nearly right."""
    check_packet(edited(packet(choices), choices))


# --- Machines -------------------------------------------------------------------------------


class World:
    """One machine, the links it has, and a clock."""

    def __init__(self, machine: Machine, now: float = START_S) -> None:
        self.machine = machine
        self.now = now
        self.events = 0
        self.links: dict[NodeId, bool] = {}  # whether it stands, or is being dialled

    def tell(self, event: Event) -> None:
        """Let something happen, and hold the machine to its promises."""
        try:
            effects = self.machine.handle(event, self.now)
            for effect in effects:
                self._look_at(effect)
        except Exception as error:
            error.add_note(f"at {self.now} s, told {event}")
            raise
        self.events += 1
        if self.events % MEASURE_EVERY == 0:
            self.measure()

    def measure(self) -> None:
        """Hold every table to its bound."""
        for name, (size, bound) in self.machine.sizes().items():
            assert size <= bound, f"{name}: {size} of {bound}"

    def _look_at(self, effect: Effect) -> None:
        if type(effect) is Send:
            assert codec.decode(codec.encode(effect.message)) == effect.message
        elif type(effect) is Forward:
            frames.peek(effect.frame)
            assert all(len(route) <= codec.MAX_ROUTE_BYTES for _, route in effect.branches)
        elif type(effect) is Deliver:
            check_frame(effect.frame)
        elif type(effect) is Connect:
            self.links[effect.peer] = False
        elif type(effect) is Disconnect:
            self.links.pop(effect.peer, None)

    def link(self, node: NodeId, up: bool) -> None:
        """Let a link come or go."""
        if up and not self.links.get(node):
            self.links[node] = True
            self.tell(LinkUp(node))
        elif not up and node in self.links:
            del self.links[node]
            self.tell(LinkDown(node, "closed"))

    def wake(self) -> None:
        """Let the machine's timer ring."""
        if self.machine.wakeup_at is None:
            return
        self.now = max(self.now, self.machine.wakeup_at)
        for _ in range(WAKEUPS_AT_ONCE):
            self.tell(Wakeup())
            if self.machine.wakeup_at is None or self.machine.wakeup_at > self.now:
                return
        raise AssertionError(f"asks to be woken at {self.machine.wakeup_at}, again and again")

    def step(self, choices: Choices, others: Sequence[Callable[[NodeId], Event]]) -> None:
        """Take one decision of the world."""
        what = choices.below(20)
        node = choices.pick(NODES[1:])
        if what < 7:
            self.tell(Received(node, packet(choices)))
        elif what < 10:
            packets = [packet(choices) for _ in range(1 + choices.below(3))]
            self.tell(ReceivedBatch(node, Packets.of(packets)))
        elif what == 10:
            self.now += choices.below(60_000) / 1_000
        elif what <= 12:
            self.wake()
        elif what <= 14:
            self.link(node, what == 13)
        elif others:
            event = choices.pick(others)(node)
            if type(event) not in (Congested, Writable, Rtt) or self.links.get(node):
                self.tell(event)


def directory(part: StreamPart) -> PartSettings | None:
    """Know two of the three parts."""
    return SETTINGS if part in PARTS[:2] else None


APPLICATION: list[Callable[[NodeId], Event]] = [
    Congested,
    Writable,
    lambda node: Rtt(node, 0.25),
    lambda node: Publish(PARTS[0], [Draft(b"one"), Draft(b"two")]),
    lambda node: Publish(PARTS[1], [Draft(b"one")]),
    lambda node: Subscribe(PARTS[1]),
    lambda node: Unsubscribe(PARTS[0]),
    lambda node: Retire(PARTS[0]),
    lambda node: Subscribe(PARTS[0]),
]


def peer_conversation(choices: Choices) -> None:
    """Talk to a Peer that is a member of a part and has a tracker and two neighbours."""
    rng = random.Random(1)
    options: dict[str, Any] = {}
    known: Directory = directory
    if choices.below(2):  # with a registry that changes
        register = Register(PARTS[0], TRACKER, directory)
        known, options = register.directory, trusted.peer_options(SIGNERS[0], register, rng)
    signer, entropy = SIGNERS[0], rng.randbytes
    world = World(Peer(signer, KEYS.verify, known, OVERLAYS, rng, entropy, **options))
    world.tell(Subscribe(PARTS[0]))
    near = NEIGHBOURS[:2]
    for node in (TRACKER, *near):
        world.link(node, True)
    told = Instruction(PARTS[0], 1, (Contact(near[0]),), (near[1],))
    world.tell(Received(TRACKER, codec.encode(told)))
    for node in near:
        world.tell(Received(node, codec.encode(Meet(PARTS[0], True))))
    converse(world, choices, APPLICATION)


def stored_conversation(choices: Choices) -> None:
    """Talk to a node that reads in order, or to one that stores."""
    rng = random.Random(1)
    keepers = [*choices.pick([NEIGHBOURS[:2], NEIGHBOURS[1:3]]), NODES[0]]
    registry = StaticRegistry([part.stream for part in PARTS[:2]], keepers)
    others = list(APPLICATION)
    machine: Machine
    if choices.below(2):
        signer, entropy, reading = SIGNERS[0], rng.randbytes, stored.Reading(PARTS[0])
        options = stored.reading(KEYS.verify, rng, registry)
        machine = Peer(signer, KEYS.verify, directory, OVERLAYS, rng, entropy, **options)
        others += [reading.open, reading.look_back, reading.drain, reading.close]
        wanted = [Draft(b"kept", 0, 7, 2)]
        others.append(lambda node: Publish(PARTS[0], wanted))
    else:
        parts = (directory, OVERLAYS)
        machine = stored.Storing(SIGNERS[0], KEYS.verify, rng, parts, registry)
    world = World(machine)
    world.tell(Subscribe(PARTS[0], plain=False))
    for node in (TRACKER, *NEIGHBOURS):
        world.link(node, True)
    converse(world, choices, others)


def tracker_conversation(choices: Choices) -> None:
    """Talk to a Tracker."""
    world = World(Tracker(TRACKER, directory, random.Random(1), TOPOLOGIES))
    for node in NEIGHBOURS:
        world.link(node, True)
    converse(world, choices, ())


def registry_conversation(choices: Choices) -> None:
    """Talk to a tracker that keeps a registry."""
    world = World(trusted.Disked(TRACKER, NEIGHBOURS[-1]))
    world.tell(Wakeup())
    for node in NEIGHBOURS:
        world.link(node, True)
    converse(world, choices, [Congested, Writable])


def converse(world: World, choices: Choices, others: Sequence[Callable[[NodeId], Event]]) -> None:
    """Go on until the input ends."""
    for _ in range(MAX_STEPS):
        if not choices:
            break
        world.step(choices, others)
    world.wake()
    world.measure()


WAYS = [
    plain_bytes,
    near_packets,
    peer_conversation,
    tracker_conversation,
    registry_conversation,
    stored_conversation,
]


def check(data: bytes) -> None:
    """Try one input; what it breaks is raised."""
    choices = Choices(data)
    choices.pick(WAYS)(choices)


def first_inputs() -> list[bytes]:
    """Return inputs to begin with: good packets, and conversations of every kind."""
    rng = random.Random(1)
    talks = [bytes([way]) + rng.randbytes(200) for way in (1, 2, 3, 4, 5) for _ in range(20)]
    return [bytes([0]) + good for good in RECORDED] + talks
