"""Published frames that no majority of the storage nodes of their stream has signed for yet.

A publisher keeps each frame of a stored stream until a majority of the storage nodes that the
ledger names now has signed that the frame lies below the high-water mark. Until then the frames
are offered to each of these nodes: names first (`AskStored`), a bounded number at a time, with a
back-off while a node is silent. A frame that a node lacks (`LackingNames`) is handed to that node.

The buffer is bounded in bytes. Above the bound the oldest frames are given up, those of the
largest part first; publishing goes on. Every frame that is given up is counted.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from anabranch.core.changes import PUBLISH
from anabranch.core.frames import MAX_FRAME_BYTES, peek
from anabranch.core.ids import FrameHead, NodeId, StreamPart, publisher_of
from anabranch.core.machine import Effect, ForgetFrames, KeepFrame, Notice, Send, Sizes
from anabranch.core.messages import AskStored, Contact, Hand
from anabranch.core.messages.storage import MAX_PAGE_FRAMES, PAGE_BYTES, FrameName
from anabranch.core.registry_view import StreamView
from anabranch.core.timers import Timers

MAX_UNSTORED_BYTES = 64 << 20
LEAST_UNSTORED_BYTES = 4 << 20  # a smaller bound would not hold a few of the largest frames
FRAME_COST_BYTES = 512  # of memory for each frame, beside its own bytes
OFFER_AFTER_S = 1.0  # how long new names wait for others, to be offered together
OFFERS_PER_S = 100  # to one storage node: with more parts than that the names wait longer
AGAIN_FIRST_S, AGAIN_MOST_S = 1.0, 30.0  # back-off while a storage node does not sign
WINDOW = 1_024  # names that are offered to a storage node at a time, in one part
NAMES_AT_ONCE = 256  # in one message
HAND_AFTER_S = 1.0  # after publishing: a younger frame may be on its way through the overlay
HAND_BYTES = 1 << 20  # of frames that are on the way to a storage node at a time
NOTICE_AFTER_S = 5.0
MAX_IDLE_PARTS = 1_000  # without a frame that waits
MAX_COUNTED_PARTS = 1_000  # whose given up messages are counted by part

UNSTORED, STORED_AGAIN = "unstored", "stored-again"  # kinds of notices


class Ledger(Protocol):
    """The registry, as far as storage nodes and rights to publish are concerned."""

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        """Return the storage nodes that a stream names."""

    def stream(self, name: str) -> StreamView | None:
        """Return what is known of a stream; None unless it is known."""

    def version(self, chain: str) -> int:
        """Return how many changes of a stream are known."""


class Kept(msgspec.Struct):
    """A published frame with the storage nodes that have signed for it."""

    part: StreamPart
    name: FrameName
    frame: bytes  # empty once the frame is stored or given up
    count: int  # messages
    since: float
    hand_at: float  # before that it may still be on its way through the overlay
    is_given: bool = False  # its numbers are the application's choice
    is_awaited: bool = False  # a receipt is wanted: the end of the frame is reported
    marks: list[NodeId] = []
    others: list[NodeId] = []  # that have signed for another frame with these given numbers
    hashed: bytes = b""

    @property
    def size(self) -> int:
        """Return what the frame costs of the buffer."""
        return len(self.frame) + FRAME_COST_BYTES

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the frame."""
        if not self.hashed:
            self.hashed = hashlib.sha256(self.frame).digest()
        return self.hashed


class Unstored(msgspec.Struct, frozen=True):
    """Messages of a part without a mark: those that wait, and those that were given up."""

    waiting: int
    given_up: int


class _Lane(msgspec.Struct):
    """The offers of one part to one linked storage node."""

    node: NodeId
    todo: deque[Kept]  # to be offered, oldest first; some may be stored by now
    offered: dict[FrameName, Kept] = {}  # without an answer
    lacking: dict[FrameName, Kept] = {}  # to be handed over
    handed: dict[FrameName, int] = {}  # bytes on the way
    is_due: bool = False  # the timer is set for new names
    retry_at: float | None = None  # when the frames that it declined are offered again
    again_at: float = 0.0  # when the offered names are repeated
    wait_s: float = AGAIN_FIRST_S


class _Part(msgspec.Struct):
    """The frames of one part, oldest first."""

    part: StreamPart
    nodes: tuple[NodeId, ...] = ()  # the storage nodes that the ledger names now
    frames: OrderedDict[FrameName, Kept] = msgspec.field(default_factory=OrderedDict)
    lanes: dict[NodeId, _Lane] = {}
    size: int = 0
    messages: int = 0
    is_noticed: bool = False
    is_unpermitted: bool = False
    is_full: bool = False  # frames were given up because the buffer was full

    @property
    def majority(self) -> int:
        """How many storage nodes have to sign."""
        return len(self.nodes) // 2 + 1


_Timer = tuple[StreamPart, NodeId | None]  # the lane of a node; None: the notice of a part


class UnstoredFrames:
    """The frames of all parts, within one bound, and their offers."""

    def __init__(
        self,
        ledger: Ledger,
        up: Collection[NodeId],
        bound_bytes: int = MAX_UNSTORED_BYTES,
        lasting: Iterable[KeepFrame] | None = None,
    ) -> None:
        """`lasting` are the frames that the data folder holds, oldest first; None: no folder.

        `up` are the linked nodes.
        """
        self._ledger = ledger
        self._up = up
        self._bound_bytes = max(bound_bytes, LEAST_UNSTORED_BYTES)
        self._is_lasting = lasting is not None
        self._parts: dict[StreamPart, _Part] = {}
        self._bytes = 0
        self.messages = 0  # that wait
        self.given_up = 0  # messages, ever
        self.stored = 0  # messages, ever: a majority has signed for them
        self._given_up: dict[StreamPart, int] = {}
        self._handed_bytes: dict[NodeId, int] = {}
        self._lanes: dict[NodeId, int] = {}  # how many
        self._timers: Timers[_Timer] = Timers()
        self.is_rearmed = False  # a timer was set by `keep`, and nobody has looked at it yet
        self._gone: dict[StreamPart, list[FrameName]] = {}  # to be deleted from the folder
        self._ended: list[Kept] = []  # awaited frames that were given up
        for each in lasting or ():
            self._load(each)

    # --- What others may ask --------------------------------------------------------------

    @property
    def wakeup_at(self) -> float | None:
        """When something is due."""
        return self._timers.next_at

    def streams(self) -> list[str]:
        """Return the streams with frames that wait."""
        return list(dict.fromkeys(s.part.stream for s in self._parts.values() if s.frames))

    def messages_of(self, part: StreamPart) -> int:
        """Return how many messages of a part wait."""
        state = self._parts.get(part)
        return state.messages if state is not None else 0

    def unstored(self, part: StreamPart) -> Unstored:
        """Return how many messages of a part are without a mark."""
        return Unstored(self.messages_of(part), self._given_up.get(part, 0))

    def all_unstored(self) -> dict[StreamPart, Unstored]:
        """Return it for every part that has such messages."""
        waiting = [part for part, state in self._parts.items() if state.messages]
        return {part: self.unstored(part) for part in dict.fromkeys([*waiting, *self._given_up])}

    def find(self, part: StreamPart, name: FrameName) -> Kept | None:
        """Return a frame that waits."""
        state = self._parts.get(part)
        return state.frames.get(name) if state is not None else None

    def waiting(self, part: StreamPart) -> list[bytes]:
        """Return the frames of a part that wait, oldest first."""
        state = self._parts.get(part)
        return [kept.frame for kept in state.frames.values()] if state is not None else []

    def needed(self) -> list[Contact]:
        """Return the storage nodes to which frames are to be offered."""
        needed: dict[NodeId, Contact] = {}
        for stream in self.streams():
            needed |= {each.node: each for each in self._ledger.keepers(stream)}
        return list(needed.values())

    @property
    def is_linked(self) -> bool:
        """Whether so many storage nodes are linked that frames of some part could be stored."""
        waiting = [state for state in self._parts.values() if state.frames and state.nodes]
        return any(len(state.lanes) >= state.majority for state in waiting)

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        lanes = [lane for state in self._parts.values() for lane in state.lanes.values()]
        idle = sum(1 for state in self._parts.values() if not state.frames)
        handed = max(self._handed_bytes.values(), default=0)
        return {
            "unstored bytes": (self._bytes, self._bound_bytes),
            "parts without unstored frames": (idle, MAX_IDLE_PARTS),
            "parts with frames given up": (len(self._given_up), MAX_COUNTED_PARTS),
            "names offered": (max((len(lane.offered) for lane in lanes), default=0), WINDOW),
            "bytes handed": (handed, HAND_BYTES + MAX_FRAME_BYTES),
        }

    # --- Keeping --------------------------------------------------------------------------

    def keep(
        self, part: StreamPart, head: FrameHead, frame: bytes, now: float, is_given: bool = False
    ) -> tuple[Kept | None, list[Effect]]:
        """Keep a frame that was just published; None: its stream has no storage nodes."""
        state = self._parts.get(part)
        effects: list[Effect] = []
        if state is None or not state.nodes:
            state = self._begin(part, now)
            if not state.nodes:
                return None, []
        name = FrameName(head.chain, head.last)
        if is_given and (before := state.frames.get(name)) is not None:
            if before.frame == frame:
                return before, []
            self._remove(state, before)
            effects += self._forget_gone()  # before another frame of this name is kept
        kept = Kept(part, name, frame, head.count, now, now + HAND_AFTER_S, is_given)
        self._add(state, kept, now)
        if self._is_lasting:
            effects.append(KeepFrame(part, name, frame, is_given))
        if self._bytes > self._bound_bytes:
            effects += self._make_room()
        return kept, effects

    def withdraw(self, part: StreamPart, name: FrameName) -> list[Effect]:
        """Forget a frame that no neighbour took: its messages count as not published."""
        state = self._parts.get(part)
        kept = state.frames.get(name) if state is not None else None
        if state is None or kept is None:
            return []
        self._remove(state, kept)
        return self._forget_gone()

    def _load(self, lasting: KeepFrame) -> None:
        """Take a frame out of the folder; its storage nodes are learned later."""
        part, name, frame = lasting.part, lasting.name, lasting.frame
        state = self._parts.setdefault(part, _Part(part))
        if name not in state.frames:
            count = peek(frame).count
            self._add(state, Kept(part, name, frame, count, 0.0, 0.0, lasting.is_given), 0.0)

    def lasting(self) -> Iterator[KeepFrame]:
        """Return all frames that wait, those of each part oldest first."""
        for state in self._parts.values():
            for kept in state.frames.values():
                yield KeepFrame(kept.part, kept.name, kept.frame, kept.is_given)

    def start(self, now: float) -> list[Effect]:
        """Begin with the frames of the folder."""
        for state in self._parts.values():
            self._timers.set((state.part, None), now + NOTICE_AFTER_S)
            for kept in state.frames.values():
                kept.since = now
        return self._make_room()

    def _begin(self, part: StreamPart, now: float) -> _Part:
        """Begin to keep frames of a part, if its stream has storage nodes."""
        state = self._parts.get(part)
        if state is None:
            state = _Part(part)
            nodes = tuple(each.node for each in self._ledger.keepers(part.stream))
            if not nodes:
                return state
            self._parts[part] = state
        self._name_nodes(state, now)
        return state

    def tidy(self) -> None:
        """Forget parts without frames when there are many parts."""
        if len(self._parts) > MAX_IDLE_PARTS:
            for idle in [each for each in self._parts.values() if not each.frames]:
                self._drop_part(idle)

    def _drop_part(self, state: _Part) -> None:
        for node in list(state.lanes):
            self._close_lane(state, node)
        self._timers.cancel((state.part, None))
        del self._parts[state.part]

    def _add(self, state: _Part, kept: Kept, now: float) -> None:
        if not state.frames:
            self._timers.set((state.part, None), now + NOTICE_AFTER_S)
            self.is_rearmed = True
        state.frames[kept.name] = kept
        state.size += kept.size
        state.messages += kept.count
        self._bytes += kept.size
        self.messages += kept.count
        for lane in state.lanes.values():
            lane.todo.append(kept)
            if not lane.is_due:
                lane.is_due = self.is_rearmed = True
                self._timers.sooner((state.part, lane.node), now + self._gather_s(lane.node))
            if len(lane.todo) > 2 * len(state.frames) + WINDOW:
                lane.todo = deque(each for each in lane.todo if each.frame)

    def _gather_s(self, node: NodeId) -> float:
        return max(OFFER_AFTER_S, self._lanes.get(node, 0) / OFFERS_PER_S)

    def _remove(self, state: _Part, kept: Kept) -> None:
        """Keep a frame no longer."""
        del state.frames[kept.name]
        state.size -= kept.size
        state.messages -= kept.count
        self._bytes -= kept.size
        self.messages -= kept.count
        kept.frame = b""
        if self._is_lasting:
            self._gone.setdefault(state.part, []).append(kept.name)
        for lane in state.lanes.values():
            lane.lacking.pop(kept.name, None)
            self._settle_handed(lane, kept.name)

    def _forget_gone(self) -> list[Effect]:
        """Delete from the folder what is kept no longer."""
        if not self._gone:
            return []
        gone, self._gone = self._gone, {}
        return [ForgetFrames(part, tuple(names)) for part, names in gone.items()]

    # --- The bound ------------------------------------------------------------------------

    def _make_room(self) -> list[Effect]:
        """Give up the oldest frames of the largest part, until the bound holds again."""
        effects: list[Effect] = []
        while self._bytes > self._bound_bytes:
            state = max(self._parts.values(), key=lambda each: each.size)
            if not state.is_full:
                state.is_full = True
                hint = (
                    f"{self._bound_bytes >> 20} MiB of messages wait for its storage nodes: "
                    "the oldest are given up and may be missing there"
                )
                effects.append(Notice(state.part, UNSTORED, hint))
            self._give_up(state, next(iter(state.frames.values())))
        return effects + self._forget_gone()

    def count_lost(self, part: StreamPart, count: int) -> None:
        """Count messages that will never be stored."""
        self.given_up += count
        if part in self._given_up or len(self._given_up) < MAX_COUNTED_PARTS:
            self._given_up[part] = self._given_up.get(part, 0) + count

    def _give_up(self, state: _Part, kept: Kept) -> None:
        self.count_lost(state.part, kept.count)
        if kept.is_awaited:
            self._ended.append(kept)
        self._remove(state, kept)

    def take_ended(self) -> list[Kept]:
        """Return, once, the awaited frames that were given up."""
        ended, self._ended = self._ended, []
        return ended

    # --- The storage nodes that the ledger names ------------------------------------------

    def learned(self, stream: str, now: float) -> list[Effect]:
        """Do as the ledger of a stream has it now."""
        effects: list[Effect] = []
        for state in [each for each in self._parts.values() if each.part.stream == stream]:
            was_unpermitted, state.is_unpermitted = state.is_unpermitted, False
            effects += self._name_nodes(state, now)
            for lane in state.lanes.values():
                if was_unpermitted or lane.retry_at is not None:
                    self._restart(state, lane, now)
        return effects

    def _name_nodes(self, state: _Part, now: float) -> list[Effect]:
        """Count and serve the storage nodes that the ledger names now."""
        view = self._ledger.stream(state.part.stream)
        if view is None or not self._ledger.version(state.part.stream):
            return []  # nothing is known of the stream, which is no reason to forget its frames
        nodes = tuple(each.node for each in self._ledger.keepers(state.part.stream))
        if nodes == state.nodes:
            return []
        state.nodes = nodes
        for node in [node for node in state.lanes if node not in nodes]:
            self._close_lane(state, node)
        if not nodes:
            return self._forget_all(state, view)
        for kept in list(state.frames.values()):
            self._count(state, kept)
        for node in nodes:
            if node in self._up:
                self._open_lane(state, node, now)
        return self._forget_gone()

    def _forget_all(self, state: _Part, view: StreamView) -> list[Effect]:
        """Keep nothing for a stream that names no storage node any more."""
        effects: list[Effect] = []
        if state.messages:
            why = "was deleted" if view.created is None else "no longer names storage nodes"
            hint = f"the stream {why}: {state.messages} messages wait for none any more"
            effects.append(Notice(state.part, UNSTORED, hint))
        for kept in list(state.frames.values()):
            if kept.is_awaited:
                self._ended.append(kept)
            self._remove(state, kept)
        self._drop_part(state)
        return effects + self._forget_gone()

    # --- Marks ----------------------------------------------------------------------------

    def mark(self, kept: Kept, node: NodeId, now: float) -> None:
        """Count a storage node that has signed for a frame that waits."""
        state = self._parts[kept.part]
        lane = state.lanes.get(node)
        if lane is not None:
            lane.offered.pop(kept.name, None)
            lane.lacking.pop(kept.name, None)
            self._settle_handed(lane, kept.name)
            lane.wait_s = AGAIN_FIRST_S
            lane.again_at = now + AGAIN_FIRST_S
        kept.marks.append(node)
        self._count(state, kept)

    def otherwise(self, kept: Kept, node: NodeId) -> bool:
        """Count a storage node that has signed for another frame with these given numbers.

        Forget the frame, and return true, if a majority has: one of them could sign falsely.
        """
        if node not in kept.others:
            kept.others.append(node)
        nodes = [each.node for each in self._ledger.keepers(kept.part.stream)]
        if sum(1 for each in kept.others if each in nodes) <= len(nodes) // 2:
            return False
        if kept.frame:
            self._remove(self._parts[kept.part], kept)
        return True

    def _count(self, state: _Part, kept: Kept) -> None:
        """Let a frame go that a majority of the present storage nodes has signed for."""
        if sum(1 for node in kept.marks if node in state.nodes) >= state.majority:
            self.stored += kept.count
            self._remove(state, kept)

    def marked(self, part: StreamPart, node: NodeId, now: float) -> list[Effect]:
        """Go on with the offers to a storage node that has signed for frames of a part."""
        effects = self._forget_gone()
        state = self._parts.get(part)
        if state is None:
            return effects
        if not state.frames:
            state.is_full = False
            if state.is_noticed:
                state.is_noticed = False
                effects.append(Notice(part, STORED_AGAIN, "its storage nodes have every message"))
        lane = state.lanes.get(node)
        if lane is None:
            return effects
        if len(lane.todo) >= WINDOW // 4 and len(lane.offered) <= WINDOW // 2:
            effects += self._offer(state, lane, now)
        elif lane.offered:
            self._timers.sooner((part, node), lane.again_at)
        return effects + self._hand_on(node, now)

    # --- Offers ---------------------------------------------------------------------------

    def link(self, node: NodeId, up: bool, now: float) -> list[Effect]:
        """Offer everything to a storage node as soon as it is linked."""
        effects: list[Effect] = []
        for state in self._parts.values():
            if node not in state.nodes:
                continue
            if not up:
                self._close_lane(state, node)
            elif node not in state.lanes:
                lane = self._open_lane(state, node, now)
                effects += self._offer(state, lane, now) if lane.todo else []
        return effects

    def offer_all(self, now: float) -> list[Effect]:
        """Offer all new names at once, since the application is about to leave."""
        effects: list[Effect] = []
        for state in self._parts.values():
            for lane in state.lanes.values():
                if lane.todo:
                    effects += self._offer(state, lane, now)
        return effects

    def _open_lane(self, state: _Part, node: NodeId, now: float) -> _Lane:
        lane = state.lanes.get(node)
        if lane is None:
            lane = state.lanes[node] = _Lane(node, deque())
            self._lanes[node] = self._lanes.get(node, 0) + 1
            self._restart(state, lane, now)
        return lane

    def _restart(self, state: _Part, lane: _Lane, now: float) -> None:
        """Let everything be offered to a storage node anew."""
        self._unhand(lane)
        lane.offered, lane.lacking, lane.retry_at = {}, {}, None
        lane.todo = deque(k for k in state.frames.values() if lane.node not in k.marks)
        if lane.todo:
            lane.is_due = True
            self._timers.sooner((state.part, lane.node), now + OFFER_AFTER_S)

    def _close_lane(self, state: _Part, node: NodeId) -> None:
        lane = state.lanes.pop(node, None)
        if lane is not None:
            self._unhand(lane)
            self._timers.cancel((state.part, node))
            self._lanes[node] -= 1
            if not self._lanes[node]:
                del self._lanes[node]

    def _offer(self, state: _Part, lane: _Lane, now: float) -> list[Effect]:
        """Repeat what has no answer for too long, and offer as many new names as may be."""
        if lane.retry_at is not None and now >= lane.retry_at:
            self._restart(state, lane, now)
        lane.is_due = False
        lane.offered = {name: kept for name, kept in lane.offered.items() if kept.frame}
        if not self._may_publish(state, now):
            self._timers.set((state.part, lane.node), now + AGAIN_MOST_S)
            return self._say_unpermitted(state)
        names: list[FrameName] = []
        if lane.offered and now >= lane.again_at:
            self._unhand(lane)
            lane.lacking.clear()
            names += lane.offered
            lane.wait_s = min(AGAIN_MOST_S, 2 * lane.wait_s)
            lane.again_at = now + lane.wait_s
        elif not lane.offered:
            lane.again_at = now + lane.wait_s
        while lane.todo and len(lane.offered) < WINDOW:
            kept = lane.todo.popleft()
            if kept.frame and lane.node not in kept.marks:
                lane.offered[kept.name] = kept
                if not kept.is_awaited:  # Receipts asks for those at once, and every second
                    names.append(kept.name)
        times = [lane.again_at] if lane.offered else []
        times += [lane.retry_at] if lane.retry_at is not None else []
        if times:
            self._timers.set((state.part, lane.node), min(times))
        else:
            self._timers.cancel((state.part, lane.node))
        return asks(lane.node, state.part, names)

    def _may_publish(self, state: _Part, now: float) -> bool:
        view = self._ledger.stream(state.part.stream)
        if view is None or not state.frames:
            return True
        return view.may(publisher_of(next(iter(state.frames)).chain), PUBLISH, now)

    def _say_unpermitted(self, state: _Part) -> list[Effect]:
        if state.is_unpermitted:
            return []
        state.is_unpermitted = True
        hint = f"{state.messages} messages cannot be stored: you may no longer publish there"
        return [Notice(state.part, UNSTORED, hint)]

    # --- Handing over ---------------------------------------------------------------------

    def lacks(
        self, node: NodeId, part: StreamPart, names: Sequence[FrameName], now: float
    ) -> list[Effect]:
        """Hand over the frames that a storage node lacks, as far as there is room on the way."""
        state = self._parts.get(part)
        lane = state.lanes.get(node) if state is not None else None
        if state is None or lane is None:
            return []
        for name in names:
            kept = state.frames.get(name)
            if kept is None or node in kept.marks or name in lane.handed:
                continue
            if name not in lane.offered and len(lane.offered) >= WINDOW:
                continue
            if now < kept.hand_at:
                lane.offered.setdefault(name, kept)
                lane.again_at = min(lane.again_at, kept.hand_at)
                self._timers.sooner((part, node), lane.again_at)
            else:
                lane.offered[name] = lane.lacking[name] = kept
        return self._hand(state, lane, now)

    def declines(
        self, node: NodeId, part: StreamPart, names: Sequence[FrameName], now: float
    ) -> None:
        """Leave frames alone that a storage node refuses, until the ledger changes or for long."""
        state = self._parts.get(part)
        lane = state.lanes.get(node) if state is not None else None
        if lane is None:
            return
        if lane.retry_at is None:
            lane.retry_at = now + AGAIN_MOST_S
            self._timers.sooner((part, node), lane.retry_at)
        for name in names:
            lane.offered.pop(name, None)

    def _hand(self, state: _Part, lane: _Lane, now: float) -> list[Effect]:
        """Hand over frames until so many bytes are on the way to the node, or one frame."""
        frames: list[bytes] = []
        while lane.lacking and self._handed_bytes.get(lane.node, 0) < HAND_BYTES:
            name = next(iter(lane.lacking))
            kept = lane.lacking.pop(name)
            frames.append(kept.frame)
            lane.handed[name] = len(kept.frame)
            handed = self._handed_bytes.get(lane.node, 0) + len(kept.frame)
            self._handed_bytes[lane.node] = handed
        if frames:
            lane.again_at = max(lane.again_at, now + lane.wait_s)
            self._timers.set((state.part, lane.node), lane.again_at)
        return [Send(lane.node, Hand(state.part, page)) for page in pages(frames)]

    def _hand_on(self, node: NodeId, now: float) -> list[Effect]:
        """Hand over what had no room before."""
        effects: list[Effect] = []
        if self._handed_bytes.get(node, 0) > HAND_BYTES // 2:
            return effects
        for state in self._parts.values():
            lane = state.lanes.get(node)
            if lane is not None and lane.lacking:
                effects += self._hand(state, lane, now)
        return effects

    def _settle_handed(self, lane: _Lane, name: FrameName) -> None:
        size = lane.handed.pop(name, None)
        if size is not None:
            self._handed_bytes[lane.node] -= size
            if not self._handed_bytes[lane.node]:
                del self._handed_bytes[lane.node]

    def _unhand(self, lane: _Lane) -> None:
        """Count nothing as on the way any more."""
        for name in list(lane.handed):
            self._settle_handed(lane, name)

    # --- Time -----------------------------------------------------------------------------

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for part, node in self._timers.pop_due(now):
            state = self._parts[part]
            if node is None:
                effects += self._notice(state, now)
            elif node in state.lanes:
                effects += self._offer(state, state.lanes[node], now)
        return effects

    def _notice(self, state: _Part, now: float) -> list[Effect]:
        """Say that frames wait for long."""
        if not state.frames or state.is_noticed:
            return []
        since = next(iter(state.frames.values())).since
        if now < since + NOTICE_AFTER_S:
            self._timers.set((state.part, None), since + NOTICE_AFTER_S)
            return []
        state.is_noticed = True
        linked, nodes = len(state.lanes), len(state.nodes)
        hint = (
            f"{state.messages} messages are not stored after {NOTICE_AFTER_S:.0f} s: "
            f"{linked} of its {nodes} storage nodes are linked, {state.majority} must sign"
        )
        return [Notice(state.part, UNSTORED, hint)]


def asks(node: NodeId, part: StreamPart, names: Sequence[FrameName]) -> list[Effect]:
    """Ask a storage node about frames, so many at a time."""
    starts = range(0, len(names), NAMES_AT_ONCE)
    return [Send(node, AskStored(part, tuple(names[at : at + NAMES_AT_ONCE]))) for at in starts]


def pages(frames: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """Divide frames into what fits one message; a large frame goes alone."""
    divided: list[list[bytes]] = []
    size = 0
    for frame in frames:
        if not divided or size + len(frame) > PAGE_BYTES or len(divided[-1]) == MAX_PAGE_FRAMES:
            divided.append([])
            size = 0
        divided[-1].append(frame)
        size += len(frame)
    return [tuple(page) for page in divided]
