"""The past in a mailbox: nothing of it is dropped, and a page comes when the last one is read."""

import asyncio
from typing import Any

import msgspec
import pytest

from anabranch.core.ids import StreamPart
from anabranch.core.machine import Deliver, HistoryEnded, Missed, PageEnded
from anabranch.core.messages.storage import Selection, Span
from anabranch.live.errors import HistoryLost
from anabranch.live.message import Gap
from anabranch.live.subscription import Plan, Subscription
from live.test_subscription import CHAIN, NOW, Reader, run
from machines import OTHER, PART

PAST = Selection()


class Past(Reader):
    """A reader with a history under ticket 1, and a note of every page it asked for."""

    def __init__(self, plan: Plan, buffer: int = 3, tickets: tuple[StreamPart, ...] = (PART,)):
        super().__init__(buffer, tickets)
        self.drained: list[int] = []
        self.subscription = Subscription(
            tickets, self.entered.append, self.left.append, buffer, plan=plan
        )
        for ticket, part in enumerate(tickets, 1):
            self.subscription.opened(ticket, part, self.drained.append)

    def give(self, *contents: bytes, to: int = 1, **trim: int) -> None:
        deliver: Deliver = msgspec.structs.replace(self.deliver(*contents), to=to, **trim)
        self.subscription.put(deliver, NOW)
        self.subscription.wake()

    async def contents(self, count: int) -> list[Any]:
        return [message.content for message in await self.read(count)]


def test_history_is_not_dropped_however_small_the_buffer() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST), buffer=2)
        async with reader.subscription as messages:
            for n in range(10):
                reader.give(str(n).encode())
            assert await reader.contents(10) == [str(n).encode() for n in range(10)]
            assert messages.missed == 0

    run(main)


def test_the_next_page_is_asked_for_when_this_one_has_been_read() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST))
        async with reader.subscription:
            reader.give(b"a", b"b")
            reader.subscription.put_end(PageEnded(1))
            assert await reader.contents(1) == [b"a"]
            assert reader.drained == []
            reading = asyncio.create_task(reader.contents(2))
            await asyncio.sleep(0)
            assert reader.drained == [1]
            reader.give(b"c")
            assert await reading == [b"b", b"c"]

    run(main)


def test_what_comes_live_after_the_past_is_bounded_again() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST), buffer=2)
        async with reader.subscription as messages:
            reader.give(b"old")
            reader.subscription.put_end(HistoryEnded(1))
            for n in range(5):
                reader.give(b"%d" % n)
            assert messages.missed == 3
            got = await reader.read(3)
            assert [message.content for message in got] == [b"old", b"3", b"4"]
            assert [message.missed for message in got] == [3, 0, 0]
            assert messages.waiting == 0

    run(main)


def test_a_history_ends_when_all_parts_have_ended() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST, live=False), tickets=(PART, OTHER))
        async with reader.subscription:
            reader.give(b"a")
            reader.subscription.put_end(HistoryEnded(1))
            reading = asyncio.create_task(reader.rest())
            await asyncio.sleep(0)
            assert not reading.done()
            reader.give(b"b", to=2)
            reader.subscription.put_end(HistoryEnded(2))
            assert [message.content for message in await reading] == [b"a", b"b"]
        assert reader.left == [reader.subscription]

    run(main)


def test_a_history_that_is_not_complete_says_so_after_what_has_come() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST, live=False))
        async with reader.subscription:
            reader.give(b"a")
            reader.subscription.put_end(HistoryEnded(1, "no storage node answered"))
            assert await reader.contents(1) == [b"a"]
            with pytest.raises(HistoryLost, match="no storage node answered"):
                await reader.rest()

    run(main)


def test_what_is_lost_of_several_partitions_is_named_for_each() -> None:
    parts = tuple(StreamPart(PART.stream, partition) for partition in range(3))

    async def main() -> None:
        reader = Past(Plan(True, PAST, live=False), tickets=parts)
        async with reader.subscription as messages:
            reader.subscription.put_end(HistoryEnded(3, "5 messages", (Span(1, 3), Span(7, 10))))
            reader.subscription.put_end(HistoryEnded(1, "2 messages", (Span(1, 3),)))
            messages.unreadable = 1
            reader.subscription.put_end(HistoryEnded(2))
            with pytest.raises(HistoryLost) as caught:
                await reader.rest()
            assert caught.value.partitions == {0: ((1, 3),), 2: ((1, 3), (7, 10))}
            assert sorted(caught.value.lost) == [(1, 3), (1, 3), (7, 10)]
            text = "partition 0: 2 messages; partition 2: 5 messages; some messages cannot be"
            assert text in str(caught.value)

    run(main)


def test_the_same_problem_of_all_partitions_is_said_once() -> None:
    async def main() -> None:
        parts = (PART, StreamPart(PART.stream, 1))
        reader = Past(Plan(True, PAST, live=False), tickets=parts)
        async with reader.subscription:
            for ticket in (1, 2):
                reader.subscription.put_end(HistoryEnded(ticket, "busy"))
            with pytest.raises(
                HistoryLost, match="complete: its storage nodes have too much to do"
            ):
                await reader.rest()

    run(main)


def test_a_live_subscription_goes_on_without_its_past() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST))
        async with reader.subscription as messages:
            reader.subscription.put_end(HistoryEnded(1, "no storage node answered"))
            reader.give(b"new")
            assert await reader.contents(1) == [b"new"]
            assert messages.problem == "no storage node answered"

    run(main)


def test_a_gap_is_told_with_the_next_message_and_counted() -> None:
    async def main() -> None:
        reader = Past(Plan(True))
        async with reader.subscription as messages:
            missed = Missed(1, PART, CHAIN, 5 << 20, 9 << 20, "nobody had it")
            messages.put_gap(missed)
            reader.give(b"a", b"b")
            first, second = await reader.read(2)
            assert first.gap == Gap(first.publisher, first.chain, 5, 9, "nobody had it")
            assert second.gap is None
            assert messages.gaps == 1

    run(main)


@pytest.mark.parametrize(
    ("trim", "left"),
    [
        ({}, b"abcd"),
        ({"skip": 1}, b"bcd"),
        ({"most": 3}, b"abc"),
        ({"skip": 1, "most": 3}, b"bc"),
        ({"after": 1}, b"cd"),
        ({"upto": 2}, b"abc"),
        ({"after": 0, "upto": 2, "skip": 2}, b"c"),
    ],
)
def test_a_frame_is_trimmed_to_what_was_asked_for(trim: dict[str, int], left: bytes) -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST))
        deliver = msgspec.structs.replace(reader.deliver(b"a", b"b", b"c", b"d"), to=1)
        first = deliver.head.first
        trimmed = {name: n if name in ("skip", "most") else first + n for name, n in trim.items()}
        async with reader.subscription:
            reader.subscription.put(msgspec.structs.replace(deliver, **trimmed), NOW)
            reader.give(b"next")
            got = await reader.contents(len(left) + 1)
            assert b"".join(got) == left + b"next"

    run(main)


def test_a_page_in_the_order_of_time_is_put_in_order_when_it_is_whole() -> None:
    async def main() -> None:
        reader = Past(Plan(True, Selection(by_number=True)))
        async with reader.subscription:
            first, second = reader.deliver(b"a"), reader.deliver(b"b")
            for deliver in (second, first):  # as their keys came
                reader.subscription.put(msgspec.structs.replace(deliver, to=1), NOW)
            assert reader.subscription.waiting == 0
            reader.subscription.put_end(PageEnded(1))
            assert await reader.contents(2) == [b"a", b"b"]

    run(main)


def test_a_past_of_which_something_cannot_be_opened_is_not_complete() -> None:
    async def main() -> None:
        reader = Past(Plan(True, PAST, live=False))
        async with reader.subscription as messages:
            messages.unreadable += 3
            messages.put_end(HistoryEnded(1))
            with pytest.raises(HistoryLost, match="start their publisher"):
                await reader.rest()

    run(main)
