"""Publishing: what can be sent, many at once, and what is said of what cannot."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anabranch import Closed, LocalError, MessageId, Network, NotPublished, Stream, TooLarge
from anabranch.core.messages.data import MAX_CONTENT_BYTES
from live.networks import live_network, run
from live.readers import all_have, all_linked, read, read_everywhere

CONTENTS: list[tuple[Any, Any, str]] = [
    ({"id": 7, "speed": 12.5, "tags": ["a", None, True]}, None, "json"),
    ([1, [2, {"three": 3}]], None, "json"),
    (-12, None, "json"),
    (None, None, "json"),
    (True, None, "json"),
    ({}, None, "json"),
    ((1, 2), [1, 2], "json"),
    ("text, Grüße, 你好", None, "text"),
    ("", None, "text"),
    ('{"json": "in a text"}', None, "text"),
    (b"\x00\xff", None, "bytes"),
    (b"", None, "bytes"),
    (bytearray(b"array"), b"array", "bytes"),
    (memoryview(b"view"), b"view", "bytes"),
]


async def pair(live: Any, name: str = "pair", **options: Any) -> tuple[list[Network], Stream]:
    """Join two nodes and create a stream at the first."""
    nodes = [await live.join(**options) for _ in range(2)]
    return nodes, await nodes[0].create_stream(name)


def test_what_is_published_comes_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            readers = await read_everywhere(nodes, stream.id)
            await all_linked(nodes, stream.id, 1)
            ids = [await stream.publish(content) for content, _, _ in CONTENTS]
            await all_have(readers, len(CONTENTS))
            for place, reader in enumerate(readers):
                for message, sent, name in zip(reader.messages, CONTENTS, ids, strict=True):
                    content, expected, kind = sent
                    assert message.content == (content if expected is None else expected)
                    assert type(message.content) is type(content if expected is None else expected)
                    assert (message.content_type, message.problem) == (kind, "")
                    assert (message.id, message.stream) == (name, stream.id)
                    assert (message.publisher, message.hops) == (nodes[0].me, place)

    run(main())


def test_the_largest_message_passes_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            reader = await read(await nodes[1].stream(stream.id))
            largest = bytes(range(256)) * (MAX_CONTENT_BYTES // 256)
            largest += bytes(MAX_CONTENT_BYTES - len(largest))
            for too_large in (largest + b"!", "é" * (MAX_CONTENT_BYTES // 2 + 1), [largest.hex()]):
                with pytest.raises(TooLarge, match=f"at most {MAX_CONTENT_BYTES:,}"):
                    await stream.publish(too_large)
            await asyncio.gather(*(stream.publish(largest) for _ in range(3)))
            await stream.publish("small")
            await all_have([reader], 4)
            assert reader.contents == [largest] * 3 + ["small"]

    run(main())


def test_what_is_neither_json_nor_text_nor_bytes_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            reader = await read(await nodes[1].stream(stream.id))
            endless: list[Any] = []
            endless.append(endless)
            for wrong in (object(), {1: {2, object()}}, "\ud800", endless, lambda: 1):
                with pytest.raises(LocalError, match="publish a dict, a list, text or bytes"):
                    await stream.publish(wrong)
            await stream.publish("good")
            await all_have([reader], 1)
            assert reader.contents == ["good"]

    run(main())


def test_a_thousand_at_once_have_a_thousand_names_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            readers = await read_everywhere(nodes, stream.id)
            await all_linked(nodes, stream.id, 1)
            ids: list[MessageId] = await asyncio.gather(*(stream.publish(i) for i in range(1_000)))
            assert len(set(ids)) == 1_000
            assert sorted(ids) == ids
            await all_have(readers, 1_000)
            for reader in readers:
                assert reader.contents == list(range(1_000))
                assert [message.id for message in reader.messages] == ids

    run(main())


def test_who_is_cancelled_while_publishing_disturbs_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            publishing = [asyncio.create_task(stream.publish(i)) for i in range(20)]
            await asyncio.sleep(0)
            for task in publishing[::2]:
                task.cancel()
            reader = await read(await nodes[1].stream(stream.id))
            done = await asyncio.gather(*publishing, return_exceptions=True)
            assert [isinstance(result, MessageId) for result in done] == [False, True] * 10
            await stream.publish("after")
            await all_have([reader], 21)  # what was handed over is not called back
            assert sorted(map(str, reader.contents)) == sorted([*map(str, range(20)), "after"])

    run(main())


def test_closing_while_publishing_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live)
            theirs = await nodes[1].stream(stream.id)
            reader = await read(stream)
            await read(theirs)
            await all_linked(nodes, stream.id, 1)
            sent: list[int] = []

            async def publish_on(first: int) -> None:
                for number in range(first, 1_000_000, 10):
                    await theirs.publish(number)
                    sent.append(number)

            publishing = [asyncio.create_task(publish_on(i)) for i in range(10)]
            await all_have([reader], 100)
            await nodes[1].close()
            done = await asyncio.gather(*publishing, return_exceptions=True)
            assert [type(result) for result in done] == [Closed] * 10
            # What was said to be published came, and nothing else.
            await all_have([reader], len(sent))
            assert sorted(reader.contents) == sorted(sent)

    run(main())


def test_nobody_waits_for_ever_where_nobody_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, stream = await pair(live, patience_s=0.2)
            done = await asyncio.gather(
                *(stream.publish(i) for i in range(50)), return_exceptions=True
            )
            assert {type(result) for result in done} == {NotPublished}
            waiting = [asyncio.create_task(stream.publish(i)) for i in range(50)]
            await nodes[0].close(drain_s=0.0)
            done = await asyncio.gather(*waiting, return_exceptions=True)
            assert {type(result) for result in done} == {Closed}

    run(main())
