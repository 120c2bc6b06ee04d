"""The Peer: what a node does in every overlay it is a member of.

The hot path lies in incoming.py, and what is our own in outgoing.py. Here is what holds them
together: links on behalf of overlays and services, membership, control messages, and what the
registry says of all that.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from anabranch.core import codec
from anabranch.core.attendance import Attendance
from anabranch.core.company import Company, Mandate
from anabranch.core.congestion import LINK_SLOW, Congestion
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.incoming import Incoming
from anabranch.core.key_exchange import KeyExchangeFactory
from anabranch.core.links import MAX_UNHELD, MAX_UNHELD_STORING, Links
from anabranch.core.machine import (
    Advertise,
    Congested,
    Disconnect,
    Dropped,
    Effect,
    Event,
    Forward,
    Hold,
    Learned,
    LinkDown,
    LinkUp,
    Notice,
    Publish,
    PublishNumbered,
    Received,
    ReceivedBatch,
    Release,
    Retire,
    Rtt,
    Sizes,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
    fullest,
)
from anabranch.core.mandate import Introductions
from anabranch.core.messages import (
    AboutDialling,
    AboutKeys,
    AboutParts,
    AboutRegistry,
    AboutStorage,
    Contact,
    Got,
    Introduce,
    Meet,
    SlowDown,
    StorageSlowDown,
)
from anabranch.core.messages.registry import NETWORK
from anabranch.core.outgoing import Entropy, Outgoing
from anabranch.core.overlay import Directory, OverlayFactory
from anabranch.core.packets import Packets
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Doubtful, Permission, Permits
from anabranch.core.publishing import NO_SUCH_STREAM, STRANDED_FOR_S
from anabranch.core.reachability import Reachability
from anabranch.core.reader import ReaderFactory
from anabranch.core.receipts import Receipts
from anabranch.core.service import Service
from anabranch.core.services import Services
from anabranch.core.slow_links import SlowLinks
from anabranch.core.storage import StorageFactory
from anabranch.core.unstored import UnstoredFrames

_Do = Callable[..., list[Effect]]  # with an event, and the time


class Peer:
    """A node's protocol machine.

    Links are made in the name of `node`; what is published is signed in the name of `signer`, and
    `mandate` is the word of whom the node acts for in this `network`, if it has a registry.
    """

    wakeup_at: float | None = None

    def __init__(
        self,
        signer: Signer,
        verify: Verify,
        directory: Directory,
        overlays: Mapping[str, OverlayFactory],
        rng: random.Random,
        entropy: Entropy,
        address: str = "",
        *,
        node: NodeId | None = None,
        network: bytes = b"",
        mandate: Mandate | None = None,
        permits: Permits | None = None,
        services: Sequence[Service] = (),
        keys: KeyExchangeFactory | None = None,
        reader: ReaderFactory | None = None,
        storage: StorageFactory | None = None,
        receipts: Receipts | None = None,
        reachability: Reachability | None = None,
        patience_s: float = STRANDED_FOR_S,
    ) -> None:
        self.me = Contact(node or signer.node, address)
        self._links = Links(rng, MAX_UNHELD if storage is None else MAX_UNHELD_STORING)
        self._congestion = Congestion()
        self._parts = Parts(self.me, directory, overlays, rng, self._links.is_up)
        self._permission = Permission(permits)
        self._keys = keys(self._parts, self._congestion) if keys is not None else None
        self._reader = reader(self._parts, self._keys) if reader is not None else None
        self._storage = storage(self._user_of) if storage is not None else None
        if self._storage is not None:
            self._storage.attach(self._parts)
        self._receipts = receipts
        self._reachability = reachability
        if reachability is not None and not reachability.dialable:  # it does not listen at all
            self._parts.advertise("", False, 0.0)
        ours = (self._keys, self._reader, self._storage, receipts, reachability)
        self._services = Services((*services, *(each for each in ours if each is not None)))
        do = (self._applied, self._served)
        publishing = (signer, entropy, patience_s, self._permission)
        self._outgoing = Outgoing(
            self._parts.recent, *publishing, *do, self._keys, self._reader, receipts
        )
        taking = (self._links, self._congestion, verify, self._permission)
        self._incoming = Incoming(
            self._parts, *taking, *do, self._keys, self._reader, self._storage
        )
        introductions = Introductions(network, verify)
        self._company = Company(introductions, mandate, permits, self._parts, self._links, *do)
        about = (self._outgoing, self._congestion, self._permission, self._company)
        self._attendance = Attendance(self._parts, *about, self._applied, self._keys)
        links, pause = self._links, self._outgoing.pause
        self._slow = SlowLinks(
            self._parts, links, self._congestion, pause, network, verify, permits
        )
        self._kinds = self._kinds_of_events()
        self._handlers = dict.fromkeys(self._kinds, self._begin)

    def _kinds_of_events(self) -> dict[type, _Do]:
        kinds: dict[type, _Do] = {
            Received: self._received,
            ReceivedBatch: self._begin,
            Wakeup: self._wakeup,
            LinkUp: self._link_up,
            LinkDown: self._link_down,
            Rtt: self._rtt,
            Congested: partial(self._done, self._slow.congested),
            Writable: partial(self._done, self._slow.writable),
            Subscribe: partial(self._done, self._attendance.subscribe),
            Unsubscribe: partial(self._done, self._attendance.unsubscribe),
            Publish: partial(self._publish, self._attendance.publish),
            PublishNumbered: partial(self._publish, self._attendance.publish_numbered),
            Retire: partial(self._done, self._attendance.retire),
        }
        return kinds | {k: partial(self._told, s) for k, s in self._services.by_event.items()}

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""
        if type(event) is not ReceivedBatch or self._handlers is not self._kinds:
            return self._handlers[type(event)](event, now)
        sender, data, edges = event.sender, event.packets.data, event.packets.edges
        effects: list[Effect] = []
        incoming = self._incoming
        try:
            place = incoming.take(sender, data, edges, 0, now, effects)
            if incoming.fresh:
                incoming.settle(sender, now, effects)
            while place < len(edges):
                done = self._control(sender, data[edges[place] : edges[place + 1]], now)
                effects += done
                is_last = place + 2 == len(edges)
                if is_last or any(type(e) is Disconnect and e.peer == sender for e in done):
                    break
                place = incoming.take(sender, data, edges, place + 2, now, effects)
                incoming.settle(sender, now, effects)
        except RemoteError as error:
            effects += incoming.confirm(sender) + self._punish(sender, error, now)
        if incoming.confirmed:
            effects += incoming.confirm(sender)
        if incoming.has_moved:
            self._wake_by(incoming.due())
        return effects

    def _begin(self, event: Event, now: float) -> list[Effect]:
        """Start the services before the first event, whatever that is."""
        self._handlers = self._kinds
        effects = self._after(self._served(self._services.start(now), now), now)
        return effects + self.handle(event, now)

    def _user_of(self, peer: NodeId, now: float) -> NodeId | None:
        return self._company.user_of(peer, now)

    def neighbours(self, part: StreamPart) -> tuple[NodeId, ...]:
        """Return our neighbours in a part, sorted; none if we are no member."""
        state = self._parts.find(part)
        return tuple(state.overlay.neighbours(part)) if state else ()

    def neighbours_in(self, stream: str) -> tuple[NodeId, ...]:
        """Return our neighbours in all parts of a stream."""
        found: dict[NodeId, None] = {}
        for state in self._parts:
            if state.part.stream == stream:
                found |= dict.fromkeys(state.overlay.neighbours(state.part))
        return tuple(found)

    def secret(self, stream: str, publisher: NodeId, key_id: bytes) -> bytes | None:
        """Return the secret of a group key, if we have it."""
        return self._keys.secret(stream, publisher, key_id) if self._keys is not None else None

    @property
    def unstored(self) -> UnstoredFrames | None:
        """The published frames that are not stored yet; None: this node does not publish."""
        return self._receipts.unstored if self._receipts is not None else None

    def held_frames(self, part: StreamPart) -> list[bytes]:
        """Return the recent frames of a part, and our own that are not stored yet."""
        state = self._parts.find(part)
        recent = self._parts.recent.positions(state.key)[1] if state is not None else ()
        own = self.unstored.waiting(part) if self.unstored is not None else []
        return [*(kept.frame for kept in recent), *own]

    @property
    def lingers_until(self) -> float:
        """Until when we should stay, because others may need a key that only we have."""
        return self._keys.lingers_until if self._keys is not None else 0.0

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        own = (
            self._links,
            self._congestion,
            self._slow,
            self._parts,
            self._permission,
            self._company,
        )
        return fullest([each.sizes() for each in (*own, self._services)])

    # --- Packets --------------------------------------------------------------------------

    def _received(self, event: Received, now: float) -> list[Effect]:
        return self.handle(ReceivedBatch(event.sender, Packets.of([event.data])), now)

    def _control(self, sender: NodeId, data: bytes, now: float) -> list[Effect]:
        message = codec.decode(data)
        if type(message) is Got:
            return self._got(sender, message, now)
        if isinstance(message, Introduce):
            return self._company.introduced(sender, message, now)
        service = self._services.taking(type(message))
        if service is not None:
            if not self._services.rely_on(sender):
                self._links.strain(sender, now)
            return self._after(self._served(service.receive(sender, message, now), now), now)
        if isinstance(message, AboutRegistry | AboutKeys | AboutStorage | AboutDialling):
            self._links.strain(sender, now)
            return []
        return self._about_part(sender, message, now)

    def _about_part(self, sender: NodeId, message: AboutParts, now: float) -> list[Effect]:
        state = self._parts.find(message.part)
        if state is not None and isinstance(message, SlowDown | StorageSlowDown):
            return self._slow_down(state, sender, message, now)
        if state is None or not state.overlay.follows(state.part, sender):
            self._links.strain(sender, now)
        if state is None:
            return []
        if type(message) is Meet and not self._company.welcomes(state.part, sender, now):
            return self._after(self._company.turn_away(state, sender, message, now), now)
        effects = self._company.remind(state, sender, message, now)
        effects += self._applied(state.overlay.receive(sender, message, now), now)
        effects += self._outgoing.look(state, now)
        self._rearm()
        return effects

    def _slow_down(
        self, state: Part, sender: NodeId, message: SlowDown | StorageSlowDown, now: float
    ) -> list[Effect]:
        """A neighbour, or a storage node of the stream, cannot keep up."""
        effects: list[Effect] = []
        if not self._company.is_neighbour(state, sender, now):
            self._links.strain(sender, now)
        elif isinstance(message, SlowDown):
            self._slow.slow_down(state, sender, message, now)
        else:
            effects = self._slow.storage_slow_down(state, sender, message, now)
        self._rearm()
        return effects

    def _got(self, sender: NodeId, message: Got, now: float) -> list[Effect]:
        """A neighbour has a frame of ours: now it is sent."""
        state, effects = self._parts.find(message.part), None
        if state is not None and state.overlay.accepts(state.part, sender):
            if (ours := state.publishing) and ours.has_settled(message.chain, message.numbers):
                return []
            if self._company.welcomes(state.part, sender, now):
                effects = self._outgoing.got(state, message.chain, message.numbers, now)
        if effects is None:
            self._links.strain(sender, now)
        self._wake_by(self._outgoing.wakeup_at)
        return effects or []

    def _punish(self, peer: NodeId, error: RemoteError, now: float) -> list[Effect]:
        """A peer that breaks the protocol loses its link."""
        ended = self._ended(self._links.ban(peer, error.reason, now), now)
        fault = Notice(None, "fault", f"{error.reason} from {peer.hex()}")
        return self._after([fault, *ended], now)

    # --- Links ----------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> list[Effect]:
        effects = self._ended(self._links.up(event.peer, now), now)
        if self._links.is_up(event.peer):
            effects = self._company.greet(event.peer, now=now) + effects
            for overlay in self._parts.overlays.values():
                if event.rtt_s is not None:
                    effects += self._applied(overlay.rtt(event.peer, event.rtt_s, now), now)
                effects += self._applied(overlay.link(event.peer, True, "", now), now)
            effects += self._served(self._services.link(event.peer, True, "", now), now)
            if event.host and self._reachability is not None:
                effects += self._served(self._reachability.accepted(event.peer, now), now)
        return self._after(effects, now)

    def _link_down(self, event: LinkDown, now: float) -> list[Effect]:
        self._links.down(event.peer, now)
        return self._after(self._lost(event.peer, event.reason, now), now)

    def _lost(self, peer: NodeId, reason: str, now: float) -> list[Effect]:
        effects = self._congestion.gone(peer, "link-down")
        self._company.gone(peer)
        for overlay in self._parts.overlays.values():
            effects += self._applied(overlay.link(peer, False, reason, now), now)
        return effects + self._served(self._services.link(peer, False, reason, now), now)

    def _ended(self, effects: list[Effect], now: float) -> list[Effect]:
        """Add what follows for others where we end a link ourselves."""
        lost = [e for e in effects if type(e) is Disconnect]
        for ended in lost:
            effects += self._lost(ended.peer, ended.reason, now)
        return effects

    def _rtt(self, event: Rtt, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._links.is_up(event.peer):
            for overlay in self._parts.overlays.values():
                effects += self._applied(overlay.rtt(event.peer, event.seconds, now), now)
        return self._after(effects, now) if effects else effects

    def _cut(self, peer: NodeId, reason: str, now: float) -> list[Effect]:
        """End a link that was full or paused for too long.

        A neighbour that only asks for pauses would be back at once. It is shut out until the
        tracker has heard that the link is missing, and has replaced it. If a part has no other
        neighbour the link stays, and the pauses of that neighbour are bounded.
        """
        if reason != LINK_SLOW:
            return [*self._links.cut(peer, reason, now), *self._lost(peer, reason, now)]
        shared = [s.overlay.neighbours(s.part) for s in self._parts]
        if any(len(peers) < 2 for peers in shared if peer in peers):
            return []
        return [*self._links.ban(peer, reason, now), *self._lost(peer, reason, now)]

    # --- What the application wants, and what the transport has to say of slow links ------

    def _done(self, do: _Do, event: Event, now: float) -> list[Effect]:
        return self._after(do(event, now), now)

    def _publish(self, do: _Do, event: Publish | PublishNumbered, now: float) -> list[Effect]:
        was_member, effects = self._parts.find(event.part) is not None, do(event, now)
        if not was_member:  # we have joined, and much was set going
            self._rearm()
        else:
            self._wake_by(self._outgoing.wakeup_at)
            self._wake_by(self._services.wakeup_at)
        return effects

    # --- Services, and what they learn of the registry ------------------------------------

    def _told(self, service: Service, event: Event, now: float) -> list[Effect]:
        return self._after(self._served(service.tell(event, now), now), now)

    def _served(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do ourselves what is ours to do of a service's effects."""
        self._services.note(effects)
        learned = [effect.chain for effect in effects if type(effect) is Learned]
        done = self._applied(effects, now)
        for chain in learned:
            done += self._learned(chain, now)
        self._wake_by(self._services.wakeup_at)
        return done

    def _learned(self, chain: str, now: float) -> list[Effect]:
        """Bring our parts, and what was in doubt, up to date with a chain of the registry."""
        effects = self._served(self._keys.learned(chain, now), now) if self._keys else []
        if self._storage is not None:
            effects += self._served(self._storage.learned(chain, now), now)
        if self._receipts is not None:
            effects += self._served(self._receipts.learned(chain, now), now)
        for state in [s for s in self._parts if chain in (NETWORK, s.part.stream)]:
            changed = self._parts.change(state, now)
            if changed is None:
                effects += self._outgoing.stop(state, NO_SUCH_STREAM, now)
                effects.append(Notice(state.part, "deleted", "the registry knows it no more"))
                effects += self._attendance.leave(state, now)
            else:
                changed += state.overlay.learned(state.part, now)
                effects += self._applied(changed, now) + self._outgoing.reconsider(state, now)
                effects += self._company.learned(state, now)
        for packet in self._permission.learned(chain, now):
            effects += self._look_again(packet, now)
        return effects

    def _look_again(self, packet: Doubtful, now: float) -> list[Effect]:
        if not self._links.is_up(packet.sender):
            return [Dropped(packet.head, "link-down", packet.sender)]
        return self._received(Received(packet.sender, packet.data), now)

    # --- After every event that is not data -----------------------------------------------

    def _applied(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do ourselves what is ours to do of an overlay's effects: links, and slow links."""
        done: list[Effect] = []
        for effect in effects:
            if type(effect) is Forward and self._congestion.outboxes:
                done += self._slow.keep_back(effect, now)
            elif type(effect) is Hold:
                done += self._links.hold(effect.peer, effect.address, effect.dial, now)
            elif type(effect) is Release:
                done += self._ended(self._links.release(effect.peer, now), now)
            elif type(effect) is Advertise:
                done += self._parts.advertise(effect.address, effect.dialable, now)
            else:
                done.append(effect)
        return done

    def _after(self, effects: list[Effect], now: float) -> list[Effect]:
        """Bring the state up to date with a change that is not data."""
        effects += self._outgoing.look_everywhere(now)
        self._rearm()
        return effects

    def _rearm(self) -> None:
        times = [self._links.wakeup_at, self._congestion.wakeup_at, self._outgoing.wakeup_at]
        times += [overlay.wakeup_at for overlay in self._parts.overlays.values()]
        times += [self._services.wakeup_at, self._permission.wakeup_at, self._company.wakeup_at]
        self.wakeup_at = min((at for at in times if at is not None), default=None)

    def _wake_by(self, at: float | None) -> None:
        if at is not None and (self.wakeup_at is None or at < self.wakeup_at):
            self.wakeup_at = at

    def _wakeup(self, event: Wakeup, now: float) -> list[Effect]:
        effects = self._ended(self._links.wake(now), now)
        for peer, reason in self._congestion.too_long(now):
            effects += self._cut(peer, reason, now)
        effects += self._slow.wake(now)
        for overlay in self._parts.overlays.values():
            if overlay.wakeup_at is not None and overlay.wakeup_at <= now:
                effects += self._applied(overlay.wake(now), now)
        effects += self._served(self._services.wake(now), now)
        effects += self._permission.expire(now)
        effects += self._company.wake(now)
        return self._after(effects + self._outgoing.wake(now), now)
