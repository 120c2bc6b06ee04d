"""Reading in order: every message of a part that can be had, once, in its publisher's order.

Each `Open` is a Subscription, which knows where the chains stand. What is missing in them is asked
for (gaps.py), and also what would come last (sweeps.py). What was before, if it is wanted, comes
page by page (replay.py). What neighbours miss, they may have of us (lending.py).
"""

import random
from collections.abc import Callable
from functools import partial

import msgspec

from anabranch.core.comparison_server import ComparisonServer
from anabranch.core.duplicates import NEW
from anabranch.core.frames import is_clear
from anabranch.core.gaps import Gaps
from anabranch.core.identity import Verify
from anabranch.core.ids import (
    SEQUENCE_BITS,
    ChainKey,
    FrameHead,
    NodeId,
    PartKey,
    StreamPart,
    part_key,
)
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.lending import Lending
from anabranch.core.machine import (
    Close,
    Deliver,
    Drained,
    Effect,
    Event,
    HistoryEnded,
    Open,
    Sizes,
    fullest,
)
from anabranch.core.messages import AskLacking, AskRanges, Control, Resend, Resent
from anabranch.core.overlay import Carried
from anabranch.core.parts import Part, Parts
from anabranch.core.replay import Replay
from anabranch.core.resends import Inspector, Resends, Sources
from anabranch.core.service import Service
from anabranch.core.subscription import GAP_WAIT_S, Cut, Subscription
from anabranch.core.sweeps import Arrivals, Sweeps

MAX_READERS = 1_000
PASS_ON_S = 60.0  # what is older than this is history, which nobody floods
FRESH_S = 1.5  # a frame that is younger is still on its way through the overlay
TOO_MANY = f"a node has at most {MAX_READERS} readers at once"

Taker = Callable[[FrameHead, bytes, int, NodeId | None, float], list[Effect]]


class _Reading(msgspec.Struct, eq=False):
    """One who reads, and how it takes what is live."""

    opened: Open
    key: PartKey
    order: Subscription
    replay: Replay | None = None
    taker: Taker | None = None  # None: nothing live is wanted


class _Audience(Arrivals, eq=False):
    """All who take what is live of one part, and how many messages have come to them."""

    takers: list[Taker] = msgspec.field(default_factory=list)


class Reader(Service):
    """All who read in order on this node."""

    messages = (Resend, Resent, AskRanges, AskLacking)
    events = (Open, Drained, Close)

    def __init__(
        self,
        registry: Sources,
        verify: Verify,
        rng: random.Random,
        parts: Parts,
        keys: KeyExchange | None,
    ) -> None:
        self._sources = registry
        self._rng = rng
        self._parts = parts
        self._keys = keys
        self._inspector = Inspector(registry, verify)
        self._resends = Resends()
        self._lending = Lending(parts)
        self._comparison_server = ComparisonServer(parts, self._stores)
        self._readings: dict[int, _Reading] = {}
        self._replays: dict[int, Replay] = {}  # those that have not ended
        self._orders: dict[PartKey, list[Subscription]] = {}
        self._audiences: dict[PartKey, _Audience] = {}
        common = (registry, self._inspector, self._resends)
        self._gaps = Gaps(*common, parts, rng, self._orders, self._admit)
        self._sweeps = Sweeps(*common, rng, self._arrivals, self._wants, self._admit)

    # --- The hot path ---------------------------------------------------------------------

    def take(
        self,
        state: Part,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        now: float,
    ) -> list[Effect]:
        """Take a frame that came live, verified, and for the first time."""
        audience = self._audiences.get(state.key)
        if audience is None:
            return []
        audience.came += head.count
        if head.first > audience.horizon:
            audience.newer += head.count
        takers = audience.takers
        if len(takers) == 1:
            return takers[0](head, frame, hops, sender, now)
        return [effect for taker in takers for effect in taker(head, frame, hops, sender, now)]

    def _deliver(
        self,
        ticket: int,
        part: StreamPart,
        key: PartKey,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        now: float,
        after: int,
        cut: Cut,
    ) -> list[Effect]:
        """Hand a frame to one reader, with its key if it needs one."""
        keys = self._keys
        wanted = (ticket, after, cut.upto, cut.skip, cut.most, cut.late)
        if keys is None or (not keys.waiting and is_clear(frame)) or not self._is_read(key):
            return [Deliver(part, head, frame, hops, b"", *wanted)]
        return keys.deliver(part, head, frame, hops, sender, now, *wanted)

    def _is_read(self, key: PartKey) -> bool:
        state = self._parts.get(key)
        return state is None or state.reads

    def _say(self, ticket: int, effect: Effect) -> list[Effect]:
        """Tell a reader something, after what still waits for its key."""
        return [effect] if self._keys is None else self._keys.follow(ticket, effect)

    def _noticed(self, part: StreamPart, key: PartKey, chain: ChainKey, since: float) -> None:
        self._gaps.notice(part, key, chain, since)
        due_at = since + GAP_WAIT_S
        if self.wakeup_at is None or due_at < self.wakeup_at:
            self.wakeup_at = due_at

    # --- What the application wants -------------------------------------------------------

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Let somebody read, read on, or read no more."""
        effects: list[Effect] = []
        if type(event) is Open:
            effects = self._open(event, now)
        elif type(event) is Drained and event.ticket in self._replays:
            effects = self._replays[event.ticket].drained(now)
        elif type(event) is Close and event.ticket in self._readings:
            effects = self._close(event.ticket, now)
        return self._go_on(effects, now)

    def _open(self, event: Open, now: float) -> list[Effect]:
        assert event.ticket > 0
        assert event.ticket not in self._readings, "a ticket is for one reader"
        if len(self._readings) >= MAX_READERS:
            return [HistoryEnded(event.ticket, TOO_MANY)]
        ticket, part, key = event.ticket, event.part, part_key(event.part)
        deliver = partial(self._deliver, ticket, part, key)
        words = partial(self._noticed, part, key), partial(self._say, ticket)
        order = Subscription(ticket, part, now, deliver, *words)
        reading = self._readings[ticket] = _Reading(event, key, order)
        self._orders.setdefault(key, []).append(order)
        if event.history is None:
            self._let_in(reading)
            self._watch(reading, now)
            return [] if event.live else [HistoryEnded(ticket)]
        common = (self._sources, self._inspector, self._resends, self._rng, self._say)
        replay = self._replays[ticket] = Replay(event, key, order, *common)
        reading.replay = replay
        if event.live:
            self._change_taker(reading, replay.hold)
            self._watch(reading, now)
        return replay.start(now)

    def _watch(self, reading: _Reading, now: float) -> None:
        """See that nothing is missed of what it wants to be complete."""
        if reading.opened.live and reading.opened.fills:
            self._sweeps.watch(reading.opened.part, reading.key, now)

    def _let_in(self, reading: _Reading) -> None:
        """From now on what is live is delivered as it should be."""
        if reading.opened.live:
            order = reading.order
            self._change_taker(reading, order.take if reading.opened.fills else order.pass_on)

    def _change_taker(self, reading: _Reading, taker: Taker | None) -> None:
        """Take what is live in another way; None: no more."""
        audience = self._audiences.setdefault(reading.key, _Audience())
        if reading.taker is not None:
            audience.takers.remove(reading.taker)
        if taker is not None:
            audience.takers.append(taker)
        reading.taker = taker
        if not audience.takers:
            del self._audiences[reading.key]
            self._sweeps.forget(reading.key)

    def _close(self, ticket: int, now: float) -> list[Effect]:
        reading = self._readings.pop(ticket)
        self._change_taker(reading, None)
        orders = self._orders[reading.key]
        orders.remove(reading.order)
        if not orders:
            del self._orders[reading.key]
        replay = self._replays.pop(ticket, None)
        if replay is not None:
            replay.close(now)
        return self._keys.close(ticket, now) if self._keys is not None else []

    # --- What was asked for ---------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take an answer to a question of ours, or answer a neighbour's."""
        if type(message) is Resend:
            return self._lending.answer(sender, message, now)
        if type(message) is AskRanges:
            return self._comparison_server.ask_ranges(sender, message, now)
        if type(message) is AskLacking:
            return self._comparison_server.ask_lacking(sender, message, now)
        assert type(message) is Resent
        return self._go_on(self._resends.receive(sender, message, now), now)

    def _stores(self, stream: str, node: NodeId) -> bool:
        """Tell whether a stream names a node as its storage node."""
        return any(node == keeper.node for keeper in self._sources.keepers(stream))

    def _admit(
        self, key: PartKey, head: FrameHead, frame: bytes, sender: NodeId, now: float
    ) -> list[Effect]:
        """Take a frame that was missing: for who lacks it, and if it is new to us, for all."""
        effects: list[Effect] = []
        is_new = self._mark(key, head, frame, now)
        state, audience = self._parts.get(key), self._audiences.get(key)
        if audience is not None:
            audience.came += head.count
            if head.first > audience.horizon:
                audience.newer += head.count
        if is_new and state is not None and state.subscribed and state.plain:
            if self._keys is None or not state.reads:
                effects.append(Deliver(state.part, head, frame, 1))
            else:
                effects += self._keys.deliver(state.part, head, frame, 1, sender, now)
        if is_new and state is not None:
            effects += self._pass_on(state, head, frame, sender, now)
        for reading in [each for each in self._readings.values() if each.key == key]:
            wants = is_new or (reading.opened.fills and reading.order.wants(head))
            if reading.order.lacks(head):
                effects += reading.order.take(head, frame, 1, sender, now)
            elif wants and reading.taker is not None:
                effects += reading.taker(head, frame, 1, sender, now)
        return effects

    def _pass_on(
        self, state: Part, head: FrameHead, frame: bytes, sender: NodeId, now: float
    ) -> list[Effect]:
        """Let others have what a neighbour had: storage nodes may lack it as well as we did."""
        if head.last >> SEQUENCE_BITS < (now - PASS_ON_S) * 1000:
            return []
        if any(sender == keeper.node for keeper in self._sources.keepers(state.part.stream)):
            return []
        carried = Carried(head, state.overlay.straight, frame)
        return state.overlay.carry(state.part, carried, sender, True, now)

    def _arrivals(self, key: PartKey) -> Arrivals:
        return self._audiences.get(key) or Arrivals()

    def _wants(self, key: PartKey, head: FrameHead) -> bool:
        """Tell whether somebody who wants all that is live has not got a frame."""
        return any(
            reading.order.wants(head)
            for reading in self._readings.values()
            if reading.key == key and reading.opened.live and reading.opened.fills
        )

    def _mark(self, key: PartKey, head: FrameHead, frame: bytes, now: float) -> bool:
        """Take note that a frame is known, so that later copies are; tell whether it was not.

        What is still on its way through the overlay is left alone: it has to be passed on.
        """
        state = self._parts.get(key)
        if state is None or head.last >> SEQUENCE_BITS > (now - FRESH_S) * 1000:
            return False
        if state.seen.take(head.chain, head.previous, head.first, head.last) is not NEW:
            return False
        self._parts.recent.add(key, frame, now)
        return True

    # --- Links and time -------------------------------------------------------------------

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask those whom we can reach now; ask nobody whom we cannot."""
        if not up:
            self._lending.gone(peer)
            self._comparison_server.gone(peer)
        self._sweeps.stir(now)
        return self._go_on(self._resends.link(peer, up, now), now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        return self._go_on(self._resends.wake(now), now)

    def _go_on(self, effects: list[Effect], now: float) -> list[Effect]:
        """Do what can be done now, and what follows from that."""
        is_first = True
        while is_first or self._resends.has_turn or self._gaps.is_due(now):
            is_first = False
            effects += self._gaps.wake(now)
            self._sweeps.wake(now)
            effects += self._resends.pump(now)
            for ticket, replay in list(self._replays.items()):
                effects += replay.look(now)
                if replay.ended:
                    del self._replays[ticket]
                    self._let_in(self._readings[ticket])
        self._rearm()
        return effects

    def _rearm(self) -> None:
        times = [self._gaps.wakeup_at, self._resends.wakeup_at, self._sweeps.wakeup_at]
        times += [replay.retry_at for replay in self._replays.values()]
        self.wakeup_at = min((at for at in times if at is not None), default=None)

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound; of many alike, the fullest."""
        readings = {"readers": (len(self._readings), MAX_READERS)}
        orders = [reading.order.sizes() for reading in self._readings.values()]
        replays = [replay.sizes() for replay in self._replays.values()]
        tables = [self._gaps.sizes(), self._resends.sizes(), self._lending.sizes()]
        tables.append(self._comparison_server.sizes())
        return fullest([readings, *tables, self._sweeps.sizes(), *orders, *replays])


ReaderFactory = Callable[[Parts, KeyExchange | None], Reader]
