"""Recovery of a log that a disk has forgotten, and the questions of a node that has started.

A node that starts asks all other storage nodes of the stream how their logs stand, and for its own
newest mark. Before that it does not vote: a restored copy of its folder has an old log and an old
record, which agree. Its own mark proves what it once had.

A node whose log is below its record, or below its own mark, is *recovering*. If there is a primary
it follows that one as always (log_following.py). If there is none, it copies the log of the storage
node that has most, whether or not that one is recovering itself. A copy of a whole log is stamped
as the other log is: what holds of that log holds of its copy. So the log that ranks highest among
the nodes that live comes to all of them, and nothing that one of them still has is lost.

Where no living node has enough, an operator can accept the loss. Then the log is taken as it is,
but not before the others were asked, and all that they have was copied.

After `storage --restored` the node's own record is not enough. A majority of the other storage
nodes must say how their logs stand. Every majority that has settled something, or elected a
primary, has a member among these. So their highest rank has all that was settled, and their highest
epoch is not below any epoch in which this node has elected a primary. It may have voted in an
election that is not decided yet; candidates give up after QUIET_S at the latest, and it waits for
so long.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.ids import FrameHead, NodeId, PartKey, part_key
from anabranch.core.log_comparison import Comparison, read_heads
from anabranch.core.log_following import MAX_LENGTH, CheckPage, End, Staged
from anabranch.core.log_marks import Marks
from anabranch.core.log_standing import MAX_LEAP, Standing
from anabranch.core.machine import Effect, Notice, Send, Sizes
from anabranch.core.messages import AskEntries, AskRank, Entries, Fetched, Ranked
from anabranch.core.messages.storage import MAX_EPOCH, MAX_MARKS, MAX_NUMBER, Entry
from anabranch.core.storage_disk import Look
from anabranch.core.store import (
    NOBODY,
    AcceptLoss,
    Adopt,
    Answer,
    Copy,
    Doubt,
    ForRecord,
    HashAt,
    LogWrite,
    Loss,
    Owe,
    Placed,
    Rank,
    Restart,
    Truncate,
    hash_after,
)

ASK_S = 1.5  # how long a node that has started waits for those that are not linked
ANSWER_S = 5.0  # how long for those that are linked, and do not answer
AGAIN_S = 0.5  # after a question without an answer
ENTRIES_S = 1.0  # how long entries are waited for
FAILED_S = 3.0  # how long a node is left alone that did not give what it has
MAX_FAILURES = 3  # after which its claim does not count
QUIET_S = 5.0  # how long a node that was restored waits at least; candidates give up before
POLL_S = 2.0  # how often the others are asked while nobody has more
FIRST_TICKET = 1 << 40  # those of repairs (storage_repair.py) are lower

RECOVERING = (
    "the disk has forgotten a part of the log that this node had acknowledged: it is copied from "
    "the other storage nodes, and this node does not vote until then"
)
WHOLE = "the log has everything again that it once had"
ACCEPTED = "what the log had from offset {} on, up to {}, is given up: it goes on without that"


class Lost(msgspec.Struct, frozen=True):
    """What a recovering log lacks: offsets up to `end`, as far as that is known."""

    start: int
    end: int
    is_known: bool  # False: other storage nodes must say first how far it had come
    is_waiting: bool  # no living storage node has more


class _Copying(msgspec.Struct):
    """A log that is being copied."""

    source: NodeId
    told: Ranked  # how the other log stood
    ticket: int
    asked_at: float
    from_settled: bool  # the logs are compared from what is settled on


class Recovery:
    """Finds out what a log lacks, and copies it where nobody leads."""

    def __init__(self, standing: Standing, find: Look, check: CheckPage, marks: Marks) -> None:
        self._standing = standing
        self._find = find
        self._check = check
        self._marks = marks
        self._key: PartKey = part_key(standing.part)
        self._epoch = standing.state.epoch  # promised when this node started
        self._since: float | None = None  # the others are asked
        self._told: dict[NodeId, Ranked] = {}
        self._asked_at: dict[NodeId, float] = {}
        self._failed: dict[NodeId, float] = {}  # of no use, until then
        self._failures: dict[NodeId, int] = {}  # how often, one after the other
        self._copying: _Copying | None = None
        self._staged: Staged | None = None
        self._is_saving = False
        self._ticket = FIRST_TICKET
        self._for_record: list[ForRecord] = []
        self._is_noticed = False
        self.accepts = False  # an operator accepts the loss
        self._has_accepted = False
        self._is_writing = False  # to the record
        self.at: float | None = None

    # --- Questions ------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Begin to ask; do so once."""
        if self._since is not None:
            return []
        self._since = now
        if self._standing.is_doubted:
            self._for_record.append(Doubt(self._standing.part))
        return self._ask_all(now)

    def change_members(self) -> None:
        """Forget what was learned of nodes that store the stream no more."""
        members = self._standing.members
        self._told = {node: told for node, told in self._told.items() if node in members}
        self._asked_at = {node: at for node, at in self._asked_at.items() if node in members}
        self._failures = {node: n for node, n in self._failures.items() if node in members}

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        known = max(len(self._told), len(self._asked_at), len(self._failures))
        return {"storage nodes asked for their ranks": (known, MAX_MARKS)}

    def stop(self) -> None:
        """Ask nobody any more."""
        self._copying = self._staged = self.at = None

    def link(self, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Ask a node as soon as it is linked."""
        if not up:
            self._asked_at.pop(peer, None)
            if self._copying is not None and self._copying.source == peer:
                self._copying = None
            return []
        return self._ask(peer, now)

    def _ask_all(self, now: float) -> list[Effect]:
        return [effect for node in self._standing.fellows for effect in self._ask(node, now)]

    def _ask(self, node: NodeId, now: float) -> list[Effect]:
        self._asked_at[node] = now
        self._arm(now + AGAIN_S)
        return [Send(node, AskRank(self._standing.part))]

    def _arm(self, at: float) -> None:
        self.at = at if self.at is None else min(self.at, at)

    def answer(self, sender: NodeId, now: float) -> list[Effect]:
        """Tell another node how our log stands, and its newest mark."""
        standing, state = self._standing, self._standing.state
        mark = self._marks.of(sender)
        rank = (state.log_epoch, state.start, state.length, state.hash)
        is_whole = not standing.is_recovering
        answer = Send(sender, Ranked(standing.part, standing.epoch, *rank, is_whole, mark))
        # It may not have known of our link when we asked it.
        is_asking = self._since is not None and sender not in self._told
        return [answer, *(self._ask(sender, now) if is_asking else ())]

    def take(self, sender: NodeId, answer: Ranked, now: float) -> list[Effect]:
        """Take the answer of another node."""
        standing = self._standing
        if answer.epoch > standing.epoch + MAX_LEAP:
            return []
        if answer.mark is not None:
            if answer.mark.node != standing.me:
                raise RemoteError("mark", "of another node")
            self._marks.take((answer.mark,))
            self._remember(answer.mark.epoch, answer.mark.length)
        self._told[sender] = answer
        return self._go_on(now)

    def _remember(self, epoch: int, length: int) -> None:
        """Learn from our own mark how far our log had come.

        A log is cut only after a later epoch was promised, and the record has that promise. So what
        was signed before that says nothing against us.
        """
        standing = self._standing
        if self._epoch > epoch:
            return
        if epoch > standing.epoch:
            standing.promise(epoch, NOBODY)
        self._claim((epoch, length))

    def _claim(self, rank: Rank) -> None:
        standing = self._standing
        if rank <= max(standing.rank, standing.owed):
            return
        standing.claimed = rank
        standing.step_down()
        self._for_record.append(Owe(standing.part, rank))

    def may_vote(self, candidate: NodeId, now: float) -> bool:
        """Tell whether we know enough of ourselves to vote for a node, or to stand."""
        standing = self._standing
        if standing.is_recovering or self._since is None:
            return False
        if all(node in self._told for node in standing.members if node != standing.me):
            return True
        wait_s = ASK_S if all(node in self._told for node in standing.fellows) else ANSWER_S
        return now >= self._since + wait_s and (candidate == standing.me or candidate in self._told)

    # --- What is lacking ------------------------------------------------------------------

    @property
    def lost(self) -> Lost | None:
        """What the log lacks; None: nothing."""
        standing, state = self._standing, self._standing.state
        if not standing.is_recovering:
            return None
        log_epoch, length = standing.owed
        start = state.length if state.log_epoch == log_epoch else standing.high
        end = max(length, start)
        is_known = not (state.is_restored or standing.is_doubted or standing.is_contradicted)
        return Lost(start, end, is_known, self._best() is None and standing.primary is None)

    def accept(self, now: float) -> list[Effect]:
        """Take the log as it is, once nobody has more of it."""
        if not self._standing.is_recovering:
            return []
        self.accepts = True
        return self._ask_all(now) + self._go_on(now)

    def writes(self) -> list[ForRecord]:
        """Return what is to be written to the record."""
        writes, self._for_record = self._for_record, []
        self._is_writing |= bool(writes)
        return writes

    def unwritten(self, writes: list[ForRecord]) -> None:
        """What was to be written to the record was not."""
        self._for_record = writes + self._for_record
        self._is_writing = False

    def wrote_record(self, writes: list[ForRecord]) -> list[Effect]:
        """The record has what was written to it."""
        effects: list[Effect] = []
        self._is_writing = False
        for write in writes:
            if type(write) is AcceptLoss or (type(write) is Owe and write.by_majority):
                self._standing.is_doubted = False
            if type(write) is AcceptLoss:
                self._standing.claimed, self._has_accepted = (0, 0), True
                hint = ACCEPTED.format(write.loss.start, write.loss.end)
                effects.append(Notice(self._standing.part, "loss-accepted", hint))
        return effects

    # --- Time -----------------------------------------------------------------------------

    def wake(self, now: float) -> list[Effect]:
        """Ask again where there was no answer; while something lacks, ask all again."""
        self.at = None
        standing, copying = self._standing, self._copying
        self._failed = {node: until for node, until in self._failed.items() if until > now}
        if copying is not None and now >= copying.asked_at + ENTRIES_S:
            self._fail(copying, now)
        effects: list[Effect] = []
        wait_s = POLL_S if standing.is_recovering else AGAIN_S
        for node in standing.fellows:
            due_at = self._asked_at.get(node, 0.0) + wait_s
            if not standing.is_recovering and node in self._told:
                continue
            if now >= due_at:
                effects += self._ask(node, now)
            else:
                self._arm(due_at)
        effects += self._go_on(now)
        return effects

    def tend(self, now: float) -> list[Effect]:
        """Say when recovery begins and ends, and keep the timer."""
        standing = self._standing
        is_recovering = standing.is_recovering
        if is_recovering and self.at is None:
            self.at = now + AGAIN_S
        if is_recovering == self._is_noticed:
            return []
        self._is_noticed = is_recovering
        if is_recovering:
            return [Notice(standing.part, "recovering", RECOVERING)]
        self._copying, self.accepts = None, False
        if self._has_accepted:
            self._has_accepted = False
            return []
        return [Notice(standing.part, "recovered", WHOLE)]

    def _go_on(self, now: float) -> list[Effect]:
        """Do the next step of recovery."""
        standing = self._standing
        if not standing.is_recovering or self._since is None:
            return []
        if self._is_writing or self._for_record:
            return []
        if standing.state.is_restored or standing.is_doubted:
            self._hear_majority(now)
        is_busy = self._copying is not None or self._staged is not None or self._is_saving
        if is_busy or standing.primary is not None:
            return []
        source = self._best()
        if source is not None:
            return self._begin(source, now)
        if self.accepts:
            self._accept(now)
        return []

    def _hear_majority(self, now: float) -> None:
        """Learn from a majority of the others how far the log must come."""
        standing = self._standing
        others = [node for node in standing.members if node != standing.me]
        whole = [told for node, told in self._told.items() if node in others and told.is_whole]
        if not others or len(whole) <= len(others) // 2:
            return
        if self._since is None or now < self._since + QUIET_S:
            return
        epoch = max(told.epoch for told in whole)
        if epoch > standing.epoch:
            standing.promise(epoch, NOBODY)
        rank = max((told.log_epoch, told.length) for told in whole)
        standing.claimed = max(standing.claimed, rank)
        self._for_record.append(Owe(standing.part, standing.claimed, True))

    def _accept(self, now: float) -> None:
        """Give up what nobody has, after all that are linked were asked."""
        standing = self._standing
        if self._since is None:
            return
        is_early = len(standing.members) > 1 and now < self._since + QUIET_S
        is_unknown = any(node not in self._told for node in standing.fellows)
        # One that is busy is asked again; one that claims what it does not have decides nothing.
        is_unknown |= any(self._failures.get(node, 0) < MAX_FAILURES for node in self._failed)
        lost = self.lost
        if is_early or is_unknown or lost is None:
            return
        loss = Loss(lost.start, lost.end, int(now * 1000))
        # What this node has signed in epochs before this one is void.
        standing.promise(standing.epoch + 1, NOBODY)
        self._epoch = standing.epoch
        self._for_record.append(AcceptLoss(standing.part, loss))

    # --- Copying where nobody leads -------------------------------------------------------

    def _best(self) -> NodeId | None:
        """Return the linked node whose log ranks highest, if it ranks above ours."""
        standing = self._standing
        best, source = standing.rank, None
        for node in standing.fellows:
            told = self._told.get(node)
            if told is None or node in self._failed:
                continue
            if (told.log_epoch, told.length) > best:
                best, source = (told.log_epoch, told.length), node
        return source

    def _begin(self, source: NodeId, now: float) -> list[Effect]:
        """Go on towards the log of another node, from where ours ends if that can be."""
        state, told = self._standing.state, self._told[source]
        self._ticket += 1
        self._copying = _Copying(source, told, self._ticket, now, False)
        self._arm(now + ENTRIES_S)
        if self._end == (told.length, told.hash):
            self._stage([], [], self._end, [])
            return []
        if told.start > state.length:
            return self._ask_entries(self._copying, told.start)
        if told.length > state.length:
            return self._ask_entries(self._copying, state.length)
        return self._look_at_end(self._copying)

    def _look_at_end(self, copying: _Copying) -> list[Effect]:
        """Look whether the other log is a beginning of ours, which is longer."""
        query = HashAt(self._standing.part, copying.told.length)
        return [self._find(query, partial(self._found_end, copying, self._end))]

    def _found_end(self, copying: _Copying, end: End, answer: Answer, now: float) -> list[Effect]:
        if self._copying is not copying or self._end != end:
            return []
        told = copying.told
        if answer.hash == told.hash and told.length >= self._standing.high:
            self._cut(told.length, told.hash, [], [])
            return []
        return self._ask_from_settled(copying)

    def _ask_from_settled(self, copying: _Copying) -> list[Effect]:
        copying.from_settled = True
        told = copying.told
        start = max(told.start, min(self._standing.high, told.length))
        return self._ask_entries(copying, start)

    def _ask_entries(self, copying: _Copying, start: int) -> list[Effect]:
        ask = AskEntries(copying.ticket, self._standing.part, start, copying.told.length)
        return [Send(copying.source, ask)]

    def awaits(self, sender: NodeId, answer: Entries) -> bool:
        """Tell whether entries are the answer to a question of ours."""
        copying = self._copying
        return copying is not None and (copying.source, copying.ticket) == (sender, answer.ticket)

    def take_entries(self, answer: Entries, now: float) -> list[Effect]:
        """Take verified entries of the log that is copied."""
        copying, state = self._copying, self._standing.state
        if copying is None or self._staged is not None or self._is_saving:
            return []
        page = Fetched(
            answer.part, MAX_EPOCH, MAX_NUMBER, 0, answer.offset, answer.hash, False, answer.entries
        )
        heads = read_heads(page, self._key)
        if page.offset + sum(head.count for head in heads) > MAX_LENGTH:
            raise RemoteError("wrong-page", "a log of such a length")
        if not page.entries or not self._check(page, heads):
            return self._give_up(copying, now)
        copying.asked_at = now
        self._failures.pop(copying.source, None)
        if (page.offset, page.hash) == self._end:
            self._stage(page.entries, heads, self._end, [])
            return []
        if page.offset > state.length:
            restart = Restart(state.part, page.offset, page.hash)
            self._stage(page.entries, heads, (page.offset, page.hash), [restart])
            return []
        if not copying.from_settled:
            return self._ask_from_settled(copying)
        comparison = Comparison(page, heads, state.length, state.missing)
        return self._compare(copying, comparison, self._end, now)

    def _give_up(self, copying: _Copying, now: float) -> list[Effect]:
        """Leave a node alone that is of no use, until all are asked again."""
        self._fail(copying, now)
        return self._go_on(now)

    def _fail(self, copying: _Copying, now: float) -> None:
        source = copying.source
        self._failed[source] = now + FAILED_S
        self._failures[source] = self._failures.get(source, 0) + 1
        self._copying = None

    def _compare(
        self, copying: _Copying, comparison: Comparison, end: End, now: float
    ) -> list[Effect]:
        if comparison.question is None:
            return self._compared(copying, comparison, now)
        query = HashAt(self._standing.part, comparison.question)
        return [self._find(query, partial(self._found, copying, comparison, end))]

    def _found(
        self, copying: _Copying, comparison: Comparison, end: End, answer: Answer, now: float
    ) -> list[Effect]:
        if self._copying is not copying or self._end != end or answer.problem:
            return []  # it begins anew in a while
        comparison.tell(answer.hash)
        return self._compare(copying, comparison, end, now)

    def _compared(self, copying: _Copying, comparison: Comparison, now: float) -> list[Effect]:
        """Replace what is different, which is not settled."""
        page, heads, same = comparison.page, comparison.heads, comparison.same
        high = self._standing.high
        if same < 0:
            effects = self._marks.disagree(copying.source, now) if page.offset <= high else []
            return effects + self._give_up(copying, now)
        offset, hashed = comparison.ends[same]
        is_same = same == len(page.entries) and offset < copying.told.length
        if is_same or (comparison.ends_in_hole and page.offset < offset):
            return self._ask_entries(copying, offset)
        if offset < high:
            return self._marks.disagree(copying.source, now) + self._give_up(copying, now)
        self._cut(offset, hashed, page.entries[same:], heads[same:])
        return []

    # --- Writing --------------------------------------------------------------------------

    @property
    def _end(self) -> End:
        return self._standing.state.length, self._standing.state.hash

    def _cut(
        self,
        offset: int,
        hashed: bytes,
        entries: Sequence[Entry],
        heads: Sequence[FrameHead],
    ) -> None:
        writes: list[LogWrite] = []
        if offset < self._standing.state.length:
            writes.append(Truncate(self._standing.part, offset))
        self._stage(entries, heads, (offset, hashed), writes)

    def _stage(
        self,
        entries: Sequence[Entry],
        heads: Sequence[FrameHead],
        end: End,
        writes: list[LogWrite],
    ) -> None:
        """Put entries at a place of our log; stamp it when all of the other log is there."""
        standing, copying = self._standing, self._copying
        assert copying is not None
        cut = end[0] if writes else None
        if entries:
            writes.append(Copy(standing.part, end[0], tuple(entries)))
        placed: list[tuple[Placed, FrameHead]] = []
        offset, hashed = end
        for entry, head in zip(entries, heads, strict=True):
            placed.append((Placed(offset, entry), head))
            hashed = hash_after(hashed, offset, entry)
            offset += head.count
        told = copying.told
        is_whole = (offset, hashed) == (told.length, told.hash)
        if is_whole and told.log_epoch != standing.state.log_epoch:
            writes.append(Adopt(standing.part, told.log_epoch))
        self._copying = None
        if writes:
            self._staged = Staged(standing.epoch, self._end, tuple(writes), tuple(placed), cut)

    def unstage(self) -> Staged | None:
        """Hand over what is to be written, unless our log has changed or somebody leads."""
        staged, self._staged = self._staged, None
        standing = self._standing
        if staged is None or staged.base != self._end or not standing.is_recovering:
            return None
        if standing.primary is not None:
            return None
        self._is_saving = True
        return staged

    def wrote(self, now: float) -> list[Effect]:
        """A copy is on the disk: go on."""
        self._is_saving = False
        return self._go_on(now)

    def failed(self, now: float) -> None:
        """A copy could not be written: begin anew in a while."""
        self._is_saving = False
        self._told = {}
        self.at = now + AGAIN_S
