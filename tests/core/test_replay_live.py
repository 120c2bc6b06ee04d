"""History while messages come live: what was before, and then what is live, once each."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import held_live
from anabranch.core.messages.storage import Selection
from anabranch.core.replay import MAX_RECOUNTS
from anabranch.sim.stores import MemoryStore
from machines import SIGNERS, START, Chain
from reading_world import GOOD, ReadingWorld, numbers_of

LONG_S = 60.0


def publish(world: ReadingWorld, frame: bytes) -> None:
    """Let a frame come live, and be stored."""
    world.come(frame)
    world.keep(frame)


def test_what_comes_live_meanwhile_waits_and_joins_on() -> None:
    world, chain = ReadingWorld(GOOD, page_bytes=1), Chain(SIGNERS[9])
    frames = [chain.frame(b"x", b"y", at=START - 100 + i) for i in range(4)]
    live = [chain.frame(at=START + i) for i in range(3)]
    world.keep(*frames)
    app = world.open(history=Selection())
    world.come(live[0])
    assert app.numbers == []
    world.keep(live[0])
    world.come(live[1])
    world.run(LONG_S)
    world.come(live[2])
    assert app.numbers == numbers_of(*frames, *live)
    assert app.missed() == []


def test_what_lies_between_is_asked_for_at_once() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 10 + i) for i in range(4)]
    world.keep(*frames[:2])
    app = world.open(history=Selection())
    world.come(frames[3])
    world.later(0.05, lambda: world.keep(frames[2]))
    world.run(1.0)  # less than what is missing usually waits
    assert app.numbers == numbers_of(*frames)


def test_what_is_live_and_has_no_room_is_fetched_afterwards(monkeypatch: Any) -> None:
    monkeypatch.setattr(held_live, "MAX_WAITING_FRAMES", 3)
    world, chain, quiet = ReadingWorld(GOOD), Chain(SIGNERS[9]), Chain(SIGNERS[8])
    frames = [chain.frame(at=START - 100 + i) for i in range(4)]
    silent = quiet.frame(at=START - 50)
    world.keep(*frames, silent)
    world.rtt_s = 0.3
    app = world.open(history=Selection(end=5))
    live = [quiet.frame(), *(chain.frame(at=START + i) for i in range(8))]
    world.come(*live)
    world.later(0.5, lambda: world.keep(*live))
    assert world.reader.sizes()["live frames before the history"] == (3, 3)
    assert world.reader.sizes()["live chains before the history"][0] == 2
    world.run(LONG_S)
    assert sorted(app.numbers) == sorted(numbers_of(*frames, silent, *live))
    assert app.missed() == []


def test_without_filling_the_history_comes_as_it_is_and_nothing_twice() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 10 + i) for i in range(6)]
    world.keep(frames[1], frames[0], frames[3])
    app = world.open(history=Selection(), fills=False)
    world.come(frames[3], frames[5])
    world.run(1.0)
    world.come(frames[4])
    assert app.numbers == numbers_of(*(frames[i] for i in (0, 1, 3, 5, 4)))


# --- The last so many, and then what is live ------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    live=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 80)), max_size=MAX_RECOUNTS),
    last=st.integers(1, 12),
    page_bytes=st.sampled_from((1, 500, 100_000)),
)
def test_what_comes_live_is_not_among_the_last(
    sizes: list[int], live: list[tuple[int, int]], last: int, page_bytes: int
) -> None:
    world, chain = ReadingWorld(GOOD, page_bytes=page_bytes), Chain(SIGNERS[9])
    frames = [chain.frame(*[b"x"] * size, at=START - 100 + i) for i, size in enumerate(sizes)]
    world.keep(*frames)
    app = world.open(history=Selection(last=last, by_number=True))
    news = []
    for size, after_ms in sorted(live, key=lambda each: each[1]):
        news.append(chain.frame(*[b"y"] * size, at=START + after_ms / 1000))
        world.later(after_ms / 1000, lambda frame=news[-1]: publish(world, frame))  # type: ignore[misc]
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)[-last:] + numbers_of(*news)
    assert app.missed() == []
    assert app.ended == [""]
    world.end()


def test_where_there_are_no_more_they_are_counted_once() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 100 + i) for i in range(3)]
    world.keep(*frames)
    app = world.open(history=Selection(last=5, by_number=True))
    publish(world, news := chain.frame())
    world.run(LONG_S)
    assert len([wanted for _, wanted in world.asked_for("pages") if wanted.last]) == 1
    assert app.numbers == numbers_of(*frames, news)
    assert app.missed() == []


def test_where_messages_keep_coming_they_are_not_counted_for_ever() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 100 + i) for i in range(50)]
    news = [chain.frame(at=START + i / 200) for i in range(100)]
    world.keep(*frames)
    app = world.open(history=Selection(last=10, by_number=True))
    for at, frame in enumerate(news):
        world.later(at / 200, lambda frame=frame: publish(world, frame))  # type: ignore[misc]
    world.run(LONG_S)
    assert (
        len([wanted for _, wanted in world.asked_for("pages") if wanted.last]) == 1 + MAX_RECOUNTS
    )
    before = len(app.numbers) - len(news)
    assert 0 < before <= 10
    assert app.numbers == numbers_of(*frames[-before:], *news)
    assert app.missed() == []


def test_a_storage_node_that_lacks_what_is_live_gives_no_more_than_was_wanted() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(b"x", b"y", at=START - 100 + i) for i in range(10)]
    news = [chain.frame(b"z", at=START + i) for i in range(4)]
    world.keep(*frames)
    app = world.open(history=Selection(last=5, by_number=True))
    for frame in news:
        publish(world, frame)

    def lack() -> None:
        assert len(world.asked_for("pages")) == 2
        world.store = MemoryStore()
        world.keep(*frames)

    world.later(2.5 * world.rtt_s, lack)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)[-5:] + numbers_of(*news)
    assert app.missed() == []


def test_what_came_live_and_is_forgotten_is_not_among_the_last(monkeypatch: Any) -> None:
    monkeypatch.setattr(held_live, "MAX_WAITING_FRAMES", 2)
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    frames = [chain.frame(at=START - 100 + i) for i in range(10)]
    news = [chain.frame(at=START + i / 100) for i in range(5)]
    world.keep(*frames)
    app = world.open(history=Selection(last=3, by_number=True))
    for frame in news:
        publish(world, frame)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames[-3:], *news)
    assert app.missed() == []
