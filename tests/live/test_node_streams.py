"""Many streams over few links, and partitions: what goes where, in which order."""

import asyncio
from pathlib import Path

import pytest

from anabranch import LocalError, Network, Stream
from anabranch.core.ids import MAX_PARTITIONS
from anabranch.core.parts import MAX_PARTS
from live.networks import eventually, live_network, neighbours, run
from live.readers import all_have, all_linked, read, read_everywhere

STREAMS = 20
PARTITIONS = 5


def test_however_many_streams_two_nodes_share_one_link(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            owned = [await nodes[0].create_stream(f"stream/{i}") for i in range(STREAMS)]
            readers = [await read_everywhere(nodes, stream.id) for stream in owned]
            for stream in owned:
                await all_linked(nodes, stream.id, 2)
            peers = {node.node.node for node in nodes}
            tracker = live.trackers[0].identity.node
            for node in nodes:
                assert set(node.node.driver.links) == peers - {node.node.node} | {tracker}
                assert node.node.peer.sizes()["parts"][0] == STREAMS
            streams = [await nodes[i % 3].stream(stream.id) for i, stream in enumerate(owned)]
            await asyncio.gather(*(s.publish(i) for i, s in enumerate(streams)))
            for i, of_stream in enumerate(readers):
                await all_have(of_stream, 1)
                assert [reader.contents for reader in of_stream] == [[i]] * 3

    run(main())


def test_a_link_stays_while_any_stream_needs_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            kept, left = [await nodes[0].create_stream(name) for name in ("kept", "left")]
            readers = await read_everywhere(nodes, kept.id)
            leaving = await read_everywhere(nodes, left.id)
            other = nodes[1].node.node
            await all_linked(nodes, kept.id, 1)
            await all_linked(nodes, left.id, 1)
            link = nodes[0].node.driver.links[other]
            for reader in leaving:
                await reader.stop()
            await eventually(lambda: neighbours(nodes[0], left.id) == 0, "the end of a stream")
            await kept.publish("still here")
            await all_have(readers, 1)
            assert nodes[0].node.driver.links[other] is link

    run(main())


async def parted(nodes: list[Network]) -> tuple[Stream, Stream]:
    """Create a stream of several partitions; return it as two nodes hold it."""
    stream = await nodes[0].create_stream("parts", partitions=PARTITIONS)
    return stream, await nodes[1].stream(stream.id)


def test_one_key_goes_to_one_partition_in_its_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            streams = await parted(nodes)
            reader = (await read_everywhere(nodes, streams[0].id))[2]
            await all_linked(nodes, streams[0].id, 2, PARTITIONS)
            keys = [f"vehicle {i}" for i in range(30)]
            for turn in range(4):
                ids = await asyncio.gather(
                    *(
                        stream.publish([place, key, turn], key=key if place else key.encode())
                        for place, stream in enumerate(streams)
                        for key in keys
                    )
                )
                assert len(set(ids)) == len(ids)
            await all_have([reader], 2 * 4 * len(keys))
            came: dict[tuple[int, str], list[int]] = {}
            places: dict[str, set[int]] = {}
            for message in reader.messages:
                place, key, turn = message.content
                came.setdefault((place, key), []).append(turn)
                places.setdefault(key, set()).add(message.partition)
            assert all(turns == [0, 1, 2, 3] for turns in came.values())
            assert len(came) == 2 * len(keys)
            assert all(len(partitions) == 1 for partitions in places.values())
            assert set.union(*places.values()) == set(range(PARTITIONS))

    run(main())


def test_messages_without_a_key_take_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            ours, theirs = await parted(nodes)
            reader = await read(theirs)
            ids = [await ours.publish(i) for i in range(2 * PARTITIONS)]
            assert sorted(i.partition for i in ids) == sorted([*range(PARTITIONS)] * 2)
            await all_have([reader], len(ids))
            assert {message.id for message in reader.messages} == set(ids)
            assert {str(message.id) for message in reader.messages} == set(map(str, ids))

    run(main())


def test_who_wants_some_partitions_gets_those_and_joins_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(3)]
            ours, theirs = await parted(nodes)
            everything = await read(theirs)
            some = await read(await nodes[2].stream(ours.id), partitions=[1, 3, 1])
            one = await read(await nodes[2].stream(ours.id), partitions=3)
            for partition in range(PARTITIONS):
                await ours.publish(f"in {partition}", partition=partition)
            await ours.publish("last", partition=3)
            await all_have([everything], PARTITIONS + 1)
            await all_have([some], 3)
            await all_have([one], 2)
            assert sorted(some.contents) == ["in 1", "in 3", "last"]
            assert one.contents == ["in 3", "last"]
            assert [part.partition for part in nodes[2].node.members()] == [1, 3]
            await one.stop()
            await ours.publish("more", partition=3)
            await all_have([some], 4)

    run(main())


def test_partitions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            stream = await (await live.join()).create_stream("few", partitions=2)
            for wrong in (2, -1):
                with pytest.raises(LocalError, match="partitions 0 to 1"):
                    stream.subscribe(wrong)
                with pytest.raises(LocalError, match="partitions 0 to 1"):
                    await stream.publish("x", partition=wrong)
            with pytest.raises(LocalError, match="not both"):
                await stream.publish("x", partition=1, key="k")

    run(main())


def test_who_joins_more_parts_than_a_node_can_is_told_and_keeps_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            many = MAX_PARTS // MAX_PARTITIONS
            streams = [
                await nodes[0].create_stream(f"many/{i}", partitions=MAX_PARTITIONS)
                for i in range(many + 1)
            ]
            readers = [await read(stream, partitions=range(99)) for stream in streams]
            await readers[-1].ended
            assert "at most 1000" in str(readers[-1].failure)
            assert nodes[0].node.peer.sizes()["parts"][0] == many * 99
            await (await nodes[1].stream(streams[0].id)).publish("heard", partition=0)
            await all_have(readers[:1], 1)

    run(main())
