"""A tracker takes its place in the network: among others, after a move, and behind an address."""

import asyncio
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.live.tracker import TrackerProcess
from live.networks import LiveNetwork, eventually, live_network, run


def places(live: LiveNetwork, tracker: TrackerProcess) -> dict[str, str]:
    """Return where the network's trackers are, as one of them has it."""
    entries = tracker.machine.keeper.network_state.trackers
    return {show(entry.node): entry.address for entry in entries}


def test_trackers_that_come_at_once_are_all_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            first = live.trackers[0]
            others = [
                TrackerProcess(tmp_path / f"other-{n}", owner=live.owner, join=live.address)
                for n in range(3)
            ]
            for tracker in others:
                await tracker.start()
                live.trackers.append(tracker)
            assert await asyncio.gather(*(t.take_place() for t in others)) == [True] * 3
            assert len(places(live, first)) == 4

    run(main())


def test_a_tracker_that_is_told_where_the_first_has_moved_follows_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            for tracker in reversed(live.trackers):
                await tracker.stop()
            live.trackers.clear()
            first = await live.start_tracker(0)  # on another port
            live.trackers.append(first)
            second = await live.start_tracker(1, join=first.address)
            live.trackers.append(second)
            live.address = first.address
            owner = await live.join()
            await owner.create_stream("after/the/move")
            await eventually(lambda: len(second.machine.keeper.streams()) == 1, "the copy")
            assert places(live, second) == places(live, first)
            assert second.transport.address in places(live, first).values()

    run(main())


@pytest.mark.parametrize(
    ("advertise", "port"), [("ws://tracker.invalid:7777", 7777), ("ws://tracker.invalid", 80)]
)
def test_an_address_that_only_others_can_use_is_what_the_network_says(
    tmp_path: Path, advertise: str, port: int
) -> None:
    async def main() -> None:
        tracker = TrackerProcess(tmp_path, host="0.0.0.0", advertise=advertise)
        await tracker.start()
        try:
            assert await tracker.take_place()  # although we cannot be reached there from within
            (entry,) = tracker.machine.keeper.network_state.trackers
            assert entry.address == advertise
            assert entry.http == f"http://tracker.invalid:{tracker.http.address.split(':')[-1]}"
            assert str(tracker.address).endswith(f"@tracker.invalid:{port}")
        finally:
            await tracker.stop()

    run(main())


def test_a_tracker_that_failed_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            tracker = live.trackers[0]

            def fail(*_: object) -> None:
                raise AssertionError("a mistake")

            tracker.machine.handle = fail  # type: ignore[method-assign, assignment]
            with pytest.raises(AssertionError):
                tracker.driver.congested(tracker.identity.node)
            assert tracker.failed.is_set()
            assert "a mistake" in tracker.problem

    run(main())


@pytest.mark.parametrize("ports", [{"port": 99_999}, {"http_port": 99_999}, {"port": -1}])
def test_a_port_that_cannot_be_is_refused(tmp_path: Path, ports: dict[str, int]) -> None:
    async def main() -> None:
        with pytest.raises(LocalError, match="there is no port"):
            await TrackerProcess(tmp_path, **ports).start()  # type: ignore[arg-type]

    run(main())
