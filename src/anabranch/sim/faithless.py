"""Peers that want what they may not have: each wraps an honest Peer and goes beyond it.

They hold the keys of their own node and user and no other. Their registry tells them of their own
user what they want to hear, so that nothing within them keeps them from anything; and they tell
each other of every key that they see a frame encrypted with.
"""

import random

import msgspec

from anabranch.core import codec, frames
from anabranch.core.changes import Right
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer
from anabranch.core.ids import ChainKey, NodeId, StreamPart, part_key, publisher_of
from anabranch.core.key_records import KeyQuestion, make_request
from anabranch.core.machine import (
    Connect,
    Disconnect,
    Effect,
    Event,
    Forward,
    LinkDown,
    LinkUp,
    Received,
    Send,
)
from anabranch.core.mandate import introduce
from anabranch.core.messages import Bye, Introduce, KeyRequest, Meet, Refused, Status
from anabranch.core.messages.links import TICKET_BYTES
from anabranch.core.messages.tracker import MAX_NEIGHBOURS
from anabranch.core.peer import Peer
from anabranch.core.registry import StreamState
from anabranch.core.registry_reader import RegistryReader
from anabranch.sim.byzantine import Byzantine

EVERY_S = 2.0  # how often one tries again what was refused
MAX_SEEN = 64

Sight = tuple[StreamPart, ChainKey, bytes]  # a key that somebody saw: part, chain, key id


class Indulgent:
    """A registry that grants its own user everything."""

    def __init__(self, registry: RegistryReader, user: NodeId) -> None:
        self._registry = registry
        self._user = user
        self.doubt = registry.doubt
        self.confirmed_at = registry.confirmed_at
        self.directory = registry.directory
        self.stores = registry.stores
        self.wrote = registry.wrote

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether `publisher` may publish; we may."""
        return publisher == self._user or self._registry.permits(part, publisher, now)

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right; we have."""
        return user == self._user or self._registry.may(stream, user, right, now)

    def stream(self, name: str) -> StreamState | None:
        """Return what is known of a stream."""
        return self._registry.stream(name)


class Means(msgspec.Struct):
    """What a faithless peer has to work with."""

    node: NodeId
    signer: Signer
    network: bytes
    parts: list[StreamPart]
    nodes: list[NodeId]  # that there are, honest or not
    users: list[NodeId]
    seen: dict[Sight, None]  # by all who are faithless, the last one last


class Faithless(Byzantine):
    """An honest peer inside, and every few seconds an attempt."""

    def __init__(self, inner: Peer, rng: random.Random, means: Means) -> None:
        super().__init__(inner, rng)
        self.means = means
        self.linked: dict[NodeId, None] = {}
        self._again_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the honest one act, spoil it, and try something now and then."""
        if type(event) is LinkUp:
            self.linked[event.peer] = None
        elif type(event) is LinkDown:
            self.linked.pop(event.peer, None)
        elif type(event) is Received:
            self._look_at(event.data)
            if self.ignores(event.data):
                return []
        effects = self.spoil(event, self.inner.handle(event, now))
        for effect in effects:
            if type(effect) is Disconnect:
                self.linked.pop(effect.peer, None)
        if now >= self._again_at:
            self._again_at = now + EVERY_S
            effects += self.attempt(now)
        return effects

    def ignores(self, data: bytes) -> bool:
        """Tell whether the honest one does not get to hear of this."""
        return False

    def attempt(self, now: float) -> list[Effect]:
        """Try something that is not allowed."""
        return []

    def _look_at(self, data: bytes) -> None:
        """Tell the others of the key that a frame is encrypted with."""
        if data[:2] != codec.DATA_HEAD:
            return
        try:
            start = codec.frame_start(data)
            head, lock = frames.peek(data, start), frames.lock_of(data[start:])
        except RemoteError:
            return
        part = next((p for p in self.means.parts if part_key(p) == head.part), None)
        if part is not None and lock.encryption:
            seen = self.means.seen
            seen[part, head.chain, lock.key_id] = None
            while len(seen) > MAX_SEEN:
                del seen[next(iter(seen))]

    def ask_for(self, sight: Sight, user: NodeId, now: float) -> KeyRequest:
        """Ask for a key, signed with our own user's key, in whosever name."""
        part, chain, key_id = sight
        question = KeyQuestion(
            self.means.network,
            part.stream,
            publisher_of(chain),
            user,
            self.means.signer.public,
            (key_id,),
            int(now * 1000),
            self.rng.randbytes(16),
        )
        request = make_request(self.means.signer, question)
        return KeyRequest(part, chain, self.rng.randbytes(TICKET_BYTES), 1, request)


class Lingering(Faithless):
    """Ignores that it was removed: keeps its neighbours, meets others, and asks for keys."""

    def ignores(self, data: bytes) -> bool:
        """Hear nothing of having to go."""
        if data[:2] == codec.DATA_HEAD:
            return False
        try:
            return isinstance(codec.decode(data), Bye | Refused)
        except RemoteError:
            return False

    def attempt(self, now: float) -> list[Effect]:
        """Ask everybody to be neighbours, and whoever listens for keys that others have seen."""
        effects: list[Effect] = []
        somebody = self.rng.choice(self.means.nodes)
        if somebody != self.means.node and somebody not in self.linked:
            effects.append(Connect(somebody))
        for peer in self.linked:
            effects += [Send(peer, Meet(part, recent_ms=5_000)) for part in self.means.parts]
        for sight in list(self.means.seen)[-8:]:
            asked = self.ask_for(sight, self.means.signer.node, now)
            effects += [Send(peer, asked) for peer in self.linked]
        return effects


class Impersonating(Faithless):
    """Introduces itself as others, and asks for keys in their names."""

    def attempt(self, now: float) -> list[Effect]:
        """Be somebody else for a moment."""
        if not self.linked:
            return []
        victim, peer = self.rng.choice(self.means.users), self.rng.choice(list(self.linked))
        mine = introduce(self.means.signer, self.means.network, self.means.node, now)
        claims: list[Effect] = [Send(peer, Introduce(victim, mine.until_ms, mine.signature))]
        for sight in list(self.means.seen)[-4:]:
            claims.append(Send(peer, self.ask_for(sight, victim, now)))
        return [self.rng.choice(claims)]


class LyingStatus(Faithless):
    """Tells its trackers of neighbours that it does not have, and of instructions never given."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Change every status."""
        return [
            Send(effect.to, self._lie(effect.message))
            if type(effect) is Send and type(effect.message) is Status
            else effect
            for effect in effects
        ]

    def _lie(self, status: Status) -> Status:
        many = self.rng.randint(0, min(len(self.means.nodes), MAX_NEIGHBOURS))
        neighbours = tuple(self.rng.sample(self.means.nodes, many))
        rtts_us = tuple(self.rng.randrange(100_000) for _ in neighbours)
        counter = self.rng.choice([0, status.counter, status.counter + 7, 1 << 40])
        return Status(status.part, counter, neighbours, rtts_us, status.address)


class Unpermitted(Faithless):
    """Publishes whether it may or not; what it has just sent it sends once more, to everybody."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Send our own frames to all we have a link with, neighbours or not."""
        mine = self.means.signer.node
        for effect in [e for e in effects if type(e) is Forward and e.head.publisher == mine]:
            branches = [(peer, effect.branches[0][1]) for peer in self.linked]
            if branches:
                effects.append(Forward(effect.overlay, effect.head, branches, effect.frame))
        return effects


FAITHLESS: dict[str, type[Faithless]] = {
    "lingering": Lingering,
    "impersonating": Impersonating,
    "lying-status": LyingStatus,
    "unpermitted": Unpermitted,
}
