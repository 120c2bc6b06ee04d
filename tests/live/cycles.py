"""Things that happen again and again to a node, and what it holds afterwards."""

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import pairwise

from anabranch import Network, Stream, connect
from anabranch.core.identity import Identity
from live.networks import LiveNetwork, eventually
from live.readers import all_linked, all_read, cut_links, read

MEET_EVERY = 50  # cycles: in those between, a node is gone before anybody has met it
ROUNDS = 3
PAUSE_S = 0.002  # a tracker takes a node that says more than a thousand things a second for a flood


async def subscribe_and_leave(steady: Stream, guest: Network, cycles: int) -> None:
    """Let a node come to a stream and leave it, again and again."""
    stream = await guest.stream(steady.id)
    for cycle in range(cycles):
        if cycle % MEET_EVERY:
            async with stream.subscribe():
                await asyncio.sleep(PAUSE_S)
        else:
            await _hear(steady, stream, cycle)


async def join_and_leave(
    live: LiveNetwork, steady: Stream, cycles: int, node_key: Identity | None = None
) -> None:
    """Let a node join the network, subscribe and leave, again and again."""
    for cycle in range(cycles):
        async with connect(str(live.address), key=live.owner, node_key=node_key) as guest:
            stream = await guest.stream(steady.id)
            if cycle % MEET_EVERY:
                await read(stream)
            else:
                await _hear(steady, stream, cycle)


async def cut_and_return(nodes: list[Network], steady: Stream, cycles: int) -> None:
    """Break all links of the first of some nodes that know each other, again and again."""
    degree = len(nodes) - 1
    for _ in range(cycles):
        await all_linked(nodes, steady.id, degree)
        await cut_links(nodes[0].node)
    await all_linked(nodes, steady.id, degree)


async def _hear(steady: Stream, stream: Stream, cycle: int) -> None:
    reader = await read(stream)
    await steady.publish(cycle)
    await all_read([reader], cycle)
    await reader.stop()


async def growth_bytes(
    again: Callable[[int], Awaitable[None]], cycles: int, calm: Callable[[], bool]
) -> int:
    """Do something again and again, in rounds; return by how much memory grew in the best round.

    What leaks does so in every round; what else happens in the process does not. `calm` tells
    whether all that lingers for a moment is gone.
    """
    sizes: list[int] = []
    tracemalloc.start()
    try:
        for _ in range(1 + ROUNDS):  # the first one is to warm up
            await again(cycles // ROUNDS)
            await eventually(calm, "calm")
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return min(after - before for before, after in pairwise(sizes))


def held(network: Network) -> dict[str, int]:
    """Return how full each table of a node is: its machine's and its transport's."""
    tables = {name: size for name, (size, _) in network.node.peer.sizes().items()}
    return tables | network.node._transport.sizes()  # type: ignore[attr-defined]
