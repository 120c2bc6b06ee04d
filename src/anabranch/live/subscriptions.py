"""Who wants what in a node: its subscriptions by part, and what the Peer is told of them."""

from collections.abc import Callable, Iterable, Iterator

from anabranch.core.ids import StreamPart
from anabranch.core.machine import Deliver, Event, Subscribe, Unsubscribe
from anabranch.live.errors import AnabranchError
from anabranch.live.subscription import Subscription


class Subscriptions:
    """All that is open. The Peer needs keys for a part as long as one of them reads it."""

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

    def __iter__(self) -> Iterator[StreamPart]:
        return iter(self._of_part)

    def of(self, part: StreamPart) -> list[Subscription]:
        """Return the subscriptions to a part."""
        return list(self._of_part.get(part, ()))

    def enter(self, subscription: Subscription) -> None:
        """Begin to deliver to a subscription."""
        # All at once and then the events: one that fails at once ends the whole subscription.
        before = {part: self._reads(part) for part in subscription.parts}
        for part in subscription.parts:
            self._of_part.setdefault(part, []).append(subscription)
        for part, was_read in before.items():
            if part not in self._of_part:
                continue
            if was_read is None:
                self._began(part)
            if was_read is None or (subscription.reads and not was_read):
                self._feed(Subscribe(part, subscription.reads))

    def leave(self, subscription: Subscription) -> None:
        """Deliver to it no more."""
        for part in subscription.parts:
            open_ones = self._of_part.get(part, [])
            if subscription not in open_ones:
                continue
            open_ones.remove(subscription)
            if not open_ones:
                del self._of_part[part]
                self._feed(Unsubscribe(part))
                self._ended(part)
            elif subscription.reads and not self._reads(part):
                self._feed(Subscribe(part, reads=False))

    def deliver(self, effect: Deliver, at: float) -> None:
        """Put a frame into every mailbox of its part."""
        for subscription in self._of_part.get(effect.part, ()):
            subscription.put(effect, at)

    def unreadable(self, part: StreamPart, count: int) -> None:
        """Count messages of a part that nobody here can open: their key did not come."""
        for subscription in self._of_part.get(part, ()):
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

    def _reads(self, part: StreamPart) -> bool | None:
        """Tell whether anybody reads a part, or only carries it; None: nobody is there."""
        open_ones = self._of_part.get(part)
        return any(each.reads for each in open_ones) if open_ones else None
