"""Attackers: peers that say what they like, and nodes whose own checks have been taken out."""

import os
import time
from typing import Any, TypeVar

from anabranch import Network, Stream
from anabranch.core import codec, frames
from anabranch.core.changes import Action, Change, encode_change
from anabranch.core.encryption import GroupKey
from anabranch.core.errors import RemoteError
from anabranch.core.history import History
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.key_records import make_answer, make_refusal, read_request
from anabranch.core.mandate import introduce
from anabranch.core.messages import (
    Control,
    Got,
    Introduce,
    KeyAnswer,
    KeyRequest,
    WriteChange,
    Written,
)
from anabranch.live.keys import new_key
from anabranch.live.tracker import TrackerProcess
from anabranch.live.transports import Link
from live.hostile_peer import HostilePeer
from live.networks import LiveNetwork, eventually
from live.readers import Reader, read

M = TypeVar("M")


class Spy(HostilePeer):
    """Acts for a user, who may have rights or none; keeps every word and every frame it hears."""

    def __init__(self, live: LiveNetwork, stream: str, user: Identity | None = None) -> None:
        super().__init__(live, stream)
        self.user = user or new_key()[0]
        self.network = live.address.genesis
        self.heard: list[tuple[NodeId, Control]] = []
        self.farewells: list[tuple[NodeId, str]] = []  # every end of a link, and why
        self.mandate: Introduce | None = introduce(
            self.user, self.network, self.node, time.time()
        )  # None: it does not say for whom it acts

    def link_up(self, link: Link) -> None:
        """Introduce itself, as every node does with its first word."""
        if self.mandate is not None:
            link.send(codec.encode(self.mandate))
        super().link_up(link)

    def link_down(self, peer: NodeId, reason: str) -> None:
        """Keep this, too."""
        self.farewells.append((peer, reason))
        super().link_down(peer, reason)

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        """Keep all that is said."""
        for packet in packets:
            if packet[:2] != codec.DATA_HEAD:
                self.heard.append((peer, codec.decode(packet)))
        super().received(peer, packets)

    def words(self, kind: type[M]) -> list[M]:
        """Return all that it was told of a kind."""
        return [message for _, message in self.heard if isinstance(message, kind)]

    async def hear(self, kind: type[M], count: int = 1) -> list[M]:
        """Wait until it has been told so much of a kind."""
        await eventually(lambda: len(self.words(kind)) >= count, f"{count} {kind.__name__}")
        return self.words(kind)

    @property
    def frames(self) -> list[bytes]:
        """The frames that were sent to it."""
        return [packet[codec.frame_start(packet) :] for packet in self.carried]

    async def catch(self, count: int) -> list[bytes]:
        """Wait until it has so many different frames."""
        await eventually(lambda: len(set(self.frames)) >= count, f"{count} frames")
        return list(dict.fromkeys(self.frames))


class Relay(Spy):
    """Passes frames on to all its neighbours, and key requests and answers where they belong."""

    def __init__(self, live: LiveNetwork, stream: str, user: Identity | None = None) -> None:
        super().__init__(live, stream, user)
        self.towards: NodeId | None = None  # where key requests go
        self.also: set[NodeId] = set()  # who is given frames though nobody would
        self._passed: set[bytes] = set()
        self._asked_by: dict[bytes, NodeId] = {}

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        """Pass on what comes."""
        super().received(peer, packets)
        for packet in packets:
            if packet[:2] == codec.DATA_HEAD:
                self._pass(peer, packet)
                continue
            message = codec.decode(packet)
            if isinstance(message, KeyRequest):
                self._asked_by[message.ticket] = peer
                self.requested(peer, message)
            elif isinstance(message, KeyAnswer):
                self.answered(message)

    def _pass(self, peer: NodeId, packet: bytes) -> None:
        frame = packet[codec.frame_start(packet) :]
        if frame in self._passed:
            return
        self._passed.add(frame)
        onward = codec.carry_head(packet[2], b"\x02") + frame
        for other in (self.met | self.also) - {peer}:
            if other in self.links:
                self.send(other, onward)

    def requested(self, peer: NodeId, message: KeyRequest) -> None:
        """Pass a request on towards its publisher."""
        if self.towards is not None and self.towards != peer:
            self.say(self.towards, message)

    def answered(self, message: KeyAnswer) -> None:
        """Pass an answer back."""
        back = self._asked_by.get(message.ticket)
        if back in self.links:
            self.say(back, message)


class Hole(Spy):
    """Says that it has got everything, and passes nothing on."""

    def received(self, peer: NodeId, packets: list[bytes]) -> None:
        """Thank the publisher."""
        super().received(peer, packets)
        for packet in packets:
            if packet[:2] == codec.DATA_HEAD:
                head = frames.peek(packet, codec.frame_start(packet))
                self.say(peer, Got(self.part, head.chain, (head.last,)))


class Swallower(Relay):
    """Passes frames on, and no request for a key."""

    def __init__(self, live: LiveNetwork, stream: str, user: Identity | None = None) -> None:
        super().__init__(live, stream, user)
        self.swallowed = 0

    def requested(self, peer: NodeId, message: KeyRequest) -> None:
        """Let it end here."""
        self.swallowed += 1


class Forger(Relay):
    """Passes frames on, and answers requests for keys itself."""

    def __init__(self, live: LiveNetwork, stream: str, user: Identity | None = None) -> None:
        super().__init__(live, stream, user)
        self.forged = 0

    def requested(self, peer: NodeId, message: KeyRequest) -> None:
        """Answer with nonsense, with a key of its own making, or that there is none."""
        curve, me, request = KnownKeys(), self.user, message.request
        asked = read_request(request, self.network, curve)
        keys = [GroupKey(key_id, os.urandom(32)) for key_id in asked.key_ids]
        answers = [
            os.urandom(200),
            make_answer(me, curve, os.urandom, request, asked, keys),
            make_refusal(me, request, asked, "unpermitted"),
        ]
        self.say(peer, KeyAnswer(message.part, message.ticket, answers[self.forged % 3]))
        self.forged += 1


# --- Nodes without checks of their own ------------------------------------------------------


def doctor(network: Network) -> Network:
    """Let a node's own code believe that everybody may do everything."""
    node: Any = network.node
    node.registry.may = lambda *_: True
    node.registry.permits = lambda *_: True
    node._check_rights = lambda stream: None
    return network


async def doctored_stream(network: Network, name: str) -> Stream:
    """Return a stream to which a doctored node publishes, and subscribes, without being asked."""
    stream: Any = await network.stream(name)
    stream.may = lambda *_: True
    return stream  # type: ignore[no-any-return]


async def read_anyway(network: Network, name: str) -> Reader:
    """Read a stream, whether or not that is allowed."""
    return await read(await doctored_stream(network, name))


def keep_company(network: Network, part: StreamPart, *friends: NodeId) -> None:
    """Let a doctored node have just these for neighbours, whatever its tracker says."""
    peer: Any = network.node.peer
    overlay = peer._parts.find(part).overlay
    overlay.accepts = lambda part, sender: sender in friends
    overlay.neighbours = lambda part: friends


def keys_of(network: Network) -> list[bytes]:
    """Return every secret that a node has, or ever had in this process."""
    peer: Any = network.node.peer
    ring = peer._keys._ring
    learned = [secret for keys in ring._learned.values() for secret in keys.values()]
    return [*ring._own.values(), *learned]


def open_all(caught: list[bytes], secrets: list[bytes]) -> list[str]:
    """Try every key on every frame; return the texts of those that open."""
    return [text for frame in caught for secret in secrets for text in _opened(frame, secret)]


def _opened(frame: bytes, secret: bytes) -> list[str]:
    try:
        return [message.content.decode() for message in frames.messages(frame, secret)]
    except RemoteError:
        return []


# --- Changes of the registry --------------------------------------------------------------


async def write(spy: Spy, tracker: TrackerProcess, change: bytes) -> str:
    """Ask a tracker to write a change; return what it has against it, or why it hangs up."""
    node, before = tracker.identity.node, len(spy.words(Written))
    spy.ends.pop(node, None)
    if node not in spy.links:
        await spy.reach(tracker.transport.address)
    spy.say(node, WriteChange(before + 1, change))
    await eventually(
        lambda: len(spy.words(Written)) > before or node in spy.ends, "an answer or the end"
    )
    return spy.ends.get(node) or spy.words(Written)[-1].problem


def change_of(
    history: History, author: bytes, sign: Any, *actions: Action, network: bytes | None = None
) -> bytes:
    """Make the next change of a chain in anybody's name, signed by whoever signs."""
    at_ms = max(int(time.time() * 1000), history.at_ms)
    change = Change(
        history.chain, history.next_parents(), history.next_depth(), author, at_ms, actions
    )  # type: ignore[arg-type]
    return encode_change(change, network or history.network, sign)
