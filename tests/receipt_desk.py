"""A publisher that waits for receipts, and storage nodes that say whatever a test wants."""

import hashlib
from types import SimpleNamespace
from typing import Any

from anabranch.core.changes import CreateStream
from anabranch.core.identity import Signer
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Effect, Receipt, Send
from anabranch.core.messages import Acknowledged, AskStored, Contact
from anabranch.core.messages.storage import FrameName, Holding
from anabranch.core.receipts import Receipts, signed_bytes
from machines import KEYS, NODES, PART, SIGNERS, START, Chain, head, of

NET = b"n" * 32
KEEPERS = (1, 2, 3)  # places of the storage nodes of PART
ME = SIGNERS[9]


class Listed:
    """A registry that knows the storage nodes of streams, and whether everybody may publish."""

    def __init__(self, *places: int) -> None:
        self.streams = {PART.stream: places}
        self.unknown: set[str] = set()  # streams that no tracker has answered about
        self.deleted: set[str] = set()
        self.may_publish = True
        self.address = "{}:1"

    def stream(self, name: str) -> Any:
        if name in self.unknown:
            return None
        created = None if name in self.deleted else CreateStream()
        return SimpleNamespace(created=created, may=lambda user, right, now: self.may_publish)

    def version(self, chain: str) -> int:
        return int(chain in self.streams)

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        is_known = stream not in self.unknown and stream not in self.deleted
        places = self.streams.get(stream, ()) if is_known else ()
        return tuple(Contact(NODES[place], self.address.format(place)) for place in places)


class Desk:
    """A publisher's receipts, with links to all storage nodes that it wants."""

    def __init__(self, *places: int) -> None:
        self.registry = Listed(*(places or KEEPERS))
        self.receipts: Any = Receipts(NET, KEYS.verify, self.registry)
        self.now = START
        self.chain = Chain(ME)
        self.effects: list[Effect] = []  # all there ever were

    def publish(self, *wanted: tuple[int, int], size: int = 5, part: StreamPart = PART) -> bytes:
        """Publish a frame whose drafts want (ticket, copies); return it."""
        frame = self.chain.frame(bytes(size), at=self.now)
        self.done(self.receipts.published(part, head(frame), frame, wanted, self.now))
        return frame

    def link(self, *places: int, up: bool = True) -> list[Effect]:
        linked = [self.receipts.link(NODES[place], up, "", self.now) for place in places]
        return self.done([effect for effects in linked for effect in effects])

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, and return what is done about it."""
        until, effects = self.now + seconds, list[Effect]()
        while (at := self.receipts.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self.receipts.wake(self.now)
            assert self.receipts.wakeup_at is None or self.receipts.wakeup_at > self.now
        self.now = until
        return self.done(effects)

    def say(self, place: int, *frames: bytes, **others: Any) -> list[Effect]:
        word = acknowledged(place, *frames, **others)
        return self.done(self.receipts.receive(NODES[place], word, self.now))

    def done(self, effects: list[Effect]) -> list[Effect]:
        for name, (size, bound) in self.receipts.sizes().items():
            assert size <= bound, name
        self.effects += effects
        return effects

    def receipt(self, ticket: int) -> Receipt | None:
        """Return the receipt of a ticket, of which there is at most one."""
        found = [each for each in of(Receipt, self.effects) if each.ticket == ticket]
        assert len(found) <= 1
        return found[0] if found else None


def holding(frame: bytes, offset: int = 40, digest: bytes = b"") -> Holding:
    name = FrameName(head(frame).chain, head(frame).last)
    return Holding(name, offset, digest or hashlib.sha256(frame).digest())


def acknowledged(
    place: int,
    *frames: bytes,
    offset: int = 40,
    signer: Signer | None = None,
    network: bytes = NET,
    part: StreamPart = PART,
    digest: bytes = b"",
) -> Acknowledged:
    """Let a storage node say that it holds frames, one after the other from an offset on."""
    held = tuple(holding(frame, offset + at, digest) for at, frame in enumerate(frames))
    signature = (signer or SIGNERS[place]).sign(signed_bytes(network, part, held))
    return Acknowledged(part, held, signature)


def said(receipt: Receipt | None) -> list[int]:
    """Return whose words a receipt holds."""
    assert receipt is not None
    return [NODES.index(node) for node, _ in receipt.words]


def messages(kind: type, effects: list[Effect], to: int | None = None) -> list[Any]:
    sent = [e for e in of(Send, effects) if type(e.message) is kind]
    return [e.message for e in sent if to is None or e.to == NODES[to]]


def asked(effects: list[Effect], to: int) -> list[int]:
    """Return the numbers of the frames that a node is asked for."""
    return [name.last for ask in messages(AskStored, effects, to) for name in ask.names]


def last(*frames: bytes) -> list[int]:
    return [head(frame).last for frame in frames]
