"""The log of one part on one storage node.

At any time at most one write is under way. So whatever is decided is decided on what the disk
holds, and what comes meanwhile goes into the next write, all of it together: under load batches
form by themselves. A write that fails has done nothing, and all that was in it is tried again.
"""

import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec

from anabranch.core.chain_order import ChainOrder, Plan
from anabranch.core.frames import name, peek
from anabranch.core.ids import FrameHead, NodeId, StreamPart
from anabranch.core.log_election import Election
from anabranch.core.log_following import CheckPage, Following, Staged
from anabranch.core.log_handing import MAX_UNPLACED, Handing
from anabranch.core.log_leading import Leading
from anabranch.core.log_marks import Marks, Notary
from anabranch.core.log_recovery import Lost, Recovery
from anabranch.core.log_standing import MAX_LEAP, Standing
from anabranch.core.machine import Effect, Sizes, Wrote
from anabranch.core.messages import (
    AskRank,
    Disagree,
    Entries,
    Fetch,
    Fetched,
    Lead,
    Marked,
    Ranked,
    Vote,
    Voted,
)
from anabranch.core.messages.storage import MAX_MARKS, FrameName
from anabranch.core.storage_asks import Asks, Sign
from anabranch.core.storage_disk import AfterFind, Disk
from anabranch.core.store import (
    DIVERGED,
    Adopt,
    Answer,
    Delete,
    Fill,
    ForRecord,
    Keep,
    KeepMarks,
    LogQuery,
    LogState,
    LogWrite,
    Loss,
    Missing,
    Placed,
    Promise,
    Settle,
    Truncate,
)

RETRY_S = 1.0  # after a write that failed
STUCK_S = 5.0  # a primary that cannot write for so long lets another one lead
SETTLE_S = 1.0  # how long the disk may lag behind the high mark
MAX_WRITE_FRAMES = 1_024  # of one write
MAX_WRITE_BYTES = 4 << 20
MAX_FILLS = 64
MAX_COMING = 4_096  # frames that wait for the disk: above that publishers hand over none

OfEpoch = Vote | Voted | Lead | Fetch | Fetched
# What storage nodes of a stream say to each other about its logs.
FromFellow = OfEpoch | AskRank | Ranked | Marked | Disagree


class LogStatus(msgspec.Struct, frozen=True):
    """How the log of a part stands here."""

    epoch: int
    primary: NodeId | None
    start: int
    length: int
    high: int
    held: int
    lost: Lost | None = None  # what the disk has forgotten, until it is there again
    disagrees: tuple[NodeId, ...] = ()  # whose logs are others below a high-water mark
    losses: tuple[Loss, ...] = ()  # that were accepted


class _Saving(msgspec.Struct):
    """What is in the write that is under way."""

    since: float
    frames: list[bytes]
    fills: list[Fill]
    staged: Staged | None
    plan: Plan | None  # of the leader
    is_promise: bool
    is_recovery: bool  # `staged` is a copy of a log that nobody leads
    for_record: list[ForRecord]
    is_delete: bool = False


class PartLog:
    """Keeps what comes, and has its part in the order of it."""

    def __init__(
        self,
        me: NodeId,
        state: LogState,
        linked: Collection[NodeId],
        rng: random.Random,
        disk: Disk,
        sign: Sign,
        check: CheckPage,
        notary: Notary,
    ) -> None:
        self.standing = Standing(me, state, linked)
        self.is_active = False  # the stream names us
        self.is_deleting = False
        self.is_deleted = False
        self.is_mending = False  # others are asked for what is damaged here
        self._never_had: int | None = None  # the others have nothing of this log from here on
        self.fills_written = 0
        self.wakeup_at: float | None = None
        self._disk = disk
        self.asks = Asks(self.standing, self._find, sign, self._coming)
        self.handing = Handing(self.standing, self._find)
        self._marks = Marks(self.standing, self._find, notary)
        self.recovery = Recovery(self.standing, self._find, check, self._marks)
        self._election = Election(self.standing, rng, self.recovery.may_vote)
        self._leading = Leading(self.standing, self._find)
        self._following = Following(self.standing, self._find, check, self._marks.disagree)
        self._frames: deque[bytes] = deque()  # not written yet
        self._fills: list[Fill] = []
        self._saving: _Saving | None = None
        self._retry_at: float | None = None
        self._failing_since: float | None = None
        self._settle_at: float | None = None
        self._told_high = self.standing.high
        self.order = ChainOrder(self.standing, self._find, disk.keep_ms)

    @property
    def part(self) -> StreamPart:
        """Whose log it is."""
        return self.standing.part

    def status(self) -> LogStatus:
        """Return how it stands."""
        standing, state = self.standing, self.standing.state
        primary = standing.me if standing.leads else standing.primary
        held = state.held + len(self._frames)
        return LogStatus(
            standing.epoch,
            primary,
            state.start,
            state.length,
            standing.high,
            held,
            self.recovery.lost,
            tuple(standing.disagrees),
            state.losses,
        )

    def take_damaged(self) -> bool:
        """Tell, once, whether something was found damaged while followers were served."""
        is_damaged, self._leading.is_damaged = self._leading.is_damaged, False
        return is_damaged

    def mend(self, is_mending: bool, now: float, never_had: int | None = None) -> list[Effect]:
        """Learn whether others are asked for what is damaged; a log with holes does not lead.

        From the offset `never_had` on, no other storage node has ever had what this log has.
        """
        self._never_had = never_had
        if is_mending == self.is_mending:
            return []
        self.is_mending = is_mending
        if is_mending:
            self._begin_mending()
        return self._after([], now)

    def _begin_mending(self) -> None:
        self.is_mending = True
        self._election.cancel()
        if self.standing.is_primary and len(self.standing.members) > 1:
            self.standing.step_down()

    def lacks(self, missing: tuple[Missing, ...]) -> None:
        """Learn which offsets the disk lacks."""
        standing = self.standing
        standing.state = msgspec.structs.replace(standing.state, missing=missing)

    def pending_names(self) -> list[bytes]:
        """Return the names of frames that are still on their way to the disk."""
        return [name(frame) for frame in self._pending()]

    def _pending(self) -> Iterator[bytes]:
        written = self._saving.frames if self._saving is not None else ()
        return chain(written, self.order.deferred, self._frames)

    @property
    def needs_sweep(self) -> bool:
        """Whether there may be frames to be handed on of which it is not known which."""
        return self.is_active and self.handing.is_incomplete and self.standing.primary is not None

    # --- Who keeps it ---------------------------------------------------------------------

    def doubt(self) -> None:
        """Learn that there may have been a log here before this one, which is new."""
        self.standing.is_doubted = True

    def join(self, members: tuple[NodeId, ...], may_begin: bool, now: float) -> list[Effect]:
        """Be one of these storage nodes; only some may begin a log where there is none."""
        standing = self.standing
        self._election.may_begin = may_begin
        if self.is_active and members == standing.members:
            return []
        standing.members, standing.since, self.is_active = members, now, True
        self._election.cancel()
        if standing.primary not in members:
            standing.primary = None
        standing.disagrees = {node: None for node in standing.disagrees if node in members}
        self._leading.change_members()
        self.recovery.change_members()
        self._leading.settle()
        return self._after(self.recovery.start(now), now)

    def leave(self) -> None:
        """Be none of them any more: what is on the disk stays there."""
        self.is_active = False
        self.standing.step_down()
        self.standing.members = ()
        self._election.cancel()
        self.recovery.stop()
        self._drop_frames()
        self.wakeup_at = None

    def delete(self, now: float) -> list[Effect]:
        """Keep nothing of it."""
        self.leave()
        self.is_deleting = True
        return self._after([], now)

    def _drop_frames(self) -> None:
        self._frames.extendleft(reversed(self.order.stop()))
        for frame in self._frames:
            self._disk.free(len(frame))
        self._frames.clear()

    # --- What happens ---------------------------------------------------------------------

    def take(self, frame: bytes, now: float) -> list[Effect]:
        """Take a frame that is verified."""
        if not self._disk.reserve(len(frame)):
            return self._disk.complain()
        self._frames.append(frame)
        return self._after([], now) if self._saving is None else []

    def fill(self, fill: Fill, now: float) -> list[Effect]:
        """Take entries that are damaged here from another storage node's log."""
        if len(self._fills) < MAX_FILLS:
            self._fills.append(fill)
        return self._after([], now)

    def unplaced(self, heads: list[FrameHead], now: float) -> list[Effect]:
        """Learn of frames that were found to have no place in the log."""
        self.handing.add_found(heads, now)
        return self._after([], now)

    def receive(self, sender: NodeId, message: FromFellow, now: float) -> list[Effect]:
        """Take what another storage node of the stream says."""
        if not isinstance(message, OfEpoch):
            return self._after(self._receive_rank(sender, message, now), now)
        if message.epoch > self.standing.epoch + MAX_LEAP:
            return []
        if type(message) is Vote:
            effects = self._election.asked(sender, message, now)
        elif type(message) is Voted:
            effects = self._election.answered(sender, message)
        elif type(message) is Lead:
            effects = self._following.lead(sender, message, now)
        elif type(message) is Fetch:
            effects = self._leading.fetch(sender, message, now)
        else:
            assert type(message) is Fetched
            effects = self._following.fetched(sender, message, now)
        return self._after(effects, now)

    def _receive_rank(
        self, sender: NodeId, message: AskRank | Ranked | Marked | Disagree, now: float
    ) -> list[Effect]:
        """Take what is said of ranks, and not in an epoch."""
        if type(message) is AskRank:
            return self.recovery.answer(sender, now)
        if type(message) is Ranked:
            return self.recovery.take(sender, message, now)
        if type(message) is Disagree:
            return self._marks.disagreed(sender, message, now)
        assert type(message) is Marked
        self._marks.take((message.mark,))
        return []

    def take_entries(self, answer: Entries, now: float) -> list[Effect]:
        """Take verified entries that recovery has asked for."""
        return self._after(self.recovery.take_entries(answer, now), now)

    def accept_loss(self, now: float) -> list[Effect]:
        """Go on without what the disk has forgotten, if no storage node has it."""
        return self._after(self.recovery.accept(now), now) if self.is_active else []

    def link(self, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Learn that a link to another storage node of the stream stands, or does not."""
        if self.standing.primary == peer:  # it must say again that it leads: it may have restarted
            self.standing.primary = None
        effects = self._leading.link(peer, up) + self.recovery.link(peer, up, now)
        return self._after(effects, now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        is_stuck = self._is_stuck(now)
        if is_stuck and self.standing.is_primary and len(self.standing.members) > 1:
            self.standing.step_down()
        if _is_due(self._election.at, now):
            if is_stuck or self._retry_at is not None or self.is_mending:
                # A node that cannot write cannot lead. One whose log has holes must not give places
                # to frames, as they may be in a hole already.
                self._election.postpone(now)
            else:
                effects += self._election.wake(now)
        for each in (self._leading, self._following, self.handing, self.recovery, self._marks):
            if _is_due(each.at, now):
                effects += each.wake(now)
        if _is_due(self.asks.at, now):
            self.asks.wake(now)
        if _is_due(self.order.at, now):
            self.order.wake(now)
        if _is_due(self._retry_at, now):
            self._retry_at = None
        return self._after(effects, now)

    def _find(self, query: LogQuery, then: AfterFind) -> Effect:
        """Look something up for one of our own."""
        return self._disk.find(query, partial(self._found, then))

    def _found(self, then: AfterFind, answer: Answer, now: float) -> list[Effect]:
        return self._after(then(answer, now), now)

    def _coming(self) -> set[FrameName] | None:
        """Return the frames on the way to the disk; None: it fails or lags, no more may come."""
        if self._failing_since is not None or len(self._frames) > MAX_COMING:
            return None
        return {FrameName(head.chain, head.last) for head in map(peek, self._pending())}

    def _is_stuck(self, now: float) -> bool:
        since = self._stuck_since()
        return since is not None and now >= since + STUCK_S

    def _stuck_since(self) -> float | None:
        if self._failing_since is not None:
            return self._failing_since
        return self._saving.since if self._saving is not None else None

    def _after(self, effects: list[Effect], now: float) -> list[Effect]:
        """Save what is to be saved, say what is settled, and arm the timer."""
        standing = self.standing
        if standing.high > self._told_high:
            self._told_high = standing.high
            effects += self.asks.settled()
        if standing.high > standing.state.high and self._settle_at is None:
            self._settle_at = now + SETTLE_S
        if self.is_active:
            effects += self.recovery.tend(now)
            self._marks.arm(now)
            if self._marks.is_unsaved and self._settle_at is None:
                self._settle_at = now + SETTLE_S
        effects += self._save(now)
        effects += self.order.look_ups(now, is_writing=self._saving is not None)
        if not self.is_active:
            self.wakeup_at = self._retry_at
            return effects
        self._election.wait(now)
        times = [self._election.at, self._leading.at, self._following.at, self.handing.at]
        times += [self.asks.at, self.order.at, self._retry_at, self.recovery.at, self._marks.at]
        if self._saving is None and self._retry_at is None:
            times.append(self._settle_at)
        since = self._stuck_since()
        if since is not None and standing.is_primary and len(standing.members) > 1:
            times.append(since + STUCK_S)
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    # --- The disk -------------------------------------------------------------------------

    def _save(self, now: float) -> list[Effect]:
        """Write all that is to be written, unless a write is under way."""
        if self._saving is not None or self._retry_at is not None or self.is_deleted:
            return []
        if self.is_deleting:
            self._saving = _Saving(now, [], [], None, None, False, False, [], is_delete=True)
            return [self._disk.write([Delete(self.part)], self._saved)]
        if not self.is_active:
            return []
        standing, state = self.standing, self.standing.state
        writes: list[LogWrite] = []
        is_promise = not standing.is_promised
        if is_promise:
            writes.append(Promise(state.part, standing.epoch, standing.voted))
        staged = self._following.unstage(now)
        is_recovery = staged is None and (staged := self.recovery.unstage()) is not None
        if staged is not None:
            writes += staged.writes
        cut: int | None = None
        if standing.is_primary and state.log_epoch != standing.epoch:
            cut = self._unsettled_damage()
            standing.begin = state.length if cut is None else cut
            writes += self._begin_epoch(cut)
            if cut is not None:  # nothing is placed before this is on the disk
                staged = Staged(standing.epoch, (state.length, state.hash), (), (), cut)
        frames, plan = self._placing(now) if cut is None else ([], None)
        if plan is not None:
            writes += plan.writes
        elif frames:
            writes.append(Keep(state.part, tuple(frames), int(now * 1000)))
        fills, self._fills = self._fills, []
        writes += fills
        for_record = self._for_record(bool(writes), now)
        writes += for_record
        if standing.high > state.high and (writes or _is_due(self._settle_at, now)):
            writes.append(Settle(state.part, standing.high))
        if writes or (standing.high <= state.high and not self._marks.is_unsaved):
            self._settle_at = None
        if not writes:
            return []
        self._saving = _Saving(
            now, frames, fills, staged, plan, is_promise, is_recovery, for_record
        )
        return [self._disk.write(writes, self._saved)]

    def _begin_epoch(self, cut: int | None) -> list[LogWrite]:
        """Begin an epoch as its primary, without what is taken back."""
        part, epoch = self.part, self.standing.epoch
        adopt = Adopt(part, epoch)
        return [adopt] if cut is None else [Truncate(part, cut), adopt]

    def _unsettled_damage(self) -> int | None:
        """Return the offset from which on the log is damaged and was on no other disk."""
        cut, state = self._never_had, self.standing.state
        is_unsettled = cut is not None and max(state.high, self.standing.high) <= cut < state.length
        return cut if is_unsettled else None

    def _for_record(self, is_writing: bool, now: float) -> list[ForRecord]:
        """Return what is for the record; marks wait for something else to be written."""
        writes = self.recovery.writes()
        if writes or is_writing or _is_due(self._settle_at, now):
            marks = self._marks.write()
            if marks is not None:
                writes.append(marks)
        return writes

    def _some_frames(self) -> list[bytes]:
        frames: list[bytes] = []
        size = 0
        while self._frames and len(frames) < MAX_WRITE_FRAMES and size < MAX_WRITE_BYTES:
            frames.append(self._frames.popleft())
            size += len(frames[-1])
        return frames

    def _placing(self, now: float) -> tuple[list[bytes], Plan | None]:
        """Return the frames of the next write, and where the leader places them."""
        if not self.standing.is_primary:
            self._stop_ordering()
            return self._some_frames(), None
        plan = self.order.plan(self._some_frames() if self.order.has_room else [], now)
        return plan.frames, plan

    def _stop_ordering(self) -> None:
        """Leave the order to another leader: what is held here is handed to it."""
        if self.order.is_leading:
            self._frames.extendleft(reversed(self.order.stop()))
            self.handing.is_incomplete = True

    def _saved(self, event: Wrote, now: float) -> list[Effect]:
        """Go on from what is on the disk now."""
        saving, self._saving = self._saving, None
        assert saving is not None
        if event.problem:
            return self._failed(saving, event.problem, now)
        self._failing_since = None
        self.fills_written += len(saving.fills)
        for frame in saving.frames:
            self._disk.free(len(frame))
        state = next(state for state in event.states if state.part == self.part)
        standing, before = self.standing, self.standing.state
        standing.state = state
        self.is_deleted = saving.is_delete
        if self.is_deleted:
            return []
        if not self.is_active:
            return self._after([], now)
        if len(standing.members) > 1 and _has_new_hole(before.missing, state.missing):
            # No frame gets a place before the others were asked: it may lie in the hole, or follow
            # a frame that does. Repairs says when that is over.
            self._begin_mending()
        placed = next((rows for part, rows in event.placed if part == self.part), ())
        effects = self._election.wrote() if saving.is_promise else []
        effects += self._leading.lead(now)
        effects += self._placed(saving, placed, before, now)
        effects += self.recovery.wrote_record(saving.for_record)
        if saving.staged is not None:
            self._copied(saving.staged)
            wrote = self.recovery.wrote if saving.is_recovery else self._following.wrote
            effects += wrote(now)
        return self._after(effects, now)

    def _placed(
        self, saving: _Saving, placed: tuple[Placed, ...], before: LogState, now: float
    ) -> list[Effect]:
        """Take note of what is held, or in the log, by our own doing."""
        if saving.plan is None:
            self.handing.add([peek(frame) for frame in saving.frames], now)
            return []
        self.handing.clear(are_others=self.standing.state.held > 0)
        if not saving.plan.is_done(placed) and self.order.is_leading:
            self._frames.extendleft(reversed(self.order.restart(now)))
        if self.asks.is_waiting:
            self.asks.placed((row, peek(row.entry.frame)) for row in placed)
        return self._leading.placed(placed, before.hash, now)

    def _copied(self, staged: Staged) -> None:
        """Take note of what is in the log as the primary has it."""
        if staged.cut is not None:
            self.asks.cut(staged.cut)
            self.handing.is_incomplete = True
        self.handing.drop(head for _, head in staged.placed)
        self.asks.placed(staged.placed)
        standing = self.standing
        if any(
            type(write) is Adopt and write.log_epoch == standing.epoch for write in staged.writes
        ):
            standing.is_contradicted = False  # it is the primary's log now
            standing.disagrees = {}

    def _failed(self, saving: _Saving, problem: str, now: float) -> list[Effect]:
        """Nothing was done: try it again in a while, or at once without what cannot be true."""
        if self.order.is_leading:
            self._frames.extendleft(reversed(self.order.restart(now)))
        self._frames.extendleft(reversed(saving.frames))
        self._fills += saving.fills
        self.recovery.unwritten([each for each in saving.for_record if type(each) is not KeepMarks])
        if any(type(write) is KeepMarks for write in saving.for_record):
            self._marks.failed()
        if not self.is_active:
            self._drop_frames()
        if saving.staged is not None:
            if saving.is_recovery:
                self.recovery.failed(now)
            elif problem.startswith(DIVERGED):
                return self._after(self._following.diverged(now), now)
            else:
                self._following.failed(now)
        if self._failing_since is None:
            self._failing_since = saving.since
        self._retry_at = now + RETRY_S
        return self._after([], now)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "unplaced frames": (len(self.handing), MAX_UNPLACED),
            "repairs to be written": (len(self._fills), MAX_FILLS),
            "marks of storage nodes": (len(self._marks), MAX_MARKS),
            **self.order.sizes(),
            **self.asks.sizes(),
            **self.recovery.sizes(),
        }


def _has_new_hole(before: Sequence[Missing], missing: Sequence[Missing]) -> bool:
    """Tell whether one of some holes was not, or not whole, within one of the holes before."""
    return any(
        not any(each.start <= hole.start and hole.end <= each.end for each in before)
        for hole in missing
    )


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and now >= at
