"""The publishing side of one stream part: numbering, batching, waiting.

Drafts become a frame the moment they may leave. While the publisher has been told to slow down
they wait, bounded, and those that waited leave together. A frame that found no neighbour is kept
for a while and goes to the first one that comes.
"""

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from anabranch.core.frames import build
from anabranch.core.ids import ChainKey, PartKey, next_number
from anabranch.core.machine import Draft, Effect, Outcome, Sizes
from anabranch.core.messages.data import MAX_CONTENT_BYTES

MAX_WAITING_DRAFTS = 10_000
MAX_WAITING_BYTES = 16 << 20
MAX_STRANDED_FRAMES = 1_000
MAX_STRANDED_BYTES = 16 << 20
STRANDED_FOR_S = 60.0
FRAME_MESSAGES = 128
FRAME_CONTENT_BYTES = 64 << 10

SENT = "sent"
EXPIRED = "no-neighbour"
QUEUE_FULL = "queue-full"
TOO_LARGE = "too-large"
NO_SUCH_TYPE = "no-such-content-type"


class Stranded(msgspec.Struct):
    """A frame that has found no neighbour yet, with the outcomes it owes."""

    frame: bytes
    tickets: Sequence[tuple[int, int]]  # ticket, number
    until: float


class Publishing:
    """Our own chain in one part."""

    def __init__(self, part: PartKey, chain: ChainKey, sign: Callable[[bytes], bytes]) -> None:
        self.chain = chain
        self._part = part
        self._sign = sign
        self._newest = 0
        self._waiting: deque[Draft] = deque()
        self._waiting_bytes = 0
        self._stranded: deque[Stranded] = deque()
        self._stranded_bytes = 0
        self.paused_until = 0.0

    @property
    def wakeup_at(self) -> float | None:
        """When a pause ends or a stranded frame has waited long enough."""
        times = [self.paused_until] if self._waiting else []
        times += [self._stranded[0].until] if self._stranded else []
        return min(times, default=None)

    def pause(self, seconds: float, now: float) -> None:
        """Send nothing for a while."""
        self.paused_until = max(self.paused_until, now + seconds)

    def add(self, drafts: Sequence[Draft]) -> list[Effect]:
        """Queue drafts; those that cannot be taken have their outcome at once."""
        refused: list[Effect] = []
        for draft in drafts:
            size = len(draft.content)
            if size > MAX_CONTENT_BYTES:
                refused.append(Outcome(draft.ticket, TOO_LARGE))
                continue
            if not 0 <= draft.content_type <= 255:
                refused.append(Outcome(draft.ticket, NO_SUCH_TYPE))
                continue
            if (
                len(self._waiting) >= MAX_WAITING_DRAFTS
                or self._waiting_bytes + size > MAX_WAITING_BYTES
            ):
                refused.append(Outcome(draft.ticket, QUEUE_FULL))
                continue
            self._waiting.append(draft)
            self._waiting_bytes += size
        return refused

    def next_frame(self, now: float) -> tuple[bytes, list[tuple[int, int]]] | None:
        """Make the next frame of what waits, unless we are paused; with its (ticket, number)s."""
        if not self._waiting or now < self.paused_until:
            return None
        batch: list[tuple[int, Draft]] = []
        previous, size = self._newest, 0
        now_ms = int(now * 1000)
        while self._waiting and len(batch) < FRAME_MESSAGES:
            draft = self._waiting[0]
            size += len(draft.content)
            if batch and size > FRAME_CONTENT_BYTES:
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(draft.content)
            self._newest = next_number(self._newest, now_ms)
            batch.append((self._newest, draft))
        frame = build(self._part, self.chain, previous, batch, self._sign)
        return frame, [(draft.ticket, number) for number, draft in batch]

    def strand(self, frame: bytes, tickets: list[tuple[int, int]], now: float) -> list[Effect]:
        """Keep a frame for which there is no neighbour yet."""
        self._stranded.append(Stranded(frame, tickets, now + STRANDED_FOR_S))
        self._stranded_bytes += len(frame)
        effects: list[Effect] = []
        while (
            len(self._stranded) > MAX_STRANDED_FRAMES or self._stranded_bytes > MAX_STRANDED_BYTES
        ):
            effects += self._give_up()
        return effects

    def take_stranded(self) -> list[Stranded]:
        """Hand over what waited for a neighbour."""
        stranded = list(self._stranded)
        self._stranded.clear()
        self._stranded_bytes = 0
        return stranded

    def has_stranded(self) -> bool:
        """Tell whether anything waits for a neighbour."""
        return bool(self._stranded)

    def expire(self, now: float) -> list[Effect]:
        """Give up on frames that have waited long enough."""
        effects: list[Effect] = []
        while self._stranded and self._stranded[0].until <= now:
            effects += self._give_up()
        return effects

    def close(self) -> list[Effect]:
        """Account for everything that has not left."""
        effects: list[Effect] = [Outcome(d.ticket, EXPIRED) for d in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        while self._stranded:
            effects += self._give_up()
        return effects

    def sizes(self) -> Sizes:
        """Return the queues with their bounds."""
        return {
            "waiting drafts": (len(self._waiting), MAX_WAITING_DRAFTS),
            "waiting bytes": (self._waiting_bytes, MAX_WAITING_BYTES),
            "stranded frames": (len(self._stranded), MAX_STRANDED_FRAMES),
            "stranded bytes": (self._stranded_bytes, MAX_STRANDED_BYTES),
        }

    def _give_up(self) -> list[Effect]:
        oldest = self._stranded.popleft()
        self._stranded_bytes -= len(oldest.frame)
        return outcomes(oldest.tickets, EXPIRED)


def outcomes(tickets: Sequence[tuple[int, int]], result: str) -> list[Effect]:
    """Say the same of every message of a frame."""
    return [Outcome(ticket, result, number) for ticket, number in tickets]
