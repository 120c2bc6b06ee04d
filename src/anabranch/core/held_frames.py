"""Frames that wait for their key: bounded in number, bytes and time, in order along each chain.

Those who read on this node wait apart from each other: what one of them has to wait for, since it
reads the past, holds up nobody else.

When there is no room, somebody who has more than an equal share of it makes room: the publisher of
the frame that comes if that is one, otherwise who has most. So a publisher that sends what nobody
can ever read crowds out nobody but itself, and one that is alone may have all the room.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import msgspec

from anabranch.core.frames import Lock
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.machine import Deliver, Dropped, Effect, Missed, Sizes
from anabranch.core.messages.storage import MAX_NUMBER

HOLD_S = 30.0
MAX_HELD_FRAMES = 16_384
MAX_HELD_BYTES = 16 << 20
MAX_HELD_PER_CHAIN = 4_096

ChainName = tuple[PartKey, ChainKey]
QueueName = tuple[PartKey, ChainKey, int]  # of the frames of a chain that wait for one reader
KeyName = tuple[str, NodeId, bytes]  # stream, publisher, key id

K = TypeVar("K", bound=Hashable)
E = TypeVar("E", bound=Hashable)


class Held(msgspec.Struct):
    """A frame that is ours to deliver, but for its key; to whom, and what of it, see Deliver."""

    part: StreamPart
    head: FrameHead
    frame: bytes
    hops: int
    sender: NodeId | None
    lock: Lock
    to: int = 0
    after: int = 0
    upto: int = MAX_NUMBER
    skip: int = 0
    most: int = MAX_NUMBER
    late: bool = False
    until: float = 0.0
    place: int = 0  # in the order of coming
    gap: Missed | None = None  # what is missing in its chain just behind it

    @property
    def chain(self) -> ChainName:
        """The chain that the frame is of."""
        return self.head.part, self.head.chain

    @property
    def queue(self) -> QueueName:
        """The queue that it waits in."""
        return self.head.part, self.head.chain, self.to

    @property
    def key(self) -> KeyName:
        """The key that it waits for."""
        return self.part.stream, self.head.publisher, self.lock.key_id

    def miss(self, missed: Missed) -> None:
        """Let it be told after this frame that messages did not come: with all of them, once."""
        if self.gap is not None:
            self.gap.after = min(self.gap.after, missed.after)
            self.gap.before = max(self.gap.before, missed.before)
        else:
            self.gap = missed

    def opened(self, key: bytes) -> Deliver:
        """Return what hands it to who reads it."""
        part, head, frame, hops = self.part, self.head, self.frame, self.hops
        wanted = (self.after, self.upto, self.skip, self.most, self.late)
        return Deliver(part, head, frame, hops, key, self.to, *wanted)

    def lost(self, reason: str) -> list[Effect]:
        """Count it as not delivered, and say so to who reads in order."""
        head, lost = self.head, list[Effect]()
        lost.append(Dropped(head, reason, self.sender, self.to))
        if self.to:
            after, before = max(self.after, head.first - 1), min(self.upto, head.last) + 1
            lost.append(Missed(self.to, self.part, head.chain, after, before, reason))
        return lost if self.gap is None else [*lost, self.gap]


class _Share:
    """What one publisher has of the room."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, QueueName] = OrderedDict()  # the queue of every frame
        self.bytes = 0


class HeldFrames:
    """The frames that wait. The oldest make room: real-time data is worth most when it is new."""

    def __init__(self) -> None:
        self._queues: dict[QueueName, deque[Held]] = {}
        self.order: OrderedDict[int, QueueName] = OrderedDict()  # the queue of every frame
        self._shares: dict[NodeId, _Share] = {}
        self._by_chain: dict[ChainName, dict[QueueName, None]] = {}
        self._awaited: dict[KeyName, dict[QueueName, None]] = {}  # by the first frames of queues
        self._by_reader: dict[int, dict[int, None]] = {}  # the places of what waits for each
        self._bytes = 0
        self._came = 0

    def __len__(self) -> int:
        return len(self.order)

    @property
    def next_at(self) -> float | None:
        """When the oldest has waited long enough."""
        if not self.order:
            return None
        return self._queues[next(iter(self.order.values()))][0].until

    def __contains__(self, queue: QueueName) -> bool:
        return queue in self._queues

    def of(self, queue: QueueName) -> deque[Held]:
        """Return what waits in a queue, oldest first; there is something."""
        return self._queues[queue]

    def has(self, chain: ChainName) -> bool:
        """Tell whether anything of a chain waits for anybody."""
        return chain in self._by_chain

    def queues(self, chain: ChainName) -> list[QueueName]:
        """Return the queues in which frames of a chain wait."""
        return list(self._by_chain.get(chain, ()))

    def all_of(self, chain: ChainName) -> Iterator[Held]:
        """Go through what waits of a chain, one reader's after another's."""
        for queue in self._by_chain.get(chain, ()):
            yield from self._queues[queue]

    def awaiting(self, key: KeyName) -> list[QueueName]:
        """Return the queues whose first frame waits for a key."""
        return list(self._awaited.get(key, ()))

    @property
    def newest(self) -> int:
        """The place of the frame that came last."""
        return self._came

    def oldest(self, reader: int) -> int | None:
        """Return the place of the first frame that waits for a reader; None: there is none."""
        return next(iter(self._by_reader.get(reader, ())), None)

    def put(self, held: Held, now: float) -> list[Held]:
        """Keep a frame behind those of its queue; return what has to go for it."""
        self._came += 1
        held.place, held.until = self._came, now + HOLD_S
        queue, size = held.queue, len(held.frame)
        waiting = self._queues.setdefault(queue, deque())
        waiting.append(held)
        if len(waiting) == 1:
            self._by_chain.setdefault(held.chain, {})[queue] = None
            self._awaited.setdefault(held.key, {})[queue] = None
        self._by_reader.setdefault(held.to, OrderedDict())[held.place] = None
        share = self._shares.setdefault(held.head.publisher, _Share())
        self.order[held.place] = share.order[held.place] = queue
        self._bytes += size
        share.bytes += size
        gone: list[Held] = []
        if len(waiting) > MAX_HELD_PER_CHAIN:
            gone.append(self.take(queue))
        while len(self.order) > MAX_HELD_FRAMES:
            gone.append(self._make_room(share, lambda each: len(each.order), MAX_HELD_FRAMES))
        while self._bytes > MAX_HELD_BYTES:
            gone.append(self._make_room(share, lambda each: each.bytes, MAX_HELD_BYTES))
        return gone

    def take(self, queue: QueueName) -> Held:
        """Take the oldest frame of a queue."""
        waiting = self._queues[queue]
        held = waiting.popleft()
        _remove(self._awaited, held.key, queue)
        if waiting:
            self._awaited.setdefault(waiting[0].key, {})[queue] = None
        else:
            del self._queues[queue]
            _remove(self._by_chain, held.chain, queue)
        _remove(self._by_reader, held.to, held.place)
        share = self._shares[held.head.publisher]
        del self.order[held.place], share.order[held.place]
        self._bytes -= len(held.frame)
        share.bytes -= len(held.frame)
        if not share.order:
            del self._shares[held.head.publisher]
        return held

    def expire(self, now: float) -> list[Held]:
        """Take what has waited long enough."""
        gone: list[Held] = []
        while (at := self.next_at) is not None and at <= now:
            gone.append(self._oldest_of(self.order))
        return gone

    def leave(self, part: PartKey) -> list[Held]:
        """Take all that waits in a part."""
        return self._take_all([queue for queue in self._queues if queue[0] == part])

    def close(self, reader: int) -> list[Held]:
        """Take all that waits for a reader."""
        if reader not in self._by_reader:
            return []
        return self._take_all([queue for queue in self._queues if queue[2] == reader])

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        longest = max(map(len, self._queues.values()), default=0)
        return {
            "frames without a key": (len(self.order), MAX_HELD_FRAMES),
            "bytes without a key": (self._bytes, MAX_HELD_BYTES),
            "frames of a chain without a key": (longest, MAX_HELD_PER_CHAIN),
            "chains without a key": (len(self._by_chain), MAX_HELD_FRAMES),
            "readers without a key": (len(self._by_reader), MAX_HELD_FRAMES),
            "publishers without a key": (len(self._shares), MAX_HELD_FRAMES),
            "keys awaited": (len(self._awaited), MAX_HELD_FRAMES),
        }

    def _take_all(self, queues: list[QueueName]) -> list[Held]:
        gone: list[Held] = []
        for queue in queues:
            while queue in self._queues:
                gone.append(self.take(queue))
        return gone

    def _make_room(self, comer: _Share, amount: Callable[[_Share], int], room: int) -> Held:
        """Take the oldest frame of somebody who has more than an equal share of the room."""
        pays = comer
        if amount(comer) * len(self._shares) <= room:
            pays = max(self._shares.values(), key=amount)
        return self._oldest_of(pays.order)

    def _oldest_of(self, order: OrderedDict[int, QueueName]) -> Held:
        # Queues are in the order of coming, so the oldest of many is the first of its queue.
        return self.take(next(iter(order.values())))


def _remove(table: dict[K, dict[E, None]], key: K, entry: E) -> None:
    """Take an entry out of a table of tables, and with the last one the table that it was in."""
    inner = table[key]
    del inner[entry]
    if not inner:
        del table[key]
