"""Trackers that do not keep to the protocol: each wraps an honest one and spoils what it does.

They are named in the registry and hold their own key and no other. Whatever they say, no node may
read or publish what it may not; and with an honest tracker beside them, nobody is kept from the
truth for long.
"""

import random
from collections.abc import Sequence

import msgspec

from anabranch.core import codec
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NODE_ID_BYTES, NodeId
from anabranch.core.machine import Effect, Event, Received, Send, Sizes
from anabranch.core.messages import (
    ChainChanged,
    ChainPage,
    Contact,
    Control,
    HeadList,
    Instruction,
    ListHeads,
    WriteChange,
    Written,
)
from anabranch.core.messages.tracker import MAX_COUNTER, MAX_NEIGHBOURS
from anabranch.core.tracker_node import TrackerNode

HONEST_FOR_S = (3.0, 15.0)  # before one begins to hide what is new
SPOILED_PAGES = 0.3  # the part of them that one who forges spoils


class Lying:
    """An honest tracker inside, and what goes in and comes out of it changed."""

    def __init__(
        self, inner: TrackerNode, rng: random.Random, accomplices: Sequence[NodeId], since: float
    ) -> None:
        self.inner = inner
        self.rng = rng
        self.accomplices = accomplices
        self.since = since  # it lies from then on, also in later lives
        self.nodes: dict[NodeId, None] = {}  # all that were ever linked to it

    @property
    def wakeup_at(self) -> float | None:
        """Wake when the honest one would."""
        return self.inner.wakeup_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the honest one act, and spoil it."""
        if type(event) is Received:
            self.nodes[event.sender] = None
        if now < self.since:
            return self.inner.handle(event, now)
        if type(event) is Received:
            try:
                message = codec.decode(event.data)
            except RemoteError:
                return self.inner.handle(event, now)
            answer = self.hear(event.sender, message)
            if answer is not None:
                return answer
        effects: list[Effect] = []
        for effect in self.inner.handle(event, now):
            if type(effect) is Send:
                effects += [Send(effect.to, said) for said in self.say(effect.to, effect.message)]
            else:
                effects.append(effect)
        return effects

    def sizes(self) -> Sizes:
        """Who misbehaves bounds nothing."""
        return {}

    def hear(self, sender: NodeId, message: Control) -> list[Effect] | None:
        """Act upon a message without the honest one; None: let it have it."""
        return None

    def say(self, to: NodeId, message: Control) -> list[Control]:
        """Change what the honest one wanted to say."""
        return [message]


class Hiding(Lying):
    """Serves the registry as it was at some moment, and calls written what it throws away."""

    def hear(self, sender: NodeId, message: Control) -> list[Effect] | None:
        """Learn nothing new."""
        if type(message) is WriteChange:
            return [Send(sender, Written(message.ticket, 1))]
        return [] if type(message) in (ChainPage, ChainChanged, HeadList) else None

    def say(self, to: NodeId, message: Control) -> list[Control]:
        """Tell nobody of a change, and ask for none."""
        return [] if type(message) in (ChainChanged, ListHeads) else [message]


class Forging(Lying):
    """Spoils pages of the registry: what it changes nobody has signed."""

    def say(self, to: NodeId, message: Control) -> list[Control]:
        """Change a byte of a page."""
        if type(message) is not ChainPage or self.rng.random() > SPOILED_PAGES:
            return [message]
        spoiled = bytearray(message.changes)
        spoiled[self.rng.randrange(len(spoiled))] ^= 1 << self.rng.randrange(8)
        return [msgspec.structs.replace(message, changes=bytes(spoiled))]


class Colluding(Lying):
    """Tells everybody to have no neighbours but its accomplices."""

    def say(self, to: NodeId, message: Control) -> list[Control]:
        """Name accomplices, and nobody else."""
        if type(message) is not Instruction or to in self.accomplices:
            return [message]
        friends = tuple(Contact(node) for node in self.accomplices[:MAX_NEIGHBOURS])
        return [Instruction(message.part, message.counter, friends)]


class Misdirecting(Lying):
    """Gives instructions without sense: strangers, too many, the node itself, wild counters."""

    def say(self, to: NodeId, message: Control) -> list[Control]:
        """Say something else than was meant, or say it twice."""
        if type(message) is not Instruction:
            return [message]
        wild = self.rng.choice([self._strangers, self._crowd, self._counters, self._echo])
        return wild(to, message)

    def _strangers(self, to: NodeId, message: Instruction) -> list[Control]:
        names = [NodeId(self.rng.randbytes(NODE_ID_BYTES)) for _ in range(4)]
        return [_meet(message, message.counter, names)]

    def _crowd(self, to: NodeId, message: Instruction) -> list[Control]:
        return [_meet(message, message.counter, list(self.nodes)[:MAX_NEIGHBOURS])]

    def _counters(self, to: NodeId, message: Instruction) -> list[Control]:
        counter = self.rng.choice([0, message.counter + 1_000, MAX_COUNTER])
        return [msgspec.structs.replace(message, counter=counter)]

    def _echo(self, to: NodeId, message: Instruction) -> list[Control]:
        return [_meet(message, message.counter, [to]), message]


def _meet(message: Instruction, counter: int, names: Sequence[NodeId]) -> Instruction:
    return Instruction(message.part, counter, tuple(map(Contact, names)), tuple(names))


LYING: dict[str, type[Lying]] = {
    "hiding": Hiding,
    "forging": Forging,
    "colluding": Colluding,
    "misdirecting": Misdirecting,
}
