"""The status protocol before instructions had counters, as a model: paper 001, section 4.3.

A node works on all that it is told in parallel. Whenever one of its connections stands, it will
say so 200 ms later, unless another one stands before; then it reports those that stand, though
others are still on their way. The tracker takes the report for the truth: it forgets the links
that are missing, fills the slots anew, and cuts what overflows. Far neighbours take longest to
connect to and are given up most often, so that near ones are preferred without anybody's intent.
"""

import heapq
import random
from collections.abc import Callable, Iterable

from anabranch.lab.experiment import OptionError
from anabranch.lab.topologies import Topology
from anabranch.sim.network import Underlay

STATUS_AFTER_S = 0.2  # since the last connection has been formed
DIAL_TRIPS = 4  # one-way: two for TCP, two for WebSocket
# The paper does not say how fast nodes joined, and the preference for near neighbours depends on
# it: at 2048 nodes of aws16 one seed gave a relative delay penalty of 2.54 when all joined at once,
# 2.80 with 0.5 ms between two, 3.07 with 1 ms, 3.79 with 5 ms, and from 20 ms on that of a random
# graph. This pace was chosen out of these because it comes nearest to the paper's 2.8 there;
# nine other seeds gave 2.89 with it.
JOIN_EVERY_S = 0.0005
MOST_EVENTS = 2000  # for each node; where all delays are equal, all act at once, and for ever

Near = dict[int, None]  # a set that keeps its order


class LegacyTracker:
    """Keeps the graph that it believes in, and changes it at every status."""

    def __init__(self, degree: int, rng: random.Random) -> None:
        self.near: dict[int, Near] = {}
        self._degree = degree
        self._rng = rng
        self._joined: list[int] = []
        self._open: Near = {}  # who has unused slots

    def status(self, node: int, reported: Iterable[int]) -> list[int]:
        """Believe a node, mend the graph around it, and return who has to be told."""
        told: Near = {}
        reported = [peer for peer in reported if peer in self.near]
        if node not in self.near:
            self.near[node] = {}
            self._joined.append(node)
        mine = self.near[node]
        for peer in [peer for peer in mine if peer not in reported]:
            self._unlink(node, peer, told)
        for peer in reported:
            if peer not in mine:
                self._link(node, peer, told)
        for end in (node, *reported):
            while len(self.near[end]) > self._degree:
                self._unlink(end, self._rng.choice(list(self.near[end])), told)
        self._note_room(node)
        self._fill(node, told)
        return list(told)

    def _fill(self, node: int, told: Near) -> None:
        mine, rng = self.near[node], self._rng
        free = [peer for peer in self._open if peer != node and peer not in mine]
        rng.shuffle(free)
        for peer in free[: max(0, self._degree - len(mine))]:
            self._link(node, peer, told)
        # With two slots left, go between the two ends of a link: step 4 of section 4.2.1.
        for _ in range(100):
            if self._degree - len(mine) < 2 or len(self.near) <= self._degree:
                return
            a = rng.choice(self._joined)
            if a == node or a in mine or not self.near[a]:
                continue
            b = rng.choice(list(self.near[a]))
            if b != node and b not in mine:
                self._unlink(a, b, told)
                self._link(node, a, told)
                self._link(node, b, told)

    def _link(self, a: int, b: int, told: Near) -> None:
        self.near[a][b] = self.near[b][a] = None
        self._changed(a, b, told)

    def _unlink(self, a: int, b: int, told: Near) -> None:
        del self.near[a][b], self.near[b][a]
        self._changed(a, b, told)

    def _changed(self, a: int, b: int, told: Near) -> None:
        for node in (a, b):
            told[node] = None
            self._note_room(node)

    def _note_room(self, node: int) -> None:
        if len(self.near[node]) < self._degree:
            self._open[node] = None
        else:
            self._open.pop(node, None)


class LegacyNetwork:
    """Nodes and a tracker that talk so, on a heap of (time, sequence, what happens)."""

    def __init__(self, underlay: Underlay, nodes: int, degree: int, rng: random.Random) -> None:
        self.now = 0.0
        self.near: list[Near] = [{} for _ in range(nodes)]  # the connections that stand
        self._tracker = LegacyTracker(degree, rng)
        self._delay_s = underlay.delay_s
        self._tracker_place = nodes
        self._dialling: list[Near] = [{} for _ in range(nodes)]
        self._report_at: list[float | None] = [None] * nodes
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0

    def run(self) -> bool:
        """Let everything happen until nothing is left, or too much; tell whether it has settled."""
        while self._heap and self._sequence < MOST_EVENTS * len(self.near):
            self.now, _, happen = heapq.heappop(self._heap)
            happen()
        return not self._heap

    def join(self, node: int, at: float) -> None:
        """Let a node say to the tracker that it wants to be in, and has no neighbours."""
        self._at(at, lambda: self._send_status(node))

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, happen))

    def _send_status(self, node: int) -> None:
        reported = tuple(self.near[node])
        arrival = self.now + self._delay_s(node, self._tracker_place)
        self._at(arrival, lambda: self._take_status(node, reported))

    def _take_status(self, node: int, reported: tuple[int, ...]) -> None:
        for told in self._tracker.status(node, reported):
            wanted = tuple(self._tracker.near[told])
            arrival = self.now + self._delay_s(self._tracker_place, told)
            self._at(arrival, lambda told=told, wanted=wanted: self._obey(told, wanted))  # type: ignore[misc]

    def _obey(self, node: int, wanted: tuple[int, ...]) -> None:
        for peer in [peer for peer in self.near[node] if peer not in wanted]:
            del self.near[node][peer], self.near[peer][node]
        for peer in wanted:
            if peer not in self.near[node] and peer not in self._dialling[node]:
                self._dialling[node][peer] = self._dialling[peer][node] = None
                stands_at = self.now + DIAL_TRIPS * self._delay_s(node, peer)
                self._at(stands_at, lambda peer=peer: self._connected(node, peer))  # type: ignore[misc]

    def _connected(self, node: int, peer: int) -> None:
        for end, other in ((node, peer), (peer, node)):
            del self._dialling[end][other]
            self.near[end][other] = None
            self._report_at[end] = report_at = self.now + STATUS_AFTER_S
            self._at(report_at, lambda end=end, at=report_at: self._report(end, at))  # type: ignore[misc]

    def _report(self, node: int, at: float) -> None:
        if self._report_at[node] == at:  # or else another connection stands since
            self._send_status(node)


def grow_legacy(
    underlay: Underlay, nodes: int, degree: int, seed: str, processing_s: float = 0.0
) -> Topology:
    """Let nodes join one after the other; return the connections when nothing happens any more."""
    network = LegacyNetwork(underlay, nodes, degree, random.Random(f"{seed}/legacy"))
    order = random.Random(f"{seed}/joins").sample(range(nodes), nodes)
    for turn, node in enumerate(order):
        network.join(node, turn * JOIN_EVERY_S)
    if not network.run():
        raise OptionError("--legacy-status does not settle here: choose another underlay or seed")
    return Topology([sorted(near) for near in network.near], underlay, processing_s)
