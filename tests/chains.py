"""What tests of the registry share: a network, its owner, writers of chains, an instant disk."""

import random
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
from anabranch.core.identity import Signer
from anabranch.core.ids import show
from anabranch.core.machine import Effect, Follow, Send, Store, Stored
from anabranch.core.messages import ChainPage, Contact, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import ChainState, make_change, new_chain
from anabranch.core.registry_reader import RegistryReader
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
        self.state: ChainState = new_chain(chain, network)
        self.changes: list[bytes] = []
        if chain == NETWORK:
            self.state.apply(GENESIS, KEYS.verify)
            self.changes.append(GENESIS)

    def next(self, action: Action, signer: Signer = OWNER, at: float = START) -> bytes:
        """Make the next change and do not add it."""
        return make_change(signer, self.state, action, at)

    def add(self, *actions: Action, signer: Signer = OWNER, at: float = START) -> "Writer":
        """Add changes."""
        for action in actions:
            encoded = self.next(action, signer, at)
            self.state.apply(encoded, KEYS.verify)
            self.changes.append(encoded)
        return self

    def rows(self) -> list[tuple[str, int, bytes]]:
        """Return the chain as a disk holds it."""
        return [(self.state.chain, at, c) for at, c in enumerate(self.changes, 1)]


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
                self.rows.append((effect.chain, effect.height, effect.change))
            waiting = stored(Stored(effect.token, self.problem)) + waiting
        return done


def page_of(asked: ReadChain, writer: Writer, upto: int | None = None) -> ChainPage:
    """Answer a read truthfully, as a keeper does."""
    state = writer.state
    packed = pack_page(writer.changes[:upto], asked.after)
    return ChainPage(asked.ticket, asked.chain, asked.after, state.height, state.head, packed)


def heights(page: ChainPage) -> tuple[int, int, int]:
    """Return after what, how many changes, and of how many a page tells."""
    return page.after, len(unpack_page(page.changes)), page.height


class Reading:
    """A reader, trackers that answer it truthfully when told to, and a clock."""

    def __init__(self, found: Contact = FOUND, **options: Any) -> None:
        self.reader: Any = RegistryReader(NET, KEYS.verify, found, random.Random(1), **options)
        self.now = START
        self.writers = {NETWORK: Writer(NETWORK)}
        self.deaf: set[bytes] = set()  # trackers that do not answer

    def start(self, *trackers: Any) -> list[Effect]:
        """Begin, and reach the tracker that was found."""
        if trackers:
            self.writers[NETWORK].add(SetTrackers(trackers))
        effects = self.reader.start(self.now)
        return effects + self.serve(self.link(self.reader._sources.writer))

    def link(self, peer: bytes, up: bool = True) -> list[Effect]:
        return self.reader.link(peer, up, "" if up else "reset", self.now)

    def tell(self, event: Any) -> list[Effect]:
        return self.reader.tell(event, self.now)

    def hear(self, sender: bytes, message: Any) -> list[Effect]:
        return self.reader.receive(sender, message, self.now)

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, and reads be answered meanwhile; return everything."""
        until = self.now + seconds
        effects: list[Effect] = []
        while (at := self.reader.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self.answer(self.reader.wake(self.now))
            assert self.reader.wakeup_at is None or self.reader.wakeup_at > self.now
        self.now = until
        return effects

    def serve(self, effects: list[Effect]) -> list[Effect]:
        """Answer every read, and what is read because of it; return all else."""
        every = self.answer(effects)
        return [e for e in every if not (type(e) is Send and type(e.message) is ReadChain)]

    def answer(self, effects: list[Effect]) -> list[Effect]:
        """Answer every read, and what is read because of it; return everything."""
        done: list[Effect] = []
        waiting = list(effects)
        while waiting:
            effect = waiting.pop(0)
            done.append(effect)
            if type(effect) is Send and type(effect.message) is ReadChain:
                asked = effect.message
                writer = self.writers.get(asked.chain) or Writer(asked.chain)
                if effect.to not in self.deaf:
                    waiting = self.hear(effect.to, page_of(asked, writer)) + waiting
        return done

    def follow(self, writer: Writer) -> list[Effect]:
        """Follow a chain that exists."""
        self.writers[writer.state.chain] = writer
        return self.serve(self.tell(Follow(writer.state.chain)))


def created(*actions: Any) -> Writer:
    return Writer().add(CreateStream(2), *actions)


def reads(effects: list[Effect]) -> list[tuple[bytes, str, int]]:
    """Whom is asked for what, after how many changes."""
    return [(to, asked.chain, asked.after) for to, asked in sent(ReadChain, effects)]
