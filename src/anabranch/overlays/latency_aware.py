"""The graph a tracker keeps of one stream part where neighbours are chosen by measured delay.

It begins as the random d-regular graph (regular_graph.py), and joins, leaves and failed links are
dealt with as there. Then, round by round, links are exchanged: a-b and c-d become a-c and b-d,
where messages come sooner with them (placement.py). Paper 000 leaves this to future work
(section V-C.3, footnote 6), and says what it must not cost: the graph stays d-regular and whole,
and at least every fourth link of a node stays random, for resilience.

All that is known are messages: round trips that nodes report of their links, and of probes that
the tracker asks for. A link is made only where both ends have measured it (round_trips.py). Whom
to probe is guessed from coordinates (coordinates.py): those who seem near, a list that every node
has and that those on it improve with theirs, and now and then anybody.

Who claims what cannot be is not believed at all: it has random neighbours, as everybody had.

A node takes part in one exchange at a time: it must have carried out the last one before the
next, and then it loses one link and gets one. So nothing is lost while the overlay improves.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from anabranch.core.ids import NodeId
from anabranch.core.tracked import Improvement
from anabranch.overlays.coordinates import Coordinates
from anabranch.overlays.placement import Forest
from anabranch.overlays.regular_graph import EACH_ITS_OWN, Order, RegularGraph, always
from anabranch.overlays.round_trips import RoundTrips

ROUND_S = 5.0
NODES_PER_S = 400.0  # of a larger part are looked at: its rounds are farther apart
MAX_NODES = 20_000  # a larger part stays as it is
SOURCES = 16  # whose messages stand for everybody's
LANDMARKS = 8  # that a node knows the delay to before it is placed: anybody
CANDIDATES = 16  # who seem near to a node
PROBES = 2  # of a node, in a round
TRIED = 8  # of whom a node has measured, in a round
LOOKED_AT = 6  # of whom it has not
SPRINGS = 8  # measurements of a node that move its coordinates, in a round
LEAST_GAIN = 0.02  # that an exchange must bring, as a share of one node's mean delay
UNKNOWN_MS = 100.0  # a link that nobody has measured yet
ASK_AGAIN_S = 30.0  # after a probe that was not answered
DOUBTED_S = 120.0  # who claimed what cannot be has random neighbours for so long

Ready = Callable[[NodeId], bool]  # whether a node has carried out all it was told


class Exchange(NamedTuple):
    """The links a-b and c-d become a-c and b-d; the greatest gain is the best."""

    gain: float
    a: int
    b: int
    c: int
    d: int


class LatencyAware(RegularGraph[NodeId]):
    """A d-regular graph that improves."""

    def __init__(
        self,
        degree: int,
        rng: random.Random,
        suitable: Callable[[NodeId, NodeId], bool] = always,
        order: Order[NodeId] = EACH_ITS_OWN,
    ) -> None:
        super().__init__(degree, rng, suitable, order)
        self._rng = rng
        self._random_links = -(-degree // 4)  # that every node keeps
        self._numbers: dict[NodeId, int] = {}
        self._names: dict[int, NodeId] = {}
        self._next = 0
        self._trips = RoundTrips()
        self._places = Coordinates(rng)
        self._candidates: dict[int, list[int]] = {}
        self._placed: dict[tuple[int, int], None] = {}  # links that are there for their delay
        self._asked: dict[tuple[int, int], float] = {}  # probes, and when
        self._doubted: dict[int, float] = {}  # who makes absurd claims, and until when it counts

    # --- Who is there ---------------------------------------------------------------------

    def add(self, node: NodeId) -> None:
        """Add a node as it stands."""
        super().add(node)
        number = self._numbers[node] = self._next
        self._names[number] = node
        self._next += 1
        self._trips.add(number)
        self._places.add(number)
        self._candidates[number] = []

    def leave(self, node: NodeId) -> list[NodeId]:
        """Remove a node, and what is known of it."""
        changed = super().leave(node)
        number = self._numbers.pop(node)
        del self._names[number], self._candidates[number]
        self._doubted.pop(number, None)
        self._trips.forget(number)
        self._places.forget(number)
        self._placed = {pair: None for pair in self._placed if number not in pair}
        self._asked = {pair: at for pair, at in self._asked.items() if number not in pair}
        return changed

    def adopt(self, a: NodeId, b: NodeId) -> bool:
        """Take over a link that exists, for whatever reason: it does not count as random."""
        adopted = super().adopt(a, b)
        if adopted:
            self._placed[self._pair_of(self._numbers[a], self._numbers[b])] = None
        return adopted

    # --- What nodes measured --------------------------------------------------------------

    def heard(self, node: NodeId, peer: NodeId, rtt_us: int, now: float) -> None:
        """Take a node's word for the round trip to another; 0 says that it has none."""
        number, other = self._numbers.get(node), self._numbers.get(peer)
        if number is None or other is None or number == other:
            return
        self._asked.pop((number, other), None)
        if rtt_us:
            self._trips.claim(number, other, rtt_us, now)

    def probed(self, node: NodeId, peer: NodeId, rtt_us: int, now: float) -> None:
        """Take the answer to a probe; what nobody asked for says nothing."""
        if (self._numbers.get(node), self._numbers.get(peer)) in self._asked:
            self.heard(node, peer, rtt_us, now)

    def _delay_ms(self, a: int, b: int) -> float:
        """Return the delay as far as anything is known of it."""
        claimed = self._trips.claimed_ms(a, b)
        return claimed if claimed is not None else self._places.delay_ms(a, b)

    # --- A round --------------------------------------------------------------------------

    def improve(self, ready: Ready, now: float) -> Improvement:
        """Exchange links where messages come sooner, and say what should be measured."""
        every_s = max(ROUND_S, len(self) / NODES_PER_S)
        if not self.degree + 1 < len(self) <= MAX_NODES:
            return Improvement([], [], every_s)
        self._asked = {pair: at for pair, at in self._asked.items() if at > now - ASK_AGAIN_S}
        self._placed = {p: None for p in self._placed if self._are_linked(*p)}
        self._doubted = {node: until for node, until in self._doubted.items() if until > now}
        self._relax(now)
        look = Look(self, ready, now)
        look.go()
        for exchange in look.chosen:
            self._exchange(exchange)
        self._restore_randomness(look.used, ready)
        changed = self._changes()
        changed += [node for node in self.mend() if node not in changed]
        return Improvement(changed, look.probes, every_s)

    def _relax(self, now: float) -> None:
        """Move coordinates to where measurements have them, and look for who is near."""
        trips, places, rng = self._trips, self._places, self._rng
        for node in self._names:
            claims = trips.claims(node)
            peers = list(claims)
            for peer in rng.sample(peers, min(SPRINGS, len(peers))):
                if trips.is_absurd(node, peer):
                    self._doubted[node] = now + DOUBTED_S
                    continue
                known_ms = trips.known_ms(node, peer)
                if known_ms is not None:
                    places.measured(node, peer, known_ms, both=True)
                else:
                    places.measured(node, peer, claims[peer][0], both=False)
        everybody = list(self._names)
        for node, before in self._candidates.items():
            seen = dict.fromkeys([*before, *trips.claims(node)])
            for friend in rng.sample(before, min(3, len(before))):
                others = self._candidates.get(friend, ())
                seen |= dict.fromkeys(rng.sample(others, min(4, len(others))))
            seen[everybody[int(rng.random() * len(everybody))]] = None
            seen.pop(node, None)
            there = [peer for peer in seen if peer in self._names]  # others may have left
            nearest = sorted((self._delay_ms(node, peer), peer) for peer in there)
            self._candidates[node] = [peer for _, peer in nearest[:CANDIDATES]]

    def _exchange(self, exchange: Exchange) -> None:
        names = self._names
        _, *numbers = exchange
        a, b, c, d = (names[number] for number in numbers)
        self._unlink(a, b)
        self._unlink(c, d)
        self._link(a, c)
        self._link(b, d)
        for one, other in ((exchange.a, exchange.c), (exchange.b, exchange.d)):
            self._placed[self._pair_of(one, other)] = None

    def _restore_randomness(self, used: set[int], ready: Ready) -> None:
        """Exchange a link of whoever has too few random ones, with one of anybody."""
        for a, name in self._names.items():
            if a in used or not ready(name) or (self._spare(a) >= 0 and a not in self._doubted):
                continue
            for b in self._peers(a):
                if self._pair_of(a, b) not in self._placed or b in used:
                    continue
                drawn = self._draw(name, self._names[b], thorough=False)
                ends = [self._numbers[v] for v in drawn[1:]] if drawn is not None else []
                four = {a, b, *ends}
                if len(four) < 4 or four & used or not all(ready(self._names[v]) for v in four):
                    continue
                used |= four
                self._exchange(Exchange(0.0, a, b, *ends))
                for one, other in ((a, ends[0]), (b, ends[1])):
                    del self._placed[self._pair_of(one, other)]
                break

    # --- Small questions ------------------------------------------------------------------

    def _pair_of(self, a: int, b: int) -> tuple[int, int]:
        return (a, b) if a < b else (b, a)

    def _are_linked(self, a: int, b: int) -> bool:
        return self.linked(self._names[a], self._names[b])

    def _peers(self, node: int) -> list[int]:
        return [self._numbers[peer] for peer in self._near[self._names[node]]]

    def _spare(self, node: int) -> int:
        """Return how many random links a node has beyond those that it keeps."""
        placed, pair_of = self._placed, self._pair_of
        random_links = sum(pair_of(node, peer) not in placed for peer in self._peers(node))
        return random_links - min(self._random_links, len(self._near[self._names[node]]))

    def _may_go(self, a: int, b: int) -> bool:
        """Tell whether a link may be given up: a random one only where there are others."""
        if self._pair_of(a, b) in self._placed:
            return True
        return self._spare(a) > 0 and self._spare(b) > 0


class Look:
    """One look at the graph: which exchanges are worth while, and what should be measured."""

    def __init__(self, graph: LatencyAware, ready: Ready, now: float) -> None:
        self.chosen: list[Exchange] = []
        self.probes: list[tuple[NodeId, NodeId]] = []
        self.used: set[int] = set()  # nodes whose links change in this round
        self._graph = graph
        self._now = now
        self._numbers = list(graph._names)
        self._at = {number: at for at, number in enumerate(self._numbers)}
        self._ready = {
            n for n, name in graph._names.items() if n not in graph._doubted and ready(name)
        }
        near = [
            [(self._at[peer], self._link_ms(number, peer)) for peer in graph._peers(number)]
            for number in self._numbers
        ]
        count = min(SOURCES, len(near))
        self._forest = Forest(near, graph._rng.sample(range(len(near)), count))
        self._least = LEAST_GAIN * count * self._forest.mean_ms()
        self._may_go = {
            number: [peer for peer in graph._peers(number) if graph._may_go(number, peer)]
            for number in self._numbers
        }

    def go(self) -> None:
        """Choose exchanges, the best first and no node twice; and probes, one for each node."""
        found, wanted = list[Exchange](), list[tuple[float, int, int]]()
        for a in self._numbers:
            links = self._cheapest(a)
            if a in self._ready and links:
                found += self._best(a, links)
            wanted += self._unmeasured(a, links[0][0] if links else 0.0)
        for exchange in sorted(found, reverse=True):
            four = exchange[1:]
            if not self.used.intersection(four) and self._stands(exchange):
                self.used.update(four)
                self.chosen.append(exchange)
        self._ask(wanted)

    def _cheapest(self, node: int) -> list[tuple[float, int]]:
        """Return the two links of a node that are missed least, with what they are worth."""
        at, loss = self._at, self._forest.loss
        return sorted((loss(at[node], at[peer]), peer) for peer in self._may_go[node])[:2]

    def _best(self, a: int, links: Sequence[tuple[float, int]]) -> list[Exchange]:
        """Return the best exchange for a node among some of those whom it has measured."""
        graph, at, gain = self._graph, self._at, self._forest.gain
        near, trips = graph._peers(a), graph._trips
        known = [peer for peer in trips.claims(a) if peer not in near and peer in self._ready]
        best: list[Exchange] = []
        for c in graph._rng.sample(known, min(TRIED, len(known))):
            delay_ms = trips.known_ms(a, c)
            if delay_ms is None:
                continue
            saved = gain(at[a], at[c], delay_ms)
            if saved <= links[0][0] + self._least:
                continue
            for lost_c, d in self._cheapest(c):
                for lost_a, b in links:
                    if b in (c, d) or d == a or not self._fits(a, b, c, d):
                        continue
                    other_ms = trips.known_ms(b, d)
                    more = gain(at[b], at[d], other_ms) if other_ms is not None else 0.0
                    net = saved + more - lost_a - lost_c
                    if net > self._least and (not best or net > best[0].gain):
                        best = [Exchange(net, a, b, c, d)]
        return best

    def _fits(self, a: int, b: int, c: int, d: int) -> bool:
        """Tell whether a may be linked with c, and b with d, who must be ready as well."""
        if b not in self._ready or d not in self._ready:
            return False
        name = self._graph._names
        fits = self._graph._fits
        return fits(name[a], name[c]) and fits(name[b], name[d])

    def _stands(self, exchange: Exchange) -> bool:
        """Tell whether an exchange is still possible after those that were chosen before it."""
        return all(node in self._ready for node in exchange[1:])

    def _unmeasured(self, a: int, lost: float) -> list[tuple[float, int, int]]:
        """Return whom a node should probe: somebody of whom much seems to be gained."""
        graph, at, rng = self._graph, self._at, self._graph._rng
        claims, near = graph._trips.claims(a), graph._peers(a)
        anybody = self._numbers[int(rng.random() * len(self._numbers))]
        if len(claims) < LANDMARKS + len(near):
            return [(0.0, a, anybody)]
        candidates = graph._candidates[a]
        tried = [*rng.sample(candidates, min(LOOKED_AT, len(candidates))), anybody]
        best: list[tuple[float, int, int]] = []
        for c in tried:
            if c != a and c not in claims and c not in near and (a, c) not in graph._asked:
                saved = self._forest.gain(at[a], at[c], graph._delay_ms(a, c))
                if saved > lost + self._least and (not best or saved > best[0][0]):
                    best = [(saved, a, c)]
        return best

    def _ask(self, wanted: list[tuple[float, int, int]]) -> None:
        """Ask for probes, those of most promise first; a node has few at a time."""
        asked, names = self._graph._asked, self._graph._names
        busy: dict[int, int] = {}
        for _, a, c in sorted(wanted, reverse=True):
            if a == c or (a, c) in asked or max(busy.get(a, 0), busy.get(c, 0)) >= PROBES:
                continue
            asked[a, c] = asked[c, a] = self._now
            busy[a], busy[c] = busy.get(a, 0) + 1, busy.get(c, 0) + 1
            self.probes.append((names[a], names[c]))

    def _link_ms(self, a: int, b: int) -> float:
        claimed = self._graph._trips.claimed_ms(a, b)
        return claimed if claimed is not None else UNKNOWN_MS
