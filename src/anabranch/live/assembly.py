"""A node's machines, put together: the registry it reads, its mandate, its keys, its Peer.

Before that, the trackers are found that it reads the registry from.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import inf

from anabranch.core.identity import Identity, KnownKeys, Verify
from anabranch.core.ids import NodeId
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.machine import KeepFrame, KeepKey
from anabranch.core.mandate import introduce
from anabranch.core.messages import Contact
from anabranch.core.peer import Peer
from anabranch.core.reachability import Reachability
from anabranch.core.reader import Reader
from anabranch.core.receipts import Receipts
from anabranch.core.registry_reader import RegistryReader
from anabranch.core.storage import StorageFactory
from anabranch.core.unstored import MAX_UNSTORED_BYTES
from anabranch.live.errors import NetworkUnreachable
from anabranch.live.transports import Transport, TransportError
from anabranch.overlays import OVERLAYS

Keeps = Callable[[Identity, bytes, Verify, RegistryReader, random.Random], StorageFactory]

MAX_FOUND = 4  # trackers that are of use
FIND_MORE_S = 0.5  # how long others may take once one is found


async def find_trackers(transport: Transport, urls: Sequence[str]) -> list[Contact]:
    """Reach one tracker, and others if that is quickly done: the one might be false."""

    async def find(url: str) -> Contact:
        return Contact(await transport.find(url), url)

    trying = [asyncio.create_task(find(url)) for url in urls]
    found: dict[NodeId, Contact] = {}
    try:
        for reached in asyncio.as_completed(trying):
            with suppress(TransportError):
                contact = await reached
                found[contact.node] = contact
                break
        await asyncio.wait(trying, timeout=FIND_MORE_S)
    finally:
        for task in trying:
            task.cancel()
    outcomes = await asyncio.gather(*trying, return_exceptions=True)
    found |= {each.node: each for each in outcomes if isinstance(each, Contact)}
    if not found:
        raise NetworkUnreachable("; ".join(str(outcome) for outcome in outcomes))
    return list(found.values())[:MAX_FOUND]


def assemble(
    identity: Identity,
    node: NodeId,
    network: bytes,
    found: Sequence[Contact],
    address: str,
    kept: Iterable[KeepKey],
    patience_s: float,
    keeps: Keeps | None = None,
    unstored_bytes: int = MAX_UNSTORED_BYTES,
    lasting: Iterable[KeepFrame] | None = None,
    is_address_given: bool = False,
    confirm_within_s: float = inf,
) -> tuple[RegistryReader, Peer]:
    """Return the machines of a node that acts for a user, and has found trackers.

    One that `keeps` streams for others does not read them. `lasting` are the frames of its data
    folder that are not stored yet. Rights count only if a tracker has confirmed them within
    `confirm_within_s`.
    """
    curve = KnownKeys()
    rng = random.Random(int.from_bytes(os.urandom(16)))
    registry = RegistryReader(
        network, curve.verify, found[0], rng, found[1:], confirm_within_s=confirm_within_s
    )

    def trackers() -> list[NodeId]:
        """Return the network's trackers; until they are known, those that were found."""
        listed = [entry.node for entry in registry.trackers]
        return listed or [contact.node for contact in found]

    peer = Peer(
        identity,
        curve.verify,
        registry.directory,
        OVERLAYS,
        rng,
        os.urandom,
        address,
        node=node,
        network=network,
        mandate=partial(introduce, identity, network, node),
        permits=registry,
        services=[registry],
        keys=partial(KeyExchange, identity, curve, os.urandom, network, registry, kept),
        reader=partial(Reader, registry, curve.verify, rng) if keeps is None else None,
        storage=keeps(identity, network, curve.verify, registry, rng) if keeps else None,
        receipts=Receipts(network, curve.verify, registry, unstored_bytes, lasting),
        reachability=Reachability(address, is_address_given, trackers),
        patience_s=patience_s,
    )
    registry.by_neighbours.neighbours = peer.neighbours_in
    return registry, peer
