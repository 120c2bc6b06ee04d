"""Storage nodes that were away, over real sockets: what was published meanwhile is stored later."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch import Network, NotStored, Stream, connect
from anabranch.core.ids import StreamPart
from anabranch.live.keys import load_or_make_key
from anabranch.live.local import LocalNetwork
from anabranch.live.storage.process import StorageProcess
from live.networks import LiveNetwork, eventually, live_network, neighbours, run

AWAY_S = 3.0
RELAYS = 5
OLD_S = 4.0  # a newcomer does not ask its neighbours for such frames


def all_met(relays: list[Network], stream: Stream) -> bool:
    return all(neighbours(relay, stream.id) == RELAYS - 1 for relay in relays)


async def relay(live: LiveNetwork, stream: str) -> Network:
    """Start a node that neither publishes nor reads, and forwards a stream."""
    network = await live.join()
    subscription = (await network.stream(stream)).carry()
    await subscription.__aenter__()
    return network


def stored(storage: StorageProcess, stream: Stream, messages: int) -> Callable[[], bool]:
    """Return what tells whether so many messages are settled."""
    part = StreamPart(stream.id, 0)

    def is_stored() -> bool:
        status = storage.storage.status(part)
        return status is not None and status.high == messages

    return is_stored


async def publish(publisher: Network, name: str, count: int) -> None:
    """Publish from a node that leaves at once."""
    async with publisher:
        stream = await publisher.stream(name)
        for at in range(0, count, 500):
            await asyncio.gather(*(stream.publish(number) for number in range(at, at + 500)))


async def past(stream: Stream) -> list[object]:
    async with stream.history() as messages:
        return [message.content async for message in messages]


def test_what_was_published_while_storage_was_down_is_stored_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            owner = await live.join()
            stream = await owner.create_stream("kept", storage=1, public="subscribe")
            # Five relays with four neighbours each lack nothing: they hand over nothing alone.
            relays = [await relay(live, stream.id) for _ in range(RELAYS)]
            await eventually(lambda: all_met(relays, stream), "they have met")
            before = live.storage[0].entry()
            await live.storage[0].stop()
            await eventually(lambda: all_met(relays, stream), "they have each other")
            with pytest.raises(NotStored, match="500 messages are not known to be stored"):
                await publish(live.connect(close_wait_s=0.1), stream.id, 500)
            await asyncio.sleep(OLD_S)
            ports = [int(place.rpartition(":")[2]) for place in (before.address, before.http)]
            live.storage[0] = await live.start_storage(0, port=ports[0], http_port=ports[1])
            await eventually(stored(live.storage[0], stream, 500), "all of it is stored")
            assert sorted(await past(stream)) == list(range(500))  # type: ignore[type-var]
            assert live.storage[0].storage.comparisons.counts["taken"] > 0

    run(main())


def test_what_was_published_while_the_storage_process_was_stopped_is_stored_later(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        local = LocalNetwork(tmp_path / "network")
        try:
            await local.start(trackers=1, nodes=2, storage=1)
            [storage] = local.storage
            storage.signal(signal.SIGSTOP)
            stopped = asyncio.get_running_loop().time()
            key = load_or_make_key(local.owner_key)
            async with connect(local.address, key=key) as creator:
                name = (await creator.create_stream("x/y", storage=1)).id
            with pytest.raises(NotStored, match="3000 messages are not known to be stored"):
                await publish(connect(local.address, key=key, close_wait_s=0.1), name, 3_000)
            spent = asyncio.get_running_loop().time() - stopped
            await asyncio.sleep(max(0.0, AWAY_S - spent))
            storage.signal(signal.SIGCONT)
            async with connect(local.address, key=key) as reader:
                stream = await reader.stream(name)
                contents = await past(stream)
                until = asyncio.get_running_loop().time() + 30
                while len(contents) < 3_000 and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(0.5)
                    contents = await past(stream)
            assert sorted(contents) == list(range(3_000))  # type: ignore[type-var]
        finally:
            for child in local.storage:
                child.signal(signal.SIGCONT)
            await local.stop()

    run(main(), timeout_s=120.0)
