"""The publishing side of one stream part: numbering, batching, waiting, being confirmed.

Drafts become a frame the moment they may leave. While the publisher has been told to slow down
they wait, bounded, and those that waited leave together. A frame is kept until a neighbour says
that it has got it: a link may die with frames on it, or there may be no neighbour yet. When too
many frames are unconfirmed no more are made, so that drafts wait and the application feels it.

What must be offered to newcomers, or once more, is a backlog. It leaves little by little, as what
left of it is confirmed: a link that was given all at once would be cut for it, and dialled, and
given all again.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anabranch.core.frames import MAX_FRAME_BYTES, Locking, build
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, next_number
from anabranch.core.machine import Draft, Effect, Outcome, Sizes
from anabranch.core.messages.data import MAX_CONTENT_BYTES

MAX_WAITING_DRAFTS = 10_000
MAX_WAITING_BYTES = 16 << 20
MAX_STRANDED_FRAMES = 1_000  # that nobody has confirmed
MAX_STRANDED_BYTES = 16 << 20
STRANDED_FOR_S = 60.0
CONFIRM_S = 2.0  # how long a frame may go unconfirmed before it is offered again
OFFER_BYTES = 1 << 20  # of a part's backlog that may be on the way, unconfirmed; or one frame
MAX_FLYING_BYTES = 4 << 20  # of the backlogs of all parts, since they share links
FRAME_MESSAGES = 128
FRAME_CONTENT_BYTES = 64 << 10

SENT = "sent"
EXPIRED = "no-neighbour"
QUEUE_FULL = "queue-full"
TOO_LARGE = "too-large"
NO_SUCH_TYPE = "no-such-content-type"
NO_SUCH_STREAM = "no-such-stream"
UNPERMITTED = "unpermitted"


class Unconfirmed(msgspec.Struct):
    """A frame that no neighbour is known to have, with the outcomes it owes."""

    head: FrameHead
    frame: bytes
    tickets: Sequence[tuple[int, int]]  # ticket, number
    until: float
    tried_at: float
    offered: bool = False  # whether it has left for anybody
    flying: bool = False  # whether it left from the backlog and is not confirmed or owed anew
    copies: Sequence[tuple[int, int]] = ()  # of drafts that want receipts: ticket, copies

    @property
    def size(self) -> int:
        """Return its bytes."""
        return len(self.frame)


class Flight(msgspec.Struct):
    """What has left from the backlogs of all parts and is not confirmed."""

    bytes: int = 0

    @property
    def full(self) -> bool:
        """Whether another frame might be too much."""
        return self.bytes > MAX_FLYING_BYTES - MAX_FRAME_BYTES


Owed = frozenset[NodeId] | None  # those to whom a frame must be offered; None: to all neighbours


class Publishing:
    """Our own chain in one part."""

    def __init__(
        self,
        part: PartKey,
        chain: ChainKey,
        sign: Callable[[bytes], bytes],
        patience_s: float = STRANDED_FOR_S,
        flight: Flight | None = None,
    ) -> None:
        self.chain = chain
        self.newest = 0
        self.neighbours: tuple[NodeId, ...] = ()  # as they were when we last looked
        self.paused_until = 0.0
        self._left_since_pause = True
        self.doubted_until: float | None = None  # while we ask whether we may publish at all
        self._part = part
        self._sign = sign
        self._patience_s = patience_s
        self._waiting: deque[Draft] = deque()
        self._waiting_bytes = 0
        self._unconfirmed: OrderedDict[int, Unconfirmed] = OrderedDict()  # by their last number
        self._unconfirmed_bytes = 0
        self._again_at: float | None = None  # when to look for what must be offered again
        self._backlog: OrderedDict[int, Owed] = OrderedDict()  # unconfirmed, in order of offering
        self._flight = flight or Flight()
        self._flying_bytes = 0  # our own share of the flight
        self._held = False  # whether a pause keeps the backlog from going on

    @property
    def wakeup_at(self) -> float | None:
        """When a pause or a doubt ends, or an unconfirmed frame is due or has waited enough."""
        times = []
        if self._waiting and self.doubted_until is not None:
            times.append(self.doubted_until)
        elif self._waiting and not self.full:
            times.append(self.paused_until)
        if self._unconfirmed:
            times.append(next(iter(self._unconfirmed.values())).until)
        if self._again_at is not None:
            times.append(max(self._again_at, self.paused_until))
        if self._held and self._backlog:
            times.append(self.paused_until)
        return min(times, default=None)

    @property
    def full(self) -> bool:
        """Whether no frame may be made until one is confirmed or given up."""
        return (
            len(self._unconfirmed) >= MAX_STRANDED_FRAMES
            or self._unconfirmed_bytes > MAX_STRANDED_BYTES - MAX_FRAME_BYTES
        )

    # --- Drafts ---------------------------------------------------------------------------

    def pause(self, seconds: float, now: float) -> None:
        """Send nothing for a while; after every pause one frame leaves, whoever wants another.

        So a neighbour that keeps asking slows us down to a frame a second, and cannot silence us.
        """
        if self._left_since_pause:
            self._left_since_pause = False
            self.paused_until = now + seconds

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

    def refuse(self, result: str) -> list[Effect]:
        """Let none of the drafts that wait become a frame."""
        effects: list[Effect] = [Outcome(draft.ticket, result) for draft in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        self.doubted_until = None
        return effects

    def waits(self) -> bool:
        """Tell whether any draft waits to become part of a frame."""
        return bool(self._waiting)

    def ready(self, now: float) -> bool:
        """Tell whether a frame may be made of what waits."""
        if not self._waiting or now < self.paused_until or self.full:
            return False
        return self.doubted_until is None

    def next_frame(self, now: float, lock: Locking | None = None) -> Unconfirmed | None:
        """Make the next frame of what waits, if one may be made, and keep it."""
        if not self.ready(now):
            return None
        batch: list[tuple[int, Draft]] = []
        previous, size = self.newest, 0
        now_ms = int(now * 1000)
        while self._waiting and len(batch) < FRAME_MESSAGES:
            draft = self._waiting[0]
            size += len(draft.content)
            if batch and size > FRAME_CONTENT_BYTES:
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(draft.content)
            self.newest = next_number(self.newest, now_ms)
            batch.append((self.newest, draft))
        self._left_since_pause = True
        frame = build(self._part, self.chain, previous, batch, self._sign, lock)
        head = FrameHead(self._part, self.chain, previous, batch[0][0], self.newest, len(batch))
        tickets = [(draft.ticket, number) for number, draft in batch]
        made = Unconfirmed(head, frame, tickets, now + self._patience_s, now)
        made.copies = [(draft.ticket, draft.copies) for _, draft in batch if draft.copies]
        self._unconfirmed[head.last] = made
        self._unconfirmed_bytes += made.size
        return made

    # --- Frames that nobody is known to have ----------------------------------------------

    def unconfirmed(self) -> list[Unconfirmed]:
        """Return what no neighbour is known to have, oldest first."""
        return list(self._unconfirmed.values())

    def tried(self, frame: Unconfirmed, offered: bool, now: float) -> None:
        """Take note that a frame was given to the overlay, and whether it left for anybody."""
        frame.tried_at = now
        frame.offered = frame.offered or offered
        if not offered:
            self._land(frame)
        if self._again_at is None and self.neighbours:
            self._again_at = now + CONFIRM_S

    def confirm(self, number: int) -> list[Effect]:
        """A neighbour has the frame that ends with this number.

        It says nothing of the frames before: they may have gone to another neighbour, whose link
        died, or have been dropped from the queue of a slow one.
        """
        frame = self._unconfirmed.get(number)
        if frame is None or not frame.offered:
            return []
        return self._settle(frame, SENT)

    def due_again(self, now: float) -> list[Unconfirmed]:
        """Return what has gone unconfirmed for too long; while we are paused, nothing."""
        if self._again_at is None or now < max(self._again_at, self.paused_until):
            return []
        if not self.neighbours:
            self._again_at = None  # the next neighbour to come is owed everything
            return []
        due, first = [], now
        for frame in self._unconfirmed.values():
            if frame.tried_at + CONFIRM_S <= now:
                due.append(frame)
            else:
                first = min(first, frame.tried_at)
        # All of them are looked at, so not each at a moment of its own.
        self._again_at = max(first + CONFIRM_S, now + CONFIRM_S / 4)
        return due

    def expire(self, now: float) -> list[Effect]:
        """Give up on frames that have waited long enough, and on drafts still in doubt."""
        effects: list[Effect] = []
        if self.doubted_until is not None and self.doubted_until <= now:
            effects += self.refuse(UNPERMITTED)
        while self._unconfirmed:
            oldest = next(iter(self._unconfirmed.values()))
            if oldest.until > now:
                break
            effects += self._settle(oldest, EXPIRED)
        return effects

    def close(self, result: str = EXPIRED) -> list[Effect]:
        """Account for everything that is not confirmed."""
        effects: list[Effect] = []
        for frame in self.unconfirmed():
            effects += self._settle(frame, result)
        return effects + self.refuse(result)

    def sizes(self) -> Sizes:
        """Return the queues with their bounds."""
        return {
            "waiting drafts": (len(self._waiting), MAX_WAITING_DRAFTS),
            "waiting bytes": (self._waiting_bytes, MAX_WAITING_BYTES),
            "unconfirmed frames": (len(self._unconfirmed), MAX_STRANDED_FRAMES),
            "unconfirmed bytes": (self._unconfirmed_bytes, MAX_STRANDED_BYTES),
            "backlog frames": (len(self._backlog), MAX_STRANDED_FRAMES),
            "flying bytes": (self._flying_bytes, OFFER_BYTES),
        }

    # --- The backlog ----------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether frames are still to be offered, so that a new one must wait behind them."""
        return bool(self._backlog)

    @property
    def waits_for_others(self) -> bool:
        """Whether the backlog could go on if those of other parts had left room for it."""
        return bool(self._backlog) and self._flight.full

    def meet(self, neighbours: tuple[NodeId, ...]) -> bool:
        """Take note of who is there; newcomers, if there are any, are owed all that nobody has."""
        present = frozenset(neighbours)
        new = present.difference(self.neighbours)
        self.neighbours = neighbours
        if new or not neighbours:  # what flew to others says nothing of the way to these
            before, self._backlog = self._backlog, OrderedDict()
            for number, frame in self._unconfirmed.items():
                self._land(frame)
                if new:
                    owed = before.get(number, frozenset()) if frame.offered else None
                    self._backlog[number] = None if owed is None else new | owed & present
        return bool(new)

    def owe(self, frames: Iterable[Unconfirmed]) -> None:
        """Let frames be offered to all neighbours, when it is their turn."""
        for frame in frames:
            self._land(frame)
            self._backlog[frame.head.last] = None

    def resumes(self, now: float) -> bool:
        """Tell whether the backlog may go on: a pause is for what is old, too."""
        self._held = self.behind and now < self.paused_until
        if self._held or not self._has_room():
            return False
        self._left_since_pause = True
        return True

    def take_off(self, now: float) -> tuple[Unconfirmed, Owed] | None:
        """Take the next frame from the backlog, if there is room for it on the way."""
        if not self._has_room():
            return None
        if self._flight.full:
            if self._again_at is None:  # should the others never make room
                self._again_at = now + CONFIRM_S
            return None
        number, owed = self._backlog.popitem(last=False)
        frame = self._unconfirmed[number]
        frame.flying = True
        self._flying_bytes += frame.size
        self._flight.bytes += frame.size
        return frame, owed

    def _has_room(self) -> bool:
        if not self._backlog:
            return False
        size = self._unconfirmed[next(iter(self._backlog))].size
        return not self._flying_bytes or self._flying_bytes + size <= OFFER_BYTES

    def _land(self, frame: Unconfirmed) -> None:
        if frame.flying:
            frame.flying = False
            self._flying_bytes -= frame.size
            self._flight.bytes -= frame.size

    def _settle(self, frame: Unconfirmed, result: str) -> list[Effect]:
        """Say what became of a frame's messages, and forget it."""
        del self._unconfirmed[frame.head.last]
        self._unconfirmed_bytes -= frame.size
        self._backlog.pop(frame.head.last, None)
        self._land(frame)
        if not self._unconfirmed:
            self._again_at = None
        return [Outcome(ticket, result, number) for ticket, number in frame.tickets]
