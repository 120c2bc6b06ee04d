"""Finds frames that a storage node lacks, by comparison with other nodes.

A storage node compares each part with every neighbour in the part's overlay, and with the other
storage nodes of the stream: soon after both are linked, after a new leader, after a pause of its
own process, and now and then. A comparison is a row of reports:

    AskRanges   ->   which frames have you taken after the cursor?
                <-   Ranges: spans of numbers, with the digests of their frames
    the digests are held against the storage node's own frames; equal ranges cost nothing more
    AskLacking  ->   in the ranges that differ I have frames of these names
                <-   Lacking: the others, whole

A range claims that the other node holds so many frames. The claim itself changes nothing: only a
whole frame counts, with the signature of a publisher that the registry permits. The signature
covers the head and the body, so the whole frame is the shortest proof of a head. If more frames
are claimed than the storage node has, the rest must come; a node that does not hand them over loses
its link. A node whose answers are late, or of no use, is asked less and less often.

Frames that are found this way go into the log as any other, and a frame that is there stays as it
is. They are not forwarded in the overlay: readers find them in the log.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.frame_ranges import Names, between, digest_of
from anabranch.core.ids import (
    MAX_SKEW_S,
    SEQUENCE_BITS,
    FrameHead,
    NodeId,
    StreamPart,
    number_of,
    part_key,
)
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import AskLacking, AskRanges, Lacking, Ranges
from anabranch.core.messages.storage import MAX_NAMED, MAX_REPORT_FRAMES, FrameRange
from anabranch.core.part_log import PartLog
from anabranch.core.parts import Parts
from anabranch.core.registry_view import Registry
from anabranch.core.storage_disk import Disk
from anabranch.core.store import Answer, NamesIn
from anabranch.core.verified_frames import VerifiedFrames

TICK_S = 1.0  # how often it is looked which comparisons are due
LATE_S = 3.0  # a tick that comes so late shows that this process was stopped
EVERY_S = 10.0  # from one comparison with a node to the next,
IDLE_S = 30.0  # at most, while the node reports no new frames
SOON_S = 2.5  # after one that was the first, or that found frames: others were too young for it
CATCH_UP_S = 30.0  # how long a comparison waits for the copy of the leader's log
MAX_FAILS = 2  # that are repeated soon
MAX_BACK_OFF_S = 300.0  # after many that brought nothing but claims
ANSWER_S = 5.0
REPORT_AGE_S = 15.0  # the other node forgets its report after twice this time
MAX_ROUNDS = 64  # comparisons that are under way, each with another node
MAX_PAIRS = 65_536  # of a part and a node
MAX_REPORTS = 16  # in one comparison
SPARE_NAMES = 64  # of a range that are looked up beyond those that are claimed

MAX_AGE_S = 7 * 86_400.0  # older frames are not taken from others
PUBLISHER_BYTES = 16 << 20  # that are taken at once of one publisher,
PUBLISHER_BYTES_PER_S = 1 << 20  # and in the long run
MAX_PUBLISHERS = 4_096

TakeFrame = Callable[[PartLog, bytes, float], list[Effect]]


class StoreRetention(msgspec.Struct, frozen=True):
    """What the store deletes on its own: such frames must not come back."""

    keep_ms: int | None = None  # frames are deleted after so long
    is_size_bound: bool = False  # the oldest frames are deleted when there is no more room


class _Pair(msgspec.Struct, eq=False):
    """A part, and a node with which it is compared."""

    part: StreamPart
    peer: NodeId
    due_at: float
    wait_s: float = EVERY_S
    cursor: int = 0  # up to here everything that the node has taken is compared
    is_new: bool = True  # no comparison has ended well
    fails: int = 0  # comparisons in a row that had no answer


class _Group(msgspec.Struct, eq=False):
    """Neighbouring ranges that differ."""

    low: int
    high: int
    claimed: int
    required: int  # so many frames must come
    known: list[bytes]  # names of our own frames, ascending
    cursor: bytes = b""  # the name of the last frame that has come
    came: int = 0


class _Round(msgspec.Struct, eq=False):
    """A comparison that is under way."""

    pair: _Pair
    cursor: int
    late_at: float
    ticket: int = 0
    reports: int = 0
    report: int = 0  # the ticket of the last one
    ranges: tuple[FrameRange, ...] = ()
    next_cursor: int = 0
    more: bool = False
    reported_at: float = 0.0
    groups: list[_Group] = []  # those that are still to be asked for; the first one is asked for
    awaits: type = Ranges
    asked: bool = False  # for frames
    taken: int = 0
    is_partial: bool = False  # something must be compared again
    is_doubtful: bool = False  # the registry should be asked for its newest word


class _Allowance(msgspec.Struct):
    """How many bytes may still be taken of a publisher."""

    left: float
    at: float


class Comparisons:
    """The comparisons of a storage node."""

    def __init__(
        self,
        logs: dict[StreamPart, PartLog],
        disk: Disk,
        registry: Registry,
        verified: VerifiedFrames,
        retention: StoreRetention,
        take: TakeFrame,
    ) -> None:
        self._logs = logs
        self._disk = disk
        self._registry = registry
        self._verified = verified
        self._retention = retention
        self._take = take
        self._parts: Parts | None = None
        self._pairs: dict[NodeId, dict[StreamPart, _Pair]] = {}
        self._rounds: dict[NodeId, _Round] = {}
        self._leaders: dict[StreamPart, tuple[int, NodeId]] = {}
        self._allowances: dict[NodeId, _Allowance] = {}
        self._ticket = 0
        self.wakeup_at: float | None = None
        # What comparisons have brought, and what was not taken of it, by reason.
        self.counts = dict.fromkeys(("taken", "unpermitted", "old", "future", "too-much"), 0)

    def attach(self, parts: Parts) -> None:
        """Compare with the neighbours in these parts, too."""
        self._parts = parts

    def arm(self, now: float) -> None:
        """Begin to tick when there is a log, and end when there is none."""
        is_active = self._parts is not None and any(log.is_active for log in self._logs.values())
        if not is_active:
            self.wakeup_at = None
            self._pairs.clear()
            self._rounds.clear()
        elif self.wakeup_at is None:
            self.wakeup_at = now + TICK_S

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        pairs = sum(map(len, self._pairs.values()))
        return {
            "comparisons": (pairs, MAX_PAIRS),
            "comparisons under way": (len(self._rounds), MAX_ROUNDS),
            "publishers compared": (len(self._allowances), MAX_PUBLISHERS),
        }

    # --- When to compare ------------------------------------------------------------------

    def wake(self, now: float) -> list[Effect]:
        """Begin the comparisons that are due, and give up those without an answer."""
        assert self.wakeup_at is not None
        was_stopped = now >= self.wakeup_at + LATE_S
        self.wakeup_at = now + TICK_S
        for round_ in [each for each in self._rounds.values() if each.late_at <= now]:
            self._end(round_, now, failed=True, is_late=True)
        self._note_pairs(now)
        if was_stopped:
            for pair in self._every_pair():
                pair.due_at, pair.wait_s = now, EVERY_S
        effects: list[Effect] = []
        for peer in list(self._pairs):
            effects += self._begin(peer, now)
        return effects

    def link(self, peer: NodeId, up: bool) -> None:
        """Forget a node whose link has ended."""
        if not up:
            self._rounds.pop(peer, None)
            self._pairs.pop(peer, None)

    def _every_pair(self) -> Iterable[_Pair]:
        return (pair for pairs in self._pairs.values() for pair in pairs.values())

    def _note_pairs(self, now: float) -> None:
        """Bring the pairs up to date with the neighbours, and with the leaders."""
        assert self._parts is not None
        before, self._pairs = self._pairs, {}
        count = 0
        for part, log in self._logs.items():
            if not log.is_active:
                self._leaders.pop(part, None)
                continue
            is_new_leader = self._is_new_leader(log)
            state = self._parts.find(part)
            neighbours = state.overlay.neighbours(part) if state is not None else ()
            for peer in dict.fromkeys((*neighbours, *log.standing.fellows)):
                pair = before.get(peer, {}).get(part)
                if pair is None:
                    if count >= MAX_PAIRS:
                        continue
                    pair = _Pair(part, peer, now)
                elif is_new_leader:  # places may have been taken back: compare everything again
                    pair = _Pair(part, peer, now)
                self._pairs.setdefault(peer, {})[part] = pair
                count += 1
        for peer, round_ in list(self._rounds.items()):
            if self._pairs.get(peer, {}).get(round_.pair.part) is not round_.pair:
                del self._rounds[peer]

    def _is_new_leader(self, log: PartLog) -> bool:
        status = log.status()
        if status.primary is None:
            return False
        leader = (status.epoch, status.primary)
        before = self._leaders.get(log.part)
        self._leaders[log.part] = leader
        return before != leader

    def _begin(self, peer: NodeId, now: float) -> list[Effect]:
        """Begin the comparison with a node that has been due for longest."""
        if peer in self._rounds or len(self._rounds) >= MAX_ROUNDS:
            return []
        pairs = self._pairs.get(peer, {}).values()
        due = [pair for pair in pairs if pair.due_at <= now and not self._is_catching_up(pair, now)]
        if not due:
            return []
        pair = min(due, key=lambda each: each.due_at)
        round_ = self._rounds[peer] = _Round(pair, pair.cursor, now, groups=[])
        return [self._ask_ranges(round_, now)]

    def _is_catching_up(self, pair: _Pair, now: float) -> bool:
        """Tell whether the leader's log is likely to bring what others would be asked for."""
        log = self._logs.get(pair.part)
        if log is None or not log.is_active:
            return True  # the pair is forgotten at the next tick
        return now < pair.due_at + CATCH_UP_S and log.standing.is_behind(now)

    def _ask_ranges(self, round_: _Round, now: float) -> Effect:
        self._ticket += 1
        round_.ticket, round_.awaits, round_.late_at = self._ticket, Ranges, now + ANSWER_S
        after = number_of(max(0, int(self._oldest_s(now) * 1000)), 0)
        pair = round_.pair
        ask = AskRanges(ticket=self._ticket, part=pair.part, cursor=round_.cursor, after=after)
        return Send(pair.peer, ask)

    def _oldest_s(self, now: float) -> float:
        """Return before when nothing is taken any more: it is old, or was deleted for its age."""
        keep_ms = self._retention.keep_ms
        return now - (MAX_AGE_S if keep_ms is None else min(MAX_AGE_S, keep_ms / 1000))

    def _end(self, round_: _Round, now: float, failed: bool = False, is_late: bool = False) -> None:
        """Let some time pass until the next comparison with the node."""
        pair = round_.pair
        del self._rounds[pair.peer]
        is_first = pair.is_new and not failed
        pair.is_new = pair.is_new and failed
        if not failed and not round_.is_partial:
            pair.cursor = round_.cursor
        if round_.taken or is_first:
            pair.wait_s = EVERY_S
            pair.due_at = now + SOON_S
            return
        if is_late and pair.fails < MAX_FAILS:  # a packet may be lost
            pair.fails += 1
            pair.due_at = now + SOON_S
            return
        pair.fails = pair.fails if is_late else 0
        if failed or round_.asked:
            pair.wait_s = min(MAX_BACK_OFF_S, pair.wait_s * 2)
        elif round_.reports and not round_.ranges:
            pair.wait_s = min(IDLE_S, pair.wait_s * 2)
        else:
            pair.wait_s = EVERY_S
        pair.due_at = now + pair.wait_s

    # --- Answers --------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: Ranges | Lacking, now: float) -> list[Effect]:
        """Take an answer; one that comes too late is of no use."""
        round_ = self._rounds.get(sender)
        if round_ is None or round_.ticket != message.ticket or round_.awaits is not type(message):
            return []
        if message.problem:
            self._end(round_, now, failed=True)
            return self._begin(sender, now)
        if type(message) is Ranges:
            return self._heard_ranges(round_, message, now)
        assert type(message) is Lacking
        return self._heard_frames(round_, message, now)

    def _heard_ranges(self, round_: _Round, report: Ranges, now: float) -> list[Effect]:
        _check(report, round_.cursor)
        round_.reports += 1
        round_.report = report.ticket
        round_.ranges, round_.reported_at = report.ranges, now
        round_.next_cursor, round_.more = report.cursor, report.more
        if not report.ranges:
            return self._end_report(round_, now)
        spans = tuple((each.low, each.high, each.count + SPARE_NAMES) for each in report.ranges)
        round_.awaits, round_.late_at = NamesIn, now + REPORT_AGE_S
        query = NamesIn(round_.pair.part, spans)
        return [self._disk.find(query, partial(self._found, round_))]

    def _found(self, round_: _Round, answer: Answer, now: float) -> list[Effect]:
        """Hold the ranges against our own frames."""
        log = self._logs.get(round_.pair.part)
        if self._rounds.get(round_.pair.peer) is not round_ or round_.awaits is not NamesIn:
            return []
        is_late = now > round_.reported_at + REPORT_AGE_S
        if answer.problem or is_late or log is None or not log.is_active:
            self._end(round_, now, failed=True)
            return []
        pending = sorted(log.pending_names())
        floor = number_of(answer.floor_ms, 0) if self._retention.is_size_bound else 0
        joins = False  # an equal range lies between two groups: its frames are not asked for
        for claim, found in zip(round_.ranges, answer.names, strict=True):
            waiting = between(pending, claim.low, claim.high)
            ours = sorted({*found, *waiting}) if waiting else found
            if claim.high > floor and (len(ours), digest_of(ours)) != (claim.count, claim.digest):
                _add(round_.groups, claim, ours, floor, joins)
                joins = True
            else:
                joins = False
        if round_.groups and self._is_fetching(log.part):  # others may bring the same frames
            del self._rounds[round_.pair.peer]
            round_.pair.due_at = now + TICK_S
            return self._begin(round_.pair.peer, now)
        return self._ask_next(round_, now)

    def _is_fetching(self, part: StreamPart) -> bool:
        rounds = self._rounds.values()
        return any(each.awaits is Lacking and each.pair.part == part for each in rounds)

    def _ask_next(self, round_: _Round, now: float) -> list[Effect]:
        """Ask for the frames of the next group, or end the report."""
        if not round_.groups:
            return self._end_report(round_, now)
        if now > round_.reported_at + REPORT_AGE_S:
            round_.is_partial = True
            self._end(round_, now)
            return self._begin(round_.pair.peer, now)
        group, pair = round_.groups[0], round_.pair
        self._ticket += 1
        round_.ticket, round_.awaits, round_.late_at = self._ticket, Lacking, now + ANSWER_S
        round_.asked = True
        ask = AskLacking(
            ticket=self._ticket,
            part=pair.part,
            report=round_.report,
            low=group.low,
            high=group.high,
            names=b"".join(group.known),
            cursor=group.cursor,
        )
        return [Send(pair.peer, ask)]

    def _end_report(self, round_: _Round, now: float) -> list[Effect]:
        round_.cursor = round_.next_cursor
        if round_.more and round_.reports < MAX_REPORTS:
            return [self._ask_ranges(round_, now)]
        self._end(round_, now)
        return self._begin(round_.pair.peer, now)

    # --- Frames ---------------------------------------------------------------------------

    def _heard_frames(self, round_: _Round, page: Lacking, now: float) -> list[Effect]:
        part, group = round_.pair.part, round_.groups[0]
        log = self._logs.get(part)
        if log is None or not log.is_active:
            self._end(round_, now, failed=True)
            return []
        # All of the page is checked before any of it is taken: what was begun must be done.
        good = [frame for frame in page.frames if self._is_good(round_, group, log, frame, now)]
        is_short = not page.frames if page.more else group.came < group.required
        if is_short:
            raise RemoteError("unhonoured-claim", f"{group.claimed} frames of {part}")
        dropped, effects = self._disk.dropped, list[Effect]()
        for frame in good:
            effects += self._take(log, frame, now)
        dropped = self._disk.dropped - dropped
        round_.is_partial = round_.is_partial or dropped > 0  # there is no room for them now
        round_.taken += len(good) - dropped
        self.counts["taken"] += len(good) - dropped
        if round_.is_doubtful:
            round_.is_doubtful = False
            effects += self._registry.doubt(part.stream, now)
        if not page.more:
            del round_.groups[0]
        return effects + self._ask_next(round_, now)

    def _is_good(
        self, round_: _Round, group: _Group, log: PartLog, frame: bytes, now: float
    ) -> bool:
        """Tell whether a frame may be taken; RemoteError if it was not asked for, or is forged."""
        part = log.part
        head, named = frames.peek(frame), frames.name(frame)
        group.came += 1
        is_within = head.part == part_key(part) and group.low <= head.last <= group.high
        is_next = named > group.cursor and not _has(group.known, named)
        if not (is_within and is_next and group.came <= group.claimed):
            raise RemoteError("unasked-frame", str(part))
        group.cursor = named
        reason = "unpermitted"
        if self._registry.wrote(part.stream, head.publisher):
            if not self._verified.check(head, frame):
                raise RemoteError("forged", str(part))
            reason = self._problem_with(log, head, frame, now)
        if not reason:
            return True
        self.counts[reason] += 1
        # All but the old may be taken another time: a permission may be new, a clock may be wrong.
        round_.is_partial = round_.is_partial or reason != "old"
        round_.is_doubtful = round_.is_doubtful or reason == "unpermitted"
        return False

    def _problem_with(self, log: PartLog, head: FrameHead, frame: bytes, now: float) -> str:
        """Say why a signed frame is not taken.

        Nobody can tell when it was signed. A publisher that may publish now could say the same
        today; one that may not, must not add to the past with the help of another node.
        """
        if not self._registry.permits(log.part, head.publisher, now):
            return "unpermitted"
        at_s = (head.last >> SEQUENCE_BITS) / 1000
        if at_s > now + MAX_SKEW_S:
            return "future"
        if at_s < self._oldest_s(now):
            return "old"
        return "" if self._allows(head.publisher, len(frame), now) else "too-much"

    def _allows(self, publisher: NodeId, size: int, now: float) -> bool:
        allowance = self._allowances.pop(publisher, None) or _Allowance(PUBLISHER_BYTES, now)
        self._allowances[publisher] = allowance
        if len(self._allowances) > MAX_PUBLISHERS:
            del self._allowances[next(iter(self._allowances))]
        earned = (now - allowance.at) * PUBLISHER_BYTES_PER_S
        allowance.left, allowance.at = min(PUBLISHER_BYTES, allowance.left + earned), now
        if allowance.left < size:
            return False
        allowance.left -= size
        return True


def _check(report: Ranges, cursor: int) -> None:
    """RemoteError if a report is none."""
    before, count = -1, 0
    for each in report.ranges:
        if not before < each.low <= each.high:
            raise RemoteError("wrong-ranges", "they overlap")
        before = each.high
        count += each.count
    goes_on = report.cursor > cursor if report.ranges or report.more else report.cursor >= cursor
    if count > MAX_REPORT_FRAMES or not goes_on:
        raise RemoteError("wrong-ranges", f"{count} frames, cursor {report.cursor}")


def _add(
    groups: list[_Group], claim: FrameRange, ours: Names, floor: int, joins: bool = True
) -> None:
    """Add a range that differs to those that are asked for; it may join the one before it."""
    is_cut = claim.low <= floor or len(ours) >= claim.count + SPARE_NAMES
    required = 0 if is_cut else max(0, claim.count - len(ours))
    known = list(ours[:MAX_NAMED])
    last = groups[-1] if groups and joins else None
    if last is not None and last.claimed + claim.count <= MAX_NAMED >= len(last.known) + len(known):
        last.high, last.claimed = claim.high, last.claimed + claim.count
        last.required += required
        last.known += known
        return
    low = max(claim.low, floor + 1)
    groups.append(_Group(low, claim.high, claim.count, required, known))


def _has(names: Sequence[bytes], named: bytes) -> bool:
    at = bisect_left(names, named)
    return at < len(names) and names[at] == named
