"""Runs a machine on asyncio: events in, effects out, one timer.

Everything happens on one loop and nothing here waits. What comes while an event is being handled
(a link that ends because we wrote to it) waits its turn, so that the machine sees one event at a
time, in the order in which they happened.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.core import codec
from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Congested,
    Connect,
    Copies,
    Deliver,
    DialCheck,
    DialChecked,
    Disconnect,
    Dropped,
    Effect,
    Event,
    Forward,
    LinkDown,
    LinkUp,
    Machine,
    Publish,
    Published,
    Received,
    ReceivedBatch,
    Rtt,
    Send,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Writable,
)
from anabranch.core.messages import Control
from anabranch.core.packets import Packets
from anabranch.live.clock import Clock
from anabranch.live.observer import Observer
from anabranch.live.transports import Link, Transport

Handlers = Mapping[type[Any], Callable[[Any], None]]  # by type of effect

MAX_EARLY_BYTES = 16 << 20  # of packets that wait for a machine to be attached
EVENT_BYTES = 200  # what an event takes besides its packet, about

ROUNDING_S = 0.0005  # uvloop counts whole milliseconds: a delay rounded down would end early

_WAKEUP = Wakeup()


class Driver:
    """Stands between a machine and the world; the transport's owner."""

    __slots__ = (
        *("_armed_at", "_at_once", "_at_rest", "_clock", "_early_bytes", "_ended", "_hand_over"),
        *("_handlers", "_handling", "_machine", "_observer", "_on_failure", "_timer", "_transport"),
        *("_waiting", "failure", "links", "rounding_s"),
    )

    def __init__(
        self,
        transport: Transport,
        handlers: Handlers,
        observer: Observer,
        clock: Callable[[], float] | None = None,
        deliver: Callable[[Deliver, float], None] | None = None,
        at_rest: Callable[[], None] | None = None,
    ) -> None:
        """`deliver` takes what is delivered, and `at_rest` is called when all else is done."""
        self.failure: BaseException | None = None  # a mistake of ours ended the machine
        self.links: dict[NodeId, Link] = {}
        self.rounding_s = ROUNDING_S
        self._transport = transport
        self._handlers = handlers
        self._observer = observer
        self._clock = clock or Clock().__call__  # which is called straight, where a Clock is not
        self._hand_over = deliver
        self._at_rest = at_rest
        self._machine: Machine | None = None
        self._waiting: deque[Event] = deque()
        self._early_bytes = 0
        self._ended = False
        self._handling = False
        self._at_once = False  # whether what is sent now shall not wait for the end of the turn
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at: float | None = None
        self._on_failure: list[Callable[[BaseException], None]] = []

    def now(self) -> float:
        """Return the machine's time."""
        return self._clock()

    def attach(self, machine: Machine) -> None:
        """Begin to run a machine; what has happened so far happens to it now."""
        self._machine = machine
        self._drain()

    def on_failure(self, call: Callable[[BaseException], None]) -> None:
        """Call this if the machine fails by a mistake of ours."""
        self._on_failure.append(call)

    def detach(self) -> None:
        """Let nothing more happen, for good."""
        if not self._ended:
            self._observer.stopped(self._clock())
        self._ended = True
        self._machine = None
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_at = None

    def feed(self, event: Event) -> None:
        """Let an event happen, now or when the one under way is done."""
        if self._ended:
            return
        if type(event) is Subscribe:
            self._observer.wanted(self._clock(), event.part, event.reads)
        elif type(event) is Unsubscribe:
            self._observer.wanted(self._clock(), event.part, False)
        self._waiting.append(event)
        if not self._handling:
            self._drain()

    def feed_at_once(self, event: Publish) -> None:
        """Let something be published, and what is sent leave at once, if not much else does."""
        self._at_once = True
        self.feed(event)

    def say(self, to: NodeId, message: Control) -> bool:
        """Send a control message on behalf of the process; tells whether there is a link."""
        return self._send(Send(to, message), self._clock())

    # --- What the transport says ----------------------------------------------------------

    def link_up(self, link: Link) -> None:
        """A link stands."""
        self.links[link.peer] = link
        self._observer.linked(self._clock(), link.peer, True, "")
        self.feed(LinkUp(link.peer, link.rtt_s, link.host))

    def link_down(self, peer: NodeId, reason: str) -> None:
        """A link ended, or could not be dialled."""
        if self.links.pop(peer, None) is not None:
            self._observer.linked(self._clock(), peer, False, reason)
        self.feed(LinkDown(peer, reason))

    def received(self, peer: NodeId, packets: Packets) -> None:
        """Packets came."""
        if self._machine is None and not self._may_wait(peer, packets):
            return
        observer, edges = self._observer, packets.edges
        if not observer.traces:
            alone = len(edges) == 2  # as most are
            observer.metrics.bytes_in += edges[1] - edges[0] if alone else packets.size
            self._waiting.append(ReceivedBatch(peer, packets))
        else:  # who traces has to know what was made of each
            self._waiting.extend([Received(peer, packet) for packet in packets])
        if not self._handling:
            self._drain()

    def _may_wait(self, peer: NodeId, packets: Packets) -> bool:
        """Tell whether packets may wait for a machine; who brings too many loses its link."""
        if self._ended:
            return False
        self._early_bytes += _weigh(len(packets.data), len(packets))
        if self._early_bytes <= MAX_EARLY_BYTES:
            return True
        self._disconnect(Disconnect(peer, "too-early"), self._clock())
        self._early_bytes = sum(map(_weight_of, self._waiting))
        return False

    def rtt(self, peer: NodeId, seconds: float) -> None:
        """A round trip was measured."""
        self._observer.rtt(self._clock(), peer, seconds)
        self.feed(Rtt(peer, seconds))

    def congested(self, peer: NodeId) -> None:
        """A link's queue is full."""
        self.feed(Congested(peer))

    def writable(self, peer: NodeId) -> None:
        """It has room again."""
        self.feed(Writable(peer))

    # --- The loop -------------------------------------------------------------------------

    def _drain(self) -> None:
        # What is called here but is no method is taken out first: Python finds it sooner so.
        machine, waiting, clock, at_rest = self._machine, self._waiting, self._clock, self._at_rest
        if machine is None:
            return
        self._handling = True
        try:
            now = clock()
            while waiting and self._machine is machine:
                event = waiting.popleft()
                effects = machine.handle(event, now)
                if type(event) is Received:
                    self._observer.came(now, event, effects)
                if effects:
                    self._perform(effects, now)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._handling = self._at_once = False
        due = machine.wakeup_at
        if due is not None and (self._armed_at is None or due < self._armed_at):
            self._arm(machine, now)
        if at_rest is not None:
            at_rest()

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.detach()
        for call in self._on_failure:
            call(error)

    def _arm(self, machine: Machine, now: float) -> None:
        due = machine.wakeup_at
        if due is None or self._machine is not machine:
            return
        if self._armed_at is None or due < self._armed_at:
            if self._timer is not None:
                self._timer.cancel()
            self._armed_at = due
            delay_s = max(0.0, due - now) + self.rounding_s
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = self._armed_at = None
        machine = self._machine
        if machine is None or machine.wakeup_at is None:
            return
        if machine.wakeup_at <= self._clock():
            self.feed(_WAKEUP)
        else:  # it was moved to a later time
            self._arm(machine, self._clock())

    # --- Effects --------------------------------------------------------------------------

    def _perform(self, effects: list[Effect], now: float) -> None:
        together: list[Forward] = []  # frames that go the same ways
        delivered, hand_over = self._observer.delivered, self._hand_over
        published: list[Effect] = []  # to be noted when it is on its way
        for effect in effects:
            kind = type(effect)
            if kind is Forward:
                if together and together[0].branches is not effect.branches:  # type: ignore[union-attr]
                    self._forward(together, now)
                    together = []
                together.append(effect)  # type: ignore[arg-type]
            elif kind is Deliver:
                delivered(now, effect)  # type: ignore[arg-type]
                hand_over(effect, now)  # type: ignore[arg-type, misc]
            elif kind is Copies:
                self._withdraw(effect)  # type: ignore[arg-type]
            elif kind is Published and not self._observer.traces:
                published.append(effect)
            else:  # what comes after frames must not overtake them
                if together:
                    self._forward(together, now)
                    together = []
                self._perform_rare(effect, now)
        if together:
            self._forward(together, now)
        for effect in published:
            self._perform_rare(effect, now)

    def _perform_rare(self, effect: Effect, now: float) -> None:
        if type(effect) is Dropped:
            self._observer.dropped(now, effect)
        elif type(effect) is Send:
            self._send(effect, now)
        elif type(effect) is Connect:
            self._transport.dial(effect.peer, effect.address)
        elif type(effect) is Disconnect:
            self._disconnect(effect, now)
        elif type(effect) is DialCheck:
            self._check(effect)
        else:
            self._observer.other(now, effect)
            handler = self._handlers.get(type(effect))
            if handler is not None:
                handler(effect)

    def _check(self, check: DialCheck) -> None:
        peer, address = check.peer, check.address

        def done(reached: bool) -> None:
            self.feed(DialChecked(peer, address, reached))

        self._transport.check(check, done)

    def _forward(self, forwards: list[Forward], now: float) -> None:
        """Send frames that have the same branches, all of them to each in one call."""
        route: bytes | None = None
        packets: list[bytes] = []
        size = sent_bytes = 0
        observer, overlay = self._observer, forwards[0].overlay
        for peer, branch in forwards[0].branches:
            if branch is not route:
                route, head = branch, codec.carry_head(overlay, branch)
                packets = [head + forwards[0].frame]
                if len(forwards) > 1:
                    packets = [head + forward.frame for forward in forwards]
                size = sum(map(len, packets))
            link = self.links.get(peer)
            if link is None:
                for forward in forwards:
                    observer.dropped(now, Dropped(forward.head, "no-link", peer))
                continue
            if len(packets) == 1:
                link.send(packets[0])
            else:
                link.send(*packets)
            sent_bytes += size
            if observer.traces:
                for forward, packet in zip(forwards, packets, strict=True):
                    observer.sent(now, peer, forward.head, len(packet))
        observer.metrics.bytes_out += sent_bytes
        if self._at_once or forwards[0].is_first_hand:
            self._transport.hasten()

    def _withdraw(self, copies: Copies) -> None:
        """Count what was here before; who has sent it needs no copy from us any more."""
        self._observer.copies(copies)
        link = self.links.get(copies.peer)
        if link is not None and not self._observer.traces:
            self._observer.metrics.bytes_out -= link.withdraw(copies.names)

    def _send(self, send: Send, now: float) -> bool:
        link = self.links.get(send.to)
        if link is None:
            return False
        packet = codec.encode(send.message)
        self._observer.said(now, send, len(packet))
        link.send(packet)
        return True

    def _disconnect(self, effect: Disconnect, now: float) -> None:
        link = self.links.pop(effect.peer, None)
        if link is not None:
            self._observer.linked(now, effect.peer, False, effect.reason)
            link.close(effect.reason)
        # The machine has done with this peer: what still waits is of links that are over.
        kept = [event for event in self._waiting if _peer_of(event) != effect.peer]
        self._waiting.clear()
        self._waiting.extend(kept)


def _weigh(size: int, packets: int) -> int:
    """Return how many bytes packets take while they wait."""
    return size + EVENT_BYTES * packets


def _weight_of(event: Event) -> int:
    """Return how many bytes the packets take that an event brings."""
    if type(event) is ReceivedBatch:
        return _weigh(len(event.packets.data), len(event.packets))
    return _weigh(len(event.data), 1) if type(event) is Received else 0


def _peer_of(event: Event) -> NodeId | None:
    """Return on whose link an event happened, if on any."""
    if type(event) is Received or type(event) is ReceivedBatch:
        return event.sender
    if isinstance(event, LinkUp | LinkDown | Rtt | Congested | Writable):
        return event.peer
    return None
