"""What a driver sees, counted always and traced if somebody asked for it."""

from collections.abc import Callable
from typing import Any

from anabranch.core import codec, frames
from anabranch.core.errors import RemoteError
from anabranch.core.ids import (
    SEQUENCE_BITS,
    ChainKey,
    FrameHead,
    NodeId,
    PartKey,
    StreamPart,
    part_key,
    show,
)
from anabranch.core.key_asking import NO_KEY
from anabranch.core.key_exchange import UNREADABLE as NOT_TO_BE_READ
from anabranch.core.machine import (
    Copies,
    Deliver,
    Dropped,
    Effect,
    Forward,
    Notice,
    Published,
    Received,
    Send,
)
from anabranch.core.messages import Instruction, Report
from anabranch.core.unstored import Unstored
from anabranch.live.message import names_of_chain
from anabranch.live.metrics import Metrics
from anabranch.traces.recorder import Recorder, Write
from anabranch.traces.schema import Subscribed

MAX_TALLIED_CHAINS = 1_000  # per node; those that come after are counted, not told apart
MAX_UNCOUNTED = 64  # deliveries: adding up many in a row costs a fraction of adding up each
NONE_UNSTORED = Unstored(0, 0)
MAX_KINDS = 64  # of notices; there are fewer in the protocol
UNREADABLE = frozenset({NO_KEY, NOT_TO_BE_READ})  # why a reader misses a frame that came


class Observer:
    """Counts for one node, and writes its trace."""

    __slots__ = (
        *("_copies", "_node", "_parts", "_recorder", "_tallies", "_uncounted", "_wanted"),
        *(
            "links_lost",
            "metrics",
            "notices",
            "on_unreadable",
            "registry_age_s",
            "traces",
            "unstored",
        ),
    )

    def __init__(self, node: NodeId, recorder: Recorder | None = None) -> None:
        self.metrics = Metrics()
        self._node = node
        self._recorder = recorder
        self.traces = recorder is not None  # whether anything is written, and not only counted
        self._parts: dict[PartKey, StreamPart] = {}
        self._wanted: dict[StreamPart, None] = {}  # by the application
        # Per chain: messages delivered, and a sum over the frames' last numbers. Two nodes with
        # equal tallies have been delivered the same messages.
        self._tallies: dict[ChainKey, list[int]] = {}
        self._uncounted: list[tuple[float, StreamPart, FrameHead]] = []  # what was delivered
        self._copies: dict[PartKey, int] = {}  # that were not added up yet
        self.links_lost = 0
        self.on_unreadable: Callable[[StreamPart, int, int], None] = lambda part, count, to: None
        self.notices: dict[str, int] = {}
        self.unstored: Callable[[], dict[StreamPart, Unstored]] = dict
        self.registry_age_s: Callable[[], int] = int  # without a tracker's confirmation

    def record(self, at: float, write: Write) -> None:
        """Write everything that happens from now on to one more place, and what is wanted now."""
        for part in self._wanted:
            write(Subscribed(at, show(self._node), str(part)))
        if self._recorder is not None:
            self._recorder.add(write)
            return
        self._recorder, self.traces = Recorder(write), True
        for part in self._parts.values():
            self._recorder.name_part(part)

    def name_part(self, part: StreamPart) -> None:
        """Let a part be called by its name, since frames carry only its hash."""
        key = part_key(part)
        if key not in self._parts:
            self._parts[key] = part
            if self._recorder is not None:
                self._recorder.name_part(part)

    def forget_part(self, part: StreamPart) -> None:
        """Keep nothing of a part that the node has left."""
        self._add_up()
        self._parts.pop(part_key(part), None)
        self.metrics.forget(part)

    def report(self, part: StreamPart, now: float) -> Report:
        """Return the node's account of a part, for its tracker."""
        self._add_up()
        unstored = self.unstored().get(part, NONE_UNSTORED)
        lost = unstored.waiting + unstored.given_up
        return self.metrics.report(part, now, lost, self.registry_age_s())

    def snapshot(self) -> dict[str, Any]:
        """Return everything that was counted."""
        self._add_up()
        chains = {
            ".".join(names_of_chain(chain)): {"messages": count, "sum": total}
            for chain, (count, total) in self._tallies.items()
        }
        return {
            **self.metrics.snapshot(),
            "chains": chains,
            "links_lost": self.links_lost,
            "registry_age_s": self.registry_age_s(),
            "notices": dict(sorted(self.notices.items())),
            "unstored": {
                str(part): {"waiting": unstored.waiting, "given_up": unstored.given_up}
                for part, unstored in sorted(self.unstored().items())
            },
        }

    # --- Frames ---------------------------------------------------------------------------

    def came(self, at: float, event: Received, effects: list[Effect]) -> None:
        """A packet came, and this is what the machine made of it."""
        self.metrics.bytes_in += len(event.data)
        if self._recorder is None or event.data[:2] != codec.DATA_HEAD:
            return
        kinds = (Copies, Deliver, Forward, Dropped, Notice)
        did = next((e for e in effects if type(e) in kinds), None)
        if type(did) is Dropped or type(did) is Notice:
            return
        try:
            head = frames.peek(event.data, codec.frame_start(event.data))
        except RemoteError:  # of a peer that the machine does not listen to
            return
        if type(did) is Copies:
            self._recorder.duplicate(at, self._node, event.sender, head)
            return
        hops = event.data[4] if event.data[3] else 0
        self._recorder.received(at, self._node, event.sender, head, hops)

    def copies(self, effect: Copies) -> None:
        """Frames came that were here before."""
        self._copies[effect.part] = self._copies.get(effect.part, 0) + len(effect.names)

    def delivered(self, at: float, effect: Deliver) -> None:
        """The application has a frame."""
        self._uncounted.append((at, effect.part, effect.head))
        if len(self._uncounted) >= MAX_UNCOUNTED:
            self._add_up()
        if self._recorder is not None:
            delay_ms = _delay_us(at, effect.head) / 1000
            self._recorder.delivered(at, self._node, effect.head, effect.hops, delay_ms)

    def _add_up(self) -> None:
        """Count what was delivered, and what came again, since the last time."""
        uncounted, self._uncounted = self._uncounted, []
        for at, part, head in uncounted:
            self.metrics.deliver(part, head.count, _delay_us(at, head))
            tally = self._tallies.get(head.chain)
            if tally is None and len(self._tallies) < MAX_TALLIED_CHAINS:
                tally = self._tallies[head.chain] = [0, 0]
            if tally is not None:
                tally[0] += head.count
                tally[1] = tally[1] + head.last & 0xFFFFFFFFFFFF
        copies, self._copies = self._copies, {}
        for key, count in copies.items():
            self.metrics.duplicate(self._parts.get(key), count)

    def dropped(self, at: float, effect: Dropped) -> None:
        """A frame, or a copy of it, ended here."""
        part = self._parts.get(effect.head.part)
        self.metrics.drop(part, effect.reason)
        if part is not None and effect.reason in UNREADABLE:
            self.on_unreadable(part, effect.head.count, effect.to)
        if self._recorder is not None:
            self._recorder.dropped(at, self._node, effect.peer, effect.head, effect.reason)

    def sent(self, at: float, peer: NodeId, head: FrameHead, size_bytes: int) -> None:
        """A copy of a frame left, and somebody may trace."""
        if self._recorder is not None:
            self._recorder.sent(at, self._node, [peer], head, size_bytes)

    def missed(self, part: StreamPart, count: int) -> None:
        """A reader of ours was too slow."""
        self.metrics.miss(part, count)

    # --- Everything else ------------------------------------------------------------------

    def linked(self, at: float, peer: NodeId, up: bool, reason: str) -> None:
        """A link came or went."""
        self.links_lost += not up
        if self._recorder is not None:
            self._recorder.linked(at, self._node, peer, up, reason)

    def wanted(self, at: float, part: StreamPart, reads: bool) -> None:
        """The application wants a part's messages, or wants them no more."""
        if reads:
            self._wanted[part] = None
        else:
            self._wanted.pop(part, None)
        if self._recorder is not None:
            self._recorder.subscribed(at, self._node, part, reads)

    def stopped(self, at: float) -> None:
        """The node ended."""
        if self._recorder is not None:
            self._recorder.stopped(at, self._node)

    def rtt(self, at: float, peer: NodeId, seconds: float) -> None:
        """A round trip was measured."""
        if self._recorder is not None:
            self._recorder.rtt(at, self._node, peer, seconds)

    def said(self, at: float, send: Send, size_bytes: int) -> None:
        """A control message left."""
        self.metrics.bytes_out += size_bytes
        message = send.message
        if self._recorder is not None and type(message) is Instruction:
            told = [*(c.node for c in message.connect), *message.accept]
            self._recorder.instruction(at, self._node, send.to, message.part, message.counter, told)

    def other(self, at: float, effect: Effect) -> None:
        """Something rarer happened."""
        if type(effect) is Published:
            self.metrics.publish(self._parts.get(effect.head.part), effect.head.count)
            if self._recorder is not None:
                self._recorder.published(at, self._node, effect.head, len(effect.frame))
        elif type(effect) is Notice:
            kind = effect.kind
            if kind not in self.notices and len(self.notices) >= MAX_KINDS:
                kind = "other"
            self.notices[kind] = self.notices.get(kind, 0) + 1
            if self._recorder is not None:
                self._recorder.noted(at, self._node, effect.kind, effect.detail, effect.part)


def _delay_us(at: float, head: FrameHead) -> int:
    """Return how long a frame was under way, as far as the two clocks agree."""
    # A timestamp is a whole millisecond, rounded down: half of one is the mean error.
    return int(at * 1e6) - (head.first >> SEQUENCE_BITS) * 1000 - 500
