"""The room for frames that wait behind gaps, and who makes room when there is none.

It is somebody who has more than an equal share of it: who comes, if that is one, otherwise who has
most. So a publisher that leaves out what it says was there is no reason to give up what is missing
of others, and one that is alone may have all the room.
"""

from collections.abc import Callable

import msgspec

from anabranch.core.ids import ChainKey, NodeId, publisher_of


class _Share(msgspec.Struct, eq=False):
    """What one publisher has of the room."""

    chains: dict[ChainKey, int]  # how many frames wait; what has waited longest comes first
    frames: int = 0
    bytes: int = 0


class WaitingRoom:
    """How much waits, and whose it is."""

    def __init__(self) -> None:
        self.frames = 0
        self.bytes = 0
        self._shares: dict[NodeId, _Share] = {}

    @property
    def publishers(self) -> int:
        """How many there are of whom something waits."""
        return len(self._shares)

    def enter(self, chain: ChainKey, size: int) -> None:
        """A frame begins to wait."""
        share = self._shares.setdefault(publisher_of(chain), _Share({}))
        share.chains[chain] = share.chains.get(chain, 0) + 1
        self._count(share, 1, size)

    def leave(self, chain: ChainKey, size: int) -> None:
        """A frame waits no more."""
        share = self._shares[publisher_of(chain)]
        share.chains[chain] -= 1
        if not share.chains[chain]:
            del share.chains[chain]
        self._count(share, -1, -size)
        if not share.frames:
            del self._shares[publisher_of(chain)]

    def renew(self, chain: ChainKey) -> None:
        """What waits in a chain counts as if it had come last."""
        chains = self._shares[publisher_of(chain)].chains
        chains[chain] = chains.pop(chain)

    def who_makes_room(self, comer: ChainKey, frames: int, bytes_: int) -> ChainKey | None:
        """Return in which chain something should be given up; None if there is room."""
        if self.frames > frames:
            return self._who(comer, lambda share: share.frames, frames)
        if self.bytes > bytes_:
            return self._who(comer, lambda share: share.bytes, bytes_)
        return None

    def _who(self, comer: ChainKey, amount: Callable[[_Share], int], room: int) -> ChainKey:
        share = self._shares.get(publisher_of(comer))
        if share is None or amount(share) * len(self._shares) <= room:
            share = max(self._shares.values(), key=amount)
        return next(iter(share.chains))

    def _count(self, share: _Share, frames: int, size: int) -> None:
        share.frames += frames
        share.bytes += size
        self.frames += frames
        self.bytes += size
