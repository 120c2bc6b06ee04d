"""History from storage nodes whose disks are damaged: never short without a word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.frames import peek
from anabranch.core.messages.storage import Selection
from machines import SIGNERS, START, Chain
from reading_world import DEAD, FORGES, GOOD, SILENT, Application, ReadingWorld, numbers_of

LONG_S = 90.0
SELECTIONS = [
    Selection(),
    Selection(by_number=True),
    Selection(start=5, end=33),
    Selection(last=20),
    Selection(last=9, by_number=True),
    Selection(last=7, whose=bytes(SIGNERS[20].node)),
    Selection(whose=bytes(SIGNERS[21].node)),
]


def past(count: int) -> list[bytes]:
    makers = [Chain(SIGNERS[20]), Chain(SIGNERS[21])]
    return [makers[i % 2].frame(*[b"x"] * (1 + i % 3), at=START - 1_000 + i) for i in range(count)]


def span_of(frames: list[bytes], at: int) -> tuple[int, int]:
    start = sum(peek(frame).count for frame in frames[:at])
    return start, start + peek(frames[at]).count


def read(world: ReadingWorld, history: Selection) -> Application:
    app = world.open(history=history, live=False)
    world.run(LONG_S)
    assert len(app.ended) == 1
    world.end()
    return app


@pytest.mark.parametrize("page_bytes", [1, 700, 100_000])
@pytest.mark.parametrize("wanted", SELECTIONS)
def test_what_one_node_lacks_comes_from_another(wanted: Selection, page_bytes: int) -> None:
    frames = past(30)
    whole = ReadingWorld(GOOD, page_bytes=page_bytes)
    whole.keep(*frames)
    expected = read(whole, wanted)
    for seed in range(3):
        world = ReadingWorld(GOOD, GOOD, GOOD, page_bytes=page_bytes, seed=seed)
        world.keep(*frames)
        world.damage(0, *frames[::2])
        world.damage(1, *frames[:9])
        app = read(world, wanted)
        assert (app.ended, app.lost) == ([""], [])
        assert app.numbers == expected.numbers


def test_offsets_are_read_whole_where_each_node_lacks_something_else() -> None:
    frames = past(30)
    world = ReadingWorld(GOOD, GOOD, GOOD, page_bytes=700)
    world.keep(*frames)
    for place in range(3):
        world.damage(place, *frames[place::3])
    app = read(world, Selection())
    assert (app.ended, app.numbers) == ([""], numbers_of(*frames))


@pytest.mark.parametrize("kinds", [(GOOD,), (GOOD, GOOD), (GOOD, DEAD), (SILENT, GOOD, DEAD)])
def test_what_all_lack_is_named_with_its_offsets(kinds: tuple[str, ...]) -> None:
    frames = past(30)
    world = ReadingWorld(*kinds, page_bytes=700)
    world.keep(*frames)
    for place in range(len(kinds)):
        world.damage(place, frames[4], frames[5], frames[20])
    app = read(world, Selection())
    lost = [(span_of(frames, 4)[0], span_of(frames, 5)[1]), span_of(frames, 20)]
    assert app.lost == lost
    count = sum(end - start for start, end in lost)
    assert app.ended[0].startswith(f"{count} messages, at offsets {lost[0][0]} to {lost[0][1] - 1}")
    kept = [frame for at, frame in enumerate(frames) if at not in (4, 5, 20)]
    assert sorted(app.numbers) == numbers_of(*kept), "a chain goes on after its gap was waited for"


def test_a_range_names_only_what_lies_within_it() -> None:
    frames = past(30)
    world = ReadingWorld(GOOD)
    world.keep(*frames)
    world.damage(0, frames[2], frames[8], frames[29])
    (low, end), (_, beyond) = span_of(frames, 8), span_of(frames, 28)
    assert read(world, Selection(start=end - 1, end=beyond)).lost == [(end - 1, end)]
    world = ReadingWorld(GOOD)
    world.keep(*frames)
    world.damage(0, frames[8])
    assert read(world, Selection(end=low)).lost == []


def test_many_holes_beside_a_dead_node_do_not_each_wait_for_it() -> None:
    frames = past(60)
    world = ReadingWorld(GOOD, SILENT)
    world.keep(*frames)
    world.damage(0, *frames[::2])
    app = read(world, Selection())
    assert len(app.lost) == 30
    assert sorted(app.numbers) == numbers_of(*frames[1::2])


def test_by_time_what_all_lack_is_named_though_its_times_are_not_known() -> None:
    frames = past(30)
    world = ReadingWorld(GOOD, GOOD)
    world.keep(*frames)
    for place in range(2):
        world.damage(place, frames[4])
    app = read(world, Selection(by_number=True))
    assert app.lost == [span_of(frames, 4)]
    assert app.ended != [""]


def test_a_node_that_claims_damage_where_there_is_none_hides_nothing() -> None:
    frames = past(30)
    world = ReadingWorld(GOOD, GOOD)
    world.keep(*frames)
    world.damage(0, *frames)
    for wanted in SELECTIONS:
        world.own[next(iter(world.kinds))].states()
        app = world.open(history=wanted, live=False)
        world.run(LONG_S)
        assert (app.ended, app.lost) == ([""], [])
        world.close()


def test_by_time_pages_are_joined_where_each_node_lacks_something_else() -> None:
    frames = past(30)
    for page_bytes in (1, 700, 100_000):
        world = ReadingWorld(GOOD, GOOD, GOOD, page_bytes=page_bytes)
        world.keep(*frames)
        for place in range(3):
            world.damage(place, *frames[place::3])
        app = read(world, Selection(by_number=True))
        assert (app.ended, app.lost) == ([""], [])
        assert app.numbers == numbers_of(*frames)


def test_by_time_a_node_that_claims_damage_and_forges_hides_nothing_of_joined_pages() -> None:
    frames = past(30)
    world = ReadingWorld(GOOD, FORGES, GOOD, page_bytes=700)
    world.keep(*frames)
    for place, at in ((0, 4), (1, 9), (2, 14)):
        world.damage(place, frames[at])
    app = read(world, Selection(by_number=True))
    assert set(numbers_of(*frames)) == set(app.numbers)


@settings(max_examples=40)
@given(data=st.data())
def test_by_time_every_message_comes_unless_all_nodes_lack_it(data: st.DataObject) -> None:
    frames = past(data.draw(st.integers(1, 25)))
    nodes = data.draw(st.integers(1, 3))
    page_bytes = data.draw(st.sampled_from([1, 500, 3_000]))
    world = ReadingWorld(*[GOOD] * nodes, page_bytes=page_bytes, seed=data.draw(st.integers(0, 9)))
    world.keep(*frames)
    places = st.sets(st.sampled_from(range(len(frames))))
    lost = [data.draw(places) for _ in range(nodes)]
    for place, those in enumerate(lost):
        world.damage(place, *[frames[at] for at in sorted(those)])
    app = read(world, Selection(by_number=True))
    everywhere = set.intersection(*lost)
    kept = [frame for at, frame in enumerate(frames) if at not in everywhere]
    assert sorted(app.numbers) == numbers_of(*kept)
    named = {offset for low, high in app.lost for offset in range(low, high)}
    assert named == {n for at in everywhere for n in range(*span_of(frames, at))}
    assert bool(app.ended[0]) == bool(everywhere)


@settings(max_examples=40)
@given(data=st.data())
def test_every_message_comes_or_is_named(data: st.DataObject) -> None:
    frames = past(data.draw(st.integers(1, 25)))
    nodes = data.draw(st.integers(1, 3))
    page_bytes = data.draw(st.sampled_from([1, 500, 3_000]))
    world = ReadingWorld(*[GOOD] * nodes, page_bytes=page_bytes, seed=data.draw(st.integers(0, 9)))
    world.keep(*frames)
    places = st.sets(st.sampled_from(range(len(frames))))
    lost = [data.draw(places) for _ in range(nodes)]
    for place, those in enumerate(lost):
        world.damage(place, *[frames[at] for at in sorted(those)])
    length = sum(peek(frame).count for frame in frames)
    start = data.draw(st.integers(0, length - 1))
    end = data.draw(st.integers(start + 1, length + 5))
    app = read(world, Selection(start=start, end=end))
    everywhere = set.intersection(*lost)
    offset, wanted, missing = 0, [], set()
    for at, frame in enumerate(frames):
        for number in numbers_of(frame):
            if start <= offset < end and at in everywhere:
                missing.add(offset)
            elif start <= offset < end:
                wanted.append(number)
            offset += 1
    assert sorted(app.numbers) == wanted
    assert {offset for low, high in app.lost for offset in range(low, high)} == missing
