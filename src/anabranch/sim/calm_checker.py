"""Checks a run without faults: no message is lost and repaired, copied twice, or verified twice.

Repair hides loss. In a run without faults nothing may be lost, so every repair shows a mistake:
a gap that is filled, a page of a log that is read although nobody wants history, a damaged range
that is fetched, a frame that is handed to a storage node, an entry that a follower gets twice. A
flood is checked link by link: each frame crosses every link that stands, and none twice in one
direction. Each node verifies a signature once.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from anabranch.core.frames import peek
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart, part_key, show
from anabranch.core.machine import Notice
from anabranch.core.messages import AskEntries, Control, Fetched, Hand, Lacking, Resend
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.sim.network import SimNode

SETTLED_S = 5.0  # a link that has stood for so long carries every frame
CROSSED_S = 3.0  # within which a frame has crossed every link
KINDS = (
    *("gap fills", "resends", "repairs", "handed frames", "entries copied twice"),
    *("signatures verified twice", "frames sent twice", "links left out"),
)

Name = tuple[ChainKey, int]
Link = tuple[NodeId, NodeId]
_Signed = tuple[NodeId, NodeId, bytes, bytes]  # verifier, publisher, digest, signature


class Overlays(Protocol):
    """The parts of a cluster, with the neighbours of each member."""

    @property
    def parts(self) -> list[StreamPart]:
        """Return all stream parts."""

    def members(self, part: StreamPart) -> list[SimNode]:
        """Return the nodes that have a place in a part."""

    def neighbours(self, node: SimNode, part: StreamPart) -> tuple[NodeId, ...]:
        """Return a node's neighbours as it sees them."""


class CalmChecker:
    """Counts repairs of a run without faults; each of them is a violation."""

    def __init__(self, cluster: Overlays, complain: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._complain = complain
        self.counts = dict.fromkeys(KINDS, 0)
        self.readers: set[NodeId] = set()  # they have asked for history: pages are theirs
        self._verified: set[_Signed] = set()
        self._copied: set[tuple[NodeId, NodeId, StreamPart, int]] = set()
        self._crossed: dict[Name, dict[Link, int]] = {}  # how often
        self._published: dict[Name, tuple[PartKey, float]] = {}  # not yet checked, oldest first
        self._links: dict[PartKey, dict[Link, float]] = {}  # that stand, and since when
        self._linked_at: dict[tuple[PartKey, NodeId], float] = {}  # a member's first link
        self._new: set[Name] = set()  # frames of publishers that were joining

    # --- What the simulator shows ---------------------------------------------------------

    def published(self, head: FrameHead, now: float) -> None:
        """Expect a new frame on every link."""
        self._published[head.chain, head.last] = (head.part, now)
        linked_at = self._linked_at.get((head.part, head.publisher))
        if linked_at is None or now < linked_at + SETTLED_S:
            self._new.add((head.chain, head.last))

    def forwarded(self, node: NodeId, peers: Iterable[NodeId], head: FrameHead) -> None:
        """Note over which links a frame goes."""
        crossed = self._crossed.setdefault((head.chain, head.last), {})
        for peer in peers:
            crossed[node, peer] = crossed.get((node, peer), 0) + 1

    def sent(self, node: NodeId, to: NodeId, message: Control) -> None:
        """Count a control message that repairs something."""
        if type(message) is Resend:
            self._resend(node, message)
        elif type(message) is Hand or type(message) is Lacking:
            heads = [peek(frame) for frame in message.frames]
            many = sum((head.chain, head.last) not in self._new for head in heads)
            if many:
                text = f"{show(node)} handed {many} frames to {show(to)}"
                self._count("handed frames", text, many)
        elif type(message) is AskEntries:
            self._count("repairs", f"{show(node)} asked for entries from {message.start} on")
        elif type(message) is Fetched:
            self._fetched(node, to, message)

    def noticed(self, node: NodeId, notice: Notice) -> None:
        """Count what a storage node says of damage."""
        if notice.kind in ("damaged", "repaired"):
            self._count("repairs", f"{show(node)} says {notice.kind}: {notice.detail}")

    def verified(self, node: NodeId, publisher: NodeId, digest: bytes, signature: bytes) -> None:
        """Count a signature that a node has verified before."""
        signed = (node, publisher, digest, signature)
        if signed in self._verified and node not in self.readers:
            self._count("signatures verified twice", f"{show(node)}, of {show(publisher)}")
        self._verified.add(signed)

    def _resend(self, node: NodeId, resend: Resend) -> None:
        wanted = resend.selection
        if wanted.start == MAX_NUMBER or node in self.readers:
            return  # it asks only how long the log is, or for the history that it wants
        if wanted.whose:
            self._count("gap fills", f"{show(node)} lacks {wanted.after} to {wanted.upto}")
        else:
            self._count("resends", f"{show(node)} reads a log from {wanted.start} on")

    def _fetched(self, node: NodeId, to: NodeId, page: Fetched) -> None:
        key = (node, to, page.part)
        at = page.offset
        for entry in page.entries:
            if (*key, at) in self._copied:
                self._count("entries copied twice", f"{show(node)} sent {at} to {show(to)}")
            self._copied.add((*key, at))
            at += peek(entry.frame).count

    # --- What is checked on the way -------------------------------------------------------

    def look(self, now: float) -> None:
        """Check the frames that have had time to cross all links, and note which links stand."""
        for part in self._cluster.parts:
            self._note_links(part, now)
        due = [name for name, (_, at) in self._published.items() if at <= now - CROSSED_S]
        for name in due:
            key, at = self._published.pop(name)
            crossed = self._crossed.pop(name, {})
            for (a, b), since in self._links.get(key, {}).items():
                if since > at - SETTLED_S:
                    continue
                there, back = crossed.get((a, b), 0), crossed.get((b, a), 0)
                if not there + back:
                    self._count("links left out", f"{name[1]} from {show(a)} to {show(b)}")
                if max(there, back) > 1:
                    self._count("frames sent twice", f"{name[1]} from {show(a)} to {show(b)}")

    def _note_links(self, part: StreamPart, now: float) -> None:
        members = {node.id: node for node in self._cluster.members(part) if node.alive}
        near = {each: self._cluster.neighbours(node, part) for each, node in members.items()}
        before = self._links.get(part_key(part), {})
        self._links[part_key(part)] = {
            (a, b): before.get((a, b), now)
            for a, peers in near.items()
            for b in peers
            if a < b and a in near.get(b, ())
        }
        for link in self._links[part_key(part)]:
            for node in link:
                self._linked_at.setdefault((part_key(part), node), now)

    def _count(self, kind: str, text: str, many: int = 1) -> None:
        self.counts[kind] += many
        self._complain(f"{kind} in a run without faults: {text}")
