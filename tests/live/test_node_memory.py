"""Memory stays as it was, however often nodes come, go, and lose their links.

`make soak` runs the same cycles ten times as often.
"""

import asyncio
from pathlib import Path

import pytest

from anabranch import Network, Stream
from anabranch.core.identity import Identity
from anabranch.live.keys import new_key
from live.cycles import (
    ROUNDS,
    cut_and_return,
    growth_bytes,
    held,
    join_and_leave,
    subscribe_and_leave,
)
from live.networks import LiveNetwork, live_network, run

SUBSCRIPTIONS = 1_000
RECONNECTS = 200
CUTS = 6
# What may come to be held whatever the number of cycles: recent frames, heaps of past timers.
CONSTANT_BYTES = 24 * 1024


async def steady_stream(live: LiveNetwork) -> tuple[Network, Stream]:
    """Join a node that stays, and carries a stream."""
    node = await live.join()
    stream = await node.create_stream("steady")
    subscription = await stream.subscribe().__aenter__()
    carrying = asyncio.create_task(subscription.discard())
    carrying.add_done_callback(lambda done: done.exception())
    return node, stream


def quiet(live: LiveNetwork, nodes: list[Network], members: int) -> bool:
    """Tell whether nothing is left of who has gone: no link, no place among the members."""
    transports = [live.trackers[0].transport.sizes(), *map(held, nodes)]
    return (
        all(sizes["wires"] == sizes["links"] <= len(nodes) for sizes in transports)
        and live.trackers[0].machine.sizes()["nodes of a part"][0] == members
        and held(nodes[0])["held links"] == members  # the tracker, and the other members
    )


def test_subscriptions_that_come_and_go(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node, stream = await steady_stream(live)
            guest = await live.join()
            growth = await growth_bytes(
                lambda times: subscribe_and_leave(stream, guest, times),
                SUBSCRIPTIONS,
                lambda: quiet(live, [node, guest], 1),
            )
            assert growth < CONSTANT_BYTES
            assert held(guest)["parts"] == 0
            assert guest.metrics["parts"] == {}

    run(main())


@pytest.mark.parametrize("identity", [None, new_key()[0]], ids=["ever new", "always the same"])
def test_nodes_that_come_and_go(identity: Identity | None, tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node, stream = await steady_stream(live)
            growth = await growth_bytes(
                lambda times: join_and_leave(live, stream, times, identity),
                RECONNECTS,
                lambda: quiet(live, [node], 1),
            )
            # The keys of nodes that have been here are remembered, up to ten thousand.
            keys = 0 if identity else RECONNECTS // ROUNDS * 512
            assert growth < CONSTANT_BYTES + keys
            assert live.trackers[0].machine.sizes()["links"][0] == 1

    run(main())


def test_links_that_are_cut_and_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node, stream = await steady_stream(live)
            nodes = [node, *[await live.join() for _ in range(2)]]
            for other in nodes[1:]:
                await (await other.stream(stream.id)).subscribe().__aenter__()
            growth = await growth_bytes(
                lambda times: cut_and_return(nodes, stream, times),
                CUTS,
                lambda: quiet(live, nodes, 3),
            )
            assert growth < CONSTANT_BYTES

    run(main())
