"""Delay estimates on the weighted topology: what a tracker can say before a message is sent.

Nodes report the round trips to their neighbours; half of one is the delay of a link, and the
shortest path is the way that the first copy of a flooded message takes (paper 000, section IV-C).
The estimate leaves out the time that nodes need, unless `per_hop_s` says it, and is then a lower
bound: section V found it 2.6 to 6.3 % below what was measured.
"""

import heapq
import random
from collections.abc import Mapping, Sequence
from math import inf

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId

MAX_SOURCES = 256  # with more nodes, the messages of a sample of them are followed
MAX_PAIRS = 1 << 18  # and of a smaller sample where each of them reaches very many

Topology = Mapping[NodeId, Sequence[NodeId]]
Rtts = Mapping[tuple[NodeId, NodeId], int]  # microseconds, by who reports and about whom
Link = tuple[int, int, float]  # two places in the list of nodes, and the delay between them


class Prediction(msgspec.Struct, frozen=True):
    """Delays over ordered pairs of nodes, of which the first publishes; None where there are none.

    A pair is unreachable if every way between the two has a link that nobody has measured.
    """

    nodes: int
    links: int
    measured_links: int
    sources: int
    sampled: bool  # the sources are a random sample of the nodes
    pairs: int
    unreachable_pairs: int
    min_ms: float | None = None
    mean_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


def predict(
    topology: Topology,
    rtts_us: Rtts,
    sources: Sequence[NodeId] | None = None,
    per_hop_s: float = 0.0,
    rng: random.Random | None = None,
) -> Prediction:
    """Estimate the delays of messages from `sources`; or from all nodes, or a sample of many."""
    place = {node: index for index, node in enumerate(topology)}
    links, measured = _links(topology, rtts_us, place)
    ways: list[list[tuple[int, float]]] = [[] for _ in place]
    for a, b, delay_s in measured:
        ways[a].append((b, delay_s + per_hop_s))
        ways[b].append((a, delay_s + per_hop_s))
    starts = _starts(place, sources, rng)
    delays_s: list[float] = []
    for start in starts:
        delays_s += _delays_from(start, ways)
    delays_s.sort()
    return Prediction(
        nodes=len(place),
        links=links,
        measured_links=len(measured),
        sources=len(starts),
        sampled=sources is None and len(starts) < len(place),
        pairs=len(delays_s),
        unreachable_pairs=len(starts) * (len(place) - 1) - len(delays_s) if place else 0,
        **_summary_ms(delays_s),
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """Return the smallest value that `percent` of all values do not exceed."""
    rank = -(-len(ordered) * percent // 100)  # rounded up, in integers
    return ordered[max(rank, 1) - 1]


def _summary_ms(ordered_s: Sequence[float]) -> dict[str, float]:
    if not ordered_s:
        return {}
    return {
        "min_ms": ordered_s[0] * 1000,
        "mean_ms": sum(ordered_s) / len(ordered_s) * 1000,
        "p50_ms": nearest_rank(ordered_s, 50) * 1000,
        "p99_ms": nearest_rank(ordered_s, 99) * 1000,
        "max_ms": ordered_s[-1] * 1000,
    }


def _links(
    topology: Topology, rtts_us: Rtts, place: Mapping[NodeId, int]
) -> tuple[int, list[Link]]:
    """Count the links, and weigh those that at least one end has measured."""
    links, measured = 0, []
    for node, neighbours in topology.items():
        for peer in neighbours:
            # A link is named by both ends, and counted where the first of the two names it.
            told_before = peer in place and place[peer] < place[node] and node in topology[peer]
            if peer == node or peer not in place or told_before:
                continue
            links += 1
            reports = [rtts_us.get((node, peer), 0), rtts_us.get((peer, node), 0)]
            reports = [rtt for rtt in reports if 0 < rtt < inf]  # anything else is no round trip
            if reports:
                delay_s = sum(reports) / len(reports) / 2 / 1_000_000
                measured.append((place[node], place[peer], delay_s))
    return links, measured


def _starts(
    place: Mapping[NodeId, int], sources: Sequence[NodeId] | None, rng: random.Random | None
) -> Sequence[int]:
    if sources is not None:
        strangers = [node.hex() for node in sources if node not in place]
        if strangers:
            raise LocalError(f"0x{strangers[0]} is not in the topology: name sources that are")
        return [place[node] for node in sources]
    most = min(MAX_SOURCES, max(1, MAX_PAIRS // max(1, len(place))))
    if len(place) <= most:
        return range(len(place))
    if rng is None:
        raise LocalError(f"{len(place)} nodes are sampled: pass an rng, or the sources to follow")
    return rng.sample(range(len(place)), most)


def _delays_from(start: int, ways: Sequence[Sequence[tuple[int, float]]]) -> list[float]:
    """Return the delay to every other node that can be reached (Dijkstra)."""
    best = [inf] * len(ways)
    best[start] = 0.0
    heap = [(0.0, start)]
    while heap:
        delay, node = heapq.heappop(heap)
        if delay > best[node]:
            continue  # a faster way was found meanwhile
        for peer, more in ways[node]:
            through = delay + more
            if through < best[peer]:
                best[peer] = through
                heapq.heappush(heap, (through, peer))
    return [delay for node, delay in enumerate(best) if delay < inf and node != start]
