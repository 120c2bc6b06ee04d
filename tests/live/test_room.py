"""Room: bounded, given to who has waited longest, and never lost."""

import asyncio

import pytest

from anabranch.live import room as module
from anabranch.live.room import Room
from live.networks import run


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_FLIGHT", 2)
    monkeypatch.setattr(module, "IN_FLIGHT_BYTES", 100)


def test_who_is_cancelled_in_the_moment_it_gets_room_gives_it_back() -> None:
    async def main() -> None:
        room = Room()
        await room.enter(1)
        await room.enter(1)
        first, second = (asyncio.create_task(room.enter(1)) for _ in range(2))
        await asyncio.sleep(0)
        room.leave(1)
        assert (room.messages, len(room.waiting)) == (2, 1)  # it is the first's, who is asleep
        first.cancel()
        await second
        assert first.cancelled()
        assert (room.messages, room.bytes, len(room.waiting)) == (2, 2, 0)

    run(main())


def test_bytes_count_as_well_and_one_too_large_for_all_of_it_still_goes_alone() -> None:
    async def main() -> None:
        room = Room()
        await room.enter(1000)
        waiting = asyncio.create_task(room.enter(1))
        await asyncio.sleep(0)
        assert room.full
        assert not waiting.done()
        room.leave(1000)
        await waiting
        assert (room.messages, room.bytes) == (1, 1)

    run(main())
