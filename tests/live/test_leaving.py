"""Messages whose storage nodes are away: kept, offered again, waited for, counted."""

import asyncio
import time
from pathlib import Path

import pytest

from anabranch import LocalError, Network, NotStored, Stream
from anabranch.core.ids import StreamPart
from anabranch.core.unstored import Unstored
from anabranch.live import leaving
from anabranch.live.keys import new_key
from live.networks import LiveNetwork, eventually, live_network, run


async def stored(live: LiveNetwork, name: str) -> int:
    """Return how many messages of a stream are stored, by a node of its own."""
    async with live.connect() as network:
        stream = await network.stream(name)
        async with stream.history() as history:
            return len([message async for message in history])


def is_linked_or_done(network: Network) -> bool:
    return network.node._unstored.is_linked or not network.node.unstored()


async def publish(stream: Stream, count: int) -> None:
    await asyncio.gather(*(stream.publish(number) for number in range(count)))


def test_leaving_waits_for_a_storage_node_that_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live, live.connect() as carrier:
            stream = await carrier.create_stream("a", storage=1)
            async with stream.subscribe():
                assert await stored(live, stream.id) == 0
                await live.storage[0].stop()
                publisher = live.connect()
                await publisher.__aenter__()
                await publish(await publisher.stream(stream.id), 300)
                closing = asyncio.create_task(publisher.close())
                await asyncio.sleep(0.5)
                assert not closing.done()
                live.storage[0] = await live.start_storage(0)
                await closing
                assert await stored(live, stream.id) == 300

    run(main())


def test_messages_that_are_not_stored_are_counted_and_raised_when_leaving(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live, live.connect() as carrier:
            stream = await carrier.create_stream("a", storage=1)
            async with stream.subscribe():
                await live.storage[0].stop()
                publisher = await live.connect(close_wait_s=0.3).__aenter__()
                await publish(await publisher.stream(stream.id), 300)
                part = StreamPart(stream.id, 0)
                assert publisher.node.unstored() == {part: Unstored(300, 0)}
                shown = {str(part): {"waiting": 300, "given_up": 0}}
                assert publisher.metrics["unstored"] == shown
                with pytest.raises(NotStored, match="300 messages are not known") as caught:
                    await publisher.__aexit__(None, None, None)
                assert (caught.value.messages, caught.value.streams) == (300, {stream.id: 300})
                await publisher.close()  # it is said once
                publisher = await live.connect().__aenter__()
                await publish(await publisher.stream(stream.id), 3)
                error = ZeroDivisionError()  # which is under way, and must not be replaced
                await publisher.__aexit__(ZeroDivisionError, error, None)
                publisher = await live.connect().__aenter__()
                await publish(await publisher.stream(stream.id), 3)
                with pytest.raises(ZeroDivisionError):
                    await fail_and_close(publisher)
                live.storage[0] = await live.start_storage(0)

    async def fail_and_close(publisher: Network) -> None:
        try:
            raise ZeroDivisionError
        finally:
            await publisher.close(0.0)

    run(main())


def test_the_metrics_of_a_network_can_be_read_before_it_is_joined(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            assert live.connect().metrics["unstored"] == {}

    run(main())


def test_after_one_full_wait_later_ones_are_short_until_one_succeeds(tmp_path: Path) -> None:
    async def leave(live: LiveNetwork, name: str) -> float:
        publisher = await live.connect(close_wait_s=3.0).__aenter__()
        await publish(await publisher.stream(name), 1)
        began = time.monotonic()
        try:
            await publisher.close()
        except NotStored:
            return time.monotonic() - began
        return 0.0

    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live, live.connect() as carrier:
            stream = await carrier.create_stream("a", storage=1)
            async with stream.subscribe():
                await live.storage[0].stop()
                assert await leave(live, stream.id) >= 3.0
                assert live.address.genesis in leaving._away
                assert 0.0 < await leave(live, stream.id) < 2.5
                live.storage[0] = await live.start_storage(0)
                while await leave(live, stream.id):
                    pass
                assert live.address.genesis not in leaving._away

    run(main())


def test_a_short_wait_is_a_full_one_when_storage_nodes_are_linked_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live, live.connect() as carrier:
            stream = await carrier.create_stream("a", storage=1)
            async with stream.subscribe():
                await live.storage[0].stop()
                folder = tmp_path / "data"
                publisher = await live.connect(data=folder, close_wait_s=0.2).__aenter__()
                await publish(await publisher.stream(stream.id), 1_500)
                with pytest.raises(NotStored):
                    await publisher.close()
                assert leaving._away[live.address.genesis] is False
                live.storage[0] = await live.start_storage(0)
                again = await live.connect(data=folder, close_wait_s=30.0).__aenter__()
                await eventually(lambda: is_linked_or_done(again), "there is a link")
                await again.close()
                assert live.address.genesis not in leaving._away
                assert await stored(live, stream.id) == 1_500

    run(main())


def test_the_wait_stays_short_where_linked_storage_nodes_do_not_sign() -> None:
    network = b"w" * 32
    try:
        assert leaving.close_wait_s(network, 10.0, False) == 10.0
        leaving.note_wait(network, False, False)
        assert leaving.close_wait_s(network, 10.0, False) == leaving.SHORT_WAIT_S
        assert leaving.close_wait_s(network, 10.0, True) == 10.0
        leaving.note_wait(network, False, True)
        assert leaving.close_wait_s(network, 10.0, True) == leaving.SHORT_WAIT_S
        leaving.note_wait(network, True, True)
        assert leaving.close_wait_s(network, 10.0, False) == 10.0
    finally:
        leaving._away.pop(network, None)


# --- The data folder ------------------------------------------------------------------------


def test_messages_in_a_data_folder_are_stored_by_the_next_process_that_uses_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live, live.connect() as carrier:
            stream = await carrier.create_stream("a", storage=1)
            folder = tmp_path / "data"
            async with stream.subscribe():
                await live.storage[0].stop()
                publisher = await live.connect(data=folder, close_wait_s=0.2).__aenter__()
                await publish(await publisher.stream(stream.id), 300)
                node = publisher.node.node
                with pytest.raises(NotStored, match="300 of them are kept in"):
                    await publisher.close()
                live.storage[0] = await live.start_storage(0)
                assert await stored(live, stream.id) == 0
                async with live.connect(data=folder) as again:  # it does not publish there
                    assert again.node.node == node
                    await eventually(lambda: not again.node.unstored(), "everything is stored")
                assert await stored(live, stream.id) == 300
                async with live.connect(data=folder) as again:
                    assert not again.node.unstored()

    run(main())


def test_a_data_folder_is_for_one_process_one_user_and_one_network(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "data"
        async with live_network(tmp_path / "1") as live:
            async with live.connect(data=folder):
                with pytest.raises(LocalError, match=r"another process uses .*--data"):
                    await live.connect(data=folder).__aenter__()
            with pytest.raises(LocalError, match=r"belongs to 0x.*--data"):
                await live.connect(new_key()[0], data=folder).__aenter__()
            async with live_network(tmp_path / "2") as other:
                with pytest.raises(LocalError, match="belongs to another network"):
                    await connect_as(other, live, folder).__aenter__()
            await (await live.connect(data=folder).__aenter__()).close()

    def connect_as(other: LiveNetwork, live: LiveNetwork, folder: Path) -> Network:
        return other.connect(live.owner, data=folder)

    run(main())
