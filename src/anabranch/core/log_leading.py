"""The primary's side of a part's log: it sends its log to the followers, and settles it.

A follower says how far its log goes, on its disk. What a majority has so, the primary among them,
is settled: that mark goes with everything the followers are sent.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import NodeId
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import Fetch, Fetched, Lead, Voted
from anabranch.core.messages.storage import (
    MAX_PAGE_FRAMES,
    PAGE_BYTES,
    Entry,
    Selection,
)
from anabranch.core.storage_disk import Look
from anabranch.core.store import NOBODY, Answer, HashAt, Page, Placed, hash_after

AGAIN_S = 1.0
MAX_FRESH_BYTES = PAGE_BYTES  # of entries that are in memory until all followers have them


class _Follower(msgspec.Struct):
    """What is known of a follower in this epoch."""

    offset: int = -1  # up to here its log is ours; -1: that is not known
    hash: bytes = b""
    durable: int = -1  # up to here it counts
    busy_since: float | None = None  # something is under way to it, or looked up for it
    turn: int = 0  # of its questions: what is found for an earlier one comes too late


class _Fresh(msgspec.Struct):
    """An entry that has just got its place."""

    hash: bytes  # of the log before it
    entry: Entry


class Leading:
    """Serves the followers while we are the primary."""

    def __init__(self, standing: Standing, find: Look) -> None:
        self._standing = standing
        self._find = find
        self._epoch = 0  # in which what follows was learned
        self._followers: dict[NodeId, _Follower] = {}
        self._fresh: OrderedDict[int, _Fresh] = OrderedDict()  # by offset, without a hole
        self._fresh_bytes = 0
        self.at: float | None = None  # when to say again what may have been lost
        self.is_damaged = False  # something was found so, for who repairs it

    # --- The beginning, and links ---------------------------------------------------------

    def lead(self, now: float) -> list[Effect]:
        """Begin to lead, once our disk says that we do."""
        standing = self._standing
        if not standing.leads or self._epoch == standing.epoch:
            return []
        self._epoch = standing.epoch
        self._followers = {node: _Follower() for node in standing.members if node != standing.me}
        self._drop_fresh(len(self._fresh))
        self.at = now + AGAIN_S
        return [self._announcement(node) for node in standing.fellows]

    def link(self, peer: NodeId, up: bool) -> list[Effect]:
        """Tell who is linked with us again that we lead."""
        follower = self._followers.get(peer)
        if follower is None or not self._standing.leads:
            return []
        follower.offset, follower.busy_since = -1, None
        return [self._announcement(peer)] if up else []

    def change_members(self) -> None:
        """Count and serve those who are storage nodes now."""
        standing = self._standing
        others = [node for node in standing.members if node != standing.me]
        self._followers = {node: self._followers.get(node) or _Follower() for node in others}

    def wake(self, now: float) -> list[Effect]:
        """Say again what may have been lost."""
        standing = self._standing
        self.at = now + AGAIN_S if standing.is_primary else None
        effects: list[Effect] = []
        for node in standing.fellows if standing.leads else ():
            follower = self._followers[node]
            late = follower.busy_since is not None and now >= follower.busy_since + AGAIN_S
            if follower.offset < 0 and (late or follower.busy_since is None):
                effects.append(self._announcement(node))
            elif late:
                effects += self._send(node, now)
        return effects

    def _announcement(self, node: NodeId) -> Effect:
        standing = self._standing
        return Send(node, Lead(standing.part, standing.epoch, standing.begin))

    # --- New entries ----------------------------------------------------------------------

    def placed(self, placed: Sequence[Placed], before: bytes, now: float) -> list[Effect]:
        """Send on what has just got a place at the end of our log, whose hash was `before`."""
        standing = self._standing
        if not standing.leads:
            return []
        for row in placed:
            assert row.offset is not None
            self._fresh[row.offset] = _Fresh(before, row.entry)
            self._fresh_bytes += len(row.entry.frame)
            before = hash_after(before, row.offset, row.entry)
        while self._fresh and (self._fresh_bytes > MAX_FRESH_BYTES or not standing.fellows):
            self._drop_fresh(1)
        settled = self.settle()
        return self._send_all(now) if placed or settled else []

    def settle(self) -> bool:
        """Settle what a majority has; tell whether the mark has moved."""
        standing = self._standing
        if not standing.leads:
            return False
        held = [standing.state.length, *(each.durable for each in self._followers.values())]
        mark = sorted(held, reverse=True)[standing.majority - 1]
        if mark <= standing.high:
            return False
        standing.high = mark
        return True

    def _send_all(self, now: float) -> list[Effect]:
        """Send what is new to those for whom nothing is under way."""
        effects: list[Effect] = []
        for node in self._standing.fellows:
            follower = self._followers[node]
            if follower.offset >= 0 and follower.busy_since is None:
                effects += self._send(node, now)
        return effects

    def _drop_fresh(self, count: int) -> None:
        for _ in range(count):
            self._fresh_bytes -= len(self._fresh.popitem(last=False)[1].entry.frame)

    # --- Questions ------------------------------------------------------------------------

    def fetch(self, sender: NodeId, fetch: Fetch, now: float) -> list[Effect]:
        """Answer a follower; who follows somebody else than the primary is told so."""
        standing = self._standing
        if fetch.epoch > standing.epoch:
            standing.promise(fetch.epoch, NOBODY)
        if not standing.leads:
            if standing.is_primary:
                return []  # we shall say so when it is on the disk
            return [Send(sender, Voted(standing.part, standing.epoch, False, True))]
        if fetch.epoch < standing.epoch:
            return [self._announcement(sender)]
        follower = self._followers[sender]
        if self._is_under_way(follower, fetch, now):
            return []
        follower.turn += 1
        follower.busy_since = now
        if not fetch.log_epoch:  # its disk has forgotten what it said
            follower.durable = -1
        return self._look(sender, fetch, fetch.offset, now)

    def _is_under_way(self, follower: _Follower, fetch: Fetch, now: float) -> bool:
        """Tell whether a question met its answer on the way: it was idle, and an entry was new."""
        since = follower.busy_since
        is_asked = (fetch.offset, fetch.hash) == (follower.offset, follower.hash)
        return is_asked and since is not None and now < since + AGAIN_S

    def _look(self, sender: NodeId, fetch: Fetch, offset: int, now: float) -> list[Effect]:
        """Look our log's hash up where a follower's ends, or else where it is settled."""
        state = self._standing.state
        turn = (self._epoch, self._followers[sender].turn)
        known = state.hash if offset == state.length else self._fresh_hash(offset)
        if known is None and state.start <= offset < state.length:
            then = partial(self._found_hash, sender, turn, fetch, offset)
            return [self._find(HashAt(state.part, offset), then)]
        return self._compare(sender, fetch, offset, known or b"", now)

    def _found_hash(
        self,
        sender: NodeId,
        turn: tuple[int, int],
        fetch: Fetch,
        offset: int,
        answer: Answer,
        now: float,
    ) -> list[Effect]:
        if not self._is_current(sender, turn) or answer.problem:
            return []
        return self._compare(sender, fetch, offset, answer.hash, now)

    def _compare(
        self, sender: NodeId, fetch: Fetch, offset: int, known: bytes, now: float
    ) -> list[Effect]:
        """Go on where a follower's log is ours; or from what it has settled."""
        standing, follower = self._standing, self._followers[sender]
        if offset == fetch.offset and known == fetch.hash:
            follower.offset, follower.hash = offset, known
            standing.disagrees.pop(sender, None)
            # What a log has that is not stamped with this epoch may yet be taken back by a primary
            # whose log is stamped as late as that one.
            if offset >= standing.begin and fetch.log_epoch == standing.epoch:
                follower.durable = max(follower.durable, offset)
            self._forget_fresh()
            others = self._send_all(now) if self.settle() else []
            return self._send(sender, now) + others
        follower.offset = -1
        state = standing.state
        settled = max(state.start, min(fetch.high, state.length))
        if offset == fetch.offset and offset != settled:
            return self._look(sender, fetch, settled, now)
        return self._read(sender, offset, known, now) if known else []

    def _is_current(self, sender: NodeId, turn: tuple[int, int]) -> bool:
        follower = self._followers.get(sender)
        current = follower is not None and turn == (self._standing.epoch, follower.turn)
        return current and self._standing.leads

    # --- Answers --------------------------------------------------------------------------

    def _send(self, node: NodeId, now: float) -> list[Effect]:
        """Send what follows where a follower stands."""
        follower, state = self._followers[node], self._standing.state
        if follower.offset == state.length:
            follower.busy_since = None
            return [self._page(node, follower.offset, follower.hash, ())]
        follower.busy_since = now
        if self._fresh_hash(follower.offset) is None:
            return self._read(node, follower.offset, follower.hash, now)
        entries: list[Entry] = []
        size = 0
        for offset, fresh in self._fresh.items():
            if offset >= follower.offset:
                size += len(fresh.entry.frame)
                if entries and (size > PAGE_BYTES or len(entries) >= MAX_PAGE_FRAMES):
                    break
                entries.append(fresh.entry)
        return [self._page(node, follower.offset, follower.hash, entries)]

    def _read(self, node: NodeId, offset: int, hashed: bytes, now: float) -> list[Effect]:
        """Read a page of our log for a follower."""
        state = self._standing.state
        self._followers[node].busy_since = now
        query = Page(state.part, Selection(start=offset), state.length, PAGE_BYTES)
        turn = (self._epoch, self._followers[node].turn)
        return [self._find(query, partial(self._found_page, node, turn, offset, hashed))]

    def _found_page(
        self,
        node: NodeId,
        turn: tuple[int, int],
        offset: int,
        hashed: bytes,
        answer: Answer,
        now: float,
    ) -> list[Effect]:
        if not self._is_current(node, turn) or answer.problem:
            return []
        self.is_damaged |= bool(answer.missing)
        rows = answer.placed
        if rows and rows[0].offset != offset and not answer.missing:
            return self._start_later(node, turn, rows[0].offset or 0)
        entries: list[Entry] = []
        at = offset
        for row in rows:
            if row.offset != at:
                break  # what is damaged is missing here
            entries.append(row.entry)
            at += peek(row.entry.frame).count
        state = self._standing.state
        if not entries and offset < state.length:
            return []  # until it is repaired
        return [self._page(node, offset, hashed, entries, starts_here=offset == state.start)]

    def _start_later(self, node: NodeId, turn: tuple[int, int], start: int) -> list[Effect]:
        """Our log begins only here by now: let the follower begin here too."""
        then = partial(self._found_start, node, turn, start)
        return [self._find(HashAt(self._standing.part, start), then)]

    def _found_start(
        self, node: NodeId, turn: tuple[int, int], start: int, answer: Answer, now: float
    ) -> list[Effect]:
        if not self._is_current(node, turn) or not answer.hash:
            return []
        return [self._page(node, start, answer.hash, (), starts_here=True)]

    def _page(
        self,
        node: NodeId,
        offset: int,
        hashed: bytes,
        entries: Sequence[Entry],
        starts_here: bool = False,
    ) -> Effect:
        standing = self._standing
        return Send(
            node,
            Fetched(
                standing.part,
                standing.epoch,
                standing.begin,
                standing.high,
                offset,
                hashed,
                starts_here,
                tuple(entries),
            ),
        )

    # --- What is in memory ----------------------------------------------------------------

    def _fresh_hash(self, offset: int) -> bytes | None:
        """Return the log's hash before an entry that is in memory."""
        fresh = self._fresh.get(offset)
        return None if fresh is None else fresh.hash

    def _forget_fresh(self) -> None:
        """Forget what all followers have who are linked with us."""
        offsets = [self._followers[node].offset for node in self._standing.fellows]
        reached = min((offset for offset in offsets if offset >= 0), default=0)
        while self._fresh and next(iter(self._fresh)) < reached:
            self._drop_fresh(1)
