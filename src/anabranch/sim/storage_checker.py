"""Watches a run that stores its streams.

Safety, at every step: what storage nodes take for settled is the same at all of them; a reader
gets the messages of each chain in order, and hears of a gap wherever one is; it is not told of a
gap that a storage node within its reach could have filled. In the end: all logs are the same and
hold whatever was acknowledged, at the offset that was signed; every frame that lies behind a newer
one of its chain is marked late, and every gap is recorded; nothing waits for its place, or at its
publisher for storage; and who reads it all from the beginning, or the last of it, gets that,
complete and in order.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import cycle

from anabranch.core.frames import peek
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart, part_key, show
from anabranch.core.machine import Deliver, HistoryEnded, Missed, Notice, Receipt
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import LATE, MAX_NUMBER, Selection
from anabranch.core.peer import Peer
from anabranch.core.store import HashAt, LogState, Page, Placed
from anabranch.sim.checkers import Checker
from anabranch.sim.history_checker import HistoryChecker
from anabranch.sim.network import SimNode, ToReader
from anabranch.sim.stored_cluster import StoredCluster
from anabranch.sim.stored_in_time import StoredInTime

KEPT_MARKS = 64  # high marks of a part at which logs are compared
WITHIN_REACH_S = 12.0  # a storage node that has been there for so long could have been asked

# In the end one node reads all in the order of numbers, the next in that of the log, and so on.
READS = (Selection(by_number=True), Selection(), Selection(last=20))

Chain = tuple[PartKey, ChainKey]
Name = tuple[ChainKey, int]  # of a frame: its chain and its last number


def mark_after(newest: int, previous: int) -> int:
    """Return the mark of a frame whose chain has this newest number in the log before it."""
    if previous < newest:
        return LATE
    return newest + 1 if previous > newest else 0


class StorageChecker(Checker):
    """Keeps the books of storage nodes and of readers in order."""

    def __init__(self, cluster: StoredCluster, overlay: str) -> None:
        super().__init__(cluster, overlay)
        self._stored = cluster
        self.acknowledged: dict[tuple[NodeId, bytes], int] = {}  # node, SHA-256: signed offset
        self.receipts = 0
        self.refused: dict[str, int] = {}  # receipts that did not come, by reason
        self.gaps = 0
        self._positions: dict[tuple[int, Chain], int] = {}  # by ticket
        self._known_gaps: dict[tuple[int, Chain], int] = {}  # told to a ticket: up to here
        self._told: dict[tuple[NodeId, ChainKey], list[tuple[int, int]]] = {}  # gaps, by node
        self._histories: dict[int, list[FrameHead]] = {}  # by ticket
        self._wanted: dict[int, set[Name]] = {}  # what a history should give
        self._ended: dict[int, str] = {}
        self._delivering: Deliver | None = None
        self._settled: dict[tuple[StreamPart, int], bytes] = {}  # hashes at high marks
        self._given_up: dict[bytes, range] = {}  # by SHA-256 of a frame: offsets that are lost
        self._up_since: dict[NodeId, float] = {}
        self.in_time = StoredInTime(cluster, self.complain)
        self.histories = HistoryChecker(cluster, self.complain)
        for node in cluster.storage:
            for part in cluster.parts:
                self.joined(node, part, subscribes=False)

    def died(self, node: SimNode) -> None:
        """A node's next life begins with nothing delivered, and reads nothing."""
        super().died(node)
        self.histories.died(node.id)

    # --- What the simulator shows ---------------------------------------------------------

    def handed(self, node: SimNode, deliver: Deliver, now: float) -> None:
        """Hold a delivery to a reader against the order of its chain."""
        self._delivering = deliver
        ticket, head = deliver.to, deliver.head
        if ticket in self._histories:
            self._histories[ticket].append(head)
        if ticket in self.histories:
            self.histories.take(ticket, head)
        key = (ticket, (head.part, head.chain))
        position = self._positions.get(key)
        if position is not None and head.last <= max(position, deliver.after):
            self.complain(f"{show(node.id)} got {head.last} out of order, after {position}")
        gap = self._known_gaps.pop(key, 0)
        if position is not None and head.previous > max(position, gap):
            self.complain(f"{show(node.id)} got {head.first} and was not told what is missing")
        self._positions[key] = head.last

    def delivered(
        self, node: SimNode, head: FrameHead, frame: bytes, hops: int, delay_s: float
    ) -> None:
        """Keep the usual books of what comes live."""
        deliver = self._delivering
        ticket = deliver.to if deliver is not None else 0
        if ticket not in self._histories and ticket not in self.histories:
            super().delivered(node, head, frame, hops, delay_s)

    def reader(self, node: SimNode, word: ToReader, now: float) -> None:
        """Take note of gaps, histories and receipts."""
        if type(word) is Missed:
            self._missed(node, word, now)
        elif type(word) is HistoryEnded and word.to in self.histories:
            self.histories.end(word)
        elif type(word) is HistoryEnded:
            self._ended[word.to] = word.problem
        elif type(word) is Receipt:
            if word.problem:
                self.refused[word.problem] = self.refused.get(word.problem, 0) + 1
            else:
                self.receipts += 1
            for storage, words in word.words:
                for held in words.holdings:
                    if held.offset in self._given_up.get(held.digest, ()):
                        continue
                    before = self.acknowledged.setdefault((storage, held.digest), held.offset)
                    if before != held.offset:
                        self.complain(f"{show(storage)} signed {before} and {held.offset}")

    def noticed(self, node: SimNode, notice: Notice, now: float) -> None:
        """Check that a log which is called repaired is whole."""
        super().noticed(node, notice, now)
        if notice.kind == "repaired":
            states = [s for s in node.disk.logs.states() if s.part == notice.part and s.missing]
            for state in states:
                spans = ", ".join(f"{hole.start} to {hole.end}" for hole in state.missing)
                self.complain(f"{show(node.id)} calls {state.part} repaired, and lacks {spans}")

    def _missed(self, node: SimNode, missed: Missed, now: float) -> None:
        self.gaps += 1
        key = (missed.to, (part_key(missed.part), missed.chain))
        gaps = self._told.setdefault((node.id, missed.chain), [])
        gaps.append((missed.after, missed.before))
        self._known_gaps[key] = max(self._known_gaps.get(key, 0), missed.before)
        wanted = Selection(
            after=missed.after, upto=missed.before - 1, whose=missed.chain, by_number=True
        )
        for storage in self._stored.storage:
            since = self._up_since.get(storage.id, now)
            if not storage.alive or storage.side != node.side or now - since < WITHIN_REACH_S:
                continue
            page = Page(missed.part, wanted, MAX_NUMBER, 1 << 20)
            for placed in storage.disk.logs.find(page).placed:
                head = peek(placed.entry.frame)
                if head.previous >= missed.after:
                    self.complain(
                        f"{show(node.id)} was told that {head.last} is missing, "
                        f"and {show(storage.id)} had it"
                    )

    # --- What is asked on the way ---------------------------------------------------------

    def bounds(self) -> None:
        """Hold tables against their bounds, and the settled parts of all logs together."""
        super().bounds()
        self.in_time.look()
        now = self._stored.sim.now
        for node in self._stored.storage:
            if not node.alive:
                self._up_since.pop(node.id, None)
                continue
            self._up_since.setdefault(node.id, now)
            for name, (size, bound) in node.machine.sizes().items():
                if size > bound:
                    self.complain(f"{show(node.id)} has {size} {name}, bound {bound}")
            for state in node.disk.logs.states():
                self._hold_together(node, state)

    def _hold_together(self, node: SimNode, state: LogState) -> None:
        logs, part, high = node.disk.logs, state.part, state.high
        hidden = [(hole.start, hole.end) for hole in state.missing]  # what is damaged, is not known

        def is_shown(offset: int) -> bool:
            return not any(start < offset < end for start, end in hidden)

        if high and is_shown(high):
            self._agree(node, part, high, logs.find(HashAt(part, high)).hash)
        for (other, offset), hashed in self._settled.items():
            if other == part and offset < high and is_shown(offset):
                found = logs.find(HashAt(part, offset)).hash
                if found != hashed:
                    self.complain(f"{show(node.id)} has another log of {part} at {offset}")
                    return

    def _agree(self, node: SimNode, part: StreamPart, offset: int, hashed: bytes) -> None:
        if not hashed or self._settled.setdefault((part, offset), hashed) != hashed:
            self.complain(f"{show(node.id)} settled {part} otherwise at {offset}")
        for key in [k for k in self._settled if k[0] == part][:-KEPT_MARKS]:
            del self._settled[key]

    def accept_loss(self, part: StreamPart, start: int, end: int) -> None:
        """Ask no more for what a log had between two offsets: an operator has given it up.

        Words of before may still be on their way: nothing is asked of those either.
        """
        for frame, _, _, key in self.frames.values():
            if key == part_key(part):
                self._given_up[hashlib.sha256(frame).digest()] = range(start, end)
        self.acknowledged = {
            (storage, digest): offset
            for (storage, digest), offset in self.acknowledged.items()
            if offset not in self._given_up.get(digest, ())
        }
        self._settled = {
            (other, offset): hashed
            for (other, offset), hashed in self._settled.items()
            if other != part or offset <= start
        }

    # --- What is asked at the end ---------------------------------------------------------

    def settled(self) -> None:
        """All logs are the same, complete, and hold what was acknowledged."""
        self.histories.check()
        for part in self._stored.parts:
            states = [
                state
                for node in self._stored.storage
                for state in node.disk.logs.states()
                if state.part == part
            ]
            ends = {(state.length, state.high, state.hash) for state in states}
            if len(ends) > 1:
                self.complain(f"the logs of {part} differ: {sorted(end[:2] for end in ends)}")
            for state in states:
                if state.held:
                    self.complain(f"{state.held} frames of {part} have no place in the log")
                if state.high != state.length or (state.hash == NO_HASH and state.length):
                    self.complain(f"the log of {part} is settled only up to {state.high}")
        for node in self._stored.storage:
            self._check_acknowledged(node)
            for part in self._stored.parts:
                self._check_order(node, part)
        for node in self._stored.honest:
            self._check_unstored(node)

    def _check_order(self, node: SimNode, part: StreamPart) -> None:
        """Every entry has the mark that follows from the entries of its chain before it."""
        if any(state.missing for state in node.disk.logs.states() if state.part == part):
            return  # what is damaged may be of any chain
        newest: dict[ChainKey, int] = {}
        wrong = 0
        for placed in self._whole_log(node, part):
            head = peek(placed.entry.frame)
            before = newest.get(head.chain, 0)
            wrong += placed.entry.mark != mark_after(before, head.previous)
            newest[head.chain] = max(before, head.last)
        if wrong:
            self.complain(f"{show(node.id)} has {wrong} frames of {part} out of order, unmarked")

    def marks(self) -> tuple[int, int]:
        """Return how many frames of all logs are late, and how many follow a gap record."""
        node = self._stored.storage[0]
        rows = [row for part in self._stored.parts for row in self._whole_log(node, part)]
        late = sum(row.entry.mark == LATE for row in rows)
        return late, sum(row.entry.mark > 0 for row in rows)

    def _check_unstored(self, node: SimNode) -> None:
        """A publisher that is there still has nothing left that is not stored."""
        unstored = node.machine.unstored if isinstance(node.machine, Peer) else None
        if node.alive and unstored is not None and (unstored.messages or unstored.given_up):
            self.complain(
                f"{show(node.id)} has {unstored.messages} messages that are not stored, and gave "
                f"up {unstored.given_up}"
            )

    def _check_acknowledged(self, node: SimNode) -> None:
        has: dict[bytes, int] = {}
        for part in self._stored.parts:
            for placed in self._whole_log(node, part):
                assert placed.offset is not None
                has[hashlib.sha256(placed.entry.frame).digest()] = placed.offset
        for (storage, digest), offset in self.acknowledged.items():
            if has.get(digest) != offset:
                self.complain(
                    f"{show(node.id)} lacks what {show(storage)} acknowledged at {offset}"
                )

    def _whole_log(self, node: SimNode, part: StreamPart) -> Iterator[Placed]:
        following: Selection | None = Selection()
        while following is not None:
            found = node.disk.logs.find(Page(part, following, MAX_NUMBER, 1 << 40))
            yield from found.placed
            following = found.following

    def read_all(self) -> list[tuple[SimNode, StreamPart, int]]:
        """Let every live node read everything, or the last of it; return the tickets."""
        reads, ways = [], cycle(READS)
        for node in self._stored.honest:
            for part in self._stored.parts:
                if node.alive and self._members.get((node.id, part_key(part)), False):
                    if self.calm is not None:
                        self.calm.readers.add(node.id)
                    ticket, wanted = self._stored.next_ticket, next(ways)
                    self._histories[ticket] = []
                    self._wanted[ticket] = self._logged(part, wanted.last)
                    self._stored.open(node, part, wanted, live=False)
                    reads.append((node, part, ticket))
        return reads

    def check_reads(self, reads: list[tuple[SimNode, StreamPart, int]]) -> None:
        """Everybody has read what it wanted of the log, once, in order."""
        for node, part, ticket in reads:
            if self._ended.get(ticket, "it did not end"):
                problem = self._ended.get(ticket, "it did not end")
                self.complain(f"{show(node.id)} could not read {part}: {problem}")
                continue
            got = {(head.chain, head.last) for head in self._histories[ticket]}
            lacks = self._wanted[ticket] - got
            if lacks:
                self.complain(f"{show(node.id)} read {part} without {len(lacks)} frames")

    def complete(self, readers: Iterable[NodeId]) -> None:
        """Who was there all the time has got all that is stored, or was told that it has not."""
        for node in readers:
            for part in self._stored.parts:
                if not self._members.get((node, part_key(part)), False):
                    continue
                lacks = [name for name in self._logged(part) if not self._has(node, name)]
                if lacks:
                    self.complain(f"{show(node)} never got {len(lacks)} frames that are stored")

    def _has(self, node: NodeId, name: Name) -> bool:
        chain, last = name
        told = self._told.get((node, chain), ())
        return name in self.has[node] or any(after < last < before for after, before in told)

    def _logged(self, part: StreamPart, last: int = 0) -> set[Name]:
        """Return the frames of the log; or those with the last so many messages."""
        heads = [peek(each.entry.frame) for each in self._whole_log(self._stored.storage[0], part)]
        names: set[Name] = set()
        count = 0
        for head in reversed(heads):
            if last and count >= last:
                break
            names.add((head.chain, head.last))
            count += head.count
        return names

    def _publishes(self, node: SimNode, part: StreamPart) -> bool:
        return node not in self._stored.storage

    def figures(self) -> dict[str, int]:
        """Return what is counted beside what every run counts."""
        stored = {name for part in self._stored.parts for name in self._logged(part)}
        return {
            "frames_lost_everywhere": sum(name not in stored for name in self.frames),
            "receipts": self.receipts,
            "receipts_that_did_not_come": sum(self.refused.values()),
            "gaps": self.gaps,
            "late": self.marks()[0],
            "gap_records": self.marks()[1],
            "settled": sum(state.high for state in self._stored.storage[0].disk.logs.states()),
        }
