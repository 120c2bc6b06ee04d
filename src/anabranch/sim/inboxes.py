"""Bounded capacity: a node takes one packet after the other, and each takes its time.

Packets wait before a node in the order in which they come. None of them is lost, but a lane with
many that the far end has not taken is congested, as a TCP connection is whose far end does not
read: its sender is told at once, and may go on when word has come back that most of them are
taken. What a node does by itself, when its timer or its application wants it, takes no time.
"""

from collections.abc import Callable, Iterable
from functools import partial

from anabranch.core.machine import Received
from anabranch.sim.links import Links, World
from anabranch.sim.network import Lane, SimNode


class Inboxes:
    """What waits before the nodes of a world, if the capacity of any of them is bounded."""

    def __init__(self, world: World, links: Links) -> None:
        self.used = False
        self._world = world
        self._links = links

    def bound(self, nodes: Iterable[SimNode], packets_per_s: float) -> None:
        """Let nodes take no more than so many packets in a second."""
        self.used = True
        for node in nodes:
            node.packet_s = 1 / packets_per_s

    def arrival(self, lane: Lane, event: Received) -> Callable[[], None]:
        """Return what happens when a packet, which leaves now, comes to the far end."""
        lane.unread += 1
        return partial(self._arrive, lane, event)

    def _arrive(self, lane: Lane, event: Received) -> None:
        node, now = lane.target, self._world.now
        if not node.packet_s:
            self._take(lane, event)
        elif node.alive and lane.open:
            begins_at = max(now, node.busy_until)
            node.longest_wait_s = max(node.longest_wait_s, begins_at - now)
            node.busy_until = begins_at + node.packet_s
            self._world.at(node.busy_until, partial(self._take, lane, event))

    def _take(self, lane: Lane, event: Received) -> None:
        """The node is done with a packet: what follows from it, happens now."""
        if lane.target.alive and lane.open:
            lane.target.taken += 1
            self._links.taken(lane)
            self._world.tell(lane.target, event)
