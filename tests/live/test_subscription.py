"""The reading end of a stream, fed by hand with frames of a real publisher."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import pytest

from anabranch.core import frames
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.core.ids import StreamPart, chain_key, next_number, number_of, part_key, show
from anabranch.core.machine import Deliver, Draft
from anabranch.core.messages.data import CONTENT_JSON, MAX_CONTENT_BYTES
from anabranch.live.errors import Closed, NoSuchStream
from anabranch.live.message import Message
from anabranch.live.subscription import MAX_BUFFER_BYTES, Subscription
from machines import OTHER, PART
from support.waiting import within

IDENTITY = Identity(b"\1" * 32)
CHAIN = chain_key(IDENTITY.node, 7)
NOW = 1_000.0
TIMEOUT_S = 20.0


class Reader:
    """A subscription, a publisher's chain that feeds it, and who was told of what."""

    def __init__(self, buffer: int = 100, parts: tuple[StreamPart, ...] = (PART,)) -> None:
        self.entered: list[Subscription] = []
        self.left: list[Subscription] = []
        self.missed: list[tuple[StreamPart, int]] = []
        self._newest = 0
        self.subscription = Subscription(
            parts,
            self.entered.append,
            self.left.append,
            buffer,
            lambda part, count: self.missed.append((part, count)),
        )

    def put(self, *contents: str, part: StreamPart = PART) -> None:
        """Let a frame of these messages come."""
        self.subscription.put(self.deliver(*(c.encode() for c in contents), part=part), NOW)
        self.subscription.wake()

    def deliver(self, *contents: bytes, part: StreamPart = PART, kind: int = 0) -> Deliver:
        """Make the next frame of the chain."""
        previous, drafts = self._newest, []
        for content in contents:
            self._newest = next_number(self._newest, int(NOW * 1000))
            drafts.append((self._newest, Draft(content, kind)))
        frame = frames.build(part_key(part), CHAIN, previous, drafts, IDENTITY.sign)
        return Deliver(part, frames.peek(frame), frame, 2)

    async def read(self, count: int) -> list[Message]:
        """Read so many messages, in a loop of its own."""
        messages: list[Message] = []
        async for message in self.subscription:
            messages.append(message)
            if len(messages) == count:
                break
        return messages

    async def rest(self) -> list[Message]:
        """Read until the end."""
        return [message async for message in self.subscription]


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await within(TIMEOUT_S, main())

    asyncio.run(bounded())


def texts(messages: list[Message]) -> list[str]:
    return [message.content.decode() for message in messages]


async def started(
    reading: Coroutine[Any, Any, list[Message]],
) -> "asyncio.Task[list[Message]]":
    """Let a reader come to where it waits."""
    task = asyncio.create_task(reading)
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_messages_come_as_they_were_published() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription:
            assert reader.entered == [reader.subscription]
            reader.subscription.put(reader.deliver(b'{"a": 1}', b"[2]", kind=CONTENT_JSON), NOW)
            reader.subscription.put(reader.deliver(b"{", kind=CONTENT_JSON), NOW + 1)
            assert reader.subscription.waiting == 3
            first, second, bad = await reader.read(3)
        assert first == Message(
            {"a": 1},
            PART.stream,
            PART.partition,
            show(IDENTITY.node),
            "0000000000000007",
            number_of(1_000_000, 0),
            "json",
            2,
            1_000_000.0,
        )
        assert (second.content, second.sequence) == ([2], 1)
        assert (bad.content, bad.content_type, bad.delay_ms) == (b"{", "bytes", 1_000.0)
        assert bad.problem.startswith("not json")
        assert (reader.subscription.waiting, reader.left) == (0, [reader.subscription])

    run(main)


def test_a_reader_that_waits_is_woken() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription:
            for _ in range(2):
                reading = await started(reader.read(3))
                reader.put("a")
                reader.put("b", "c")
                assert texts(await reading) == ["a", "b", "c"]

    run(main)


def test_who_breaks_off_and_reads_on_loses_nothing() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription:
            reader.put("a", "b", "c")
            reader.put("d")
            assert texts(await reader.read(1)) == ["a"]
            assert reader.subscription.waiting == 3
            reader.put("e")
            assert texts(await reader.read(2)) == ["b", "c"]
            assert texts(await reader.read(2)) == ["d", "e"]

    run(main)


def test_who_is_cancelled_while_waiting_and_reads_on_loses_nothing() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription:
            reading = await started(reader.read(1))
            reader.put("a")  # it is awake already, and has not run yet
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            reader.put("b")
            assert texts(await reader.read(2)) == ["a", "b"]

    run(main)


# --- Bounds -----------------------------------------------------------------------------------


def test_the_oldest_are_dropped_and_the_next_message_tells() -> None:
    async def main() -> None:
        reader = Reader(buffer=4)
        async with reader.subscription as subscription:
            reader.put("a", "b")
            assert texts(await reader.read(1)) == ["a"]
            for content in "cdef":
                reader.put(content)
            assert (subscription.missed, reader.missed) == (0, [])
            reader.put("g", "h")
            assert (subscription.missed, reader.missed) == (2, [(PART, 1), (PART, 1)])
            rest = await reader.read(5)
            # What is missing lay between the frame that was being read and the next.
            assert [(m.content, m.missed) for m in rest] == [
                (b"b", 0),
                (b"e", 2),
                (b"f", 0),
                (b"g", 0),
                (b"h", 0),
            ]
            for content in "ijklmno":
                reader.put(content)
            assert [m.missed for m in await reader.read(4)] == [3, 0, 0, 0]
            assert subscription.missed == 5

    run(main)


def test_never_more_wait_than_the_buffer_holds() -> None:
    async def main() -> None:
        reader = Reader(buffer=10)
        async with reader.subscription as subscription:
            put = 0
            for size in (1, 3, 7, 2, 9, 10, 1, 1, 5):
                reader.put(*map(str, range(put, put + size)))
                put += size
                assert subscription.waiting <= 10
                assert subscription.waiting + subscription.missed == put
            kept = texts(await reader.read(subscription.waiting))
            assert kept == [str(n) for n in range(put - len(kept), put)]
            assert sum(count for _, count in reader.missed) == subscription.missed

    run(main)


def test_one_frame_is_kept_however_small_the_buffer() -> None:
    async def main() -> None:
        reader = Reader(buffer=1)
        async with reader.subscription:
            reader.put("a", "b", "c")
            reader.put("d", "e")
            messages = await reader.read(2)
            assert [(m.content, m.missed) for m in messages] == [(b"d", 3), (b"e", 0)]

    run(main)


def test_large_messages_are_bounded_by_their_bytes() -> None:
    async def main() -> None:
        reader = Reader(buffer=1_000_000)
        async with reader.subscription as subscription:
            large = reader.deliver(bytes(MAX_CONTENT_BYTES))
            most = MAX_BUFFER_BYTES // len(large.frame)
            for _ in range(most + 5):  # one object many times: it takes no room here
                subscription.put(large, NOW)
            assert (subscription.waiting, subscription.missed) == (most, 5)
            await reader.read(1)
            subscription.put(large, NOW)
            assert (subscription.waiting, subscription.missed) == (most, 5)

    run(main)


def test_a_buffer_for_nothing_is_refused() -> None:
    with pytest.raises(LocalError, match="give 1 or more"):
        Reader(buffer=0)


def test_what_is_missed_is_told_of_its_part() -> None:
    async def main() -> None:
        reader = Reader(buffer=1, parts=(PART, OTHER))
        async with reader.subscription:
            reader.put("a", part=OTHER)
            reader.put("b")
            reader.put("c", part=OTHER)
            assert reader.missed == [(OTHER, 1), (PART, 1)]
            (message,) = await reader.read(1)
            assert (message.partition, message.missed) == (OTHER.partition, 2)

    run(main)


# --- What is wrong ----------------------------------------------------------------------------


def test_a_frame_that_nobody_can_open_does_not_stop_the_stream() -> None:
    async def main() -> None:
        reader = Reader(buffer=2)
        async with reader.subscription as subscription:
            good = reader.deliver(b"x", b"y")
            spoiled = good.frame[: frames.HEAD.size] + b"\xc1" + good.frame[frames.HEAD.size + 1 :]
            reader.put("dropped")
            subscription.put(msgspec.structs.replace(good, frame=spoiled), NOW)
            reading = await started(reader.read(1))
            assert (subscription.unreadable, subscription.waiting) == (2, 0)
            reader.put("a")
            # What was missed before it is still told.
            assert [(m.content, m.missed) for m in await reading] == [(b"a", 1)]

    run(main)


def test_two_readers_of_one_subscription_are_refused() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription as subscription:
            reading = await started(reader.read(1))
            for second in (reader.read(1), subscription.discard()):
                with pytest.raises(LocalError, match="give each its own"):
                    await second
            reader.put("a")  # the first goes on as if there had been no second
            assert texts(await reading) == ["a"]

    run(main)


def test_reading_before_entering_is_the_callers_mistake() -> None:
    async def main() -> None:
        with pytest.raises(LocalError, match="enter it first"):
            await Reader().read(1)

    run(main)


def test_a_subscription_that_could_not_be_entered_is_not_waited_on() -> None:
    def refuse(_: Subscription) -> None:
        raise Closed("connect again")

    async def main() -> None:
        left: list[Subscription] = []
        subscription = Subscription((PART,), refuse, left.append)
        with pytest.raises(Closed):
            await subscription.__aenter__()
        with pytest.raises(LocalError, match="enter it first"):
            _ = [message async for message in subscription]
        subscription.close()
        assert left == []

    run(main)


# --- The end ----------------------------------------------------------------------------------


def test_closing_ends_a_reader_after_what_has_come() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription as subscription:
            reader.put("a", "b")
            assert texts(await reader.read(1)) == ["a"]
            reader.put("c")
            subscription.close()
            subscription.close()
            assert texts(await reader.rest()) == ["b", "c"]
        assert reader.left == [subscription]

    run(main)


def test_a_failure_is_raised_after_what_has_come() -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription as subscription:
            reader.put("a")
            subscription.fail(NoSuchStream("it was deleted"))
            assert texts(await reader.read(1)) == ["a"]
            for _ in range(2):
                with pytest.raises(NoSuchStream, match="it was deleted"):
                    await reader.rest()
        assert reader.left == [subscription]

    run(main)


def test_a_failure_while_entering_reaches_the_reader() -> None:
    async def main() -> None:
        left: list[Subscription] = []
        subscription = Subscription(
            (PART,), lambda entered: entered.fail(NoSuchStream("no such stream")), left.append
        )
        async with subscription:
            with pytest.raises(NoSuchStream):
                _ = [message async for message in subscription]
        assert left == [subscription]

    run(main)


def test_who_only_carries_keeps_nothing() -> None:
    async def main() -> None:
        reader = Reader(buffer=2)
        async with reader.subscription as subscription:
            reader.put("a", "b")
            carrying = asyncio.create_task(subscription.discard())
            await asyncio.sleep(0)
            assert subscription.waiting == 0
            for _ in range(5):
                reader.put("c", "d")
                await asyncio.sleep(0)
            assert (subscription.waiting, subscription.missed, reader.missed) == (0, 0, [])
            assert not carrying.done()
            carrying.cancel()
            reading = await started(reader.rest())
            subscription.close()
            assert await reading == []

    run(main)


@pytest.mark.parametrize("wait", [Reader.rest, lambda reader: reader.subscription.discard()])
def test_the_end_wakes_who_waits(wait: Callable[[Reader], Coroutine[Any, Any, Any]]) -> None:
    async def main() -> None:
        reader = Reader()
        async with reader.subscription as subscription:
            waiting = await started(wait(reader))
            subscription.fail(NoSuchStream("it was deleted"))
            with pytest.raises(NoSuchStream):
                await waiting
        reader = Reader()
        async with reader.subscription as subscription:
            waiting = await started(wait(reader))
            subscription.close()
            assert not await waiting

    run(main)
