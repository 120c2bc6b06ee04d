"""Duplicates: tell the first copy of a frame from every later one, in bounded memory."""

# A message of a publisher chain has a number, (timestamp_ms << 20) | sequence, which only grows
# along the chain; 0 means none. A frame holds the messages from `first` to `last`, and nothing
# exists in its chain between `previous` and `first`; so a frame settles the range (previous, last].
#
# What a chain may still bring is a row of ascending, disjoint, half-open gaps (lo, hi], of which
# the last is open to infinity (seed 001, section 4.2.2, keeps the complement, the seen ranges).
# Nearly every chain has only that last gap, and is stored as one int: its newest number. While
# inner gaps exist it is a flat list lo, hi, lo, hi, ..., newest. The edges strictly ascend, so
# the number of edges below a point is odd inside a gap and even in settled territory, and a range
# crosses no edge when both of its ends count the same.
#
#   whole range in one gap     NEW
#   whole range settled        SEEN
#   some of both               CONTRADICTION: the publisher numbered two frames differently, or
#                              a very late frame straddles the floor that its chain began at.
#                              Neighbours that relay such a frame are honest: blame no link.
#   chain unknown, first at    TOO_OLD: it may have been seen before its chain was forgotten.
#   or below the floor         What counts is `first`, not `previous`: a chain that was quiet
#                              while the floor rose past its last message can speak again.
#   previous is 0              The chain starts here, and all below is settled. Only what is newer
#                              than the newest is NEW, as Streamr has it, but for one case that it
#                              loses: the start of a chain that its successor overtook. It lies
#                              in the lowest gap. In a higher one it is TOO_OLD: a chain has one
#                              start.
#
# The one promise: once a range is marked, no frame with a message in it is NEW again. Forgetting
# must not break it. A gap that is dropped counts as settled. A chain that is evicted leaves its
# newest number as a floor for unknown chains of its publisher, and a publisher floor that is
# evicted goes into the floor of the whole part. A known chain needs no floor, its own state says
# more. Floors are times on a publisher's clock, so the caller refuses frames from far ahead of
# its own clock first; else many publishers with false clocks could lift the part's floor.

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

PUBLISHER_BYTES: Final = 20  # A chain's key begins with the publisher's address.

MAX_GAPS: Final = 10_000  # of one chain; section 4.2.2
MAX_GAPS_PER_PART: Final = 200_000
MAX_CHAINS_PER_PUBLISHER: Final = 512  # in one part; so many tasks of a job may write to it
MAX_CHAINS_PER_PART: Final = 20_000
MAX_CHAINS: Final = 200_000  # of all parts of a node
MAX_FLOORS: Final = 20_000  # publishers of one part with a floor of their own


class Verdict(IntEnum):
    """What to do with a frame: only a new one is verified, marked and forwarded."""

    NEW = 0
    SEEN = 1
    CONTRADICTION = 2
    TOO_OLD = 3


# Reading a module's name is several times cheaper than reading a member of an enum.
NEW: Final = Verdict.NEW
SEEN: Final = Verdict.SEEN
CONTRADICTION: Final = Verdict.CONTRADICTION
TOO_OLD: Final = Verdict.TOO_OLD


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one stream part."""

    gaps_per_chain: int = MAX_GAPS
    gaps: int = MAX_GAPS_PER_PART
    chains_per_publisher: int = MAX_CHAINS_PER_PUBLISHER
    chains: int = MAX_CHAINS_PER_PART
    floors: int = MAX_FLOORS


DEFAULT_LIMITS: Final = Limits()


class Budget:
    """The chains that all stream parts of one node may know together."""

    __slots__ = ("limit", "parts", "used")

    def __init__(self, limit: int = MAX_CHAINS) -> None:
        self.limit = limit
        self.used = 0
        self.parts: list[Duplicates] = []

    def evict(self) -> None:
        """Forget the stalest chain of the part that knows most, so no part can starve another."""
        max(self.parts, key=len).evict_stalest()

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return each table's size and bound."""
        return {"chains": (self.used, self.limit)}


class Duplicates:
    """The duplicate detector of one stream part; floor: nothing at or below it is new."""

    __slots__ = ("_budget", "_chains", "_floor", "_floors", "_gaps", "_keys", "_left", "_limits")

    def __init__(self, budget: Budget, floor: int = 0, limits: Limits = DEFAULT_LIMITS) -> None:
        self._budget = budget
        self._limits = limits
        # In the order of the last mark, stalest first. A plain dictionary whose entries are taken
        # out and put back is a little faster but keeps a second copy of every key.
        self._chains: OrderedDict[bytes, int | list[int]] = OrderedDict()
        # The same keys, sorted: this finds the chains of a publisher at 8 bytes a chain, where a
        # dictionary by publisher would take over 100.
        self._keys: list[bytes] = []
        self._gaps = 0  # inner gaps of all chains
        self._floor = floor
        self._floors: dict[bytes, int] = {}  # by publisher; only those above the part's
        self._left = False
        budget.parts.append(self)

    def __len__(self) -> int:
        return len(self._chains)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return each table's size and bound."""
        return {
            "chains": (len(self._chains), self._limits.chains),
            "gaps": (self._gaps, self._limits.gaps),
            "floors": (len(self._floors), self._limits.floors),
        }

    def forget(self) -> None:
        """Give all chains back to the budget, for good: a part joined again is a new object."""
        if self._left:
            return
        self._left = True
        self._budget.parts.remove(self)
        self._budget.used -= len(self._chains)
        self._chains.clear()
        self._keys.clear()
        self._floors.clear()
        self._gaps = 0

    # The two calls of the hot path. The caller verifies the signature between them: marking what
    # is not verified would let a forgery censor the real message. So check changes nothing.

    def check(self, key: bytes, previous: int, first: int, last: int) -> Verdict:
        """Say whether this frame of the chain brings something new."""
        if not previous < first <= last:
            return CONTRADICTION
        known = self._chains.get(key)
        if known is None:
            return NEW if first > self._floor_of(key) else TOO_OLD
        newest = known if isinstance(known, int) else known[-1]
        if previous >= newest or (previous == 0 and first > newest):
            return NEW
        # Copies mostly concern what came last, and above the highest inner gap all is settled.
        if isinstance(known, int) or previous >= known[-2]:
            return SEEN if last <= newest else CONTRADICTION
        edges_below_last = bisect_left(known, last)
        if previous == 0:
            if last > newest:
                return CONTRADICTION
            if edges_below_last == 1 == bisect_left(known, first):
                return NEW
            return TOO_OLD if edges_below_last & 1 else SEEN
        if bisect_right(known, previous) != edges_below_last:
            return CONTRADICTION
        return NEW if edges_below_last & 1 else SEEN

    def take(self, key: bytes, previous: int, first: int, last: int) -> Verdict:
        """Say whether a verified frame brings something new, and if so settle it."""
        if self._chains.get(key) == previous < first <= last:  # most go on where one ended
            self._chains[key] = last
            if len(self._chains) > 1:  # a single one is at the end
                self._chains.move_to_end(key)
            return NEW
        verdict = self.check(key, previous, first, last)
        if verdict is NEW:
            self.mark(key, previous, last)
        return verdict

    def mark(self, key: bytes, previous: int, last: int) -> None:
        """Settle (previous, last]; only right after check called the frame NEW."""
        chains = self._chains
        known = chains.get(key)
        if known is None:
            self._begin(key, previous, last)
            return
        if known == previous:
            chains[key] = last
        elif isinstance(known, list) and known[-1] == previous:
            known[-1] = last
        else:
            self._settle(key, known, previous, last)
        chains.move_to_end(key)

    # What a mark does to a chain, when it does more than go on from the newest number.

    def _begin(self, key: bytes, previous: int, last: int) -> None:
        """Start a chain that is unknown here, perhaps again."""
        assert not self._left
        # The floor is read before room is made. Making room may raise it, but for the sake of
        # another chain; what this one has ever marked lies at or below the floor as it was.
        floor = self._floor_of(key)
        assert last > floor
        self._make_room(key)
        self._budget.used += 1
        insort(self._keys, key)
        # What lies between the floor and this frame may still arrive on a slower path.
        self._store(key, [floor, previous, last] if previous > floor else [last], 0)

    def _settle(self, key: bytes, known: int | list[int], previous: int, last: int) -> None:
        """Take (previous, last] out of the gap that holds it."""
        edges = [known] if isinstance(known, int) else known
        gaps_before = len(edges) // 2
        if previous == 0:
            i = bisect_left(edges, last)  # The gap is (edges[i - 1], edges[i]], or the open one.
            assert i & 1
            edges = edges[i + 1 :] if edges[i : i + 1] == [last] else [last, *edges[i:]]
        else:
            i = bisect_right(edges, previous)  # The gap is (edges[i - 1], edges[i]].
            assert i & 1
            assert i == bisect_left(edges, last)
            # Where the range ends at an end of the gap, the two edges are one and both go.
            low = edges[i - 1] == previous
            high = i < len(edges) and edges[i] == last
            edges[i - low : i + high] = [previous][low:] + [last][high:]
        self._store(key, edges, gaps_before)

    def _store(self, key: bytes, edges: list[int], gaps_before: int) -> None:
        """Keep a chain's edges, without its lowest gap if that is one too many."""
        grown = len(edges) // 2 - gaps_before  # at most one
        if grown > 0 and (
            len(edges) // 2 > self._limits.gaps_per_chain or self._gaps >= self._limits.gaps
        ):
            del edges[:2]
            grown -= 1
        self._gaps += grown
        self._chains[key] = edges if len(edges) > 1 else edges[0]

    # Forgetting: chains into floors, floors into the floor of the part.

    def evict_stalest(self) -> None:
        """Forget the chain whose last mark is longest ago."""
        self._evict(next(iter(self._chains)))

    def _make_room(self, key: bytes) -> None:
        """Forget a chain if one more would break a bound; one is enough for all three."""
        if len(self._chains) < min(self._limits.chains_per_publisher, self._limits.chains):
            # Fewer than one publisher may have: only the budget can be used up.
            if self._budget.used >= self._budget.limit:
                self._budget.evict()
            return
        publisher = key[:PUBLISHER_BYTES]
        start = bisect_left(self._keys, publisher)
        at_limit = start + self._limits.chains_per_publisher
        siblings = self._keys[start:at_limit]
        if len(siblings) == at_limit - start and siblings[-1].startswith(publisher):
            # Among the chains of one publisher, whose clock is one, the lowest newest number is
            # the one that is quiet longest, and it raises the publisher's floor least.
            self._evict(min(siblings, key=self._newest))
        elif len(self._chains) >= self._limits.chains:
            self.evict_stalest()
        elif self._budget.used >= self._budget.limit:
            self._budget.evict()

    def _evict(self, key: bytes) -> None:
        newest = self._newest(key)
        known = self._chains.pop(key)
        if isinstance(known, list):
            self._gaps -= len(known) // 2
        del self._keys[bisect_left(self._keys, key)]
        self._budget.used -= 1
        if newest > self._floor_of(key):
            self._floors[key[:PUBLISHER_BYTES]] = newest
            if len(self._floors) > self._limits.floors:
                self._fold_floors()

    def _fold_floors(self) -> None:
        """Replace the lowest publisher floors by one floor of the part."""
        # An eighth at a time, so that the sorting is paid for by many evictions.
        self._floor = sorted(self._floors.values())[len(self._floors) // 8]
        self._floors = {who: low for who, low in self._floors.items() if low > self._floor}

    def _floor_of(self, key: bytes) -> int:
        return self._floors.get(key[:PUBLISHER_BYTES], self._floor)

    def _newest(self, key: bytes) -> int:
        known = self._chains[key]
        return known if isinstance(known, int) else known[-1]
