"""A node that carries streams for others: it counts, reads nothing and keeps nothing."""

import asyncio
from collections.abc import Sequence
from types import TracebackType

from anabranch.live.client import Network
from anabranch.live.errors import AnabranchError, Closed, NotPermitted
from anabranch.live.subscription import Subscription

LOOK_EVERY_S = 2.0  # how often a node that carries every stream looks for new ones


class Carrier:
    """Carries streams by name, or all there are that it may."""

    def __init__(self, network: Network, streams: Sequence[str], every: bool) -> None:
        self.carried: dict[str, asyncio.Task[None]] = {}
        self._network = network
        self._streams = streams
        self._every = every
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Carrier":
        for name in self._streams:
            await self._carry(name)
        if self._every:
            await self._look()
            self._looking = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = [*self.carried.values()]
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except Closed:
                return  # the node has left, or has failed: there is nothing to look for
            except AnabranchError:
                continue  # the registry is out of reach: what we carry goes on

    async def _look(self) -> None:
        for name in [name for name, task in self.carried.items() if task.done()]:
            self.carried.pop(name).exception()  # it was deleted, and may come again
        for name in await self._network.streams():
            if name not in self.carried:
                try:
                    await self._carry(name)
                except NotPermitted:
                    continue

    async def _carry(self, name: str) -> None:
        stream = await self._network.stream(name)
        subscription = stream.carry()
        await subscription.__aenter__()
        self.carried[stream.id] = asyncio.create_task(_read(subscription))


async def _read(subscription: Subscription) -> None:
    """Empty a mailbox for ever: carrying is done before a message gets there."""
    async with subscription:
        await subscription.discard()
