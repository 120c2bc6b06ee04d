"""Keys of messages, end to end: whoever reads a message has the key it was published with."""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from anabranch import LocalError, Message, Network, Stream, TooLarge
from anabranch.core.ids import StreamPart
from anabranch.core.messages.data import CONTENT_JSON, KEYED, MAX_CONTENT_BYTES, MAX_KEY_BYTES
from live.networks import eventually, live_network, neighbours, run
from live.readers import all_have, read

PARTITIONS = 4
# What is published, with which key, and the key that comes
KEYED_CONTENTS: list[tuple[Any, str | bytes | None, bytes | None]] = [
    ({"speed": 50}, "bus 7", b"bus 7"),
    ("grüße", "köln", "köln".encode()),
    (b"\0\1", b"\xff\0", b"\xff\0"),
    ([], "", b""),
    ("", b"k" * MAX_KEY_BYTES, b"k" * MAX_KEY_BYTES),
    (b"\0\2id", None, None),
]


def facts(messages: list[Message]) -> list[tuple[Any, bytes | None, str]]:
    return sorted(((m.content, m.key, m.problem) for m in messages), key=repr)


EXPECTED = sorted(((content, key, "") for content, _, key in KEYED_CONTENTS), key=repr)


async def past(stream: Stream) -> list[Message]:
    async with stream.history() as messages:
        return [message async for message in messages]


async def publish_raw(network: Network, stream: Stream, content: bytes, content_type: int) -> None:
    """Publish what no client makes."""
    part = StreamPart(stream.id, 0)
    await network.node.publish(part, content, content_type, lambda: None, 0).outcome


@pytest.mark.parametrize("public", ["subscribe", ()], ids=["public", "private"])
def test_a_key_comes_with_its_message_live_and_stored(tmp_path: Path, public: Any) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            nodes = [await live.join() for _ in range(2)]
            options: Any = {"storage": 1, "public": public, "partitions": PARTITIONS}
            stream = await nodes[0].create_stream("keyed", **options)
            theirs = await nodes[1].stream(stream.id)
            reader = await read(theirs)
            for content, given, key in KEYED_CONTENTS:
                receipt = await stream.publish_stored(content, key=given)
                if key is not None:
                    assert receipt.id.partition == zlib.crc32(key) % PARTITIONS
            await all_have([reader], len(KEYED_CONTENTS))
            assert facts(reader.messages) == EXPECTED
            assert facts(await past(theirs)) == EXPECTED

    run(main())


def test_a_key_is_a_column_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            stream = await (await live.join()).create_stream("c", storage=1, public="subscribe")
            await stream.publish_stored("plain")
            await stream.publish_stored({"n": 1}, key="bus")
            rows = [row async for batch in stream.batches() for row in batch.to_pylist()]
            columns = [(row["key"], row["content_type"], row["value"]) for row in rows]
            assert columns == [(None, 2, b"plain"), (b"bus", 1, b'{"n":1}')]

    run(main())


def test_a_key_that_cannot_be_sent_is_the_callers_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("keyed")
            reader = await read(await nodes[1].stream(stream.id))
            wrong: list[Any] = ["k" * (MAX_KEY_BYTES + 1), "é" * MAX_KEY_BYTES, 7, "\ud800"]
            for key in wrong:
                with pytest.raises(LocalError, match="key"):
                    await stream.publish("x", key=key)
            largest = bytes(MAX_CONTENT_BYTES - len(b"\0\3bus"))
            with pytest.raises(TooLarge, match=f"of {MAX_CONTENT_BYTES + 1:,} bytes"):
                await stream.publish(largest + b"!", key="bus")
            await stream.publish(largest, key="bus")
            await all_have([reader], 1)
            assert facts(reader.messages) == [(largest, b"bus", "")]

    run(main())


def test_a_key_that_is_cut_off_stops_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("keyed", storage=1, public="subscribe")
            theirs = await nodes[1].stream(stream.id)
            reader = await read(theirs)
            # What comes before the storage node does has its place after what it was handed.
            await eventually(lambda: neighbours(nodes[1], stream.id) == 1, "the storage node")
            cut_off = [b"", b"\0", b"\0\5bus", b"\xff\xff{}"]
            await asyncio.gather(
                *(publish_raw(nodes[0], stream, each, KEYED | CONTENT_JSON) for each in cut_off)
            )
            await stream.publish_stored("after", key="bus")
            await all_have([reader], len(cut_off) + 1)
            why = "no key where content type 129 promises one"
            expected = [(each, None, why) for each in cut_off] + [("after", b"bus", "")]
            for messages in (reader.messages, await past(theirs)):
                assert [(m.content, m.key, m.problem) for m in messages] == expected
            assert reader.subscription.unreadable == 0
            rows = [row async for batch in theirs.batches() for row in batch.to_pylist()]
            columns = [(row["value"], row["key"], row["content_type"]) for row in rows]
            assert columns == [(each, None, 129) for each in cut_off] + [(b"after", b"bus", 2)]

    run(main())
