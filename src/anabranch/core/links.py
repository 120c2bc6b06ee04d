"""The links of a node: dialled when first needed, shared by all streams, closed when not needed.

Between two nodes there is at most one link. Overlays hold it (through the Peer) and let it go;
a link that nobody holds lives on for a short while, so that a change of neighbours which is
taken back, or an instruction that reaches the other side first, costs no new handshake.
"""

import random

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.machine import Connect, Disconnect, Effect, Sizes
from anabranch.core.timers import Timers

UNHELD_FOR_S = 10.0
BAN_FOR_S = 60.0
REDIAL_FIRST_S = 0.5
REDIAL_MOST_S = 20.0
REDIAL_SPREAD = (0.75, 1.25)  # of the time to wait: many may have lost the same peer at once
MAX_UNHELD = 64
MAX_UNHELD_STORING = 1_024  # where many come to read what they missed, perhaps all at once
MAX_HELD = 65_536  # follows from 1,000 parts (peer.py) of at most 64 neighbours (messages)
MAX_BANS = 1_024
PATIENCE = 2_000.0  # packets of no use that a link may bring at once
PATIENCE_PER_S = 200.0

DOWN, DIALLING, UP = "down", "dialling", "up"


class _Link(msgspec.Struct):
    state: str = DOWN
    holds: int = 0
    dial: bool = False
    address: str = ""
    redial_after_s: float = REDIAL_FIRST_S
    patience: float = PATIENCE
    patience_at: float = 0.0


class Links:
    """Which links stand, who needs them, and whom we will not talk to."""

    def __init__(self, rng: random.Random | None = None, most_unheld: int = MAX_UNHELD) -> None:
        self._rng = rng  # without it redials come at their exact time
        self._most_unheld = most_unheld
        self._links: dict[NodeId, _Link] = {}
        self._bans: dict[NodeId, float] = {}
        self._timers: Timers[NodeId] = Timers()  # redial a held link, or drop an unheld one

    @property
    def wakeup_at(self) -> float | None:
        """When a link must be dialled again or dropped."""
        return self._timers.next_at

    def is_up(self, peer: NodeId) -> bool:
        """Tell whether a link stands."""
        link = self._links.get(peer)
        return link is not None and link.state == UP

    def standing(self) -> list[NodeId]:
        """Return the peers to whom a link stands."""
        return [peer for peer, link in self._links.items() if link.state == UP]

    def is_banned(self, peer: NodeId, now: float) -> bool:
        """Tell whether `peer` broke the protocol a short while ago."""
        return self._bans.get(peer, now) > now

    def hold(self, peer: NodeId, address: str, dial: bool, now: float) -> list[Effect]:
        """Need a link to `peer` once more."""
        link = self._links.setdefault(peer, _Link())
        link.holds += 1
        link.dial = link.dial or dial
        link.address = address or link.address
        if link.state == UP:
            self._timers.cancel(peer)
        if link.state == DOWN and link.dial:
            return self._connect(peer, link, now)
        return []

    def release(self, peer: NodeId, now: float) -> list[Effect]:
        """Need it once less."""
        link = self._links[peer]
        link.holds -= 1
        assert link.holds >= 0
        if link.holds == 0:
            link.dial = False
            if link.state == DOWN:
                self._forget(peer)
            else:
                self._timers.set(peer, now + UNHELD_FOR_S)
                return self._shed_unheld()
        return []

    def up(self, peer: NodeId, now: float) -> list[Effect]:
        """Take note of a link; answers Disconnect if `peer` is not welcome."""
        if self.is_banned(peer, now):
            self.down(peer, now)  # a dial of ours may have brought it
            return [Disconnect(peer, "banned")]
        link = self._links.setdefault(peer, _Link())
        link.state = UP
        link.redial_after_s = REDIAL_FIRST_S
        if link.holds:
            self._timers.cancel(peer)
            return []
        self._timers.set(peer, now + UNHELD_FOR_S)
        return self._shed_unheld()

    def down(self, peer: NodeId, now: float) -> None:
        """Take note that a link ended or could not be dialled."""
        link = self._links.get(peer)
        if link is None:
            return
        link.state = DOWN
        if not link.holds:
            self._forget(peer)
        elif link.dial:
            spread = self._rng.uniform(*REDIAL_SPREAD) if self._rng else 1.0
            self._timers.set(peer, now + link.redial_after_s * spread)
            link.redial_after_s = min(REDIAL_MOST_S, link.redial_after_s * 2)

    def ban(self, peer: NodeId, reason: str, now: float) -> list[Effect]:
        """Cut off a peer that broke the protocol, for a while."""
        self._bans.pop(peer, None)
        self._bans[peer] = now + BAN_FOR_S
        if len(self._bans) > MAX_BANS:
            del self._bans[next(iter(self._bans))]
        return self.cut(peer, reason, now)

    def cut(self, peer: NodeId, reason: str, now: float) -> list[Effect]:
        """End a link at once; a held one that we dial is dialled again in its time."""
        link = self._links.get(peer)
        if link is None or link.state != UP:
            return []
        self.down(peer, now)
        return [Disconnect(peer, reason)]

    def wake(self, now: float) -> list[Effect]:
        """Dial what is held and down, drop what is up and unheld."""
        effects: list[Effect] = []
        for peer in self._timers.pop_due(now):
            link = self._links[peer]
            if link.holds and link.state == DOWN and link.dial:
                effects += self._connect(peer, link, now)
            elif not link.holds and link.state == UP:
                self._forget(peer)
                effects.append(Disconnect(peer, "unheld"))
            # A dial that nobody waits for any more is answered by a LinkUp or a LinkDown.
        return effects

    def strain(self, peer: NodeId, now: float) -> None:
        """Count a packet that was of no use; a peer that floods us with such is at fault."""
        link = self._links.get(peer)
        if link is None:
            return
        earned = (now - link.patience_at) * PATIENCE_PER_S
        link.patience = min(PATIENCE, link.patience + earned) - 1
        link.patience_at = now
        if link.patience < 0:
            raise RemoteError("flood", "more useless packets than a link may bring")

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        held = sum(1 for link in self._links.values() if link.holds)
        return {
            "held links": (held, MAX_HELD),
            "unheld links": (len(self._links) - held, self._most_unheld),
            "bans": (len(self._bans), MAX_BANS),
        }

    def _connect(self, peer: NodeId, link: _Link, now: float) -> list[Effect]:
        if self.is_banned(peer, now):
            self._timers.set(peer, self._bans[peer])
            return []
        link.state = DIALLING
        self._timers.cancel(peer)
        return [Connect(peer, link.address)]

    def _forget(self, peer: NodeId) -> None:
        del self._links[peer]
        self._timers.cancel(peer)

    def _shed_unheld(self) -> list[Effect]:
        """Keep the number of unheld links bounded: the oldest go first."""
        unheld = [peer for peer, link in self._links.items() if not link.holds]
        effects: list[Effect] = []
        for peer in unheld[: max(0, len(unheld) - self._most_unheld)]:
            state = self._links[peer].state
            self._forget(peer)
            if state == UP:
                effects.append(Disconnect(peer, "too-many-unheld"))
        return effects
