"""A whole network in one process, without sockets: the same machines, imitated links."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from anabranch import NetworkUnreachable, NotPermitted, NotPublished
from anabranch.core.ids import NodeId, StreamPart
from anabranch.live.keys import new_key
from anabranch.live.memory_network import MemoryNetwork
from live.networks import eventually, run
from live.readers import all_have, read


def test_what_one_publishes_all_others_get() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            memory = await stack.enter_async_context(MemoryNetwork())
            nodes = [await stack.enter_async_context(memory.join()) for _ in range(10)]
            stream = await nodes[0].create_stream("a")
            readers = [await read(await node.stream(stream.id)) for node in nodes]
            ids = await asyncio.gather(*(stream.publish({"n": n}) for n in range(100)))
            await all_have(readers, 100)
            for reader in readers:
                assert reader.contents == [{"n": n} for n in range(100)]
                assert [message.id for message in reader.messages] == ids
            part = StreamPart(stream.id, 0)
            await eventually(
                lambda: all(len(node.node.peer.neighbours(part)) == 4 for node in nodes),
                "four neighbours each",
            )

    run(main())


def test_keys_and_permissions_are_those_of_a_real_network() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as owner:
            stream = await owner.create_stream("a", public="subscribe")
            assert owner.me == f"0x{memory.owner.node.hex()}"
            key = new_key()[0]
            async with memory.join(key) as guest:
                theirs = await guest.stream(stream.id)
                reader = await read(stream)
                with pytest.raises(NotPermitted):
                    await theirs.publish(1)
                await stream.grant(guest.me, "publish")
                await eventually(lambda: theirs.may("publish"), "the permission")
                await theirs.publish(2)
                await all_have([reader], 1)
                [message] = reader.messages
                assert (message.content, message.publisher) == (2, guest.me)

    run(main())


def test_packets_take_as_long_as_one_says() -> None:
    async def main() -> None:
        slow: list[NodeId] = []

        def delay_s(a: NodeId, b: NodeId) -> float:
            return 0.05 if a in slow and b in slow else 0.0

        async with MemoryNetwork(delay_s) as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            reader = await read(await bob.stream(stream.id))
            await stream.publish("fast")
            slow.extend((alice.node.node, bob.node.node))
            await stream.publish("slow")
            await all_have([reader], 2)
            assert reader.contents == ["fast", "slow"]
            assert reader.messages[1].delay_ms >= 49  # clocks are read in whole milliseconds

    run(main())


def test_who_is_alone_is_told_so() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join(patience_s=0.2) as alone:
            stream = await alone.create_stream("a")
            with pytest.raises(NotPublished, match="nobody else is in"):
                await stream.publish(1)

    run(main())


def test_nobody_joins_a_network_that_has_ended() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory:
            network = memory.join()
        with pytest.raises(NetworkUnreachable):
            await network.__aenter__()

    run(main())


def test_two_networks_know_nothing_of_each_other() -> None:
    async def main() -> None:
        async with (
            MemoryNetwork() as one,
            MemoryNetwork() as other,
            one.join() as alice,
            other.join() as bob,
        ):
            await alice.create_stream("a")
            assert len(await alice.streams()) == 1
            assert await bob.streams() == []

    run(main())
