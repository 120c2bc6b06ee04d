"""The primary of a log is killed again and again under load, in processes of their own."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

from anabranch import Stream, connect
from anabranch.core.frames import peek
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.store import Page
from anabranch.live.local import Child, LocalNetwork
from anabranch.live.receipt import Receipt
from anabranch.live.storage.sqlite import SqliteLogStore
from live.networks import eventually, run
from support.waiting import limit

KILLS = 4
PUBLISHERS = 20


def primary(local: LocalNetwork) -> Child | None:
    """Return the process that takes itself for the primary, as its pages say."""
    for child in local.storage:
        if child.alive:
            with urllib.request.urlopen(f"{child.ready['http']}/parts", timeout=limit(5)) as answer:
                rows = json.loads(answer.read())
            rows = rows["parts"] if isinstance(rows, dict) else rows
            if any(row["primary"] == child.ready["node"] for row in rows):
                return child
    return None


async def kill_primaries(local: LocalNetwork, receipts: list[Receipt]) -> None:
    """Kill the primary, see that messages are acknowledged without it, start it again."""
    for _ in range(KILLS):
        found: list[Child] = []

        def is_there() -> bool:
            found[:] = [child for child in [primary(local)] if child is not None]  # noqa: B023
            return bool(found)  # noqa: B023

        await eventually(is_there, "there is a primary")
        before = len(receipts)
        await found[0].kill()
        await eventually(lambda: len(receipts) > before + 100, "another took over")  # noqa: B023
        await found[0].start()


async def publish(stream: Stream, ended: asyncio.Event, receipts: list[Receipt]) -> None:
    """Publish numbers one after the other, each when two storage nodes hold the last one."""
    while not ended.is_set():
        receipts.append(await stream.publish_stored({"n": len(receipts)}, copies=2))


async def read(stream: Stream, got: list[Any], enough: asyncio.Event) -> None:
    async with stream.subscribe() as messages:
        async for message in messages:
            assert message.gap is None
            got.append(message.id)
            if enough.is_set():
                break


def logged(folder: Path) -> list[tuple[int | None, bytes]]:
    """Return the log that a storage node has on its disk."""
    store = SqliteLogStore(folder / "logs.sqlite")
    [state] = store.states()
    rows, selection = [], Selection()
    while True:
        found = store.find(Page(state.part, selection, MAX_NUMBER, 1 << 20))
        rows += [(placed.offset, placed.entry.frame) for placed in found.placed]
        if found.following is None:
            break
        selection = found.following
    assert state.held == 0
    store.close()
    return rows


def test_nothing_acknowledged_is_lost_and_all_logs_are_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        local = LocalNetwork(tmp_path)
        receipts: list[Receipt] = []
        got: list[Any] = []
        try:
            await local.start(1, 0, storage=3)
            async with (
                connect(local.address, key=local.owner_key) as here,
                connect(local.address, key=local.owner_key) as there,
            ):
                stream = await here.create_stream("kept", storage=3)
                theirs = await there.stream(stream.id)
                ended, enough = asyncio.Event(), asyncio.Event()
                reading = asyncio.create_task(read(theirs, got, enough))
                await eventually(lambda: bool(there.node.members()), "the reader is there")
                publishing = [
                    asyncio.create_task(publish(stream, ended, receipts)) for _ in range(PUBLISHERS)
                ]
                await kill_primaries(local, receipts)
                ended.set()
                await asyncio.gather(*publishing)
                ids = sorted(receipt.id for receipt in receipts)
                await eventually(lambda: len(got) >= len(ids), "the reader has it all")
                assert got == ids
                async with theirs.history() as messages:
                    assert [message.id async for message in messages] == ids
                await eventually(lambda: all(in_sync(local)), "all logs are complete", 30.0)
                reading.cancel()
        finally:
            await local.stop()
        first, second, third = (logged(tmp_path / f"storage-{n}") for n in range(3))
        assert first == second == third
        assert sum(peek(frame).count for _, frame in first) == len(receipts)

    run(main(), 150.0)


def in_sync(local: LocalNetwork) -> list[bool]:
    """Say of each storage node whether its log is settled to its end, and as long as others'."""
    ends = []
    for child in local.storage:
        with urllib.request.urlopen(f"{child.ready['http']}/parts", timeout=limit(5)) as answer:
            rows = json.loads(answer.read())
        rows = rows["parts"] if isinstance(rows, dict) else rows
        ends.append([(row["length"], row["high"], row["held"]) for row in rows])
    return [end == ends[0] and all(n == h and not k for n, h, k in end) for end in ends]
