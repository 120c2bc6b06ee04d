"""Checks histories that are read while faults are at work: complete, or what is lost is named.

A reader that asks for the whole log gets every frame that lay below the high-water marks of all
storage nodes when it asked. What it does not get is named, by offsets, when the history ends. One
that ends with another problem makes no promise.
"""

from collections.abc import Callable

import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import ChainKey, FrameHead, NodeId, StreamPart, show
from anabranch.core.machine import Close, HistoryEnded
from anabranch.core.messages.storage import MAX_NUMBER, Selection, Span
from anabranch.core.store import Page
from anabranch.sim.network import SimNode
from anabranch.sim.stored_cluster import StoredCluster

WAYS = (Selection(), Selection(by_number=True))

Name = tuple[ChainKey, int]  # of a frame: its chain and its last number


class _History(msgspec.Struct):
    """One history that is read."""

    node: NodeId
    part: StreamPart
    high: int  # the lowest high-water mark when it began
    got: set[Name]
    ended: HistoryEnded | None = None


class HistoryChecker:
    """Keeps the books of histories."""

    def __init__(self, cluster: StoredCluster, complain: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._complain = complain
        self._histories: dict[int, _History] = {}  # by ticket
        self.named = 0  # messages that were named as lost

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._histories

    def open(self, node: SimNode, part: StreamPart) -> None:
        """Let a node read a whole log, in the order of offsets and of numbers by turns."""
        ticket = self._cluster.next_ticket
        self._histories[ticket] = _History(node.id, part, self._high(part), set())
        self._cluster.open(node, part, WAYS[ticket % 2], live=False)

    def take(self, ticket: int, head: FrameHead) -> None:
        """Note a frame that was delivered."""
        if self._histories[ticket].ended is None:
            self._histories[ticket].got.add((head.chain, head.last))

    def end(self, ended: HistoryEnded) -> None:
        """Note the end of a history, and close it."""
        history, sim = self._histories[ended.to], self._cluster.sim
        history.ended = ended
        node = sim.nodes[history.node]

        def close() -> None:
            if self._cluster.reading.pop(ended.to, None) is not None:
                sim.tell(node, Close(ended.to))

        sim.at(sim.now, close)

    def died(self, node: NodeId) -> None:
        """Forget the histories that a node was reading."""
        for ticket in [t for t, each in self._histories.items() if each.node == node]:
            if self._histories[ticket].ended is None:
                del self._histories[ticket]

    def check(self) -> None:
        """Compare what every reader got, and was told, with what was there."""
        for history in self._histories.values():
            who = f"{show(history.node)} reads {history.part}"
            if history.ended is None:
                self._complain(f"{who}, which does not end")
                continue
            lost = history.ended.lost
            self.named += sum(span.end - span.start for span in lost)
            if history.ended.problem and not lost:
                continue
            untold = [
                name
                for name, at in self._due(history).items()
                if name not in history.got and not _touches(lost, at)
            ]
            if untold:
                self._complain(f"{who} without {len(untold)} frames, and is not told of them")

    def _due(self, history: _History) -> dict[Name, Span]:
        """Return the frames that a reader must have got, with their offsets."""
        every = self._frames(history.part)
        return {name: at for name, at in every.items() if at.end <= history.high}

    def _high(self, part: StreamPart) -> int:
        """Return the lowest high-water mark."""
        return min(
            next((s.high for s in node.disk.logs.states() if s.part == part), 0)
            for node in self._cluster.storage
        )

    def _frames(self, part: StreamPart) -> dict[Name, Span]:
        """Return the frames of all logs, with their offsets."""
        best: dict[Name, Span] = {}
        for node in self._cluster.storage:
            following: Selection | None = Selection()
            while following is not None:
                found = node.disk.logs.find(Page(part, following, MAX_NUMBER, 1 << 40))
                following = found.following
                for row in found.placed:
                    head, offset = peek(row.entry.frame), row.offset or 0
                    best[head.chain, head.last] = Span(offset, offset + head.count)
        return best


def _touches(lost: tuple[Span, ...], at: Span) -> bool:
    return any(span.start < at.end and at.start < span.end for span in lost)
