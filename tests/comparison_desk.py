"""A storage node that compares with a member of the overlay, whose part the real code plays."""

import random
from collections.abc import Callable, Sequence

from anabranch.core.comparison_server import ComparisonServer
from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Send
from anabranch.core.messages import AskLacking, AskRanges, Contact, Control
from anabranch.core.overlay import PartSettings
from anabranch.core.parts import Parts
from anabranch.core.storage import Storage
from anabranch.core.storage_comparison import StoreRetention
from anabranch.sim.stores import MemoryStore
from machines import KEYS, NODES, PART, SIGNERS, Plain, of
from storage_desk import NET, PUBLISHERS, Desk

MEMBER = NODES[20]
ASKS = (AskRanges, AskLacking)

Answer = Callable[[Control], list[Effect]]


def parts_of(me: NodeId, *neighbours: NodeId) -> Parts:
    """Be in PART, which is stored, with these neighbours."""
    settings = PartSettings("plain", 4, tuple(map(Contact, neighbours)), is_stored=True)
    linked = set(neighbours).__contains__
    return Parts(Contact(me), lambda _: settings, {"plain": Plain}, random.Random(1), linked)


class Member:
    """A node that has taken frames of PART, and answers storage nodes."""

    def __init__(self, stores: Callable[[str, NodeId], bool] = lambda *_: True) -> None:
        self.parts = parts_of(MEMBER)
        self.parts.join(PART, 0.0)
        self.server = ComparisonServer(self.parts, stores)

    def take(self, frames: Sequence[bytes], at: float) -> None:
        """Let frames come at a time."""
        state = self.parts.find(PART)
        assert state is not None
        for frame in frames:
            self.parts.recent.add(state.key, frame, at)

    def answer(self, sender: NodeId, ask: Control, now: float) -> list[Control]:
        """Return what it says to a storage node."""
        if type(ask) is AskRanges:
            effects = self.server.ask_ranges(sender, ask, now)
        else:
            assert type(ask) is AskLacking
            effects = self.server.ask_lacking(sender, ask, now)
        return [effect.message for effect in of(Send, effects)]


def _is_for_member(effect: Send) -> bool:
    return effect.to == MEMBER and type(effect.message) in ASKS


class ComparingDesk(Desk):
    """A storage node whose neighbour in PART is MEMBER."""

    def __init__(
        self,
        size: int = 1,
        store: MemoryStore | None = None,
        retention: StoreRetention | None = None,
    ) -> None:
        self.retention = retention or StoreRetention()
        super().__init__(size, store=store)
        self.machine.attach(parts := parts_of(NODES[0], MEMBER))
        parts.join(PART, self.now)
        self.sent: list[Control] = []
        self.link(MEMBER)
        self.settle()

    def _start(self) -> Storage:
        rng, states = random.Random(1), self.store.states()
        signer, verify, user_of = SIGNERS[self.place], KEYS.verify, lambda peer, now: None
        return Storage(
            signer, NET, verify, self.registry, rng, states, user_of, retention=self.retention
        )

    def talk(self, member: Member, seconds: float) -> list[Control]:
        """Let time pass while the member answers; return what it was asked."""
        until, asked = self.now + seconds, list[Control]()
        while self.now < until:
            asked += self.converse(member, self.wait(min(0.5, until - self.now)))
        return asked

    def converse(self, member: Member, effects: list[Effect]) -> list[Control]:
        """Let the member answer what it is asked, and what follows from that."""
        asked: list[Control] = []
        effects = effects + self.settle()
        while questions := [e.message for e in of(Send, effects) if _is_for_member(e)]:
            asked += questions
            answers = [a for ask in questions for a in member.answer(NODES[0], ask, self.now)]
            effects = self.hear(MEMBER, *answers) + self.settle()
        return asked


__all__ = ["MEMBER", "PUBLISHERS", "ComparingDesk", "Member", "parts_of"]
