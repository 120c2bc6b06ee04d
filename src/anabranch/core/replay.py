"""The history of one reader: page by page from a storage node, and then into what is live.

Offsets and cursors mean the same at every storage node, so if one does not answer, the next goes
on with the same page. A page is fetched when the application has taken the last one. What comes
live meanwhile waits (held_live.py), and is not among the last so many that were wanted. In the end
it joins on: what we have already is dropped, and what lies between is missing, and asked for like
everything that is missing.

A page may say that messages of it are damaged where it comes from. In the order of offsets it is
read up to there, and the next storage node goes on at that place; what all of them lack is left
out, and named at the end. In the order of numbers another storage node is asked for the whole page;
if all of them lack something, their pages are joined. Only while the last so many are counted, a
page that lacks something is taken as it is, if no storage node has a whole one.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from anabranch.core.coverage import Coverage, LostOffsets, in_all
from anabranch.core.frames import name
from anabranch.core.held_live import HeldLive
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey
from anabranch.core.machine import Effect, HistoryEnded, Open, PageEnded, Sizes
from anabranch.core.messages import Contact, Resent
from anabranch.core.messages.storage import MAX_LAST, MAX_NUMBER, Selection, Span
from anabranch.core.resends import (
    AGAIN_AFTER_S,
    BUSY,
    BUSY_FOR_S,
    Inspector,
    Resends,
    Sources,
    leads_on,
)
from anabranch.core.subscription import GAP_WAIT_S, Cut, Subscription

PAGE_S = 5.0  # how long the answer to a question for a page may take
ROUND_S = 1.0  # between one round of all storage nodes and the next
MAX_ROUNDS = 3
MAX_EMPTY_PAGES = 64  # in a row, from one storage node
MAX_RECOUNTS = 3
ABSENT_S = 30.0


NO_STORAGE = "no storage node keeps this stream"
NONSENSE = "it answers what was not asked"
FORGED = "some of its frames are not genuine"
DAMAGED = "some of it is damaged there"

Say = Callable[[int, Effect], list[Effect]]  # to whom; after all that it was given before
_Row = tuple[FrameHead, bytes, Cut]


class Replay:
    """Reads what was asked for of the past, under one ticket."""

    def __init__(
        self,
        opened: Open,
        key: PartKey,
        reader: Subscription,
        sources: Sources,
        inspector: Inspector,
        resends: Resends,
        rng: random.Random,
        say: Say,
    ) -> None:
        assert opened.history is not None
        self.retry_at: float | None = None  # when the next round begins
        self.ended = False
        self._open = opened
        self._wanted = opened.history
        self._key = key
        self._reader = reader
        self._sources = sources
        self._inspector = inspector
        self._resends = resends
        self._say = say
        self._rng = rng
        self._turn = rng.getrandbits(16)
        self._source: Contact | None = None  # to whom we hold a link
        self._first = self._wanted  # what is asked for first
        self._next = self._first  # what is to be asked for next
        self._failures = 0  # to get that
        self._forgers: dict[NodeId, None] = {}  # who sent something that was not genuine
        self._lackers: dict[NodeId, int] = {}  # which lack it, and up to which offset
        # Which did not answer while the others lacked something, and until when they are left out.
        self._absent: dict[NodeId, float] = {}
        self._lacking: dict[NodeId, Resent] = {}  # their pages, in the order of numbers
        self._takes_lacking = False  # all of them lack something, and a page is taken as it is
        self._lost = LostOffsets()
        self._busy_since: float | None = None  # when one was busy first, for that
        self._was_busy = False  # one of those that were asked in this round
        self._empty_pages = 0
        self._waits = False  # a page is delivered, and the application has not taken it yet
        self._is_due = False  # the next page may be asked for as soon as there is room
        self._is_last = False  # all pages are delivered
        self._has_begun = False
        self._begins = False  # a chain may begin with any frame of it,
        self._began: dict[ChainKey, int] = {}  # and after which number each did
        self._coverage = Coverage(self._wanted)
        self._count = 0  # of the messages of all pages, while they are counted
        self._newer = 0  # of these: those that have come live as well
        self._recounts = 0
        self._kept: tuple[NodeId, Resent] | None = None  # the first page, meanwhile
        self._limit: int | None = None  # the high mark when we asked first
        self._live = HeldLive()

    # --- What happens ---------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Ask for the first page."""
        return self._ask(now)

    def drained(self, now: float) -> list[Effect]:
        """The application has room for the next page."""
        if not self._waits:
            return []
        self._waits, self._is_due = False, True
        return self.look(now)

    def look(self, now: float) -> list[Effect]:
        """Go on if nothing stands in the way any more."""
        if self.ended:
            return []
        if self._is_last and (self._open.live or self._reader.whole):
            return self._end("", now)
        if self.retry_at is not None and self.retry_at <= now:
            return self._ask(now)
        if self._is_due and not self._reader.crowded:
            return self._ask(now)
        return []

    def hold(
        self, head: FrameHead, frame: bytes, hops: int, sender: NodeId | None, now: float
    ) -> list[Effect]:
        """Keep what comes live until the history is read."""
        self._live.hold((head, frame, hops, sender, now))
        return []

    def close(self, now: float) -> None:
        """Need no more."""
        self.ended = True
        self.retry_at = None
        if self._source is not None:
            self._resends.spare(self._source.node, now)
            self._source = None

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return self._live.sizes()

    # --- Questions and answers ------------------------------------------------------------

    def _ask(self, now: float) -> list[Effect]:
        self._is_due, self.retry_at = False, None
        part = self._open.part
        keepers = self._sources.keepers(part.stream)
        if not keepers:
            return self._end(NO_STORAGE, now)
        present = [each for each in keepers if not self._is_absent(each, now)] or keepers
        source = present[self._turn % len(present)]
        effects = self._stay_with(source, now)
        self._resends.ask(source, True, part, self._next, PAGE_S, self._heard)
        return effects

    def _stay_with(self, source: Contact, now: float) -> list[Effect]:
        """Hold the link to who is asked, between pages as well."""
        if self._source is not None and self._source.node == source.node:
            return []
        effects = self._resends.need(source)
        if self._source is not None:
            self._resends.spare(self._source.node, now)
        self._source = source
        return effects

    def _heard(self, sender: NodeId, answer: Resent | str, now: float) -> list[Effect]:
        if self.ended:
            return []
        if isinstance(answer, str) or answer.problem:
            why = answer if isinstance(answer, str) else answer.problem
            return self._go_elsewhere(why, now)
        self._absent.pop(sender, None)
        following = answer.following
        is_page = self._wanted.by_number or len(answer.offsets) == len(answer.frames)
        if not is_page or (following is not None and not leads_on(self._next, following)):
            return self._go_elsewhere(NONSENSE, now)
        if answer.missing:
            return self._damaged(sender, answer, now)
        return self._counted(sender, answer, now)

    # --- Damaged parts of the past ------------------------------------------

    def _damaged(self, sender: NodeId, answer: Resent, now: float) -> list[Effect]:
        """Take a page as far as nothing of it is missing, and go on elsewhere from there."""
        if not self._is_divisible:
            if self._takes_lacking:
                self._lost.add(answer.missing)
                return self._counted(sender, answer, now)
            if self._wanted.by_number and not self._is_counting:
                self._lacking[sender] = answer
            return self._lacks(sender, 0, now)
        hole = answer.missing[0]
        if not self._next.start <= hole.start < hole.end <= answer.high:
            return self._go_elsewhere(NONSENSE, now)
        rows = list(zip(answer.frames, answer.offsets, strict=True))
        good = [(frame, offset) for frame, offset in rows if offset < hole.start]
        rest = msgspec.structs.replace(self._next, start=hole.start, last=0, cursor=b"")
        if not good:
            self._limit = answer.high if self._limit is None else self._limit
            if rest != self._next:  # it begins later than what was asked for
                self._lackers.clear()
            self._next = rest
            return self._lacks(sender, hole.end, now)
        self._turn += 1
        frames, offsets = zip(*good, strict=True)
        part = msgspec.structs.replace(
            answer, frames=frames, offsets=offsets, following=rest, missing=()
        )
        return self._counted(sender, part, now)

    @property
    def _is_divisible(self) -> bool:
        """Whether a page can be read up to some offset, and the rest elsewhere."""
        return self._is_dense or not (self._wanted.by_number or self._is_counting)

    @property
    def _is_counting(self) -> bool:
        """Whether it is not known yet where the last so many begin."""
        return bool(self._wanted.last) and not self._has_begun

    def _lacks(self, sender: NodeId, end: int, now: float) -> list[Effect]:
        """Learn that a storage node lacks the next messages, up to an offset."""
        self._lackers[sender] = end
        if self._kept is not None:  # they are counted anew elsewhere
            self._begin_to_count()
        keepers = self._sources.keepers(self._open.part.stream)
        if all(each.node in self._lackers or self._is_absent(each, now) for each in keepers):
            return self._leave_out_lost(now)
        return self._go_elsewhere(DAMAGED, now)

    def _is_absent(self, keeper: Contact, now: float) -> bool:
        return now < self._absent.get(keeper.node, 0.0)

    def _leave_out_lost(self, now: float) -> list[Effect]:
        """Go on without the messages that are damaged at every storage node that answers."""
        self._forget_failures()
        ends, self._lackers = list(self._lackers.values()), {}
        pages, self._lacking = self._lacking, {}
        if pages:
            return self._join(pages, now)
        if not self._is_divisible:
            self._takes_lacking = True
            return self._ask(now)
        span = Span(self._next.start, min(*ends, self._wanted.end))
        self._lost.add((span,))
        self._coverage.take(span.start, span.end - span.start)
        self._next = msgspec.structs.replace(self._next, start=span.end)
        return self._ask(now)

    def _join(self, pages: dict[NodeId, Resent], now: float) -> list[Effect]:
        """Take what any of some pages has, up to where the first of them ends."""
        self._lost.add(in_all([page.missing for page in pages.values()]))
        rests = [page.following for page in pages.values() if page.following is not None]
        rest = min(rests, key=lambda each: each.cursor, default=None)
        found: dict[bytes, bytes] = {}
        for page in pages.values():
            for frame in page.frames:
                head = self._inspector.fits(self._key, self._wanted, frame)
                if head is None or not self._inspector.proves(self._open.part, head, frame):
                    continue
                if rest is None or name(frame) <= rest.cursor:
                    found.setdefault(name(frame), frame)
        frames = tuple(found[each] for each in sorted(found))
        sender, page = next(iter(pages.items()))
        joined = msgspec.structs.replace(page, frames=frames, following=rest, missing=())
        return self._counted(sender, joined, now)

    def _go_elsewhere(self, why: str, now: float) -> list[Effect]:
        """Ask the next one; after all of them wait a while; in the end give up."""
        self._turn += 1
        self._failures += 1
        if why == BUSY:
            self._was_busy = True
            self._busy_since = now if self._busy_since is None else self._busy_since
        keepers = max(1, self._keepers)
        if self._failures % keepers:
            return self._ask(now)
        since, was_busy, self._was_busy = self._busy_since, self._was_busy, False
        if was_busy and since is not None and now < since + BUSY_FOR_S:
            self._failures -= keepers  # the round does not count
            self.retry_at = now + self._rng.uniform(*AGAIN_AFTER_S)
            return []
        if self._failures >= MAX_ROUNDS * keepers:
            if not self._lackers:
                return self._end(why, now)
            every = self._sources.keepers(self._open.part.stream)
            silent = [each.node for each in every if each.node not in self._lackers]
            self._absent = dict.fromkeys(silent, now + ABSENT_S)
            return self._leave_out_lost(now)
        self.retry_at = now + ROUND_S
        return []

    def _forget_failures(self) -> None:
        self._failures, self._busy_since, self._was_busy = 0, None, False

    def _distrust(self, sender: NodeId, now: float) -> list[Effect]:
        """Ask another for the same; in the end what is good is taken."""
        self._forgers[sender] = None
        return self._go_elsewhere(FORGED, now)

    def _counted(self, sender: NodeId, answer: Resent, now: float) -> list[Effect]:
        """If the last so many are wanted, count what there is before anything is delivered."""
        following = answer.following
        self._limit = answer.high if self._limit is None else self._limit
        if following is not None and following.last:  # they are still looked for
            if answer.frames:
                return self._go_elsewhere(NONSENSE, now)
            return self._turn_page(answer, now)
        if not self._wanted.last or self._has_begun:
            return self._taken(sender, answer, 0, now)
        if self._kept is None and self._is_dense:
            end = min(self._wanted.end, self._limit)
            surplus = end - answer.offsets[0] - self._wanted.last if answer.offsets else 0
            return self._taken(sender, answer, surplus, now)
        heads = [self._inspector.fits(self._key, self._wanted, frame) for frame in answer.frames]
        if None in heads and self._doubts:
            return self._distrust(sender, now)
        good = [head for head in heads if head is not None]
        self._count += sum(head.count for head in good)
        self._newer += sum(head.count for head in good if self._live.had(head))
        self._kept = self._kept or (sender, answer)
        if following is not None:
            self._next = self._without_newer(following)
            self._forget_failures()
            return self._ask(now)
        last, asked = min(self._wanted.last + self._newer, MAX_LAST), self._first.last
        if asked < last and asked <= self._count and self._recounts < MAX_RECOUNTS:
            # Those that have come live were published since we asked: so many more are wanted.
            self._first = msgspec.structs.replace(self._wanted, last=last)
            self._recounts += 1
            self._forget_failures()
            self._begin_to_count()
            return self._ask(now)
        surplus = self._count - self._newer - self._wanted.last
        return self._taken(*self._kept, surplus, now)

    def _begin_to_count(self) -> None:
        self._next, self._kept, self._count, self._newer = self._first, None, 0, 0

    @property
    def _doubts(self) -> bool:
        """Whether there is somebody left who may be more honest than who sends forged frames."""
        is_last_round = self._failures >= (MAX_ROUNDS - 1) * self._keepers
        return len(self._forgers) < self._keepers and not is_last_round

    @property
    def _is_dense(self) -> bool:
        """Whether all messages between two offsets are wanted, so that offsets count them."""
        wanted = self._wanted
        in_full = wanted.after == 0 and wanted.upto == MAX_NUMBER and not wanted.whose
        return in_full and not wanted.by_number

    @property
    def _keepers(self) -> int:
        return len(self._sources.keepers(self._open.part.stream))

    # --- Pages ----------------------------------------------------------------------------

    def _taken(self, sender: NodeId, answer: Resent, surplus: int, now: float) -> list[Effect]:
        """Deliver a page; so many of its first messages are not wanted."""
        rows, is_good = self._rows(answer)
        if not is_good and self._doubts:
            if self._kept is not None:
                self._begin_to_count()
            return self._distrust(sender, now)
        _leave_out(rows, surplus)
        if not self._has_begun:
            self._begin(answer, rows)
        effects: list[Effect] = []
        for head, frame, cut in _in_order(rows):
            if not self._open.fills:
                effects += self._reader.pass_past(head, frame, sender, cut, now)
                continue
            began = self._began.setdefault(head.chain, head.previous) if self._begins else 0
            if head.last <= began:
                # The log has it after its successor, and a page ends between the two: it comes
                # late, since otherwise it would not come at all.
                effects += self._reader.pass_late(head, frame, sender, cut, now)
            else:
                effects += self._reader.take_past(head, frame, sender, cut, self._begins, now)
        if answer.frames:
            effects += self._say(self._open.ticket, PageEnded(self._open.ticket))
        return effects + self._turn_page(answer, now)

    def _turn_page(self, answer: Resent, now: float) -> list[Effect]:
        self._forget_failures()
        self._forgers.clear()
        self._lackers.clear()
        self._lacking.clear()
        self._empty_pages = 0 if answer.frames else self._empty_pages + 1
        following = answer.following
        if following is None:
            self._is_last = True
            self._reader.hasten(now)
            return self.look(now)
        self._next = following if self._open.live else self._without_newer(following)
        if self._empty_pages > MAX_EMPTY_PAGES:
            self._empty_pages = 0
            self._turn += 1
        if not answer.frames:
            return self._ask(now)
        self._waits = True
        return []

    def _without_newer(self, following: Selection) -> Selection:
        """What has come since we asked is not among the last that there were."""
        if not self._wanted.last or self._wanted.by_number or self._limit is None:
            return following
        return msgspec.structs.replace(following, end=min(following.end, self._limit))

    def _rows(self, answer: Resent) -> tuple[list[_Row], bool]:
        """Return the frames that are good, and which of their messages are wanted."""
        rows: list[_Row] = []
        wanted, is_good = self._wanted, True
        late = frozenset(answer.late)
        for at, frame in enumerate(answer.frames):
            head = self._inspector.fits(self._key, wanted, frame)
            if head is None or not self._inspector.proves(self._open.part, head, frame):
                is_good = False
                continue
            offset = MAX_NUMBER if wanted.by_number else answer.offsets[at]
            if wanted.by_number or wanted.start - head.count < offset < wanted.end:
                cut = self._cut(head, offset)
                if late and answer.offsets[at : at + 1] and answer.offsets[at] in late:
                    cut = msgspec.structs.replace(cut, late=True)
                rows.append((head, frame, cut))
                self._coverage.take(offset, head.count)
            else:
                is_good = False
        return rows, is_good

    def _cut(self, head: FrameHead, offset: int) -> Cut:
        wanted = self._wanted
        has_offset = offset != MAX_NUMBER
        skip = wanted.start - offset if has_offset and 0 < wanted.start - offset < head.count else 0
        if self._open.live:  # then what follows is wanted in any case
            return Cut(wanted.after, skip=skip)
        ends_within = has_offset and wanted.end - offset < head.count
        most = max(0, wanted.end - offset) if ends_within else MAX_NUMBER
        return Cut(wanted.after, wanted.upto, skip, most)

    def _begin(self, answer: Resent, rows: Sequence[_Row]) -> None:
        """See where the history begins, from its first page."""
        wanted = self._wanted
        self._has_begun = True
        self._begins = bool(wanted.last or wanted.start or answer.start)
        if not self._begins:
            self._reader.read_past(wanted.whose, wanted.after + 1)
        elif rows:
            floor = min(max(head.first, wanted.after + 1) for head, _, _ in rows)
            self._reader.read_past(wanted.whose, floor)

    # --- The end --------------------------------------------------------------------------

    def _end(self, problem: str, now: float) -> list[Effect]:
        """Say that it has ended, and let in what is live."""
        self.close(now)
        ticket = self._open.ticket
        problem = problem or self._coverage.ended(self._limit or 0)
        lost = self._lost.spans
        if lost:
            problem = "; ".join(filter(None, (self._lost.text, problem)))
        effects = self._say(ticket, HistoryEnded(ticket, problem, lost))
        reader, long_ago = self._reader, now - 2 * GAP_WAIT_S
        live, forgotten = self._live.take()
        if self._open.fills:  # what was forgotten comes before what was not
            for chain, (after, last) in forgotten.items():
                effects += reader.expect(chain, after, last, long_ago, now)
        for head, frame, hops, sender, came_at in live:
            if not self._open.fills:
                effects += reader.pass_on(head, frame, hops, sender, now)
            else:
                since = came_at if problem else long_ago
                effects += reader.take_late(head, frame, hops, sender, since, now)
        return effects


def _leave_out(rows: list[_Row], surplus: int) -> None:
    """Leave out so many messages from the first on."""
    while rows and surplus >= rows[0][0].count:
        surplus -= rows.pop(0)[0].count
    if rows and surplus > 0:
        head, frame, cut = rows[0]
        rows[0] = (head, frame, msgspec.structs.replace(cut, skip=max(cut.skip, surplus)))


def _in_order(rows: Sequence[_Row]) -> list[_Row]:
    """Let the frames of each chain stand in the order of numbers, in the places they have."""
    places: dict[ChainKey, list[int]] = {}
    for at, (head, _, _) in enumerate(rows):
        places.setdefault(head.chain, []).append(at)
    ordered = list(rows)
    for of_chain in places.values():
        for at, row in zip(
            of_chain, sorted((rows[i] for i in of_chain), key=_last_of), strict=True
        ):
            ordered[at] = row
    return ordered


def _last_of(row: _Row) -> int:
    return row[0].last
