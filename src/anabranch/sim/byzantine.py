"""Peers that do not keep to the protocol: each wraps an honest Peer and spoils what it does.

They hold their own key and no other. Those who collude know one another. Some who lie about round
trips or about their neighbours do it only for themselves, and all else as they should.
"""

import math
import random
from collections.abc import Container, Iterable, Sequence
from typing import cast

import msgspec

from anabranch.core import frames
from anabranch.core.ids import NodeId, StreamPart, part_key
from anabranch.core.machine import Deliver, Effect, Event, Forward, LinkUp, Received, Send, Sizes
from anabranch.core.messages import Bye, Meet, Probed, SlowDown, Status
from anabranch.core.messages.links import MAX_PAUSE_MS
from anabranch.core.messages.tracker import MAX_RTT_US
from anabranch.core.peer import Peer
from anabranch.sim.network import Raw

MAX_REMEMBERED = 200
BURST = 40
NEAREST_US = 1


class Byzantine:
    """An honest peer inside, and what comes out of it changed."""

    def __init__(
        self, inner: Peer, rng: random.Random, fellows: Container[NodeId] = frozenset()
    ) -> None:
        self.inner = inner
        self.rng = rng
        self.fellows = fellows  # all who misbehave

    @property
    def wakeup_at(self) -> float | None:
        """Wake when the honest one would."""
        return self.inner.wakeup_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let the honest one act, and spoil it."""
        return self.spoil(event, self.inner.handle(event, now))

    def sizes(self) -> Sizes:
        """Who misbehaves bounds nothing."""
        return {}

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Change what the honest peer wanted done."""
        return effects


class Silent(Byzantine):
    """Takes its place in the overlay and passes nothing on."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Drop every frame that would leave."""
        return [effect for effect in effects if type(effect) is not Forward]


class Forging(Byzantine):
    """Passes on changed frames in other publishers' names, before the real ones."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Put a forgery before each frame that leaves."""
        spoiled: list[Effect] = []
        for effect in effects:
            if type(effect) is Forward:
                forged = bytearray(effect.frame)
                # Within the body or the signature: the head still names the real message.
                forged[self.rng.randrange(frames.HEAD.size, len(forged))] ^= (
                    1 << self.rng.randrange(8)
                )
                spoiled.append(Forward(effect.overlay, effect.head, effect.branches, bytes(forged)))
            spoiled.append(effect)
        return spoiled


class Replaying(Byzantine):
    """Sends old frames again and again, properly signed as they are."""

    def __init__(
        self, inner: Peer, rng: random.Random, fellows: Container[NodeId] = frozenset()
    ) -> None:
        super().__init__(inner, rng, fellows)
        self._seen: list[Forward] = []

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """With every frame that leaves, send three from the past."""
        fresh = [effect for effect in effects if type(effect) is Forward]
        if not fresh:
            return effects
        self._seen = (self._seen + fresh)[-MAX_REMEMBERED:]
        return effects + self.rng.choices(self._seen, k=3)


class Flooding(Byzantine):
    """Sends its neighbours heaps of what they have no use for."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """After each delivery, a burst of noise to whoever brought it."""
        if type(event) is not Received or not any(type(e) is Deliver for e in effects):
            return effects
        return effects + [self._noise(event.sender, event.data) for _ in range(BURST)]

    def _noise(self, to: NodeId, data: bytes) -> Effect:
        kind = self.rng.randrange(3)
        if kind == 0:
            return _raw(to, self.rng.randbytes(self.rng.randrange(200)))
        if kind == 1:  # well formed, of a part that nobody is in
            stranger = StreamPart("0x" + self.rng.randbytes(20).hex() + "/nowhere", 0)
            start = 4 + data[3] + 1
            key = part_key(stranger)
            return _raw(to, data[:start] + key + data[start + len(key) :])
        cut = self.rng.randrange(len(data))
        return _raw(to, data[:cut])


class Complaining(Byzantine):
    """Asks every neighbour for the longest pause, again and again."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """With every frame that arrives, complain to all neighbours of its part."""
        delivered = [effect for effect in effects if type(effect) is Deliver]
        return effects + [
            Send(peer, SlowDown(deliver.part, MAX_PAUSE_MS))
            for deliver in delivered
            for peer in self.inner.neighbours(deliver.part)
        ]


def _raw(to: NodeId, data: bytes) -> Effect:
    """Pass the simulator an effect that no honest machine has."""
    return cast(Effect, Raw(to, data))


# --- About round trips, to be given other neighbours ----------------------------------------


class Misreporting(Byzantine):
    """Changes the round trips that it reports to its tracker."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Change every report that leaves."""
        return [self._changed(effect) for effect in super().spoil(event, effects)]

    def _changed(self, effect: Effect) -> Effect:
        if type(effect) is not Send:
            return effect
        message = effect.message
        if type(message) is Status:
            measured = dict(zip(message.neighbours, message.rtts_us, strict=True))
            told = {peer: self.claimed(peer, measured[peer]) for peer in self.named(measured)}
            said = {"neighbours": tuple(told), "rtts_us": tuple(told.values())}
            return Send(effect.to, msgspec.structs.replace(message, **said))
        if type(message) is Probed and message.rtt_us:
            rtt_us = self.claimed(message.node, message.rtt_us)
            return Send(effect.to, msgspec.structs.replace(message, rtt_us=rtt_us))
        return effect

    def named(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """Return the neighbours that it says it has."""
        return list(neighbours)

    def claimed(self, peer: NodeId, rtt_us: int) -> int:
        """Return what it says instead of a round trip that it has measured."""
        return rtt_us


class Nearest(Misreporting):
    """Claims to be next to everybody."""

    def claimed(self, peer: NodeId, rtt_us: int) -> int:
        """Return the shortest there is."""
        return NEAREST_US


class Nearer(Misreporting):
    """Claims a third of what is true, which nobody can call absurd."""

    def claimed(self, peer: NodeId, rtt_us: int) -> int:
        """Return a third."""
        return max(NEAREST_US, rtt_us // 3)


class Farther(Misreporting):
    """Claims ten times of what is true, to be left alone."""

    def claimed(self, peer: NodeId, rtt_us: int) -> int:
        """Return ten times as much."""
        return min(MAX_RTT_US, rtt_us * 10)


class Flattering(Nearest, Silent):
    """Claims to be next to everybody, to be chosen as a neighbour, and passes nothing on."""


class Clannish(Misreporting, Silent):
    """Claims to be next to everybody but those it colludes with, and passes nothing on.

    Links between colluders harm nobody, so they say that they are far apart.
    """

    def claimed(self, peer: NodeId, rtt_us: int) -> int:
        """Return the shortest there is, or the longest."""
        return MAX_RTT_US if peer in self.fellows else NEAREST_US


class Aloof(Misreporting, Silent):
    """Says that it cannot reach those it colludes with, and passes nothing on."""

    def named(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """Return those who do not collude."""
        return [peer for peer in neighbours if peer not in self.fellows]


# --- About neighbours, to be given others ----------------------------------------------------


class Rejecting(Misreporting):
    """Reports its farther neighbours as unreachable, to be given nearer ones."""

    most: float = math.inf  # neighbours that it reports as unreachable

    def __init__(
        self, inner: Peer, rng: random.Random, fellows: Container[NodeId] = frozenset()
    ) -> None:
        super().__init__(inner, rng, fellows)
        self.measured_us: dict[NodeId, int] = {}
        self.rejected: dict[NodeId, None] = {}

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Measure every neighbour, and leave the rejected ones out of every status."""
        if type(event) is LinkUp and event.rtt_s is not None:
            self.measured_us[event.peer] = int(event.rtt_s * 1e6)
        return super().spoil(event, effects)

    def named(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """Return the neighbours that it keeps."""
        present = list(neighbours)
        return [peer for peer in present if not self.rejects(peer, present)]

    def rejects(self, peer: NodeId, present: Sequence[NodeId]) -> bool:
        """Decide about a neighbour; a decision stands."""
        is_new = peer not in self.rejected
        if is_new and len(self.rejected) < self.most and self.dislikes(peer, present):
            self.rejected[peer] = None
        return peer in self.rejected

    def dislikes(self, peer: NodeId, present: Sequence[NodeId]) -> bool:
        """Tell whether a neighbour is farther than a quarter of all nodes it has measured."""
        known = sorted(self.measured_us.values())
        return self.measured_us.get(peer, 0) > known[len(known) // 4]


class RejectingOnce(Rejecting):
    """Reports the first neighbour that it dislikes as unreachable, and no other."""

    most = 1


class Refusing(Rejecting):
    """Claims its links with the neighbours that it rejects, but does not let them stand."""

    def spoil(self, event: Event, effects: list[Effect]) -> list[Effect]:
        """Meet no rejected neighbour, and part with those that it has met."""
        parted: list[Effect] = []
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Status:
                status, present = effect.message, effect.message.neighbours
                rejected = [peer for peer in present if self.rejects(peer, present)]
                parted += [Send(peer, Bye(status.part)) for peer in rejected]
        kept = [effect for effect in effects if not self._meets_rejected(effect)]
        return super().spoil(event, kept) + parted

    def named(self, neighbours: Iterable[NodeId]) -> list[NodeId]:
        """Return all of them."""
        return list(neighbours)

    def _meets_rejected(self, effect: Effect) -> bool:
        return type(effect) is Send and type(effect.message) is Meet and effect.to in self.rejected


class Surrounding(Rejecting, Silent):
    """Rejects every honest neighbour until it is next to a victim, and passes nothing on."""

    victim: NodeId | None = None  # the experiment names it to all colluders

    def dislikes(self, peer: NodeId, present: Sequence[NodeId]) -> bool:
        """Tell whether a neighbour is neither the victim nor needed to stay next to it."""
        is_there = self.victim is None or self.victim in present
        return not is_there and peer not in self.fellows


class SurroundingRefusing(Refusing, Surrounding):
    """Does the same, but claims every link and does not let those with honest nodes stand."""


BYZANTINE: dict[str, type[Byzantine]] = {
    "silent": Silent,
    "forging": Forging,
    "replaying": Replaying,
    "flooding": Flooding,
    "complaining": Complaining,
    "nearest": Nearest,
    "nearer": Nearer,
    "farther": Farther,
    "flattering": Flattering,
    "clannish": Clannish,
    "aloof": Aloof,
    "rejecting": Rejecting,
    "rejecting-once": RejectingOnce,
    "refusing": Refusing,
    "surrounding": Surrounding,
    "surrounding-refusing": SurroundingRefusing,
}
