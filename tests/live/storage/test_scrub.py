"""The scrub: all that is kept is read, it goes on after a restart, and can be asked for."""

from pathlib import Path
from random import Random

import pytest

from anabranch.core.store import Order, Settle, StoreError
from anabranch.live.storage.damage import SCRUB_DAYS, Damage
from anabranch.live.storage.scrub import STEP_ROWS, Scrub, read_state, request_scrub
from anabranch.live.storage.sqlite import SqliteLogStore
from live.networks import eventually, run
from live.storage.logs import Source, drain
from machines import PART

ROWS = 2 * STEP_ROWS + 100
DAY_S = 86_400.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "logs.sqlite"
    store = SqliteLogStore(path)
    source = Source(Random(2), most_bytes=200)
    for _ in range(ROWS // 100):
        frames = tuple(source.frame() for _ in range(100))
        store.write([[Order(PART, 1, 1_000, frames), Settle(PART, 1)]])
    store.close()
    return path


def damaged(path: Path, at: int) -> None:
    store = SqliteLogStore(path)
    frame = drain(store, PART)[at].entry.frame
    store.close()
    content = bytearray(path.read_bytes())
    content[content.find(frame) + len(frame) - 30] ^= 1
    path.write_bytes(content)


def test_a_scrub_finds_what_nobody_reads(path: Path) -> None:
    damaged(path, 1_500)
    store = SqliteLogStore(path)
    scrub, seen = Scrub(store, path.parent), list[float]()
    scrub.run_once(lambda state: seen.append(state.progress))
    assert (scrub.state.rows, scrub.state.found) == (ROWS, 1)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert [(hole.start, hole.end) for hole in store.missing()[PART]] == [(1_500, 1_501)]
    damage = Damage(store.missing(), scrub=scrub.shown())
    assert (damage.messages, damage.progress) == (1, 1.0)
    assert damage.problem.startswith("1 messages in 1 ranges")
    store.close()


def test_a_scrub_goes_on_where_it_was_when_the_node_was_started_again(path: Path) -> None:
    store = SqliteLogStore(path)
    first = Scrub(store, path.parent)
    first._begin()
    first.step()
    first.stop()
    second = Scrub(store, path.parent)
    assert (second.state.rows, second.state.is_running) == (STEP_ROWS, True)
    while second.state.is_running:
        second.step()
    assert second.state.rows == ROWS
    assert read_state(path.parent) == second.state
    store.close()


def test_a_scrub_is_begun_by_itself_after_its_days_and_at_once_if_asked_for(path: Path) -> None:
    now = [1_000.0]
    store = SqliteLogStore(path)
    scrub = Scrub(store, path.parent, clock=lambda: now[0])
    assert scrub._is_due()
    scrub.run_once()
    now[0] += SCRUB_DAYS * DAY_S - 1
    assert not scrub._is_due()
    now[0] += 1
    assert scrub._is_due()
    assert not Scrub(store, path.parent, days=0, clock=lambda: now[0])._is_due()

    async def main() -> None:
        asked = Scrub(store, path.parent, days=0)
        asked.start()
        before = asked.state.finished_s
        request_scrub(path.parent)
        await eventually(lambda: asked.state.finished_s > before, "it is done")
        assert asked.state.rows == ROWS
        asked.stop()

    run(main())
    store.close()


def test_a_scrub_of_a_rebuilt_file_is_whole(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20 * 4_096 : 21 * 4_096] = bytes(4_096)
    path.write_bytes(content)
    store = SqliteLogStore(path)
    scrub = Scrub(store, path.parent)
    scrub.run_once()
    assert scrub.state.structure or scrub.state.found
    scrub.run_once()
    assert (scrub.state.structure, scrub.state.found) == ("", 0)
    store.close()


def test_a_file_of_an_earlier_release_is_read_and_gets_what_it_lacks(path: Path) -> None:
    import apsw

    database = apsw.Connection(str(path))
    database.execute("DROP TABLE missing")
    database.close()
    store = SqliteLogStore(path)
    assert len(drain(store, PART)) == ROWS
    assert store.scrub_structure() == ""
    store.close()


def test_a_scrub_waits_for_a_disk_that_fails_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteLogStore(path)
    scrub = Scrub(store, path.parent, days=0)

    def fail(after: int, limit: int) -> tuple[int, int]:
        raise StoreError("the disk is on fire")

    async def main() -> None:
        monkeypatch.setattr(store, "scrub_rows", fail)
        request_scrub(path.parent)
        scrub.start()
        await eventually(lambda: scrub.shown()["problem"] == "the disk is on fire", "it says so")
        assert scrub.state.is_running
        scrub.stop()

    run(main())
    store.close()
