"""A node that carries: it counts every message and keeps none."""

import asyncio
from typing import Any

import pytest

from anabranch import MessageId, Network, NoSuchStream, NotPermitted, Stream
from anabranch.core.ids import StreamPart
from anabranch.live import carrier
from anabranch.live.carrier import Carrier
from anabranch.live.keys import new_key
from anabranch.live.memory_network import MemoryNetwork
from live.networks import eventually, run


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "LOOK_EVERY_S", 0.05)


def delivered(network: Network, stream: str) -> int:
    return int(network.metrics["parts"].get(f"{stream}#0", {}).get("delivered", 0))


async def publish_all(stream: Stream, count: int) -> list[MessageId]:
    return await asyncio.gather(*(stream.publish(number) for number in range(count)))


def test_what_is_carried_is_counted_and_not_kept() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            async with Carrier(bob, [stream.id], every=False) as carrying:
                count = 3_000
                await publish_all(stream, count)
                await eventually(lambda: delivered(bob, stream.id) == count, "all counted")
                assert list(carrying.carried) == [stream.id]
                assert bob.metrics["parts"][f"{stream.id}#0"]["missed"] == 0
                [subscription] = bob.node._subscriptions.of(StreamPart(stream.id, 0))
                assert subscription.waiting == 0

    run(main())


def test_a_carrier_brings_messages_to_those_who_read() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory:
            nodes = [await memory.join().__aenter__() for _ in range(8)]
            stream = await nodes[0].create_stream("a", degree=2)
            async with Carrier(nodes[1], [stream.id], every=False):
                read = await nodes[2].stream(stream.id)
                async with read.subscribe() as messages:
                    await stream.publish("hello")
                    assert (await anext(aiter(messages))).content == "hello"
            for node in nodes:
                await node.close()

    run(main())


def test_every_stream_is_found_even_a_later_one_and_one_that_comes_again() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            first = await alice.create_stream("first")
            async with Carrier(bob, [], every=True) as carrying:
                assert list(carrying.carried) == [first.id]
                later = await alice.create_stream("later")
                await later.publish(1)
                await eventually(lambda: delivered(bob, later.id) == 1, "the later stream")
                await later.delete()
                await eventually(lambda: later.id not in carrying.carried, "its end")
                again = await alice.create_stream("later")
                await eventually(lambda: again.id in carrying.carried, "its return")
                before = delivered(bob, again.id)
                await again.publish(2)
                await eventually(lambda: delivered(bob, again.id) > before, "its messages")

    run(main())


def test_what_is_not_permitted_is_passed_over_unless_it_was_asked_for() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice:
            closed = await alice.create_stream("closed")
            opened = await alice.create_stream("open", public="subscribe")
            async with memory.join(new_key()[0]) as stranger:
                async with Carrier(stranger, [], every=True) as carrying:
                    assert list(carrying.carried) == [opened.id]
                    await closed.grant(stranger.me, "subscribe")
                    await eventually(lambda: closed.id in carrying.carried, "the permission")
                    await closed.revoke(stranger.me)
                theirs = await stranger.stream(closed.id)
                await eventually(lambda: not theirs.may("subscribe"), "its end")
                await _fails_to_carry(stranger, closed.id, NotPermitted)
                await _fails_to_carry(stranger, closed.id[:-1], NoSuchStream)

    run(main())


async def _fails_to_carry(network: Network, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await Carrier(network, [name], every=False).__aenter__()


def test_who_has_left_the_network_looks_for_no_more_streams() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            await alice.create_stream("a")
            async with Carrier(bob, [], every=True) as carrying:
                looking = carrying._looking
                assert looking is not None
                await bob.close()
                await eventually(looking.done, "its end")
                assert looking.exception() is None

    run(main())


def test_after_the_end_nothing_is_carried() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            async with Carrier(bob, [stream.id], every=True) as carrying:
                tasks: list[asyncio.Task[Any]] = [*carrying.carried.values()]
            assert all(task.done() for task in tasks)
            assert list(bob.node.members()) == []

    run(main())
