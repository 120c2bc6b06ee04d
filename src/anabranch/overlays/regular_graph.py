"""The graph a tracker keeps of one stream part: random, simple, every node of degree d.

Streamr changes it at every join and leave by four steps (section IV-B; the thesis has the
same ones in section 4.2.1):

    1. V is the set of nodes with unused slots.
    2. Link random suitable pairs of V until no suitable pair is left.
    3. Drop from V the nodes with less than two unused slots.
    4. For each v in V: cut a random link c-e, c and e both suitable for v; link v to both.

The steps can strand two nodes a and b, linked to each other, with one unused slot each. One
swap heals that: cut a random link c-e, link a to c and b to e. Step 4 is the case a = b.

With more than d nodes and every pair suitable, such a link exists. After step 2 any two nodes
of V are linked, so whoever is not linked to a has all d slots in use; and there is such a
node c, as a has fewer than d neighbours. None of the d neighbours of c is a.
  Step 4: fewer than d of them are neighbours of a, so one, e, is not.
  Swap: b and its neighbours other than a are d-1 nodes, so one, e, is none of these.
Hence, after any sequence of joins and leaves with every pair suitable:
  n <= d             the graph is complete;
  n > d, n*d even    every node has exactly d neighbours;
  n > d, n*d odd     exactly one node has d-1, as the sum of all degrees is even.
Even d makes all pairs of nodes equally likely neighbours. With odd d two nodes that join one
after the other are linked more often, as step 2 pairs them.

Where the graph may choose, two rules of the tracker apply (`Order`). A node that waits takes part
in no step: its unused slots stay empty. Of candidates that are equal otherwise, a node of a user
that is not yet a neighbour comes first, so that one user with many nodes does not surround others.

Unsuitable pairs can leave slots unused. Later operations try them again, a few at a time, so
that one hopeless slot among a million nodes costs each of them a bounded number of probes.
Nothing is cut before its replacement is known.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

N = TypeVar("N", bound=Hashable)
Links = list[tuple[N, N]]
Part = tuple[Links[N], Links[N]]  # a component: its links, and its unused slots as pairs v, v

TRIES = 16  # random draws before a search goes through candidates one by one
MATCHES = 16_384  # pairs of links that `mend` goes through, shared by the parts to be joined


NodeOf = TypeVar("NodeOf", contravariant=True)


class Order(Protocol[NodeOf]):
    """What the graph asks about a node before it chooses; the answers may change between calls."""

    def waits(self, node: NodeOf) -> bool:
        """Tell whether a node's unused slots stay empty for now."""

    def user(self, node: NodeOf) -> Hashable:
        """Return the user of a node."""


def always(_a: object, _b: object) -> bool:
    """Every pair is suitable."""
    return True


class EachItsOwn:
    """The plain order: no node waits, and every node has a user of its own."""

    def waits(self, node: object) -> bool:
        """No node waits."""
        return False

    def user(self, node: Hashable) -> Hashable:
        """Return the node."""
        return node


EACH_ITS_OWN = EachItsOwn()


class RegularGraph(Generic[N]):
    """A random d-regular graph that follows joins and leaves at O(d) amortised cost."""

    def __init__(
        self,
        degree: int,
        rng: random.Random,
        suitable: Callable[[N, N], bool] = always,
        order: Order[N] = EACH_ITS_OWN,
    ) -> None:
        """`suitable` must be symmetric; it may change its mind between two calls."""
        if degree < 2:
            raise ValueError(f"degree must be at least 2 for a connected graph, not {degree}")
        self.degree = degree
        self.operations = 0  # links made, links cut and candidates probed, for benchmarks
        self._random = rng.random
        self._suitable = suitable
        self._order = order
        # near[a][b] is the place of link a-b in `links`, so that a uniform draw, a membership
        # test and a removal (the last link moves into the gap) each take constant time.
        self._near: dict[N, dict[N, int]] = {}
        self._links: list[tuple[N, N]] = []
        self._open: OrderedDict[N, None] = OrderedDict()  # V, in the order of their turns
        self._before: dict[N, tuple[N, ...]] = {}  # neighbours before the running operation
        self._whole = True  # known to be one component
        # At most d*d links touch a node or a neighbour of it. A window of more than twice that
        # holds a link for any splice, so a search beyond it would serve unsuitable pairs only.
        self._window = max(256, 4 * degree * degree)

    # What the graph looks like.

    def __contains__(self, node: object) -> bool:
        return node in self._near

    def __len__(self) -> int:
        return len(self._near)

    def nodes(self) -> list[N]:
        """All nodes in the order of their arrival."""
        return list(self._near)

    def links(self) -> list[tuple[N, N]]:
        """Every link once, in no particular order or direction."""
        return list(self._links)

    def neighbours(self, node: N) -> Sequence[N]:
        """The neighbours of a node, the oldest link first."""
        return list(self._near[node])

    def linked(self, a: N, b: N) -> bool:
        """Whether a and b are neighbours."""
        return b in self._near.get(a, ())

    # What changes it. Each returns the nodes whose neighbours changed, once each.

    def join(self, node: N) -> list[N]:
        """Add a node and give it neighbours."""
        # Steps 2 and 4 split nothing: the graph stays whole, unless nobody suits the node.
        whole = self._whole
        self.add(node)
        self._whole = whole
        self._before[node] = ()
        self._settle()
        if not self._near[node] and len(self._near) > 1:
            self._whole = False
        return self._changes()

    def leave(self, node: N) -> list[N]:
        """Remove a node and refill the slots of its former neighbours."""
        if node not in self._near:
            raise ValueError(f"{node!r} is not in the graph")
        for neighbour in self.neighbours(node):
            self._unlink(node, neighbour)
        del self._near[node]
        self._open.pop(node, None)
        self._before.pop(node, None)
        self._settle()
        return self._changes()

    def cut(self, a: N, b: N) -> list[N]:
        """Drop a link that failed, its ends being unsuitable by now, and refill both ends."""
        if not self.linked(a, b):
            return []
        self._unlink(a, b)
        self._settle()
        return self._changes()

    def add(self, node: N) -> None:
        """Add a node as it stands, without running the steps."""
        if node in self._near:
            raise ValueError(f"{node!r} is in the graph already")
        self._near[node] = {}
        self._open[node] = None
        self._whole = len(self._near) == 1

    def adopt(self, a: N, b: N) -> bool:
        """Add a link that exists in the field, without running the steps; False if it cannot be."""
        if a == b or a not in self._open or b not in self._open or self.linked(a, b):
            return False
        self._link(a, b)
        self._before.clear()
        return True

    def complete(self) -> list[N]:
        """Run the steps on all unused slots, searching thoroughly for each."""
        self._settle(everyone=True)
        return self._changes()

    def mend(self) -> list[N]:
        """Join the components of a split graph; [] at once if nothing could have split it.

        With every pair suitable one component remains. Otherwise parts stay apart for which no
        suitable exchange of links was found, and the next call tries them again.
        """
        self._whole = self._whole or len(self._components()) <= 1
        if self._whole:
            return []
        # With the unused slots filled first, every part has a cycle (at most one slot is
        # unused, and a tree has more), so a link swap can join it to any other.
        self._settle(everyone=True)
        self._whole = self._join_parts()
        self._settle()
        return self._changes()

    # The steps of section IV-B.

    def _settle(self, everyone: bool = False) -> None:
        """Run steps 1 to 4 and the swap."""
        near, degree, before = self._near, self.degree, self._before
        # Step 1. V holds the nodes with a slot that this operation opened, and up to d older
        # ones in turn. With every pair suitable these are all: fewer than d+1 nodes are there,
        # or at most one slot was left over.
        pool = [v for v in (self._open if everyone else before) if v in self._open]
        if len(self._open) > len(pool):
            pool += [v for v in islice(self._open, len(pool) + degree) if v not in before]
        pool = [v for v in pool if not self._order.waits(v)]
        if len(pool) > 1:
            self._pair(pool.copy())
        # Among at most d nodes everybody has unused slots, so step 2 linked whoever is suitable.
        if len(near) <= degree:
            return
        # Steps 3 and 4. Only the nodes that this operation touched are worth a long search.
        for v in pool:
            while degree - len(near[v]) >= 2 and self._splice(v, v, everyone or v in before):
                pass
        # The swap. It also serves two nodes that are not suitable for each other. Nodes that
        # step 4 could not serve come last, and are not worth a long search for a partner.
        single = sorted((v for v in pool if v in self._open), key=lambda v: -len(near[v]))
        for a, b in zip(single[::2], single[1::2], strict=False):
            worth = (a in before or b in before) and degree - len(near[b]) == 1
            self._splice(a, b, everyone or worth)
        # Slots opened just now are the first in turn next time, those tried in vain the last.
        for v in single:
            if v in self._open:
                self._open.move_to_end(v, last=v not in before)

    def _pair(self, pool: list[N]) -> None:
        """Step 2: link random suitable pairs of the pool until there are none."""
        misses = 0
        while len(pool) > 1:
            i = int(self._random() * len(pool))
            j = int(self._random() * (len(pool) - 1))
            j += j >= i
            if not self._fits(pool[i], pool[j]) or self._repeats_user(pool[i], pool[j]):
                misses += 1
                if misses < TRIES:
                    continue
                # Links only get more in this step, so a node without a partner now will have
                # none later. It leaves the pool, and the step comes to its end.
                partners = [j for j, b in enumerate(pool[: self._window]) if self._fits(pool[i], b)]
                new = [j for j in partners if not self._repeats_user(pool[i], pool[j])]
                partners = new or partners
                if not partners:
                    pool[i] = pool[-1]
                    pool.pop()
                    continue
                j = partners[int(self._random() * len(partners))]
            misses = 0
            self._link(pool[i], pool[j])
            for place in (max(i, j), min(i, j)):
                if pool[place] not in self._open:
                    pool[place] = pool[-1]
                    pool.pop()

    def _splice(self, a: N, b: N, thorough: bool) -> bool:
        """Cut a random link c-e and link a to c and b to e; False if no link is suitable."""
        drawn = self._draw(a, b, thorough)
        if drawn is None:
            return False
        place, c, e = drawn
        near, before = self._near, self._before
        near_a, near_b, near_c, near_e = near[a], near[b], near[c], near[e]
        for v, its in ((a, near_a), (b, near_b), (c, near_c), (e, near_e)):
            if v not in before:
                before[v] = tuple(its)
        # The path c-a-b-e replaces c-e, so the graph can split only if a and b are apart.
        if a is not b and b not in near_a:
            self._whole = False
        del near_c[e], near_e[c]
        near_a[c] = near_c[a] = place
        self._links[place] = (a, c)
        near_b[e] = near_e[b] = len(self._links)
        self._links.append((b, e))
        if len(near_a) == self.degree:
            del self._open[a]
        if a is not b and len(near_b) == self.degree:
            del self._open[b]
        self.operations += 3
        return True

    def _draw(self, a: N, b: N, thorough: bool) -> tuple[int, N, N] | None:
        """Draw uniformly a link c-e, and its place, with c suitable for a and e for b."""
        links, rand, suitable = self._links, self._random, self._suitable
        near_a, near_b = self._near[a], self._near[b]
        size = len(links)
        second: tuple[int, N, N] | None = None  # the first link found that only repeats a user
        # The four nodes are distinct: c = b would make e a neighbour of b, and likewise e = a.
        for _ in range(TRIES if size else 0):
            self.operations += 1
            place = int(rand() * size)
            c, e = links[place]
            if a is not b and rand() < 0.5:
                c, e = e, c
            apart = c not in near_a and e not in near_b and c != a and e != b
            if apart and suitable(a, c) and suitable(b, e):
                if not self._splice_repeats_user(a, b, c, e):
                    return place, c, e
                second = second or (place, c, e)
        if second is not None or not thorough:
            return second
        # The graph is small or tight: look at every link, or at a window of a large graph.
        start = int(rand() * size)
        places = [k % size for k in range(start, start + min(size, self._window))]
        ends = [(place, *links[place]) for place in places]
        ends += [(place, e, c) for place, c, e in ends]
        found = [end for end in ends if self._fits(a, end[1]) and self._fits(b, end[2])]
        new = [end for end in found if not self._splice_repeats_user(a, b, *end[1:])]
        found = new or found
        return found[int(rand() * len(found))] if found else None

    # Joining components.

    def _join_parts(self) -> bool:
        """Join the smaller components to the largest; True if one is left of all."""
        parts: list[Part[N]] = []
        for nodes in sorted(self._components(), key=len, reverse=True):
            ends = [(v, w, place) for v in nodes for w, place in self._near[v].items()]
            links = [(v, w) for v, w, place in ends if self._links[place] == (v, w)]
            slots = [v for v in nodes if v in self._open and not self._order.waits(v)]
            parts.append((links, [(v, v) for v in slots]))
        # A node without neighbours that waits is left alone until its time is over.
        main, *rest = [part for part in parts if part[0] or part[1]] or parts[:1]
        left_alone = len(parts) - 1 - len(rest)
        while rest:
            share = MATCHES // len(rest)
            apart = [part for part in rest if not self._bridge(part, main, share)]
            if len(apart) == len(rest):
                return False
            rest = apart
        return not left_alone

    def _bridge(self, part: Part[N], main: Part[N], share: int) -> bool:
        """Join two parts by an exchange of links; False if no suitable one was found."""
        # A swap replaces the links a-x and c-y by a-c and x-y. Failing that, an unused slot
        # of a takes the place of y at c, and y has an unused slot then. This serves a node
        # whom only a few nodes, all of them full, can reach.
        (links, slots), (main_links, main_slots) = part, main
        ways = ((links, main_links), (slots, main_links), (main_slots, links))
        match = next(filter(None, (self._match(*way, share) for way in ways)), None)
        if match is None:
            return False
        a, x, c, y = match
        self._unlink(c, y)
        if a != x:
            self._unlink(a, x)
            self._link(x, y)
        self._link(a, c)
        main_links += links
        main_slots += slots
        return True

    def _match(self, ones: Links[N], others: Links[N], share: int) -> tuple[N, N, N, N] | None:
        """Find a-x in ones (or an unused slot of a = x) and c-y in others: a fits c, x fits y."""
        total = len(ones) * len(others)
        if not total:
            return None
        start = int(self._random() * total)
        for turn in range(TRIES + min(total, share)):
            k = int(self._random() * total) if turn < TRIES else (start + turn) % total
            a, x = ones[k // len(others)]
            one, other = others[k % len(others)]
            # Earlier matches of the same call may have used either up.
            stands = a in self._open if a == x else self.linked(a, x)
            if not stands or not self.linked(one, other):
                continue
            for c, y in ((one, other), (other, one)):
                # One of the links must lie on a cycle. Its part holds together without it, and
                # so both ends of the other link attach to one and the same part.
                fits = self._fits(a, c) and (a == x or self._fits(x, y))
                if fits and (self._on_cycle(a, x) or self._on_cycle(c, y)):
                    return a, x, c, y
        return None

    def _on_cycle(self, a: N, b: N) -> bool:
        """Whether a path leads from a to b besides their link."""
        return a != b and b in self._reach(a, without=b)

    def _components(self) -> list[dict[N, None]]:
        """The nodes of each component."""
        components: list[dict[N, None]] = []
        known: set[N] = set()
        for root in self._near:
            if root not in known:
                components.append(self._reach(root))
                known.update(components[-1])
        return components

    def _reach(self, root: N, without: N | None = None) -> dict[N, None]:
        """Whoever is reached from the root without its link to one of its neighbours."""
        reached = {root: None}
        queue = [root]
        for v in queue:
            for w in self._near[v]:
                if w not in reached and (v != root or w != without):
                    reached[w] = None
                    queue.append(w)
        return reached

    # Single changes.

    def _splice_repeats_user(self, a: N, b: N, c: N, e: N) -> bool:
        """Whether the links a-c and b-e would repeat a user among the neighbours of an end."""
        both_new = a is b and self._order.user(c) == self._order.user(e)
        return both_new or self._repeats_user(a, c) or self._repeats_user(b, e)

    def _repeats_user(self, a: N, b: N) -> bool:
        """Whether a link of a and b would give one of them a second neighbour of one user."""
        user, near = self._order.user, self._near
        user_a, user_b = user(a), user(b)
        return any(user(v) == user_b for v in near[a] if v != b) or any(
            user(v) == user_a for v in near[b] if v != a
        )

    def _fits(self, a: N, b: N) -> bool:
        """Whether a and b may be linked, their slots aside."""
        self.operations += 1
        return a != b and b not in self._near[a] and self._suitable(a, b)

    def _link(self, a: N, b: N) -> None:
        """Link two nodes that have an unused slot each."""
        for v in (a, b):
            self._before.setdefault(v, tuple(self._near[v]))
        self._near[a][b] = self._near[b][a] = len(self._links)
        self._links.append((a, b))
        for v in (a, b):
            if len(self._near[v]) == self.degree:
                del self._open[v]
        self.operations += 1

    def _unlink(self, a: N, b: N) -> None:
        """Cut a link; whether the graph is whole is unknown then."""
        for v in (a, b):
            self._before.setdefault(v, tuple(self._near[v]))
        self._whole = False
        place = self._near[a].pop(b)
        del self._near[b][a]
        c, d = last = self._links.pop()
        if place < len(self._links):
            self._links[place] = last
            self._near[c][d] = self._near[d][c] = place
        self._open[a] = self._open[b] = None
        self.operations += 1

    def _changes(self) -> list[N]:
        """End the operation: the nodes whose neighbours differ from before it."""
        before, self._before = self._before, {}
        return [v for v, was in before.items() if self._near[v].keys() != set(was)]
