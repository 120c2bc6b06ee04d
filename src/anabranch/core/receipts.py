"""Receipts: what storage nodes say, and sign, of the frames that we have published.

A draft may want so many copies. Its frame is kept until as many of the stream's storage nodes have
said that they hold it, at one and the same offset; each is asked again every second, and after the
first second the frame is handed to those that have not said so, since it may never have come to
them. What has not come about in time is said as well, with the words that there are.

What a storage node signs is the SHA-256 of

    domain | length (2) | network | length (2) | stream | partition (1) | count (4) | holdings
    holding = chain (28) | last number (8) | offset (8) | SHA-256 of the frame (32)
"""

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Protocol

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.identity import Verify
from anabranch.core.ids import FrameHead, NodeId, StreamPart
from anabranch.core.links import MAX_HELD, MAX_UNHELD
from anabranch.core.machine import Effect, Hold, Notice, Receipt, Release, Send, Sizes
from anabranch.core.messages import Acknowledged, AskStored, Contact, Control, Hand
from anabranch.core.messages.storage import MAX_PAGE_FRAMES, PAGE_BYTES, FrameName, Holding
from anabranch.core.service import Service
from anabranch.core.timers import Timers

STORED_S = 20.0
GATHER_S = 0.01  # how long names wait for others, to be asked for together
NAMES_AT_ONCE = 256  # in one message
AGAIN_S = 1.0
HAND_AGAIN_S = 5.0
HAND_BYTES = 1 << 20  # of frames that are handed over at a time, in all
IDLE_S = 10.0  # after this a link to a storage node that was not asked is let go
MAX_WAITING_FRAMES = 4_096
MAX_WAITING_BYTES = 32 << 20
MAX_KEEPERS = 256  # storage nodes to which we hold links

BUSY = "busy"  # too much waits for its receipts already
DISAGREES = "storage-disagrees"
OTHERWISE = "stored-otherwise"  # what was published under the same numbers is something else

_DOMAIN = b"anabranch acknowledged v1\0"


class Keepers(Protocol):
    """What receipts need of a registry."""

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        """Return the storage nodes that a stream names."""


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
    """A frame of ours, and who has said that he holds it."""

    part: StreamPart
    name: FrameName
    frame: bytes
    digest: bytes
    wanted: list[tuple[int, int]]  # ticket, copies
    until: float
    hand_at: float
    words: dict[NodeId, tuple[int, Acknowledged]]  # the offset, and the word that names it
    disputed: bool = False
    is_given: bool = False


class Receipts(Service):
    """Asks storage nodes for their word on what we have published."""

    messages = (Acknowledged,)

    def __init__(self, network: bytes, verify: Verify, registry: Keepers) -> None:
        self._network = network
        self._verify = verify
        self._registry = registry
        self._frames: OrderedDict[_Name, _Awaited] = OrderedDict()  # in the order of giving up
        self._bytes = 0
        self._ask_at: Timers[_Name] = Timers()
        self._held: OrderedDict[NodeId, float] = OrderedDict()  # when last needed, oldest first
        self._up: set[NodeId] = set()

    # --- What is wanted -------------------------------------------------------------------

    def published(
        self,
        part: StreamPart,
        head: FrameHead,
        frame: bytes,
        wanted: Sequence[tuple[int, int]],
        now: float,
        is_given: bool = False,
    ) -> list[Effect]:
        """Ask for receipts of drafts in a frame of ours: their tickets, and how many copies.

        Its numbers may be given: then it may have been published before, and even be stored.
        """
        keepers = self._registry.keepers(part.stream)
        effects: list[Effect] = []
        possible = [each for each in wanted if each[1] <= len(keepers)]
        for ticket, copies in wanted:
            if copies > len(keepers):
                effects.append(Receipt(ticket, (), _too_few(part, copies, len(keepers))))
        if possible and not self._has_room(keepers, len(frame)):
            return effects + [Receipt(ticket, (), BUSY) for ticket, _ in possible]
        if not possible:
            return effects
        effects += self._need(keepers, now)
        name, digest = FrameName(head.chain, head.last), hashlib.sha256(frame).digest()
        if (before := self._frames.get((part, name))) is not None:
            possible = [*before.wanted, *possible]
            self._forget(before)
        until, hand_at = now + STORED_S, now + AGAIN_S
        awaited = _Awaited(part, name, frame, digest, possible, until, hand_at, {})
        awaited.is_given = is_given
        self._frames[part, name] = awaited
        self._bytes += len(frame)
        self._ask_at.set((part, name), now + GATHER_S)
        self._rearm()
        return effects

    def _has_room(self, keepers: Sequence[Contact], size: int) -> bool:
        links = len(self._held) + sum(1 for each in keepers if each.node not in self._held)
        frames = len(self._frames) < MAX_WAITING_FRAMES
        return frames and self._bytes + size <= MAX_WAITING_BYTES and links <= MAX_KEEPERS

    def _need(self, keepers: Sequence[Contact], now: float) -> list[Effect]:
        """Hold links to storage nodes, or go on holding them."""
        effects: list[Effect] = []
        for contact in keepers:
            if contact.node not in self._held:
                if len(self._held) >= MAX_KEEPERS:
                    continue  # the stream has named it only now, and there is no room for it
                effects.append(Hold(contact.node, contact.address))
            self._held[contact.node] = now
            self._held.move_to_end(contact.node)
        return effects

    # --- Asking ---------------------------------------------------------------------------

    def _ask(self, names: Sequence[_Name], now: float) -> list[Effect]:
        """Ask who has not said that he holds frames, and ask again in a while."""
        effects: list[Effect] = []
        by_part: dict[StreamPart, list[_Awaited]] = {}
        for name in names:
            by_part.setdefault(name[0], []).append(self._frames[name])
            self._ask_at.set(name, now + AGAIN_S)
        left = HAND_BYTES
        for part, frames in by_part.items():
            keepers = self._registry.keepers(part.stream)
            effects += self._need(keepers, now)
            nodes = [each.node for each in keepers if each.node in self._up]
            for node in nodes:
                effects += _questions(node, part, frames)
            due = [each for each in frames if each.hand_at <= now and nodes]
            handed, left = self._hand(nodes, part, due, left, now)
            effects += handed
        return effects

    def _hand(
        self,
        nodes: Sequence[NodeId],
        part: StreamPart,
        frames: Sequence[_Awaited],
        left: int,
        now: float,
    ) -> tuple[list[Effect], int]:
        """Hand over as many frames as there is room for, oldest first; those after it wait."""
        chosen: list[_Awaited] = []
        for awaited in frames:
            if left <= 0:
                break
            left -= len(awaited.frame)
            awaited.hand_at = now + HAND_AGAIN_S
            chosen.append(awaited)
        effects: list[Effect] = []
        for node in nodes:
            lacking = [each.frame for each in chosen if node not in each.words]
            effects += [Send(node, Hand(part, page)) for page in _pages(lacking)]
        return effects, left

    # --- What storage nodes say -----------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a storage node's word; RemoteError if it is not its own."""
        assert type(message) is Acknowledged
        part = message.part
        news: list[tuple[_Awaited, Holding]] = []
        for holding in message.holdings:
            awaited = self._frames.get((part, holding.name))
            if awaited is not None and sender not in awaited.words:
                news.append((awaited, holding))
        if not news or not self._keeps(sender, part):
            return []  # late, or of somebody who was one of them until just now
        check_receipt(self._network, part, self._verify, sender, message)
        others = [awaited for awaited, holding in news if holding.digest != awaited.digest]
        if not all(awaited.is_given for awaited in others):
            raise RemoteError("receipt", "of another frame than ours")
        effects: list[Effect] = []
        for awaited, holding in news:
            if holding.digest == awaited.digest:
                effects += self._said(awaited, sender, holding, message)
            elif self._frames.get((part, awaited.name)) is awaited:  # else it was named twice
                effects += [Receipt(ticket, (), OTHERWISE) for ticket, _ in awaited.wanted]
                self._forget(awaited)
        self._rearm()
        return effects

    def _keeps(self, node: NodeId, part: StreamPart) -> bool:
        return any(each.node == node for each in self._registry.keepers(part.stream))

    def _said(
        self, awaited: _Awaited, node: NodeId, holding: Holding, word: Acknowledged
    ) -> list[Effect]:
        """Count a word; whoever has now got as many as he wanted gets his receipt."""
        if node in awaited.words:
            return []  # the same word named it twice
        effects: list[Effect] = []
        offset = holding.offset
        if not awaited.disputed and any(each[0] != offset for each in awaited.words.values()):
            awaited.disputed = True
            effects.append(Notice(awaited.part, DISAGREES, f"{node.hex()} has it at {offset}"))
        awaited.words[node] = (offset, word)
        words = _at(awaited, offset)
        done = [ticket for ticket, copies in awaited.wanted if copies <= len(words)]
        first = peek(awaited.frame).first
        effects += [Receipt(ticket, words, "", offset, first) for ticket in done]
        awaited.wanted = [each for each in awaited.wanted if each[1] > len(words)]
        if not awaited.wanted:
            self._forget(awaited)
        return effects

    def _forget(self, awaited: _Awaited) -> None:
        name = (awaited.part, awaited.name)
        del self._frames[name]
        self._ask_at.cancel(name)
        self._bytes -= len(awaited.frame)

    # --- Links and time -------------------------------------------------------------------

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask a storage node as soon as there is a link to it."""
        if not up:
            self._up.discard(peer)
            return []
        self._up.add(peer)
        effects: list[Effect] = []
        by_part: dict[StreamPart, list[_Awaited]] = {}
        for awaited in self._frames.values():
            by_part.setdefault(awaited.part, []).append(awaited)
        for part, frames in by_part.items():
            if self._keeps(peer, part):
                effects += _questions(peer, part, frames)
        return effects

    def wake(self, now: float) -> list[Effect]:
        """Give up, ask, ask again, and let links go that nobody needs."""
        effects: list[Effect] = []
        while self._frames and (first := next(iter(self._frames.values()))).until <= now:
            self._forget(first)
            effects += _given_up(first)
        if (at := self._ask_at.next_at) is not None and at <= now:
            # Those that are due a moment later are asked for in the same messages.
            effects += self._ask(self._ask_at.pop_due(now + GATHER_S), now)
        while self._held and next(iter(self._held.values())) + IDLE_S <= now:
            effects.append(Release(self._held.popitem(last=False)[0]))
        self._rearm()
        return effects

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "frames without receipts": (len(self._frames), MAX_WAITING_FRAMES),
            "bytes without receipts": (self._bytes, MAX_WAITING_BYTES),
            "storage nodes asked": (len(self._held), MAX_KEEPERS),
            "links known to receipts": (len(self._up), MAX_HELD + MAX_UNHELD),
        }

    def _rearm(self) -> None:
        times = [self._ask_at.next_at]
        if self._frames:
            times.append(next(iter(self._frames.values())).until)
        if self._held:
            times.append(next(iter(self._held.values())) + IDLE_S)
        self.wakeup_at = min((at for at in times if at is not None), default=None)


def _questions(node: NodeId, part: StreamPart, frames: Sequence[_Awaited]) -> list[Effect]:
    """Ask a storage node for its word on those of the frames that it has not yet given it on."""
    names = [each.name for each in frames if node not in each.words]
    starts = range(0, len(names), NAMES_AT_ONCE)
    return [Send(node, AskStored(part, tuple(names[at : at + NAMES_AT_ONCE]))) for at in starts]


def _pages(frames: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """Divide frames into what fits one message; a large frame goes alone."""
    pages: list[list[bytes]] = []
    size = 0
    for frame in frames:
        if not pages or size + len(frame) > PAGE_BYTES or len(pages[-1]) == MAX_PAGE_FRAMES:
            pages.append([])
            size = 0
        pages[-1].append(frame)
        size += len(frame)
    return [tuple(page) for page in pages]


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
