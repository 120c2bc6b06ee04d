"""Drafts that wait to become frames, and how many of them make one.

Most drafts have no number yet: they get the next ones of our own chain when their frame is made,
and as many leave together as one frame may hold. Others came with numbers, in a chain that the
application names: those that came together are one frame, whatever else waits.
"""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from anabranch.core.ids import (
    MAX_SKEW_S,
    SEQUENCE_BITS,
    ChainKey,
    chain_key,
    next_number,
    publisher_of,
)
from anabranch.core.machine import Draft, Effect, Outcome, PublishNumbered, Sizes
from anabranch.core.messages.data import MAX_CONTENT_BYTES, MAX_FRAME_MESSAGES

MAX_WAITING_DRAFTS = 10_000
MAX_WAITING_BYTES = 16 << 20
FRAME_MESSAGES = 128
FRAME_CONTENT_BYTES = 64 << 10

QUEUE_FULL = "queue-full"
TOO_LARGE = "too-large"
NO_SUCH_TYPE = "no-such-content-type"
BAD_NUMBERS = "bad-numbers"  # they do not ascend, or are not of this time


class Batch(msgspec.Struct):
    """What becomes one frame."""

    chain: ChainKey
    previous: int
    drafts: Sequence[tuple[int, Draft]]  # with their numbers
    tickets: Sequence[tuple[int, int]]  # ticket, number
    copies: Sequence[tuple[int, int]] = ()  # of those that want receipts: ticket, copies
    is_given: bool = False  # its numbers are the application's choice


class WaitingDrafts:
    """What waits, bounded in number and bytes. What came with its numbers leaves first."""

    __slots__ = ("_bytes", "_chain", "_drafts", "_numbered", "count")

    def __init__(self, chain: ChainKey) -> None:
        self._chain = chain
        self._drafts: deque[Draft] = deque()
        self._numbered: deque[Batch] = deque()
        self.count = 0
        self._bytes = 0

    def add(self, drafts: Sequence[Draft]) -> list[Effect]:
        """Let drafts wait; those that cannot be taken have their outcome at once."""
        refused: list[Effect] = []
        for draft in drafts:
            size = len(draft.content)
            is_fit = size <= MAX_CONTENT_BYTES and 0 <= draft.content_type <= 255
            has_room = self.count < MAX_WAITING_DRAFTS and self._bytes + size <= MAX_WAITING_BYTES
            if is_fit and has_room:
                self._drafts.append(draft)
                self.count += 1
                self._bytes += size
            else:
                refused.append(Outcome(draft.ticket, _misfit(draft) or QUEUE_FULL))
        return refused

    def add_numbered(self, event: PublishNumbered, now: float) -> list[Effect]:
        """Let drafts wait that have their numbers, or refuse them together."""
        drafts, size = event.drafts, sum(len(draft.content) for _, draft in event.drafts)
        problem = _misnumbering(event, now) or next(filter(None, map(_misfit_of, drafts)), "")
        if not problem and size > MAX_CONTENT_BYTES:
            problem = TOO_LARGE
        problem = problem or self._crowding(len(drafts), size)
        if problem:
            return [Outcome(event.ticket, problem)]
        chain, ticket = chain_key(publisher_of(self._chain), event.chain), event.ticket
        copies = [(ticket, event.copies)] if event.copies else []
        tickets = [(ticket, drafts[0][0])]
        self._numbered.append(Batch(chain, event.previous, drafts, tickets, copies, True))
        self._enter(len(drafts), size)
        return []

    def take(self, newest: int, now: float) -> Batch:
        """Take out what leaves next; our own chain has come to the number `newest`."""
        if self._numbered:
            batch = self._numbered.popleft()
            self._enter(-len(batch.drafts), -sum(len(draft.content) for _, draft in batch.drafts))
            return batch
        taken: list[tuple[int, Draft]] = []
        tickets: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        drafts, size = self._drafts, 0
        previous, number = newest, next_number(newest, int(now * 1000))
        while drafts and len(taken) < FRAME_MESSAGES:
            draft = drafts[0]
            if taken and size + len(draft.content) > FRAME_CONTENT_BYTES:
                break
            drafts.popleft()
            size += len(draft.content)
            taken.append((number, draft))
            tickets.append((draft.ticket, number))
            if draft.copies:
                copies.append((draft.ticket, draft.copies))
            number += 1  # in the same millisecond
        self._enter(-len(taken), -size)
        return Batch(self._chain, previous, taken, tickets, copies)

    def refuse(self, result: str) -> list[Effect]:
        """Let none of them become a frame."""
        effects: list[Effect] = [Outcome(draft.ticket, result) for draft in self._drafts]
        effects += [Outcome(batch.tickets[0][0], result) for batch in self._numbered]
        self._drafts.clear()
        self._numbered.clear()
        self.count = self._bytes = 0
        return effects

    def sizes(self) -> Sizes:
        """Return the queue with its bounds."""
        return {
            "waiting drafts": (self.count, MAX_WAITING_DRAFTS),
            "waiting bytes": (self._bytes, MAX_WAITING_BYTES),
        }

    def _crowding(self, count: int, size: int) -> str:
        has_room = self.count + count <= MAX_WAITING_DRAFTS
        return "" if has_room and self._bytes + size <= MAX_WAITING_BYTES else QUEUE_FULL

    def _enter(self, count: int, size: int) -> None:
        self.count += count
        self._bytes += size


def _misfit(draft: Draft) -> str:
    if len(draft.content) > MAX_CONTENT_BYTES:
        return TOO_LARGE
    return "" if 0 <= draft.content_type <= 255 else NO_SUCH_TYPE


def _misfit_of(numbered: tuple[int, Draft]) -> str:
    return _misfit(numbered[1])


def _misnumbering(event: PublishNumbered, now: float) -> str:
    """Say what is wrong with numbers: what is not of this time, others would not take."""
    numbers = [event.previous, *(number for number, _ in event.drafts)]
    if not 1 <= len(event.drafts) <= MAX_FRAME_MESSAGES or not 0 <= event.chain < 1 << 64:
        return BAD_NUMBERS
    if event.previous < 0 or not all(a < b for a, b in pairwise(numbers)):
        return BAD_NUMBERS
    first_s, last_s = ((number >> SEQUENCE_BITS) / 1000 for number in (numbers[1], numbers[-1]))
    is_of_this_time = now - MAX_SKEW_S <= first_s and last_s <= now + MAX_SKEW_S
    return "" if is_of_this_time else BAD_NUMBERS
