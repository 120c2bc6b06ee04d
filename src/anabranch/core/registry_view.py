"""What a node needs of a registry, whoever keeps it.

The registry of this network is read from its trackers (registry_reader.py). Another one, such as
contracts on a chain of blocks that are read through events and changed by calls, does its work
behind the same names. What one cannot see from here is how the registry orders its changes, and
how it proves them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from anabranch.core.changes import Action, CreateStream, Right, TrackerEntry
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Answered, Effect
from anabranch.core.messages import Contact, WriteChange, Written
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import STALE, Permission
from anabranch.core.service import Service

DONE, AGAIN, REFUSED, UNANSWERED = "done", "again", "refused", "unanswered"


class StreamView(Protocol):
    """A stream as the registry has it."""

    @property
    def owner(self) -> NodeId:
        """Who made it."""

    @property
    def created(self) -> CreateStream | None:
        """How it is set up now; None: there is no such stream."""

    @property
    def permissions(self) -> Mapping[NodeId, Permission]:
        """Who may what, beside the owner."""

    def may(self, node: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right now."""

    def is_public(self, right: Right, now: float) -> bool:
        """Tell whether everybody has a right now."""

    def readers(self, now: float) -> frozenset[NodeId]:
        """Return who may subscribe now; PUBLIC among them stands for everybody."""

    @property
    def removals(self) -> int:
        """A number that grows whenever anybody is told that he may subscribe no more."""

    def wrote(self, node: NodeId) -> bool:
        """Tell whether a node may publish, or ever could."""

    @property
    def first_storage(self) -> tuple[NodeId, ...]:
        """The first storage nodes that it named: no others may begin its logs."""

    @property
    def changes(self) -> int:
        """How many changes were made to the stream, of any kind."""

    def last_lapse(self, now: float) -> int:
        """Return when a permission to subscribe last ended of itself, in ms; 0: none ever did."""

    def lapsed(self, since: float, now: float) -> bool:
        """Tell whether a permission to subscribe has ended of itself in the meantime."""

    def next_expiry(self, now: float) -> int | None:
        """Return when the next permission ends, in ms; None: none that holds now ever does."""


class Registry(Service, ABC):
    """A registry, as a service of the node's Peer: it holds its own links and keeps its own time.

    It takes the events Follow, which Learned answers, now and whenever there is news of that
    chain; and Request, which Answered answers: with a Written if it asked for a WriteChange that
    `propose` made, with a ChainList if it asked for a ListChains.
    """

    # --- What it knows --------------------------------------------------------------------

    @property
    @abstractmethod
    def trackers(self) -> tuple[TrackerEntry, ...]:
        """The network's trackers, in the order of its list."""

    @property
    @abstractmethod
    def storage(self) -> tuple[TrackerEntry, ...]:
        """The network's storage nodes."""

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        """Return the storage nodes that a stream names, in its order, with their addresses."""
        known = self.stream(stream)
        if known is None or known.created is None:
            return ()
        entries = {entry.node: entry.contact for entry in self.storage}
        return tuple(entries.get(node, Contact(node)) for node in known.created.storage)

    def stores(self, stream: str, user: NodeId) -> bool:
        """Tell whether a stream names somebody as its storage node, who so has a place in it."""
        known = self.stream(stream)
        return known is not None and known.created is not None and user in known.created.storage

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        """Tell whether somebody may publish to a stream, or ever could."""
        known = self.stream(stream)
        return known is not None and known.created is not None and known.wrote(publisher)

    @abstractmethod
    def knows(self, chain: str) -> bool:
        """Tell whether a chain is followed, and its word has come."""

    @abstractmethod
    def version(self, chain: str) -> int:
        """Return a number that grows with the changes of a chain that is followed."""

    @abstractmethod
    def stream(self, name: str) -> StreamView | None:
        """Return what is known of a stream; None unless it is known."""

    @abstractmethod
    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return the settings of a part of a stream; None: there is no such stream or part."""

    @abstractmethod
    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right, by what is known and not too old."""

    @abstractmethod
    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether somebody may publish to a part, by what is known and not too old."""

    @abstractmethod
    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Ask for the newest word on a stream: Learned answers, even if it is as it was."""

    @abstractmethod
    def confirmed_at(self, stream: str) -> float:
        """Return up to when all is known that those whom we ask know (0.0: never)."""

    @abstractmethod
    def forget(self, chain: str) -> None:
        """Follow a chain no more."""

    # --- Changing it ----------------------------------------------------------------------

    @abstractmethod
    def propose(
        self, signer: Signer, chain: str, actions: Action | Sequence[Action], now: float
    ) -> WriteChange:
        """Make what a Request asks for, to change a chain that is known.

        LocalError if it would be refused. `judge` says what an answer means.
        """

    @abstractmethod
    def includes(self, proposal: WriteChange) -> bool:
        """Tell whether what was proposed is a part of what is known."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of a proposal; AGAIN: propose anew when there is news of the chain."""

    result: str
    problem: str = ""


def judge(answer: Answered) -> Verdict:
    """Say what the answer to a proposal means."""
    message = answer.message
    if message is None:
        return Verdict(UNANSWERED, answer.problem)
    assert isinstance(message, Written), message
    if not message.problem:
        return Verdict(DONE)
    is_stale = message.problem.partition(":")[0] == STALE
    return Verdict(AGAIN if is_stale else REFUSED, message.problem)
