"""A whole network in one process and one loop, without sockets or files: for tests and examples."""

import os
import random
from types import TracebackType

from anabranch.core.changes import (
    GENESIS_VERSION,
    NONCE_BYTES,
    Genesis,
    SetTrackers,
    TrackerEntry,
    encode_genesis,
    network_name,
)
from anabranch.core.history import History, make_change
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.machine import Store, Stored, Wakeup
from anabranch.core.messages.registry import NETWORK
from anabranch.core.publishing import STRANDED_FOR_S
from anabranch.core.tracker_node import TrackerNode
from anabranch.live.client import Network
from anabranch.live.clock import Clock
from anabranch.live.driver import Driver
from anabranch.live.keys import new_key
from anabranch.live.observer import Observer
from anabranch.live.transports.memory import SCHEME, Delay, MemoryHub, MemoryTransport
from anabranch.overlays import TOPOLOGIES


class MemoryNetwork:
    """One tracker, and the nodes that join it.

        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            ...

    The machines are those of a real network; only the links are imitated. `delay_s` is what a
    packet takes from one node to another: a number, or a function of the two.
    """

    def __init__(self, delay_s: Delay = 0.0, seed: int | None = None) -> None:
        self.hub = MemoryHub()
        self.owner = new_key()[0]
        self._delay_s = delay_s
        self._rng = random.Random(seed)
        self._tracker = new_key()[0]
        created = Genesis(GENESIS_VERSION, "memory", 0, self.owner.node, os.urandom(NONCE_BYTES))
        genesis = encode_genesis(created)
        self.network = network_name(genesis)
        self._url = SCHEME + self._tracker.node.hex()
        history = History(NETWORK, self.network)
        history.add(genesis, KnownKeys().verify)
        trackers = SetTrackers((TrackerEntry(self._tracker.node, self._url),))
        listing = make_change(self.owner, history, trackers, Clock()())
        self._changes = [(NETWORK, 1, genesis), (NETWORK, 2, listing)]
        self._transport = MemoryTransport(self._tracker.node, self.hub, delay_s)
        self._driver = Driver(
            self._transport, {Store: self._keep}, Observer(self._tracker.node), Clock()
        )

    async def __aenter__(self) -> "MemoryNetwork":
        await self._transport.start(self._driver)
        self._driver.attach(
            TrackerNode(
                self._tracker.node,
                self.network,
                KnownKeys().verify,
                self._rng,
                TOPOLOGIES,
                self._changes,
            )
        )
        self._driver.feed(Wakeup())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.detach()
        await self._transport.stop()

    def join(self, key: Identity | None = None, patience_s: float = STRANDED_FOR_S) -> Network:
        """Name a node of this network, by default one of the owner's; `async with` starts it."""
        node = new_key()[0]
        transport = MemoryTransport(node.node, self.hub, self._delay_s)
        return Network(
            self._url, self.network, (self._url,), key or self.owner, node, transport, patience_s
        )

    def _keep(self, effect: Store) -> None:
        """What is written is as safe as this process: there is no disk to wait for."""
        self._driver.feed(Stored(effect.token))
