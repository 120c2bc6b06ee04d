"""A storage node: it keeps the streams that name it, on its disk, each part as a log.

The logs do the work (part_log.py). Here is what holds them together: which there are, as the
registry has it; links to the other storage nodes; and who may ask for what, and hand over what.
"""

import random
from collections.abc import Callable, Iterable, Sequence

from anabranch.core import frames
from anabranch.core.changes import CreateStream
from anabranch.core.comparison_server import ComparisonServer
from anabranch.core.congestion import PAUSE_MS, TELL_EVERY_S
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import (
    MAX_SKEW_S,
    SEQUENCE_BITS,
    ChainKey,
    FrameHead,
    NodeId,
    StreamPart,
    part_key,
    publisher_of,
)
from anabranch.core.log_marks import Notary
from anabranch.core.machine import (
    Damaged,
    Effect,
    Event,
    Found,
    Hold,
    LossAccepted,
    Notice,
    Release,
    Send,
    Sizes,
    Wrote,
    fullest,
)
from anabranch.core.messages import (
    AskEntries,
    AskLacking,
    AskRanges,
    AskRank,
    AskStored,
    Control,
    Declined,
    Disagree,
    Entries,
    Fetch,
    Fetched,
    Hand,
    Lacking,
    Lead,
    Marked,
    Ranges,
    Ranked,
    Resend,
    Resent,
    StorageSlowDown,
    Vote,
    Voted,
)
from anabranch.core.messages.links import slow_down_digest
from anabranch.core.messages.registry import NETWORK
from anabranch.core.messages.storage import FrameName, Holding
from anabranch.core.missing_frames import MissingFrames
from anabranch.core.part_log import FromFellow, LogStatus, PartLog
from anabranch.core.parts import MAX_PARTS, Part, Parts
from anabranch.core.receipts import signed_bytes
from anabranch.core.registry_view import Registry
from anabranch.core.service import Service
from anabranch.core.storage_comparison import Comparisons, StoreRetention
from anabranch.core.storage_disk import Disk
from anabranch.core.storage_repair import Repairs, Sweep
from anabranch.core.storage_resends import Readers, Resends, UserOf
from anabranch.core.store import LogState
from anabranch.core.timers import Timers
from anabranch.core.verified_frames import VerifiedFrames

MAX_LOGS = MAX_PARTS  # that are kept up to date
CONFIRM_S = 10.0  # how often the registry is asked whether a stream is deleted indeed
KEEP_ALL = StoreRetention()


class Storage(Service):
    """Keeps the streams that name this node."""

    messages = (
        *(Resend, AskEntries, Entries, AskStored, Hand, Vote, Voted, Lead, Fetch, Fetched),
        *(AskRanges, Ranges, AskLacking, Lacking, AskRank, Ranked, Marked, Disagree, Resent),
    )
    events = (Wrote, Found, Damaged, LossAccepted)

    def __init__(
        self,
        signer: Signer,
        network: bytes,
        verify: Verify,
        registry: Registry,
        rng: random.Random,
        states: Iterable[LogState],
        user_of: UserOf,
        retention: StoreRetention = KEEP_ALL,
    ) -> None:
        """Go on where the logs on the disk stand, as the store says.

        A frame that `retention` would delete is not accepted from its publisher.
        """
        self.is_restored = False  # logs may be missing here that this node once had
        self._keep_ms = retention.keep_ms
        self._me = signer.node
        self._signer = signer
        self._notary = Notary(network, signer, verify)
        self._network = network
        self.verified = VerifiedFrames(verify)
        self._registry = registry
        self._rng = rng
        self._disk = Disk(retention.keep_ms)
        self._linked: set[NodeId] = set()
        self._logs: dict[StreamPart, PartLog] = {}
        self._streams: dict[str, dict[StreamPart, PartLog]] = {}
        self._held: dict[NodeId, str] = {}  # the other storage nodes, with their addresses
        self._deleted: dict[str, float] = {}  # streams that seem to be, and since when
        self._timers: Timers[StreamPart] = Timers()
        self._confirm_at: float | None = None
        self._slowed_at: dict[StreamPart, float] = {}  # when publishers were asked to rest
        self._readers = Readers(registry, user_of)
        self._repairs = Repairs(self._disk)
        self._sweep = Sweep(self._logs, self._disk, self._repairs)
        self._resends = Resends(self._disk, self._readers, self._repairs.add)
        self.comparisons = Comparisons(
            self._logs, self._disk, registry, self.verified, retention, self._take_found
        )
        self._comparison_server: ComparisonServer | None = None
        self._missing = MissingFrames(self._logs, registry, self.verified, self._take_found)
        for state in states:
            self._add(state)

    def attach(self, parts: Parts) -> None:
        """Compare the logs with the neighbours in the overlays of these parts, and ask them."""
        self.comparisons.attach(parts)
        self._missing.attach(parts)
        self._comparison_server = ComparisonServer(parts, self._registry.stores)

    # --- What others may ask --------------------------------------------------------------

    @property
    def problem(self) -> str:
        """Why nothing can be written; empty if all is well."""
        return self._disk.problem

    @property
    def dropped(self) -> int:
        """How many frames were dropped because they could not be written for too long."""
        return self._disk.dropped

    def parts(self) -> list[StreamPart]:
        """Return the parts that are stored here."""
        return [part for part, log in self._logs.items() if log.is_active]

    def status(self, part: StreamPart) -> LogStatus | None:
        """Return how the log of a part stands here; None: it is not stored here."""
        log = self._logs.get(part)
        return log.status() if log is not None and log.is_active else None

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        active = sum(1 for log in self._logs.values() if log.is_active)
        tables = [log.sizes() for log in self._logs.values()]
        tables += [self._disk.sizes(), self._resends.sizes(), self._repairs.sizes()]
        tables += [self.verified.sizes(), self.comparisons.sizes(), self._missing.sizes()]
        if self._comparison_server is not None:
            tables.append(self._comparison_server.sizes())
        slowed = (len(self._slowed_at), MAX_LOGS)
        return {"logs": (active, MAX_LOGS), "parts slowed": slowed} | fullest(tables)

    # --- Which logs there are -------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        """Begin with what the registry knows already."""
        effects: list[Effect] = []
        for stream in list(self._streams):
            effects += self._look(stream, now)
        return self._done(effects, now)

    def learned(self, chain: str, now: float) -> list[Effect]:
        """Do as the registry has it now."""
        effects: list[Effect] = []
        for stream in list(self._streams) if chain == NETWORK else [chain]:
            effects += self._look(stream, now)
        return self._done(effects, now)

    def _look(self, stream: str, now: float) -> list[Effect]:
        """Keep the parts of a stream if it names us; if it is deleted, keep nothing of it."""
        view = self._registry.stream(stream)
        if view is None:
            return []
        created = view.created
        if created is None:
            return self._seems_deleted(stream, now)
        self._deleted.pop(stream, None)
        effects: list[Effect] = []
        if self._me in created.storage:
            effects += self._keep(stream, created, self._me in view.first_storage, now)
        for part, log in self._streams.get(stream, {}).items():
            if log.is_active and not self._is_kept(part, created):
                self._leave(log)
        return effects + self._hold()

    def _keep(
        self, stream: str, created: CreateStream, may_begin: bool, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        active = sum(1 for log in self._logs.values() if log.is_active)
        for partition in range(created.partitions):
            part = StreamPart(stream, partition)
            log = self._logs.get(part)
            if log is not None and log.is_deleting:
                continue  # of an earlier stream of this name: we look again when it is gone
            if log is None or not log.is_active:
                if active >= MAX_LOGS:
                    hint = f"a storage node keeps at most {MAX_LOGS} parts"
                    effects.append(Notice(part, "too-many-parts", hint))
                    break
                active += 1
                log = log or self._add_new(part, created)
            effects += self._tended(log, log.join(created.storage, may_begin, now), now)
        return effects

    def _is_kept(self, part: StreamPart, created: CreateStream) -> bool:
        return self._me in created.storage and part.partition < created.partitions

    def _add_new(self, part: StreamPart, created: CreateStream) -> PartLog:
        """Begin a log; others of the stream may know that it is not the first one here."""
        log = self._add(LogState(part))
        if self.is_restored and len(created.storage) > 1:
            log.doubt()
        return log

    def _add(self, state: LogState) -> PartLog:
        part = state.part

        def sign(holdings: Sequence[Holding]) -> bytes:
            return self._signer.sign(signed_bytes(self._network, part, holdings))

        check = self._check_page
        given = (self._linked, self._rng, self._disk, sign, check, self._notary)
        log = PartLog(self._me, state, *given)
        self._logs[part] = log
        self._streams.setdefault(part.stream, {})[part] = log
        return log

    def _leave(self, log: PartLog) -> None:
        log.leave()
        self._timers.cancel(log.part)
        self._repairs.forget(log.part)
        self._missing.forget(log.part)

    def _seems_deleted(self, stream: str, now: float) -> list[Effect]:
        """Stop, and delete what is kept once the registry has said so again when asked."""
        effects: list[Effect] = []
        logs = self._streams.get(stream)
        if not logs:
            return []
        for log in logs.values():
            if log.is_active:
                self._leave(log)
        since = self._deleted.setdefault(stream, now)
        if self._registry.confirmed_at(stream) > since:
            del self._deleted[stream]
            for log in logs.values():
                effects += self._tended(log, log.delete(now), now)
        else:
            self._confirm_at = now + CONFIRM_S
            effects += self._registry.doubt(stream, now)
        return effects + self._hold()

    def _remove(self, log: PartLog, now: float) -> list[Effect]:
        """Forget a log that is deleted; its stream may have been created anew meanwhile."""
        stream = log.part.stream
        self._timers.cancel(log.part)
        del self._logs[log.part], self._streams[stream][log.part]
        if not self._streams[stream]:
            del self._streams[stream]
        view = self._registry.stream(stream)
        return [] if view is None or view.created is None else self._look(stream, now)

    def _hold(self) -> list[Effect]:
        """Hold links to all who store what we store."""
        wanted: dict[NodeId, str] = {}
        for stream, logs in self._streams.items():
            if any(log.is_active for log in logs.values()):
                keepers = self._registry.keepers(stream)
                wanted |= {each.node: each.address for each in keepers if each.node != self._me}
        held, self._held = self._held, wanted
        effects: list[Effect] = [
            Hold(node, address)
            for node, address in wanted.items()
            if held.get(node, None) != address
        ]
        # A new address is held before the old one is let go: the link stays.
        gone = [node for node, address in held.items() if wanted.get(node, None) != address]
        return [*effects, *map(Release, gone)]

    # --- Frames ---------------------------------------------------------------------------

    def take(self, state: Part, head: FrameHead, frame: bytes, now: float) -> list[Effect]:
        """Take a frame that came live, verified, and for the first time."""
        log = self._logs.get(state.part)
        if log is None or not log.is_active:
            return []
        self.verified.add(frame)
        effects = log.take(frame, now)
        if self._disk.is_behind:
            effects += self._slow_down(state, now)
        # While a write is under way it only waits, and nothing changes.
        return self._done(self._tended(log, effects, now), now) if effects else effects

    def _slow_down(self, state: Part, now: float) -> list[Effect]:
        """Ask the publishers of a part to rest while the disk is behind."""
        part = state.part
        if now < self._slowed_at.get(part, 0.0) + TELL_EVERY_S:
            return []
        if len(self._slowed_at) >= MAX_LOGS:
            self._slowed_at.clear()
        self._slowed_at[part] = now
        at_ms = int(now * 1000)
        digest = slow_down_digest(self._network, part, self._me, PAUSE_MS, at_ms)
        word = StorageSlowDown(part, self._me, PAUSE_MS, at_ms, self._signer.sign(digest))
        return [Send(peer, word) for peer in state.overlay.neighbours(part)]

    def _take_found(self, log: PartLog, frame: bytes, now: float) -> list[Effect]:
        """Take a verified frame that another node has sent."""
        return self._tended(log, log.take(frame, now), now)

    def _hand(self, sender: NodeId, hand: Hand, now: float) -> list[Effect]:
        """Take frames from who published them, or from another storage node."""
        log = self._logs.get(hand.part)
        if log is None or not log.is_active:
            return []
        # All of them are checked before any is taken: what was begun must be done.
        key, good = part_key(hand.part), list[bytes]()
        for frame in hand.frames:
            head = frames.peek(frame)
            if head.part != key:
                raise RemoteError("wrong-part", str(hand.part))
            if not self._may_hand(sender, hand.part, head, now):
                continue
            if not self.verified.check(head, frame):
                raise RemoteError("forged", str(hand.part))
            good.append(frame)
        effects = [effect for frame in good for effect in log.take(frame, now)]
        return self._tended(log, effects, now)

    def _may_hand(self, sender: NodeId, part: StreamPart, head: FrameHead, now: float) -> bool:
        age_s = now - (head.last >> SEQUENCE_BITS) / 1000
        if age_s < -MAX_SKEW_S:
            return False
        if self._registry.stores(part.stream, sender):
            return self._registry.wrote(part.stream, head.publisher)
        is_own = self._readers.acts_for(sender, head.publisher, now)
        return is_own and self._may_offer(part, head.chain, head.last, now)

    def _may_offer(self, part: StreamPart, chain: ChainKey, last: int, now: float) -> bool:
        """Tell whether a publisher may bring an own frame, perhaps long after publishing it."""
        age_s = now - (last >> SEQUENCE_BITS) / 1000
        is_recent = self._keep_ms is None or age_s * 1000 <= self._keep_ms
        return is_recent and self._registry.permits(part, publisher_of(chain), now)

    # --- Messages -------------------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a message of a reader, a publisher, or another storage node."""
        effects: list[Effect] = []
        if type(message) is Resend:
            effects = self._resends.ask(sender, message, self._logs.get(message.part), now)
        elif type(message) is AskEntries:
            log = self._logs.get(message.part)
            effects = self._resends.ask_entries(sender, message, log, now)
        elif type(message) is Entries:
            effects = self._take_entries(sender, message, now)
        elif type(message) is AskStored:
            effects = self._ask_stored(sender, message, now)
        elif type(message) is Hand:
            effects = self._hand(sender, message, now)
        elif type(message) is Resent:
            effects = self._missing.receive(sender, message, now)
        elif isinstance(message, FromFellow):
            effects = self._from_fellow(sender, message, now)
        elif self._comparison_server is not None:
            effects = self._compare(self._comparison_server, sender, message, now)
        return self._done(effects, now)

    def _compare(
        self, server: ComparisonServer, sender: NodeId, message: Control, now: float
    ) -> list[Effect]:
        """Take an answer of a comparison, or answer another storage node's."""
        if type(message) is AskRanges:
            return server.ask_ranges(sender, message, now)
        if type(message) is AskLacking:
            return server.ask_lacking(sender, message, now)
        assert isinstance(message, Ranges | Lacking), message
        return self.comparisons.receive(sender, message, now)

    def _ask_stored(self, sender: NodeId, ask: AskStored, now: float) -> list[Effect]:
        log = self._logs.get(ask.part)
        if log is None or not log.is_active:
            return []
        names: Sequence[FrameName] = ask.names
        if not self._readers.may_read(ask.part.stream, sender, now):
            names = [n for n in names if self._is_writer(ask.part, sender, n.chain, now)]
        own = [n for n in names if self._readers.acts_for(sender, publisher_of(n.chain), now)]
        welcome = {n for n in own if self._may_offer(ask.part, n.chain, n.last, now)}
        effects = log.asks.ask(sender, names, now, welcome)
        declined = tuple(name for name in own if name not in welcome)
        if declined:  # a permission may be newer than what is known here
            effects.append(Send(sender, Declined(ask.part, declined)))
            effects += self._registry.doubt(ask.part.stream, now)
        return self._tended(log, effects, now)

    def _is_writer(self, part: StreamPart, peer: NodeId, chain: ChainKey, now: float) -> bool:
        is_own = self._readers.acts_for(peer, publisher_of(chain), now)
        return is_own and self._registry.wrote(part.stream, publisher_of(chain))

    def _from_fellow(self, sender: NodeId, message: FromFellow, now: float) -> list[Effect]:
        log = self._logs.get(message.part)
        if log is None or not log.is_active or sender not in log.standing.members:
            # The registry may have made it one of the stream's storage nodes, or us.
            return self._registry.doubt(message.part.stream, now)
        return self._tended(log, log.receive(sender, message, now), now)

    def _take_entries(self, sender: NodeId, answer: Entries, now: float) -> list[Effect]:
        log = self._logs.get(answer.part)
        if log is None or not log.is_active or sender not in log.standing.members:
            return []
        for entry in answer.entries:
            if not self.verified.check(frames.peek(entry.frame), entry.frame):
                raise RemoteError("forged", str(answer.part))
        if log.recovery.awaits(sender, answer):
            return self._tended(log, log.take_entries(answer, now), now)
        return self._tended(log, self._repairs.take(sender, answer, now), now)

    def _check_page(self, page: Fetched, heads: Sequence[FrameHead]) -> bool:
        """Tell whether all who published what a fellow's log has could ever do so."""
        stream, wrote = page.part.stream, self._registry.wrote
        if not all(wrote(stream, publisher) for publisher in {head.publisher for head in heads}):
            return False
        for entry, head in zip(page.entries, heads, strict=True):
            if not self.verified.check(head, entry.frame):
                raise RemoteError("forged", str(page.part))
        return True

    # --- Links, the disk, and time --------------------------------------------------------

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        if up:
            self._linked.add(peer)
        elif peer not in self._linked:
            return []
        else:
            self._linked.remove(peer)
            if self._comparison_server is not None:
                self._comparison_server.gone(peer)
        self.comparisons.link(peer, up)
        effects: list[Effect] = []
        for log in self._logs.values():
            if peer in log.standing.members:
                effects += self._tended(log, log.link(peer, up, now), now)
        return self._done(effects, now)

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Learn what the store has done, or found."""
        if type(event) is Damaged:
            found = self._logs.get(event.part)
            if found is None or not found.is_active:
                return []
            return self._done(self._repairs.add(found, now), now)
        if type(event) is LossAccepted:
            return self._accept_loss(event.stream, now)
        if type(event) is Wrote:
            part, effects = self._disk.wrote(event, now)
        else:
            assert type(event) is Found
            part, effects = self._disk.found(event, now)
        log = self._logs.get(part)
        return self._done(effects if log is None else self._tended(log, effects, now), now)

    def _accept_loss(self, stream: str, now: float) -> list[Effect]:
        """Let the logs of a stream go on without what the disk has forgotten."""
        effects: list[Effect] = []
        for log in list(self._streams.get(stream, {}).values()):
            effects += self._tended(log, log.accept_loss(now), now)
        return self._done(effects, now)

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for part in self._timers.pop_due(now):
            log = self._logs[part]
            effects += self._tended(log, log.wake(now), now)
        effects += self._repairs.wake(now)
        if self._missing.wakeup_at is not None and self._missing.wakeup_at <= now:
            effects += self._missing.wake(now)
        if self._sweep.wakeup_at is not None and self._sweep.wakeup_at <= now:
            effects += self._sweep.wake(now)
        if self.comparisons.wakeup_at is not None and self.comparisons.wakeup_at <= now:
            effects += self.comparisons.wake(now)
        if self._confirm_at is not None and self._confirm_at <= now:
            self._confirm_at = None
            for stream in list(self._deleted):
                effects += self._look(stream, now)
        return self._done(effects, now)

    def _tended(self, log: PartLog, effects: list[Effect], now: float) -> list[Effect]:
        """Arm a log's timer anew, and see to what was found damaged there."""
        if log.is_deleted:
            return effects + self._remove(log, now)
        if log.wakeup_at is None:
            self._timers.cancel(log.part)
        else:
            self._timers.set(log.part, log.wakeup_at)
        if log.is_active:
            self._sweep.arm(log, now)
            self._missing.tend(log)
        if log.take_damaged():
            effects += self._repairs.add(log, now)
        return effects + self._repairs.tend(log, now)

    def _done(self, effects: list[Effect], now: float) -> list[Effect]:
        self.comparisons.arm(now)
        times = (self._timers.next_at, self._repairs.wakeup_at, self._sweep.wakeup_at)
        others = (self._confirm_at, self.comparisons.wakeup_at, self._missing.wakeup_at)
        every = [at for at in (*times, *others) if at is not None]
        self.wakeup_at = min(every, default=None)
        return effects


StorageFactory = Callable[[UserOf], Storage]

__all__ = ["MAX_LOGS", "LogStatus", "Storage", "StorageFactory", "UserOf"]
