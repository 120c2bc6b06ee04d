"""Many publications at once: some wait for room, in their order, and nobody loses its place."""

import asyncio

import pytest

from anabranch import Closed, Stream
from anabranch.live import room as rooms
from anabranch.live.memory_network import MemoryNetwork
from live.networks import eventually, run
from live.readers import all_have, read


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "IN_FLIGHT", 10)


def under_way(stream: Stream) -> tuple[int, int, int]:
    room = stream._node.publications.room(stream.id)
    return room.messages, room.bytes, len(room.waiting)


def test_who_waits_goes_before_who_comes_later() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            reader = await read(await bob.stream(stream.id))
            tasks = [asyncio.create_task(stream.publish(number)) for number in range(500)]
            late = 500
            while not all(task.done() for task in tasks[:500]):
                assert under_way(stream)[0] <= 10
                tasks.append(asyncio.create_task(stream.publish(late)))
                late += 1
                await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            await all_have([reader], late)
            assert reader.contents == list(range(late))
            assert under_way(stream) == (0, 0, 0)

    run(main())


def test_what_is_handed_over_at_once_waits_in_the_same_line() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            reader = await read(await bob.stream(stream.id))
            handed, late = [], 0
            while late < 500:
                for _ in range(1 + late % 7):
                    handed.append(stream.publish_soon(late))
                    handed.append(asyncio.create_task(stream.publish(late + 1)))
                    await asyncio.sleep(0)  # a task has its turn only now
                    late += 2
                assert under_way(stream)[0] <= 10
            names = [await each for each in handed]
            await all_have([reader], late)
            assert reader.contents == list(range(late))
            assert [name.timestamp_ms for name in names] == sorted(n.timestamp_ms for n in names)
            assert under_way(stream) == (0, 0, 0)

    run(main())


def test_what_waits_for_room_is_published_though_nobody_awaits_it() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as bob:
            async with memory.join() as alice:
                stream = await alice.create_stream("a", public=["subscribe"])
                reader = await read(await bob.stream(stream.id))
                for number in range(100):
                    stream.publish_soon(number)
                assert under_way(stream)[::2] == (10, 90)
            await all_have([reader], 100)
            assert reader.contents == list(range(100))

    run(main())


def test_bytes_need_room_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "IN_FLIGHT_BYTES", 100)

    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            reader = await read(await bob.stream(stream.id))
            tasks = [asyncio.create_task(stream.publish(bytes(60))) for _ in range(20)]
            await asyncio.sleep(0)
            assert under_way(stream) == (2, 120, 18)
            await asyncio.gather(*tasks)
            await all_have([reader], 20)
            assert under_way(stream) == (0, 0, 0)

    run(main())


def test_who_is_cancelled_while_it_waits_leaves_its_room_to_others() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            tasks = [asyncio.create_task(stream.publish(number)) for number in range(40)]
            await asyncio.sleep(0)  # nobody else is there: ten are under way, thirty wait
            assert under_way(stream)[::2] == (10, 30)
            for task in tasks[::2]:
                task.cancel()
            reader = await read(await bob.stream(stream.id))
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [task.cancelled() for task in tasks] == [True, False] * 20
            await all_have([reader], 20)
            # What was under way when it was cancelled is on its way all the same.
            assert [n for n in reader.contents if n % 2] == list(range(1, 40, 2))
            assert under_way(stream) == (0, 0, 0)

    run(main())


def test_who_is_cancelled_keeps_its_room_until_the_outcome_of_its_message() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            tasks = [asyncio.create_task(stream.publish(number)) for number in range(12)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            await asyncio.sleep(0)
            assert under_way(stream)[::2] == (10, 2)  # the message is on its way all the same
            reader = await read(await bob.stream(stream.id))
            await asyncio.gather(*tasks[1:])
            await all_have([reader], 12)
            assert tasks[0].cancelled()
            assert under_way(stream) == (0, 0, 0)

    run(main())


def test_all_who_publish_to_a_stream_share_its_room() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice:
            stream = await alice.create_stream("a")
            again = await alice.stream("a")
            tasks = [asyncio.create_task(s.publish(1)) for s in (stream, again) for _ in range(8)]
            await asyncio.sleep(0)
            assert under_way(stream)[::2] == under_way(again)[::2] == (10, 6)
            await alice.close(0.0)
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_the_end_of_the_connection_ends_those_who_wait() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice:
            stream = await alice.create_stream("a")
            tasks = [asyncio.create_task(stream.publish(number)) for number in range(40)]
            await asyncio.sleep(0)
            await alice.close(0.0)
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end) for end in ends] == [Closed] * 40
            await eventually(lambda: under_way(stream) == (0, 0, 0), "room for nobody")

    run(main())
