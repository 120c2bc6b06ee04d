"""Signed acknowledgements of storage nodes for published frames, and the receipts made of them.

Every frame of a stored stream is kept in `UnstoredFrames` (unstored.py) until a majority of its
storage nodes has signed for it. A draft may also want a receipt with a number of copies: then the
storage nodes are asked at once, and again every second, until as many of them have signed for one
and the same offset. A receipt that does not come in time, or whose frame is given up, says so.

What a storage node signs is the SHA-256 of

    domain | length (2) | network | length (2) | stream | partition (1) | count (4) | holdings
    holding = chain (28) | last number (8) | offset (8) | SHA-256 of the frame (32) | late (1)
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import FrameHead, NodeId, StreamPart
from anabranch.core.links import MAX_HELD, MAX_UNHELD
from anabranch.core.machine import (
    Effect,
    Event,
    Hold,
    KeepFrame,
    Notice,
    OfferUnstored,
    Receipt,
    Release,
    Sizes,
)
from anabranch.core.messages import Acknowledged, Contact, Control, Declined, LackingNames
from anabranch.core.messages.storage import FrameName, Holding
from anabranch.core.service import Service
from anabranch.core.timers import Timers
from anabranch.core.unstored import MAX_UNSTORED_BYTES, Kept, Ledger, UnstoredFrames, asks

STORED_S = 20.0
GATHER_S = 0.01  # how long names wait for others, to be asked for together
AGAIN_S = 1.0
IDLE_S = 10.0  # after this a link to a storage node that was not asked is let go
MAX_WAITING_FRAMES = 4_096
MAX_KEEPERS = 256  # storage nodes to which we hold links

BUSY = "busy"  # too much waits for its receipts already
DISAGREES = "storage-disagrees"
OTHERWISE = "stored-otherwise"  # what was published under the same numbers is something else
UNTAKEN = "no neighbour took it"
GIVEN_UP = "too many messages wait for the storage nodes of the stream: the oldest were given up"

_DOMAIN = b"anabranch acknowledged v2\0"


def signed_bytes(network: bytes, part: StreamPart, holdings: Sequence[Holding]) -> bytes:
    """Return the digest that a storage node signs when it says what it holds of a part."""
    name = part.stream.encode()
    digest = hashlib.sha256(_DOMAIN)
    digest.update(len(network).to_bytes(2) + network)
    digest.update(len(name).to_bytes(2) + name + bytes([part.partition]))
    digest.update(len(holdings).to_bytes(4))
    for holding in holdings:  # a chain and a digest are of fixed size, so each takes as much
        chain, last = holding.name.chain, holding.name.last
        digest.update(chain + last.to_bytes(8) + holding.offset.to_bytes(8) + holding.digest)
        digest.update(bytes([holding.late]))
    return digest.digest()


def check_receipt(
    network: bytes, part: StreamPart, verify: Verify, node: NodeId, word: Acknowledged
) -> None:
    """Raise RemoteError unless a storage node has signed this word on this part."""
    if word.part != part:
        raise RemoteError("receipt", f"of {word.part}")
    if not verify(node, signed_bytes(network, word.part, word.holdings), word.signature):
        raise RemoteError("receipt", "not signed by the storage node")


_Name = tuple[StreamPart, FrameName]


class _Awaited(msgspec.Struct):
    """A frame for which receipts are wanted, with the acknowledgements that have come."""

    kept: Kept
    first: int  # its first number
    wanted: list[tuple[int, int]]  # ticket, copies
    until: float
    words: dict[NodeId, tuple[int, Acknowledged]]  # the offset, and the message that names it
    disputed: bool = False

    @property
    def part(self) -> StreamPart:
        """The part of the frame."""
        return self.kept.part

    @property
    def name(self) -> FrameName:
        """The name of the frame."""
        return self.kept.name


class Receipts(Service):
    """Keeps published frames until they are stored, and collects the receipts that are wanted."""

    messages = (Acknowledged, LackingNames, Declined)
    events = (OfferUnstored,)

    def __init__(
        self,
        network: bytes,
        verify: Verify,
        registry: Ledger,
        bound_bytes: int = MAX_UNSTORED_BYTES,
        lasting: Iterable[KeepFrame] | None = None,
    ) -> None:
        """`lasting` are the frames in the data folder; None: there is no folder."""
        self._network = network
        self._verify = verify
        self._registry = registry
        self._frames: OrderedDict[_Name, _Awaited] = OrderedDict()  # in the order of giving up
        self._ask_at: Timers[_Name] = Timers()
        self._held: OrderedDict[NodeId, float] = OrderedDict()  # when last needed, oldest first
        self._addresses: dict[NodeId, str] = {}  # of the held ones
        self._up: set[NodeId] = set()
        self.unstored = UnstoredFrames(registry, self._up, bound_bytes, lasting)

    def start(self, now: float) -> list[Effect]:
        """Begin with the frames of the data folder."""
        return self._done(self.unstored.start(now))

    # --- Published frames -----------------------------------------------------------------

    def stores(self, stream: str) -> bool:
        """Tell whether the frames of a stream are to be kept until they are stored."""
        return bool(self._registry.keepers(stream))

    def published(
        self,
        part: StreamPart,
        head: FrameHead,
        frame: bytes,
        wanted: Sequence[tuple[int, int]],
        now: float,
        is_given: bool = False,
    ) -> list[Effect]:
        """Keep a frame until it is stored; `wanted` are the tickets that want copies.

        Its numbers may be given: then it may have been published before, and even be stored.
        """
        was_empty = not self.unstored.messages_of(part)
        kept, effects = self.unstored.keep(part, head, frame, now, is_given)
        if kept is not None and was_empty:
            effects = self._need(self._registry.keepers(part.stream), now) + effects
        if wanted:
            effects += self._await(part, head, kept, wanted, now)
        elif not effects and not self.unstored.is_rearmed:
            return effects  # as nearly always
        return self._done(effects)

    def withdraw(self, part: StreamPart, name: FrameName) -> list[Effect]:
        """Forget a frame that no neighbour took: its messages count as not published."""
        effects = self.unstored.withdraw(part, name)
        awaited = self._frames.get((part, name))
        if awaited is not None:
            self._forget(awaited)
            effects += [Receipt(ticket, (), UNTAKEN) for ticket, _ in awaited.wanted]
        return self._done(effects)

    def _await(
        self,
        part: StreamPart,
        head: FrameHead,
        kept: Kept | None,
        wanted: Sequence[tuple[int, int]],
        now: float,
    ) -> list[Effect]:
        """Ask for the receipts that are wanted of a frame."""
        keepers = self._registry.keepers(part.stream)
        effects: list[Effect] = []
        possible = [each for each in wanted if each[1] <= len(keepers)]
        for ticket, copies in wanted:
            if copies > len(keepers):
                effects.append(Receipt(ticket, (), _too_few(part, copies, len(keepers))))
        if not possible or kept is None:
            return effects
        if not self._has_room(keepers):
            return effects + [Receipt(ticket, (), BUSY) for ticket, _ in possible]
        effects += self._need(keepers, now)
        before = self._frames.get((part, kept.name))
        if before is not None:
            possible = [*before.wanted, *possible]
            self._forget(before)
        awaited = _Awaited(kept, head.first, possible, now + STORED_S, {})
        kept.is_awaited = True
        self._frames[part, kept.name] = awaited
        self._ask_at.set((part, kept.name), now + GATHER_S)
        return effects

    def _has_room(self, keepers: Sequence[Contact]) -> bool:
        links = len(self._held) + sum(1 for each in keepers if each.node not in self._held)
        return len(self._frames) < MAX_WAITING_FRAMES and links <= MAX_KEEPERS

    def _need(self, keepers: Sequence[Contact], now: float) -> list[Effect]:
        """Hold links to storage nodes, or go on holding them."""
        effects: list[Effect] = []
        for contact in keepers:
            node = contact.node
            if node not in self._held:
                if len(self._held) >= MAX_KEEPERS:
                    continue  # there is no room for it now: it is asked when there is
                effects.append(Hold(node, contact.address))
            elif self._addresses[node] != contact.address:  # it has moved
                effects += [Hold(node, contact.address), Release(node)]
            self._addresses[node] = contact.address
            self._held[node] = now
            self._held.move_to_end(node)
        return effects

    # --- Asking ---------------------------------------------------------------------------

    def _ask(self, names: Sequence[_Name], now: float) -> list[Effect]:
        """Ask the storage nodes that have not signed, and ask again in a while."""
        effects: list[Effect] = []
        by_part: dict[StreamPart, list[_Awaited]] = {}
        for name in names:
            by_part.setdefault(name[0], []).append(self._frames[name])
            self._ask_at.set(name, now + AGAIN_S)
        for part, frames in by_part.items():
            keepers = self._registry.keepers(part.stream)
            effects += self._need(keepers, now)
            for node in [each.node for each in keepers if each.node in self._up]:
                effects += _questions(node, part, frames)
        return effects

    # --- What storage nodes say -----------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take an answer of a storage node; RemoteError if its signature does not hold."""
        if type(message) is Acknowledged:
            return self._done(self._acknowledged(sender, message, now))
        assert isinstance(message, LackingNames | Declined)
        if not self._keeps(sender, message.part):
            return []
        if type(message) is LackingNames:
            return self._done(self.unstored.lacks(sender, message.part, message.names, now))
        self.unstored.declines(sender, message.part, message.names, now)
        return self._done([])

    def _acknowledged(self, sender: NodeId, message: Acknowledged, now: float) -> list[Effect]:
        part = message.part
        news: list[tuple[Kept, _Awaited | None, Holding]] = []
        for holding in message.holdings:
            kept, awaited = self.unstored.find(part, holding.name), None
            if self._frames and (found := self._frames.get((part, holding.name))) is not None:
                kept, awaited = found.kept, found
            if kept is None:
                continue
            is_mark = bool(kept.frame) and sender not in kept.marks
            if is_mark or (awaited is not None and sender not in awaited.words):
                news.append((kept, awaited, holding))
        if not news or not self._keeps(sender, part):
            return []  # late, or of a node that was a storage node until just now
        check_receipt(self._network, part, self._verify, sender, message)
        if not all(kept.is_given or holding.digest == kept.digest for kept, _, holding in news):
            raise RemoteError("receipt", "of another frame than ours")
        effects: list[Effect] = []
        for kept, awaited, holding in news:
            if holding.digest != kept.digest:
                effects += self._stored_otherwise(kept, sender)
                continue
            if awaited is not None:
                effects += self._said(awaited, sender, holding, message)
            if kept.frame and sender not in kept.marks:
                self.unstored.mark(kept, sender, now)
        return effects + self.unstored.marked(part, sender, now)

    def _stored_otherwise(self, kept: Kept, node: NodeId) -> list[Effect]:
        """Another frame has the given numbers of this one for good, if a majority says so."""
        if not self.unstored.otherwise(kept, node):
            return []
        awaited = self._frames.get((kept.part, kept.name))
        if awaited is None or awaited.kept is not kept:
            return []
        self._forget(awaited)
        return [Receipt(ticket, (), OTHERWISE) for ticket, _ in awaited.wanted]

    def _keeps(self, node: NodeId, part: StreamPart) -> bool:
        return any(each.node == node for each in self._registry.keepers(part.stream))

    def _said(
        self, awaited: _Awaited, node: NodeId, holding: Holding, word: Acknowledged
    ) -> list[Effect]:
        """Count an acknowledgement; give the receipts for which there are enough of them."""
        if node in awaited.words or self._frames.get((awaited.part, awaited.name)) is not awaited:
            return []  # the same message named it twice
        effects: list[Effect] = []
        offset = holding.offset
        if not awaited.disputed and any(each[0] != offset for each in awaited.words.values()):
            awaited.disputed = True
            effects.append(Notice(awaited.part, DISAGREES, f"{node.hex()} has it at {offset}"))
        awaited.words[node] = (offset, word)
        words = _at(awaited, offset)
        done = [ticket for ticket, copies in awaited.wanted if copies <= len(words)]
        effects += [
            Receipt(ticket, words, "", offset, awaited.first, holding.late) for ticket in done
        ]
        awaited.wanted = [each for each in awaited.wanted if each[1] > len(words)]
        if not awaited.wanted:
            self._forget(awaited)
        return effects

    def _forget(self, awaited: _Awaited) -> None:
        name = (awaited.part, awaited.name)
        del self._frames[name]
        self._ask_at.cancel(name)
        awaited.kept.is_awaited = False

    # --- Links and time -------------------------------------------------------------------

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask a storage node as soon as there is a link to it."""
        if not up:
            if peer not in self._up:
                return []
            self._up.discard(peer)
            return self._done(self.unstored.link(peer, False, now))
        self._up.add(peer)
        effects: list[Effect] = []
        by_part: dict[StreamPart, list[_Awaited]] = {}
        for awaited in self._frames.values():
            by_part.setdefault(awaited.part, []).append(awaited)
        for part, frames in by_part.items():
            if self._keeps(peer, part):
                effects += _questions(peer, part, frames)
        return self._done(effects + self.unstored.link(peer, True, now))

    def learned(self, chain: str, now: float) -> list[Effect]:
        """Do as the registry has it now: storage nodes, their addresses, rights to publish."""
        effects = self.unstored.learned(chain, now)
        if self._held or self.unstored.messages:
            effects += self._need(self.unstored.needed(), now)
        return self._done(effects)

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Offer at once what is not stored: the application is about to leave."""
        return self._done(self.unstored.offer_all(now))

    def wake(self, now: float) -> list[Effect]:
        """Give up, ask, ask again, and let links go that nobody needs."""
        effects: list[Effect] = []
        while self._frames and (first := next(iter(self._frames.values()))).until <= now:
            self._forget(first)
            effects += _given_up(first)
        if (at := self._ask_at.next_at) is not None and at <= now:
            # Those that are due a moment later are asked for in the same messages.
            effects += self._ask(self._ask_at.pop_due(now + GATHER_S), now)
        if (at := self.unstored.wakeup_at) is not None and at <= now:
            effects += self.unstored.wake(now)
        if self._held and next(iter(self._held.values())) + IDLE_S <= now:
            effects += self._need(self.unstored.needed(), now)
        while self._held and next(iter(self._held.values())) + IDLE_S <= now:
            node = self._held.popitem(last=False)[0]
            del self._addresses[node]
            effects.append(Release(node))
        return self._done(effects)

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "frames without receipts": (len(self._frames), MAX_WAITING_FRAMES),
            "storage nodes asked": (len(self._held), MAX_KEEPERS),
            "links known to receipts": (len(self._up), MAX_HELD + MAX_UNHELD),
            **self.unstored.sizes(),
        }

    def _done(self, effects: list[Effect]) -> list[Effect]:
        """End the receipts of frames that were given up, and arm the timer."""
        for kept in self.unstored.take_ended():
            awaited = self._frames.get((kept.part, kept.name))
            if awaited is not None and awaited.kept is kept:
                self._forget(awaited)
                effects += [Receipt(ticket, (), GIVEN_UP) for ticket, _ in awaited.wanted]
        self.unstored.tidy()
        self.unstored.is_rearmed = False
        times = [self._ask_at.next_at, self.unstored.wakeup_at]
        if self._frames:
            times.append(next(iter(self._frames.values())).until)
        if self._held:
            times.append(next(iter(self._held.values())) + IDLE_S)
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects


def _questions(node: NodeId, part: StreamPart, frames: Sequence[_Awaited]) -> list[Effect]:
    """Ask a storage node for those of the frames that it has not signed for yet."""
    return asks(node, part, [each.name for each in frames if node not in each.words])


def _at(awaited: _Awaited, offset: int) -> tuple[tuple[NodeId, Acknowledged], ...]:
    words = awaited.words.items()
    return tuple((node, word) for node, (said, word) in words if said == offset)


def _given_up(awaited: _Awaited) -> list[Effect]:
    """Return the words there are, of those who agree, and how many are missing."""
    offsets = Counter(offset for offset, _ in awaited.words.values())
    words = _at(awaited, offsets.most_common(1)[0][0]) if offsets else ()
    return [
        Receipt(
            ticket,
            words,
            f"{len(words)} of {copies} storage nodes said within {STORED_S:.0f} s that they hold "
            "it: it may be stored all the same",
        )
        for ticket, copies in awaited.wanted
    ]


def _too_few(part: StreamPart, copies: int, keepers: int) -> str:
    if not keepers:
        return f"{part.stream} has no storage nodes: name some when you create or edit it"
    return f"{copies} copies are wanted, and {part.stream} has {keepers} storage nodes"
