"""Nodes in a process of their own, that do as they are told from outside."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from anabranch import Network, Subscription, connect
from anabranch.live.keys import new_key
from flooding.harness import PATIENCE_S, SPAWN
from flooding.streams import subscribe

JOINING_AT_ONCE = 10


class Crowd:
    """The near end: what it says is done in the other process, one word after the other."""

    def __init__(self, address: str) -> None:
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_be_crowd, args=(address, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid or 0

    async def join(self, shares: list[list[str]]) -> None:
        """Start one more node for each list of streams, and let it join them."""
        await self._tell("join", shares)

    async def join_more(self, names: list[str]) -> None:
        """Let the first node join more streams."""
        await self._tell("join_more", names)

    async def links(self) -> int:
        """Return how many links the first node has to others that are no trackers."""
        return int(await self._tell("links"))

    async def received(self) -> int:
        """Return how many messages the first node has received."""
        return int(await self._tell("received"))

    async def publish(self, rounds: int, size: int) -> None:
        """Let the first who is in a stream publish messages there, each alone in its frame."""
        await self._tell("publish", rounds, size)

    async def close(self) -> None:
        """End the process, and with it all of its nodes."""
        self._pipe.close()
        await asyncio.to_thread(self._process.join, PATIENCE_S)

    async def _tell(self, *words: Any) -> Any:
        self._pipe.send(words)
        return await asyncio.to_thread(self._pipe.recv)


def _be_crowd(address: str, pipe: Connection) -> None:
    uvloop.run(_Nodes(address).obey(pipe))


class _Nodes:
    """The far end."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._networks: list[Network] = []
        self._publishers: dict[str, Network] = {}
        self._count = 0
        self._reading: set[asyncio.Task[None]] = set()

    async def obey(self, pipe: Connection) -> None:
        """Do what the other end says until it is closed."""
        with suppress(EOFError):
            while True:
                name, *words = await asyncio.to_thread(pipe.recv)
                do: Callable[..., Coroutine[Any, Any, Any]] = getattr(self, name)
                pipe.send(await do(*words))
        os._exit(0)  # nobody is left who would notice a goodbye

    async def join(self, shares: list[list[str]]) -> None:
        for at in range(0, len(shares), JOINING_AT_ONCE):
            await asyncio.gather(*map(self._join, shares[at : at + JOINING_AT_ONCE]))

    async def _join(self, names: list[str]) -> None:
        network = await connect(self._address, key=new_key()[0]).__aenter__()
        self._networks.append(network)
        await self._subscribe(network, names)

    async def join_more(self, names: list[str]) -> None:
        await self._subscribe(self._networks[0], names)

    async def _subscribe(self, network: Network, names: list[str]) -> None:
        for name in names:
            self._publishers.setdefault(name, network)
        for subscription in await subscribe(network, names):
            task = asyncio.create_task(self._read(subscription, network is self._networks[0]))
            self._reading.add(task)

    async def _read(self, subscription: Subscription, counts: bool) -> None:
        async for _ in subscription:
            self._count += counts

    async def links(self) -> int:
        node = self._networks[0].node
        trackers = {entry.node for entry in node.registry.trackers}
        return len(node.driver.links.keys() - trackers)

    async def received(self) -> int:
        return self._count

    async def publish(self, rounds: int, size: int) -> None:
        streams = [await network.stream(name) for name, network in self._publishers.items()]
        for _ in range(rounds):
            await asyncio.gather(*(stream.publish(os.urandom(size)) for stream in streams))
