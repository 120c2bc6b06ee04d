"""What a storage node does about a damaged disk, and what it looks for in quiet times.

It goes through all that it keeps, a page now and then: what is damaged is found before somebody
asks for it, and what has no place in the log is handed to the primary. A frame that is damaged is
asked of another storage node of the stream, and replaced.
"""

from functools import partial

import msgspec

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart, part_key
from anabranch.core.machine import Effect, Notice, Send, Sizes
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import MAX_NUMBER, PAGE_BYTES, FrameName, Selection
from anabranch.core.part_log import PartLog
from anabranch.core.storage_disk import Disk
from anabranch.core.store import Answer, Page

ANSWER_S = 3.0
ROUNDS = 3  # how often each of the others is asked, before it is left until it is found again
MAX_REPAIRS = 1_024
SWEEP_S = 2.0  # between two pages of all that is kept
HURRY_S = 0.1  # if something is known to have no place, and it is not known what

BY_NUMBER = Selection(by_number=True)

Logs = dict[StreamPart, PartLog]


class _Repair(msgspec.Struct):
    """A damaged frame."""

    log: PartLog
    name: FrameName
    ticket: int = 0
    asked: NodeId | None = None
    attempts: int = 0
    at: float = 0.0


class Repairs:
    """Asks others for good copies of damaged frames."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._repairs: dict[tuple[StreamPart, FrameName], _Repair] = {}
        self._ticket = 0

    @property
    def wakeup_at(self) -> float | None:
        """When to ask somebody else."""
        return min((repair.at for repair in self._repairs.values()), default=None)

    def add(self, log: PartLog, names: tuple[FrameName, ...], now: float) -> list[Effect]:
        """Take note of damaged frames, and ask for them."""
        effects: list[Effect] = []
        for name in names:
            key = (log.part, name)
            if key not in self._repairs and len(self._repairs) < MAX_REPAIRS:
                effects.append(Notice(log.part, "damaged", f"{name.chain.hex()} {name.last}"))
                repair = self._repairs[key] = _Repair(log, name)
                effects += self._ask(repair, now)
        return effects

    def _ask(self, repair: _Repair, now: float) -> list[Effect]:
        """Ask the next of the other storage nodes; give it up when all were asked often enough."""
        standing = repair.log.standing
        others = [node for node in standing.members if node != standing.me]
        if not others or repair.attempts >= ROUNDS * len(others):
            del self._repairs[repair.log.part, repair.name]
            return []
        repair.asked = others[repair.attempts % len(others)]
        repair.attempts += 1
        repair.at = now + ANSWER_S
        self._ticket += 1
        repair.ticket = self._ticket
        name = repair.name
        wanted = Selection(after=name.last - 1, upto=name.last, whose=name.chain, by_number=True)
        return [Send(repair.asked, Resend(repair.ticket, repair.log.part, wanted))]

    def take(self, sender: NodeId, resent: Resent, now: float) -> list[Effect]:
        """Take what somebody has; RemoteError if he sends a forgery."""
        repairs = self._repairs.values()
        waiting = (each for each in repairs if (each.ticket, each.asked) == (resent.ticket, sender))
        repair = next(waiting, None)
        if repair is None:
            return []  # it comes too late
        repair.at = now  # if it is of no use, the next one is asked
        name, log = repair.name, repair.log
        others = len(log.standing.members) - 1
        for frame, offset in zip(resent.frames, resent.offsets, strict=False):
            head = frames.peek(frame)
            if (head.part, head.chain, head.last) != (part_key(log.part), name.chain, name.last):
                continue
            if not self._verify(head.publisher, *frames.proof(frame)):
                raise RemoteError("forged", str(log.part))
            # A publisher may have made two frames of one name: the one in the log is the right one.
            if offset != MAX_NUMBER or repair.attempts > others:
                del self._repairs[log.part, name]
                return log.repair(frame, now)
        return []

    def wake(self, now: float) -> list[Effect]:
        """Ask somebody else where there was no answer, or none of use."""
        due = [repair for repair in self._repairs.values() if repair.at <= now]
        return [effect for repair in due for effect in self._ask(repair, now)]

    def forget(self, part: StreamPart) -> None:
        """Repair nothing of a part that is not stored any more."""
        for key in [key for key in self._repairs if key[0] == part]:
            del self._repairs[key]

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"repairs": (len(self._repairs), MAX_REPAIRS)}


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
        effects = self._repairs.add(log, answer.damaged, now)
        rows = [row for row in answer.placed if row.offset is None]
        if rows and not log.standing.is_primary:
            effects += log.unplaced([frames.peek(row.entry.frame) for row in rows], now)
        return effects
