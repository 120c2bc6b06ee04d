"""The strategy contract: what an overlay may be told, and what it may answer.

An overlay decides who is whose neighbour in a stream part and where a frame goes next. Its Peer
keeps everything that all overlays share: links, duplicates, signatures, delivery.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import FrameHead, NodeId, PartKey, StreamPart, number_of
from anabranch.core.machine import Effect, Sizes
from anabranch.core.messages import AboutParts, Contact
from anabranch.core.messages.tracker import MAX_NEIGHBOURS

DEFAULT_DEGREE = 4
LONG_AGO = float("-inf")


class PartSettings(msgspec.Struct, frozen=True):
    """What the registry says of a stream part."""

    overlay: str = "random-regular"
    degree: int = DEFAULT_DEGREE
    trackers: tuple[Contact, ...] = ()  # in the order in which a node turns to them
    is_stored: bool = False  # whether the stream names storage nodes

    def __post_init__(self) -> None:
        if not 2 <= self.degree <= MAX_NEIGHBOURS:
            raise LocalError(f"degree {self.degree}: a node has from 2 to {MAX_NEIGHBOURS}")


Directory = Callable[[StreamPart], PartSettings | None]  # None: there is no such stream
Perform = Callable[[list[Effect], float], list[Effect]]  # does of effects what a Peer does itself


class Carried(msgspec.Struct, gc=False):
    """A frame on its way, with what its overlay wrote on the outside."""

    head: FrameHead
    route: bytes
    frame: bytes


class Kept(msgspec.Struct, gc=False):
    """A recent frame, and when it came."""

    at: float
    frame: bytes


class _Recent:
    """The recent frames of one part, oldest first, and how many bytes they have."""

    __slots__ = ("bytes", "ends_at", "frames", "is_stored")

    def __init__(self, ends_at: int) -> None:
        self.frames: deque[Kept] = deque()
        self.bytes = 0
        self.is_stored = False
        self.ends_at = ends_at  # the position of the next frame; those before it have lower ones


class RecentFrames:
    """The frames of the last while, per part: bounded in time, in number and in bytes.

    What all parts of a node have together is bounded in bytes, too: parts that have gone quiet
    give theirs up first, and then those with most of them the oldest half.

    Frames of stored streams are kept regardless of their age, within larger bounds: a storage node
    that was away asks for them (comparison_server.py).
    """

    __slots__ = ("_bytes", "_most_bytes", "_parts", "bounds", "keep_s", "stored_bounds")

    def __init__(
        self,
        keep_s: float = 30.0,
        frames: int = 2_048,
        size_bytes: int = 1 << 20,
        all_bytes: int = 64 << 20,
        stored_frames: int = 16_384,
        stored_bytes: int = 8 << 20,
    ) -> None:
        self.keep_s = keep_s
        self.bounds = (frames, size_bytes)
        self.stored_bounds = (stored_frames, stored_bytes)  # of a part whose stream is stored
        self._most_bytes = all_bytes
        self._bytes = 0  # of all parts
        self._parts: dict[PartKey, _Recent] = {}

    def add(self, part: PartKey, frame: bytes, now: float) -> None:
        """Remember a frame and forget what is too old or too much."""
        recent = self._parts.get(part) or self._begin(part, now)
        frames = recent.frames
        most, most_bytes = self.stored_bounds if recent.is_stored else self.bounds
        oldest_at = LONG_AGO if recent.is_stored else now - self.keep_s
        frames.append(Kept(now, frame))
        recent.ends_at += 1
        recent.bytes += len(frame)
        self._bytes += len(frame)
        while frames and (
            recent.bytes > most_bytes or len(frames) > most or frames[0].at < oldest_at
        ):
            self._drop_oldest(recent)
        if self._bytes > self._most_bytes:
            self._make_room(now)

    def since(self, part: PartKey, at: float) -> list[bytes]:
        """Return the newest frames that came at or after `at`, oldest first."""
        recent = self._parts.get(part)
        if recent is None:
            return []
        found: list[bytes] = []
        most, room = self.bounds
        for kept in reversed(recent.frames):
            room -= len(kept.frame)
            if kept.at < at or room < 0 or len(found) == most:
                break
            found.append(kept.frame)
        found.reverse()
        return found

    def mark_stored(self, part: PartKey, is_stored: bool, now: float) -> None:
        """Note whether the stream of a part names storage nodes, and so which bounds hold."""
        recent = self._parts.get(part)
        if recent is not None or is_stored:
            (recent or self._begin(part, now)).is_stored = is_stored

    def positions(self, part: PartKey) -> tuple[int, Sequence[Kept]]:
        """Return all frames of a part, oldest first, and the position of the first of them.

        Positions begin above 0, grow by one with each frame, and go on growing when a part is
        joined again.
        """
        recent = self._parts.get(part)
        return (recent.ends_at - len(recent.frames), recent.frames) if recent else (0, ())

    def forget(self, part: PartKey) -> None:
        """Drop everything about a part that was left."""
        recent = self._parts.pop(part, None)
        if recent is not None:
            self._bytes -= recent.bytes

    def sizes(self) -> Sizes:
        """Return the fullest part's frames and bytes with their bounds, and the bytes of all."""
        sizes: Sizes = {}
        kinds = (("", False, self.bounds), (" of a stored part", True, self.stored_bounds))
        for kind, is_stored, (most, most_bytes) in kinds:
            parts = [each for each in self._parts.values() if each.is_stored == is_stored]
            if parts or not is_stored:
                sizes["recent frames" + kind] = (_most(len(r.frames) for r in parts), most)
                sizes["recent bytes" + kind] = (_most(r.bytes for r in parts), most_bytes)
        return sizes | {"recent bytes of all parts": (self._bytes, self._most_bytes)}

    def _begin(self, part: PartKey, now: float) -> _Recent:
        recent = self._parts[part] = _Recent(1 + number_of(int(now * 1000), 0))
        return recent

    def _drop_oldest(self, recent: _Recent) -> None:
        size = len(recent.frames.popleft().frame)
        recent.bytes -= size
        self._bytes -= size

    def _make_room(self, now: float) -> None:
        """Free a quarter at least, so that many frames may come before the next time."""
        for recent in self._parts.values():
            oldest_at = LONG_AGO if recent.is_stored else now - self.keep_s
            while recent.frames and recent.frames[0].at < oldest_at:
                self._drop_oldest(recent)
        by_size = sorted(self._parts.values(), key=lambda recent: -recent.bytes)
        while self._bytes > self._most_bytes * 3 // 4:
            for recent in by_size:
                half = recent.bytes // 2
                while recent.bytes > half:
                    self._drop_oldest(recent)
                if self._bytes <= self._most_bytes * 3 // 4:
                    return


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


class Overlay:
    """Base of all overlays: the defaults do nothing; override what you need.

    Effects may hold `Hold` and `Release`, balanced: the Peer dials when the first hold comes and
    hangs up after the last one goes.
    """

    code: int = 0  # stands in every data packet; no two overlays share one
    straight: bytes = b"\1"  # the route of a frame that comes from who made it
    sees_copies: bool = False  # whether `carry` is called for every later copy, too
    noiseless: ClassVar[bool] = False  # declared here; the simulator's checkers hold it to that
    wakeup_at: float | None

    def __init__(
        self,
        me: Contact,
        rng: random.Random,
        recent: RecentFrames,
        linked: Callable[[NodeId], bool],
    ) -> None:
        self.me = me
        self.rng = rng
        self.recent = recent
        self.linked = linked  # whether a link to a peer stands
        self.dialable = True  # whether others can dial this node, as far as it knows
        self.wakeup_at = None
        # Every packet asks for these, and what an object has itself is found soonest.
        cls = type(self)
        self.code, self.straight, self.sees_copies = cls.code, cls.straight, cls.sees_copies

    def join(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
        """Become a member of the part's overlay."""
        return []

    def change(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
        """Go on with other settings; an overlay that can keep its neighbours does."""
        return self.leave(part, now) + self.join(part, settings, now)

    def advertise(self, address: str, dialable: bool, now: float) -> list[Effect]:
        """Learn where others can dial this node from now on, or that none can."""
        self.me, self.dialable = Contact(self.me.node, address), dialable
        return []

    def learned(self, part: StreamPart, now: float) -> list[Effect]:
        """The registry has spoken of the stream: who had no place may have one now."""
        return []

    def leave(self, part: StreamPart, now: float) -> list[Effect]:
        """Stop being a member."""
        return []

    def publish(self, part: StreamPart, carried: Carried, now: float) -> list[Effect]:
        """Send our own frame on its way; no Forward among the effects means nobody is there yet."""
        return []

    def carry(
        self, part: StreamPart, carried: Carried, came_from: NodeId, first: bool, now: float
    ) -> list[Effect]:
        """See a copy of a frame; the first is verified, later ones are not."""
        return []

    def receive(self, sender: NodeId, message: AboutParts, now: float) -> list[Effect]:
        """Take a control message of a part this node is a member of."""
        return []

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        return []

    def rtt(self, peer: NodeId, seconds: float, now: float) -> list[Effect]:
        """Learn a round trip; the first one comes just before `link` tells that a link stands."""
        return []

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        return []

    def neighbours(self, part: StreamPart) -> Sequence[NodeId]:
        """Return the peers that frames of the part flow to, sorted."""
        return ()

    def accepts(self, part: StreamPart, sender: NodeId) -> bool:
        """Tell whether frames of the part may come from `sender`."""
        return sender in self.neighbours(part)

    def follows(self, part: StreamPart, sender: NodeId) -> bool:
        """Tell whether `sender` is who tells us our place, and so may say much."""
        return False

    def hops(self, route: bytes) -> int:
        """Read from a route how many links the frame has crossed."""
        return 0

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {}


OverlayFactory = Callable[[Contact, random.Random, RecentFrames, Callable[[NodeId], bool]], Overlay]
