"""The frames that came last, by their heads: most copies follow the first within moments.

A frame's whole head names it, so a copy of one that is remembered here is known by one look, and
nothing of it is taken apart. What was forgotten is still known to the detector of duplicates.
"""

from typing import TYPE_CHECKING

import msgspec

from anabranch.core.machine import Sizes

if TYPE_CHECKING:
    from anabranch.core.parts import Part

MAX_KNOWN = 1_024  # of all parts of a node; the older half is forgotten at once


class Known(msgspec.Struct, gc=False):
    """The part a frame belongs to, and its bytes."""

    state: "Part"
    size: int


class KnownFrames:
    """Frames that were verified and marked, by their heads."""

    __slots__ = ("old", "young")

    def __init__(self) -> None:
        self.young: dict[bytes, Known] = {}
        self.old: dict[bytes, Known] = {}

    def add(self, head: bytes, state: "Part", size: int) -> None:
        """Remember a frame."""
        if len(self.young) >= MAX_KNOWN // 2:
            self.old, self.young = self.young, {}
        self.young[head] = Known(state, size)

    def forget(self, state: "Part") -> None:
        """Drop what belongs to a part that was left."""
        young, old = self.young.items(), self.old.items()
        self.young = {head: known for head, known in young if known.state is not state}
        self.old = {head: known for head, known in old if known.state is not state}

    def sizes(self) -> Sizes:
        """Return how many are remembered, with the bound."""
        return {"known frames": (len(self.young) + len(self.old), MAX_KNOWN)}
