"""A node's place in one part's overlay, as its tracker and its neighbours have made it."""

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.messages import Contact


class Membership(msgspec.Struct):
    """A node's place in one part's overlay."""

    part: StreamPart
    degree: int
    trackers: tuple[Contact, ...]
    lacking_since: float | None  # frames may have passed us by; None: they have not
    tracker: int = 0  # which of the trackers we turn to
    counter: int = 0  # of the last instruction that was carried out
    working_on: int = 0  # of the newest instruction
    lost_at: float = 0.0  # when a neighbour went that we should have
    wanted: dict[NodeId, None] = msgspec.field(default_factory=dict)
    met: dict[NodeId, None] = msgspec.field(default_factory=dict)
    retiring: dict[NodeId, None] = msgspec.field(default_factory=dict)
    failed: dict[NodeId, None] = msgspec.field(default_factory=dict)
    flood: list[NodeId] = msgspec.field(default_factory=list)

    @property
    def settling(self) -> bool:
        """Whether the newest instruction is still being carried out."""
        return self.counter < self.working_on

    def contact(self) -> Contact | None:
        """The tracker we turn to."""
        return self.trackers[self.tracker] if self.trackers else None

    def held_trackers(self) -> tuple[Contact, ...]:
        """The tracker we turn to, and those before it, to which we return when they are back."""
        return self.trackers[: self.tracker + 1]
