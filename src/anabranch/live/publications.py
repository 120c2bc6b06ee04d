"""What a node's application publishes, until its outcome and its receipts are there."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from anabranch.core.ids import PartKey, StreamPart, part_key
from anabranch.core.machine import (
    Draft,
    Event,
    Outcome,
    Publish,
    Published,
    PublishNumbered,
    Receipt,
)
from anabranch.core.parts import MAX_PARTS
from anabranch.core.publishing import SENT
from anabranch.live.errors import AnabranchError
from anabranch.live.message import names_of
from anabranch.live.questions import fail
from anabranch.live.room import Room


class Publication:
    """A message on its way: `outcome` comes first, and then a `receipt` if one was asked for."""

    __slots__ = ("outcome", "receipt", "settled")

    def __init__(self, settled: Callable[[], None], copies: int) -> None:
        loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self.receipt: asyncio.Future[Receipt] | None = loop.create_future() if copies else None
        self.settled = settled


class Publications:
    """All that is under way. Messages of one turn of the loop may leave in one frame.

    But who publishes one at a time has nothing to wait for: after a turn with one message, the
    first of the next turn that has any leaves at once, and only those after it wait.
    """

    __slots__ = (
        *("_began", "_chains", "_drafts", "_feed", "_feed_at_once", "_in_turn", "_one_at_a_time"),
        *("_receipts", "_rooms", "_ticket", "_under_way", "parts"),
    )

    def __init__(
        self,
        feed: Callable[[Event], None],
        began: Callable[[StreamPart], None],
        feed_at_once: Callable[[Publish], None],
    ) -> None:
        """`began` hears of every part that something is published to.

        `feed_at_once` also lets what is sent to neighbours leave at once.
        """
        self._feed = feed
        self._began = began
        self._feed_at_once = feed_at_once
        self.parts: dict[StreamPart, None] = {}  # that we publish to
        self._chains: dict[PartKey, tuple[str, str]] = {}  # our own: publisher, chain
        self._drafts: dict[StreamPart, list[Draft]] = {}  # of this turn of the loop
        self._in_turn = 0  # messages of this turn, those included that have left
        self._one_at_a_time = True
        self._under_way: dict[int, Publication] = {}
        self._receipts: dict[int, asyncio.Future[Receipt]] = {}
        self._rooms: dict[str, Room] = {}  # by stream
        self._ticket = 0

    def publish(
        self,
        part: StreamPart,
        content: bytes,
        content_type: int,
        settled: Callable[[], None],
        copies: int,
    ) -> Publication:
        """Hand over a message.

        `settled` is called when its outcome is there, even if nobody awaits that any more.
        """
        self._ticket += 1
        publication = self._under_way[self._ticket] = Publication(settled, copies)
        if publication.receipt is not None:
            self._receipts[self._ticket] = publication.receipt
        draft = Draft(content, content_type, self._ticket, copies)
        self._in_turn += 1
        if self._in_turn == 1:
            asyncio.get_running_loop().call_soon(self._flush)
            if self._one_at_a_time:
                self._begin(part)
                self._feed_at_once(Publish(part, [draft]))
                return publication
        self._drafts.setdefault(part, []).append(draft)
        return publication

    def publish_numbered(
        self,
        part: StreamPart,
        chain: int,
        previous: int,
        drafts: Sequence[tuple[int, Draft]],
        settled: Callable[[], None],
        copies: int,
    ) -> Publication:
        """Hand over messages that have their numbers: they share one outcome and one receipt."""
        self._ticket += 1
        publication = self._under_way[self._ticket] = Publication(settled, copies)
        if publication.receipt is not None:
            self._receipts[self._ticket] = publication.receipt
        self.parts[part] = None
        self._began(part)
        self._feed(PublishNumbered(part, chain, previous, drafts, self._ticket, copies))
        return publication

    def _flush(self) -> None:
        self._one_at_a_time, self._in_turn = self._in_turn == 1, 0
        if self._drafts:
            drafts, self._drafts = self._drafts, {}
            for part, of_part in drafts.items():
                self._begin(part)
                self._feed(Publish(part, of_part))

    def _begin(self, part: StreamPart) -> None:
        if part not in self.parts:
            self.parts[part] = None
            self._began(part)

    def chain(self, part: StreamPart) -> str:
        """Return the id of our own chain in a part that we have published to."""
        return self._chains[part_key(part)][1]

    def room(self, stream: str) -> Room:
        """Return the room that all who publish to a stream from here share."""
        room = self._rooms.get(stream)
        if room is None:
            if len(self._rooms) >= MAX_PARTS:  # of streams that nothing of is under way
                self._rooms = {name: r for name, r in self._rooms.items() if r.messages}
            room = self._rooms[stream] = Room()
        return room

    # --- What the machine says ------------------------------------------------------------

    def published(self, effect: Published) -> None:
        """A frame of ours was made; a chain of which others gave the id they know."""
        if effect.is_given:
            return
        if effect.head.part not in self._chains or effect.head.previous == 0:
            self._chains[effect.head.part] = names_of(effect.head)
            if len(self._chains) > 2 * MAX_PARTS:  # of parts that we are in no more
                del self._chains[next(iter(self._chains))]

    def outcome(self, effect: Outcome) -> None:
        """A message has its outcome; of one that was not published nobody awaits a receipt."""
        publication = self._under_way.pop(effect.ticket)
        if effect.result != SENT:
            self._receipts.pop(effect.ticket, None)
        if not publication.outcome.done():
            publication.outcome.set_result(effect)
        publication.settled()

    def receipt(self, effect: Receipt) -> None:
        """Storage nodes hold a message, or do not."""
        future = self._receipts.pop(effect.ticket, None)
        if future is not None and not future.done():
            future.set_result(effect)

    # --- The end --------------------------------------------------------------------------

    async def drain(self, until: float, clock: Callable[[], float]) -> None:
        """Wait for the outcomes of what was published, and of what waits for room to be."""
        while (left := until - clock()) > 0:
            pending: Iterable[asyncio.Future[Outcome] | asyncio.Future[Receipt]]
            pending = [*(each.outcome for each in self._under_way.values())]
            pending = [f for f in (*pending, *self._receipts.values()) if not f.done()]
            if not pending:
                break
            await asyncio.wait(pending, timeout=left)

    def give_up(self, error: AnabranchError) -> None:
        """Tell everybody who awaits something that it will not come."""
        fail((each.outcome for each in self._under_way.values()), error)
        fail(self._receipts.values(), error)

    def make_room(self) -> None:
        """Let those who wait for room go on, to hear that there is nothing to wait for."""
        while self._under_way:
            self._under_way.popitem()[1].settled()
