"""Storage nodes over real sockets: what is published is kept, sent again, and signed for."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from anabranch import Network, NotStored, Stream
from anabranch.core.errors import LocalError
from anabranch.core.identity import KnownKeys
from anabranch.core.ids import StreamPart, parse_node
from anabranch.core.receipts import check_receipt
from anabranch.live.errors import AnabranchError, NetworkUnreachable, NotPermitted
from anabranch.live.keys import new_key
from live.networks import LiveNetwork, eventually, live_network, run


async def read(stream: Stream, count: int, **options: Any) -> list[Any]:
    """Subscribe, and return the contents of the first so many messages."""
    contents: list[Any] = []
    async with stream.subscribe(**options) as messages:
        async for message in messages:
            contents.append(message.content)
            if len(contents) == count:
                break
    return contents


async def past(stream: Stream, *times: Any, **options: Any) -> list[Any]:
    """Return the contents of what is stored."""
    async with stream.history(*times, **options) as messages:
        return [message.content async for message in messages]


async def filled(live: LiveNetwork, messages: int, **options: Any) -> tuple[Network, Stream]:
    """Publish numbers to a new stream that every storage node keeps, and see them stored."""
    network = await live.join()
    stream = await network.create_stream("kept", storage=len(live.storage), **options)
    copies = len(live.storage)
    await asyncio.gather(*(stream.publish_stored(n, copies) for n in range(messages)))
    return network, stream


@pytest.mark.parametrize("public", ["subscribe", ()], ids=["public", "private"])
def test_the_past_can_be_read_by_number_by_time_and_by_offset(tmp_path: Path, public: Any) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            network, stream = await filled(live, 50, public=public)
            everything = list(range(50))
            assert await past(stream) == everything
            assert await past(stream, last=7) == everything[-7:]
            assert await past(stream, timedelta(minutes=5)) == everything
            assert await past(stream, 0, timedelta(minutes=5)) == []
            assert await past(stream, offsets=(10, 20)) == everything[10:20]
            assert await past(stream, offsets=(45, None)) == everything[45:]
            assert await past(stream, offsets=(0, 20), last=3) == everything[17:20]
            assert await past(stream, publisher=network.me) == everything
            assert await past(stream, publisher="0x" + "11" * 20) == []
            name = await stream.publish("one more")
            await eventually(lambda: True, "")
            assert (await past(stream, publisher=network.me, chain=name.chain))[:50] == everything

    run(main())


def test_a_newcomer_reads_the_past_and_goes_on_into_the_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=2) as live:
            _, stream = await filled(live, 300)
            theirs = await (await live.join()).stream(stream.id)
            reading = asyncio.create_task(read(theirs, 400, since=0))
            for n in range(300, 400):
                await stream.publish(n)
            assert await reading == list(range(400))
            reading = asyncio.create_task(read(theirs, 110, last=10))
            await eventually(lambda: bool(theirs._node.members()), "the reader is there")
            for n in range(400, 500):
                await stream.publish(n)
            got = await reading
            assert got == list(range(got[0], got[0] + 110))
            assert got[0] in range(300, 500)  # a storage node may be a little behind

    run(main())


def test_a_receipt_is_signed_by_so_many_storage_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            _, stream = await filled(live, 0)
            receipts = [await stream.publish_stored({"n": n}, copies=2) for n in range(3)]
            assert [receipt.offset for receipt in receipts] == [0, 1, 2]
            kept = {storage.identity.node for storage in live.storage}
            for receipt in receipts:
                assert len({*receipt.nodes}) >= 2
                assert {parse_node(node) for node in receipt.nodes} <= kept
                for node, word in receipt.words:
                    part = StreamPart(stream.id, 0)
                    genesis = live.address.genesis
                    check_receipt(genesis, part, KnownKeys().verify, node, word)
            with pytest.raises(LocalError, match="3 storage nodes"):
                await stream.publish_stored("x", copies=4)

    run(main())


def test_who_may_not_read_gets_nothing_of_the_past(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            _, stream = await filled(live, 3)
            stranger = await (await live.join(new_key()[0])).stream(stream.id)
            with pytest.raises(NotPermitted):
                stranger.history()

    run(main())


def test_a_stream_that_nobody_keeps_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            network = await live.join()
            stream = await network.create_stream("gone")
            for call in (stream.history, lambda: stream.subscribe(last=5)):
                with pytest.raises(NotStored, match="no storage node keeps"):
                    call()
            with pytest.raises(NotStored):
                await stream.publish_stored("x")
            with pytest.raises(LocalError, match="this network has 0"):
                await network.create_stream("other", storage=1)

    run(main())


def test_what_is_kept_outlives_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            _, stream = await filled(live, 20)
            before = live.storage[0].entry()
            await live.storage[0].stop()
            ports = [int(place.rpartition(":")[2]) for place in (before.address, before.http)]
            live.storage[0] = await live.start_storage(0, port=ports[0], http_port=ports[1])
            assert await past(stream) == list(range(20))
            assert (await stream.publish_stored("more")).offset == 20

    run(main())


def test_a_storage_node_that_is_named_later_copies_what_there_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            network, stream = await filled(live, 20)
            second = await live.add_storage()
            nodes = [storage.network.me for storage in live.storage]
            await eventually(lambda: len(network.node.registry.storage) == 2, "both are named")
            await stream.edit(storage=nodes)
            part = StreamPart(stream.id, 0)

            def copied() -> bool:
                status = second.storage.status(part)
                return status is not None and status.high == 20

            await eventually(copied, "the second has copied the log")
            await live.storage[0].stop()
            assert await past(stream) == list(range(20))
            live.storage.pop(0)

    run(main())


def test_much_of_the_past_comes_in_columns_from_any_storage_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=2) as live:
            _, stream = await filled(live, 40, public="subscribe")
            rows = [row async for batch in stream.batches(5, 30) for row in batch.to_pylist()]
            assert [row["offset"] for row in rows] == list(range(5, 30))
            assert [int(row["value"]) for row in rows] == list(range(5, 30))
            await live.storage.pop(0).stop()
            rows = [row async for batch in stream.batches() for row in batch.to_pylist()]
            assert [int(row["value"]) for row in rows] == list(range(40))
            await live.storage.pop(0).stop()
            with pytest.raises(NetworkUnreachable, match="from offset 0 on"):
                _ = [batch async for batch in stream.batches()]

    run(main())


def test_a_private_stream_comes_in_frames_and_only_to_its_readers(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            _, stream = await filled(live, 10)
            rows = [r async for b in stream.batches(form="frames") for r in b.to_pylist()]
            assert sum(row["count"] for row in rows) == 10
            with pytest.raises(AnabranchError, match="encrypted"):
                _ = [batch async for batch in stream.batches()]
            stranger = await (await live.join(new_key()[0])).stream(stream.id)
            with pytest.raises(NotPermitted):
                _ = [batch async for batch in stranger.batches(form="frames")]

    run(main())
