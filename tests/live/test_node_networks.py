"""Networks of few and of many nodes, over real sockets: each just works, and nobody warns."""

import asyncio
import logging
from pathlib import Path

import pytest

from anabranch import NotPublished
from live.networks import live_network, neighbours, run
from live.readers import Reader, all_have, all_linked, all_read, read, read_everywhere

DEGREE = 4
PUBLISHERS = 5  # of the larger networks


@pytest.mark.parametrize("size", [2, 3, 5, 32])
def test_everyone_gets_everything_once(
    size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(size)]
            name = (await nodes[0].create_stream("all", degree=DEGREE)).id
            readers = await read_everywhere(nodes, name)
            degree = min(DEGREE, size - 1)
            await all_linked(nodes, name, degree)
            streams = [await node.stream(name) for node in nodes[:PUBLISHERS]]
            published: list[str] = []
            for turn in range(3):
                texts = [f"{index} says {turn}" for index in range(len(streams))]
                await asyncio.gather(*(s.publish(t) for s, t in zip(streams, texts, strict=True)))
                published += texts
                # Whatever came twice or late in one turn is seen in the next.
                await all_have(readers, len(published))
            for reader in readers:
                assert sorted(reader.contents) == sorted(published)
                for said in reader.by_chain().values():
                    assert [text[-1] for text in said] == ["0", "1", "2"]
            for node in nodes:
                assert neighbours(node, name) == degree
                metrics = node.metrics
                assert metrics["notices"] == {}
                assert metrics["links_lost"] == 0
                assert metrics["parts"][f"{name}#0"]["dropped"] == {}

    with caplog.at_level(logging.WARNING):
        run(main())
    assert caplog.record_tuples == []


def test_who_is_alone_hears_itself_and_is_told_that_nobody_else_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node = await live.join(patience_s=0.2)
            stream = await node.create_stream("alone")
            reader = await read(stream)
            with pytest.raises(NotPublished, match=r"nobody else is in .*alone#0"):
                await stream.publish("is anybody there?")
            assert reader.contents == ["is anybody there?"]
            assert node.metrics["notices"] == {}

    run(main())


def test_what_was_published_alone_reaches_who_comes_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            first = await live.join()
            stream = await first.create_stream("early")
            publishing = asyncio.create_task(stream.publish("first"))
            reader = await read(await (await live.join()).stream(stream.id))
            await publishing
            await all_have([reader], 1)
            assert reader.contents == ["first"]

    run(main())


def test_nodes_that_come_one_after_another_and_leave_again(tmp_path: Path) -> None:
    """From one to seven and back to one: whoever is there at the time gets everything."""

    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join(patience_s=60.0)]
            stream = await nodes[0].create_stream("tide")
            readers: list[Reader] = await read_everywhere(nodes, stream.id)
            sizes = [2, 3, 4, 5, 6, 7, 6, 5, 4, 3, 2]
            for turn, size in enumerate(sizes):
                if size > len(nodes):
                    nodes.append(await live.join())
                    readers += await read_everywhere(nodes[-1:], stream.id)
                else:
                    await nodes.pop().close()
                    readers.pop()
                await stream.publish(turn)
                await all_read(readers, turn)
            assert readers[0].contents == list(range(len(sizes)))

    run(main())
