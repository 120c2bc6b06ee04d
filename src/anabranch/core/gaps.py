"""Asking for what is missing in chains, on behalf of all who read them in order.

What is missing is asked of one source at a time: of the stream's storage nodes, a different one
each time, and if that has it not, or where there are none, of a neighbour. All gaps of a chain are
asked for together. An attempt ends when they have answered and that did not help; sources that
cannot be reached, refuse or send rubbish are passed over. An attempt is *thorough*, and asks
everybody, if it is the last, if what is missing is so old that waiting will not bring it, or if it
is not sure that there is such a thing. If those who could have it are busy, it is *put off*: it
is made again soon, and for a while it does not count.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from anabranch.core.ids import SEQUENCE_BITS, ChainKey, FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.machine import Effect, Sizes
from anabranch.core.messages import Contact, Resent
from anabranch.core.messages.storage import Selection
from anabranch.core.parts import Parts
from anabranch.core.resends import (
    AGAIN_AFTER_S,
    BUSY,
    BUSY_FOR_S,
    LATE,
    Inspector,
    Resends,
    Sources,
    leads_on,
)
from anabranch.core.subscription import (
    GAP_WAIT_S,
    MAX_ATTEMPTS,
    MAX_WAITING_FRAMES,
    Missing,
    Subscription,
)
from anabranch.core.timers import Timers

AGAIN_S = 3.0  # from one attempt to the next, and how long an answer may take
OLD_S = 60.0  # what is older than this comes from storage now, or never
MAX_SOURCES = 8  # that are asked in one attempt
MAX_EMPTY_PAGES = 64  # in a row, from one source
LONG_AGO = float("-inf")

Admit = Callable[[PartKey, FrameHead, bytes, NodeId, float], list[Effect]]
_Name = tuple[StreamPart, ChainKey]


class _Source(msgspec.Struct, frozen=True):
    contact: Contact
    dials: bool


class _Gap(msgspec.Struct, eq=False):
    """What is done about one chain in which something is missing."""

    part: StreamPart
    key: PartKey
    chain: ChainKey
    turn: int  # whom to begin with
    asked: Selection = Selection()
    started_at: float = LONG_AGO  # when the attempt began
    under_way: bool = False
    thorough: bool = False
    hopeless: bool = False  # if all whom we ask in this attempt have nothing, nobody ever will
    left: list[_Source] = []
    bad: dict[NodeId, None] = {}
    empty_pages: int = 0
    was_busy: bool = False  # one of those that were asked in this attempt
    was_answered: bool = False  # by one that keeps the stream, if there are such
    busy_since: float | None = None  # when one was busy first, of the attempts put off in a row


class Gaps:
    """All chains of which something is missing for somebody."""

    def __init__(
        self,
        sources: Sources,
        inspector: Inspector,
        resends: Resends,
        parts: Parts,
        rng: random.Random,
        readers: Mapping[PartKey, Sequence[Subscription]],
        admit: Admit,
    ) -> None:
        self._sources = sources
        self._inspector = inspector
        self._resends = resends
        self._parts = parts
        self._rng = rng
        self._readers = readers
        self._admit = admit
        self._gaps: dict[_Name, _Gap] = {}
        self._due: Timers[_Name] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When something has been missing for long enough."""
        return self._due.next_at

    def is_due(self, now: float) -> bool:
        """Tell whether an attempt should begin."""
        at = self._due.next_at
        return at is not None and at <= now

    def notice(self, part: StreamPart, key: PartKey, chain: ChainKey, since: float) -> None:
        """Something is missing, since then."""
        gap = self._gaps.get((part, chain))
        if gap is None:
            gap = _Gap(part, key, chain, self._rng.getrandbits(16), left=[], bad={})
            self._gaps[part, chain] = gap
        if not gap.under_way:
            self._due.sooner((part, chain), max(since + GAP_WAIT_S, gap.started_at + AGAIN_S))

    def wake(self, now: float) -> list[Effect]:
        """Begin the attempts that are due."""
        effects: list[Effect] = []
        for name in self._due.pop_due(now):
            effects += self._begin(self._gaps[name], now)
        return effects

    def sizes(self) -> Sizes:
        """Return the tables with their bounds: behind every gap a frame waits."""
        readers = sum(map(len, self._readers.values()))
        return {"gaps asked for": (len(self._gaps), max(1, readers) * MAX_WAITING_FRAMES)}

    # --- An attempt -----------------------------------------------------------------------

    def _begin(self, gap: _Gap, now: float) -> list[Effect]:
        if self._sources.keepers(gap.part.stream):
            for reader in self._readers.get(gap.key, ()):
                reader.insist(gap.chain)
        missing = self._missing(gap, now)
        if not missing:
            return self._rest(gap)
        gap.asked = Selection(
            after=min(each.after for each in missing),
            upto=max(each.upto for each in missing),
            whose=gap.chain,
            by_number=True,
        )
        gap.started_at = now
        gap.was_busy = gap.was_answered = False
        gap.hopeless = gap.asked.upto >> SEQUENCE_BITS < (now - OLD_S) * 1000
        is_last = any(each.attempts + 1 >= MAX_ATTEMPTS for each in missing)
        gap.thorough = gap.hopeless or is_last or not all(each.sure for each in missing)
        gap.left = self._whom_to_ask(gap)
        gap.turn += 1
        return self._ask_next(gap, now)

    def _ask_next(self, gap: _Gap, now: float) -> list[Effect]:
        while gap.left:
            source = gap.left.pop(0)
            if source.contact.node not in gap.bad:
                gap.empty_pages = 0
                self._ask(gap, source, gap.asked)
                return []
        return self._fail(gap, now)

    def _ask(self, gap: _Gap, source: _Source, selection: Selection) -> None:
        gap.under_way = True
        self._due.cancel((gap.part, gap.chain))  # what it brings may be missing something itself
        heard = partial(self._heard, gap, source, selection)
        self._resends.ask(source.contact, source.dials, gap.part, selection, AGAIN_S, heard)

    def _whom_to_ask(self, gap: _Gap) -> list[_Source]:
        """Storage nodes in turn, and a neighbour after them if we are thorough; or neighbours."""
        keepers = [_Source(each, True) for each in self._sources.keepers(gap.part.stream)]
        state = self._parts.find(gap.part)
        nodes = state.overlay.neighbours(gap.part) if state is not None else ()
        neighbours = [_Source(Contact(node), False) for node in nodes]
        if not keepers:
            return _turned(neighbours, gap.turn)[:MAX_SOURCES]
        extra = _turned(neighbours, gap.turn)[: 2 if gap.thorough else 1]
        return _turned(keepers, gap.turn)[: MAX_SOURCES - 1] + extra

    def _heard(
        self,
        gap: _Gap,
        source: _Source,
        selection: Selection,
        sender: NodeId,
        answer: Resent | str,
        now: float,
    ) -> list[Effect]:
        """Take what a source has, and go on from there."""
        gap.under_way = False
        if isinstance(answer, str) or answer.problem:
            gap.hopeless = False
            if answer == BUSY:
                gap.was_busy = True
                gap.busy_since = now if gap.busy_since is None else gap.busy_since
            passes_over = gap.thorough or answer != LATE
            return self._ask_next(gap, now) if passes_over else self._fail(gap, now)
        if answer.missing:  # what it lacks may be repaired
            gap.hopeless = False
        effects, is_good = self._take(gap, sender, answer.frames, now)
        following = answer.following
        if not is_good or (following is not None and not leads_on(selection, following)):
            gap.bad[sender] = None
            gap.hopeless = False
            following = None
        if not self._missing(gap, now):
            gap.started_at = LONG_AGO  # what is missing next need not wait for another attempt
            gap.busy_since = None
            return effects + self._rest(gap)
        gap.empty_pages = 0 if answer.frames else gap.empty_pages + 1
        if following is not None and gap.empty_pages <= MAX_EMPTY_PAGES:
            self._ask(gap, source, following)
            return effects
        if not gap.thorough and sender not in gap.bad:  # then a neighbour has its turn
            is_kept = bool(self._sources.keepers(gap.part.stream))
            gap.was_answered = gap.was_answered or source.dials or not is_kept
            gap.left = [each for each in gap.left if source.dials and not each.dials]
        return effects + self._ask_next(gap, now)

    def _take(
        self, gap: _Gap, sender: NodeId, frames: Sequence[bytes], now: float
    ) -> tuple[list[Effect], bool]:
        """Take the frames that somebody lacks; tell whether all that came was good."""
        effects: list[Effect] = []
        is_good = True
        for frame in frames:
            head = self._inspector.fits(gap.key, gap.asked, frame)
            if head is None:
                is_good = False
            elif not any(reader.lacks(head) for reader in self._readers.get(gap.key, ())):
                continue
            elif self._inspector.proves(gap.part, head, frame):
                effects += self._admit(gap.key, head, frame, sender, now)
            else:
                is_good = False
        return effects, is_good

    def _fail(self, gap: _Gap, now: float) -> list[Effect]:
        """The attempt was in vain: those who have waited for long enough go on without."""
        if self._is_put_off(gap, now):
            self._due.set((gap.part, gap.chain), now + self._rng.uniform(*AGAIN_AFTER_S))
            return []
        if not gap.was_busy:
            gap.busy_since = None
        attempts = MAX_ATTEMPTS if gap.hopeless else 1
        effects: list[Effect] = []
        for reader in self._readers.get(gap.key, ()):
            effects += reader.fail(gap.chain, gap.asked.upto, gap.started_at, attempts, now)
        return effects + self._rest(gap)

    def _is_put_off(self, gap: _Gap, now: float) -> bool:
        """Tell whether an attempt does not count, since others were too busy to help."""
        since = gap.busy_since if gap.was_busy and not gap.was_answered else None
        return since is not None and now < since + BUSY_FOR_S

    def _rest(self, gap: _Gap) -> list[Effect]:
        """Wait for the next attempt, or be done."""
        name, readers = (gap.part, gap.chain), self._readers.get(gap.key, ())
        since = [at for each in readers if (at := each.missing_since(gap.chain)) is not None]
        if since:
            self._due.set(name, max(min(since) + GAP_WAIT_S, gap.started_at + AGAIN_S))
        else:
            del self._gaps[name]
            self._due.cancel(name)
        return []

    def _missing(self, gap: _Gap, now: float) -> list[Missing]:
        readers = self._readers.get(gap.key, ())
        return [lack for each in readers if (lack := each.missing(gap.chain, now)) is not None]


def _turned(sources: list[_Source], turn: int) -> list[_Source]:
    start = turn % len(sources) if sources else 0
    return sources[start:] + sources[:start]
