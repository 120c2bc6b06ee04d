"""What was missed at the end of a chain is found by comparing with the log; cheaply."""

import pytest

from anabranch.core import sweeps as module
from anabranch.core.messages.storage import Selection
from anabranch.core.sweeps import LAG_S, LATER_S, SOON_S, SPREAD
from machines import SIGNERS, START, Chain
from reading_world import (
    BUSY,
    DEAD,
    EMPTY,
    FORGES,
    GOOD,
    LOOPS,
    MIXES,
    NEIGHBOURS,
    SILENT,
    ReadingWorld,
    numbers_of,
)

LONG_S = 400.0
SLOW_S = SOON_S * SPREAD[1] + LAG_S + 1.0


def publish(chain: Chain, count: int = 1, at: float = START) -> list[bytes]:
    return [chain.frame(b"a", b"b", at=at + i / 10) for i in range(count)]


def test_the_last_of_a_chain_is_found_though_nothing_follows_it() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    app = world.open()
    world.run(1.0)
    before = publish(chain, 4, world.now)
    world.come(*before)
    world.keep(*before)
    world.run(100.0)
    frames = publish(chain, 4, world.now)
    world.keep(*frames)
    world.come(*frames[:2])
    world.run(LATER_S * SPREAD[1] + LAG_S + 1.0)
    assert app.numbers == numbers_of(*before, *frames)
    # The log is read from where we last agreed with it, and only what is new is looked at.
    assert [wanted.start for _, wanted in world.asked_for("pages")] == [8]
    assert world.verified == 2
    world.end()


def test_a_chain_of_which_nothing_came_is_found() -> None:
    world = ReadingWorld(GOOD)
    app, other = world.open(), world.open(2, fills=False)
    world.run(1.0)
    frames = publish(Chain(SIGNERS[9]), 3, world.now)
    world.keep(*frames)
    world.run(LATER_S * SPREAD[1] + LAG_S + 1.0)
    assert app.numbers == other.numbers == numbers_of(*frames)


def test_first_answer_that_comes_late_hides_nothing_that_was_published_before_it() -> None:
    world, old = ReadingWorld(SILENT), Chain(SIGNERS[8])
    world.keep(*publish(old, 3, START - 100))
    app = world.open()
    world.run(5.0)
    frames = publish(Chain(SIGNERS[9]), 3, world.now)
    world.keep(*frames)
    world.run(5.0)
    world.kinds = dict.fromkeys(world.kinds, GOOD)
    world.run(SLOW_S)
    assert app.numbers == numbers_of(*frames)


def test_what_was_published_before_is_not_for_us() -> None:
    world = ReadingWorld(GOOD)
    app = world.open()
    world.run(1.0)
    old, known = Chain(SIGNERS[8]), Chain(SIGNERS[9])
    frames = publish(known, 2, world.now)
    world.keep(*publish(old, 3, START - 100), *frames)  # the old ones get their places late
    world.come(frames[0])
    world.run(SLOW_S)
    assert app.numbers == numbers_of(*frames)


def test_where_all_is_well_nothing_is_read_and_little_is_asked() -> None:
    world, chain = ReadingWorld(GOOD, GOOD), Chain(SIGNERS[9])
    app = world.open()
    world.run(1.0)
    for second in range(200):
        (frame,) = publish(chain, 1, world.now + second)
        world.later(second, lambda frame=frame: world.come(frame))
        world.later(second + 0.3, lambda frame=frame: world.keep(frame))
    world.run(LONG_S)
    assert len(app.numbers) == 400
    assert world.asked_for("pages") == []
    busy, quiet = 200 / (SOON_S * SPREAD[0]), 200 / (LATER_S * SPREAD[0])
    assert 5 < len(world.asked_for("length")) < busy + quiet + 5
    assert len({node for node, _ in world.asked_for("length")}) == 2
    world.end()


@pytest.mark.parametrize("seed", range(5))
def test_reader_far_away_reads_no_log_for_frames_that_are_on_their_way(seed: int) -> None:
    world, chain = ReadingWorld(GOOD, seed=seed), Chain(SIGNERS[9])
    app = world.open()
    world.run(1.0)
    for at in range(2_000):
        (frame,) = publish(chain, 1, world.now + at / 10)
        world.later(at / 10 + 0.3, lambda frame=frame: world.keep(frame))
        world.later(at / 10 + 1.5, lambda frame=frame: world.come(frame))
    world.run(LONG_S)
    assert len(app.numbers) == 4_000
    assert len(world.asked_for("length")) > 5
    assert world.asked_for("pages") == []


def test_the_last_of_a_chain_is_found_although_others_go_on_and_come_late() -> None:
    world, chain, quiet = ReadingWorld(GOOD), Chain(SIGNERS[9]), Chain(SIGNERS[8])
    app = world.open()
    world.run(1.0)
    for at in range(2_000):
        (frame,) = publish(chain, 1, world.now + at / 10)
        world.later(at / 10 + 0.3, lambda frame=frame: world.keep(frame))
        world.later(at / 10 + 1.5, lambda frame=frame: world.come(frame))
    lost = publish(quiet, 5, START + 50.05)  # no other message has their numbers
    world.later(50.0, lambda: world.keep(*lost))
    world.run(50.0 + SLOW_S + LAG_S)
    assert set(numbers_of(*lost)) <= set(app.numbers)


def test_in_a_busy_part_something_that_did_not_come_is_found_as_well() -> None:
    world, chain, quiet = ReadingWorld(GOOD, GOOD), Chain(SIGNERS[9]), Chain(SIGNERS[8])
    app = world.open()
    world.run(1.0)
    for second in range(200):
        (frame,) = publish(chain, 1, world.now + second)
        world.later(second, lambda frame=frame: world.come(frame))
        world.later(second + 0.3, lambda frame=frame: world.keep(frame))
    lost = publish(quiet, 5, START + 50.05)  # no other message has their numbers
    world.later(50.0, lambda: world.keep(*lost))
    world.run(50.0 + SLOW_S)
    assert set(numbers_of(*lost)) <= set(app.numbers)


def test_what_was_never_stored_does_not_hide_what_did_not_come() -> None:
    world, chain, other = ReadingWorld(GOOD), Chain(SIGNERS[9]), Chain(SIGNERS[8])
    app = world.open()
    world.run(1.0)
    frames, theirs = publish(chain, 5, world.now), publish(other, 2, world.now)
    world.come(*frames)
    world.keep(*frames[:2], *theirs)
    world.run(SLOW_S)
    assert sorted(app.numbers) == sorted(numbers_of(*frames, *theirs))
    looked = len(world.asked_for("pages"))
    world.run(LONG_S)
    assert len(world.asked_for("pages")) == looked == 1


def test_what_comes_late_to_the_log_is_no_matter() -> None:
    world, chain = ReadingWorld(GOOD), Chain(SIGNERS[9])
    app = world.open()
    world.run(1.0)
    frames = publish(chain, 5, world.now)
    world.come(*frames)
    world.run(100.0)
    world.keep(*frames)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
    assert len(world.asked_for("pages")) <= 2


@pytest.mark.parametrize("kind", [DEAD, SILENT, BUSY, EMPTY, FORGES, MIXES, LOOPS])
def test_one_that_is_no_good_does_not_keep_it_from_us(kind: str) -> None:
    for seed in range(3):
        world, chain = ReadingWorld(kind, GOOD, GOOD, seed=seed), Chain(SIGNERS[9])
        app = world.open()
        world.run(20.0)
        frames = publish(chain, 2, world.now)
        world.keep(*frames)
        world.come(frames[0])
        world.run(LONG_S)
        assert app.numbers == numbers_of(*frames)
        assert app.missed() == []


def test_it_goes_page_by_page() -> None:
    world = ReadingWorld(GOOD, page_bytes=500)
    app = world.open()
    world.run(1.0)
    frames = publish(Chain(SIGNERS[9]), 30, world.now)
    world.keep(*frames)
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
    assert len(world.asked_for("pages")) > 5


def test_not_more_of_a_log_is_read_than_is_sensible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SWEPT", 10)
    world = ReadingWorld(GOOD)
    world.open()
    world.run(1.0)
    world.keep(*publish(Chain(SIGNERS[9]), 30, world.now))
    world.run(LATER_S * 2)
    assert world.asked_for("pages")[0][1] == Selection(start=50)


def test_when_links_change_it_looks_sooner() -> None:
    world = ReadingWorld(GOOD, neighbours=1)
    world.open()
    world.run(1.0)
    before = len(world.asked_for("length"))
    world.run(5.0)
    world.cut(NEIGHBOURS[0])
    world.run(SLOW_S)
    assert len(world.asked_for("length")) > before


def test_during_a_history_it_is_watched_too() -> None:
    world, chain = ReadingWorld(GOOD, page_bytes=1), Chain(SIGNERS[9])
    world.keep(*publish(chain, 3, START - 100))
    app = world.open(history=Selection())
    world.run(1.0)
    frames = publish(chain, 2, world.now)
    world.keep(*frames)
    world.run(LONG_S)
    assert app.numbers[-4:] == numbers_of(*frames)
    assert len(app.numbers) == 10


def test_without_storage_nodes_nothing_is_asked() -> None:
    world = ReadingWorld()
    world.open()
    world.run(LONG_S)
    assert world.asked == []
    assert world.reader.wakeup_at is not None  # there may be one later: we look now and then
    rests: list[float] = []
    for _ in range(5):
        rests.append(world.reader.wakeup_at - world.now)
        world.run(rests[-1])
    assert min(rests[1:]) >= LATER_S * SPREAD[0]  # since a node may be in very many such parts
    world.end()
    assert world.reader.wakeup_at is None


@pytest.mark.parametrize("seed", range(4))
def test_the_last_of_a_chain_that_is_damaged_at_one_comes_from_another(seed: int) -> None:
    world, chain = ReadingWorld(GOOD, GOOD, seed=seed), Chain(SIGNERS[9])
    app = world.open()
    world.run(1.0)
    frames = publish(chain, 4, world.now)
    world.keep(*frames)
    world.come(*frames[:2])
    world.damage(0, *frames[2:])
    world.run(LONG_S)
    assert app.numbers == numbers_of(*frames)
