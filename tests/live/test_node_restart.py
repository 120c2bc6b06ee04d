"""Nodes that come late, leave, come back, and lose their links: nothing is lost on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from anabranch import Stream
from anabranch.live.keys import new_key
from anabranch.live.room import IN_FLIGHT
from live.networks import eventually, live_network, run
from live.readers import Reader, all_have, all_linked, cut_links, read, read_everywhere


class Ticker:
    """Publishes numbers, one after another, for as long as it is let."""

    def __init__(self, stream: Stream, every_s: float) -> None:
        self.begun = 0  # how many publications have begun
        self._stream = stream
        self._every_s = every_s
        self._ended = False

    async def run(self) -> None:
        """Publish until told to end."""
        while not self._ended:
            self.begun += 1
            await self._stream.publish(self.begun - 1)
            await asyncio.sleep(self._every_s)

    def end(self) -> None:
        """Publish no more."""
        self._ended = True

    async def beyond(self, more: int) -> None:
        """Wait until so many more have been published."""
        goal = self.begun + more
        await eventually(lambda: self.begun >= goal, f"{more} more messages")


@asynccontextmanager
async def ticking(stream: Stream, every_s: float = 0.002) -> AsyncIterator[Ticker]:
    """Let a stream tick; all that was begun is published when the context ends."""
    ticker = Ticker(stream, every_s)
    running = asyncio.create_task(ticker.run())
    yield ticker
    ticker.end()
    await running


async def assert_complete(reader: Reader, first: int, count: int) -> None:
    """Everything from `first` on came, once; of what was before, some may have come."""
    await eventually(
        lambda: set(reader.contents) >= set(range(first, count)), f"messages {first} to {count - 1}"
    )
    assert len(set(reader.contents)) == len(reader.contents)
    assert reader.failure is None


def test_who_comes_late_gets_everything_from_then_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            stream = await nodes[0].create_stream("late")
            readers = await read_everywhere(nodes, stream.id)
            began: list[int] = [0, 0, 0]
            async with ticking(stream) as ticker:
                for _ in range(4):
                    await ticker.beyond(20)
                    late = await (await live.join()).stream(stream.id)
                    began.append(ticker.begun)
                    readers.append(await read(late))
                await ticker.beyond(20)
            for reader, first in zip(readers, began, strict=True):
                await assert_complete(reader, first, ticker.begun)
            for reader in readers[:3]:
                assert reader.contents == list(range(ticker.begun))

    run(main())


def test_who_restarts_under_its_name_hears_and_is_heard_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            identity = new_key()[0]
            others = [await live.join() for _ in range(2)]
            stream = await others[0].create_stream("again")
            readers = await read_everywhere(others, stream.id)
            for turn in range(4):
                node = await live.join(node_key=identity)
                assert node.node.node == identity.node
                its_stream = await node.stream(stream.id)
                its_reader = await read(its_stream)
                await all_linked([*others, node], stream.id, 2)
                await stream.publish(f"to {turn}")
                await its_stream.publish(f"from {turn}")
                both = {f"to {turn}", f"from {turn}"}
                # Of what was said before it came back it may hear again: it has forgotten all.
                await eventually(lambda r=its_reader, b=both: set(r.contents) >= b, "both words")
                await all_have(readers, 2 * (turn + 1))
                if turn % 2:
                    await cut_links(node.node)
                    await node.close(0.0)
                else:
                    await node.close()
            for reader in readers:
                assert len(set(reader.contents)) == len(reader.contents) == 8

    run(main())


def test_who_hangs_is_replaced_by_its_restarted_self(tmp_path: Path) -> None:
    """The old links stand and nobody serves them, as when a machine has lost its power."""

    async def main() -> None:
        async with live_network(tmp_path) as live:
            other = await live.join()
            stream = await other.create_stream("hung")
            reader = await read(stream)
            identity = new_key()[0]
            while identity.node > other.node.node:  # the lower name dials: it must be who is back
                identity = new_key()[0]
            hung = await live.join(node_key=identity)
            await read(await hung.stream(stream.id))
            await all_linked([other, hung], stream.id, 1)
            hung.node.driver.detach()
            node = await live.join(node_key=identity)
            its_stream = await node.stream(stream.id)
            its_reader = await read(its_stream)
            await its_stream.publish("I am back")
            await stream.publish("welcome")
            await all_have([reader, its_reader], 2)
            assert (
                sorted(its_reader.contents) == sorted(reader.contents) == ["I am back", "welcome"]
            )

    run(main())


def test_what_was_published_before_leaving_arrives(tmp_path: Path) -> None:
    """Even what waits for room, and what no task has begun to publish yet."""

    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("farewell")
            readers = await read_everywhere(nodes, stream.id)
            leaving = await live.join()
            farewell = await leaving.stream(stream.id)
            count = IN_FLIGHT + 500
            tasks = [asyncio.create_task(farewell.publish(i)) for i in range(count)]
            await leaving.close()
            await all_have(readers, count)
            assert all(reader.contents == list(range(count)) for reader in readers)
            ids = await asyncio.gather(*tasks)
            assert sorted(ids) == ids

    run(main())


def test_cut_links_are_not_noticed_by_the_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(6)]
            stream = await nodes[0].create_stream("cut", degree=3)
            readers = await read_everywhere(nodes, stream.id)
            await all_linked(nodes, stream.id, 3)
            async with ticking(stream, every_s=0.005) as ticker:
                for node in nodes[:3]:  # the publisher first
                    await ticker.beyond(5)
                    assert await cut_links(node.node) >= 4  # the tracker's is one of them
                    await all_linked(nodes, stream.id, 3)
                await ticker.beyond(5)
            for reader in readers:
                await assert_complete(reader, 0, ticker.begun)

    run(main())


def test_a_tracker_that_restarts_is_not_noticed_by_the_reader(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            stream = await nodes[0].create_stream("tracker")
            readers = await read_everywhere(nodes, stream.id)
            await all_linked(nodes, stream.id, 2)
            async with ticking(stream, every_s=0.02) as ticker:
                await ticker.beyond(5)
                tracker = live.trackers.pop()
                port = tracker.address.hosts[0].port
                await tracker.stop()
                await ticker.beyond(20)
                live.trackers.append(await live.start_tracker(0, port=port))
                nodes.append(await live.join())
                first = ticker.begun
                late = (await read_everywhere(nodes[-1:], stream.id))[0]
                await all_linked(nodes, stream.id, 3)
                await ticker.beyond(5)
            await assert_complete(late, first, ticker.begun)
            await all_have(readers, ticker.begun)
            for reader in readers:
                assert reader.contents == list(range(ticker.begun))

    run(main())
