"""Links of the simulated world: how they are dialled, how they end, and when they are full."""

from collections.abc import Callable
from typing import Protocol

from anabranch.core.ids import NodeId
from anabranch.core.machine import (
    Congested,
    DialCheck,
    DialChecked,
    Event,
    LinkDown,
    LinkUp,
    Machine,
    Writable,
)
from anabranch.sim.network import LOW_MARK_PACKETS, LOW_MARK_S, Lane, SimNode, Underlay
from anabranch.traces.recorder import Recorder

HANDSHAKE_TRIPS = 4  # one-way trips that opening a link takes: two for TCP, two to prove the keys
DIAL_TIMEOUT_S = 3.0
KEEPALIVE_S = 5.0  # how long a link may be dead before its ends notice


class World(Protocol):
    """What links need of the simulator: its time, its nodes, and its heap."""

    now: float
    nodes: dict[NodeId, SimNode]

    def at(self, at: float, action: Callable[[], None]) -> None:
        """Do something at a time."""

    def tell(self, node: SimNode, event: Event) -> None:
        """Let an event happen to a node now."""


class Links:
    """All links of a world. A link is two lanes, each with its end at one node."""

    def __init__(
        self,
        world: World,
        underlay: Underlay,
        recorder: Recorder | None,
        processing_s: float = 0.0,
    ) -> None:
        self._world = world
        self._underlay = underlay
        self._processing_s = processing_s
        self.recorder = recorder

    def dial(self, node: SimNode, peer: NodeId) -> None:
        """Let a node dial; a LinkUp or a LinkDown answers."""
        world, machine = self._world, node.machine
        other = world.nodes.get(peer)
        if other is None:
            world.at(world.now, lambda: self._dial_failed(node, machine, peer, "unknown"))
            return
        trip_s = self._underlay.delay_s(node.place, other.place)

        def answer() -> None:
            if not node.alive or node.machine is not machine or peer in node.lanes:
                return
            if other.side != node.side or not other.dialable:
                late = world.now + DIAL_TIMEOUT_S
                world.at(late, lambda: self._dial_failed(node, machine, peer, "timeout"))
            elif not other.alive:
                self._dial_failed(node, machine, peer, "refused")
            else:
                self._open(node, other)

        world.at(world.now + HANDSHAKE_TRIPS * trip_s, answer)

    def check(self, node: SimNode, check: DialCheck) -> None:
        """Let a tracker dial a node to see whether it answers; a DialChecked tells."""
        world, machine = self._world, node.machine
        other = world.nodes.get(check.peer)
        trip_s = 0.0 if other is None else self._underlay.delay_s(node.place, other.place)

        def answer() -> None:
            reached = (
                other is not None and other.alive and other.dialable and other.side == node.side
            )
            if node.machine is machine:
                world.tell(node, DialChecked(check.peer, check.address, reached))

        world.at(world.now + HANDSHAKE_TRIPS * trip_s, answer)

    def hang_up(self, node: SimNode, peer: NodeId, reason: str) -> None:
        """Let a node end a link: only the far end is told."""
        lane = node.lanes.pop(peer, None)
        if lane is not None:
            self._linked(node, peer, False, reason)
            self._close(lane, lane.delay_s, "closed")

    def crashed(self, node: SimNode, silent: bool) -> None:
        """End all links of a node that is no more."""
        for lane in list(node.lanes.values()):
            self._close(lane, lane.delay_s if not silent else KEEPALIVE_S, "reset")
        node.lanes.clear()

    def partitioned(self) -> None:
        """Block the links between different sides; one that stays blocked will end."""
        world = self._world
        for node in world.nodes.values():
            for lane in node.lanes.values():
                lane.blocked = lane.source.side != lane.target.side
                if lane.blocked:
                    world.at(world.now + KEEPALIVE_S, lambda lane=lane: self._time_out(lane))  # type: ignore[misc]

    def watch(self, lane: Lane) -> None:
        """Tell a lane's sender when it fills up, and when it may send again."""
        world = self._world
        if lane.congested or not lane.full(world.now):
            return
        lane.congested = True
        world.at(world.now, lambda: self._tell_lane(lane, Congested(lane.target.id)))
        self._drain(lane)

    def taken(self, lane: Lane) -> None:
        """The far end, whose capacity is bounded, has taken a packet; its word needs a trip."""
        lane.unread -= 1
        if lane.congested and lane.unread == LOW_MARK_PACKETS:
            self._world.at(self._world.now + lane.back.delay_s, lambda: self._drain(lane))

    # --- What becomes of them -------------------------------------------------------------

    def _dial_failed(self, node: SimNode, machine: Machine, peer: NodeId, reason: str) -> None:
        if node.machine is machine and peer not in node.lanes:
            self._linked(node, peer, False, reason)
            self._world.tell(node, LinkDown(peer, reason))

    def _open(self, a: SimNode, b: SimNode) -> None:
        for node, peer in ((a, b.id), (b, a.id)):
            if peer in node.lanes:  # the end of a link whose other end died unnoticed
                self._notice_end(node.lanes[peer], "replaced")
        # A round trip is answered below the application: it has none of the processing.
        there_s = self._underlay.delay_s(a.place, b.place)
        back_s = self._underlay.delay_s(b.place, a.place)
        there = Lane(a, b, there_s + self._processing_s)
        back = Lane(b, a, back_s + self._processing_s)
        there.back, back.back = back, there
        a.lanes[b.id], b.lanes[a.id] = there, back
        rtt_s = there_s + back_s
        for node, peer in ((a, b.id), (b, a.id)):
            self._linked(node, peer, True, "")
            if self.recorder is not None:
                self.recorder.rtt(self._world.now, node.id, peer, rtt_s)
            host = peer.hex() if node is b else ""
            self._world.tell(node, LinkUp(peer, rtt_s, host))

    def _close(self, lane: Lane, after_s: float, reason: str) -> None:
        """End both lanes now, and let the far end notice after a while."""
        lane.open = lane.back.open = False
        self._world.at(self._world.now + after_s, lambda: self._notice_end(lane.back, reason))

    def _notice_end(self, lane: Lane, reason: str) -> None:
        node, peer = lane.source, lane.target.id
        if node.lanes.get(peer) is lane:
            del node.lanes[peer]
            self._linked(node, peer, False, reason)
            self._world.tell(node, LinkDown(peer, reason))

    def _time_out(self, lane: Lane) -> None:
        if lane.blocked and lane.open:
            lane.open = lane.back.open = False
            self._notice_end(lane, "timeout")
            self._notice_end(lane.back, "timeout")

    def _drain(self, lane: Lane) -> None:
        if not lane.congested:
            return
        waiting_s = lane.waiting_s(self._world.now)
        if waiting_s > LOW_MARK_S and lane.open:
            later = self._world.now + waiting_s - LOW_MARK_S + 1e-6
            self._world.at(later, lambda: self._drain(lane))
            return
        if lane.unread > LOW_MARK_PACKETS and lane.open:
            return  # until the far end has taken enough of them
        lane.congested = False
        self._tell_lane(lane, Writable(lane.target.id))

    def _tell_lane(self, lane: Lane, event: Event) -> None:
        if lane.source.lanes.get(lane.target.id) is lane:
            self._world.tell(lane.source, event)

    def _linked(self, node: SimNode, peer: NodeId, up: bool, reason: str) -> None:
        if self.recorder is not None:
            self.recorder.linked(self._world.now, node.id, peer, up, reason)
