"""A node's place in one part's overlay, as its tracker and its neighbours have made it."""

from collections.abc import Sequence

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.messages import Contact, Instruction
from anabranch.core.messages.tracker import MAX_COUNTER

MAX_HOPS = 255
MAX_ONWARD = 256  # ways through this node that are remembered, per part
OVERLAP_S = 2.0  # our last neighbours may have been cut off before we were
MAX_LEAP = 1 << 40  # how far a counter may go ahead: one that ran to its end would end the protocol
WORDS = 200.0  # that a tracker may say of one part at once,
WORDS_PER_S = 10.0  # and in the long run: it gathers changes for a tenth of a second

HOPS = [bytes([hops]) for hops in range(MAX_HOPS + 1)]

Branches = Sequence[tuple[NodeId, bytes]]


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
    refused: bool = False  # the tracker has answered our last status with a refusal
    words_left: float = WORDS
    words_at: float = 0.0
    wanted: dict[NodeId, None] = msgspec.field(default_factory=dict)
    met: dict[NodeId, None] = msgspec.field(default_factory=dict)
    retiring: dict[NodeId, None] = msgspec.field(default_factory=dict)
    failed: dict[NodeId, None] = msgspec.field(default_factory=dict)
    flood: list[NodeId] = msgspec.field(default_factory=list)
    # From whom a frame came, and with how many hops: to whom it goes on, and with what route.
    onward: dict[tuple[NodeId, bytes], Branches] = msgspec.field(default_factory=dict)

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

    # --- What the tracker says ------------------------------------------------------------

    def neighbours_told(self, me: NodeId, instruction: Instruction) -> dict[NodeId, None]:
        """Return whom an instruction names, but for ourselves."""
        named = {c.node: None for c in instruction.connect} | dict.fromkeys(instruction.accept)
        named.pop(me, None)
        return named

    def wrong_with(self, instruction: Instruction, named: int) -> str:
        """Say why a new instruction is not to be heeded; nothing if it is."""
        if instruction.counter > min(self.working_on + MAX_LEAP, MAX_COUNTER):
            return "a counter that leaves no room"
        return "more neighbours than the degree" if named > self.degree else ""

    def begin_count_anew(self) -> None:
        """Be as one who has just come, where a tracker has driven our counter near its end."""
        if not self.settling and self.counter > MAX_COUNTER // 2:
            self.counter = self.working_on = 0

    def count_word(self, now: float) -> None:
        """Count what the tracker says: one that floods us with words is at fault."""
        earned = (now - self.words_at) * WORDS_PER_S
        self.words_left = min(WORDS, self.words_left + earned) - 1
        self.words_at = now
        if self.words_left < 0:
            raise RemoteError("flood", "more words than a tracker has to say")

    # --- Whom frames flow to, and what may have passed us by ------------------------------

    def branches(self, came_from: NodeId, route: bytes) -> Branches:
        """Return where a frame goes on that came from a neighbour by a route."""
        found = self.onward.get((came_from, route))
        if found is None:
            further = HOPS[min((route[0] if route else 0) + 1, MAX_HOPS)]
            found = [(peer, further) for peer in self.flood if peer != came_from]
            if len(self.onward) >= MAX_ONWARD:
                self.onward.clear()
            self.onward[came_from, route] = found
        return found

    def reflood(self, keep_s: float, now: float) -> None:
        """Bring the sorted list of those we send to up to date."""
        self.end_lack(keep_s, now)
        before = self.flood
        self.onward.clear()
        self.flood = sorted(p for p in self.met if p in self.wanted or p in self.retiring)
        fewer = len(self.flood) < len(before)
        if fewer and self.lacking_since is None and 2 * len(self.flood) <= self.degree:
            # Those that are left may have lost theirs, too: together we may be cut off.
            self.lacking_since = now - OVERLAP_S

    def end_lack(self, keep_s: float, now: float) -> None:
        """With all neighbours we lack nothing; with some for long, nothing anybody still has."""
        if self.lacking_since is None:
            return
        long = self.flood and now - self.lacking_since > keep_s
        if long or len(self.flood) >= self.degree:
            self.lacking_since = None
