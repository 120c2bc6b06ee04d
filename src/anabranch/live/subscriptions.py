"""Who wants what in a node: its subscriptions by part, and what the Peer is told of them."""

from collections.abc import Callable, Iterable, Iterator

from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Close,
    Deliver,
    Drained,
    Event,
    HistoryEnded,
    Missed,
    Open,
    PageEnded,
    Subscribe,
    Unsubscribe,
)
from anabranch.live.errors import AnabranchError
from anabranch.live.subscription import Subscription


class Subscriptions:
    """All that is open.

    The Peer needs keys for a part as long as one of them reads it, and delivers it as it comes as
    long as one of them wants that. Those who read in order have a ticket for each of their parts.
    """

    __slots__ = ("_began", "_by_ticket", "_ended", "_feed", "_news_for", "_of_part", "_ticket")

    def __init__(
        self,
        feed: Callable[[Event], None],
        began: Callable[[StreamPart], None],
        ended: Callable[[StreamPart], None],
    ) -> None:
        """`began` and `ended` hear of the first and the last subscription to a part."""
        self._feed = feed
        self._began, self._ended = began, ended
        self._of_part: dict[StreamPart, list[Subscription]] = {}
        self._by_ticket: dict[int, Subscription] = {}
        self._ticket = 0
        self._news_for: list[Subscription] = []  # that have got what somebody may wait for

    def __iter__(self) -> Iterator[StreamPart]:
        return iter(self._of_part)

    def of(self, part: StreamPart) -> list[Subscription]:
        """Return the subscriptions to a part."""
        return list(self._of_part.get(part, ()))

    def enter(self, subscription: Subscription) -> None:
        """Begin to deliver to a subscription."""
        # All at once and then the events: one that fails at once ends the whole subscription.
        before = {part: self._wants(part) for part in subscription.parts}
        for part in subscription.parts:
            self._of_part.setdefault(part, []).append(subscription)
        for part, wanted in before.items():
            if part not in self._of_part:
                continue
            if wanted is None:
                self._began(part)
            self._tell(part, wanted)
            if not subscription.is_plain and subscription in self._of_part.get(part, ()):
                self._open(subscription, part)

    def _open(self, subscription: Subscription, part: StreamPart) -> None:
        self._ticket += 1
        plan = subscription.plan
        self._by_ticket[self._ticket] = subscription
        subscription.opened(self._ticket, part, self._drained)
        self._feed(Open(self._ticket, part, plan.history, plan.live, plan.ordered))

    def _drained(self, ticket: int) -> None:
        if ticket in self._by_ticket:
            self._feed(Drained(ticket))

    def leave(self, subscription: Subscription) -> None:
        """Deliver to it no more."""
        for ticket in subscription.tickets:
            if self._by_ticket.pop(ticket, None) is not None:
                self._feed(Close(ticket))
        for part in subscription.parts:
            open_ones = self._of_part.get(part, [])
            if subscription not in open_ones:
                continue
            wanted = self._wants(part)
            open_ones.remove(subscription)
            if not open_ones:
                del self._of_part[part]
                self._feed(Unsubscribe(part))
                self._ended(part)
            else:
                self._tell(part, wanted)

    def _wants(self, part: StreamPart) -> tuple[bool, bool] | None:
        """Tell whether anybody reads a part, and anybody as it comes; None: nobody is there."""
        open_ones = self._of_part.get(part)
        if not open_ones:
            return None
        reading = [each for each in open_ones if each.reads]
        # What is only carried need not come a second time beside what somebody reads in order.
        return bool(reading), any(each.is_plain for each in reading) or not reading

    def _tell(self, part: StreamPart, before: tuple[bool, bool] | None) -> None:
        wanted = self._wants(part)
        assert wanted is not None
        if wanted != before:
            self._feed(Subscribe(part, *wanted))

    # --- What the machine says ------------------------------------------------------------

    def deliver(self, effect: Deliver, at: float) -> None:
        """Put a frame into the mailbox it is for, or into every one of its part."""
        if effect.to:
            subscription = self._by_ticket.get(effect.to)
            if subscription is not None:
                subscription.put(effect, at)
                if subscription not in self._news_for:
                    self._news_for.append(subscription)
            return
        for subscription in self._of_part.get(effect.part, ()):
            if subscription.is_plain:
                subscription.put(effect, at)
                self._note(subscription)

    def _note(self, subscription: Subscription) -> None:
        if subscription not in self._news_for:
            self._news_for.append(subscription)

    def wake(self) -> None:
        """Let those read who have waited: when all else that a packet set going is done."""
        if self._news_for:
            news_for, self._news_for = self._news_for, []
            for subscription in news_for:
                if subscription.news is not None:  # as in its `wake`, without the call
                    subscription.news.pass_on()

    def missed(self, effect: Missed) -> None:
        """Tell a reader that messages did not come."""
        subscription = self._by_ticket.get(effect.to)
        if subscription is not None:
            subscription.put_gap(effect)

    def page_ended(self, effect: PageEnded) -> None:
        """The next page of a history comes when this one has been read."""
        subscription = self._by_ticket.get(effect.to)
        if subscription is not None:
            subscription.put_end(effect)
            self._note(subscription)

    def history_ended(self, effect: HistoryEnded) -> None:
        """A history is complete, or there is no more to be had."""
        subscription = self._by_ticket.get(effect.to)
        if subscription is not None:
            subscription.put_end(effect)
            self._note(subscription)

    def unreadable(self, part: StreamPart, count: int, to: int) -> None:
        """Count messages that cannot be opened, where they are missed: their key did not come."""
        if to:
            if to in self._by_ticket:  # else it has closed, and misses nothing
                self._by_ticket[to].unreadable += count
            return
        for subscription in self._of_part.get(part, ()):
            if subscription.is_plain:
                subscription.unreadable += count

    def fail(self, parts: Iterable[StreamPart], error: AnabranchError) -> None:
        """Let the readers of some parts know that nothing will come any more."""
        for part in list(parts):
            for subscription in self.of(part):
                subscription.fail(error)

    def close(self) -> None:
        """End all of them; what has come can still be read."""
        for part in list(self._of_part):
            for subscription in self.of(part):
                subscription.close()
