"""Seeing that nothing was missed at the end of a chain, where no later frame tells of it.

A storage node says how many messages its log has. Now and then we compare that with how many have
come to us. What came in the last moments may be in the log or not; but if the log has grown by
more than has come, something may have not come. It may also be on its way to us still: so we wait
for a while, and count what has come by then and was not published after the storage node spoke. If
the log has more than that, we read it from where we last agreed with it. We also do if the part is
quiet and the two differ: then what was never stored could hide what has not come. Where all is
well nothing is read.
"""

import random
from collections.abc import Callable
from functools import partial

import msgspec

from anabranch.core.gaps import Admit
from anabranch.core.ids import FrameHead, NodeId, PartKey, StreamPart, number_of
from anabranch.core.machine import Effect, Sizes
from anabranch.core.messages import Contact, Resent
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.parts import MAX_PARTS
from anabranch.core.resends import Inspector, Resends, Sources, leads_on
from anabranch.core.timers import Timers

FIRST_S = 3.0  # between questions, until the first is answered
EARLY_S = 2.0  # a later first answer says nothing of what was published before it
SOON_S = 20.0  # if something has come since the last question, or links have changed
LATER_S = 60.0  # if not
SPREAD = (0.75, 1.25)  # of these times: many may have come at once
LAG_S = 5.0  # what came so long ago has its place in the log
ANSWER_S = 5.0
MAX_EMPTY_PAGES = 64  # in a row
MAX_SWEPT = 100_000  # messages of a log that are read, at most

_NOTHING = Selection(start=MAX_NUMBER)  # of which the answer only says how long the log is
_ALL = Selection()


class Arrivals(msgspec.Struct):
    """Messages of a part that have come."""

    came: int = 0
    newer: int = 0  # of these, messages with numbers above `horizon`
    horizon: int = MAX_NUMBER


class _Sweep(msgspec.Struct, eq=False):
    """How a part's log compares with what has come."""

    part: StreamPart
    key: PartKey
    turn: int  # whom to ask
    since: float  # everything that was published later is wanted
    base: int | None = None  # all before this offset has come, or is not for us;
    came: int = 0  # so many messages were what had come then
    sample: int | None = None  # how many had come a short while before we ask
    asked_at: float = 0.0
    is_stirred: bool = False
    high: int | None = None  # so long is the log that seems to have more than has come
    asked: Contact | None = None  # the storage node that said so
    empty_pages: int = 0
    fetched: int = 0  # messages, in the last reading of the log


class Sweeps:
    """The parts of which everything is wanted that is published from now on."""

    def __init__(
        self,
        sources: Sources,
        inspector: Inspector,
        resends: Resends,
        rng: random.Random,
        arrivals: Callable[[PartKey], Arrivals],
        wants: Callable[[PartKey, FrameHead], bool],
        admit: Admit,
    ) -> None:
        self._sources = sources
        self._inspector = inspector
        self._resends = resends
        self._rng = rng
        self._arrivals = arrivals
        self._wants = wants  # whether somebody has not got a frame
        self._admit = admit
        self._sweeps: dict[PartKey, _Sweep] = {}
        self._due: Timers[PartKey] = Timers()  # those of which no question is under way

    @property
    def wakeup_at(self) -> float | None:
        """When a log should be looked at."""
        return self._due.next_at

    def watch(self, part: StreamPart, key: PartKey, now: float) -> None:
        """Let nothing of a part be missed from now on."""
        if key not in self._sweeps:
            sweep = _Sweep(part, key, self._rng.getrandbits(16), now, asked_at=now)
            sweep.sample = self._came(key)  # the first time we ask at once
            self._sweeps[key] = sweep
            self._due.set(key, now)

    def forget(self, key: PartKey) -> None:
        """Nobody reads a part any more."""
        self._sweeps.pop(key, None)
        self._due.cancel(key)

    def stir(self, now: float) -> None:
        """Links have changed: something may have been missed."""
        for sweep in self._sweeps.values():
            if not sweep.is_stirred:
                sweep.is_stirred = True
                if sweep.key in self._due:
                    self._due.sooner(sweep.key, max(now, sweep.asked_at) + self._spread(SOON_S))

    def wake(self, now: float) -> None:
        """Ask how long the logs are, a while after we have seen what has come."""
        for key in self._due.pop_due(now):
            sweep = self._sweeps[key]
            if sweep.high is not None:
                self._confirm(sweep, now)
                continue
            keepers = self._sources.keepers(sweep.part.stream)
            if keepers and sweep.sample is None:
                sweep.sample = self._came(key)
                self._due.set(key, now + LAG_S)
                continue
            sweep.asked_at, sweep.is_stirred = now, False
            if keepers:
                sweep.turn += 1
                self._ask(sweep, keepers[sweep.turn % len(keepers)], _NOTHING)
            else:  # as it is with most streams: there is nothing to compare with
                sweep.sample = None
                self._due.set(key, now + self._spread(LATER_S))

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {"parts compared with their logs": (len(self._sweeps), MAX_PARTS)}

    # --- One part -------------------------------------------------------------------------

    def _ask(self, sweep: _Sweep, source: Contact, selection: Selection) -> None:
        heard = partial(self._heard, sweep, source, selection)
        self._resends.ask(source, True, sweep.part, selection, ANSWER_S, heard)

    def _heard(
        self,
        sweep: _Sweep,
        source: Contact,
        selection: Selection,
        sender: NodeId,
        answer: Resent | str,
        now: float,
    ) -> list[Effect]:
        if self._sweeps.get(sweep.key) is not sweep:
            return []
        effects: list[Effect] = []
        following: Selection | None = None
        if isinstance(answer, str) or answer.problem:
            sweep.is_stirred = True
        elif selection == _NOTHING:
            following = self._compared(sweep, source, answer.high, now)
            if sweep.high is not None:
                return effects
        else:
            effects, following = self._swept(sweep, sender, selection, answer, now)
        if following is not None:
            self._ask(sweep, source, following)
        else:
            self._rest(sweep, now)
        return effects

    def _came(self, key: PartKey) -> int:
        return self._arrivals(key).came

    def _compared(self, sweep: _Sweep, source: Contact, high: int, now: float) -> Selection | None:
        """Hold a log's length against what has come; return what should be looked at."""
        came, base = self._came(sweep.key), sweep.base
        is_quiet = sweep.sample == came
        if base is None:
            if now > sweep.since + EARLY_S:  # some of it may have been published since then
                since = number_of(max(0, int(sweep.since * 1000)), 0)
                sweep.empty_pages = sweep.fetched = 0
                return Selection(after=since, by_number=True)
            sweep.base, sweep.came = high, sweep.sample or 0
            return None
        if high - base > came - sweep.came:
            sweep.high, sweep.asked = high, source
            arrivals = self._arrivals(sweep.key)
            arrivals.newer, arrivals.horizon = 0, number_of(int(now * 1000), 0)
            self._due.set(sweep.key, now + LAG_S)
            return None
        if is_quiet and high - base != came - sweep.came:
            return self._rest_of(sweep, base, high)
        if is_quiet:
            sweep.base, sweep.came = high, came
        return None

    def _confirm(self, sweep: _Sweep, now: float) -> None:
        """Read the log if it had more than has come of it by now."""
        arrivals, base, high = self._arrivals(sweep.key), sweep.base or 0, sweep.high or 0
        came = arrivals.came - arrivals.newer
        arrivals.newer, arrivals.horizon = 0, MAX_NUMBER
        source, sweep.high, sweep.asked = sweep.asked, None, None
        if source is not None and high - base > came - sweep.came:
            self._ask(sweep, source, self._rest_of(sweep, base, high))
        else:
            self._rest(sweep, now)

    def _rest_of(self, sweep: _Sweep, base: int, high: int) -> Selection:
        """Return what of a log is to be read."""
        sweep.empty_pages = sweep.fetched = 0
        return Selection(start=max(0, min(base, high), high - MAX_SWEPT))

    def _swept(
        self, sweep: _Sweep, sender: NodeId, asked: Selection, answer: Resent, now: float
    ) -> tuple[list[Effect], Selection | None]:
        """Take what has not come; return what is to be looked at next."""
        effects: list[Effect] = []
        leads = answer.following is None or leads_on(asked, answer.following)
        is_good = leads and not answer.missing
        for frame in answer.frames:
            head = self._inspector.fits(sweep.key, _ALL, frame)
            if head is not None and not self._wants(sweep.key, head):
                continue
            if head is not None and self._inspector.proves(sweep.part, head, frame):
                effects += self._admit(sweep.key, head, frame, sender, now)
                sweep.fetched += head.count
            else:
                is_good = False
        sweep.empty_pages = 0 if answer.frames else sweep.empty_pages + 1
        if not is_good or sweep.empty_pages > MAX_EMPTY_PAGES:
            sweep.is_stirred = True  # somebody else will be asked for the same
        elif answer.following is not None:
            return effects, answer.following
        else:
            # Of what came meanwhile some may be in the log already: it is not counted.
            sweep.base, sweep.came = answer.high, (sweep.sample or 0) + sweep.fetched
        return effects, None

    def _rest(self, sweep: _Sweep, now: float) -> None:
        """Let a while pass before the next question."""
        stirred = sweep.is_stirred or self._came(sweep.key) != sweep.came
        wait_s = FIRST_S if sweep.base is None else SOON_S if stirred else LATER_S
        sweep.sample = None
        self._due.set(sweep.key, now + self._spread(wait_s))

    def _spread(self, seconds: float) -> float:
        return seconds * self._rng.uniform(*SPREAD)
