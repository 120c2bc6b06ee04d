"""What is published, until its outcome and its receipt are there."""

import asyncio

import pytest

from anabranch.core.machine import Event, Outcome, Publish, Receipt
from anabranch.core.publishing import SENT
from anabranch.core.waiting_drafts import TOO_LARGE
from anabranch.live.publications import Publication, Publications
from live.test_subscription import run
from machines import PART


class Desk:
    """Publications, and what the machine was told of them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.settled = 0
        self.hastened = 0
        self.all = Publications(self.events.append, lambda part: None, self._feed_at_once)

    def publish(self, copies: int) -> Publication:
        return self.all.publish(PART, b"a", 0, self._settle, copies)

    def _settle(self) -> None:
        self.settled += 1

    def _feed_at_once(self, event: Event) -> None:
        self.events.append(event)
        self.hastened += 1

    async def is_drained(self) -> bool:
        """Tell whether there is nothing to wait for."""
        draining = asyncio.create_task(self.all.drain(60.0, lambda: 0.0))
        await asyncio.sleep(0)
        return draining.done() or not draining.cancel()


def test_a_receipt_is_waited_for_after_the_outcome() -> None:
    async def main() -> None:
        desk = Desk()
        publication = desk.publish(copies=1)
        assert not await desk.is_drained()
        (event,) = desk.events
        assert type(event) is Publish
        desk.all.outcome(Outcome(1, SENT, 5))
        assert (publication.outcome.result().number, desk.settled) == (5, 1)
        assert not await desk.is_drained()
        desk.all.receipt(Receipt(1))
        assert publication.receipt is not None
        assert publication.receipt.result() == Receipt(1)
        assert await desk.is_drained()

    run(main)


@pytest.mark.parametrize("comes", [False, True])
def test_what_was_not_published_has_no_receipt(comes: bool) -> None:
    async def main() -> None:
        desk = Desk()
        publication = desk.publish(copies=1)
        desk.all.outcome(Outcome(1, TOO_LARGE))
        assert publication.outcome.result().result == TOO_LARGE
        assert await desk.is_drained()
        if comes:  # storage nodes may hold what no neighbour is known to have
            desk.all.receipt(Receipt(1))
        assert desk.settled == 1

    run(main)


@pytest.mark.parametrize(
    ("counts", "at_once", "handed_over"),
    [
        # One at a time: none waits for the turn's end.
        ([1, 1, 1], [1, 1, 1], [[1], [1], [1]]),
        # Who brought many in one turn is taken to do so again, and all of them leave together.
        ([3, 3, 1], [1, 0, 0], [[1, 2], [3], [1]]),
        ([3, 1, 3, 2], [1, 0, 1, 0], [[1, 2], [1], [1, 2], [2]]),
    ],
)
def test_messages_of_one_turn_leave_together_and_one_alone_leaves_at_once(
    counts: list[int], at_once: list[int], handed_over: list[list[int]]
) -> None:
    async def main() -> None:
        desk = Desk()

        def sizes() -> list[int]:
            return [len(event.drafts) for event in desk.events if type(event) is Publish]

        for count, now, then in zip(counts, at_once, handed_over, strict=True):
            desk.events.clear()
            for _ in range(count):
                desk.publish(copies=0)
            assert sum(sizes()) == desk.hastened == now
            await asyncio.sleep(0)
            desk.hastened = 0
            assert sizes() == then

    run(main)
