"""The node side of the latency-aware overlay: as the random one, and it measures for its tracker.

A probe is a link that one end dials for its round trip, and that both let go again. Both measure,
so that neither need be believed alone. The first echo counts, since a handshake takes the time of
its signatures as well; where none comes in time, the handshake's own estimate has to do.
"""

import msgspec

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Hold, Release, Send, Sizes
from anabranch.core.messages import AboutParts, Probe, Probed
from anabranch.core.timers import Timers
from anabranch.overlays.membership import Membership
from anabranch.overlays.random_regular import RandomRegular

MAX_PROBES = 16  # under way, of all parts
PROBE_S = 6.0  # how long a dial may take
ECHO_S = 1.0  # how long an echo is waited for


class _Probe(msgspec.Struct):
    """A round trip that is being measured, and for which part's tracker."""

    part: StreamPart
    stands: bool = False


class Probing(RandomRegular):
    """Follows its tracker, floods, and measures round trips for it."""

    code = 2

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._probes: dict[NodeId, _Probe] = {}
        self._patience: Timers[NodeId] = Timers()

    def receive(self, sender: NodeId, message: AboutParts, now: float) -> list[Effect]:
        """Take what trackers and neighbours say."""
        if type(message) is not Probe:
            return super().receive(sender, message, now)
        member = self._members[message.part]
        contact = member.contact()
        if contact is None or sender != contact.node:
            return []
        member.count_word(now)
        effects: list[Effect] = []
        for asked in message.connect:
            effects += self._begin(member, Hold(asked.node, asked.address), now)
        for node in message.accept:
            effects += self._begin(member, Hold(node, "", dial=False), now)
        return self._done(effects)

    def _begin(self, member: Membership, hold: Hold, now: float) -> list[Effect]:
        """Measure a round trip, unless it is known."""
        peer = hold.peer
        if peer == self.me.node or peer in self._probes:
            return []
        if self.linked(peer) and peer in self._rtts_us:
            return self._answer(member.part, peer, self._rtts_us[peer])
        if len(self._probes) >= MAX_PROBES:
            return self._answer(member.part, peer, 0)
        self._probes[peer] = _Probe(member.part, self.linked(peer))
        self._patience.set(peer, now + PROBE_S)
        return [hold]

    def _answer(self, part: StreamPart, peer: NodeId, rtt_us: int) -> list[Effect]:
        member = self._members.get(part)
        contact = member.contact() if member is not None else None
        if contact is None or not self.linked(contact.node):
            return []
        return [Send(contact.node, Probed(part, peer, rtt_us))]

    def _end(self, peer: NodeId, rtt_us: int) -> list[Effect]:
        """Tell the tracker what came of a probe, and let the link go."""
        probe = self._probes.pop(peer)
        self._patience.cancel(peer)
        return [*self._answer(probe.part, peer, rtt_us), Release(peer)]

    def rtt(self, peer: NodeId, seconds: float, now: float) -> list[Effect]:
        """Learn a round trip; the echo on a link that stands is what a probe waits for."""
        effects = super().rtt(peer, seconds, now)
        probe = self._probes.get(peer)
        if probe is not None and probe.stands:
            effects += self._end(peer, self._rtts_us[peer])
        return self._done(effects)

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        effects = super().link(peer, up, reason, now)
        probe = self._probes.get(peer)
        if probe is not None and up:
            probe.stands = True
            self._patience.set(peer, now + ECHO_S)
        elif probe is not None:
            effects += self._end(peer, 0)
        return self._done(effects)

    def leave(self, part: StreamPart, now: float) -> list[Effect]:
        """Stop being a member, and measuring for its tracker."""
        effects = super().leave(part, now)
        for peer in [peer for peer, probe in self._probes.items() if probe.part == part]:
            effects += self._end(peer, 0)
        return self._done(effects)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due; a probe ends with what is known by then."""
        effects = super().wake(now)
        for peer in self._patience.pop_due(now):
            stands = self._probes[peer].stands
            effects += self._end(peer, self._rtts_us.get(peer, 0) if stands else 0)
        return self._done(effects)

    def _done(self, effects: list[Effect]) -> list[Effect]:
        super()._done(effects)
        at = self._patience.next_at
        if at is not None and (self.wakeup_at is None or at < self.wakeup_at):
            self.wakeup_at = at
        return effects

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {**super().sizes(), "probes": (len(self._probes), MAX_PROBES)}
