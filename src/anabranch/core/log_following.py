"""A follower's side of a part's log: it copies the primary's.

It says how far its log goes and what its hash is there. If that is a part of the primary's log,
what follows comes. If not, the primary sends what follows after all that the follower knows to be
settled, and the follower looks how far the two are the same. It takes back only what is different
from the primary's log: the rest may be settled without its knowing, and it may be needed for that.

A log may have a hole around the high-water mark: damaged entries, the first of which are settled.
No storage node can fill such a hole if what was not settled of it has been replaced by a later
primary. Then the log is compared from the start of the hole on, and what is damaged is replaced in
one write with the entries of the primary.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.ids import FrameHead, NodeId, PartKey, part_key
from anabranch.core.log_comparison import Comparison, read_heads
from anabranch.core.log_marks import Disagrees
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Notice, Send
from anabranch.core.messages import Fetch, Fetched, Lead, Voted
from anabranch.core.messages.storage import Entry
from anabranch.core.storage_disk import Look
from anabranch.core.store import (
    NOBODY,
    Adopt,
    Answer,
    Copy,
    HashAt,
    LogWrite,
    Missing,
    Placed,
    Restart,
    Settle,
    Truncate,
    hole_around,
)

AGAIN_S = 1.0  # without an answer
IDLE_S = 5.0
SOON_S = 0.1  # after an answer that was of no use: many of them must not make many questions

MAX_LENGTH = 1 << 62  # of a log: no primary has come so far

End = tuple[int, bytes]  # of a log: its length and its hash
# Whether all publishers of a page's frames are known; RemoteError if one of them is forged.
CheckPage = Callable[[Fetched, Sequence[FrameHead]], bool]


TWICE = "a frame has two places with the primary, as far as we have its log: its store is damaged"
UNPERMITTED = "the primary has a frame of somebody who could never publish, by what we know"


class Staged(msgspec.Struct):
    """What is to be written next of the primary's log."""

    epoch: int
    base: End  # where our log ended when that was found out
    writes: tuple[LogWrite, ...]
    placed: tuple[tuple[Placed, FrameHead], ...]  # what is in the log after that
    cut: int | None  # the offset from which on places are taken back


class Following:
    """Fetches the primary's log."""

    def __init__(
        self, standing: Standing, find: Look, check: CheckPage, disagree: Disagrees
    ) -> None:
        self._standing = standing
        self._find = find
        self._check = check
        self._disagree = disagree
        self._key: PartKey = part_key(standing.part)
        self.at: float | None = None  # when to fetch again
        self._comparing: Comparison | None = None
        self._compared_at: End = (0, b"")  # where our log ended when we began to compare
        self._staged: Staged | None = None
        self._is_copying = False  # a copy is on its way to the disk
        self._asked_before: tuple[int, int] | None = None  # in which epoch, before which hole
        self._deaf_until = 0.0  # after what was no log: it would come again at once
        self._complaints: set[str] = set()  # kinds, each of which is said once

    # --- What the primary says ------------------------------------------------------------

    def lead(self, sender: NodeId, message: Lead, now: float) -> list[Effect]:
        """Hear that somebody is the primary of an epoch."""
        if not self._hear(sender, message):
            return self._object(sender, message.epoch)
        return self._fetch(now)

    def fetched(self, sender: NodeId, page: Fetched, now: float) -> list[Effect]:
        """Take what follows in the primary's log."""
        heads = read_heads(page, self._key)
        if page.offset + sum(head.count for head in heads) > MAX_LENGTH:
            raise RemoteError("wrong-page", "a log of such a length")
        if not self._hear(sender, page):
            return self._object(sender, page.epoch)
        standing, state = self._standing, self._standing.state
        self.at = now + IDLE_S
        standing.told_high = max(standing.told_high, page.high)
        if self._is_busy or now < self._deaf_until:
            return []
        goes_on = (page.offset, page.hash) == (state.length, state.hash)
        is_anew = page.starts_here and page.offset > state.length
        is_stamped = state.log_epoch == standing.epoch and not standing.is_contradicted
        is_late = page.offset > state.length or is_stamped
        if is_late and not goes_on and not is_anew:
            self.at = now + SOON_S  # or our last word was lost
            return []
        if len({(head.chain, head.last) for head in heads}) < len(heads):
            return self.diverged(now)
        if not self._check(page, heads):
            self.at = now + AGAIN_S  # the registry may be late here
            return self._complain("log-unpermitted", UNPERMITTED)
        if goes_on:
            self._stage(page, heads, state.length)
            self.settle()
            return []
        if is_anew:
            self._stage_anew(page, heads)
            return []
        self._comparing = Comparison(page, heads, state.length, state.missing)
        self._compared_at = self._end
        return self._compare(self._comparing, now)

    def settle(self) -> None:
        """Settle what the primary has settled, as far as our log is known to be a part of its."""
        standing, state = self._standing, self._standing.state
        if standing.is_contradicted:
            return  # what it has settled is not what was settled
        standing.high = max(standing.high, state.high)  # if our log began anew
        if state.log_epoch == standing.epoch and not standing.is_primary:
            standing.high = max(standing.high, min(standing.told_high, state.length))

    def _hear(self, sender: NodeId, message: Lead | Fetched) -> bool:
        """Tell whether a message is our primary's."""
        standing = self._standing
        if message.epoch > standing.epoch:
            standing.promise(message.epoch, NOBODY)
        if message.epoch < standing.epoch or standing.is_primary:
            return False
        if standing.primary is None:
            standing.primary, standing.told_high, self._deaf_until = sender, 0, 0.0
        if standing.primary == sender:
            standing.begin = message.begin
        return standing.primary == sender

    def _object(self, sender: NodeId, epoch: int) -> list[Effect]:
        """Tell who leads, but in an epoch that is over, of the later one."""
        standing = self._standing
        if epoch >= standing.epoch:
            return []
        return [Send(sender, Voted(standing.part, standing.epoch, False, True))]

    # --- Asking ---------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """Whether something of this epoch is being done; what was begun in another is void."""
        epoch, comparing, staged = self._standing.epoch, self._comparing, self._staged
        if comparing is not None and comparing.page.epoch == epoch:
            return True
        return self._is_copying or (staged is not None and staged.epoch == epoch)

    def wake(self, now: float) -> list[Effect]:
        """Fetch again."""
        self.at = None
        if self._standing.primary is None or self._is_busy:
            return []  # what is being done ends in a Fetch
        return self._fetch(now)

    def _fetch(self, now: float) -> list[Effect]:
        state = self._standing.state
        return [] if self._is_busy else self._fetch_at(state.length, state.hash, now)

    def _fetch_at(self, offset: int, hashed: bytes, now: float) -> list[Effect]:
        standing = self._standing
        if standing.primary is None:
            return []
        self.at = now + AGAIN_S
        log_epoch = 0 if standing.is_recovering else standing.state.log_epoch
        fetch = Fetch(standing.part, standing.epoch, offset, hashed, standing.high, log_epoch)
        return [Send(standing.primary, fetch)]

    # --- Where our log is another ---------------------------------------------------------

    def _compare(self, comparison: Comparison, now: float) -> list[Effect]:
        offset = comparison.question
        if offset is not None:
            query = HashAt(self._standing.part, offset)
            return [self._find(query, partial(self._found, comparison))]
        self._comparing = None
        return self._compared(comparison, now)

    def _found(self, comparison: Comparison, answer: Answer, now: float) -> list[Effect]:
        if self._comparing is not comparison:
            return []
        is_over = comparison.page.epoch != self._standing.epoch or self._compared_at != self._end
        if is_over or answer.problem:
            self._comparing, self.at = None, now + AGAIN_S
            return []
        comparison.tell(answer.hash)
        return self._compare(comparison, now)

    def _compared(self, comparison: Comparison, now: float) -> list[Effect]:
        """Take back what is different, and go on from there."""
        state, page, same = self._standing.state, comparison.page, comparison.same
        high = self._standing.high
        if same < 0 and page.starts_here and self._standing.is_contradicted:
            self._stage_anew(page, comparison.heads)
            return []
        if same < 0 and page.offset <= high:
            return self._ask_before_hole(page, now)
        if same < 0 and page.starts_here:  # from what is settled on all is another
            self._stage(page, comparison.heads, high, len(page.entries))
        if same < 0:
            return self._fetch(now)
        offset, hashed = comparison.ends[same]
        if same == len(page.entries) and offset < min(page.begin, state.length):
            return self._fetch_at(offset, hashed, now)  # the same as far as the page goes
        if comparison.ends_in_hole and page.offset < offset:
            return self._fetch_at(offset, hashed, now)  # so that a page goes beyond the hole
        if offset < high and not self._replaces_hole(comparison, offset):
            return self._settled_differs(now)  # whatever a primary says, what is settled stays
        self._stage(page, comparison.heads, offset, same)
        return self._fetch(now)  # if there was nothing to write: our last word was lost

    def _ask_before_hole(self, page: Fetched, now: float) -> list[Effect]:
        """Ask for a page from the start of the hole in which this page begins.

        If the primary's log is another there too, it sends the same page again.
        """
        standing = self._standing
        hole = hole_around(standing.state.missing, page.offset)
        asked, self._asked_before = self._asked_before, None
        if hole is None or asked == (standing.epoch, hole.start):
            return self._settled_differs(now)
        self._asked_before = (standing.epoch, hole.start)
        then = partial(self._found_before_hole, hole, self._end)
        return [self._find(HashAt(standing.part, hole.start), then)]

    def _found_before_hole(
        self, hole: Missing, end: End, answer: Answer, now: float
    ) -> list[Effect]:
        if self._is_busy or self._end != end or not answer.hash:
            self._asked_before = None
            return []
        return self._fetch_at(hole.start, answer.hash, now)

    def _replaces_hole(self, comparison: Comparison, offset: int) -> bool:
        """Tell whether a page may replace a hole at this offset in which the high-water mark lies.

        It must have all entries of the hole with which the epoch began: others may count on this
        node for them. And it must not contradict the mark that this node has signed.
        """
        standing, page = self._standing, comparison.page
        hole = hole_around(standing.state.missing, standing.high)
        end = comparison.ends[-1][0]
        if hole is None or hole.start != offset or page.begin < standing.high:
            return False
        hashes = dict(comparison.ends)
        signed = [mark for mark in standing.state.marks if mark.node == standing.me]
        is_against = any(
            offset <= mark.high <= standing.high and hashes.get(mark.high) != mark.hash
            for mark in signed
        )
        return end >= min(hole.end, page.begin) and end >= standing.high and not is_against

    def _settled_differs(self, now: float) -> list[Effect]:
        """Let the marks of the storage nodes decide whose log is replaced."""
        primary = self._standing.primary
        return [] if primary is None else self._disagree(primary, now)

    def diverged(self, now: float) -> list[Effect]:
        """The primary's log has a frame twice: keep what we have, and ask again in a while."""
        self._is_copying = False
        self.at = self._deaf_until = now + IDLE_S
        return self._complain("log-diverged", TWICE)

    def _complain(self, kind: str, hint: str) -> list[Effect]:
        if kind in self._complaints:
            return []
        self._complaints.add(kind)
        return [Notice(self._standing.part, kind, hint)]

    # --- Writing --------------------------------------------------------------------------

    def _stage(
        self, page: Fetched, heads: Sequence[FrameHead], offset: int, skipped: int = 0
    ) -> None:
        """Put the entries of a page, but for some, at this place, from which on we have others."""
        state = self._standing.state
        writes: list[LogWrite] = []
        cut = offset if offset < state.length else None
        if cut is not None:
            writes.append(Truncate(state.part, offset))
        self._stage_copy(page.entries[skipped:], heads[skipped:], offset, writes, cut)

    def _stage_anew(self, page: Fetched, heads: Sequence[FrameHead]) -> None:
        """Begin where the primary's log begins: it has nothing any more of what we have."""
        restart = Restart(self._standing.part, page.offset, page.hash)
        self._stage_copy(page.entries, heads, page.offset, [restart], 0)

    def _stage_copy(
        self,
        entries: Sequence[Entry],
        heads: Sequence[FrameHead],
        offset: int,
        writes: list[LogWrite],
        cut: int | None,
    ) -> None:
        standing = self._standing
        is_settled = cut is not None and cut < standing.high and type(writes[0]) is Truncate
        if entries:
            writes.append(Copy(standing.part, offset, tuple(entries)))
        if is_settled:  # a hole around the high-water mark is replaced
            writes.append(Settle(standing.part, standing.high))
        placed: list[tuple[Placed, FrameHead]] = []
        for entry, head in zip(entries, heads, strict=True):
            placed.append((Placed(offset, entry), head))
            offset += head.count
        # Not before all is there that the primary began with: a log that is stamped earlier would
        # count as more than one that has what was settled.
        is_other = standing.state.log_epoch != standing.epoch or standing.is_contradicted
        if is_other and offset >= standing.begin:
            writes.append(Adopt(standing.part, standing.epoch))
        if writes:
            written = tuple(writes)
            self._staged = Staged(standing.epoch, self._end, written, tuple(placed), cut)

    @property
    def _end(self) -> End:
        return self._standing.state.length, self._standing.state.hash

    def unstage(self, now: float) -> Staged | None:
        """Hand over what is to be written, unless it is of an epoch that is over.

        Nor if our log has changed: what we ordered ourselves as an earlier primary may have been
        on its way to the disk.
        """
        staged, self._staged = self._staged, None
        if staged is None or staged.epoch != self._standing.epoch or self._standing.is_primary:
            return None
        if staged.base != self._end:
            self.at = now + SOON_S
            return None
        self._is_copying = True
        return staged

    def wrote(self, now: float) -> list[Effect]:
        """A copy is on the disk: say so, and ask for more."""
        self._is_copying = False
        self.settle()
        return self._fetch(now)

    def failed(self, now: float) -> None:
        """A copy could not be written: it is fetched again."""
        self._is_copying = False
        self.at = now + AGAIN_S
