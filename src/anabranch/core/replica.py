"""Another tracker, as the one that copies from it sees it: its claims, and how far each is read."""

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.history import MAX_CHANGES, roll
from anabranch.core.ids import NodeId
from anabranch.core.messages import ChainPage


class Read(msgspec.Struct):
    """A chain that is being read from a tracker, as far as we have got in its order."""

    chain: str
    after: int
    head: bytes  # which the first `after` leave with it
    ticket: int = 0  # of the page that it was asked for; 0: the last one is on its way to the disk
    restarts: int = 0
    is_over: bool = False  # there is no further page
    by_name: bool = False  # somebody merely named it (look_ups.py)

    def advance(self, page: ChainPage, changes: tuple[bytes, ...]) -> None:
        """Go on along a tracker's order; RemoteError if it does not lead where it says."""
        self.after += len(changes)
        for encoded in changes:
            self.head = roll(self.head, encoded)
        if not self.after <= page.height <= MAX_CHANGES:
            raise RemoteError("wrong-page", "more changes than there are")
        if self.after < page.height and not changes:
            raise RemoteError("wrong-page", "it says that there is more, and has none")
        self.is_over = self.after == page.height
        if self.is_over and self.head != page.head:
            raise RemoteError("contradiction", self.chain)


class Replica(msgspec.Struct):
    """A tracker that is linked with us, and what there is to be read from it."""

    node: NodeId
    claims: dict[str, tuple[int, bytes]] = msgspec.field(default_factory=dict)
    reads: dict[str, Read] = msgspec.field(default_factory=dict)
    is_comparing: bool = False
    ticket: int = 0  # of the heads that it was asked for; 0: none
    listed: int = 0  # heads that it has named since the comparison began
    after: str | None = None  # the last of them, if there are more

    @property
    def by_name(self) -> int:
        """How many chains are being read because somebody merely named them."""
        return sum(read.by_name for read in self.reads.values())

    @property
    def is_read(self) -> bool:
        """Whether we have read all of its claims; what was merely named counts for nothing."""
        return not self.claims and self.by_name == len(self.reads)
