"""The machine of a tracker's process: overlays, and the registry that all trackers keep together.

The parts are machines of their own: `tracker` builds the overlays, `keeper` has the chains and
serves them, `replication` brings us what other trackers have, `succession` knows who writes. Here
they are given what is theirs. What somebody asks about and we do not have, we ask the others for
before we say that there is no such thing.

Nobody may send more than a tracker can bear: who does so loses the link. Nor may anybody ask for
more than he reads: while his link is full he is not answered, and if it stays full it is cut.
"""

import random
from collections.abc import Iterable, Mapping

import msgspec

from anabranch.core import codec
from anabranch.core.changes import Right
from anabranch.core.congestion import CUT_AFTER_S
from anabranch.core.dial_checks import DialChecks
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Congested,
    DialChecked,
    Disconnect,
    Effect,
    Event,
    Learned,
    LinkDown,
    LinkUp,
    Notice,
    Received,
    ReceivedBatch,
    Sizes,
    Stored,
    Wakeup,
    Writable,
)
from anabranch.core.mandate import Introductions
from anabranch.core.messages import (
    AboutRegistry,
    Contact,
    Control,
    Introduce,
    ListChains,
    ListHeads,
    ReadChain,
    Status,
    WriteChange,
    Written,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.quotas import WRITES_PER_S, Allowance, allow_writes
from anabranch.core.registry import StreamState, is_chain_name
from anabranch.core.registry_keeper import RegistryKeeper, refuse
from anabranch.core.replication import Replication
from anabranch.core.succession import Succession
from anabranch.core.timers import Timers
from anabranch.core.tracked import MakeTopology
from anabranch.core.tracker import Tracker

PARKED_S = 1.0  # how long somebody waits while we ask other trackers
BURST = 5_000.0  # control messages that a node may send at once
PER_S = 1_000.0
MAX_LINKS = 16_384
MAX_PARKED = 1_024
MAX_PARKED_FOR_ONE = 16  # on one link
UNANSWERED = "unanswered"  # questions of those who do not read the answers: what they count as

_QUESTIONS = (ReadChain, ListChains, ListHeads)


class _Link(msgspec.Struct):
    """How much may come on a link now."""

    messages: Allowance
    writes: Allowance


class TrackerNode:
    """A tracker with its registry. Feed it a Wakeup to begin."""

    def __init__(
        self,
        me: NodeId,
        network: bytes,
        verify: Verify,
        rng: random.Random,
        topologies: Mapping[str, MakeTopology],
        changes: Iterable[tuple[str, int, bytes]] = (),
        follow: Contact | None = None,
        checks: DialChecks | None = None,
    ) -> None:
        """`changes` come from the disk. `follow` is another tracker; the first follows nobody.

        `checks` know this tracker's own addresses, which it must not dial.
        """
        self.keeper = keeper = RegistryKeeper(network, verify, changes)
        if follow is None and keeper.network_state.genesis is None:
            raise LocalError(
                "this tracker has no registry: give it the file of its network, or the address "
                "of another tracker to copy from"
            )
        self.introductions = Introductions(network, verify)
        users = self.introductions.user
        checks = checks or DialChecks()
        self.tracker = Tracker(me, keeper.directory, rng, topologies, self._admits, users, checks)
        self.tracker.counts[UNANSWERED] = 0
        self._links: dict[NodeId, _Link] = {}
        self._full: Timers[NodeId] = Timers()  # links that are, and when they are cut
        self.replication = Replication(me, keeper, self._links, rng, follow)
        self.succession = Succession(
            me,
            keeper,
            self._links,
            lambda: self.replication.has_compared,
            follow.node if follow is not None else None,
        )
        self._parked: dict[str, list[Received]] = {}  # questions and changes, by chain
        self._timers: Timers[str] = Timers()  # until when they wait
        self._started = False
        self.wakeup_at: float | None = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            self.succession.start(now)
            effects += self.replication.know(now)
        if type(event) is Received:
            effects += self._received(event, now)
        elif type(event) is ReceivedBatch:
            for packet in event.packets:
                effects += self._settle(self._received(Received(event.sender, packet), now), now)
        elif type(event) is Wakeup:
            effects += self._wake(now)
        elif type(event) is LinkUp:
            effects += self._link_up(event, now)
        elif type(event) is LinkDown:
            effects += self._lost(event.peer, event.reason, now)
        elif type(event) is Stored:
            effects += self._stored(event, now)
        elif type(event) is DialChecked:
            effects += self.tracker.handle(event, now)
        elif type(event) is Congested and event.peer in self._links:
            self._full.sooner(event.peer, now + CUT_AFTER_S)
        elif type(event) is Writable:
            self._full.cancel(event.peer)
        effects = self._settle(effects + self.succession.go_on(now), now)
        machines = (self.tracker, self.replication, self.succession)
        times = [self._timers.next_at, self._full.next_at]
        times += [machine.wakeup_at for machine in machines]
        self.wakeup_at = min((at for at in times if at is not None), default=None)
        return effects

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        return {
            **self.tracker.sizes(),
            **self.keeper.sizes(),
            **self.replication.sizes(),
            **self.succession.sizes(),
            **self.introductions.sizes(),
            "links": (len(self._links), MAX_LINKS),
            "full links": (len(self._full), MAX_LINKS),
            "parked messages": (sum(map(len, self._parked.values())), MAX_PARKED),
        }

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do ourselves what is ours to do: a chain was looked up, or a link is at an end."""
        done: list[Effect] = []
        waiting = effects
        while waiting:
            more: list[Effect] = []
            for effect in waiting:
                if type(effect) is Learned:
                    more += self._unpark(effect.chain, now)
                    continue
                done.append(effect)
                if type(effect) is Disconnect and effect.peer in self._links:
                    more += self._lost(effect.peer, effect.reason, now, at_fault=True)
            waiting = more
        return done

    # --- Messages -------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Effect]:
        sender = event.sender
        if sender not in self._links:
            return []  # we have just ended this link
        try:
            self._spend(sender, now)
            message = codec.decode(event.data)
            if sender in self._full and isinstance(message, _QUESTIONS):
                self.tracker.counts[UNANSWERED] += 1
                return []
            if type(message) is WriteChange and not self._may_write(sender, now):
                problem = f"busy: one link may bring {WRITES_PER_S:.0f} changes a second"
                return [refuse(sender, message.ticket, f"{problem}: try again soon")]
            if (chain := self._missing(sender, message, now)) is not None:
                return self._park(chain, event, now)
            return self._take(event, message, now)
        except RemoteError as error:
            self.tracker.counts["faults"] += 1
            fault = Notice(None, "fault", f"{error.reason} from {sender.hex()}")
            return [fault, Disconnect(sender, error.reason)]

    def _take(self, event: Received, message: Control, now: float) -> list[Effect]:
        """Give a message to whom it concerns."""
        sender = event.sender
        if type(message) is Introduce:
            self.introductions.take(sender, message, now)
            return []
        if type(message) is WriteChange:
            return self.succession.write(sender, message, now)
        if type(message) is Written:
            return self.succession.written(sender, message, now)
        if type(message) in Replication.messages:
            return self.replication.receive(sender, message, now)
        if isinstance(message, AboutRegistry):
            return self.keeper.receive(sender, message)
        return self.tracker.handle(event, now)

    def _spend(self, sender: NodeId, now: float) -> None:
        """Count a message; trackers, whom the network's owner has named, may send any number."""
        if not self._links[sender].messages.spend(now) and not self.keeper.is_tracker(sender):
            raise RemoteError("flood", "more messages than a link may bring")

    def _may_write(self, sender: NodeId, now: float) -> bool:
        """Count a change that somebody asks for; trackers pass on those of many authors."""
        return self._links[sender].writes.spend(now) or self.keeper.is_tracker(sender)

    def _admits(self, part: StreamPart, node: NodeId, now: float) -> bool:
        """Tell whether a node may be in a part: its user may publish or subscribe, or stores it."""
        state = self.keeper.state(part.stream)
        if not isinstance(state, StreamState) or state.created is None:
            return True  # there is no such stream, hence no such part
        rights = (Right.PUBLISH, Right.SUBSCRIBE)
        if any(state.is_public(right, now) for right in rights):
            return True
        user = self.introductions.user(node, now)
        if user is None:
            return False
        return user in state.created.storage or any(state.may(user, r, now) for r in rights)

    # --- What we do not have --------------------------------------------------------------

    def _missing(self, sender: NodeId, message: Control, now: float) -> str | None:
        """Return the chain that we should ask other trackers for before we take a message."""
        if not self.replication.can_ask:
            return None
        if type(message) is WriteChange:
            chain = self.keeper.check(message.change).chain
            lacks = self.succession.writes(now) and self.keeper.is_behind(message.change)
        elif isinstance(message, Status | ReadChain):
            chain = message.chain if isinstance(message, ReadChain) else message.part.stream
            # Another tracker that asks us might wait for us as we would for it.
            is_ours_to_ask = not self.replication.copies_from(sender) and is_chain_name(chain)
            lacks = is_ours_to_ask and self.keeper.state(chain) is None
        else:
            return None
        if lacks and self._has_room_for(sender) and self.replication.can_look_up(chain, sender):
            return chain
        return None

    def _has_room_for(self, sender: NodeId) -> bool:
        waiting = [event.sender for events in self._parked.values() for event in events]
        return len(waiting) < MAX_PARKED and waiting.count(sender) < MAX_PARKED_FOR_ONE

    def _park(self, chain: str, event: Received, now: float) -> list[Effect]:
        """Let a message wait while we ask other trackers for its chain."""
        self._parked.setdefault(chain, []).append(event)
        if chain not in self._timers:
            self._timers.set(chain, now + PARKED_S)
        return self.replication.look_up(chain, event.sender, now)

    def _unpark(self, chain: str, now: float) -> list[Effect]:
        self._timers.cancel(chain)
        self.replication.forget(chain)
        effects: list[Effect] = []
        for event in self._parked.pop(chain, ()):
            if event.sender in self._links:
                effects += self._take(event, codec.decode(event.data), now)
        return effects

    def _stored(self, event: Stored, now: float) -> list[Effect]:
        chain = self.keeper.chain_of(event.token)
        # Who gave us what does not fit is gone before anything else is read from it.
        effects = self._settle(self.keeper.stored(event), now)
        effects += self.replication.stored(chain, bool(event.problem), now)
        if event.problem:
            return effects
        if chain == NETWORK:
            self.succession.know(now)
            return effects + self.replication.know(now)
        return effects + self.tracker.review(chain, now)

    # --- Links and time -------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> list[Effect]:
        peer = event.peer
        if len(self._links) >= MAX_LINKS and peer not in self._links:
            return [Disconnect(peer, "too-many-links")]
        self._full.cancel(peer)
        self._links[peer] = _Link(Allowance(BURST, PER_S, now), allow_writes(now))
        self.succession.link(peer, True, now)
        return self.tracker.handle(event, now) + self.replication.link(peer, True, now)

    def _lost(self, peer: NodeId, reason: str, now: float, at_fault: bool = False) -> list[Effect]:
        self._links.pop(peer, None)
        self._full.cancel(peer)
        self.introductions.gone(peer)
        self.keeper.link(peer, False)
        self.succession.link(peer, False, now)
        effects = self.tracker.handle(LinkDown(peer, reason), now)
        return effects + self.replication.link(peer, False, now, at_fault)

    def _wake(self, now: float) -> list[Effect]:
        effects = self.tracker.handle(Wakeup(), now)
        effects += self.replication.wake(now) + self.succession.wake(now)
        for chain in self._timers.pop_due(now):
            effects += self._unpark(chain, now)
        return effects + [Disconnect(peer, "link-full") for peer in self._full.pop_due(now)]
