"""Frames that wait for their key: bounded in number, bytes and time, in order along each chain.

When there is no room, somebody who has more than an equal share of it makes room: the publisher of
the frame that comes if that is one, otherwise who has most. So a publisher that sends what nobody
can ever read crowds out nobody but itself, and one that is alone may have all the room.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from anabranch.core.frames import Lock
from anabranch.core.ids import ChainKey, FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.machine import Sizes

HOLD_S = 30.0
MAX_HELD_FRAMES = 16_384
MAX_HELD_BYTES = 16 << 20
MAX_HELD_PER_CHAIN = 4_096

ChainName = tuple[PartKey, ChainKey]
KeyName = tuple[str, NodeId, bytes]  # stream, publisher, key id


class Held(msgspec.Struct):
    """A frame that is ours to deliver, but for its key."""

    part: StreamPart
    head: FrameHead
    frame: bytes
    hops: int
    sender: NodeId | None
    lock: Lock
    until: float = 0.0
    place: int = 0  # in the order of coming

    @property
    def chain(self) -> ChainName:
        """The chain that the frame is of."""
        return self.head.part, self.head.chain

    @property
    def key(self) -> KeyName:
        """The key that it waits for."""
        return self.part.stream, self.head.publisher, self.lock.key_id


class _Share:
    """What one publisher has of the room."""

    def __init__(self) -> None:
        self.order: OrderedDict[int, ChainName] = OrderedDict()  # the chain of every frame
        self.bytes = 0


class HeldFrames:
    """The frames that wait. The oldest make room: real-time data is worth most when it is new."""

    def __init__(self) -> None:
        self._chains: dict[ChainName, deque[Held]] = {}
        self._order: OrderedDict[int, ChainName] = OrderedDict()  # the chain of every frame
        self._shares: dict[NodeId, _Share] = {}
        self._awaited: dict[KeyName, dict[ChainName, None]] = {}  # by the first frames of chains
        self._bytes = 0
        self._came = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def next_at(self) -> float | None:
        """When the oldest has waited long enough."""
        if not self._order:
            return None
        return self._chains[next(iter(self._order.values()))][0].until

    def __contains__(self, chain: ChainName) -> bool:
        return chain in self._chains

    def of(self, chain: ChainName) -> deque[Held]:
        """Return what waits of a chain, oldest first; there is something."""
        return self._chains[chain]

    def awaiting(self, key: KeyName) -> list[ChainName]:
        """Return the chains whose first frame waits for a key."""
        return list(self._awaited.get(key, ()))

    def put(self, held: Held, now: float) -> list[Held]:
        """Keep a frame behind those of its chain; return what has to go for it."""
        self._came += 1
        held.place, held.until = self._came, now + HOLD_S
        chain, size = held.chain, len(held.frame)
        waiting = self._chains.setdefault(chain, deque())
        waiting.append(held)
        if len(waiting) == 1:
            self._awaited.setdefault(held.key, {})[chain] = None
        share = self._shares.setdefault(held.head.publisher, _Share())
        self._order[held.place] = share.order[held.place] = chain
        self._bytes += size
        share.bytes += size
        gone: list[Held] = []
        if len(waiting) > MAX_HELD_PER_CHAIN:
            gone.append(self.take(chain))
        while len(self._order) > MAX_HELD_FRAMES:
            gone.append(self._make_room(share, lambda each: len(each.order), MAX_HELD_FRAMES))
        while self._bytes > MAX_HELD_BYTES:
            gone.append(self._make_room(share, lambda each: each.bytes, MAX_HELD_BYTES))
        return gone

    def take(self, chain: ChainName) -> Held:
        """Take the oldest frame of a chain."""
        waiting = self._chains[chain]
        held = waiting.popleft()
        self._no_longer_awaits(held.key, chain)
        if waiting:
            self._awaited.setdefault(waiting[0].key, {})[chain] = None
        else:
            del self._chains[chain]
        share = self._shares[held.head.publisher]
        del self._order[held.place], share.order[held.place]
        self._bytes -= len(held.frame)
        share.bytes -= len(held.frame)
        if not share.order:
            del self._shares[held.head.publisher]
        return held

    def expire(self, now: float) -> list[Held]:
        """Take what has waited long enough."""
        gone: list[Held] = []
        while (at := self.next_at) is not None and at <= now:
            gone.append(self._oldest_of(self._order))
        return gone

    def leave(self, part: PartKey) -> list[Held]:
        """Take all that waits in a part."""
        gone: list[Held] = []
        for chain in [chain for chain in self._chains if chain[0] == part]:
            while chain in self._chains:
                gone.append(self.take(chain))
        return gone

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        longest = max(map(len, self._chains.values()), default=0)
        return {
            "frames without a key": (len(self._order), MAX_HELD_FRAMES),
            "bytes without a key": (self._bytes, MAX_HELD_BYTES),
            "frames of a chain without a key": (longest, MAX_HELD_PER_CHAIN),
            "publishers without a key": (len(self._shares), MAX_HELD_FRAMES),
            "keys awaited": (len(self._awaited), MAX_HELD_FRAMES),
        }

    def _make_room(self, comer: _Share, amount: Callable[[_Share], int], room: int) -> Held:
        """Take the oldest frame of somebody who has more than an equal share of the room."""
        pays = comer
        if amount(comer) * len(self._shares) <= room:
            pays = max(self._shares.values(), key=amount)
        return self._oldest_of(pays.order)

    def _oldest_of(self, order: OrderedDict[int, ChainName]) -> Held:
        # Chains are in the order of coming, so the oldest of many is the first of its chain.
        return self.take(next(iter(order.values())))

    def _no_longer_awaits(self, key: KeyName, chain: ChainName) -> None:
        chains = self._awaited[key]
        del chains[chain]
        if not chains:
            del self._awaited[key]
