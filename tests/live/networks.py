"""Small live networks over real sockets, for tests: a tracker and nodes in this process."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from anabranch import Network, Stream, connect
from anabranch.core.identity import Identity
from anabranch.core.ids import StreamPart
from anabranch.live.address import NetworkAddress
from anabranch.live.keys import new_key
from anabranch.live.loop import run as run_on_loop
from anabranch.live.storage.process import StorageProcess
from anabranch.live.tracker import TrackerProcess
from support.waiting import eventually as eventually
from support.waiting import within

T = TypeVar("T")
TIMEOUT_S = 60.0


def run(main: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
    """Run a test's coroutine, and fail rather than hang."""

    async def bounded() -> T:
        return await within(timeout_s, main)

    return run_on_loop(bounded())


class LiveNetwork:
    """Trackers in this process, and the nodes that a test asks for."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.owner = new_key()[0]
        self.trackers: list[TrackerProcess] = []
        self.storage: list[StorageProcess] = []
        self.address: NetworkAddress
        self._stack = stack

    async def add_tracker(self) -> TrackerProcess:
        """Start a tracker; the first founds the network."""
        join = self.address if self.trackers else None
        tracker = await self.start_tracker(len(self.trackers), join=join)
        self.trackers.append(tracker)
        if join is None:
            self.address = tracker.address
        return tracker

    async def start_tracker(
        self, index: int, port: int = 0, http_port: int = 0, **more: Any
    ) -> Any:
        """Start a tracker from its folder, for the first time or again."""
        tracker = TrackerProcess(
            self.folder / f"tracker-{index}",
            port=port,
            http_port=http_port,
            owner=self.owner,
            **more,
        )
        await tracker.start()
        try:
            await tracker.take_place()
        except BaseException:
            await tracker.stop()  # a loop with a socket that listens would never end
            raise
        return tracker

    async def add_storage(self, **more: Any) -> StorageProcess:
        """Start one more storage node, which the network's owner names."""
        storage = await self.start_storage(len(self.storage), **more)
        self.storage.append(storage)
        return storage

    async def start_storage(self, index: int, **more: Any) -> StorageProcess:
        """Start a storage node from its folder, for the first time or again."""
        storage = StorageProcess(self.folder / f"storage-{index}", self.address, **more)
        await storage.start()
        try:
            assert await storage.take_place(self.owner)
        except BaseException:
            await storage.stop()
            raise
        return storage

    async def join(self, key: Identity | None = None, **more: Any) -> Network:
        """Connect a node that leaves when the test ends; by default it has the owner's key."""
        return await self.enter(self.connect(key, **more))

    def connect(self, key: Identity | None = None, **more: Any) -> Network:
        """Name a node of this network, that a test enters and leaves itself."""
        return connect(str(self.address), key=key or self.owner, **more)

    async def enter(self, network: Network) -> Network:
        """Start a node that a test has made; it leaves when the test ends."""
        return await self._stack.enter_async_context(network)


@asynccontextmanager
async def live_network(
    folder: Path, trackers: int = 1, storage: int = 0
) -> AsyncIterator[LiveNetwork]:
    """Run trackers and storage nodes; whatever was started ends with the context."""
    async with AsyncExitStack() as stack:
        live = LiveNetwork(folder, stack)
        try:
            for _ in range(trackers):
                await live.add_tracker()
            for _ in range(storage):
                await live.add_storage()
            yield live
            await stack.aclose()
        finally:
            for storage in live.storage:
                await storage.stop()
            for tracker in live.trackers:
                await tracker.stop()


def neighbours(network: Network, stream: str, partition: int = 0) -> int:
    """Return how many neighbours a node has."""
    return len(network.node.peer.neighbours(StreamPart(stream, partition)))


@asynccontextmanager
async def traffic(stream: Stream, every_s: float = 0.01) -> AsyncIterator[list[int]]:
    """Publish numbers until the context ends; the list holds those that a neighbour took."""
    published: list[int] = []
    ended = asyncio.Event()

    async def publish() -> None:
        while not ended.is_set():
            await stream.publish(len(published))
            published.append(len(published))
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), every_s)

    publishing = asyncio.create_task(publish())
    try:
        yield published
    finally:
        ended.set()
        await publishing


async def restart_tracker(live: LiveNetwork, index: int) -> TrackerProcess:
    """Start a tracker that was stopped, where it was."""
    before = live.trackers[index].entry()
    ports = [int(address.rpartition(":")[2]) for address in (before.address, before.http)]
    live.trackers[index] = tracker = await live.start_tracker(index, *ports)
    return tracker
