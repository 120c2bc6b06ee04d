"""Storage nodes over real sockets, one of which has a damaged disk."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch import HistoryLost, Stream
from anabranch.core.ids import StreamPart
from anabranch.core.store import Missing
from anabranch.live.storage.process import StorageProcess
from anabranch.live.storage.scrub import request_scrub
from live.networks import LiveNetwork, eventually, live_network, run

PAGE = 4_096
MESSAGES = 120


async def filled(live: LiveNetwork) -> Stream:
    network = await live.join()
    stream = await network.create_stream("kept", storage=len(live.storage), public="subscribe")
    # One by one, so that each is a frame, and by a node that leaves with what it holds.
    async with live.connect() as publisher:
        its = await publisher.stream(stream.id)
        for n in range(MESSAGES):
            await its.publish_stored(f"{n:>200}", len(live.storage))
    return stream


def zero_pages_of(path: Path, *contents: str) -> None:
    """Write zeros over the pages in which some messages stand."""
    data = bytearray(path.read_bytes())
    for content in contents:
        at = data.find(content.encode())
        assert at >= 0
        page = at // PAGE * PAGE
        data[page : page + PAGE] = bytes(PAGE)
    path.write_bytes(data)


async def health(storage: StorageProcess) -> tuple[int, dict[str, Any]]:
    def ask() -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{storage.http.address}/health") as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return await asyncio.to_thread(ask)


async def past(stream: Stream, **options: Any) -> list[int]:
    async with stream.history(**options) as messages:
        return [int(message.content) async for message in messages]


async def read_into(got: list[int], history: Any) -> None:
    async with history as messages:
        async for message in messages:
            got.append(int(message.content))


async def read_offsets(offsets: list[int], stream: Stream) -> None:
    async for batch in stream.batches(0, MESSAGES):
        offsets += batch.column("offset").to_pylist()


def test_a_damaged_page_is_repaired_from_the_other_storage_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            stream = await filled(live)
            folder = live.storage[0]._folder
            await live.storage[0].stop()
            zero_pages_of(folder / "logs.sqlite", f"{60:>200}", f"{20:>200}")
            storage = live.storage[0] = await live.start_storage(0)
            request_scrub(folder)
            await eventually(lambda: storage.scrub.state.found > 0, "the damage is found", 40.0)
            assert await past(stream) == list(range(MESSAGES))
            await eventually(lambda: not storage.store.missing(), "it is repaired", 40.0)
            status, body = await health(storage)
            assert (status, body["damage"]["messages"]) == (200, 0)
            assert body["scrub"]["found"] > 0
            await live.storage[1].stop()
            await live.storage[2].stop()
            assert await past(stream) == list(range(MESSAGES))
            for index in (1, 2):
                live.storage[index] = await live.start_storage(index)

    run(main())


def test_a_storage_node_that_is_alone_says_what_it_lacks_and_sends_the_rest(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            stream = await filled(live)
            folder = live.storage[0]._folder
            await live.storage[0].stop()
            zero_pages_of(folder / "logs.sqlite", f"{60:>200}")
            storage = live.storage[0] = await live.start_storage(0)
            part = StreamPart(stream.id, 0)
            high = lambda: getattr(storage.storage.status(part), "high", 0)  # noqa: E731
            await eventually(lambda: high() == MESSAGES, "all is settled")
            for options in ({"offsets": (0, None)}, {}):
                got: list[int] = []
                with pytest.raises(HistoryLost, match="messages, at offsets") as caught:
                    await read_into(got, stream.history(**options))
                lost = [n for start, end in caught.value.lost for n in range(start, end)]
                assert 3 < len(lost) < 40
                assert sorted(got) == [n for n in range(MESSAGES) if n not in lost]
                assert f"{len(lost)} messages" in str(caught.value)
            offsets: list[int] = []
            with pytest.raises(HistoryLost) as columns:
                await read_offsets(offsets, stream)
            assert columns.value.lost == caught.value.lost
            assert offsets == sorted(got)
            status, body = await health(storage)
            assert (status, body["status"]) == (503, "damaged")
            assert body["damage"]["messages"] == len(lost)
            assert body["damage"]["kept_aside"].endswith("logs.sqlite-damaged")
            await stream.publish_stored(f"{MESSAGES:>200}", 1)

    run(main())


def test_what_all_three_storage_nodes_lack_is_named_by_every_way_to_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            stream = await filled(live)
            folders = [storage._folder for storage in live.storage]
            for storage in live.storage:
                await storage.stop()
            contents = [f"{n:>200}" for n in (0, 60, MESSAGES - 1)]  # at the ends, too
            for folder in folders:
                zero_pages_of(folder / "logs.sqlite", *contents)
            for index, folder in enumerate(folders):
                live.storage[index] = await live.start_storage(index)
                request_scrub(folder)
            part = StreamPart(stream.id, 0)
            lacking = lambda: [offsets_in(missing_of(each, part)) for each in live.storage]  # noqa: E731
            await eventually(lambda: all(lacking()), "all have found their damage", 40.0)
            # A node with holes leads only when both others have refused each of them.
            await eventually(lambda: is_led(live, part), "one of them leads", 150.0)
            for storage in live.storage:  # what one has the others have filled in, or will
                assert {0, 60, MESSAGES - 1} <= offsets_in(missing_of(storage, part))
            got: list[int] = []
            with pytest.raises(HistoryLost) as caught:
                await read_into(got, stream.history(offsets=(0, None)))
            lost = [n for start, end in caught.value.lost for n in range(start, end)]
            assert {0, 60, MESSAGES - 1} <= set(lost) <= set.union(*lacking())
            assert sorted(got) == [n for n in range(MESSAGES) if n not in lost]
            for options in ({}, {"last": MESSAGES}, {"offsets": (0, MESSAGES), "last": 100}):
                some: list[int] = []
                with pytest.raises(HistoryLost) as caught:
                    await read_into(some, stream.history(**options))
                named = {n for start, end in caught.value.lost for n in range(start, end)}
                wanted = set(range(MESSAGES - options.get("last", MESSAGES), MESSAGES))
                assert wanted - named <= set(some), options
                assert f"{len(named)} messages" in str(caught.value)
            offsets: list[int] = []
            with pytest.raises(HistoryLost) as columns:
                await read_offsets(offsets, stream)
            named = {n for start, end in columns.value.lost for n in range(start, end)}
            assert {0, 60, MESSAGES - 1} <= named
            assert offsets == [n for n in range(MESSAGES) if n not in named]
            for storage in live.storage:
                status, body = await health(storage)
                assert (status, body["status"]) == (503, "damaged")

    run(main(), timeout_s=300.0)


def offsets_in(missing: Sequence[Missing]) -> set[int]:
    return {n for hole in missing for n in range(hole.start, hole.end)}


def missing_of(storage: StorageProcess, part: StreamPart) -> Sequence[Missing]:
    return storage.store.missing().get(part, ())


def is_led(live: LiveNetwork, part: StreamPart) -> bool:
    """Tell whether the storage nodes agree on who leads, and on all that is settled."""
    every = [storage.storage.status(part) for storage in live.storage]
    stands = {(each.primary, each.high) if each is not None else None for each in every}
    return len(stands) == 1 and all(each is not None and each.primary for each in every)
