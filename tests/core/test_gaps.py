"""What is missing is asked for: of whom, when, how often."""

from itertools import pairwise

import pytest

from anabranch.core.frames import peek
from anabranch.core.gaps import AGAIN_S, MAX_EMPTY_PAGES
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import Selection
from anabranch.core.subscription import GAP_WAIT_S, MAX_ATTEMPTS, NOT_FOUND
from machines import SIGNERS, START, Chain
from reading_world import (
    BUSY,
    DEAD,
    EMPTY,
    GOOD,
    KEEPERS,
    LIARS,
    MIXES,
    NEIGHBOURS,
    SILENT,
    ReadingWorld,
    numbers_of,
)

LONG_S = 60.0


def lose(world: ReadingWorld, count: int = 3, lost: tuple[int, ...] = (1,)) -> list[bytes]:
    """Let frames of a chain come, but for some."""
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=world.now + i / 1000) for i in range(count)]
    world.come(*(frame for at, frame in enumerate(frames) if at not in lost))
    return frames


def test_what_is_late_is_not_asked_for() -> None:
    world = ReadingWorld(GOOD)
    app = world.open()
    frames = lose(world)
    world.later(GAP_WAIT_S - 0.1, lambda: world.come(frames[1]))
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
    assert world.asked_for("gaps") == []
    assert world.reader.sizes()["gaps asked for"][0] == 0


def test_what_is_missing_for_long_enough_is_asked_of_a_storage_node() -> None:
    world = ReadingWorld(GOOD)
    app = world.open()
    frames = lose(world, 6, (1, 2, 4))
    world.keep(*frames)
    world.run(GAP_WAIT_S)
    assert app.numbers == numbers_of(frames[0])
    world.run(0.1)
    assert app.numbers == numbers_of(*frames)
    whose, lasts = peek(frames[0]).chain, [peek(frame).last for frame in frames]
    wanted = Selection(after=lasts[0], upto=lasts[4], whose=bytes(whose), by_number=True)
    assert world.asked_for("gaps") == [(KEEPERS[0], wanted)]


def test_each_time_another_is_asked_and_then_a_neighbour() -> None:
    world = ReadingWorld(EMPTY, EMPTY, EMPTY, neighbours=2)
    app = world.open()
    frames = lose(world)
    times: list[float] = []
    for tenth in range(400):
        if tenth == 155:  # before the last attempt, in which all are asked
            world.recent.append(frames[1])
        before = len(world.asked_for("gaps"))
        world.run(0.1)
        times += [world.now] * (len(world.asked_for("gaps")) - before)
    nodes = [node for node, _ in world.asked_for("gaps")]
    pairs = nodes[: 2 * (MAX_ATTEMPTS - 1)]
    kept, neighbours = pairs[::2], pairs[1::2]
    assert kept[0] != kept[1] != kept[2] != kept[0]
    assert kept[:2] == kept[3:5]
    assert all(a != b for a, b in pairwise(neighbours))
    assert {*neighbours} == {*NEIGHBOURS[:2]}
    assert len(nodes) == len(pairs) + 3 + 1  # the last time all, until a neighbour had it
    assert nodes[-1] in NEIGHBOURS
    spaces = [b - a for a, b in pairwise(times[: len(pairs) : 2])]
    assert all(AGAIN_S - 0.11 < space < AGAIN_S + 0.11 for space in spaces)
    assert app.numbers == numbers_of(*frames)
    assert app.missed() == []


def test_after_the_last_attempt_it_is_missed() -> None:
    world = ReadingWorld(EMPTY, neighbours=1)
    app = world.open()
    frames = lose(world)
    world.run(GAP_WAIT_S + (MAX_ATTEMPTS - 1) * AGAIN_S - 0.1)
    assert app.numbers == numbers_of(frames[0])
    world.run(0.5)
    assert app.numbers == numbers_of(frames[0], frames[2])
    assert app.missed() == [(peek(frames[0]).last, peek(frames[2]).first)]
    assert app.reasons == [NOT_FOUND]
    assert [node for node, _ in world.asked_for("gaps")].count(KEEPERS[0]) == MAX_ATTEMPTS


@pytest.mark.parametrize("kind", [DEAD, BUSY, *LIARS])
def test_one_that_is_no_good_is_passed_over_at_once(kind: str) -> None:
    for seed in range(4):
        world = ReadingWorld(kind, GOOD, seed=seed)
        app = world.open()
        frames = lose(world)
        world.keep(*frames)
        world.run(GAP_WAIT_S + 0.5)
        assert app.numbers == numbers_of(*frames)


def test_one_that_does_not_answer_is_passed_over_in_time() -> None:
    for seed in range(4):
        world = ReadingWorld(SILENT, SILENT, GOOD, seed=seed)
        app = world.open()
        frames = lose(world)
        world.keep(*frames)
        world.run(GAP_WAIT_S + 2 * AGAIN_S + 0.5)
        assert app.numbers == numbers_of(*frames)


def test_one_that_lied_is_not_asked_again_for_that() -> None:
    world = ReadingWorld(MIXES, EMPTY)
    world.open()
    lose(world)
    world.run(LONG_S)
    assert [node for node, _ in world.asked_for("gaps")].count(KEEPERS[0]) == 1


def test_without_storage_nodes_neighbours_are_asked_in_turn() -> None:
    world = ReadingWorld(neighbours=3)
    app = world.open()
    frames = lose(world)
    world.run(GAP_WAIT_S + 2 * AGAIN_S + 0.5)
    assert len({node for node, _ in world.asked_for("gaps")}) == len(world.asked_for("gaps")) == 3
    world.recent.append(frames[1])
    world.run(AGAIN_S)
    assert app.numbers == numbers_of(*frames)
    world.end()


def test_with_nobody_to_ask_it_is_missed_in_time() -> None:
    world = ReadingWorld()
    app = world.open()
    frames = lose(world)
    world.run(LONG_S)
    assert app.numbers == numbers_of(frames[0], frames[2])
    assert len(app.missed()) == 1


def test_what_is_so_old_that_it_will_not_come_is_missed_as_soon_as_all_have_said_so() -> None:
    world = ReadingWorld(GOOD, GOOD)
    app = world.open(history=Selection())
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 500 + i) for i in range(4)]
    world.keep(frames[0], frames[2], frames[3])
    world.run(1.0)
    assert app.numbers == numbers_of(frames[0], *frames[2:])
    assert len(app.missed()) == 1
    by_number = [node for node, _ in world.asked_for("gaps")]
    assert sorted(by_number) == sorted(KEEPERS[:2])


def test_but_not_before_all_have_said_so() -> None:
    world = ReadingWorld(GOOD, DEAD)
    app = world.open(history=Selection(), live=False)
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 500 + i) for i in range(4)]
    world.keep(frames[0], frames[2], frames[3])
    world.run(5.0)
    assert app.numbers == numbers_of(frames[0])
    world.keep(frames[1])
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)


def test_a_gap_of_many_pages_is_filled_without_pause() -> None:
    world = ReadingWorld(GOOD)
    world.page_bytes = 400
    app = world.open()
    frames = lose(world, 40, tuple(range(1, 39)))
    world.keep(*frames)
    world.run(GAP_WAIT_S + 2.0)
    assert app.numbers == numbers_of(*frames)
    assert len(world.asked_for("gaps")) > 5


class _Sparse(ReadingWorld):
    """A storage node that looks at little at a time: its first pages are empty."""

    empty = 5

    def page_of(self, asked: Resend) -> Resent:
        cursor = asked.selection.cursor
        if len(cursor) < self.empty:
            following = Selection(
                after=asked.selection.after,
                upto=asked.selection.upto,
                whose=asked.selection.whose,
                by_number=True,
                cursor=cursor + b"\0",
            )
            return Resent(asked.ticket, following=following)
        return super().page_of(asked)


def test_empty_pages_are_followed() -> None:
    world = _Sparse(GOOD)
    app = world.open()
    frames = lose(world)
    world.keep(*frames)
    world.run(GAP_WAIT_S + 1.0)
    assert app.numbers == numbers_of(*frames)


def test_but_not_for_ever() -> None:
    world = _Sparse(GOOD)
    world.empty = 10_000
    app = world.open()
    lose(world)
    world.run(LONG_S)
    assert len(app.missed()) == 1
    assert len(world.asked_for("gaps")) <= MAX_ATTEMPTS * (MAX_EMPTY_PAGES + 1)


def test_many_gaps_are_asked_for_together_and_in_peace() -> None:
    world = ReadingWorld(EMPTY)
    app = world.open()
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START + i / 2) for i in range(60)]
    for at in range(0, 60, 2):
        world.later(at / 2, lambda frame=frames[at]: world.come(frame))
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames[::2])
    assert len(app.missed()) == 29
    assert len(world.asked_for("gaps")) <= (30 + MAX_ATTEMPTS * AGAIN_S) / AGAIN_S + 2


def test_what_is_missing_next_does_not_wait_because_something_was_found() -> None:
    world = ReadingWorld(GOOD)
    app = world.open()
    chain = Chain(SIGNERS[9])
    frames = [chain.frame(at=START + i) for i in range(5)]
    world.keep(*frames)
    world.come(frames[0], frames[2])
    world.later(1.0, lambda: world.come(frames[4]))
    world.run(1.0 + GAP_WAIT_S + 0.1)
    assert app.numbers == numbers_of(*frames)


def test_those_who_do_not_answer_do_not_make_us_wait_longer() -> None:
    world = ReadingWorld(SILENT, SILENT, SILENT)
    app = world.open()
    lose(world)
    world.run(GAP_WAIT_S + (MAX_ATTEMPTS - 1 + 3) * AGAIN_S + 0.1)
    assert len(app.missed()) == 1


@pytest.mark.parametrize("kinds", [(), (DEAD,)])
def test_a_beginning_is_asked_for_in_earnest_where_there_is_storage(kinds: tuple[str, ...]) -> None:
    world = ReadingWorld(*kinds, neighbours=1)
    app = world.open()
    frames = lose(world, 2, (0,))
    world.run(GAP_WAIT_S + 1.0)
    assert app.numbers == ([] if kinds else numbers_of(frames[1]))
    world.kinds = dict.fromkeys(world.kinds, GOOD)
    world.keep(*frames)
    for node in sorted(world.held):
        world.up.add(node)
        world.perform(world.reader.link(node, True, "", world.now))
    world.run(LONG_S)
    assert app.numbers == numbers_of(*(frames if kinds else frames[1:]))
    assert app.missed() == []
