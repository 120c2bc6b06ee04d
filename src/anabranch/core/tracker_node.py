"""The machine of a tracker's process: overlays, the registry, and a copy of it where need be.

The network's first tracker writes the registry; it keeps the chains and nothing else is needed.
Every other one follows all chains, as a node does, and hands what it reads to its own keeper: it
answers reads, and knows the settings of parts, when the writer is gone. What it is asked about
and does not have, it asks the writer for before it says that there is no such thing.

Nobody may send more than a tracker can bear: who does so loses the link.
"""

import random
from collections.abc import Iterable

import msgspec

from anabranch.core import codec
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Answered,
    Disconnect,
    Effect,
    Event,
    Follow,
    Hold,
    Learned,
    LinkDown,
    LinkUp,
    Notice,
    Received,
    Release,
    Request,
    Sizes,
    Store,
    Stored,
    Wakeup,
)
from anabranch.core.messages import (
    AboutRegistry,
    ChainChanged,
    ChainList,
    ChainPage,
    Contact,
    Control,
    ListChains,
    ReadChain,
    Status,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.redial import Redial
from anabranch.core.registry import is_chain_name, new_chain
from anabranch.core.registry_keeper import MAX_CHAINS, RegistryKeeper
from anabranch.core.registry_reader import RegistryReader
from anabranch.core.timers import Timers
from anabranch.core.tracked import MakeTopology
from anabranch.core.tracker import Tracker

LIST_EVERY_S = 30.0
LIST_AGAIN_S = 1.0  # after the writer could not be asked
DISK_AGAIN_S = 5.0  # after a copied change could not be stored
PARKED_S = 1.0  # how long somebody waits while we ask the writer
BURST = 5_000.0  # control messages that a node may send at once
PER_S = 1_000.0
MAX_LINKS = 16_384
MAX_PARKED = 1_024

LIST, PARKED = "list", "parked"


class _Allowance(msgspec.Struct):
    """How many messages a node may send now."""

    left: float = BURST
    at: float = 0.0


class TrackerNode:
    """A tracker with its registry. Feed it a Wakeup to begin."""

    def __init__(
        self,
        me: NodeId,
        network: bytes,
        verify: Verify,
        rng: random.Random,
        topology: MakeTopology,
        changes: Iterable[tuple[str, int, bytes]] = (),
        follow: Contact | None = None,
    ) -> None:
        """`changes` come from the disk. `follow` is another tracker; the first follows nobody."""
        self._me = me
        self._network = network
        self._verify = verify
        self._rng = rng
        self._follow = follow
        self.keeper = RegistryKeeper(me, network, verify, changes, first=follow is None)
        if follow is None and self.keeper.network_state.genesis is None:
            raise LocalError(
                "this tracker has no registry: give it the file of its network, or the address "
                "of another tracker to copy from"
            )
        self.tracker = Tracker(me, self.keeper.directory, rng, topology)
        self.reader: RegistryReader | None = None
        self._redial = Redial(rng)
        self._links: dict[NodeId, _Allowance] = {}
        self._parked: dict[str, list[Received]] = {}  # reads and statuses, by chain
        self._timers: Timers[tuple[str, str]] = Timers()
        self._started = False
        self.wakeup_at: float | None = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects += self._take_role(now)
        if type(event) is Received:
            effects += self._received(event, now)
        elif type(event) is Wakeup:
            effects += self._wake(now)
        elif type(event) is LinkUp:
            effects += self._link_up(event, now)
        elif type(event) is LinkDown:
            effects += self._lost(event.peer, event.reason, now)
        elif type(event) is Stored:
            effects += self._stored(event, now)
        times = [self.tracker.wakeup_at, self._redial.wakeup_at, self._timers.next_at]
        times += [self.reader.wakeup_at] if self.reader is not None else []
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        return {
            **self.tracker.sizes(),
            **self.keeper.sizes(),
            **(self.reader.sizes() if self.reader is not None else {}),
            "links": (len(self._links), MAX_LINKS),
            "parked messages": (sum(map(len, self._parked.values())), MAX_PARKED),
        }

    # --- Messages -------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Effect]:
        sender = event.sender
        if sender not in self._links:
            return []  # we have just ended this link
        try:
            self._spend(sender, now)
            message = codec.decode(event.data)
            if (chain := _named_in(message)) is not None and self._park(chain, event, now):
                return self._look_up(chain, now)
            if isinstance(message, AboutRegistry):
                return self._registry(sender, message, now)
        except RemoteError as error:
            effects: list[Effect] = [Notice(None, "fault", f"{error.reason} from {sender.hex()}")]
            effects.append(Disconnect(sender, error.reason))
            self.tracker.counts["faults"] += 1
            return effects + self._lost(sender, error.reason, now, at_fault=True)
        return self._track(event, now)

    def _track(self, event: Received, now: float) -> list[Effect]:
        """Give the tracker what is its own."""
        effects = self.tracker.handle(event, now)
        if any(type(effect) is Disconnect and effect.peer == event.sender for effect in effects):
            effects += self._lost(event.sender, "fault", now, at_fault=True)
        return effects

    def _spend(self, sender: NodeId, now: float) -> None:
        """Count a message; trackers, whom the network's owner has named, may send any number."""
        allowance = self._links[sender]
        earned = (now - allowance.at) * PER_S
        allowance.left = min(BURST, allowance.left + earned) - 1
        allowance.at = now
        trackers = self.keeper.network_state.trackers
        if allowance.left < 0 and not any(entry.node == sender for entry in trackers):
            raise RemoteError("flood", "more messages than a link may bring")

    def _registry(self, sender: NodeId, message: AboutRegistry, now: float) -> list[Effect]:
        reader = self.reader
        if type(message) in RegistryReader.messages:
            if reader is None:
                return []  # we have become the writer: it answers what we asked before
            if type(message) is ChainChanged and reader.listens_to(sender):
                effects = self._look_up(message.chain, now)  # it may be new
                return effects + self._applied(reader.receive(sender, message, now), now)
            try:
                return self._applied(reader.receive(sender, message, now), now)
            except RemoteError:
                if type(message) is ChainPage:
                    self._read_anew(message.chain, None)
                raise
        return self.keeper.receive(sender, message, now)

    # --- What we do not have --------------------------------------------------------------

    def _look_up(self, chain: str, now: float) -> list[Effect]:
        """Begin to follow a chain that somebody named and we do not have."""
        if self.reader is None or self.keeper.state(chain) is not None:
            return []
        return self._applied(self.reader.tell(Follow(chain), now), now)

    def _park(self, chain: str, event: Received, now: float) -> bool:
        """Let a message wait until the writer has been asked; tell whether it does."""
        reader = self.reader
        if reader is None or not reader.can_ask or self.keeper.state(chain) is not None:
            return False
        if not is_chain_name(chain) or sum(map(len, self._parked.values())) >= MAX_PARKED:
            return False
        self._parked.setdefault(chain, []).append(event)
        self._timers.sooner((PARKED, chain), now + PARKED_S)
        return True

    def _unpark(self, chain: str, now: float) -> list[Effect]:
        self._timers.cancel((PARKED, chain))
        effects: list[Effect] = []
        for event in self._parked.pop(chain, ()):
            message = codec.decode(event.data)
            if event.sender not in self._links:
                continue
            if type(message) is ReadChain:
                effects += self.keeper.receive(event.sender, message, now)
            else:
                effects += self._track(event, now)
        return effects

    # --- Copying --------------------------------------------------------------------------

    def _take_role(self, now: float) -> list[Effect]:
        """Follow the writer, or stop doing so if that is us now."""
        if self.keeper.is_writer:
            if self.reader is None:
                return []
            effects = self._applied(self.reader.stop(), now)
            self.reader = None
            self._timers.cancel((LIST, ""))
            return effects
        if self.reader is not None:
            return []
        found = self._follow or self.keeper.network_state.trackers[0].contact
        self.reader = reader = RegistryReader(
            self._network,
            self._verify,
            found,
            self._rng,
            me=self._me,
            copies=lambda: self.keeper.has_room,
            max_followed=MAX_CHAINS,
        )
        for chain in self.keeper.chains():
            self._read_anew(chain, None)
        effects = [effect for peer in self._links for effect in reader.link(peer, True, "", now)]
        effects += reader.start(now)
        return self._applied(effects, now) + self._list("", now)

    def _list(self, after: str, now: float) -> list[Effect]:
        assert self.reader is not None
        self._timers.set((LIST, ""), now + LIST_EVERY_S)
        return self._applied(self.reader.tell(Request(0, ListChains(0, "", after)), now), now)

    def _listed(self, answer: Answered, now: float) -> list[Effect]:
        listed = answer.message
        if type(listed) is not ChainList or self.reader is None:
            self._timers.set((LIST, ""), now + LIST_AGAIN_S)
            return []
        effects: list[Effect] = []
        for chain in listed.chains:
            effects += self._look_up(chain, now)
        if listed.more and listed.chains:
            effects += self._list(listed.chains[-1], now)
        return effects

    def _read_anew(self, chain: str, at: float | None) -> None:
        """Let the reader go on from what the keeper has."""
        if self.reader is not None:
            state = self.keeper.state(chain)
            copy = state.copy() if state is not None else new_chain(chain, self._network)
            self.reader.adopt(copy, at)

    def _applied(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do ourselves what is ours to do of the reader's effects."""
        done: list[Effect] = []
        for effect in effects:
            if type(effect) is Hold:
                done += self._redial.hold(effect.peer, effect.address, effect.peer in self._links)
            elif type(effect) is Release:
                self._redial.release(effect.peer)  # its link may serve the other side
            elif type(effect) is Store:
                done += self.keeper.copy(effect.chain, effect.change)
            elif type(effect) is Answered:
                done += self._listed(effect, now)
            elif type(effect) is Learned:
                done += self._learned(effect, now)
            else:
                done.append(effect)
        return done

    def _learned(self, learned: Learned, now: float) -> list[Effect]:
        chain = learned.chain
        if self.reader is not None and learned.height == 0:
            self.reader.forget(chain)  # anybody may name streams that do not exist
        return [] if self.keeper.is_storing(chain) else self._unpark(chain, now)

    def _stored(self, event: Stored, now: float) -> list[Effect]:
        chain = self.keeper.chain_of(event.token)
        effects = self.keeper.stored(event)
        if event.problem:
            self._read_anew(chain, now + DISK_AGAIN_S)
        if chain == NETWORK:
            effects += self._take_role(now)
        if not self.keeper.is_storing(chain):
            effects += self._unpark(chain, now)
        return effects

    # --- Links and time -------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> list[Effect]:
        peer = event.peer
        if len(self._links) >= MAX_LINKS and peer not in self._links:
            return [Disconnect(peer, "too-many-links")]
        self._links[peer] = _Allowance(at=now)
        self._redial.up(peer)
        effects = self.tracker.handle(event, now)
        if self.reader is not None:
            effects += self._applied(self.reader.link(peer, True, "", now), now)
        return effects

    def _lost(self, peer: NodeId, reason: str, now: float, at_fault: bool = False) -> list[Effect]:
        self._links.pop(peer, None)
        self._redial.down(peer, now, at_fault)
        self.keeper.link(peer, False)
        effects = self.tracker.handle(LinkDown(peer, reason), now)
        if self.reader is not None:
            effects += self._applied(self.reader.link(peer, False, reason, now), now)
        return effects

    def _wake(self, now: float) -> list[Effect]:
        effects = self.tracker.handle(Wakeup(), now) + self._redial.wake(now)
        reader = self.reader
        if reader is not None and reader.wakeup_at is not None and reader.wakeup_at <= now:
            effects += self._applied(reader.wake(now), now)
        for kind, chain in self._timers.pop_due(now):
            if kind == LIST and self.reader is not None:
                effects += self._list("", now)
            elif kind == PARKED:
                effects += self._unpark(chain, now)
        return effects


def _named_in(message: Control) -> str | None:
    """Return the chain that somebody asks about, or whose settings he needs us to know."""
    if type(message) is ReadChain:
        return message.chain
    return message.part.stream if type(message) is Status else None
