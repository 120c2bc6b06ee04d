"""Places frames in a log in the order of their publishers' chains, while this node leads.

A frame names the number of its chain's message before it (`previous`). The leader compares that
with the newest number of the chain in the log:

    previous == newest    the frame is placed at once
    previous <  newest    it is placed at once and marked LATE: a newer frame, or another one with
                          the same `previous`, lies before it
    previous >  newest    something is missing. The frame is held, and so is all that follows it in
                          its chain; other chains go on. If nothing closes the gap in WAIT_S, the
                          frame is placed with a gap record as its mark.

A `previous` that is older than the retention of the log is not waited for. Held frames are on the
disk, so a chain that waits takes little memory. The newest number of a chain is looked up when the
first frame of the chain comes, and remembered while there is room. Frames that come during a
look-up are deferred in memory.

Everything is decided while no write is under way, and on what the disk holds. After a write that
failed, or a new epoch, nothing is known, and all is looked up again.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from anabranch.core.ids import CHAIN_KEY_BYTES, SEQUENCE_BITS, ChainKey, NodeId, publisher_of
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Sizes
from anabranch.core.messages.storage import LATE, FrameName
from anabranch.core.storage_disk import Look
from anabranch.core.store import (
    UNKNOWN,
    Answer,
    ChainEnd,
    ChainsIn,
    HeldIn,
    Keep,
    LogWrite,
    Order,
    OrderHeld,
    Placed,
)
from anabranch.core.timers import Timers

WAIT_S = 1.5  # how long a chain waits for frames that are missing
ASK_AFTER_S = 0.4  # after which others are asked: frames may only be on their way
ASK_AGAIN_S = 0.5
ASK_SOON_S = 0.05  # for what came long ago: the answer may be among frames that come now
RETRY_S = 1.0  # after a look-up that failed
RESCAN_S = 5.0  # if frames are held and it is not known why

MAX_CHAINS = 8_192  # whose newest number is remembered
MAX_BUSY_CHAINS = 2_048  # that are looked up, or are to be; then no more frames are begun with
MAX_WAITING_CHAINS = 1_024  # that wait for missing frames
MAX_WAITING_PER_PUBLISHER = 64
MAX_HELD_PER_PUBLISHER = 16_384  # frames, behind gaps
MAX_ASKING_PER_PUBLISHER = 4  # chains for which others are asked at one time
MAX_LOOK_UPS = 4  # that are under way
LOOK_UP_CHAINS = 64  # in one
LOOK_UP_HELD = 1_024  # held frames of a chain that is looked up alone
SCAN_NAMES = 1_024  # of held frames, at a time

_unpack = struct.Struct(">17x28sQ8xQ").unpack_from  # chain, previous and last of a frame's head


class Want(msgspec.Struct, frozen=True):
    """Messages of a chain that are missing: with numbers above `after`, up to `upto`."""

    chain: ChainKey
    after: int
    upto: int


class Plan:
    """What one write places and keeps."""

    def __init__(self, standing: Standing, now: float) -> None:
        self.writes: list[LogWrite] = []
        self.frames: list[bytes] = []  # those of the writes, in no order
        self.expected = 0  # frames that must get a place, the late ones left out
        self.has_late = False
        self._standing = standing
        self._now_ms = int(now * 1000)
        self._ordered: list[bytes] = []
        self._named: list[FrameName] = []
        self._marks: list[int] = []
        self._has_marks = False
        self._kept: list[bytes] = []

    def place(self, frame: bytes, mark: int) -> None:
        """Give a frame the next place."""
        if self._named:
            self._flush()
        self._ordered.append(frame)
        self._mark(mark)

    def place_held(self, name: FrameName, mark: int) -> None:
        """Give a held frame the next place."""
        if self._ordered:
            self._flush()
        self._named.append(name)
        self._mark(mark)

    def keep(self, frame: bytes) -> None:
        """Hold a frame."""
        self._kept.append(frame)

    def finish(self) -> None:
        """Put together what was planned."""
        self._flush()
        if self._kept:
            self.writes.append(Keep(self._standing.part, tuple(self._kept), self._now_ms))
            self.frames += self._kept

    def is_done(self, placed: Sequence[Placed]) -> bool:
        """Tell whether the store has placed all that is not late; late frames may be copies."""
        count = len(placed)
        if self.has_late:
            count = sum(row.entry.mark != LATE for row in placed)
        return count == self.expected

    def _mark(self, mark: int) -> None:
        self._marks.append(mark)
        if mark:
            self._has_marks = True
        if mark == LATE:
            self.has_late = True
        else:
            self.expected += 1

    def _flush(self) -> None:
        part, epoch = self._standing.part, self._standing.epoch
        marks = tuple(self._marks) if self._has_marks else ()
        if self._ordered:
            self.writes.append(Order(part, epoch, self._now_ms, tuple(self._ordered), marks))
            self.frames += self._ordered
            self._ordered = []
        elif self._named:
            self.writes.append(OrderHeld(part, epoch, self._now_ms, tuple(self._named), marks))
            self._named = []
        self._marks, self._has_marks = [], False


class _Wait(msgspec.Struct):
    """A chain of which something is missing."""

    previous: int  # of the lowest held frame: up to here something is missing
    held: int = 0  # frames that were held since it waits


class _Chain(msgspec.Struct):
    """What is known of a chain in the log."""

    newest: int = UNKNOWN  # number that is placed
    used: int = 0  # the last write with frames of it
    is_busy: bool = True  # it is looked up, or is to be
    is_forced: bool = False  # its held frames are placed without waiting any longer
    wait: _Wait | None = None
    deferred: list[bytes] = []  # frames that came meanwhile
    found: ChainEnd | None = None


class _Item(msgspec.Struct):
    """A frame of a chain that was looked up: on the disk, or in memory."""

    previous: int
    last: int
    came_at: float
    frame: bytes = b""


class _Publisher(msgspec.Struct):
    """The chains of a publisher that wait."""

    chains: dict[ChainKey, None] = {}  # those that have waited longest first
    held: int = 0  # frames of all of them
    asking: dict[ChainKey, None] = {}


class ChainOrder:
    """The order of the chains in one log."""

    def __init__(self, standing: Standing, find: Look, keep_ms: int | None) -> None:
        self._standing = standing
        self._find = find
        self._keep_ms = keep_ms  # the store deletes what is older
        self._epoch = 0  # in which this node leads, and all that follows was learned
        self._turn = 0  # what was looked up in another turn is void
        self._led_at = 0.0
        self._write = 0
        self._floor_ms = 0
        self._knows_all = False  # all chains of the log, since it was empty when the epoch began
        self._chains: dict[ChainKey, _Chain] = {}
        self._publishers: dict[NodeId, _Publisher] = {}
        self._waiting = 0  # chains
        self._busy = 0  # chains
        self._due: Timers[ChainKey] = Timers()
        self._ask_at: Timers[ChainKey] = Timers()
        self._to_look_up: dict[ChainKey, None] = {}
        self._look_ups = 0  # under way
        self._ready: dict[ChainKey, None] = {}  # chains whose look-up has ended
        self._retry_at: float | None = None
        # Held frames of which nothing is known: their names are read a page at a time.
        self._scan: bytes | None = None  # after which name it goes on
        self._is_scanning = False
        self._page: list[tuple[int, ChainKey]] = []
        self._rescan_at: float | None = None

    # --- What happens ---------------------------------------------------------------------

    @property
    def at(self) -> float | None:
        """When to go on."""
        if not self._epoch:
            return None
        times = (self._due.next_at, self._retry_at, self._rescan_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def is_leading(self) -> bool:
        """Whether something may be known of an epoch in which this node leads, or led."""
        return self._epoch > 0

    @property
    def ask_at(self) -> float | None:
        """When others are to be asked for what is missing."""
        return self._ask_at.next_at

    @property
    def has_room(self) -> bool:
        """Whether frames may be begun with."""
        return self._busy < MAX_BUSY_CHAINS

    @property
    def deferred(self) -> Iterator[bytes]:
        """The frames that wait for a look-up."""
        if self._busy:
            for chain in self._chains.values():
                yield from chain.deferred

    def stop(self) -> list[bytes]:
        """Lead no more; return the frames that were deferred."""
        frames = list(self.deferred)
        self._forget()
        self._epoch = 0
        return frames

    def restart(self, now: float) -> list[bytes]:
        """Forget what is known, since the disk may have it otherwise; return deferred frames."""
        frames = list(self.deferred)
        self._forget()
        self._led_at = now
        self._begin_scan(now)
        return frames

    def _forget(self) -> None:
        self._turn += 1
        self._chains, self._publishers = {}, {}
        self._waiting = self._busy = self._look_ups = 0
        self._due, self._ask_at = Timers(), Timers()
        self._to_look_up, self._ready = {}, {}
        self._scan, self._is_scanning, self._page = None, False, []
        self._retry_at = self._rescan_at = None

    def _begin_scan(self, now: float) -> None:
        state = self._standing.state
        self._knows_all = not state.length and not state.held
        self._scan = b"" if state.held else None
        self._rescan_at = now + RESCAN_S

    def wake(self, now: float) -> None:
        """Look up the chains that have waited long enough."""
        for key in self._due.pop_due(now):
            chain = self._chains[key]
            if not chain.is_busy:
                self._look_up(key, chain)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        if self._rescan_at is not None and now >= self._rescan_at:
            self._rescan_at = now + RESCAN_S
            is_idle = self._scan is None and not self._page and not self._waiting and not self._busy
            if is_idle and self._standing.state.held:
                self._scan = b""

    def wants(self, now: float) -> list[Want]:
        """Return what others are to be asked for now."""
        wants: list[Want] = []
        for key in self._ask_at.pop_due(now):
            chain = self._chains[key]
            wait, publisher = chain.wait, self._publishers.get(publisher_of(key))
            if wait is None or publisher is None or chain.newest >= wait.previous:
                continue
            if key not in publisher.asking and len(publisher.asking) >= MAX_ASKING_PER_PUBLISHER:
                continue
            publisher.asking[key] = None
            wants.append(Want(key, max(0, chain.newest), wait.previous))
            self._ask_at.set(key, now + ASK_AGAIN_S)
        return wants

    # --- Before and after a write ---------------------------------------------------------

    def plan(self, frames: Iterable[bytes], now: float) -> Plan:
        """Decide what the next write does with new frames, and with those that were looked up."""
        standing = self._standing
        if self._epoch != standing.epoch:
            frames = [*self.deferred, *frames]
            self._forget()
            self._epoch, self._led_at = standing.epoch, now
            self._begin_scan(now)
        self._write += 1
        plan = Plan(standing, now)
        chains, write = self._chains, self._write
        for frame in frames:
            key, previous, last = _unpack(frame)
            chain = chains.get(key)
            if chain is None:
                chain = self._add(key)
            chain.used = write
            if chain.is_busy:
                chain.deferred.append(frame)
            elif previous == chain.newest and chain.wait is None:
                chain.newest = last
                plan.place(frame, 0)
            else:
                self._consider(key, chain, frame, plan, now)
        ready, self._ready = self._ready, {}
        for key in ready:
            self._use_found(key, self._chains[key], plan, now)
        self._use_page(plan)
        plan.finish()
        return plan

    def look_ups(self, now: float, is_writing: bool) -> list[Effect]:
        """Look up chains; during a write none of which it changes something."""
        if not self._epoch or self._retry_at is not None:
            return []
        effects: list[Effect] = []
        if self._scan is not None and not self._is_scanning and not self._page and self.has_room:
            self._is_scanning = True
            query = HeldIn(self._standing.part, self._scan, SCAN_NAMES)
            effects.append(self._find(query, partial(self._scanned, self._turn)))
        if not self._to_look_up:
            return effects
        keys: list[ChainKey] = []
        for key in self._to_look_up:
            chain = self._chains[key]
            if not is_writing or chain.newest == UNKNOWN or chain.used != self._write:
                keys.append(key)
        for at in range(0, len(keys), LOOK_UP_CHAINS):
            if self._look_ups >= MAX_LOOK_UPS:
                break
            self._look_ups += 1
            some = keys[at : at + LOOK_UP_CHAINS]
            for key in some:
                del self._to_look_up[key]
            chains = tuple((key, self._chains[key].newest) for key in some)
            query_chains = ChainsIn(self._standing.part, chains, LOOK_UP_HELD // len(some))
            then = partial(self._looked_up, self._turn, some)
            effects.append(self._find(query_chains, then))
        return effects

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        publishers = self._publishers.values()
        return {
            "chains known": (len(self._chains), MAX_CHAINS),
            "chains that wait": (self._waiting, MAX_WAITING_CHAINS),
            "chains of a publisher that wait": (
                max((len(each.chains) for each in publishers), default=0),
                MAX_WAITING_PER_PUBLISHER,
            ),
            "chains of a publisher that are asked for": (
                max((len(each.asking) for each in publishers), default=0),
                MAX_ASKING_PER_PUBLISHER,
            ),
            "frames held behind gaps of a publisher": (
                max((each.held for each in publishers), default=0),
                MAX_HELD_PER_PUBLISHER,
            ),
        }

    # --- Frames ---------------------------------------------------------------------------

    def _consider(self, key: ChainKey, chain: _Chain, frame: bytes, plan: Plan, now: float) -> None:
        """Place a frame whose chain is known, or hold it."""
        _, previous, last = _unpack(frame)
        mark = self._mark(chain.newest, previous, now)
        if mark is None:
            plan.keep(frame)
            self._hold(key, chain, previous, now, now)
            return
        plan.place(frame, mark)
        chain.newest = max(chain.newest, last)
        if chain.wait is not None and chain.newest >= chain.wait.previous:
            self._look_up(key, chain)  # what follows is held

    def _mark(self, newest: int, previous: int, now: float) -> int | None:
        """Return the mark of a frame that may be placed; None: something before it is missing."""
        if previous <= newest:
            return 0 if previous == newest else LATE
        at_ms = previous >> SEQUENCE_BITS
        if self._keep_ms is not None and at_ms < int(now * 1000) - self._keep_ms:
            return 0
        if any(hole.before_ms >= at_ms for hole in self._standing.state.missing):
            return 0  # it may lie in a hole
        return None if at_ms >= self._floor_ms else 0

    def _use_found(self, key: ChainKey, chain: _Chain, plan: Plan, now: float) -> None:
        """Place what a chain holds, as far as nothing is missing or the time is over."""
        found, is_forced = chain.found, chain.is_forced
        assert found is not None
        chain.found, chain.is_forced, chain.used = None, False, self._write
        chain.newest = found.newest
        self._end_wait(key, chain)
        items, chain.deferred = _merged(found, chain.deferred, now)
        over = len(items) if is_forced else self._last_over(items, now)
        for at, item in enumerate(items):
            mark = self._mark(chain.newest, item.previous, now)
            if mark is None and at > over:
                for rest in items[at:]:
                    if rest.frame:
                        plan.keep(rest.frame)
                    self._hold(key, chain, rest.previous, rest.came_at, now)
                break
            if mark is None:
                mark = chain.newest + 1  # the gap record
            if item.frame:
                plan.place(item.frame, mark)
            else:
                plan.place_held(FrameName(key, item.last), mark)
            chain.newest = max(chain.newest, item.last)
        else:
            if found.has_more:
                chain.is_forced = is_forced
        if chain.is_forced or (found.has_more and chain.wait is None):
            self._to_look_up[key] = None
            return
        self._free(chain)
        deferred, chain.deferred = chain.deferred, []
        for frame in deferred:  # there are some only if there are more held frames before them
            plan.keep(frame)
            self._hold(key, chain, _unpack(frame)[1], now, now)

    def _last_over(self, items: Sequence["_Item"], now: float) -> int:
        """Return the place of the last frame that has waited long enough; all before it go, too."""
        for at in range(len(items) - 1, -1, -1):
            if now >= max(self._led_at, items[at].came_at) + WAIT_S:
                return at
        return -1

    def _use_page(self, plan: Plan) -> None:
        """See to held frames of which only the names are known."""
        if not self._page or any(self._chains[key].is_busy for _, key in self._page):
            return
        page, self._page = self._page, []
        for last, key in page:
            chain = self._chains[key]
            if last <= chain.newest:
                plan.place_held(FrameName(key, last), LATE)
            elif chain.wait is None and not chain.is_busy:
                self._look_up(key, chain)

    # --- Chains that wait -----------------------------------------------------------------

    def _hold(
        self, key: ChainKey, chain: _Chain, previous: int, came_at: float, now: float
    ) -> None:
        """Let a chain wait for what is missing before a held frame."""
        name = publisher_of(key)
        publisher = self._publishers.get(name)
        if publisher is None:
            publisher = self._publishers[name] = _Publisher()
        wait = chain.wait
        if wait is None:
            wait = chain.wait = _Wait(previous)
            self._waiting += 1
            publisher.chains[key] = None
            self._ask_at.set(key, max(now + ASK_SOON_S, came_at + ASK_AFTER_S))
        wait.previous = min(wait.previous, previous)
        wait.held += 1
        publisher.held += 1
        self._due.sooner(key, max(self._led_at, came_at) + WAIT_S)
        if len(publisher.chains) > MAX_WAITING_PER_PUBLISHER:
            self._force(next(iter(publisher.chains)))
        elif publisher.held > MAX_HELD_PER_PUBLISHER:
            self._force(key)
        elif self._waiting > MAX_WAITING_CHAINS:
            most = max(self._publishers.values(), key=lambda each: len(each.chains))
            self._force(next(iter(most.chains)))

    def _force(self, key: ChainKey) -> None:
        """Place what a chain holds at once: its publisher has more than may wait."""
        chain = self._chains[key]
        self._end_wait(key, chain)
        chain.is_forced = True
        if not chain.is_busy:
            self._look_up(key, chain)

    def _end_wait(self, key: ChainKey, chain: _Chain) -> None:
        wait, chain.wait = chain.wait, None
        if wait is None:
            return
        self._waiting -= 1
        self._due.cancel(key)
        self._ask_at.cancel(key)
        name = publisher_of(key)
        publisher = self._publishers[name]
        publisher.held -= wait.held
        del publisher.chains[key]
        publisher.asking.pop(key, None)
        if not publisher.chains:
            del self._publishers[name]

    # --- Look-ups -------------------------------------------------------------------------

    def _add(self, key: ChainKey) -> _Chain:
        """Begin with a chain of which nothing is known."""
        if len(self._chains) >= MAX_CHAINS:
            self._evict()
        chain = self._chains[key] = _Chain(used=self._write)
        if self._knows_all:
            chain.newest, chain.is_busy = 0, False
            return chain
        self._busy += 1
        self._to_look_up[key] = None
        return chain

    def _evict(self) -> None:
        """Forget the chains that were used longest ago."""
        idle = [
            (chain.used, key)
            for key, chain in self._chains.items()
            if not chain.is_busy and chain.wait is None
        ]
        self._knows_all = False
        named = {key for _, key in self._page}
        for _, key in sorted(idle)[: MAX_CHAINS // 4]:
            if key not in named:
                del self._chains[key]

    def _look_up(self, key: ChainKey, chain: _Chain) -> None:
        chain.is_busy = True
        self._busy += 1
        self._to_look_up[key] = None

    def _free(self, chain: _Chain) -> None:
        chain.is_busy = False
        self._busy -= 1

    def _looked_up(
        self, turn: int, keys: Sequence[ChainKey], answer: Answer, now: float
    ) -> list[Effect]:
        if turn != self._turn:
            return []
        self._look_ups -= 1
        if answer.problem or len(answer.chains) != len(keys):
            self._to_look_up |= dict.fromkeys(keys)
            self._retry_at = now + RETRY_S
            return []
        self._floor_ms = answer.floor_ms
        for key, found in zip(keys, answer.chains, strict=True):
            self._chains[key].found = found
            self._ready[key] = None
        return []

    def _scanned(self, turn: int, answer: Answer, now: float) -> list[Effect]:
        if turn != self._turn:
            return []
        self._is_scanning = False
        if answer.problem:
            self._retry_at = now + RETRY_S
            return []
        names = answer.names[0]
        self._scan = names[-1] if len(names) == SCAN_NAMES else None
        self._page = [(int.from_bytes(each[:8]), ChainKey(each[8:])) for each in names]
        for _, key in self._page:
            if key not in self._chains:
                self._add(key)
        return []


def _merged(
    found: ChainEnd, deferred: Sequence[bytes], now: float
) -> tuple[list[_Item], list[bytes]]:
    """Put deferred frames among the held ones; return those apart that come behind unknown ones."""
    items = [_Item(held.previous, held.last, held.came_ms / 1000) for held in found.held]
    behind: list[bytes] = []
    for frame in deferred:
        _, previous, last = _unpack(frame)
        if found.has_more and last > found.held[-1].last:
            behind.append(frame)
        else:
            items.append(_Item(previous, last, now, frame))
    items.sort(key=lambda item: item.last)
    return items, behind


assert struct.calcsize(">17x28sQ8xQ") == 17 + CHAIN_KEY_BYTES + 24
