"""Subscriptions of one node: the Peer hears what all of them together want."""

import asyncio
from typing import Any

import msgspec

from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Close,
    Drained,
    Event,
    HistoryEnded,
    Missed,
    Open,
    PageEnded,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.messages.storage import Selection
from anabranch.live.errors import AnabranchError
from anabranch.live.subscription import Plan, Subscription
from anabranch.live.subscriptions import Subscriptions
from live.networks import run
from live.test_subscription import CHAIN, Reader

ORDER = Plan(ordered=True)
A, B = StreamPart("0x" + "0a" * 20 + "/a", 0), StreamPart("0x" + "0a" * 20 + "/a", 1)


class Desk:
    """Subscriptions, and all that was said because of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.said: list[tuple[str, StreamPart]] = []
        self.all = Subscriptions(
            self.events.append,
            lambda part: self.said.append(("began", part)),
            lambda part: self.said.append(("ended", part)),
        )

    async def open(self, *parts: StreamPart, **options: Any) -> Subscription:
        subscription = Subscription(parts, self.all.enter, self.all.leave, **options)
        return await subscription.__aenter__()

    def news(self) -> list[Event]:
        events = list(self.events)
        self.events.clear()
        return events


def test_the_peer_hears_of_the_first_and_of_the_last() -> None:
    async def main() -> None:
        desk = Desk()
        first = await desk.open(A, B)
        assert desk.news() == [Subscribe(A), Subscribe(B)]
        second = await desk.open(A)
        first.close()
        assert desk.news() == [Unsubscribe(B)]
        second.close()
        second.close()
        assert desk.news() == [Unsubscribe(A)]
        assert desk.said == [("began", A), ("began", B), ("ended", B), ("ended", A)]
        assert list(desk.all) == []

    run(main())


def test_keys_are_wanted_while_somebody_reads() -> None:
    async def main() -> None:
        desk = Desk()
        carrying = await desk.open(A, reads=False)
        assert desk.news() == [Subscribe(A, reads=False)]
        reading, again = await desk.open(A), await desk.open(A)
        assert desk.news() == [Subscribe(A)]
        reading.close()
        assert desk.news() == []
        again.close()
        assert desk.news() == [Subscribe(A, reads=False)]
        another = await desk.open(A, reads=False)
        carrying.close()
        another.close()
        assert desk.news() == [Unsubscribe(A)]

    run(main())


def test_what_cannot_be_opened_is_counted_where_it_is_missed() -> None:
    async def main() -> None:
        desk = Desk()
        one, other, ordered = await desk.open(A), await desk.open(B), await desk.open(A, plan=ORDER)
        desk.all.unreadable(A, 3, to=0)
        desk.all.unreadable(StreamPart(A.stream, 7), 5, to=0)
        assert (one.unreadable, other.unreadable, ordered.unreadable) == (3, 0, 0)
        desk.all.unreadable(A, 4, to=1)
        assert (one.unreadable, other.unreadable, ordered.unreadable) == (3, 0, 4)

    run(main())


def test_what_waited_for_a_reader_that_has_closed_is_missed_by_nobody() -> None:
    async def main() -> None:
        desk = Desk()
        plain, first, second = await desk.open(A), *[await desk.open(A, plan=ORDER) for _ in "ab"]
        first.close()
        desk.all.unreadable(A, 4, to=1)
        assert (plain.unreadable, first.unreadable, second.unreadable) == (0, 0, 0)

    run(main())


def test_some_parts_fail_and_their_subscriptions_end_everywhere() -> None:
    async def main() -> None:
        desk = Desk()
        both, other = await desk.open(A, B), await desk.open(B)
        desk.news()
        desk.all.fail([A], AnabranchError("gone"))
        assert desk.news() == [Unsubscribe(A)]
        assert desk.all.of(B) == [other]
        assert desk.all.of(A) == []
        desk.all.close()
        assert desk.news() == [Unsubscribe(B)]
        assert both.waiting == other.waiting == 0

    run(main())


def test_a_subscription_that_fails_while_it_is_entered_is_gone() -> None:
    async def main() -> None:
        desk = Desk()

        def feed(event: Event) -> None:
            desk.events.append(event)
            if event == Subscribe(A):
                desk.all.fail([A], AnabranchError("no such stream"))

        desk.all._feed = feed
        await desk.open(A, B)
        assert desk.news() == [Subscribe(A), Unsubscribe(A), Unsubscribe(B)]
        assert list(desk.all) == []

    run(main())


def test_who_reads_in_order_has_a_ticket_for_each_part() -> None:
    async def main() -> None:
        desk = Desk()
        past = Selection(last=5, by_number=True)
        reading = await desk.open(A, B, plan=Plan(True, past))
        assert desk.news() == [
            Subscribe(A, plain=False),
            Open(1, A, past),
            Subscribe(B, plain=False),
            Open(2, B, past),
        ]
        desk.all.page_ended(PageEnded(1))
        asking = asyncio.create_task(anext(reading))
        await asyncio.sleep(0)
        assert desk.news() == [Drained(1)]
        asking.cancel()
        reading.close()
        assert desk.news() == [Close(1), Close(2), Unsubscribe(A), Unsubscribe(B)]
        desk.all.history_ended(HistoryEnded(1))  # on its way when it was closed
        desk.all.missed(Missed(2, B, CHAIN, 1, 2, ""))

    run(main())


def test_what_is_for_one_reader_is_for_nobody_else() -> None:
    async def main() -> None:
        desk = Desk()
        plain, ordered = await desk.open(A), await desk.open(A, plan=Plan(True))
        assert desk.news() == [Subscribe(A), Open(1, A)]
        frame = Reader().deliver(b"a", part=A)
        desk.all.deliver(frame, 0.0)
        assert (plain.waiting, ordered.waiting) == (1, 0)
        desk.all.deliver(msgspec.structs.replace(frame, to=1), 0.0)
        assert (plain.waiting, ordered.waiting) == (1, 1)
        plain.close()
        assert desk.news() == [Subscribe(A, plain=False)]
        desk.all.deliver(msgspec.structs.replace(frame, to=9), 0.0)
        assert ordered.waiting == 1

    run(main())
