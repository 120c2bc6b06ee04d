"""The node side of the Streamr overlay: carry out the tracker's instructions, and flood.

Papers 000 (section IV) and 001 (section 4.3). The tracker numbers its instructions per node and
part. A node works on the newest one only, reports once when it has carried it out (or could
not), and tries again what failed. Where the papers are silent:

- Data flows between two nodes once each has told the other `Meet`, since the tracker's word may
  reach one of them long before the other.
- Old neighbours are kept until the new ones stand or have failed, so that a change of neighbours
  opens no hole in the overlay.
- A node that has just come, or has lost half of its neighbours, exchanges the frames of the
  meantime with each new one, until it has as many as it may: those that it has may be as new as
  itself, or cut off together with it, above all when their tracker has just restarted.
"""

from collections.abc import Sequence

from anabranch.core.frames import peek
from anabranch.core.ids import NodeId, StreamPart, part_key
from anabranch.core.machine import Effect, Forward, Hold, Notice, Release, Send, Sizes
from anabranch.core.messages import AboutParts, Bye, Instruction, Leave, Meet, Refused, Status
from anabranch.core.messages.links import MAX_RECENT_MS
from anabranch.core.messages.tracker import MAX_RTT_US
from anabranch.core.overlay import Carried, Overlay, PartSettings
from anabranch.core.timers import Timers
from anabranch.overlays.membership import HOPS, Membership

SETTLE_S = 5.0  # how long an instruction may take before the node reports what came of it
ATTEMPT_EVERY_S = 2.0
STATUS_EVERY_S = 10.0
LOST_AFTER_S = 1.5  # how long a neighbour may be gone before the tracker hears of it: one redial
TRACKER_PATIENCE_S = 3.0  # how long a tracker may be out of reach before the next is tried
BUSY_MS = 250  # what a Meet may wait at both ends, where others are being met as well
FEW = 8  # neighbours; of more, some are likely to be the publisher's as well, and to have it
UNKNOWN_RTT_US = 2_000_000  # what a round trip may take before one has been measured

SETTLE, ATTEMPT, STATUS, TRACKER = "settle", "attempt", "status", "tracker"


class RandomRegular(Overlay):
    """Follows its tracker; floods to every neighbour but the one a frame came from."""

    code = 1
    straight = HOPS[1]
    noiseless = True

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._members: dict[StreamPart, Membership] = {}
        self._timers: Timers[tuple[StreamPart, str]] = Timers()
        self._rtts_us: dict[NodeId, int] = {}

    # --- Frames ---------------------------------------------------------------------------

    def carry(
        self, part: StreamPart, carried: Carried, came_from: NodeId, first: bool, now: float
    ) -> list[Effect]:
        """Flood: on to all neighbours but the sender."""
        route = carried.route
        branches = self._members[part].branches(came_from, route)
        if not branches:
            return []
        is_first_hand = route == self.straight and len(branches) <= FEW
        return [Forward(self.code, carried.head, branches, carried.frame, is_first_hand)]

    def publish(self, part: StreamPart, carried: Carried, now: float) -> list[Effect]:
        """Send our own frame to every neighbour."""
        branches = [(peer, self.straight) for peer in self._members[part].flood]
        return [Forward(self.code, carried.head, branches, carried.frame)] if branches else []

    def hops(self, route: bytes) -> int:
        """The route is one byte: the links crossed when the frame arrives."""
        return route[0] if route else 0

    def neighbours(self, part: StreamPart) -> Sequence[NodeId]:
        """Return the peers that frames flow to, sorted."""
        member = self._members.get(part)
        return member.flood if member else ()

    def accepts(self, part: StreamPart, sender: NodeId) -> bool:
        """Frames come from those the tracker told us to be neighbours with, now or just before."""
        member = self._members[part]
        return sender in member.wanted or sender in member.retiring

    def follows(self, part: StreamPart, sender: NodeId) -> bool:
        """A node in many parts that change hears much from their tracker."""
        contact = self._members[part].contact()
        return contact is not None and contact.node == sender

    # --- Membership -----------------------------------------------------------------------

    def join(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
        """Turn to the part's first tracker."""
        member = Membership(part, settings.degree, settings.trackers, now)
        self._members[part] = member
        return self._done(self._turn_to_tracker(member, now))

    def change(self, part: StreamPart, settings: PartSettings, now: float) -> list[Effect]:
        """Turn to the trackers there are now; the neighbours stay."""
        member = self._members[part]
        # A smaller degree is the tracker's to bring about: it may hear of the change after us,
        # and what it instructs meanwhile must not be refused.
        member.degree = max(member.degree, settings.degree)
        contact = member.contact()
        release: list[Effect] = [Release(held.node) for held in member.held_trackers()]
        places = [i for i, c in enumerate(settings.trackers) if contact and c.node == contact.node]
        member.trackers = settings.trackers
        member.tracker = places[0] if places else 0
        if not places:  # our tracker is none any more
            goodbye: list[Effect] = []
            if contact is not None and self.linked(contact.node):
                goodbye.append(Send(contact.node, Leave(part)))
            self._timers.cancel((part, TRACKER))
            return self._done([*goodbye, *self._turn_to_tracker(member, now), *release])
        held = member.held_trackers()
        effects: list[Effect] = [Hold(c.node, c.address) for c in held]
        effects += release
        better = next((c.node for c in held[:-1] if self.linked(c.node)), None)
        if better is not None:
            effects += self._tracker_link(member, better, True, now)
        return self._done(effects)

    def learned(self, part: StreamPart, now: float) -> list[Effect]:
        """Ask the tracker anew if it refused us."""
        member = self._members[part]
        return self._done(self._report(member, now) if member.refused else [])

    def advertise(self, address: str, dialable: bool, now: float) -> list[Effect]:
        """Report at once to the trackers where others can dial this node, or that none can."""
        effects = super().advertise(address, dialable, now)
        for member in self._members.values():
            effects += self._report(member, now)
        return self._done(effects)

    def leave(self, part: StreamPart, now: float) -> list[Effect]:
        """Tell the tracker and the neighbours, and let go of them all."""
        member = self._members.pop(part)
        for timer in (SETTLE, ATTEMPT, STATUS, TRACKER):
            self._timers.cancel((part, timer))
        effects: list[Effect] = []
        contact = member.contact()
        if contact is not None and self.linked(contact.node):
            effects.append(Send(contact.node, Leave(part)))
        effects += [Release(held.node) for held in member.held_trackers()]
        for peer in [*member.wanted, *member.retiring]:
            effects += self._let_go(part, peer)
        return self._done(effects)

    # --- The tracker's word ---------------------------------------------------------------

    def receive(self, sender: NodeId, message: AboutParts, now: float) -> list[Effect]:
        """Take what trackers and neighbours say."""
        member = self._members[message.part]
        if type(message) is Instruction:
            return self._done(self._instructed(member, sender, message, now))
        if type(message) is Meet:
            return self._done(self._met(member, sender, message, now))
        if type(message) is Bye:
            return self._done(self._left_by(member, sender, now))
        if type(message) is Refused:
            return self._done(self._refused(member, sender, message, now))
        return []

    def _instructed(
        self, member: Membership, sender: NodeId, message: Instruction, now: float
    ) -> list[Effect]:
        contact = member.contact()
        if contact is None or sender != contact.node:
            return []
        member.count_word(now)
        if message.counter <= member.working_on:
            return []
        instructed = member.neighbours_told(self.me.node, message)
        if wrong := member.wrong_with(message, len(instructed)):
            return [Notice(member.part, "bad-instruction", wrong)]
        member.working_on = message.counter
        effects: list[Effect] = []
        dial = {c.node: c.address for c in message.connect}
        for peer in instructed:
            if peer in member.wanted:
                if peer in dial and not self.linked(peer):  # it may have a new address
                    effects += [Hold(peer, dial[peer]), Release(peer)]
                continue
            if peer in member.retiring:
                del member.retiring[peer]  # held already
            else:
                effects.append(Hold(peer, dial.get(peer, ""), peer in dial))
            if self.linked(peer):
                effects.append(self._meet(member, peer, False, now))
        retiring = [*member.retiring, *(p for p in member.wanted if p not in instructed)]
        # Instructions may come faster than they can be carried out: keep only who is of use.
        kept = [peer for peer in retiring if peer in member.met][-member.degree :]
        for peer in retiring:
            if peer not in kept:
                effects += self._let_go(member.part, peer)
                member.met.pop(peer, None)
        member.retiring = dict.fromkeys(kept)
        member.wanted = instructed
        member.failed = {}
        self._timers.set((member.part, SETTLE), now + SETTLE_S)
        self._timers.set((member.part, ATTEMPT), now + ATTEMPT_EVERY_S)
        self._timers.set((member.part, STATUS), now + STATUS_EVERY_S)  # settling reports before
        member.reflood(self.recent.keep_s, now)
        return effects + self._check_settled(member, now)

    def _refused(
        self, member: Membership, sender: NodeId, message: Refused, now: float
    ) -> list[Effect]:
        """The tracker has no place for us: say so, once per status, and keep trying."""
        contact = member.contact()
        if contact is None or sender != contact.node:
            return []
        member.count_word(now)
        if member.refused:
            return []
        member.refused = True
        self._timers.sooner((member.part, STATUS), now + ATTEMPT_EVERY_S)
        return [Notice(member.part, "refused", message.reason)]

    def _check_settled(self, member: Membership, now: float) -> list[Effect]:
        """Report, once, when every neighbour we were told to have stands or has failed."""
        if not member.settling:
            return []
        if any(p not in member.met and p not in member.failed for p in member.wanted):
            return []
        return self._settle(member, now)

    def _settle(self, member: Membership, now: float) -> list[Effect]:
        self._timers.cancel((member.part, SETTLE))
        member.counter = member.working_on
        effects: list[Effect] = []
        for peer in member.retiring:
            effects += self._let_go(member.part, peer)
        member.met = {p: None for p in member.met if p in member.wanted}
        member.retiring = {}
        member.reflood(self.recent.keep_s, now)
        member.end_lack(self.recent.keep_s, now)
        return effects + self._report(member, now)

    def _report(self, member: Membership, now: float) -> list[Effect]:
        """Send the tracker our status."""
        every_s = STATUS_EVERY_S if member.working_on else ATTEMPT_EVERY_S
        self._timers.set((member.part, STATUS), now + every_s)
        contact = member.contact()
        if contact is None or not self.linked(contact.node):
            return []
        member.begin_count_anew()
        member.refused = False
        peers = tuple(sorted(p for p in member.met if p in member.wanted))
        rtts = tuple(self._rtts_us.get(peer, 0) for peer in peers)
        here = self.me.address, self.dialable
        return [Send(contact.node, Status(member.part, member.counter, peers, rtts, *here))]

    def _turn_to_tracker(self, member: Membership, now: float) -> list[Effect]:
        contact = member.contact()
        if contact is None:
            return [
                Notice(member.part, "no-tracker", "the stream names none: it has no neighbours")
            ]
        hold: list[Effect] = [Hold(contact.node, contact.address)]
        self._timers.set((member.part, TRACKER), now + TRACKER_PATIENCE_S)
        return hold + self._report(member, now)

    # --- Neighbours -----------------------------------------------------------------------

    def _meet(self, member: Membership, peer: NodeId, reply: bool, now: float) -> Effect:
        recent_ms = 0
        member.end_lack(self.recent.keep_s, now)
        if member.lacking_since is not None:
            on_the_way_ms = -(-self._rtts_us.get(peer, UNKNOWN_RTT_US) // 1000)
            recent_ms = int((now - member.lacking_since) * 1000) + on_the_way_ms + BUSY_MS
        return Send(peer, Meet(member.part, reply, min(MAX_RECENT_MS, recent_ms)))

    def _met(self, member: Membership, sender: NodeId, message: Meet, now: float) -> list[Effect]:
        if sender not in member.wanted:
            return []  # the tracker's word to us is still on its way: our own Meet will follow it
        effects: list[Effect] = []
        if not message.reply:
            effects.append(self._meet(member, sender, True, now))
        newly = sender not in member.met
        member.met[sender] = None
        member.failed.pop(sender, None)
        member.reflood(self.recent.keep_s, now)
        if newly:  # once, or a short message would fetch a long answer
            effects += self._catch_up(member, sender, message.recent_ms, now)
        effects += self._check_settled(member, now)
        member.end_lack(self.recent.keep_s, now)
        return effects

    def _catch_up(
        self, member: Membership, peer: NodeId, recent_ms: int, now: float
    ) -> list[Effect]:
        """Give a neighbour the frames it asks for; if it asks for none, those of our own lack.

        They pass for relayed: nobody waits to hear that they have been got.
        """
        since = now - recent_ms / 1000 if recent_ms else member.lacking_since
        if since is None:
            return []
        recent = self.recent.since(part_key(member.part), since)
        return [Forward(self.code, peek(frame), [(peer, HOPS[2])], frame) for frame in recent]

    def _left_by(self, member: Membership, peer: NodeId, now: float) -> list[Effect]:
        """A neighbour said Bye, or its link ended."""
        effects: list[Effect] = []
        if peer in member.retiring:
            del member.retiring[peer]
            effects.append(Release(peer))
        if peer in member.met:
            del member.met[peer]
            if peer in member.wanted and not member.settling:
                # It may be back in a moment; if not, the tracker finds us another.
                if now > member.lost_at + SETTLE_S:  # one that flaps must not keep us silent
                    member.lost_at = now
                self._timers.sooner((member.part, STATUS), now + LOST_AFTER_S)
            if peer in member.wanted:
                self._timers.sooner((member.part, ATTEMPT), now + ATTEMPT_EVERY_S)
        member.reflood(self.recent.keep_s, now)
        return effects

    def _let_go(self, part: StreamPart, peer: NodeId) -> list[Effect]:
        bye: list[Effect] = [Send(peer, Bye(part))] if self.linked(peer) else []
        return [*bye, Release(peer)]

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Greet who we wait for; note who is gone; announce ourselves to a tracker, every time."""
        effects: list[Effect] = []
        if not up:
            self._rtts_us.pop(peer, None)
        for member in self._members.values():
            effects += self._tracker_link(member, peer, up, now)
            if up and peer in member.wanted:
                effects.append(self._meet(member, peer, False, now))
            elif not up and (peer in member.wanted or peer in member.retiring):
                effects += self._left_by(member, peer, now)
                if peer in member.wanted:
                    member.failed[peer] = None
                    effects += self._check_settled(member, now)
        return self._done(effects)

    def _tracker_link(self, member: Membership, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Announce ourselves whenever a tracker is reached, and prefer the first that is."""
        held = member.held_trackers()
        place = next((i for i, contact in enumerate(held) if contact.node == peer), None)
        if place is None:
            return []
        if not up:
            if place == member.tracker and (member.part, TRACKER) not in self._timers:
                self._timers.set((member.part, TRACKER), now + TRACKER_PATIENCE_S)
            return []
        effects: list[Effect] = []
        if place < member.tracker:
            # Members that stay with different trackers would be different overlays.
            if self.linked(held[-1].node):
                effects.append(Send(held[-1].node, Leave(member.part)))
            effects += [Release(contact.node) for contact in held[place + 1 :]]
            member.tracker = place
        self._timers.cancel((member.part, TRACKER))
        return effects + self._report(member, now)

    def rtt(self, peer: NodeId, seconds: float, now: float) -> list[Effect]:
        """Remember a round trip for the next status."""
        self._rtts_us[peer] = min(MAX_RTT_US, int(seconds * 1e6))
        return []

    # --- Time -----------------------------------------------------------------------------

    def wake(self, now: float) -> list[Effect]:
        """Do what is due: settle late, try again, report, turn to another tracker."""
        effects: list[Effect] = []
        for part, timer in self._timers.pop_due(now):
            member = self._members[part]
            if timer == SETTLE and member.settling:
                effects += self._settle(member, now)
            elif timer == ATTEMPT:
                missing = [p for p in member.wanted if p not in member.met]
                effects += [self._meet(member, p, False, now) for p in missing if self.linked(p)]
                if missing:
                    self._timers.set((part, ATTEMPT), now + ATTEMPT_EVERY_S)
            elif timer == STATUS and now < member.lost_at + LOST_AFTER_S:
                self._timers.set((part, STATUS), member.lost_at + LOST_AFTER_S)
            elif timer == STATUS:
                effects += self._report(member, now)
            elif timer == TRACKER:
                effects += self._next_tracker(member, now)
        return self._done(effects)

    def _next_tracker(self, member: Membership, now: float) -> list[Effect]:
        contact = member.contact()
        if contact is None or self.linked(contact.node):
            return []
        self._timers.set((member.part, TRACKER), now + TRACKER_PATIENCE_S)
        if member.tracker + 1 == len(member.trackers):
            return []  # all are held and dialled again and again: the first that answers has us
        member.tracker += 1
        return self._turn_to_tracker(member, now)

    def _done(self, effects: list[Effect]) -> list[Effect]:
        self.wakeup_at = self._timers.next_at
        return effects

    def sizes(self) -> Sizes:
        """Return the fullest membership's neighbours, present or past, with their bound."""
        members = self._members.values()
        most = max((max(len(m.wanted), len(m.retiring)) - m.degree for m in members), default=0)
        return {"neighbours beyond the degree": (max(0, most), 0)}
