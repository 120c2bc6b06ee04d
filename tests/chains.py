"""What tests of the registry share: a network, its owner, writers of chains, an instant disk."""

from typing import Any

from anabranch.core.changes import (
    Action,
    CreateStream,
    Genesis,
    SetTrackers,
    TrackerEntry,
    encode_genesis,
    network_name,
    pack_page,
    unpack_page,
)
from anabranch.core.history import History, make_change
from anabranch.core.identity import Signer
from anabranch.core.ids import show
from anabranch.core.machine import Effect, Store, Stored
from anabranch.core.messages import ChainPage, Contact, ReadChain
from anabranch.core.messages.registry import NETWORK
from machines import KEYS, NODES, SIGNERS, START, sent

OWNER = SIGNERS[0]
GENESIS = encode_genesis(Genesis(1, "test", int(START * 1000) - 5_000, OWNER.node, b"n" * 16))
NET = network_name(GENESIS)
STREAM = f"{show(OWNER.node)}/city/cars"
SECOND = f"{show(OWNER.node)}/other"
WRITER, COPIER, THIRD = NODES[30:33]
ENTRIES = tuple(
    TrackerEntry(node, f"ws://{at}:1", f"http://{at}:2")
    for at, node in enumerate((WRITER, COPIER, THIRD))
)


FOUND = Contact(WRITER, "ws://found")


class Writer:
    """Writes one chain: what it holds is always valid."""

    def __init__(self, chain: str = STREAM, network: bytes = NET) -> None:
        self.history = History(chain, network)
        if chain == NETWORK:
            self.history.add(GENESIS, KEYS.verify)

    @property
    def chain(self) -> str:
        """Its name."""
        return self.history.chain

    @property
    def state(self) -> Any:
        """What follows from what was written."""
        return self.history.state

    @property
    def changes(self) -> list[bytes]:
        """What was written, in the canonical order."""
        return self.history.changes

    def next(self, *actions: Action, signer: Signer = OWNER, at: float = START) -> bytes:
        """Make the next change and do not add it."""
        return make_change(signer, self.history, actions, at)

    def add(self, *actions: Action, signer: Signer = OWNER, at: float = START) -> "Writer":
        """Add changes, one for each action."""
        for action in actions:
            self.take(self.next(action, signer=signer, at=at))
        return self

    def take(self, *changes: bytes) -> "Writer":
        """Add changes that somebody else made."""
        for encoded in changes:
            self.history.add(encoded, KEYS.verify)
        return self

    def fork(self) -> "Writer":
        """Return a writer that stands where this one stands, and goes its own way."""
        twin = Writer(self.chain, self.history.network)
        twin.history = self.history.copy()
        return twin

    def rows(self) -> list[tuple[str, int, bytes]]:
        """Return the chain as a disk holds it."""
        return [(self.chain, at, c) for at, c in enumerate(self.changes, 1)]


def network_rows(*entries: TrackerEntry) -> list[tuple[str, int, bytes]]:
    """Return the network's chain as a disk holds it."""
    writer = Writer(NETWORK)
    return (writer.add(SetTrackers(entries)) if entries else writer).rows()


def stream_rows(chain: str = STREAM, *actions: Action) -> list[tuple[str, int, bytes]]:
    """Return a stream's chain as a disk holds it."""
    return Writer(chain).add(CreateStream(public=3), *actions).rows()


class Disk:
    """Performs what a machine wants stored, at once, and remembers it."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, bytes]] = []
        self.problem = ""

    def settle(self, effects: list[Effect], stored: Any) -> list[Effect]:
        """Answer each Store through `stored`; return all other effects."""
        done: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            if type(effect) is not Store:
                done.append(effect)
                continue
            if not self.problem:
                self.rows.append((effect.chain, effect.sequence, effect.change))
            waiting = stored(Stored(effect.token, self.problem)) + waiting
        return done


def page_of(asked: ReadChain, writer: Writer, upto: int | None = None) -> ChainPage:
    """Answer a read truthfully, as a keeper does."""
    history = writer.history
    known = asked.after == 0 or history.head_at(asked.after) == asked.head
    after = asked.after if known else 0
    packed = pack_page(history.changes[:upto], after)
    return ChainPage(asked.ticket, asked.chain, after, history.height, history.head, packed)


def heights(page: ChainPage) -> tuple[int, int, int]:
    """Return after what, how many changes, and of how many a page tells."""
    return page.after, len(unpack_page(page.changes)), page.height


def created(*actions: Any) -> Writer:
    return Writer().add(CreateStream(2), *actions)


def reads(effects: list[Effect]) -> list[tuple[bytes, str, int]]:
    """Whom is asked for what, after how many changes."""
    return [(to, asked.chain, asked.after) for to, asked in sent(ReadChain, effects)]
