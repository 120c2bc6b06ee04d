"""Nodes that read in order and nodes that store, as the fuzzer meets them."""

import random
from functools import partial
from typing import Any

from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Close, Drained, Effect, Event, Find, Open, Write
from anabranch.core.messages.storage import Selection
from anabranch.core.peer import Peer
from anabranch.core.reader import Reader
from anabranch.core.receipts import Receipts
from anabranch.core.storage import Storage, UserOf
from anabranch.sim.disks import Disk
from anabranch.sim.static_registry import StaticRegistry

NETWORK = bytes(32)


def reading(verify: Verify, rng: random.Random, registry: StaticRegistry) -> dict[str, Any]:
    """Return what a Peer needs to read in order, and to ask for receipts."""
    return {
        "reader": partial(Reader, registry, verify, rng),
        "receipts": Receipts(NETWORK, verify, registry),
    }


class Reading:
    """What an application does that reads; every ticket is used once."""

    def __init__(self, part: StreamPart) -> None:
        self._part = part
        self._ticket = 0

    def open(self, node: NodeId) -> Event:
        """Read what is live."""
        self._ticket += 1
        return Open(self._ticket, self._part)

    def look_back(self, node: NodeId) -> Event:
        """Read some of the past, and perhaps what is live."""
        self._ticket += 1
        wanted = Selection(last=self._ticket % 3, by_number=self._ticket % 2 == 0)
        return Open(self._ticket, self._part, wanted, self._ticket % 4 < 2)

    def drain(self, node: NodeId) -> Event:
        """Have room for more."""
        return Drained(self._ticket)

    def close(self, node: NodeId) -> Event:
        """Read no more."""
        return Close(self._ticket)


class Storing:
    """A Peer that stores, and its disk, which sometimes is full."""

    def __init__(
        self, signer: Signer, verify: Verify, rng: random.Random, parts: Any, registry: Any
    ) -> None:
        directory, overlays = parts

        def make(user_of: UserOf) -> Storage:
            return Storage(signer, NETWORK, verify, registry, rng, (), user_of)

        self._peer = Peer(
            signer,
            verify,
            directory,
            overlays,
            rng,
            rng.randbytes,
            services=[registry],
            storage=make,
        )
        self._disk = Disk()
        self._rng = rng

    @property
    def wakeup_at(self) -> float | None:
        """When the Peer wants to be woken."""
        return self._peer.wakeup_at

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the Peer's tables."""
        return self._peer.sizes()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Let something happen, and all that the disk then says."""
        done: list[Effect] = []
        waiting = [event]
        while waiting:
            for effect in self._peer.handle(waiting.pop(0), now):
                if type(effect) is Write:
                    self._disk.problem = "no space" if self._rng.random() < 0.05 else ""
                    waiting.append(self._disk.write(effect))
                elif type(effect) is Find:
                    waiting.append(self._disk.find(effect))
                else:
                    done.append(effect)
        return done
