"""Links to a few peers that are dialled again, for ever, whenever they end."""

import random
from collections.abc import Container, Mapping

import msgspec

from anabranch.core.ids import NodeId
from anabranch.core.machine import Connect, Effect
from anabranch.core.timers import Timers

REDIAL_FIRST_S = 0.5
REDIAL_MOST_S = 5.0


class _Held(msgspec.Struct):
    address: str
    redial_after_s: float = REDIAL_FIRST_S


class Redial:
    """What is held; the links themselves are its owner's, which says when they come and go."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: dict[NodeId, _Held] = {}
        self._timers: Timers[NodeId] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When somebody is to be dialled again."""
        return self._timers.next_at

    def hold(self, wanted: Mapping[NodeId, str], links: Container[NodeId]) -> list[Effect]:
        """Need links to exactly these peers, at these addresses, from now on."""
        for peer in [peer for peer in self._held if peer not in wanted]:
            del self._held[peer]  # its link may serve the other side
            self._timers.cancel(peer)
        effects: list[Effect] = []
        for peer, address in wanted.items():
            if peer in self._held and self._held[peer].address == address:
                continue
            self._held[peer] = _Held(address)
            self._timers.cancel(peer)
            if peer not in links:
                effects.append(Connect(peer, address))
        return effects

    def up(self, peer: NodeId) -> None:
        """Take note that a link stands."""
        if peer in self._held:
            self._held[peer].redial_after_s = REDIAL_FIRST_S
            self._timers.cancel(peer)

    def down(self, peer: NodeId, now: float, at_fault: bool = False) -> None:
        """Take note that a link ended; one that ended by a fault is in no hurry."""
        held = self._held.get(peer)
        if held is None:
            return
        delay = REDIAL_MOST_S if at_fault else held.redial_after_s
        # Many dial a peer that has come back: they should not all do so at the same moment.
        self._timers.set(peer, now + delay * self._rng.uniform(0.75, 1.25))
        held.redial_after_s = min(REDIAL_MOST_S, delay * 2)

    def wake(self, now: float) -> list[Effect]:
        """Dial whoever is due."""
        return [Connect(peer, self._held[peer].address) for peer in self._timers.pop_due(now)]
