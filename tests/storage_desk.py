"""One storage node whose disk and whose links are in a test's hand, and a registry for it."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from anabranch.core import frames
from anabranch.core.changes import CreateStream, Right, TrackerEntry
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Event, Find, Found, Send, Write, Wrote
from anabranch.core.messages import AskRank, Control, Ranked
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import MAX_NUMBER, FrameName, Selection
from anabranch.core.registry import Permission, StreamState
from anabranch.core.registry_view import Registry
from anabranch.core.storage import LogStatus, Storage
from anabranch.core.storage_comparison import StoreRetention
from anabranch.core.store import ChainsIn, HeldIn, LogState, LogWrite, Page, StoreError
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS, START

NET = b"s" * 32
PUBLISHERS = (SIGNERS[30], SIGNERS[31])
READER, STRANGER = NODES[32], NODES[33]


def name_of(frame: bytes) -> FrameName:
    """Return a frame's name."""
    head = frames.peek(frame)
    return FrameName(head.chain, head.last)


class StoredRegistry(Registry):
    """What every node of a world knows of the registry: all of it, at once."""

    def __init__(self, stream: str = PART.stream) -> None:
        self.state = StreamState(stream, NET)
        self.doubts = 0
        self.confirmed = 0.0

    def name(self, places: Sequence[int], partitions: int = 1) -> None:
        """Let the stream be stored at these places."""
        storage = tuple(NODES[place] for place in places)
        self.state.first_storage = self.state.first_storage or storage
        self.state.created = CreateStream(partitions=partitions, storage=storage)
        for publisher in PUBLISHERS:
            self.let(publisher.node, Right.PUBLISH)

    def let(self, node: NodeId, rights: int) -> None:
        self.state.hold(node, Permission(rights))

    trackers: tuple[TrackerEntry, ...] = ()
    storage = tuple(TrackerEntry(node, f"{place}:1") for place, node in enumerate(NODES))

    def knows(self, chain: str) -> bool:
        return chain == self.state.chain

    def version(self, chain: str) -> int:
        return 1

    def stream(self, name: str) -> StreamState | None:
        return self.state if name == self.state.chain else None

    def directory(self, part: StreamPart) -> None:
        return None

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        return stream == self.state.chain and self.state.may(user, right, now)

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        return self.may(part.stream, publisher, Right.PUBLISH, now)

    def doubt(self, stream: str, now: float) -> list[Effect]:
        self.doubts += 1
        return []

    def confirmed_at(self, stream: str) -> float:
        return self.confirmed

    def forget(self, chain: str) -> None: ...

    def propose(self, *args: Any) -> Any: ...

    def includes(self, proposal: Any) -> bool:
        return False


class Desk:
    """A storage node among others of whom a test plays the part.

    What it writes and looks up waits until the test lets it be done.
    """

    def __init__(
        self,
        size: int = 3,
        place: int = 0,
        store: MemoryStore | None = None,
        links: bool = True,
        keep_s: float | None = None,
        answers: bool = True,
        restored: bool = False,
    ) -> None:
        """Without `answers` nobody says how the logs of the others stand."""
        self.now = START
        self.answers = answers
        self.keep_s = keep_s
        self.place = place
        self.knows_chains = True  # what is looked up about chains is found at once
        self.store = store or MemoryStore()
        self.registry = StoredRegistry()
        self.registry.name(range(size))
        self.registry.let(READER, Right.SUBSCRIBE)
        self.writes: list[Write] = []
        self.finds: list[Find] = []
        self.users: dict[NodeId, NodeId] = {}
        self.neighbours: list[NodeId] = []  # in the overlay of the part
        self.others = [NODES[other] for other in range(size) if other != place]
        self.machine = self._start()
        self.machine.is_restored = restored
        self.first = self.learn()
        for other in self.others if links else ():
            self.link(other)

    def _start(self) -> Storage:
        rng, states = random.Random(1), self.store.states()
        signer, verify = SIGNERS[self.place], KEYS.verify
        user_of = lambda peer, now: self.users.get(peer)  # noqa: E731
        keep_ms = None if self.keep_s is None else int(1000 * self.keep_s)
        retention = StoreRetention(keep_ms=keep_ms)
        return Storage(signer, NET, verify, self.registry, rng, states, user_of, retention)

    # --- What happens ---------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> list[Effect]:
        """Set aside what is for the disk; return the rest."""
        self.writes += [effect for effect in effects if type(effect) is Write]
        finds = [effect for effect in effects if type(effect) is Find]
        rest = [effect for effect in effects if type(effect) not in (Write, Find)]
        for find in finds:
            if self.knows_chains and type(find.query) in (ChainsIn, HeldIn):
                rest += self.tell(Found(find.token, self.store.find(find.query)))
            else:
                self.finds.append(find)
        return rest

    def learn(self, chain: str = PART.stream) -> list[Effect]:
        """Let the node do as the registry has it."""
        return self._do(self.machine.learned(chain, self.now))

    def link(self, peer: NodeId, up: bool = True) -> list[Effect]:
        effects = self._do(self.machine.link(peer, up, "", self.now))
        ask = Send(peer, AskRank(PART))
        if self.answers and ask in effects:
            effects.remove(ask)
            effects += self.hear(peer, Ranked(PART, 0, 0, 0, 0, NO_HASH, True))
        return effects

    def hear(self, sender: NodeId, *messages: Control) -> list[Effect]:
        heard = (self.machine.receive(sender, message, self.now) for message in messages)
        return [effect for effects in heard for effect in self._do(effects)]

    def tell(self, event: Event) -> list[Effect]:
        return self._do(self.machine.tell(event, self.now))

    def take(self, *taken: bytes) -> list[Effect]:
        """Let frames come."""
        overlay = SimpleNamespace(neighbours=lambda part: self.neighbours)
        state: Any = SimpleNamespace(part=PART, overlay=overlay)
        effects: list[Effect] = []
        for frame in taken:
            effects += self._do(self.machine.take(state, frames.peek(frame), frame, self.now))
        return effects

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, waking the node exactly when it asked for it."""
        until, effects = self.now + seconds, list[Effect]()
        while (at := self.machine.wakeup_at) is not None and at <= until:
            self.now = max(self.now, at)
            effects += self._do(self.machine.wake(self.now))
            due = self.machine.wakeup_at
            assert due is None or due > self.now, "a wakeup did not do what was due"
        self.now = until
        return effects

    # --- The disk -------------------------------------------------------------------------

    def save(self, problem: str = "") -> list[Effect]:
        """Let what waits be written, or not."""
        effects: list[Effect] = []
        waiting, self.writes = self.writes, []
        for write in waiting:
            try:
                states, placed = self.store.write(write.writes) if not problem else ((), ())
                wrote = Wrote(write.token, problem, states, placed)
            except StoreError as error:
                wrote = Wrote(write.token, str(error))
            effects += self._do(self.machine.tell(wrote, self.now))
        return effects

    def look(self) -> list[Effect]:
        """Let what waits be looked up."""
        effects: list[Effect] = []
        waiting, self.finds = self.finds, []
        for find in waiting:
            found = Found(find.token, self.store.find(find.query))
            effects += self._do(self.machine.tell(found, self.now))
        return effects

    def settle(self) -> list[Effect]:
        """Let the disk do all that waits, until nothing does."""
        effects: list[Effect] = []
        while self.writes or self.finds:
            effects += self.save() + self.look()
        return effects

    @property
    def written(self) -> list[LogWrite]:
        """What waits to be written."""
        return [write for effect in self.writes for write in effect.writes]

    @property
    def state(self) -> LogState:
        """How the log stands on the disk."""
        states = self.store.states()
        return next((state for state in states if state.part == PART), LogState(PART))

    @property
    def status(self) -> LogStatus:
        """How the log stands, by the node's own word."""
        status = self.machine.status(PART)
        assert status is not None
        return status

    @property
    def log(self) -> list[bytes]:
        """The frames in the log on the disk."""
        page = Page(PART, Selection(), MAX_NUMBER, 1 << 40)
        return [row.entry.frame for row in self.store.find(page).placed]
