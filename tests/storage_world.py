"""Storage nodes of one stream, their disks, and a network that is as bad as its faults say.

Everything is driven by a seed. A disk does what was written in order; a crash loses what it had
not done yet, and what it did without having said so is there after the restart. After every event
the world compares what is settled, and keeps everybody to every word that was ever given.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec

from anabranch.core import codec, frames
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Effect,
    Find,
    Found,
    Hold,
    Notice,
    Release,
    Send,
    Write,
    Wrote,
)
from anabranch.core.messages import Acknowledged, AskStored, Control
from anabranch.core.messages.storage import MAX_NUMBER, FrameName, Selection
from anabranch.core.receipts import signed_bytes
from anabranch.core.storage import LogStatus, Storage
from anabranch.core.store import HashAt, LogState, Page
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS, START, Chain
from storage_desk import NET, PUBLISHERS, StoredRegistry, name_of

LINK_S = (0.05, 0.5)


class Faults(msgspec.Struct, frozen=True):
    """What goes wrong, and how often."""

    loss: float = 0.0
    copies: float = 0.0
    delay_s: tuple[float, float] = (0.005, 0.05)
    disk_s: tuple[float, float] = (0.001, 0.02)
    missed: float = 0.0  # of the frames that should come to a node
    failed: float = 0.0  # of the writes
    equivocal: float = 0.0  # of the frames: their publisher makes another of the same name


class Keeper:
    """A storage node: its disk, and the machine while it runs."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.node = NODES[place]
        self.store = MemoryStore()
        self.machine: Storage | None = None
        self.life = 0  # how often it was started: what was meant for an earlier one is void
        self.disk_at = 0.0  # when the last write will be done
        self.said_at = 0.0  # and said
        self.holds: dict[NodeId, int] = {}
        self.links: dict[NodeId, int] = {}  # as it knows them
        self.notices: list[Notice] = []
        self.unsaved: list[bytes] = []  # what came to it in this life


class StorageWorld:
    """Storage nodes in a world of faults."""

    def __init__(self, size: int, seed: int = 0, faults: Faults | None = None) -> None:
        self.now = START
        self.rng = random.Random(seed)
        self.faults = faults or Faults()
        self.registry = StoredRegistry()
        self.registry.name(range(size))
        self.keepers = [Keeper(place) for place in range(size)]
        self.group = [0] * size  # who can reach whom
        self.outage = [False] * size  # whose disk is full
        self.chains = [Chain(signer) for signer in PUBLISHERS]
        self.published: list[bytes] = []
        self.settled: dict[int, bytes] = {0: bytes(32)}  # the log's hash at every place
        self.digests: dict[int, tuple[FrameName, bytes]] = {}
        self.high = 0
        self.words: list[tuple[NodeId, Acknowledged]] = []
        self.others: list[tuple[NodeId, NodeId, Control]] = []  # what was sent to who is no keeper
        self.lose: Callable[[NodeId, NodeId, Control], bool] = lambda *_: False
        self._links: dict[tuple[int, int], tuple[int, int, int]] = {}  # and the lives of both
        self._link = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    # --- Time -----------------------------------------------------------------------------

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, self._order, do))

    def after(self, span: tuple[float, float], do: Callable[[], None]) -> None:
        self.at(self.now + self.rng.uniform(*span), do)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            when, _, do = heapq.heappop(self._heap)
            self.now = max(self.now, when)
            do()
        self.now = until

    # --- Nodes ----------------------------------------------------------------------------

    def start(self, *places: int) -> None:
        """Start nodes, or start them anew with what their disks hold."""
        for place in places:
            keeper = self.keepers[place]
            keeper.life += 1
            keeper.disk_at = keeper.said_at = self.now
            keeper.holds, keeper.links, keeper.unsaved = {}, {}, []
            states = keeper.store.states()
            signer, rng = SIGNERS[place], random.Random(self.rng.random())
            make = partial(Storage, signer, NET, KEYS.verify, self.registry, rng, states)
            keeper.machine = make(lambda peer, now: peer)
            self.do(keeper, lambda machine: machine.start(self.now))
            self.do(keeper, lambda machine: machine.learned(PART.stream, self.now))
        self.connect()

    def stop(self, place: int) -> None:
        """Let a node die, with all that is not on its disk."""
        keeper = self.keepers[place]
        keeper.machine = None
        keeper.life += 1
        self.connect()

    def learn(self, *places: int) -> None:
        """Let nodes do as the registry has it now."""
        for place in places or range(len(self.keepers)):
            self.do(self.keepers[place], lambda m: m.learned(PART.stream, self.now))
        self.connect()

    def part_into(self, *groups: Sequence[int]) -> None:
        """Let nodes reach only those of their own group; whom no group names is alone."""
        self.group = [-1 - place for place in range(len(self.keepers))]
        for number, places in enumerate(groups):
            for place in places:
                self.group[place] = number
        self.connect()

    def heal(self) -> None:
        """Let all reach all, and nothing go wrong any more."""
        self.faults = Faults()
        self.group = [0] * len(self.keepers)
        self.outage = [False] * len(self.keepers)
        self.start(*(k.place for k in self.keepers if k.machine is None))
        self.connect()

    def do(self, keeper: Keeper, act: Callable[[Storage], list[Effect]]) -> None:
        """Let something happen to a node that runs."""
        machine = keeper.machine
        if machine is None:
            return
        for effect in act(machine):
            self._perform(keeper, effect)
        self._check(keeper)
        if machine.wakeup_at is not None:
            at = max(self.now, machine.wakeup_at)
            self.at(at, partial(self._wake, keeper, keeper.life, machine.wakeup_at))

    def _wake(self, keeper: Keeper, life: int, at: float) -> None:
        machine = keeper.machine
        if machine is not None and keeper.life == life and machine.wakeup_at == at:
            self.do(keeper, lambda m: m.wake(self.now))
            due = machine.wakeup_at
            assert due is None or due > self.now, "a wakeup did not do what was due"

    def _perform(self, keeper: Keeper, effect: Effect) -> None:
        if type(effect) is Send:
            self._send(keeper, effect.to, effect.message)
        elif type(effect) is Write:
            self._write(keeper, effect)
        elif type(effect) is Find:
            self._find(keeper, effect)
        elif type(effect) is Hold:
            keeper.holds[effect.peer] = keeper.holds.get(effect.peer, 0) + 1
        elif type(effect) is Release:
            keeper.holds[effect.peer] -= 1
            assert keeper.holds[effect.peer] >= 0
        else:
            assert type(effect) is Notice, effect
            keeper.notices.append(effect)

    # --- The network ----------------------------------------------------------------------

    def connect(self) -> None:
        """Let links come and go as nodes can reach each other."""
        for a in self.keepers:
            for b in self.keepers[: a.place]:
                can = a.machine and b.machine and self.group[a.place] == self.group[b.place]
                known = self._links.get((a.place, b.place))
                if known is not None and (not can or known[1:] != (a.life, b.life)):
                    del self._links[a.place, b.place]
                    self._tell_both(a, b, known[0], False)
                    known = None
                if can and known is None:
                    self._link += 1
                    self._links[a.place, b.place] = (self._link, a.life, b.life)
                    self._tell_both(a, b, self._link, True)

    def _tell_both(self, a: Keeper, b: Keeper, link: int, up: bool) -> None:
        for one, other in ((a, b), (b, a)):
            self.after(LINK_S, partial(self._tell_link, one, one.life, other, link, up))

    def _tell_link(self, keeper: Keeper, life: int, other: Keeper, link: int, up: bool) -> None:
        if keeper.life != life:
            return
        if up and link == self._between(keeper, other):
            keeper.links[other.node] = link
            self.do(keeper, lambda m: m.link(other.node, True, "", self.now))
        elif not up and keeper.links.get(other.node) == link:
            del keeper.links[other.node]
            self.do(keeper, lambda m: m.link(other.node, False, "reset", self.now))

    def _between(self, a: Keeper, b: Keeper) -> int | None:
        known = self._links.get((max(a.place, b.place), min(a.place, b.place)))
        return known and known[0]

    def _send(self, keeper: Keeper, to: NodeId, message: Control) -> None:
        packet = codec.encode(message)
        if type(message) is Acknowledged:
            self._hear_word(keeper, to, message)
        place = NODES.index(to)
        if place >= len(self.keepers):
            self.others.append((keeper.node, to, message))
            return
        other, link = self.keepers[place], keeper.links.get(to)
        if link is None or link != self._between(keeper, other):
            return
        if self.lose(keeper.node, to, message) or self.rng.random() < self.faults.loss:
            return
        for _ in range(1 + (self.rng.random() < self.faults.copies)):
            arrive = partial(self._arrive, keeper, other, other.life, link, packet)
            self.after(self.faults.delay_s, arrive)

    def _arrive(self, sender: Keeper, to: Keeper, life: int, link: int, packet: bytes) -> None:
        if to.life == life and to.links.get(sender.node) == link:
            self.hear(to.place, sender.node, codec.decode(packet))

    def hear(self, place: int, sender: NodeId, message: Control) -> None:
        """Let a message come to a node."""
        self.do(self.keepers[place], lambda m: m.receive(sender, message, self.now))

    # --- Disks ----------------------------------------------------------------------------

    def _write(self, keeper: Keeper, write: Write) -> None:
        keeper.disk_at = max(keeper.disk_at, self.now + self.rng.uniform(*self.faults.disk_s))
        done = partial(self._done, keeper, keeper.life, write)
        self.at(keeper.disk_at, done)

    def _done(self, keeper: Keeper, life: int, write: Write) -> None:
        if keeper.life != life:
            return
        wrote = Wrote(write.token, "the disk is full")
        if not self.outage[keeper.place] and self.rng.random() >= self.faults.failed:
            states, placed = keeper.store.write(write.writes)
            wrote = Wrote(write.token, "", states, placed)
        keeper.said_at = max(keeper.said_at, self.now + self.rng.uniform(*self.faults.disk_s))
        self.at(keeper.said_at, partial(self._say, keeper, life, wrote))

    def _find(self, keeper: Keeper, find: Find) -> None:
        self.after(self.faults.disk_s, partial(self._look, keeper, keeper.life, find))

    def _look(self, keeper: Keeper, life: int, find: Find) -> None:
        if keeper.life == life:
            found = Found(find.token, keeper.store.find(find.query))
            self.after(self.faults.disk_s, partial(self._say, keeper, life, found))

    def _say(self, keeper: Keeper, life: int, event: Wrote | Found) -> None:
        if keeper.life == life:
            self.do(keeper, lambda m: m.tell(event, self.now))

    # --- Publishers -----------------------------------------------------------------------

    def publish(self, *places: int, asks: bool = False) -> bytes:
        """Publish a frame, which comes to these nodes, or to all, but for what gets lost."""
        chain = self.rng.choice(self.chains)
        twin = Chain(chain.signer)
        twin.newest = chain.newest
        contents = [self.rng.randbytes(3)] * self.rng.randint(1, 3)
        frame = chain.frame(*contents, at=self.now)
        other = frame
        if self.rng.random() < self.faults.equivocal:
            other = twin.frame(*(content + b"!" for content in contents), at=self.now)
        self.published.append(frame)
        for place in places or range(len(self.keepers)):
            if self.rng.random() >= self.faults.missed:
                chosen = self.rng.choice((frame, other))
                self.after((0.0, 0.5), partial(self._take, place, chosen))
            if asks:
                ask = AskStored(PART, (name_of(frame),))
                self.after((0.0, 1.0), partial(self.hear, place, PUBLISHERS[0].node, ask))
        return frame

    def _take(self, place: int, frame: bytes) -> None:
        keeper = self.keepers[place]
        if keeper.machine is not None:
            keeper.unsaved.append(frame)
            self.take(place, frame)

    def take(self, place: int, frame: bytes) -> None:
        """Let a frame come to a node."""
        state: Any = SimpleNamespace(part=PART)
        head = frames.peek(frame)
        self.do(self.keepers[place], lambda m: m.take(state, head, frame, self.now))

    # --- What must hold -------------------------------------------------------------------

    def status(self, place: int) -> LogStatus:
        machine = self.keepers[place].machine
        assert machine is not None
        status = machine.status(PART)
        assert status is not None
        return status

    def primary(self) -> int | None:
        """Return who leads in the highest epoch."""
        running = [k.place for k in self.keepers if k.machine is not None]
        leading = [p for p in running if self.status(p).primary == NODES[p]]
        return max(leading, key=lambda p: self.status(p).epoch, default=None)

    def run_until_led(self, most: float) -> None:
        """Let time pass until somebody else leads than before."""
        before, until = self.primary(), self.now + most
        while self.now < until and self.primary() in (None, before):
            self.run(0.05)

    def log(self, place: int, limit: int = MAX_NUMBER) -> list[tuple[int, bytes]]:
        """Return what lies in a node's log on its disk."""
        query = Page(PART, Selection(), limit, 1 << 40)
        rows = self.keepers[place].store.find(query).placed
        return [(row.offset, row.entry.frame) for row in rows if row.offset is not None]

    def state(self, place: int) -> LogState:
        """Return how a node's log stands on its disk."""
        states = self.keepers[place].store.states()
        return next((state for state in states if state.part == PART), LogState(PART))

    def _check(self, keeper: Keeper) -> None:
        """Hold a node to what is settled, by its own word and by that of all others."""
        assert keeper.machine is not None
        status = keeper.machine.status(PART)
        if status is None:
            return
        store, high = keeper.store, status.high
        assert high <= self.state(keeper.place).length, "what is settled was on the disk"
        common = min(high, self.high)
        assert common in self.settled, "what is settled ends where a frame ends"
        assert store.find(HashAt(PART, common)).hash == self.settled[common], "settled twice"
        if high > self.high:
            for offset, frame in self.log(keeper.place, high):
                head = frames.peek(frame)
                name = FrameName(head.chain, head.last)
                self.digests[offset] = (name, hashlib.sha256(frame).digest())
                end = offset + head.count
                self.settled[end] = store.find(HashAt(PART, end)).hash
            self.high = high

    def _hear_word(self, keeper: Keeper, to: NodeId, word: Acknowledged) -> None:
        digest = signed_bytes(NET, word.part, word.holdings)
        assert KEYS.verify(keeper.node, digest, word.signature)
        self._check(keeper)
        for holding in word.holdings:
            assert self.digests[holding.offset] == (holding.name, holding.digest)
            on_disk = dict(self.log(keeper.place))[holding.offset]
            assert hashlib.sha256(on_disk).digest() == holding.digest, "not on its own disk"
        self.words.append((to, word))

    def check_end(self) -> None:
        """After all is well again all logs are one, with all frames, and nothing else is held."""
        logs = [self.log(keeper.place) for keeper in self.keepers]
        assert all(log == logs[0] for log in logs), [len(log) for log in logs]
        for keeper in self.keepers:
            status, state = self.status(keeper.place), self.state(keeper.place)
            assert (state.held, status.held) == (0, 0), (keeper.place, state, status)
            assert status.high == status.length == state.length, (keeper.place, status)
            assert state.hash == self.state(0).hash
        names = [name_of(frame) for _, frame in logs[0]]
        assert len(set(names)) == len(names), "a frame has two places"
        taken = {name_of(frame) for keeper in self.keepers for frame in keeper.unsaved}
        assert taken <= set(names), "a frame that was taken is not in the log"
