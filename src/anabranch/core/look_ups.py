"""Chains that somebody merely named, which other trackers are asked for: a few at a time.

Anybody can name chains that exist nowhere, without end. So these stand in a short line of their
own, in which no link has more than a few places; who finds no place is answered from what we have.
"""

from collections.abc import Iterable

import msgspec

from anabranch.core.ids import NodeId
from anabranch.core.machine import Sizes

MAX_LOOKED_UP = 64  # chains at a time,
MAX_LOOKED_UP_FOR_ONE = 4  # and for one link
MAX_ASKED = 3  # trackers, for each of them


class _LookUp(msgspec.Struct):
    """A chain that is looked up: for whom, and which trackers have yet to tell of it."""

    named_by: NodeId
    trackers: dict[NodeId, bool]  # whether it has been asked


class LookUps:
    """What is looked up, in the order in which it was named."""

    def __init__(self) -> None:
        self._under_way: dict[str, _LookUp] = {}

    def has_room(self, chain: str, sender: NodeId) -> bool:
        """Tell whether a chain may be looked up for a node, or is being looked up already."""
        if chain in self._under_way:
            return True
        for_sender = sum(entry.named_by == sender for entry in self._under_way.values())
        return len(self._under_way) < MAX_LOOKED_UP and for_sender < MAX_LOOKED_UP_FOR_ONE

    def begin(self, chain: str, sender: NodeId, trackers: Iterable[NodeId]) -> None:
        """Put a chain in line, at these trackers; `has_room` has said that it may stand there."""
        self._under_way[chain] = _LookUp(sender, dict.fromkeys(trackers, False))

    def waiting(self, tracker: NodeId) -> list[str]:
        """Return the chains for which a tracker is yet to be asked, the first in line first."""
        under_way = self._under_way.items()
        return [chain for chain, entry in under_way if entry.trackers.get(tracker) is False]

    def ask(self, chain: str, tracker: NodeId) -> None:
        """Take note that a tracker has been asked."""
        self._under_way[chain].trackers[tracker] = True

    def told(self, chain: str, tracker: NodeId) -> bool:
        """Take note that a tracker has told what it knows, or will not. True: it was the last."""
        entry = self._under_way.get(chain)
        if entry is None or entry.trackers.pop(tracker, None) is None or entry.trackers:
            return False
        del self._under_way[chain]
        return True

    def leave(self, tracker: NodeId) -> list[str]:
        """Expect nothing more of a tracker; return the chains of which it was to tell last."""
        return [chain for chain in list(self._under_way) if self.told(chain, tracker)]

    def forget(self, chain: str) -> None:
        """Take a chain out of the line: nobody waits for it any more."""
        self._under_way.pop(chain, None)

    def __contains__(self, chain: str) -> bool:
        return chain in self._under_way

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"chains looked up": (len(self._under_way), MAX_LOOKED_UP)}
