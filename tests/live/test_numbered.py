"""Messages under numbers of one's own choice, through nodes that know nothing of each other."""

import time
from pathlib import Path

import pytest

from anabranch import LocalError, Network, NotPublished, NotStored
from anabranch.core.chain_order import WAIT_S
from anabranch.core.ids import number_of
from anabranch.live.keys import new_key
from anabranch.live.numbered import Numbered
from live.networks import live_network, run
from live.readers import all_have, read

CHAIN = 0xABC


def messages(first: int, *contents: bytes) -> list[Numbered]:
    return [Numbered(first + at, content) for at, content in enumerate(contents)]


def now() -> int:
    return number_of(int(time.time() * 1000), 0)


@pytest.mark.parametrize("public", [("subscribe",), ()], ids=["public", "private"])
def test_two_nodes_of_a_user_publish_one_frame_and_both_have_its_receipt(
    tmp_path: Path, public: tuple[str, ...]
) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=2) as live:
            owner = await live.join()
            stream = await owner.create_stream("numbered", storage=2, public=public)
            reader = await read(stream)
            first, frames = now(), [b"a", b"b"]
            receipts = []
            for place in range(2):  # with key stores of their own
                store = tmp_path / f"keys-{place}"
                async with live.connect(key_store=store) as node:
                    there = await node.stream(stream.id)
                    one = await there.publish_numbered(CHAIN, 0, messages(first, *frames), 2)
                    two = await there.publish_numbered(CHAIN, first + 1, messages(first + 2, b"c"))
                    receipts.append((one.offset, two.offset, one.id))
                    found = await there.find_numbered(CHAIN, first)
                    assert [(m.number, m.content) for m in found] == [
                        *((first, b"a"), (first + 1, b"b"), (first + 2, b"c"))
                    ]
            assert receipts[0] == receipts[1]
            assert receipts[0][:2] == (0, 2)
            await stream.publish_stored(b"end")
            await all_have([reader], 4)
            assert reader.contents == [b"a", b"b", b"c", b"end"]

    run(main())


def test_our_own_messages_keep_their_chain(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            stream = await (await live.join()).create_stream("both", storage=1)
            before = await stream.publish("before")
            given = await stream.publish_numbered(CHAIN, 0, messages(now(), b"x"))
            after = await stream.publish("after")
            assert before.chain == after.chain != given.id.chain == f"{CHAIN:016x}"

    run(main())


def test_message_that_is_stored_after_its_successor_is_late_wherever_it_is_seen(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=2) as live:
            owner = await live.join()
            stream = await owner.create_stream("late", storage=2, public=["subscribe"])
            first = now()
            began = time.monotonic()
            after = await stream.publish_numbered(CHAIN, first, messages(first + 1, b"second"), 2)
            assert time.monotonic() > began + WAIT_S, "what is missing is waited for"
            before = await stream.publish_numbered(CHAIN, 0, messages(first, b"first"), 2)
            assert (after.offset, after.late, before.offset, before.late) == (0, False, 1, True)
            async with stream.history(offsets=(0, None)) as past:
                found = {message.content: message.late async for message in past}
            assert found == {b"second": False, b"first": True}
            batches = [batch async for batch in stream.batches()]
            assert [late for each in batches for late in each["late"].to_pylist()] == [False, True]
            frames = [batch async for batch in stream.batches(form="frames")]
            assert [gap for each in frames for gap in each["gap"].to_pylist()] == [1, 0]

    run(main())


def test_something_else_under_the_same_numbers_is_not_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            stream = await (await live.join()).create_stream("twice", storage=1)
            first = now()
            await stream.publish_numbered(CHAIN, 0, messages(first, b"x"))
            with pytest.raises(NotStored, match="stored-otherwise"):
                await stream.publish_numbered(CHAIN, 0, messages(first, b"y"))
            assert [m.content for m in await stream.find_numbered(CHAIN, first)] == [b"x"]

    run(main())


def test_what_cannot_be_published_so_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            owner: Network = await live.join()
            stream = await owner.create_stream("bad", storage=1, public=["subscribe"])
            old = number_of(int(time.time() * 1000) - 3_600_000, 0)
            for bad in (messages(old, b"x"), [], [Numbered(now(), b"x")] * 2):
                with pytest.raises(NotPublished, match="numbers"):
                    await stream.publish_numbered(CHAIN, 0, bad)
            with pytest.raises(LocalError, match="there is no partition 1"):
                await stream.publish_numbered(CHAIN, 0, messages(now(), b"x"), partition=1)
            with pytest.raises(LocalError, match="has 1 storage nodes"):
                await stream.publish_numbered(CHAIN, 0, messages(now(), b"x"), 2)
            unstored = await owner.create_stream("unstored")
            with pytest.raises(NotStored):
                await unstored.publish_numbered(CHAIN, 0, messages(now(), b"x"))
            stranger = await (await live.join(new_key()[0])).stream(stream.id)
            with pytest.raises(Exception, match="may not publish"):
                await stranger.publish_numbered(CHAIN, 0, messages(now(), b"x"))

    run(main())
