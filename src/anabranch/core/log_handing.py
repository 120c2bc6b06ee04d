"""Frames that a follower holds and its primary may lack.

What came to a follower and has no place in the log after a while is handed to the primary, again
and again until it has one. Which frames those are is known from when they came. After a restart,
or when places were taken back, they are found by going through all that is kept.
"""

from collections.abc import Iterable
from functools import partial
from itertools import islice

from anabranch.core.frames import peek
from anabranch.core.ids import FrameHead
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import Hand
from anabranch.core.messages.storage import MAX_NAMED, PAGE_BYTES, FrameName
from anabranch.core.storage_disk import Look
from anabranch.core.store import Answer, Named, Placed

HAND_AFTER_S = 2.0
LOOK_EVERY_S = 1.0
MAX_UNPLACED = 16_384  # that are known; the others are found by going through all that is kept


class Handing:
    """What has no place in the log yet, as far as is known."""

    def __init__(self, standing: Standing, find: Look) -> None:
        self._standing = standing
        self._find = find
        self._unplaced: dict[FrameName, float] = {}  # since when, or when it was last handed on
        self._is_looking = False
        self.is_incomplete = standing.state.held > 0  # there may be others
        self.at: float | None = None

    def __len__(self) -> int:
        return len(self._unplaced)

    def add(self, heads: Iterable[FrameHead], now: float) -> None:
        """Take note of frames that are held."""
        for head in heads:
            self._unplaced[FrameName(head.chain, head.last)] = now
        self._bound(now)

    def add_found(self, rows: Iterable[Placed], are_old: bool, now: float) -> None:
        """Take note of held frames that were found on the disk.

        Old ones, of before a restart or of a part of the log that was cut off, are handed over at
        once. Others may just have come, and are likely to be in the primary's log already: they
        wait as long as any. A frame that is known keeps the time at which it was handed over last.
        """
        if are_old:
            self.add((peek(row.entry.frame) for row in rows), now - HAND_AFTER_S)
            return
        for row in rows:
            head = peek(row.entry.frame)
            came_at = min(now, row.entry.placed_ms / 1000)
            self._unplaced.setdefault(FrameName(head.chain, head.last), came_at)
        self._bound(now)

    def _bound(self, now: float) -> None:
        while len(self._unplaced) > MAX_UNPLACED:
            del self._unplaced[next(iter(self._unplaced))]
            self.is_incomplete = True
        if self._unplaced and self.at is None:
            self.at = now + HAND_AFTER_S

    def drop(self, heads: Iterable[FrameHead]) -> None:
        """Take note of frames that have a place."""
        if self._unplaced:
            for head in heads:
                self._unplaced.pop(FrameName(head.chain, head.last), None)

    def clear(self, are_others: bool) -> None:
        """Forget them all: we lead, and give places to all that is held."""
        self._unplaced.clear()
        self.is_incomplete = are_others

    def wake(self, now: float) -> list[Effect]:
        """Look up what has waited long enough, if there is a primary to hand it to."""
        self.at = now + LOOK_EVERY_S if self._unplaced else None
        if self._standing.primary is None or self._is_looking:
            return []
        oldest = islice(self._unplaced.items(), MAX_NAMED)
        names = tuple(name for name, since in oldest if now >= since + HAND_AFTER_S)
        if not names:
            return []
        self._is_looking = True
        query = Named(self._standing.part, names)
        return [self._find(query, partial(self._found, names))]

    def _found(self, names: tuple[FrameName, ...], answer: Answer, now: float) -> list[Effect]:
        self._is_looking = False
        if answer.problem:
            return []
        for name in names:
            self._unplaced.pop(name, None)
        frames: list[bytes] = []
        size = 0
        for row in answer.placed:
            if row.offset is not None:
                continue
            head = peek(row.entry.frame)
            size += len(row.entry.frame)
            if frames and size > PAGE_BYTES:
                self.add((head,), now - HAND_AFTER_S)  # the next time
                continue
            frames.append(row.entry.frame)
            self.add((head,), now)
        primary = self._standing.primary
        if not frames or primary is None:
            return []
        return [Send(primary, Hand(self._standing.part, tuple(frames)))]
