"""Readers in order, with storage nodes good and bad, neighbours, an application and a clock."""

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from anabranch.core import frames
from anabranch.core.duplicates import NEW
from anabranch.core.ids import CHAIN_KEY_BYTES, ChainKey, NodeId
from anabranch.core.lending import page
from anabranch.core.machine import (
    Close,
    Deliver,
    Drained,
    Effect,
    HistoryEnded,
    Hold,
    Missed,
    Open,
    PageEnded,
    Release,
    Send,
)
from anabranch.core.messages import Contact, Resend, Resent
from anabranch.core.messages.storage import LATE, MAX_NUMBER, PAGE_BYTES, FrameName, Selection
from anabranch.core.parts import Parts
from anabranch.core.reader import Reader
from anabranch.core.store import Order, Page
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, OTHER, PART, SIGNERS, START, Chain, Plain, forged, plain_settings

GOOD, DEAD, SILENT, BUSY = "good", "dead", "silent", "busy"
FORGES, MIXES, EMPTY, LOOPS, TEARS = "forges", "mixes", "empty", "loops", "tears"
LIARS = (FORGES, MIXES, LOOPS, TEARS)
KEEPERS, NEIGHBOURS = NODES[1:9], NODES[9:13]
MAX_STEPS = 200_000

Seen = tuple[str, ChainKey, int, int]  # "got" a number, or "missed" what lies between two


class Application:
    """What one reader got, in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.ended: list[str] = []
        self.lost: list[tuple[int, int]] = []
        self.pages = 0
        self.reasons: list[str] = []

    @property
    def numbers(self) -> list[int]:
        """The numbers of the messages, in the order in which they came."""
        return [number for what, _, number, _ in self.seen if what == "got"]

    def missed(self) -> list[tuple[int, int]]:
        """What it was told that it missed."""
        return [(after, before) for what, _, after, before in self.seen if what == "missed"]


def kind_of(asked: Resend) -> str:
    """Tell what a question is for."""
    wanted = asked.selection
    if wanted.start == MAX_NUMBER:
        return "length"
    return "gaps" if wanted.by_number and len(wanted.whose) == CHAIN_KEY_BYTES else "pages"


def messages_of(effect: Deliver) -> list[int]:
    """Return the numbers of the messages that are to be delivered."""
    numbers = [message.number for message in frames.messages(effect.frame, effect.key)]
    chosen = numbers[effect.skip : min(effect.most, len(numbers))]
    return [number for number in chosen if effect.after < number <= effect.upto]


class ReadingWorld:
    """A reader without its Peer; every answer takes a while."""

    def __init__(
        self,
        *kinds: str,
        neighbours: int = 0,
        page_bytes: int = PAGE_BYTES,
        seed: int = 1,
        keys: Any = None,
    ) -> None:
        self.now = START
        self.kinds = dict(zip(KEEPERS, kinds, strict=False))
        self.page_bytes = page_bytes
        self.store = MemoryStore()
        self.own: dict[NodeId, MemoryStore] = {}  # of storage nodes whose disk is damaged
        self.answering = self.store
        self.kept: list[bytes] = []
        self.recent: list[bytes] = []  # what neighbours have
        self.writers = {signer.node for signer in SIGNERS}
        self.up: set[NodeId] = set(NEIGHBOURS[:neighbours])
        self.held: set[NodeId] = set()
        self.asked: list[tuple[NodeId, Resend]] = []
        self.apps: dict[int, Application] = {}
        self.plain: list[int] = []
        self.effects: list[Effect] = []
        self.drain_s = 0.0
        self.rtt_s = 0.02
        self._events: list[tuple[float, int, Callable[[], list[Effect]]]] = []
        self._order = 0
        settings = {PART: plain_settings(*NEIGHBOURS[:neighbours])}
        is_up = self.up.__contains__
        self.parts = Parts(
            Contact(NODES[0]), settings.get, {"plain": Plain}, random.Random(1), is_up
        )
        self.state: Any = self.parts.join(PART, START)[0]
        self.state.subscribed, self.state.plain = True, False
        self.verified = 0
        self.reader: Any = Reader(self, self._verify, random.Random(seed), self.parts, keys)
        for node in sorted(self.up):
            self.perform(self.reader.link(node, True, "", self.now))

    # --- What a reader must know ----------------------------------------------------------

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        return tuple(Contact(node, "address") for node in self.kinds)

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        return stream == PART.stream and publisher in self.writers

    def _verify(self, publisher: NodeId, digest: bytes, signature: bytes) -> bool:
        self.verified += 1
        return KEYS.verify(publisher, digest, signature)

    # --- What a test does -----------------------------------------------------------------

    def open(
        self, ticket: int = 1, history: Selection | None = None, **options: bool
    ) -> Application:
        """Let somebody read."""
        self.apps[ticket] = Application()
        self.perform(self.reader.tell(Open(ticket, PART, history, **options), self.now))
        return self.apps[ticket]

    def close(self, ticket: int = 1) -> None:
        """Let somebody read no more."""
        self.perform(self.reader.tell(Close(ticket), self.now))

    def asked_for(self, kind: str) -> list[tuple[NodeId, Selection]]:
        """Return who was asked for "gaps", for "pages" of a log, or for its "length"."""
        return [(node, asked.selection) for node, asked in self.asked if kind_of(asked) == kind]

    def end(self) -> None:
        """Let nobody read any more, and see that nothing is left."""
        for ticket in self.apps:
            self.close(ticket)
        self.run(60.0)
        assert self.held == set()
        assert {name: size for name, (size, _) in self.reader.sizes().items() if size} == {}

    def keep(self, *frames_: bytes, marks: tuple[int, ...] = ()) -> None:
        """Let the storage nodes have frames, in this order."""
        self.kept += frames_
        self.store.write([Order(PART, 1, 0, frames_, marks)])

    def damage(self, place: int, *frames_: bytes) -> None:
        """Let frames be damaged on the disk of one storage node."""
        store = self.own.setdefault(KEEPERS[place], MemoryStore())
        if not store.states():
            store.write([Order(PART, 1, 0, tuple(self.kept))])
        for frame in frames_:
            head = frames.peek(frame)
            store.damage(PART, FrameName(head.chain, head.last))

    def come(self, *frames_: bytes) -> None:
        """Let frames come live, as a Peer takes them."""
        for frame in frames_:
            head = frames.peek(frame)
            seen = self.state.seen
            if seen.check(head.chain, head.previous, head.first, head.last) is NEW:
                seen.mark(head.chain, head.previous, head.last)
                self.parts.recent.add(self.state.key, frame, self.now)
                taken = self.reader.take(self.state, head, frame, 2, NODES[20], self.now)
                assert not any(type(effect) in (Hold, Release) for effect in taken)
                self.perform(taken)

    def later(self, after_s: float, do: Callable[[], Any]) -> None:
        """Let something happen after a while."""
        self._order += 1
        heapq.heappush(self._events, (self.now + after_s, self._order, do))

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        for _ in range(MAX_STEPS):
            due = [self._events[0][0]] if self._events else []
            wakeup = self.reader.wakeup_at
            at = min([*due, *([] if wakeup is None else [max(wakeup, self.now)])], default=until)
            if at > until or (not due and wakeup is None):
                self.now = until
                return
            self.now = max(self.now, at)
            if due and due[0] <= self.now:
                heapq.heappop(self._events)[2]()
            else:
                self.perform(self.reader.wake(self.now))
                again = self.reader.wakeup_at
                assert again is None or again > self.now, "a wakeup did not do what was due"
            self._check()
        raise AssertionError("the reader never rests")

    def hear(self, sender: NodeId, message: Any) -> None:
        """Let a message come."""
        if sender in self.up:
            self.perform(self.reader.receive(sender, message, self.now))

    def cut(self, node: NodeId) -> None:
        """Let a link end."""
        self.up.discard(node)
        self.perform(self.reader.link(node, False, "reset", self.now))

    # --- What the world does --------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if type(effect) is Deliver:
                proof = frames.digest(effect.frame), frames.signature(effect.frame)
                assert KEYS.verify(effect.head.publisher, *proof), "a forged frame"
            if type(effect) is Deliver and effect.to == 0:
                self.plain += messages_of(effect)
            elif type(effect) is Deliver:
                chain = effect.head.chain
                got = [("got", chain, number, number) for number in messages_of(effect)]
                self.apps[effect.to].seen += got
            elif type(effect) is Missed:
                app = self.apps[effect.to]
                app.seen.append(("missed", effect.chain, effect.after, effect.before))
                app.reasons.append(effect.reason)
            elif type(effect) is HistoryEnded:
                self.apps[effect.to].ended.append(effect.problem)
                self.apps[effect.to].lost += [(span.start, span.end) for span in effect.lost]
            elif type(effect) is PageEnded:
                self.apps[effect.to].pages += 1
                self.later(self.drain_s, lambda to=effect.to: self._drain(to))  # type: ignore[misc]
            else:
                self._link(effect)

    def _link(self, effect: Effect) -> None:
        if type(effect) is Hold:
            assert effect.peer not in self.held, "held twice"
            self.held.add(effect.peer)
            if effect.peer not in self.up:
                self.later(self.rtt_s, lambda: self._dial(effect.peer))
        elif type(effect) is Release:
            self.held.remove(effect.peer)
        elif type(effect) is Send:
            assert effect.to in self.up, "a message to nobody"
            assert type(effect.message) is Resend
            asked = effect.message
            self.asked.append((effect.to, asked))
            self.later(self.rtt_s, lambda: self._answer(effect.to, asked))

    def _dial(self, node: NodeId) -> None:
        if node not in self.held or node in self.up:
            return
        is_up = self.kinds.get(node, DEAD) != DEAD
        if is_up:
            self.up.add(node)
        self.perform(self.reader.link(node, is_up, "" if is_up else "refused", self.now))

    def _drain(self, ticket: int) -> None:
        self.perform(self.reader.tell(Drained(ticket), self.now))

    def _answer(self, node: NodeId, asked: Resend) -> None:
        if node in NEIGHBOURS:
            self.hear(node, page(self.recent, asked.selection, asked.ticket))
            return
        kind = self.kinds[node]
        if kind == SILENT:
            return
        if kind == BUSY:
            self.hear(node, Resent(asked.ticket, problem="busy"))
            return
        self.answering = self.own.get(node, self.store)
        self.hear(node, _lie(kind, self.page_of(asked), asked))

    def page_of(self, asked: Resend) -> Resent:
        """Answer as a good storage node does."""
        store = self.answering
        high = next((state.length for state in store.states()), 0)
        answer = store.find(Page(PART, asked.selection, high, self.page_bytes))
        return Resent(
            asked.ticket,
            tuple(placed.entry.frame for placed in answer.placed),
            tuple(MAX_NUMBER if p.offset is None else p.offset for p in answer.placed),
            answer.following,
            0,
            high,
            "",
            answer.missing,
            tuple(p.offset or 0 for p in answer.placed if p.entry.mark == LATE),
        )

    def _check(self) -> None:
        sizes = self.reader.sizes()
        beyond = {name: both for name, both in sizes.items() if both[0] > both[1]}
        assert not beyond, beyond


def _lie(kind: str, honest: Resent, asked: Resend) -> Resent:
    """Change an answer as this kind of storage node does."""
    change = msgspec.structs.replace
    if kind == FORGES:
        return change(honest, frames=tuple(map(forged, honest.frames)))
    if kind == MIXES:
        strange = Chain(SIGNERS[30], OTHER).frame()
        return change(honest, frames=(strange,), offsets=(0,))
    if kind == EMPTY:
        return change(honest, frames=(), offsets=(), following=None)
    if kind == LOOPS:
        return change(honest, frames=(), offsets=(), following=asked.selection)
    if kind == TEARS:
        return change(honest, frames=tuple(frame[:-9] for frame in honest.frames))
    return honest


def numbers_of(*frames_: bytes) -> list[int]:
    """Return the numbers of the messages of frames."""
    return [message.number for frame in frames_ for message in frames.messages(frame)]


def check_order(app: Application, sent: Sequence[bytes], can_be_had: set[bytes]) -> None:
    """One chain's frames: all that can be had came once, in order, and Missed names the rest."""
    chain = frames.peek(sent[0]).chain
    seen = [each for each in app.seen if each[1] == chain]
    expected: list[Seen] = []
    lost: list[bytes] = []
    position = 0
    for frame in sent:
        head = frames.peek(frame)
        if frame not in can_be_had:
            lost.append(frame)
            continue
        if lost:
            expected.append(("missed", chain, position, head.first))
            lost = []
        expected += [("got", chain, number, number) for number in numbers_of(frame)]
        position = head.last
    assert seen == expected
