"""Storage nodes and neighbours that are busy: what they have is asked for until they have time."""

from typing import Any

import pytest

from anabranch.core.links import PATIENCE
from anabranch.core.machine import Open
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import Selection
from anabranch.core.replay import MAX_ROUNDS, ROUND_S
from anabranch.core.resends import BUSY_FOR_S
from anabranch.core.storage_resends import MAX_PAGES_PER_PEER
from anabranch.core.subscription import GAP_WAIT_S, NOT_FOUND
from machines import PART, SIGNERS, START, Chain
from reading_world import (
    BUSY,
    DEAD,
    EMPTY,
    FORGES,
    GOOD,
    KEEPERS,
    NEIGHBOURS,
    Application,
    ReadingWorld,
    numbers_of,
)

LOOK_UP_S = 0.05


class _Strained(ReadingWorld):
    """Storage nodes that look few pages up at once, as storage_resends.py does."""

    most = MAX_PAGES_PER_PEER

    def __init__(self, *kinds: str, **options: Any) -> None:
        self.looking_up: dict[bytes, int] = {}
        self.turned_away = 0
        super().__init__(*kinds, **options)

    def _answer(self, node: Any, asked: Resend) -> None:
        if self.looking_up.get(node, 0) >= self.most:
            self.turned_away += 1
            self.hear(node, Resent(asked.ticket, problem=BUSY))
            return
        self.looking_up[node] = self.looking_up.get(node, 0) + 1
        self.later(LOOK_UP_S, lambda: self._found(node, asked))

    def _found(self, node: Any, asked: Resend) -> None:
        self.looking_up[node] -= 1
        super()._answer(node, asked)


def lose_one_of_each(world: ReadingWorld, count: int) -> list[bytes]:
    """Let three frames of so many chains be stored, and the one in the middle never come."""
    chains = [Chain(SIGNERS[5 + i % 8], PART, i + 1) for i in range(count)]
    rows = [[chain.frame(at=world.now + i / 10) for chain in chains] for i in range(3)]
    world.keep(*rows[0], *rows[1], *rows[2])
    world.come(*rows[0], *rows[2])
    return [frame for row in rows for frame in row]


@pytest.mark.parametrize("most", [MAX_PAGES_PER_PEER, 2])
@pytest.mark.parametrize("keepers", [1, 2])
def test_many_gaps_at_once_are_all_filled(most: int, keepers: int) -> None:
    world = _Strained(*[GOOD] * keepers)
    world.most = most
    app = world.open()
    frames = lose_one_of_each(world, 150)
    world.run(BUSY_FOR_S)
    assert sorted(app.numbers) == sorted(numbers_of(*frames))
    assert app.missed() == []
    assert (world.turned_away > 0) is (most == 2)
    assert len(world.asked) < PATIENCE


@pytest.mark.parametrize("most", [MAX_PAGES_PER_PEER, 2])
def test_many_histories_at_once_are_all_read(most: int) -> None:
    world, chain = _Strained(GOOD), Chain(SIGNERS[5])
    world.most = most
    frames = [chain.frame(at=START - 100 + i) for i in range(5)]
    world.keep(*frames)
    world.apps = {ticket: Application() for ticket in range(1, 61)}
    effects = []
    for ticket in world.apps:  # as one who reads many parts does
        opened = Open(ticket, PART, Selection(by_number=True), live=False)
        effects += world.reader.tell(opened, world.now)
    world.perform(effects)
    world.run(BUSY_FOR_S)
    assert all(app.ended == [""] for app in world.apps.values())
    assert all(app.numbers == numbers_of(*frames) for app in world.apps.values())
    world.end()


def turn_good(world: ReadingWorld) -> None:
    world.kinds = dict.fromkeys(world.kinds, GOOD)


@pytest.mark.parametrize("kinds", [(BUSY,), (BUSY, BUSY), (BUSY, DEAD)])
def test_a_gap_is_not_given_up_while_all_who_may_fill_it_are_busy(kinds: tuple[str, ...]) -> None:
    world = ReadingWorld(*kinds, neighbours=1)
    app = world.open()
    frames = lose_one_of_each(world, 1)
    world.later(BUSY_FOR_S - 5, lambda: turn_good(world))
    world.run(BUSY_FOR_S + 1)
    assert app.numbers == numbers_of(*frames)
    assert app.missed() == []


def test_in_the_end_it_is_given_up_all_the_same() -> None:
    world = ReadingWorld(BUSY)
    app = world.open()
    lose_one_of_each(world, 1)
    world.run(GAP_WAIT_S + BUSY_FOR_S)
    assert app.missed() == []
    world.run(30.0)
    assert app.reasons == [NOT_FOUND]
    world.end()


def test_one_that_is_busy_is_no_reason_to_wait_if_another_has_it_not() -> None:
    world = ReadingWorld(BUSY, EMPTY)
    app = world.open()
    lose_one_of_each(world, 1)
    world.later(BUSY_FOR_S / 2, lambda: turn_good(world))  # there is one last attempt, of all
    world.run(BUSY_FOR_S)
    assert app.missed() == []
    asked = [node for node, _ in world.asked_for("gaps")]
    assert asked.count(KEEPERS[1]) > 5


class _Sparing(ReadingWorld):
    """A neighbour that lends only so much in a second."""

    def __init__(self, *kinds: str, **options: Any) -> None:
        self.left = 20
        super().__init__(*kinds, **options)
        self.later(1.0, self._earn)

    def _earn(self) -> None:
        self.left = 20
        self.later(1.0, self._earn)

    def _answer(self, node: Any, asked: Resend) -> None:
        self.left -= 1
        if node in NEIGHBOURS and self.left < 0:
            self.hear(node, Resent(asked.ticket, problem=BUSY))
        else:
            super()._answer(node, asked)


def test_neighbours_may_be_busy_as_well() -> None:
    world = _Sparing(neighbours=1)
    app = world.open()
    frames = lose_one_of_each(world, 200)
    world.recent += frames
    world.run(30.0)
    assert sorted(app.numbers) == sorted(numbers_of(*frames))
    assert app.missed() == []


def history(world: ReadingWorld) -> tuple[Application, list[bytes]]:
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 100 + i) for i in range(5)]
    world.keep(*frames)
    return world.open(history=Selection(), live=False), frames


@pytest.mark.parametrize("kinds", [(BUSY,), (BUSY, DEAD), (BUSY, FORGES), (BUSY, BUSY, BUSY)])
def test_a_history_waits_for_those_who_are_busy(kinds: tuple[str, ...]) -> None:
    world = ReadingWorld(*kinds)
    app, frames = history(world)
    world.later(BUSY_FOR_S - 5, lambda: turn_good(world))
    world.run(BUSY_FOR_S + 1)
    assert (app.numbers, app.ended) == (numbers_of(*frames), [""])


@pytest.mark.parametrize("kinds", [(BUSY,), (BUSY, BUSY), (DEAD, BUSY)])
def test_but_not_for_ever(kinds: tuple[str, ...]) -> None:
    world = ReadingWorld(*kinds)
    app, _ = history(world)
    world.run(BUSY_FOR_S - 1)
    assert app.ended == []
    world.run(1 + (MAX_ROUNDS + 1) * ROUND_S)
    assert len(app.ended) == 1
    assert app.ended[0]
    world.end()
