"""One who reads a part in order: where each publisher's chain stands, and what waits behind gaps.

A frame says which number its chain had before it. If that is where we stand, the frame is
delivered, and nearly every frame is such a one. If we are past its end, it is an old copy. If it
is further on, something is missing: the frame waits in its chain's *hole* until that has come, or
until it is given up and `Missed` says so. Nobody asks here for what is missing (gaps.py does).

A chain that is unknown begins with the first frame that comes of it, unless that frame's
predecessor is so new that it should have come to us as well. Whether it should is not sure: a
hole at the beginning of a chain is given up silently, for a while after the reader has come. But
where there is storage, it keeps whatever was published since then (`insist`).
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart, number_of
from anabranch.core.machine import Effect, Missed, Sizes
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.core.waiting_room import WaitingRoom

MAX_CHAINS = 20_000
MAX_WAITING_FRAMES = 4_096
MAX_WAITING_BYTES = 16 << 20
GAP_WAIT_S = 1.5  # what is missing may just be late
MAX_ATTEMPTS = 6  # to get what is missing
BEGIN_WAIT_S = 0.4  # what may be missing at the beginning of a chain is not waited for as long
SETTLING_S = 30.0  # while an overlay comes into being, it may lose what a chain begins with

NOT_FOUND = "not-found"  # nobody who was asked has it
NO_ROOM = "no-room"  # too much waited for it

_NO_PART = PartKey(b"")

Notice = Callable[[ChainKey, float], None]  # a chain, and since when something is missing in it
Say = Callable[[Effect], list[Effect]]  # in its place among what is delivered


class Cut(msgspec.Struct, frozen=True, gc=False):
    """Which of a frame's messages are wanted; the words are those of machine.Deliver."""

    after: int = 0
    upto: int = MAX_NUMBER
    skip: int = 0
    most: int = MAX_NUMBER
    late: bool = False


WHOLE = Cut()

# head, frame, hops, sender, now, after, and which messages
Outlet = Callable[[FrameHead, bytes, int, NodeId | None, float, int, Cut], list[Effect]]


class Missing(msgspec.Struct, frozen=True):
    """What is missing of a chain: numbers above `after`, up to `upto`."""

    after: int
    upto: int
    attempts: int  # that were made in vain to get some of it
    sure: bool  # that there is such a thing


class _Waiting(msgspec.Struct):
    """A frame that waits for what comes before it."""

    head: FrameHead
    frame: bytes
    hops: int
    sender: NodeId | None
    since: float
    cut: Cut = WHOLE
    attempts: int = 0


class _Hole(msgspec.Struct):
    """A chain in which something is missing: the frames that wait, in the order of numbers."""

    position: int  # of the last message that was delivered
    sure: bool
    frames: list[_Waiting]

    def gaps(self) -> list[tuple[int, _Waiting]]:
        """Return the frames before which something is missing, and after which number it is."""
        found, reached = [], self.position
        for waiting in self.frames:
            if waiting.head.previous > reached:
                found.append((reached, waiting))
            reached = max(reached, waiting.head.last)
        return found


def _at_once(effect: Effect) -> list[Effect]:
    return [effect]


class Subscription:
    """What is delivered under one ticket, in the order of each chain."""

    __slots__ = (
        *("_deliver", "_floor", "_forgotten", "_holes", "_notice", "_past", "_positions", "_room"),
        *("_say", "_settled", "part", "ticket"),
    )

    def __init__(
        self,
        ticket: int,
        part: StreamPart,
        opened_at: float,
        deliver: Outlet,
        notice: Notice,
        say: Say = _at_once,
    ) -> None:
        self.ticket = ticket
        self.part = part
        self._deliver = deliver
        self._notice = notice
        self._say = say
        self._positions: OrderedDict[ChainKey, int] = OrderedDict()  # without holes
        self._holes: dict[ChainKey, _Hole] = {}
        self._room = WaitingRoom()
        self._floor = max(1, number_of(max(0, int(opened_at * 1000)), 0))
        self._forgotten = 0  # the highest position of a chain that there was no room for
        self._settled = number_of(int((opened_at + SETTLING_S) * 1000), 0)
        self._past: tuple[bytes, int] | None = None  # whose history was read, and its floor

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return not self._holes

    @property
    def crowded(self) -> bool:
        """Whether so much waits that it is better not to fetch more."""
        room = self._room
        return room.frames * 2 > MAX_WAITING_FRAMES or room.bytes * 2 > MAX_WAITING_BYTES

    # --- What comes -----------------------------------------------------------------------

    def take(
        self, head: FrameHead, frame: bytes, hops: int, sender: NodeId | None, now: float
    ) -> list[Effect]:
        """Take a frame; deliver what may be delivered now."""
        chain, previous, positions = head.chain, head.previous, self._positions
        if positions.get(chain) == previous:
            positions[chain] = head.last
            if len(positions) > 1:  # a single one is at the end
                positions.move_to_end(chain)
            deliver = self._deliver  # Python finds what is no method sooner if it is taken out
            return deliver(head, frame, hops, sender, now, previous, WHOLE)
        return self._place(_Waiting(head, frame, hops, sender, now), False, now)

    def take_late(
        self,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        since: float,
        now: float,
    ) -> list[Effect]:
        """Take a frame that came a while ago: what is missing before it is so for long enough."""
        return self._place(_Waiting(head, frame, hops, sender, since), False, now)

    def take_past(
        self, head: FrameHead, frame: bytes, sender: NodeId, cut: Cut, begins: bool, now: float
    ) -> list[Effect]:
        """Take a frame of the history; its chain may begin with it if `begins`."""
        return self._place(_Waiting(head, frame, 1, sender, now, cut), begins, now)

    def pass_late(
        self, head: FrameHead, frame: bytes, sender: NodeId, cut: Cut, now: float
    ) -> list[Effect]:
        """Deliver a frame of the history that lies before the one its chain began with here."""
        return self._deliver(head, frame, 1, sender, now, cut.after, cut)

    def pass_on(
        self, head: FrameHead, frame: bytes, hops: int, sender: NodeId | None, now: float
    ) -> list[Effect]:
        """Deliver a frame as it comes, unless the history had it."""
        position = self._positions.get(head.chain, 0)
        if head.last <= position:
            return []
        return self._deliver(head, frame, hops, sender, now, position, WHOLE)

    def pass_past(
        self, head: FrameHead, frame: bytes, sender: NodeId, cut: Cut, now: float
    ) -> list[Effect]:
        """Deliver a frame of the history as it comes."""
        self._remember(head.chain, max(head.last, self._positions.get(head.chain, 0)))
        return self._deliver(head, frame, 1, sender, now, cut.after, cut)

    def expect(
        self, chain: ChainKey, after: int, last: int, since: float, now: float
    ) -> list[Effect]:
        """Frames exist that begin above one number and end with another, and we lack them."""
        if chain not in self._positions and chain not in self._holes:
            self._holes[chain] = _Hole(min(after, self._floor_of(chain) - 1), True, [])
        # It stands for a frame of no messages that follows those that we lack.
        follower = FrameHead(_NO_PART, chain, last, last + 1, last, 0)
        return self._place(_Waiting(follower, b"", 0, None, since), False, now)

    def read_past(self, whose: bytes, floor: int) -> None:
        """The history has been read: of these chains, what is above the floor should be here."""
        self._past = (whose, floor)

    # --- What is missing ------------------------------------------------------------------

    def lacks(self, head: FrameHead) -> bool:
        """Tell whether a frame would fill something."""
        hole = self._holes.get(head.chain)
        if hole is None or head.last <= hole.position:
            return False
        return not any(each.frame and each.head.last == head.last for each in hole.frames)

    def wants(self, head: FrameHead) -> bool:
        """Tell whether a frame has not come, and should have."""
        if head.chain in self._holes:
            return self.lacks(head)
        position = self._positions.get(head.chain)
        return head.last > (self._floor_of(head.chain) - 1 if position is None else position)

    def missing(self, chain: ChainKey, now: float) -> Missing | None:
        """Return what is missing of a chain for so long that it should be asked for."""
        hole = self._holes.get(chain)
        gaps = [] if hole is None else hole.gaps()
        ripe = [gap for gap in gaps if gap[1].since + GAP_WAIT_S <= now]
        if hole is None or not ripe:
            return None
        sure = hole.sure or ripe[0][0] > hole.position
        most = max(waiting.attempts for _, waiting in ripe)
        return Missing(ripe[0][0], ripe[-1][1].head.previous, most, sure)

    def missing_since(self, chain: ChainKey) -> float | None:
        """Return since when something is missing of a chain; None: nothing is."""
        hole = self._holes.get(chain)
        return min((waiting.since for _, waiting in hole.gaps()), default=None) if hole else None

    def insist(self, chain: ChainKey) -> None:
        """Count on what is missing at the beginning of a chain, if it was published in our time."""
        hole = self._holes.get(chain)
        if hole is not None and hole.frames[0].head.previous >= self._floor:
            hole.sure = True

    def hasten(self, now: float) -> None:
        """Let everything that is missing be asked for at once."""
        for chain, hole in self._holes.items():
            for _, waiting in hole.gaps():
                waiting.since = min(waiting.since, now - 2 * GAP_WAIT_S)
            self._notice(chain, now - 2 * GAP_WAIT_S)

    def fail(
        self, chain: ChainKey, upto: int, asked_at: float, attempts: int, now: float
    ) -> list[Effect]:
        """What was asked for at that time, up to a number, did not come: give up in the end."""
        hole = self._holes.get(chain)
        for _, waiting in hole.gaps() if hole is not None else ():
            if waiting.head.previous <= upto and waiting.since + GAP_WAIT_S <= asked_at:
                waiting.attempts += attempts
        effects: list[Effect] = []
        while (hole := self._holes.get(chain)) is not None:
            made = hole.frames[0].attempts
            if made < (MAX_ATTEMPTS if hole.sure else 1):
                break
            effects += self._give_up(chain, NOT_FOUND, now)
        return effects

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "chains in order": (len(self._positions), MAX_CHAINS),
            "frames behind gaps": (self._room.frames, MAX_WAITING_FRAMES),
            "bytes behind gaps": (self._room.bytes, MAX_WAITING_BYTES),
            "publishers with gaps": (self._room.publishers, MAX_WAITING_FRAMES),
        }

    # --- Where a frame belongs ------------------------------------------------------------

    def _place(self, waiting: _Waiting, begins: bool, now: float) -> list[Effect]:
        """Deliver a frame, drop it, or let it wait."""
        head = waiting.head
        chain, hole = head.chain, self._holes.get(head.chain)
        if hole is not None:
            return self._fill(chain, hole, waiting, now)
        position, sure = self._positions.get(chain), True
        if position is None:
            floor = self._floor_of(chain)
            if begins or head.previous < floor:
                return self._go_on(waiting, head.previous, now)
            position, sure = floor - 1, head.previous >= self._settled
            if not sure:
                waiting.since = min(waiting.since, now - GAP_WAIT_S + BEGIN_WAIT_S)
        elif head.last <= position:
            return []
        elif head.previous <= position:
            return self._go_on(waiting, position, now)
        self._positions.pop(chain, None)
        hole = self._holes[chain] = _Hole(position, sure, [])
        return self._wait(chain, hole, waiting, now)

    def _go_on(self, waiting: _Waiting, position: int, now: float) -> list[Effect]:
        """Deliver the next frame of a chain in which nothing is missing."""
        self._remember(waiting.head.chain, waiting.head.last)
        return self._hand_over(waiting, position, now)

    def _fill(self, chain: ChainKey, hole: _Hole, waiting: _Waiting, now: float) -> list[Effect]:
        if waiting.head.last <= hole.position:
            return []
        if waiting.head.previous > hole.position:
            return self._wait(chain, hole, waiting, now)
        effects = self._hand_over(waiting, hole.position, now)
        hole.position, hole.sure = waiting.head.last, True
        return effects + self._drain(chain, hole, now)

    def _wait(self, chain: ChainKey, hole: _Hole, waiting: _Waiting, now: float) -> list[Effect]:
        """Keep a frame back; if there is no room, give up what is missing of somebody."""
        head = waiting.head
        at = bisect_left(hole.frames, (head.previous, head.last), key=_place_of)
        if hole.frames[at : at + 1] and _place_of(hole.frames[at]) == (head.previous, head.last):
            return []
        hole.frames.insert(at, waiting)
        self._room.enter(chain, len(waiting.frame))
        self._notice(chain, waiting.since)
        effects: list[Effect] = []
        bounds = MAX_WAITING_FRAMES, MAX_WAITING_BYTES
        while (full := self._room.who_makes_room(chain, *bounds)) is not None:
            effects += self._give_up(full, NO_ROOM, now)
        return effects

    def _drain(self, chain: ChainKey, hole: _Hole, now: float) -> list[Effect]:
        """Deliver the frames that wait for nothing any more."""
        effects: list[Effect] = []
        done = 0
        for waiting in hole.frames:
            if waiting.head.previous > hole.position:
                break
            done += 1
            self._room.leave(chain, len(waiting.frame))
            if waiting.head.last > hole.position:
                effects += self._hand_over(waiting, hole.position, now)
                hole.position, hole.sure = waiting.head.last, True
        del hole.frames[:done]
        if not hole.frames:
            del self._holes[chain]
            self._remember(chain, hole.position)
        return effects

    def _give_up(self, chain: ChainKey, reason: str, now: float) -> list[Effect]:
        """Go on past the first gap of a hole."""
        hole = self._holes[chain]
        self._room.renew(chain)  # what is missing next is missing for a shorter time
        head, effects = hole.frames[0].head, list[Effect]()
        if hole.sure:
            missed = Missed(self.ticket, self.part, chain, hole.position, head.first, reason)
            effects += self._say(missed)
        hole.position, hole.sure = head.previous, True
        return effects + self._drain(chain, hole, now)

    def _hand_over(self, waiting: _Waiting, position: int, now: float) -> list[Effect]:
        head, cut = waiting.head, waiting.cut
        after = max(position, cut.after)
        return self._deliver(head, waiting.frame, waiting.hops, waiting.sender, now, after, cut)

    # --- Chains that are known, and those that are not ------------------------------------

    def _remember(self, chain: ChainKey, position: int) -> None:
        self._positions[chain] = position
        self._positions.move_to_end(chain)
        if len(self._positions) > MAX_CHAINS:
            # It must be able to go on where it stood, as if it were new.
            _, left = self._positions.popitem(last=False)
            self._forgotten = max(self._forgotten, left + 1)

    def _floor_of(self, chain: ChainKey) -> int:
        """Return below which number the predecessor of an unknown chain's frame must be."""
        if self._past is not None and chain.startswith(self._past[0]):
            return max(self._past[1], self._forgotten)
        return max(self._floor, self._forgotten)


def _place_of(waiting: _Waiting) -> tuple[int, int]:
    return waiting.head.previous, waiting.head.last
