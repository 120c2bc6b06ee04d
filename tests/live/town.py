"""Honest nodes that all read a stream, whatever happens around them: what attacks are held to."""

import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from anabranch import Network, Stream
from anabranch.core.ids import NodeId, StreamPart, number_of, show
from anabranch.live.keys import new_key
from anabranch.live.tracker import TrackerProcess
from live.attackers import Spy
from live.networks import LiveNetwork, eventually, live_network
from live.readers import Reader, all_linked, read

GUESTS = 2

S = TypeVar("S", bound=Spy)


def number_at(seconds_ahead: float = 0.0) -> int:
    """Return the number of a message that is published now, or at another time."""
    return number_of(int((time.time() + seconds_ahead) * 1000), 0)


class Town:
    """The owner of a stream and guests who may subscribe: each reads, and has its own key."""

    def __init__(self, live: LiveNetwork, stack: AsyncExitStack, stream: Stream) -> None:
        self.live = live
        self.stream = stream  # as its owner has it
        self.nodes: list[Network] = []  # the owner's first
        self.readers: list[Reader] = []
        self.expected: list[str] = []  # what everybody is to be delivered, and nothing else
        self._since: dict[Reader, int] = {}  # how many there were when it began to read
        self._stack = stack

    @property
    def part(self) -> StreamPart:
        return StreamPart(self.stream.id, 0)

    @property
    def owner(self) -> NodeId:
        """The owner's user."""
        return self.live.owner.node

    @property
    def publisher(self) -> NodeId:
        """The owner's node."""
        return self.nodes[0].node.node

    @property
    def tracker(self) -> TrackerProcess:
        return self.live.trackers[0]

    def others(self, *but: Network) -> list[Network]:
        """Return the honest nodes but for some."""
        return [node for node in self.nodes if node not in but]

    async def add(self, network: Network) -> Reader:
        """Let one more honest node read; from now on it is delivered what all are."""
        reader = await read(await network.stream(self.stream.id))
        self.nodes.append(network)
        self.readers.append(reader)
        self._since[reader] = len(self.expected)
        return reader

    async def enter(self, spy: S, neighbours: int | None = None) -> S:
        """Let a spy in until the end; if it is to have neighbours, wait for them."""
        await self._stack.enter_async_context(spy)
        if neighbours is not None:
            await spy.take_place(neighbours)
        return spy

    # --- Messages -------------------------------------------------------------------------

    async def publish(self, text: str) -> None:
        """See that honest traffic goes on, and that nothing else has been delivered."""
        await self.stream.publish(text)
        await self.hear(text)

    async def hear(self, text: str) -> None:
        """Wait until everybody has been delivered one more text, and nothing else ever."""
        self.expected.append(text)
        await eventually(
            lambda: all(text in reader.contents for reader in self.readers), f"delivery of {text!r}"
        )
        for reader in self.readers:
            # A newcomer is given what was recent, in whatever order its neighbours have it.
            contents, since = reader.contents, self._since[reader]
            assert len(contents) == len(set(contents))
            assert set(self.expected[since:]) <= set(contents) <= set(self.expected)

    async def dropped(self, reasons: str, count: int, *nodes: Network) -> None:
        """Wait until each of these nodes, or all, has dropped so many frames for such reasons."""
        among, name = nodes or tuple(self.nodes), f"{self.stream.id}#0"

        def so_many(node: Network) -> bool:
            dropped = node.metrics["parts"].get(name, {}).get("dropped", {})
            return sum(dropped.get(reason, 0) for reason in reasons.split()) >= count

        await eventually(lambda: all(map(so_many, among)), f"{count} frames dropped: {reasons}")

    # --- Rights ---------------------------------------------------------------------------

    async def allow(self, rights: dict[NodeId, str]) -> None:
        """Give rights, or take all with an empty word; wait until all honest nodes know."""
        await self.stream.set_permissions(
            {show(user): tuple(r.split()) for user, r in rights.items()}
        )
        version = self.nodes[0].node.registry.version(self.stream.id)
        await eventually(
            lambda: all(n.node.registry.version(self.stream.id) >= version for n in self.nodes),
            "everybody has heard of the rights",
        )


async def settle(nodes: Iterable[Network], stream: str) -> None:
    """Wait until each of a few nodes is the neighbour of all others."""
    among = list(nodes)
    await all_linked(among, stream, len(among) - 1)


@asynccontextmanager
async def town(
    folder: Path, *, guests: int = GUESTS, trackers: int = 1, path: str = "town", **options: Any
) -> AsyncIterator[Town]:
    """Let the owner create a stream, private unless it is said to be public, and guests read it."""
    async with live_network(folder, trackers) as live, AsyncExitStack() as stack:
        yield await inhabit(live, stack, guests, path, **options)


async def inhabit(
    live: LiveNetwork, stack: AsyncExitStack, guests: int, path: str, **options: Any
) -> Town:
    """Do so in a network that is there already; spies leave with the stack."""
    owner = await live.join()
    place = Town(live, stack, await owner.create_stream(path, **options))
    users = [new_key()[0] for _ in range(guests)]
    if users:
        await place.stream.set_permissions({show(user.node): "subscribe" for user in users})
    await place.add(owner)
    for user in users:
        await place.add(await live.join(user))
    await settle(place.nodes, place.stream.id)
    await place.publish("before")
    return place
