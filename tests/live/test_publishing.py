"""Messages that are handed over at once: what is awaited, and what need not be."""

import asyncio

import pytest

from anabranch import Closed, LocalError, NotPublished, TooLarge
from anabranch.live.memory_network import MemoryNetwork
from live.networks import run
from live.readers import all_have, read


def test_many_in_a_row_leave_together_and_each_has_its_id() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a", partitions=2)
            reader = await read(await bob.stream(stream.id))
            handed = [stream.publish_soon({"n": n}, partition=n % 2) for n in range(100)]
            names = [await each for each in handed]
            assert len(set(names)) == 100
            assert [name.partition for name in names] == [0, 1] * 50
            assert await handed[0] == names[0]  # as often as one likes
            await all_have([reader], 100)
            came = {(m.partition, m.timestamp_ms, m.sequence) for m in reader.messages}
            assert came == {(n.partition, n.timestamp_ms, n.sequence) for n in names}

    run(main())


def test_who_does_not_await_it_has_published_all_the_same() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as bob:
            async with memory.join() as alice:
                stream = await alice.create_stream("a", public=["subscribe"])
                reader = await read(await bob.stream(stream.id))
                stream.publish_soon("last words", key="k")
            await all_have([reader], 1)
            assert reader.messages[0].key == b"k"

    run(main())


def test_what_is_wrong_is_said_at_once_or_when_it_is_awaited() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory:
            async with memory.join(patience_s=0.2) as alice:
                stream = await alice.create_stream("a")
                with pytest.raises(TooLarge, match="split it"):
                    stream.publish_soon(bytes(2_000_000))
                with pytest.raises(LocalError, match="not both"):
                    stream.publish_soon(1, key="k", partition=0)
                with pytest.raises(NotPublished, match="no neighbour took"):
                    await stream.publish_soon(1)
                waiting = stream.publish_soon(2)
            with pytest.raises((Closed, NotPublished)):
                await waiting
            with pytest.raises(Closed):
                stream.publish_soon(3)

    run(main())


def test_who_gives_up_awaiting_it_takes_nothing_back() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice:
            stream = await alice.create_stream("a", public=["subscribe"])
            handed = stream.publish_soon("patience")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_of(handed), 0.05)
            async with memory.join() as bob:
                reader = await read(await bob.stream(stream.id))
                await all_have([reader], 1)
                assert reader.contents == ["patience"]

    async def _of(handed: object) -> object:
        return await handed  # type: ignore[misc]

    run(main())
