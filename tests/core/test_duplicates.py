"""The duplicate detector: each rule by example, then all of them against a dumb twin."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import duplicates
from anabranch.core.duplicates import Budget, Duplicates, Limits, Verdict

Frame = tuple[int, int, int]  # previous, first, last


def key(name: str) -> bytes:
    """Make a chain's key: b is publisher b's chain 0, b2 its chain 2."""
    return name[:1].encode() * 20 + int(name[1:] or 0).to_bytes(8)


def offer(part: Any, chain: bytes, previous: int, first: int, last: int) -> Verdict:
    """Do what a peer does with a frame whose signature holds."""
    verdict: Verdict = part.check(chain, previous, first, last)
    if isinstance(part, Duplicates):
        assert part.take(chain, previous, first, last) is verdict
    elif verdict is Verdict.NEW:
        part.mark(chain, previous, last)
    return verdict


def play(part: Duplicates, script: str) -> None:
    """Offer frames: chain, previous:first-last, the verdict, perhaps = what is then stored."""
    for step in filter(None, map(str.strip, script.split(";"))):
        name, frame, verdict, *stored = step.split()
        previous, first, last = map(int, frame.replace(":", "-").split("-"))
        word = offer(part, key(name), previous, first, last).name.replace("TOO_", "").lower()
        assert word == verdict, step
        if stored:
            edges = [int(edge) for edge in stored[1:]]
            assert part._chains[key(name)] == (edges if len(edges) > 1 else edges[0]), step


def known(part: Duplicates) -> str:
    """Name the chains a detector knows, the stalest first."""
    return " ".join(f"{chain[:1].decode()}{chain[-1] or ''}" for chain in part._chains)


def insides(part: Duplicates) -> list[object]:
    """Copy all state of a detector, the order of its chains included."""
    tables = [list(part._chains.items()), part._keys, part._gaps, part._floor, part._floors]
    return copy.deepcopy(tables)


ONE_GAP = "a 0:1-10 new; a 20:21-30 new = 10 20 30"
SCRIPTS = {
    "in order, each frame is new once and the chain stays one integer": """
        a 0:5-7 new; a 0:5-7 seen; a 7:8-8 new; a 7:8-8 seen; a 8:20-29 new; a 8:20-29 seen = 29;
        a 21:22-25 seen; a 25:26-29 seen""",
    "a gap is filled in the middle, from below, from above, and wholly": """
        a 0:1-10 new; a 50:51-60 new = 10 50 60; a 20:21-30 new = 10 20 30 50 60;
        a 10:11-15 new = 15 20 30 50 60; a 40:41-50 new = 15 20 30 40 60;
        a 30:31-40 new = 15 20 60; a 60:61-70 new = 15 20 70; a 15:16-20 new = 70""",
    "gaps lie above each other": """
        a 0:1-10 new; a 20:21-30 new; a 40:41-50 new = 10 20 30 40 50;
        a 22:23-30 seen; a 41:42-45 seen; a 12:13-18 new; a 32:33-38 new""",
    "a frame is all new or all seen": f"""{ONE_GAP}; a 5:6-15 contradiction;
        a 15:16-25 contradiction; a 10:11-25 contradiction; a 5:6-25 contradiction;
        a 15:16-35 contradiction; a 25:26-31 contradiction; a 15:31-40 contradiction""",
    "numbers ascend": f"""{ONE_GAP}; a 40:40-41 contradiction; a 40:42-41 contradiction;
        a 25:30-20 contradiction""",
    "contradictions without a gap": "a 0:1-9 new; a 5:6-15 contradiction; a 5:11-15 contradiction",
    "chains do not know of each other": "a1 0:1-10 new; a2 0:5-5 new; b1 0:5-5 new",
    # A chain's first frame here, and frames without a previous one.
    "what is older than the first frame met may still arrive": """floor=100
        a 150:151-160 new = 100 150 160; a 90:95-99 seen; a 100:101-150 new = 160""",
    "a chain that begins here has nothing below": """floor=100
        a 0:150-160 new = 160; a 120:121-130 seen""",
    "the floor concerns the frame and not its reference": """floor=100
        a 0:99-100 old; a 0:100-101 old; a 90:91-100 old; a 90:100-110 old;
        a 90:101-110 new = 110; b 0:101-101 new = 101; c 100:101-101 new = 101""",
    "without a previous message only newer than the newest is accepted": f"""{ONE_GAP};
        a 40:41-50 new; a 0:25-30 seen; a 0:35-40 old; a 0:50-51 contradiction;
        a 0:51-51 new = 51; a 0:60-61 new = 61""",
    "or the start that was overtaken": """floor=100 a 120:121-130 new = 100 120 130;
        a 0:99-120 old; a 0:105-120 new = 130; a 0:105-120 seen; b 120:121-130 new;
        b 0:105-110 new = 110 120 130; b 110:111-120 new = 130""",
    # Gaps that are dropped, and chains that are evicted.
    "the lowest gap is dropped and counts as seen": """gaps_per_chain=2
        a 0:1-10 new; a 20:21-30 new; a 40:41-50 new; a 60:61-70 new = 30 40 50 60 70;
        a 10:11-20 seen; a 30:31-40 new""",
    "a part full of gaps drops those of the chain being marked": """gaps=2
        a 20:21-30 new; a 40:41-50 new = 0 20 30 40 50; b 20:21-30 new = 30;
        a 60:61-70 new = 30 40 50 60 70; a 30:31-40 new; b 40:41-50 new = 30 40 50""",
    "an evicted chain goes on above its floor": f"""chains=1 {ONE_GAP}; b 0:1-1 new;
        a 20:21-30 old; a 10:11-20 old; a 25:26-35 old; a 40:41-50 new = 30 40 50;
        a 20:21-30 seen; a 30:31-40 new = 50""",
    "an evicted chain that was quiet goes on": """chains_per_publisher=1
        a1 0:10-10 new; a2 0:20-20 new; a3 0:30-30 new; a1 10:40-40 new = 40""",
    "making room costs the new chain no gap, and a floor never falls": """chains_per_publisher=1
        a1 0:100-100 new; a2 20:21-30 new = 0 20 30; a3 0:101-101 new; a2 0:100-100 old""",
    "a known chain needs no floor": """chains_per_publisher=2
        a1 20:21-30 new; a2 0:25-25 new; a3 0:40-40 new; a2 10:11-15 old; a1 10:11-15 new""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    bounds = {bound: int(size) for bound, size in re.findall(r"(\w+)=(\d+)", SCRIPTS[name])}
    part = Duplicates(Budget(), bounds.pop("floor", 0), Limits(**bounds))
    play(part, re.sub(r"\w+=\d+", "", SCRIPTS[name]))


def test_the_default_bounds_hold() -> None:
    part = Duplicates(Budget())
    for number in range(1, 2 * duplicates.MAX_GAPS + 5, 2):
        part.mark(key("a"), number - 1, number)
    play(part, "a 1:2-2 seen; a 5:6-6 new")
    assert part.sizes()["gaps"][0] == duplicates.MAX_GAPS - 1
    for chain in range(duplicates.MAX_CHAINS_PER_PUBLISHER + 1):
        part.mark(key(f"b{chain}"), 0, 1 + chain)
    assert len(part) == duplicates.MAX_CHAINS_PER_PUBLISHER + 1
    assert key("b0") not in part._chains


def test_the_part_evicts_the_chain_marked_longest_ago() -> None:
    part = Duplicates(Budget(), 0, Limits(chains=3))
    play(part, "a 0:9-10 new; b 0:5-5 new; c 0:5-5 new; a 10:11-11 new; d 0:5-5 new")
    assert known(part) == "c a d"
    play(part, "c 6:7-7 new; e 0:5-5 new")  # a mark that opens a gap counts
    assert known(part) == "d c e"
    play(part, "d 5:6-6 new; c 7:8-8 new; f 0:5-5 new; g 0:5-5 new")  # so does one above a gap
    assert known(part) == "c f g"
    play(part, "h 0:5-5 new")
    assert part.sizes() == {"chains": (3, 3), "gaps": (0, 200_000), "floors": (5, 20_000)}


def test_a_publisher_evicts_its_own_chain_with_the_lowest_newest_number() -> None:
    part = Duplicates(Budget(), 0, Limits(chains_per_publisher=2))
    play(part, "b 0:1-1 new; c 0:1-1 new; b1 0:30-30 new; b2 0:20-20 new; b3 0:40-40 new")
    assert known(part) == "c b1 b3"
    play(part, "b2 0:20-20 old; b2 0:20-21 old; b2 0:21-21 new; c2 0:1-1 new")


def test_too_many_floors_fold_into_that_of_the_part() -> None:
    part = Duplicates(Budget(), 0, Limits(chains=1, floors=2))
    play(part, "a 0:30-30 new; b 0:10-10 new; c 0:20-20 new; d 0:5-5 new")
    assert (part._floor, part._floors) == (10, {key("a")[:20]: 30, key("c")[:20]: 20})
    play(part, "a 0:30-30 old; b 0:10-10 old; e 0:10-10 old; e 0:11-11 new")
    assert part.sizes()["floors"] == (2, 2)  # d's newest was below the part's floor already
    part = Duplicates(Budget(), 0, Limits(chains=1, floors=8))
    play(part, ";".join(f"{who} 0:{at}-{at} new" for at, who in enumerate("abcdefghij", start=1)))
    assert (part._floor, len(part._floors)) == (2, 7)  # an eighth at once


def test_the_budget_evicts_from_the_part_that_knows_most() -> None:
    budget = Budget(4)
    large, small = Duplicates(budget), Duplicates(budget)
    play(large, "a 0:9-9 new; b 0:9-9 new; c 0:9-9 new")
    play(small, "a 0:9-9 new; b 0:9-9 new")
    assert (known(large), known(small)) == ("b c", "a b")
    play(small, "c 0:9-9 new; d 0:9-9 new")
    assert (known(large), known(small)) == ("c", "b c d")
    play(large, "a 0:9-9 old")
    assert budget.sizes() == {"chains": (4, 4)}


def test_leaving_gives_everything_back() -> None:
    budget = Budget(3)
    stays = Duplicates(budget)
    play(stays, "a 0:9-9 new")
    for _ in range(5):
        part = Duplicates(budget, 0, Limits(chains=2))
        play(part, "a 20:21-30 new; b 20:21-30 new; c 20:21-30 new")
        assert (budget.used, len(budget.parts)) == (3, 2)
        part.forget()
        part.forget()  # harmless
        assert (budget.used, budget.parts) == (1, [stays])
        assert [size for size, _ in part.sizes().values()] == [0, 0, 0]
    with pytest.raises(AssertionError):
        part.mark(key("a"), 0, 10)
    assert budget.used == 1


@pytest.mark.parametrize("settled", [(5, 10), (0, 30), (15, 25), (10, 25), (5, 15), (25, 35)])
def test_marking_what_is_not_new_fails_and_changes_nothing(settled: tuple[int, int]) -> None:
    part = Duplicates(Budget())
    play(part, ONE_GAP)
    before = insides(part)
    with pytest.raises(AssertionError):
        part.mark(key("a"), *settled)
    assert insides(part) == before


# The twin: every number that may still be new is written down, one by one, up to END.

END = 24


class TwinChain:
    """One chain of the twin."""

    def __init__(self, floor: int) -> None:
        self.unseen = set(range(floor + 1, END + 1))
        self.newest = 0

    def gaps(self) -> list[list[int]]:
        """Find the runs of unseen numbers below the newest."""
        runs: list[list[int]] = []
        for number in sorted(n for n in self.unseen if n < self.newest):
            if number - 1 not in self.unseen:
                runs.append([])
            runs[-1].append(number)
        return runs

    def stored(self) -> int | list[int]:
        """Say what the detector should store of this."""
        edges = [edge for run in self.gaps() for edge in (run[0] - 1, run[-1])]
        return [*edges, self.newest] if edges else self.newest


class Twin:
    """The rules at the top of duplicates.py, as literally as possible."""

    def __init__(self, node: list["Twin"], budget: int, floor: int, limits: Limits) -> None:
        self.node, self.budget, self.floor, self.limits = node, budget, floor, limits
        self.chains: dict[bytes, TwinChain] = {}  # in the order of the last mark
        self.floors: dict[bytes, int] = {}
        node.append(self)

    def check(self, name: bytes, previous: int, first: int, last: int) -> Verdict:
        if previous >= first or first > last:
            return Verdict.CONTRADICTION
        if name not in self.chains:
            return Verdict.NEW if first > self.floor_of(name) else Verdict.TOO_OLD
        chain = self.chains[name]
        if previous == 0:
            if last > chain.newest:
                return Verdict.NEW if first > chain.newest else Verdict.CONTRADICTION
            if set(range(first, last + 1)) <= set(next(iter(chain.gaps()), [])):
                return Verdict.NEW
            return Verdict.TOO_OLD if last in chain.unseen else Verdict.SEEN
        settles = set(range(previous + 1, last + 1))
        if settles <= chain.unseen:
            return Verdict.NEW
        return Verdict.CONTRADICTION if settles & chain.unseen else Verdict.SEEN

    def mark(self, name: bytes, previous: int, last: int) -> None:
        chain = self.chains.pop(name, None)
        if chain is None:
            chain = TwinChain(self.floor_of(name))
            self.make_room(name[:20])
        self.chains[name] = chain
        chain.unseen.difference_update(range(previous + 1, last + 1))
        chain.newest = max(chain.newest, last)
        while len(chain.gaps()) > self.limits.gaps_per_chain or self.gaps() > self.limits.gaps:
            chain.unseen.difference_update(chain.gaps()[0])

    def make_room(self, publisher: bytes) -> None:
        siblings = [name for name in self.chains if name[:20] == publisher]
        if len(siblings) == self.limits.chains_per_publisher:
            self.evict(min(siblings, key=lambda name: (self.chains[name].newest, name)))
        if len(self.chains) == self.limits.chains:
            self.evict(next(iter(self.chains)))
        if sum(len(part.chains) for part in self.node) == self.budget:
            fullest = max(self.node, key=lambda part: len(part.chains))
            fullest.evict(next(iter(fullest.chains)))

    def evict(self, name: bytes) -> None:
        newest = self.chains.pop(name).newest
        if newest > self.floor_of(name):
            self.floors[name[:20]] = newest
        if len(self.floors) > self.limits.floors:
            self.floor = min(self.floors.values())
            self.floors = {who: low for who, low in self.floors.items() if low > self.floor}

    def floor_of(self, name: bytes) -> int:
        return max(self.floor, self.floors.get(name[:20], 0))

    def gaps(self) -> int:
        return sum(len(chain.gaps()) for chain in self.chains.values())


Arrivals = list[tuple[int, bytes, Frame]]  # which of two parts, chain, frame
KEYS = [key(publisher + chain) for publisher in "abc" for chain in "123"]
TINY = Limits(gaps_per_chain=2, gaps=3, chains_per_publisher=2, chains=3, floors=2)
FLOORS = st.integers(0, END // 2)
NUMBERS = st.integers(0, END)


def frames_of(messages: list[tuple[int, bool]]) -> list[Frame]:
    """Make an honest chain of steps from message to message, some of which start a frame."""
    frames: list[Frame] = []
    number = 0
    for step, starts in messages:
        before, number = number, number + step
        frames.append(
            (before, number, number) if starts or not frames else (*frames.pop()[:2], number)
        )
    return frames


HONEST = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=8).map(
    frames_of
)


@st.composite
def arrivals(draw: st.DrawFn, keys: list[bytes]) -> Arrivals:
    """Draw frames of honest chains, shuffled, repeated, some lost; and made up ones."""
    sent = [(name, frame) for name in keys for frame in draw(HONEST)]
    made_up = st.tuples(NUMBERS, NUMBERS, NUMBERS)
    in_order = made_up.map(lambda numbers: tuple(sorted(numbers)))
    any_frame = st.sampled_from(sent) | st.tuples(st.sampled_from(keys), in_order | made_up)
    drawn = draw(st.lists(st.tuples(st.integers(0, 1), any_frame), max_size=60))
    return [(where, name, frame) for where, (name, frame) in drawn]


@settings(max_examples=200)
@given(arrivals(KEYS[:2]), FLOORS)
def test_without_bounds_it_equals_the_twin(arriving: Arrivals, floor: int) -> None:
    part, twin = Duplicates(Budget(), floor), Twin([], 1_000, floor, Limits())
    for _, name, frame in arriving:
        assert offer(part, name, *frame) is offer(twin, name, *frame)
    for name in KEYS[:3]:
        for last in range(1, END + 1):
            for previous in range(last):
                for first in {previous + 1, last}:
                    frame = (previous, first, last)
                    assert part.check(name, *frame) is twin.check(name, *frame), (name, frame)


@given(HONEST, st.data())
def test_an_honest_chain_met_from_its_start_is_taken_once_and_whole(
    frames: list[Frame], data: st.DataObject
) -> None:
    part = Duplicates(Budget())
    met: set[Frame] = set()
    for frame in [frames[0], *data.draw(st.lists(st.sampled_from(frames))), *frames]:
        assert offer(part, KEYS[0], *frame) is (Verdict.SEEN if frame in met else Verdict.NEW)
        met.add(frame)
    assert part._chains == {KEYS[0]: frames[-1][2]}


@settings(max_examples=300)
@given(arrivals(KEYS), FLOORS)
def test_with_tiny_bounds_it_equals_the_twin_and_keeps_its_promise(
    arriving: Arrivals, floor: int
) -> None:
    budget = Budget(4)
    parts = [Duplicates(budget, floor, TINY), Duplicates(budget, 0, TINY)]
    node: list[Twin] = []
    twins = [Twin(node, 4, floor, TINY), Twin(node, 4, 0, TINY)]
    settled: dict[tuple[int, bytes], set[int]] = {}
    for where, name, (previous, first, last) in arriving:
        verdict = offer(parts[where], name, previous, first, last)
        assert verdict is offer(twins[where], name, previous, first, last)
        if verdict is Verdict.NEW:
            before = settled.setdefault((where, name), set())
            assert before.isdisjoint(range(first, last + 1)), "new twice"
            before.update(range(previous + 1, last + 1))
        for part, twin in zip(parts, twins, strict=True):
            assert_sound(part)
            assert list(part._chains.items()) == [(n, c.stored()) for n, c in twin.chains.items()]
            assert (part._floor, part._floors) == (twin.floor, twin.floors)
        assert budget.used == sum(map(len, parts)) <= budget.limit


def assert_sound(part: Duplicates) -> None:
    """Compare the counters with what they count, and all of it with the bounds."""
    assert all(size <= bound for size, bound in part.sizes().values())
    assert part._keys == sorted(part._chains)
    lists = [edges for edges in part._chains.values() if isinstance(edges, list)]
    assert all(len(edges) % 2 == 1 and edges == sorted(set(edges)) for edges in lists)
    assert all(1 <= len(edges) // 2 <= TINY.gaps_per_chain for edges in lists)
    assert part._gaps == sum(len(edges) // 2 for edges in lists)
    publishers = [name[:20] for name in part._chains]
    assert all(publishers.count(who) <= TINY.chains_per_publisher for who in publishers)


@given(arrivals(KEYS), arrivals(KEYS), st.integers(1, 30))
def test_checking_changes_nothing_and_leaving_gives_back(
    arriving: Arrivals, asked: Arrivals, every: int
) -> None:
    budget = Budget(4)
    parts = [Duplicates(budget, 0, TINY), Duplicates(budget, 0, TINY)]
    for count, (where, name, frame) in enumerate(arriving):
        if count % every == 0:
            parts[where].forget()
            parts[where] = Duplicates(budget, 0, TINY)
        offer(parts[where], name, *frame)
        assert budget.used == sum(map(len, parts)) <= budget.limit
        assert len(budget.parts) == 2
    before = [insides(part) for part in parts]
    for where, name, frame in asked:
        parts[where].check(name, *frame)
    assert [insides(part) for part in parts] == before
    for part in parts:
        part.forget()
    assert (budget.used, budget.parts) == (0, [])
