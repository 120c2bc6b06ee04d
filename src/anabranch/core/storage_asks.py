"""Questions of publishers about their frames: acknowledged, lacking, or declined.

A frame is acknowledged when it lies in the log before the high mark: on a majority of the storage
nodes' disks, this one among them, with an offset that stays. A frame that this node has neither on
its disk nor on the way to it is named as lacking, so that its publisher hands it over.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import SEQUENCE_BITS, FrameHead, NodeId
from anabranch.core.log_standing import Standing
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import Acknowledged, LackingNames
from anabranch.core.messages.storage import LATE, MAX_NAMED, FrameName, Holding
from anabranch.core.storage_disk import Look
from anabranch.core.store import Answer, Named, Placed

ASKED_FOR_S = 30.0
MAX_ASKED = 8_192  # about frames of a part
MAX_ASKED_PER_PEER = 4_096
MAX_LOOKING = 64  # questions of a part that are looked up

Sign = Callable[[Sequence[Holding]], bytes]
Coming = Callable[[], Collection[FrameName] | None]  # on the way to the disk; None: it fails


class _Asked(msgspec.Struct, frozen=True):
    """A question that is looked up."""

    sender: NodeId
    names: tuple[FrameName, ...]
    welcome: frozenset[FrameName]  # those that the sender may hand over


class Asks:
    """Questions about the frames of one part."""

    def __init__(self, standing: Standing, find: Look, sign: Sign, coming: Coming) -> None:
        self._standing = standing
        self._coming = coming
        self._find = find
        self._sign = sign
        self._asked: dict[FrameName, dict[NodeId, float]] = {}  # by whom, and until when
        self._by_peer: dict[NodeId, dict[FrameName, None]] = {}
        self._count = 0
        self._placed: dict[FrameName, tuple[int, Holding]] = {}  # until where the log must settle
        self._cuts = 0  # how often places were taken back: what was found before is void
        self._looking = 0
        self.at: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether anybody waits."""
        return bool(self._asked)

    def ask(
        self,
        sender: NodeId,
        names: Iterable[FrameName],
        now: float,
        welcome: Collection[FrameName] = (),
    ) -> list[Effect]:
        """Take a question; if there is no room for it, it is asked again.

        The `welcome` frames are named as lacking if they are, since the sender may hand them over.
        """
        fresh: list[FrameName] = []
        for name in names:
            if sender not in self._asked.get(name, ()):
                if not self._make_room(sender):
                    break
                self._by_peer.setdefault(sender, {})[name] = None
                self._count += 1
            self._asked.setdefault(name, {})[sender] = now + ASKED_FOR_S
            if name not in self._placed:
                fresh.append(name)
        if self._asked and self.at is None:
            self.at = now + ASKED_FOR_S
        asked = _Asked(sender, tuple(fresh), frozenset(welcome))
        return self._look(asked)

    def _make_room(self, sender: NodeId) -> bool:
        """Tell whether there is room for one more; who asks for most makes room for others."""
        own = len(self._by_peer.get(sender, ()))
        if own >= MAX_ASKED_PER_PEER or self._count < MAX_ASKED:
            return own < MAX_ASKED_PER_PEER
        most = max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))
        if len(self._by_peer[most]) <= own + 1:
            return False
        self._drop(most, next(reversed(self._by_peer[most])))
        return True

    def _look(self, asked: _Asked) -> list[Effect]:
        if not asked.names or self._looking >= MAX_LOOKING:
            return []
        self._looking += 1
        query = Named(self._standing.part, asked.names)
        return [self._find(query, partial(self._found, asked, self._cuts))]

    def _found(self, asked: _Asked, cuts: int, answer: Answer, now: float) -> list[Effect]:
        self._looking -= 1
        if cuts != self._cuts:
            return self._look(asked)
        rows = [(row, peek(row.entry.frame)) for row in answer.placed]
        self.placed(rows)
        if answer.problem:
            return self.settled()
        return self.settled() + self._name_lacking(asked, rows)

    def _name_lacking(
        self, asked: _Asked, rows: Sequence[tuple[Placed, FrameHead]]
    ) -> list[Effect]:
        """Tell the publisher which of its frames it may hand over."""
        here = {FrameName(head.chain, head.last) for _, head in rows}
        lacking = [n for n in asked.names if n in asked.welcome and n not in here]
        coming = self._coming() if lacking else None
        if coming is None:
            return []
        lacking = [n for n in lacking if n not in coming and n not in self._placed]
        lacking = [n for n in lacking if not self._may_be_damaged(n)]
        lacked = LackingNames(self._standing.part, tuple(lacking)) if lacking else None
        return [Send(asked.sender, lacked)] if lacked is not None else []

    def _may_be_damaged(self, name: FrameName) -> bool:
        """Tell whether a frame may lie in a hole, which other storage nodes are asked to fill.

        A single storage node cannot fill its holes: there the frame gets a new place in the log.
        """
        standing = self._standing
        if len(standing.members) == 1:
            return False
        at_ms = name.last >> SEQUENCE_BITS
        return any(at_ms <= hole.before_ms for hole in standing.state.missing)

    def placed(self, rows: Iterable[tuple[Placed, FrameHead]]) -> None:
        """Take note of frames that have a place in the log on our disk."""
        for row, head in rows if self._asked else ():
            name = FrameName(head.chain, head.last)
            if row.offset is not None and name in self._asked:
                digest = hashlib.sha256(row.entry.frame).digest()
                holding = Holding(name, row.offset, digest, row.entry.mark == LATE)
                self._placed[name] = (row.offset + head.count, holding)

    def cut(self, length: int) -> None:
        """Places from an offset on are taken back."""
        self._cuts += 1
        for name in [name for name, (end, _) in self._placed.items() if end > length]:
            del self._placed[name]

    def settled(self) -> list[Effect]:
        """Give our word on all that is settled now, one for each who asked."""
        high = self._standing.high
        owed: dict[NodeId, list[Holding]] = {}
        for name in [name for name, (end, _) in self._placed.items() if end <= high]:
            _, holding = self._placed.pop(name)
            for peer in list(self._asked.get(name, ())):
                self._drop(peer, name)
                owed.setdefault(peer, []).append(holding)
        effects: list[Effect] = []
        for peer, holdings in owed.items():
            for at in range(0, len(holdings), MAX_NAMED):
                some = tuple(holdings[at : at + MAX_NAMED])
                word = Acknowledged(self._standing.part, some, self._sign(some))
                effects.append(Send(peer, word))
        return effects

    def wake(self, now: float) -> None:
        """Forget what was asked long ago."""
        for name, peers in list(self._asked.items()):
            for peer in [peer for peer, until in peers.items() if until <= now]:
                self._drop(peer, name)
        times = [min(peers.values()) for peers in self._asked.values()]
        self.at = min(times, default=None)

    def _drop(self, peer: NodeId, name: FrameName) -> None:
        self._count -= 1
        del self._by_peer[peer][name], self._asked[name][peer]
        if not self._by_peer[peer]:
            del self._by_peer[peer]
        if not self._asked[name]:
            del self._asked[name]
            self._placed.pop(name, None)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "frames asked for": (self._count, MAX_ASKED),
            "frames asked for by a peer": (
                max(map(len, self._by_peer.values()), default=0),
                MAX_ASKED_PER_PEER,
            ),
            "questions looked up": (self._looking, MAX_LOOKING),
        }
