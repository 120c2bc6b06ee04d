"""Where a storage node stands in the log of a part: what is on its disk, and what it knows beyond.

A promise binds from the moment it is made: from then on the node says nothing more in the name of
an earlier epoch, whatever writes of that epoch are still on their way to the disk. It counts for
others only once it is on the disk.

Three things hold everywhere, and all safety rests on them. A log that is stamped with an epoch
(`log_epoch`) begins with all that the epoch's primary had when it began, and is a part of that
primary's log. A node is counted for an epoch only when its log is so stamped, on its disk. And who
is voted for has a log that is stamped no earlier and is no shorter than the voter's.

A fourth thing is needed because a disk may forget (log_record.py): a node whose log is below its
record, or below what it has signed, is *recovering*. It neither votes nor leads nor counts.
"""

from collections.abc import Collection

from anabranch.core.ids import NodeId
from anabranch.core.store import LogState, Rank

# Epochs go up by one at an election. Who names one that is so far ahead is not believed: after a
# few such words there would be none left.
MAX_LEAP = 1 << 20

FIND_S = 3.0  # who has just come may not know for so long who leads, or that anybody does


class Standing:
    """What a node's election, its leading and its following have in common, for one part."""

    def __init__(self, me: NodeId, state: LogState, linked: Collection[NodeId]) -> None:
        self.me = me
        self.part = state.part
        self.state = state  # as it is on the disk
        self.linked = linked  # all peers to whom a link stands
        self.members: tuple[NodeId, ...] = ()  # the storage nodes of the stream, in its order
        self.epoch = state.epoch
        self.voted = state.voted  # to whom that epoch was promised
        self.is_primary = False
        self.primary: NodeId | None = None  # another, heard in our epoch since its link stands
        self.begin = 0  # how long the primary's log was when the epoch began
        self.told_high = 0  # by that primary
        self.since = 0.0  # when we became one of the members
        self.high = state.high
        self.claimed: Rank = (0, 0)  # a rank of ours that others have seen
        self.is_doubted = False  # a log of ours may have been forgotten as a whole
        self.is_contradicted = False  # our log contradicts what a majority has signed
        self.disagrees: dict[NodeId, None] = {}  # whose log is another below a high-water mark

    @property
    def owed(self) -> Rank:
        """The rank that our log once had, or may have had, and must have again."""
        return max(self.state.owed, self.claimed)

    @property
    def is_recovering(self) -> bool:
        """Whether our log may lack something that we have acknowledged."""
        is_unknown = self.state.is_restored or self.is_doubted
        return is_unknown or self.rank < self.owed or self.is_contradicted

    def contradict(self) -> None:
        """Let our log be replaced: what it calls settled is not what was settled."""
        self.is_contradicted = True
        self.high = self.state.start
        self.step_down()

    @property
    def rank(self) -> Rank:
        """How much our log is worth as that of a primary."""
        return self.state.rank

    @property
    def majority(self) -> int:
        """How many of the storage nodes decide."""
        return len(self.members) // 2 + 1

    @property
    def fellows(self) -> list[NodeId]:
        """The other storage nodes of the stream to whom a link stands."""
        return [node for node in self.members if node != self.me and node in self.linked]

    def is_behind(self, now: float) -> bool:
        """Whether more may be settled than is in our log: who reads to its end, misses that."""
        if self.is_recovering:
            return True
        if self.leads or len(self.members) == 1:
            return False
        if self.primary is None:
            return now < self.since + FIND_S
        return max(self.told_high, self.begin) > self.state.length

    @property
    def leads(self) -> bool:
        """Whether we are the primary, and our disk says so."""
        return self.is_primary and self.state.log_epoch == self.epoch

    @property
    def is_promised(self) -> bool:
        """Whether our last promise is on the disk."""
        return (self.state.epoch, self.state.voted) == (self.epoch, self.voted)

    def promise(self, epoch: int, voted: NodeId) -> None:
        """Promise a later epoch to somebody, or to nobody; who led before leads no more."""
        assert epoch > self.epoch
        self.epoch, self.voted = epoch, voted
        self.step_down()

    def step_down(self) -> None:
        """Lead no more, and follow nobody."""
        self.is_primary, self.primary = False, None
