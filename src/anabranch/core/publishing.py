"""The publishing side of one stream part: making frames, waiting, being confirmed.

Drafts become a frame the moment they may leave. While the publisher has been told to slow down
they wait, bounded, and those that waited leave together. A frame is kept until a neighbour says
that it has got it: a link may die with frames on it, or there may be no neighbour yet. When too
many frames are unconfirmed no more are made, so that drafts wait and the application feels it.

What must be offered to newcomers, or once more, is a backlog. It leaves little by little, as what
left of it is confirmed: a link that was given all at once would be cut for it, and dialled, and
given all again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anabranch.core.frames import MAX_FRAME_BYTES, Locking, build
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey
from anabranch.core.machine import Effect, Outcome, Sizes
from anabranch.core.waiting_drafts import WaitingDrafts

MAX_STRANDED_FRAMES = 1_000  # that nobody has confirmed
MAX_STRANDED_BYTES = 16 << 20
STRANDED_FOR_S = 60.0
CONFIRM_S = 2.0  # how long a frame may go unconfirmed before it is offered again
OFFER_BYTES = 1 << 20  # of a part's backlog that may be on the way, unconfirmed; or one frame
MAX_FLYING_BYTES = 4 << 20  # of the backlogs of all parts, since they share links
MAX_GIVEN_CHAINS = 512  # in which we publish under given numbers, in one part

SENT = "sent"
EXPIRED = "no-neighbour"
NO_SUCH_STREAM = "no-such-stream"
UNPERMITTED = "unpermitted"


_Name = tuple[ChainKey, int]  # a chain, and the last number of a frame of it
Locker = Callable[[int], Locking | None]  # given the first number if those were given, else 0


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
    is_given: bool = False  # its numbers are the application's choice

    @property
    def name(self) -> _Name:
        """What it is known by."""
        return self.head.chain, self.head.last

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
    """What we publish in one part: our own chain, and those with given numbers."""

    __slots__ = (
        *("_again_at", "_backlog", "_flight", "_flying_bytes", "_given", "_given_up", "_held"),
        *("_left_since_pause", "_part", "_patience_s", "_sign", "_unconfirmed"),
        *("_unconfirmed_bytes", "chain", "doubted_until", "neighbours", "newest"),
        *("paused_until", "waiting"),
    )

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
        self.waiting = WaitingDrafts(chain)  # to become part of a frame
        # Chains with given numbers, and their newest ones: the last used stay.
        self._given: OrderedDict[ChainKey, int] = OrderedDict()
        self._unconfirmed: OrderedDict[_Name, Unconfirmed] = OrderedDict()
        self._unconfirmed_bytes = 0
        self._given_up: list[_Name] = []  # frames, since the last `take_given_up`
        self._again_at: float | None = None  # when to look for what must be offered again
        self._backlog: OrderedDict[_Name, Owed] = OrderedDict()  # unconfirmed, in order of offering
        self._flight = flight or Flight()
        self._flying_bytes = 0  # our own share of the flight
        self._held = False  # whether a pause keeps the backlog from going on

    @property
    def wakeup_at(self) -> float | None:
        """When a pause or a doubt ends, or an unconfirmed frame is due or has waited enough."""
        times = []
        if self.waiting.count:
            if self.doubted_until is not None:
                times.append(self.doubted_until)
            elif not self.full:
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

    def refuse(self, result: str) -> list[Effect]:
        """Let none of the drafts that wait become a frame."""
        self.doubted_until = None
        return self.waiting.refuse(result)

    def next_frame(self, now: float, lock: Locker | None = None) -> Unconfirmed | None:
        """Make the next frame of what waits, if one may be made, and keep it."""
        if not self.waiting.count or now < self.paused_until or self.doubted_until is not None:
            return None
        if self.full:
            return None
        batch = self.waiting.take(self.newest, now)
        self._left_since_pause = True
        chain, previous, drafts = batch.chain, batch.previous, batch.drafts
        first, last = drafts[0][0], drafts[-1][0]
        locking = lock(first if batch.is_given else 0) if lock is not None else None
        frame = build(self._part, chain, previous, drafts, self._sign, locking)
        head = FrameHead(self._part, chain, previous, first, last, len(drafts))
        made = Unconfirmed(head, frame, batch.tickets, now + self._patience_s, now)
        made.copies, made.is_given = batch.copies, batch.is_given
        if batch.is_given:
            self._own(chain, last)
            self._supersede(made)
        else:
            self.newest = last
        self._unconfirmed[chain, last] = made
        self._unconfirmed_bytes += len(frame)
        return made

    def owns(self, chain: ChainKey) -> bool:
        """Tell whether we publish in a chain: it is our own, or one with given numbers."""
        return chain == self.chain or chain in self._given

    def has_settled(self, chain: ChainKey, numbers: Sequence[int]) -> bool:
        """Tell whether nothing waits for this word, since another neighbour has said it before."""
        return not self._unconfirmed and chain == self.chain and max(numbers) <= self.newest

    def could_have(self, chain: ChainKey, number: int) -> bool:
        """Tell whether a neighbour may have a frame that ends so; of chains long ago, who knows."""
        newest = self.newest if chain == self.chain else self._given.get(chain, number)
        return number <= newest

    def _own(self, chain: ChainKey, last: int) -> None:
        self._given[chain] = max(last, self._given.get(chain, 0))
        self._given.move_to_end(chain)
        if len(self._given) > MAX_GIVEN_CHAINS:
            self._given.popitem(last=False)

    def _supersede(self, made: Unconfirmed) -> None:
        """Let a frame stand for the one of the same name that is still unconfirmed."""
        before = self._unconfirmed.get(made.name)
        if before is not None:
            made.tickets = [*before.tickets, *made.tickets]
            self._forget(before)

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

    def confirm(self, chain: ChainKey, number: int) -> list[Effect]:
        """A neighbour has the frame of a chain that ends with this number.

        It says nothing of the frames before: they may have gone to another neighbour, whose link
        died, or have been dropped from the queue of a slow one.
        """
        frame = self._unconfirmed.get((chain, number))
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

    def take_given_up(self) -> list[_Name]:
        """Return, once, the names of the frames that were given up."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def sizes(self) -> Sizes:
        """Return the queues with their bounds."""
        return {
            **self.waiting.sizes(),
            "chains with given numbers": (len(self._given), MAX_GIVEN_CHAINS),
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
            for name, frame in self._unconfirmed.items():
                self._land(frame)
                if new:
                    owed = before.get(name, frozenset()) if frame.offered else None
                    self._backlog[name] = None if owed is None else new | owed & present
        return bool(new)

    def owe(self, frames: Iterable[Unconfirmed]) -> None:
        """Let frames be offered to all neighbours, when it is their turn."""
        for frame in frames:
            self._land(frame)
            self._backlog[frame.name] = None

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
        name, owed = self._backlog.popitem(last=False)
        frame = self._unconfirmed[name]
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
        self._forget(frame)
        if result != SENT:
            self._given_up.append(frame.name)
        if not self._unconfirmed:
            self._again_at = None
        return [Outcome(ticket, result, number) for ticket, number in frame.tickets]

    def _forget(self, frame: Unconfirmed) -> None:
        del self._unconfirmed[frame.name]
        self._unconfirmed_bytes -= frame.size
        self._backlog.pop(frame.name, None)
        self._land(frame)
