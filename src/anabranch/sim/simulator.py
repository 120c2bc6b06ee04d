"""Runs machines on a heap of (time, sequence, target, event): the code that ships, simulated.

A run is a function of its inputs and its seed. The simulator knows links and packets; what the
nodes are and what befalls them is the scenario's business.
"""

import gc
import heapq
import random
from collections.abc import Callable

from anabranch.core import codec, frames
from anabranch.core.ids import ChainKey, FrameHead, NodeId, StreamPart
from anabranch.core.key_asking import NO_KEY
from anabranch.core.key_exchange import UNREADABLE
from anabranch.core.machine import (
    Answered,
    Connect,
    Copies,
    Deliver,
    DialCheck,
    Disconnect,
    Drained,
    Dropped,
    Effect,
    Event,
    Find,
    Forward,
    HistoryEnded,
    KeepKey,
    Learned,
    Machine,
    Missed,
    Notice,
    Outcome,
    PageEnded,
    Published,
    Receipt,
    Received,
    Send,
    Store,
    Stored,
    Subscribe,
    Unsubscribe,
    Wakeup,
    Write,
)
from anabranch.core.messages import Control, Instruction
from anabranch.sim.disks import READ_S, WRITE_S
from anabranch.sim.inboxes import Inboxes
from anabranch.sim.links import Links
from anabranch.sim.network import (
    NO_FAULTS,
    Application,
    Lane,
    Observer,
    Raw,
    SimNode,
    ToReader,
    Underlay,
    arrivals,
)
from anabranch.traces.recorder import Recorder

START_AT = 1_767_225_600.0  # every run begins on the first of January 2026

Happening = Event | Callable[[], None]

_WAKEUP = Wakeup()
_DATA = bytes([codec.DATA])
_TAKEN = (UNREADABLE, NO_KEY)


class Simulator:
    """The world of a run: time, nodes, links, and the heap that drives them."""

    def __init__(
        self,
        underlay: Underlay,
        seed: int | str,
        recorder: Recorder | None = None,
        processing_s: float = 0.0,  # of every packet, at who takes it
    ) -> None:
        self.now = START_AT
        self.nodes: dict[NodeId, SimNode] = {}
        self.handled = 0
        self.sent_frames = 0
        self.faults = NO_FAULTS
        self.observer: Observer | None = None
        self.watches_closely = False  # shows the observer every message and every signature
        self.application = Application()
        self._links = Links(self, underlay, recorder, processing_s)
        self.inboxes = Inboxes(self, self._links)
        self._rng = random.Random(f"{seed}/network")
        self._recorder = recorder
        self._heap: list[tuple[float, int, SimNode | None, Happening, Lane | None]] = []
        self._sequence = 0
        self._published_at: dict[tuple[ChainKey, int], float] = {}

    # --- What a scenario does -------------------------------------------------------------

    def add(self, node: NodeId, place: int, machine: Machine) -> SimNode:
        """Put a machine into the world."""
        assert node not in self.nodes
        added = self.nodes[node] = SimNode(node, place, machine)
        self._arm(added)
        return added

    def record(self, recorder: Recorder) -> None:
        """Record what happens from now on."""
        self._recorder = self._links.recorder = recorder

    def at(self, at: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        self._push(at, None, action, None)

    def tell(self, node: SimNode, event: Event) -> None:
        """Let an event happen to a node now."""
        if node.alive:
            effects = node.machine.handle(event, self.now)
            self.handled += 1
            if self._recorder is not None:
                self._note_wish(self._recorder, node, event)
            watched = self._recorder is not None or self.observer is not None
            if watched and type(event) is Received and event.data[1:2] == _DATA:
                self._data_came(node, event, effects)
            self._perform(node, effects)
            self._arm(node)

    def crash(self, node: SimNode, silent: bool = False) -> None:
        """Stop a node. Its peers see the links close, or, if it died silently, time out."""
        node.alive = False
        node.armed_at = None
        if self._recorder is not None:
            self._recorder.stopped(self.now, node.id)
        self._links.crashed(node, silent)

    def restart(self, node: SimNode, machine: Machine) -> None:
        """Start a crashed node again under its name, with nothing in its memory."""
        assert not node.alive
        node.machine = machine
        node.alive = True
        node.busy_until = 0.0
        self._arm(node)

    def partition(self, sides: dict[NodeId, int]) -> None:
        """Split the network: packets between different sides are lost; no sides heals it."""
        for node in self.nodes.values():
            node.side = sides.get(node.id, 0)
        self._links.partitioned()

    def clog(self, a: SimNode, b: NodeId, seconds: float) -> None:
        """Let nothing leave on the lane from `a` to `b` for a while."""
        lane = a.lanes.get(b)
        if lane is not None:
            lane.sent_until = max(lane.sent_until, self.now) + seconds
            self._links.watch(lane)

    # --- The loop -------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Let everything happen that is due by `until`."""
        # Events come and go by the million, and none of them is part of a cycle: looking for
        # cycles among them costs a sixth of a run and finds nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._run(until)
        finally:
            if collecting:
                gc.enable()

    def _run(self, until: float) -> None:
        heap = self._heap
        watched = self._recorder is not None or self.observer is not None
        while heap and heap[0][0] <= until:
            at, _, node, event, lane = heapq.heappop(heap)
            self.now = at
            if node is None:
                event()  # type: ignore[operator]
                continue
            if not node.alive or (lane is not None and not lane.open):
                continue
            if lane is None:  # a wakeup, perhaps of a time that was moved
                due = node.machine.wakeup_at
                if node.armed_at != at:
                    continue
                node.armed_at = None
                if due is None or due > at:
                    self._arm(node)
                    continue
            effects = node.machine.handle(event, at)  # type: ignore[arg-type]
            self.handled += 1
            if watched and lane is not None and event.data[1:2] == _DATA:  # type: ignore[union-attr]
                self._data_came(node, event, effects)  # type: ignore[arg-type]
            self._perform(node, effects)
            due = node.machine.wakeup_at
            if due is not None and (node.armed_at is None or due < node.armed_at):
                self._arm(node)
        self.now = max(self.now, until)

    def _note_wish(self, recorder: Recorder, node: SimNode, event: Event) -> None:
        if type(event) is Subscribe:
            recorder.subscribed(self.now, node.id, event.part, event.reads)
        elif type(event) is Unsubscribe:
            recorder.subscribed(self.now, node.id, event.part, False)

    def _data_came(self, node: SimNode, event: Received, effects: list[Effect]) -> None:
        observer, recorder = self.observer, self._recorder
        if observer is not None:
            observer.packet(node, event, self.now)
        did = effects[0] if effects else None
        # What is dropped for another peer is a frame that its full queue had no room for; one
        # that we may not read, or cannot, is carried all the same.
        refused = type(did) is Dropped and did.peer == event.sender and did.reason not in _TAKEN
        if type(did) is Notice or refused:
            return
        if type(did) is Deliver or type(did) is Forward:
            head = did.head
        else:  # a copy, or a node at the edge that carries and does not subscribe
            head = frames.peek(event.data, codec.frame_start(event.data))
        if observer is not None:
            observer.accepted(node, head)
        if recorder is not None and type(did) is Copies:
            recorder.duplicate(self.now, node.id, event.sender, head)
        elif recorder is not None:
            hops = event.data[4] if event.data[3] else 0
            recorder.received(self.now, node.id, event.sender, head, hops)

    def _push(self, at: float, node: SimNode | None, event: Happening, lane: Lane | None) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, node, event, lane))

    def _arm(self, node: SimNode) -> None:
        due = node.machine.wakeup_at
        if due is not None and (node.armed_at is None or due < node.armed_at):
            node.armed_at = due = max(due, self.now)
            self._push(due, node, _WAKEUP, None)

    # --- Effects --------------------------------------------------------------------------

    def _perform(self, node: SimNode, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Dropped:
                if self._recorder is not None:
                    self._recorder.dropped(
                        self.now, node.id, effect.peer, effect.head, effect.reason
                    )
            elif type(effect) is Forward:
                self._forward(node, effect)
            elif type(effect) is Deliver:
                self._deliver(node, effect)
            elif type(effect) is Send:
                self._send(node, effect.to, effect.message)
            elif type(effect) is not Copies:
                self._perform_rare(node, effect)

    def _perform_rare(self, node: SimNode, effect: Effect | Raw) -> None:
        if type(effect) is Connect:
            self._links.dial(node, effect.peer)
        elif type(effect) is Disconnect:
            self._links.hang_up(node, effect.peer, effect.reason)
        elif type(effect) is DialCheck:
            self._links.check(node, effect)
        elif type(effect) is Published:
            self._publish(node, effect.head, effect.frame)
        elif type(effect) is Outcome:
            if self.observer is not None:
                self.observer.outcome(node, effect, self.now)
        elif type(effect) is Notice:
            if self._recorder is not None:
                self._recorder.noted(self.now, node.id, effect.kind, effect.detail, effect.part)
            if self.observer is not None:
                self.observer.noticed(node, effect, self.now)
        elif type(effect) is Learned or type(effect) is Answered:
            self._tell_application(node, effect)
        elif type(effect) is Store:
            self._store(node, effect)
        elif type(effect) is KeepKey:
            node.disk.keep(effect)
        elif type(effect) is Write:
            self._write(node, effect)
        elif type(effect) is Find:
            self._find(node, effect)
        elif isinstance(effect, Missed | PageEnded | HistoryEnded | Receipt):
            self._tell_reader(node, effect)
        elif type(effect) is Raw:
            lane = node.lanes.get(effect.to)
            if lane is not None:
                self._transmit(lane, Received(node.id, effect.data))
        else:
            raise AssertionError(f"no driver performs {type(effect).__name__}")

    def _forward(self, node: SimNode, forward: Forward) -> None:
        now, recorder = self.now, self._recorder
        quiet = self.faults is NO_FAULTS and not self.inboxes.used
        route = event = None
        sent: list[NodeId] = []
        for peer, branch in forward.branches:
            if branch is not route or event is None:
                route = branch
                event = Received(node.id, codec.carry_head(forward.overlay, route) + forward.frame)
            lane = node.lanes.get(peer)
            if lane is None:
                if recorder is not None:
                    recorder.dropped(now, node.id, peer, forward.head, "no-link")
                continue
            sent.append(peer)
            if quiet and not lane.blocked and not lane.sent_until:
                self._sequence += 1
                heapq.heappush(
                    self._heap, (now + lane.delay_s, self._sequence, lane.target, event, lane)
                )
            else:
                self._transmit(lane, event)
        self.sent_frames += len(sent)
        if self.watches_closely and self.observer is not None:
            self.observer.forwarded(node, sent, forward.head)
        if recorder is not None and event is not None:
            recorder.sent(now, node.id, sent, forward.head, len(event.data))

    def _transmit(self, lane: Lane, event: Received) -> None:
        for at in arrivals(lane, len(event.data), self.now, self.faults, self._rng):
            if self.inboxes.used:
                self._push(at, None, self.inboxes.arrival(lane, event), None)
            else:
                self._push(at, lane.target, event, lane)
        self._links.watch(lane)

    def _send(self, node: SimNode, to: NodeId, message: Control) -> None:
        lane = node.lanes.get(to)
        if lane is None:
            return
        if self.watches_closely and self.observer is not None:
            self.observer.sent(node, to, message)
        if self._recorder is not None and type(message) is Instruction:
            told = sorted([c.node for c in message.connect] + list(message.accept))
            self._recorder.instruction(self.now, node.id, to, message.part, message.counter, told)
        self._transmit(lane, Received(node.id, codec.encode(message)))

    def _publish(self, node: SimNode, head: FrameHead, frame: bytes) -> None:
        self._published_at[head.chain, head.last] = self.now
        if self._recorder is not None:
            self._recorder.published(self.now, node.id, head, len(frame))
        if self.observer is not None:
            self.observer.published(node, head, frame, self.now)

    def _tell_application(self, node: SimNode, word: Learned | Answered) -> None:
        if self.observer is not None:
            self.observer.told(node, word, self.now)
        self.application.told(node, word)

    def _store(self, node: SimNode, change: Store) -> None:
        """Write to the node's disk, unless it crashes before that is done."""
        machine = node.machine

        def written() -> None:
            if node.alive and node.machine is machine:
                self.tell(node, Stored(change.token, node.disk.store(change)))

        self.at(self.now + WRITE_S, written)

    def _write(self, node: SimNode, write: Write) -> None:
        """Write to the node's logs, unless it crashes before that is done."""
        machine = node.machine

        def written() -> None:
            if node.alive and node.machine is machine:
                self.tell(node, node.disk.write(write))

        self.at(self.now + WRITE_S, written)

    def _find(self, node: SimNode, find: Find) -> None:
        machine = node.machine

        def found() -> None:
            if node.alive and node.machine is machine:
                self.tell(node, node.disk.find(find))

        self.at(self.now + READ_S, found)

    def _tell_reader(self, node: SimNode, word: ToReader) -> None:
        """Tell the application; it has room for the next page of a history at once."""
        if self.observer is not None:
            self.observer.reader(node, word, self.now)
        if type(word) is PageEnded:
            self.at(self.now, lambda: self.tell(node, Drained(word.to)))

    def _deliver(self, node: SimNode, deliver: Deliver) -> None:
        if self._recorder is None and self.observer is None:
            return
        head = deliver.head
        delay_s = self.now - self._published_at.get((head.chain, head.last), self.now)
        if self._recorder is not None:
            delay_ms = round(delay_s * 1000, 3)
            self._recorder.delivered(self.now, node.id, head, deliver.hops, delay_ms)
        if self.observer is not None:
            self.observer.handed(node, deliver, self.now)
            self.observer.delivered(node, head, deliver.frame, deliver.hops, delay_s)

    def snapshot(self, node: SimNode, part: StreamPart, neighbours: tuple[NodeId, ...]) -> None:
        """Record a node's neighbours."""
        if self._recorder is not None:
            self._recorder.topology(self.now, node.id, part, neighbours)
