"""Floods on arrays: what `sim/` measures on machines, for more nodes and more repeats.

A topology is a `Graph`: the neighbours of node v are `targets[starts[v]:starts[v + 1]]`, in the
order in which v sends to them, and `delays_s` has, at the same places, how long that takes. The
first copy of a flooded message takes the shortest way (paper 000, section IV-C), so that a flood
is a run of Dijkstra's algorithm. Times are added up as the simulator adds them up, from the same
beginning and with the same order among equals: delays and hops are the same to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import get_num_threads, njit, prange
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]

NOBODY = -1
SMALL_BUCKET = 32  # up to so many copies are sorted by insertion


@dataclass(frozen=True)
class Graph:
    """Who sends to whom, and how long it takes, as compressed rows."""

    starts: Ints
    targets: Int32s
    delays_s: Floats

    @property
    def nodes(self) -> int:
        """Return how many nodes there are."""
        return len(self.starts) - 1


@dataclass(frozen=True)
class Spread:
    """A message from one node to all: inf, 0 hops and nobody where it does not come to."""

    delays_s: Floats
    hops: Int32s
    came_from: Int32s


def graph_of(neighbours: Sequence[Sequence[int]], delays_s: Sequence[Sequence[float]]) -> Graph:
    """Return the graph with these neighbours of every node, and the delays to them."""
    degrees = [len(near) for near in neighbours]
    return Graph(
        np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        np.array([peer for near in neighbours for peer in near], dtype=np.int32),
        np.array([delay_s for row in delays_s for delay_s in row], dtype=np.float64),
    )


def graph_of_links(nodes: int, ends: NDArray[Any], delays_s: Floats | None = None) -> Graph:
    """Return the graph with these links a-b; the delays are those of all a-b, then of all b-a."""
    ends = np.asarray(ends, dtype=np.int64).reshape(-1, 2)
    sources, targets = np.concatenate([ends, ends[:, ::-1]]).T
    order = np.argsort(sources, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=nodes))])
    weights = np.ones(len(order)) if delays_s is None else np.asarray(delays_s, dtype=np.float64)
    return Graph(starts.astype(np.int64), targets[order].astype(np.int32), weights[order])


def stack(graphs: Sequence[Graph]) -> Graph:
    """Put graphs beside each other, with nothing between them: many topologies are one batch."""
    nodes = np.cumsum([0] + [graph.nodes for graph in graphs])
    links = np.cumsum([0] + [len(graph.targets) for graph in graphs])
    return Graph(
        np.concatenate([[0], *(g.starts[1:] + at for g, at in zip(graphs, links, strict=False))]),
        np.concatenate(
            [(g.targets + at).astype(np.int32) for g, at in zip(graphs, nodes, strict=False)]
        ),
        np.concatenate([graph.delays_s for graph in graphs]),
    )


# --- What is asked --------------------------------------------------------------------------


def from_one(graph: Graph, source: int, begun_at: float = 0.0) -> Spread:
    """Follow a message that is published at a time; memory is linear in the links."""
    at = np.empty(graph.nodes)
    hops, came_from = np.empty(graph.nodes, np.int32), np.empty(graph.nodes, np.int32)
    _spread(
        *(graph.starts, graph.targets, graph.delays_s, longest_s(graph), source, 0, begun_at),
        *(at, hops, came_from, *_scratch(graph.nodes, len(graph.targets))),
    )
    return Spread(at - begun_at, hops, came_from)


def from_all(graph: Graph, begun_at: Floats | None = None) -> tuple[Floats, Int32s]:
    """Return delays and hops from every node (row) to every node (column)."""
    begun_at = np.zeros(graph.nodes) if begun_at is None else begun_at
    delays_s = np.empty((graph.nodes, graph.nodes))
    hops = np.empty((graph.nodes, graph.nodes), dtype=np.int32)
    arrays = (graph.starts, graph.targets, graph.delays_s, longest_s(graph))
    _all_pairs(*arrays, begun_at, get_num_threads(), delays_s, hops)
    return delays_s, hops


def duplicates_of(graph: Graph, source: int, window_s: float | None = None) -> int:
    """Count the copies that come to who has the message, in a flood from one node.

    Without a window, everybody passes the message on in the instant in which it comes, to all but
    who sent it (paper 000, section V-B.2). With one, it takes a node so long to read what comes,
    and it does not send to those whose copies it has got meanwhile, as nodes do live. The window
    is part of the delay of every hop, at its end.
    """
    if window_s is None:
        return int(_instant_flood(graph.starts, graph.targets, source)[1])
    spread = from_one(graph, source)
    return int(
        _windowed_duplicates(
            graph.starts,
            graph.targets,
            graph.delays_s,
            spread.delays_s,
            spread.came_from,
            source,
            window_s,
        )
    )


def hops_from(graph: Graph, source: int) -> Int32s:
    """Return the least number of links to every node, -1 where there is no way."""
    hops: Int32s = _instant_flood(graph.starts, graph.targets, source)[0]
    return hops


def eccentricities(graph: Graph, sources: Ints | None = None) -> Int32s:
    """Return, for each source, how many links away the farthest node is; -1 if one has no way."""
    if sources is None:
        sources = np.arange(graph.nodes)
    farthest: Int32s = _eccentricities(graph.starts, graph.targets, sources)
    return farthest


def batch_means(graphs: Sequence[Graph]) -> tuple[Floats, Floats]:
    """Return the mean delay and the mean hops between two nodes, for each of many topologies."""
    stacked = stack(graphs)
    bounds = np.cumsum([0] + [graph.nodes for graph in graphs])
    delays_s, hops = np.empty(stacked.nodes), np.empty(stacked.nodes)
    first = np.repeat(bounds[:-1], np.diff(bounds))
    last = np.repeat(bounds[1:], np.diff(bounds))
    arrays = (stacked.starts, stacked.targets, stacked.delays_s, longest_s(stacked))
    _sums(*arrays, first, last, int(np.diff(bounds).max()), get_num_threads(), delays_s, hops)
    pairs = np.diff(bounds) * (np.diff(bounds) - 1)
    sums = (np.add.reduceat(values, bounds[:-1]) / pairs for values in (delays_s, hops))
    return next(sums), next(sums)


def longest_s(graph: Graph) -> float:
    """Return the longest delay of a link."""
    return float(graph.delays_s.max(initial=0.0))


# --- How it is computed ---------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _gather(latest, at, first, nexts, times, nodes, near_times, near_nodes):  # type: ignore[no-untyped-def]
    """Take the copies of one bucket, the first to arrive first; return how many, and of how many.

    A bucket is a list, the latest at its head. Of copies that arrive together, those that were
    sent first come first, as in the simulator: so what sorts them has to be stable.
    """
    count, all_of_them, entry = 0, 0, latest
    while entry != NOBODY:
        all_of_them += 1
        count += times[entry] <= at[nodes[entry] - first]  # or else a faster copy was sent since
        entry = nexts[entry]
    place, entry = count, latest
    while entry != NOBODY:
        if times[entry] <= at[nodes[entry] - first]:
            place -= 1
            near_times[place], near_nodes[place] = times[entry], nodes[entry]
        entry = nexts[entry]
    in_order = True
    for place in range(1, count):
        in_order = in_order and near_times[place - 1] <= near_times[place]
    if not in_order and count > SMALL_BUCKET:
        order = np.argsort(near_times[:count], kind="mergesort")
        near_times[:count], near_nodes[:count] = near_times[order], near_nodes[order]
    elif not in_order:
        for end in range(1, count):
            _insert(near_times, near_nodes, 0, end, near_times[end], near_nodes[end])
    return count, all_of_them


@njit(cache=True, nogil=True)
def _insert(near_times, near_nodes, begin, end, time, node):  # type: ignore[no-untyped-def]
    """Put a copy among the sorted ones, behind those that arrive at the same time."""
    while end > begin and near_times[end - 1] > time:
        near_times[end], near_nodes[end] = near_times[end - 1], near_nodes[end - 1]
        end -= 1
    near_times[end], near_nodes[end] = time, node


@njit(cache=True, nogil=True)
def _spread(  # type: ignore[no-untyped-def]
    starts, targets, delays_s, longest_s, source, first, begun_at, at, hops, came_from,
    buckets, nexts, times, nodes, near_times, near_nodes,
):  # fmt: skip
    """Flood from a source into `at`, `hops` and `came_from`, where node v is at v - first.

    Copies on their way lie in a ring of buckets by their time of arrival. The ring is as long as
    the longest delay, and has about one bucket for each node, so that most have a copy or two.
    """
    at[:] = np.inf
    hops[:] = 0
    came_from[:] = NOBODY
    buckets[:] = NOBODY
    mask = len(buckets) - 1
    per_s = (len(buckets) - 2) / longest_s if longest_s > 0 else 0.0
    at[source - first] = begun_at
    near_times[0], near_nodes[0] = begun_at, source
    end, turn, pushed, waiting = 1, 0, 0, 0
    while end:
        place = 0
        while place < end:
            now, node = near_times[place], near_nodes[place]
            place += 1
            if now > at[node - first]:
                continue  # a faster copy was first
            further = hops[node - first] + 1
            for link in range(starts[node], starts[node + 1]):
                peer = targets[link]
                arrival = now + delays_s[link]
                if arrival >= at[peer - first]:
                    continue
                at[peer - first] = arrival
                hops[peer - first] = further
                came_from[peer - first] = node
                due = int((arrival - begun_at) * per_s)
                if due <= turn:
                    _insert(near_times, near_nodes, place, end, arrival, peer)
                    end += 1
                else:
                    times[pushed], nodes[pushed] = arrival, peer
                    nexts[pushed], buckets[due & mask] = buckets[due & mask], pushed
                    pushed += 1
                    waiting += 1
        end = 0
        while waiting and not end:  # a bucket may have nothing but what is too late
            turn += 1
            while buckets[turn & mask] == NOBODY:
                turn += 1
            latest, buckets[turn & mask] = buckets[turn & mask], NOBODY
            end, taken = _gather(latest, at, first, nexts, times, nodes, near_times, near_nodes)
            waiting -= taken


@njit(cache=True, nogil=True)
def _scratch(nodes, links):  # type: ignore[no-untyped-def]
    """Make room for one flood at a time: buckets, copies on their way, and those next in turn."""
    ring = 16
    while ring < nodes:
        ring *= 2
    return (
        np.empty(ring, np.int32),
        np.empty(links + 1, np.int32),
        np.empty(links + 1),
        np.empty(links + 1, np.int32),
        np.empty(links + 1),
        np.empty(links + 1, np.int32),
    )


@njit(cache=True, nogil=True, parallel=True)
def _all_pairs(starts, targets, delays_s, longest_s, begun_at, threads, delays_out, hops_out):  # type: ignore[no-untyped-def]
    count = len(starts) - 1
    for thread in prange(threads):
        came_from = np.empty(count, np.int32)
        buckets, nexts, times, nodes, near_times, near_nodes = _scratch(count, len(targets))
        for source in range(thread, count, threads):
            at = delays_out[source]
            _spread(
                starts, targets, delays_s, longest_s, source, 0, begun_at[source],
                at, hops_out[source], came_from,
                buckets, nexts, times, nodes, near_times, near_nodes,
            )  # fmt: skip
            for node in range(count):
                at[node] -= begun_at[source]


@njit(cache=True, nogil=True, parallel=True)
def _sums(starts, targets, delays_s, longest_s, first, last, widest, threads, delay_sums, hop_sums):  # type: ignore[no-untyped-def]
    for thread in prange(threads):
        all_at = np.empty(widest)
        all_hops = np.empty(widest, np.int32)
        came_from = np.empty(widest, np.int32)
        buckets, nexts, times, nodes, near_times, near_nodes = _scratch(widest, len(targets))
        for source in range(thread, len(first), threads):
            count = last[source] - first[source]
            at, hops = all_at[:count], all_hops[:count]
            _spread(
                starts, targets, delays_s, longest_s, source, first[source], 0.0,
                at, hops, came_from[:count],
                buckets, nexts, times, nodes, near_times, near_nodes,
            )  # fmt: skip
            delay_sums[source] = at.sum()
            hop_sums[source] = hops.sum()


@njit(cache=True, nogil=True)
def _instant_flood(starts, targets, source):  # type: ignore[no-untyped-def]
    """Take packets from a queue in the order in which they were sent; count what is known."""
    count = len(starts) - 1
    hops = np.full(count, NOBODY, np.int32)
    came_from = np.full(count, NOBODY, np.int32)
    queue = np.empty(count, np.int32)
    hops[source], queue[0] = 0, source
    head, tail, duplicates = 0, 1, 0
    while head < tail:
        node = queue[head]
        head += 1
        for link in range(starts[node], starts[node + 1]):
            peer = targets[link]
            if peer == came_from[node]:
                continue
            if hops[peer] != NOBODY:
                duplicates += 1
                continue
            hops[peer], came_from[peer] = hops[node] + 1, node
            queue[tail] = peer
            tail += 1
    return hops, duplicates


@njit(cache=True, nogil=True)
def _windowed_duplicates(starts, targets, delays_s, at, came_from, source, window_s):  # type: ignore[no-untyped-def]
    """Count the copies that are sent, less the first ones.

    What v sends to u has come before u sends if it arrives, without the time that u takes to
    read, by the time at which u has read its first copy; then u sends none to v.
    """
    sent, reached = 0, 0
    for node in range(len(starts) - 1):
        if at[node] == np.inf:
            continue
        reached += node != source
        for link in range(starts[node], starts[node + 1]):
            peer = targets[link]
            sent += came_from[node] != peer
            arrived = at[node] + delays_s[link] - window_s
            if arrived < at[peer] and came_from[peer] != node and came_from[node] != peer:
                sent -= 1  # the peer has it from this node, and does not send it back
    return sent - reached


@njit(cache=True, nogil=True, parallel=True)
def _eccentricities(starts, targets, sources):  # type: ignore[no-untyped-def]
    farthest = np.empty(len(sources), np.int32)
    for index in prange(len(sources)):
        hops, _ = _instant_flood(starts, targets, sources[index])
        farthest[index] = NOBODY if hops.min() == NOBODY else hops.max()
    return farthest
