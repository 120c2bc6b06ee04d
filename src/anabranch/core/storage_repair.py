"""Repairs the damaged parts of a storage node's logs, and walks through all that it keeps.

A damaged part is a hole in a log: offsets whose messages cannot be read any more. Another storage
node of the stream is asked for the entries. The hash of the log behind the hole proves that they
are right, so the sender need not be trusted.

The walk looks at a page now and then: it finds holes that nobody has read across, and frames
without a place in the log, which are handed to the primary.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart, part_key
from anabranch.core.machine import Effect, Notice, Send, Sizes
from anabranch.core.messages import AskEntries, Entries
from anabranch.core.messages.storage import MAX_NUMBER, PAGE_BYTES, Selection
from anabranch.core.part_log import PartLog
from anabranch.core.parts import MAX_PARTS
from anabranch.core.storage_disk import Disk
from anabranch.core.store import Answer, Fill, HolesIn, Missing, Page

ANSWER_S = 3.0
REST_S = 30.0  # after all others were asked in vain
MAX_REPAIRS = MAX_PARTS  # one for each log
SWEEP_S = 2.0  # between two pages of all that is kept
HURRY_S = 0.1  # if something is known to have no place, and it is not known what

BY_NUMBER = Selection(by_number=True)

Logs = dict[StreamPart, PartLog]


class _Repair(msgspec.Struct):
    """A log with holes, one of which is being filled."""

    log: PartLog
    known: tuple[Missing, ...] = ()  # as the disk had it when the last question was sent
    turn: int = 0  # which of the holes
    ticket: int = 0
    asked: NodeId | None = None
    attempts: int = 0  # in vain, since entries came last
    first: int = 0  # which of the others is asked first: not one whose entries were wrong
    at: float = 0.0
    holes_asked: int = 0  # since the last rest
    # By where a hole begins: the others that lack its entries too, and how far their logs came.
    refused: dict[int, dict[NodeId, int]] = {}
    is_looking: bool = False  # a query for the holes is under way
    is_saving: bool = False
    fills_written: int = 0  # of the log, when something was last to be written


class Repairs:
    """Fetches damaged entries from other storage nodes."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._repairs: dict[StreamPart, _Repair] = {}
        self._ticket = 0

    @property
    def wakeup_at(self) -> float | None:
        """When to ask somebody else."""
        waiting = [each.at for each in self._repairs.values() if not each.is_looking]
        return min(waiting, default=None)

    def add(self, log: PartLog, now: float) -> list[Effect]:
        """Look up the holes of a log after damage was found in it."""
        repair = self._repairs.get(log.part)
        if repair is None:
            if len(self._repairs) >= MAX_REPAIRS:
                return []
            repair = self._repairs[log.part] = _Repair(log, at=now + ANSWER_S)
        if repair.is_looking:
            return []
        repair.is_looking = True
        return [self._disk.find(HolesIn(log.part), partial(self._found, repair))]

    def _found(self, repair: _Repair, answer: Answer, now: float) -> list[Effect]:
        log = repair.log
        repair.is_looking = False
        if self._repairs.get(log.part) is not repair:
            return []
        if answer.problem:
            repair.at = now + ANSWER_S
            return []
        log.lacks(answer.lacking)
        return self.tend(log, now)

    def tend(self, log: PartLog, now: float) -> list[Effect]:
        """Go on after the holes of a log have changed on the disk."""
        missing = log.standing.state.missing
        repair = self._repairs.get(log.part)
        if repair is None:
            if not missing or not log.is_active:
                return []
            # From now on: the query for the holes may take long, or fail.
            return self.add(log, now) + log.mend(len(log.standing.members) > 1, now)
        is_written = repair.is_saving and log.fills_written > repair.fills_written
        if repair.is_looking or (repair.known == missing and not is_written):
            return []
        effects: list[Effect] = []
        if not missing:
            del self._repairs[log.part]
            notice = Notice(log.part, "repaired", "all that was damaged is there again")
            return [notice, *log.mend(False, now)]
        if not repair.known:
            spans = ", ".join(f"{hole.start}-{hole.end - 1}" for hole in missing[:10])
            effects.append(Notice(log.part, "damaged", f"offsets {spans}"))
        before, repair.known, repair.is_saving = repair.known, missing, False
        starts = [hole.start for hole in missing]
        repair.refused = {at: by for at, by in repair.refused.items() if at in starts}
        if before and _left(missing) >= _left(before):  # the last entries have proved to be wrong
            repair.first += 1
            repair.asked, repair.at = None, now + ANSWER_S
            return effects
        repair.attempts = repair.holes_asked = 0
        return effects + self._ask(repair, now)

    def _ask(self, repair: _Repair, now: float) -> list[Effect]:
        """Ask the next of the other storage nodes; after all of them, about the next hole."""
        log, standing = repair.log, repair.log.standing
        others = [node for node in standing.members if node != standing.me]
        effects = self._consider(repair, others, now)
        if repair.attempts and repair.attempts % max(1, len(others)) == 0 and repair.asked:
            repair.asked = None
            repair.turn += 1  # another hole may be one that they can fill
            repair.holes_asked += 1
        if not others or repair.holes_asked >= len(repair.known):
            repair.holes_asked = 0
            repair.at = now + REST_S
            return effects
        repair.asked = others[(repair.first + repair.attempts) % len(others)]
        repair.at = now + ANSWER_S
        self._ticket += 1
        repair.ticket = self._ticket
        hole = _hole(repair)
        question = AskEntries(ticket=repair.ticket, part=log.part, start=hole.filled, end=hole.end)
        return [*effects, Send(repair.asked, question)]

    def _consider(self, repair: _Repair, others: Sequence[NodeId], now: float) -> list[Effect]:
        """Let the log lead only if no other storage node has what it lacks.

        It would give a second place to a frame that is in a hole. A node that is away may have
        what no other has, until it has refused too. What lies in a hole behind the high-water mark,
        and was never on any other disk, is not settled: it is taken back with all that follows.

        If the logs of the others end within a hole, this node cannot lead them across it. One of
        them has to lead, and what it has replaces the hole (log_following.py).
        """
        refused = [repair.refused.get(hole.start, {}) for hole in repair.known]
        may_have_it = any(node not in by for by in refused for node in others)
        if may_have_it or _end_within(repair, refused):
            return repair.log.mend(True, now)
        never_had = [
            hole.start
            for hole, by in zip(repair.known, refused, strict=True)
            if others and all(by[node] <= hole.start for node in others)
        ]
        return repair.log.mend(False, now, min(never_had, default=None))

    def take(self, sender: NodeId, answer: Entries, now: float) -> list[Effect]:
        """Take entries of another storage node; RemoteError if one is not of this log."""
        repair = self._repairs.get(answer.part)
        is_asked = repair is not None and (repair.ticket, repair.asked) == (answer.ticket, sender)
        if repair is None or not is_asked or repair.is_saving:
            return []  # it comes too late
        key = part_key(answer.part)
        if any(frames.peek(entry.frame).part != key for entry in answer.entries):
            raise RemoteError("wrong-part", str(answer.part))
        if not answer.entries:
            repair.attempts += 1
            repair.refused.setdefault(_hole(repair).start, {})[sender] = answer.length
            return self._ask(repair, now)
        repair.is_saving, repair.at = True, now + REST_S
        repair.fills_written = repair.log.fills_written
        fill = Fill(answer.part, answer.offset, answer.hash, answer.entries)
        return repair.log.fill(fill, now)

    def wake(self, now: float) -> list[Effect]:
        """Ask somebody else where there was no answer, or none of use."""
        effects: list[Effect] = []
        for repair in [each for each in self._repairs.values() if each.at <= now]:
            repair.is_saving = False
            repair.at = now + ANSWER_S
            if not repair.known:
                effects += self.add(repair.log, now)
                continue
            if repair.asked is not None:
                repair.attempts += 1
            effects += self._ask(repair, now)
        return effects

    def forget(self, part: StreamPart) -> None:
        """Repair nothing of a part that is whole, or not stored any more."""
        repair = self._repairs.pop(part, None)
        if repair is not None:
            repair.log.is_mending = False

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"repairs": (len(self._repairs), MAX_REPAIRS)}


def _hole(repair: _Repair) -> Missing:
    """Return the hole whose entries are asked for."""
    return repair.known[repair.turn % len(repair.known)]


def _end_within(repair: _Repair, refused: Sequence[dict[NodeId, int]]) -> bool:
    """Tell whether the longest log of the others ends within a hole, and has all that is settled.

    What follows there in this log was on no other disk.
    """
    high = repair.log.standing.high
    longest = [max(by.values(), default=0) for by in refused]
    return any(
        hole.start < length < hole.end and high <= length
        for hole, length in zip(repair.known, longest, strict=True)
    )


def _left(missing: Sequence[Missing]) -> int:
    """Count the offsets that are still to be filled."""
    return sum(hole.end - hole.filled for hole in missing)


class Sweep:
    """Goes through all that is kept, one log after the other."""

    def __init__(self, logs: Logs, disk: Disk, repairs: Repairs) -> None:
        self._logs = logs
        self._disk = disk
        self._repairs = repairs
        self._is_looking = False
        self._slow: tuple[StreamPart | None, Selection | None] = (None, None)  # where we are
        self._slow_at: float | None = None
        self._urgent: tuple[PartLog, Selection | None] | None = None
        self._urgent_at: float | None = None

    @property
    def wakeup_at(self) -> float | None:
        """When to look at the next page."""
        times = [at for at in (self._slow_at, self._urgent_at) if at is not None]
        return None if self._is_looking else min(times, default=None)

    def arm(self, log: PartLog, now: float) -> None:
        """See to it that a log is gone through in time."""
        if self._slow_at is None:
            self._slow_at = now + SWEEP_S
        if self._urgent_at is None and log.needs_sweep:
            self._urgent_at = now + HURRY_S

    def wake(self, now: float) -> list[Effect]:
        """Look at the next page, first where there is something to be found."""
        if self._is_looking:
            return []
        urgent = self._next_urgent()
        self._urgent_at = now + HURRY_S if urgent is not None else None
        if urgent is not None:
            return self._look(*urgent, True)
        if self._slow_at is None or now < self._slow_at:
            return []
        slow = self._next_slow()
        self._slow_at = now + SWEEP_S if slow is not None else None
        return self._look(*slow, False) if slow is not None else []

    def _next_urgent(self) -> tuple[PartLog, Selection | None] | None:
        if self._urgent is not None and self._urgent[0].is_active:
            return self._urgent
        self._urgent = None
        log = next((log for log in self._logs.values() if log.needs_sweep), None)
        if log is None:
            return None
        log.handing.is_incomplete = False  # unless it becomes so again meanwhile
        return log, None

    def _next_slow(self) -> tuple[PartLog, Selection | None] | None:
        part, following = self._slow
        logs = [log for log in self._logs.values() if log.is_active]
        parts = [log.part for log in logs]
        at = parts.index(part) if part in parts else -1
        if following is not None and at >= 0:
            return logs[at], following
        return (logs[(at + 1) % len(logs)], None) if logs else None

    def _look(self, log: PartLog, following: Selection | None, is_urgent: bool) -> list[Effect]:
        self._is_looking = True
        page = Page(log.part, following or BY_NUMBER, MAX_NUMBER, PAGE_BYTES)
        return [self._disk.find(page, partial(self._found, log, is_urgent))]

    def _found(self, log: PartLog, is_urgent: bool, answer: Answer, now: float) -> list[Effect]:
        self._is_looking = False
        if is_urgent:
            self._urgent = (log, answer.following) if answer.following is not None else None
            log.handing.is_incomplete |= bool(answer.problem)
        else:
            self._slow = (log.part, answer.following)
        if not log.is_active:
            return []
        effects = self._repairs.add(log, now) if answer.missing else []
        rows = [row for row in answer.placed if row.offset is None]
        if rows and not log.standing.is_primary:
            effects += log.unplaced([frames.peek(row.entry.frame) for row in rows], now)
        return effects
