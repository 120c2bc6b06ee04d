"""Subscriptions of one node: the Peer hears what all of them together want."""

from typing import Any

from anabranch.core.ids import StreamPart
from anabranch.core.machine import Event, Subscribe, Unsubscribe
from anabranch.live.errors import AnabranchError
from anabranch.live.subscription import Subscription
from anabranch.live.subscriptions import Subscriptions
from live.networks import run

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
        one, other = await desk.open(A), await desk.open(B)
        desk.all.unreadable(A, 3)
        desk.all.unreadable(StreamPart(A.stream, 7), 5)
        assert (one.unreadable, other.unreadable) == (3, 0)

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
