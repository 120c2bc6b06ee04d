"""What a link is worth: how much later messages would come without it, or sooner with one more.

Messages flood, so that a message of one source reaches everybody along the tree of shortest
delays from that source. A sample of sources stands for all: for each, the tree tells how long a
message takes to everybody, and how many are reached through whom.

    worth of a new link a-b     where it shortens the way to b, all behind b gain what b gains;
    loss of a link u-v          all behind v lose what v loses when its next best neighbour has
                                to do; a neighbour that is itself behind v cannot help.

Both are of the first order, as if nothing else changed at the same time. Few links change at a
time, and the next round looks anew.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

CUT_OFF_MS = 200.0  # what it costs each node behind a link that nothing replaces, at least

Near = Sequence[Sequence[tuple[int, float]]]  # by node: its neighbours, and the delays to them
Tree = tuple[list[float], list[int], list[int]]  # by node: delay, parent (or -1), how many behind


def tree_of(near: Near, source: int) -> Tree:
    """Return the tree of shortest delays from a source (Dijkstra)."""
    delays, parents, order = [math.inf] * len(near), [-1] * len(near), list[int]()
    done = [False] * len(near)
    delays[source] = 0.0
    heap = [(0.0, source)]
    while heap:
        delay, node = heappop(heap)
        if done[node]:
            continue
        done[node] = True
        order.append(node)
        for peer, further in near[node]:
            if delay + further < delays[peer]:
                delays[peer] = delay + further
                parents[peer] = node
                heappush(heap, (delays[peer], peer))
    behind = [1] * len(near)
    for node in reversed(order):
        if parents[node] >= 0:
            behind[parents[node]] += behind[node]
    return delays, parents, behind


class Forest:
    """The trees of some sources on one overlay; nodes are numbers from 0 on."""

    def __init__(self, near: Near, sources: Iterable[int]) -> None:
        self._trees = [tree_of(near, source) for source in sources]
        self._losses: dict[tuple[int, int], float] = {}
        for tree in self._trees:
            self._add_losses(near, *tree)

    @property
    def sources(self) -> int:
        """How many sources there are."""
        return len(self._trees)

    def mean_ms(self) -> float:
        """Return the mean delay from the sources to everybody they reach."""
        delays = [d for delays, _, _ in self._trees for d in delays if 0 < d < math.inf]
        return math.fsum(delays) / len(delays) if delays else 0.0

    def gain(self, a: int, b: int, delay_ms: float) -> float:
        """Return what a link of this delay would save, over all sources and those they reach."""
        total = 0.0
        for delays, _, behind in self._trees:
            sooner = delays[a] - delays[b]
            if sooner > delay_ms:
                total += (sooner - delay_ms) * behind[a]
            elif -sooner > delay_ms:
                total += (-sooner - delay_ms) * behind[b]
        return total

    def loss(self, a: int, b: int) -> float:
        """Return what it would cost to be without a link."""
        return self._losses.get((a, b) if a < b else (b, a), 0.0)

    def _add_losses(
        self, near: Near, delays: list[float], parents: list[int], behind: list[int]
    ) -> None:
        losses = self._losses
        for node, parent in enumerate(parents):
            if parent < 0:
                continue
            now = delays[node]
            best = math.inf
            for peer, further in near[node]:
                delay = delays[peer] + further
                if delay < best and peer != parent and parents[peer] != node:
                    best = delay
            later = min(best - now, CUT_OFF_MS + now)
            link = (node, parent) if node < parent else (parent, node)
            losses[link] = losses.get(link, 0.0) + later * behind[node]
