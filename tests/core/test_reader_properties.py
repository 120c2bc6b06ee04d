"""Every message that can be had, once and in order, whatever happens; Missed for the rest."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.messages.storage import Selection
from machines import SIGNERS, START, Chain
from reading_world import (
    BUSY,
    DEAD,
    EMPTY,
    GOOD,
    LIARS,
    SILENT,
    ReadingWorld,
    check_order,
)

KINDS = (GOOD, DEAD, SILENT, BUSY, EMPTY, *LIARS)
FOR_A_LONG_TIME_S = 400.0

# What becomes of a frame: whether it comes live, how much later than it should, and who keeps it.
Fate = tuple[bool, int, bool, bool]
FATES = st.tuples(st.booleans(), st.integers(0, 40), st.booleans(), st.booleans())


def publish(count: int, fates: list[Fate], at: float) -> list[tuple[Chain, bytes, Fate]]:
    """Let publishers publish in turn."""
    chains = [Chain(SIGNERS[20 + i]) for i in range(count)]
    made = []
    for turn, fate in enumerate(fates):
        chain = chains[turn % count]
        content = [b"x"] * (1 + turn % 3)
        made.append((chain, chain.frame(*content, at=at + turn * 0.1), fate))
    return made


def check(app: Any, made: list[tuple[Chain, bytes, Fate]], had: set[bytes]) -> None:
    for chain in dict.fromkeys(chain for chain, _, _ in made):
        check_order(app, [frame for each, frame, _ in made if each is chain], had)


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), max_size=5),
    neighbours=st.integers(0, 3),
    count=st.integers(1, 3),
    fates=st.lists(FATES, min_size=1, max_size=30),
    seed=st.integers(0, 9),
)
def test_what_comes_live_is_completed(
    kinds: list[str], neighbours: int, count: int, fates: list[Fate], seed: int
) -> None:
    world = ReadingWorld(*kinds, neighbours=neighbours, page_bytes=500, seed=seed)
    readers = [world.open(1), world.open(2)]
    came = (True, 0, False, False)
    made = publish(count, [came] * count + fates + [came] * count, START)
    for turn, (_, frame, (comes, late, is_kept, is_lent)) in enumerate(made):
        if comes:
            world.later(turn * 0.1 + late * 0.05, lambda frame=frame: world.come(frame))
        if is_kept:
            world.keep(frame)
        if is_lent:
            world.recent.append(frame)
    world.run(FOR_A_LONG_TIME_S)
    had = {
        frame
        for _, frame, (comes, _, is_kept, is_lent) in made
        if comes or (is_kept and GOOD in kinds) or (is_lent and neighbours)
    }
    for app in readers:
        check(app, made, had)
    world.end()


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.sampled_from((GOOD, DEAD, SILENT, BUSY, *LIARS)), min_size=1, max_size=4),
    count=st.integers(1, 3),
    past=st.lists(st.integers(0, 4), max_size=30),
    fates=st.lists(FATES, max_size=20),
    by_number=st.booleans(),
    drain_s=st.sampled_from((0.0, 0.3)),
    seed=st.integers(0, 9),
)
def test_history_goes_over_into_what_is_live(
    kinds: list[str],
    count: int,
    past: list[int],
    fates: list[Fate],
    by_number: bool,
    drain_s: float,
    seed: int,
) -> None:
    kinds = [*kinds, GOOD]
    world = ReadingWorld(*kinds, page_bytes=500, seed=seed)
    world.drain_s = drain_s
    stored, came = (False, 0, True, False), (True, 0, False, False)
    olds, news = len(past) + count, len(fates) + count
    made = publish(count, [stored] * olds + fates + [came] * count, START - 0.1 * olds)
    # In the log they lie in another order than that in which they were published.
    places = sorted(range(olds), key=lambda at: at + (past[at] if at < len(past) else 0))
    world.keep(*(made[at][1] for at in places))
    app = world.open(history=Selection(by_number=by_number))
    for turn, (_, frame, (comes, late, is_kept, _)) in enumerate(made[olds:]):
        if comes:
            world.later(turn * 0.1 + late * 0.05, lambda frame=frame: world.come(frame))
        if is_kept:
            world.later(turn * 0.1 + 0.01, lambda frame=frame: world.keep(frame))
    world.run(FOR_A_LONG_TIME_S)
    assert app.ended == [""]
    assert news
    check(app, made, {frame for _, frame, (comes, _, kept, _) in made if comes or kept})
    world.end()
