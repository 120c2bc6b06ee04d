"""Storage nodes over real sockets whose disks forget: a cut write-ahead log, an old copy."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from anabranch import Stream
from anabranch.core.ids import StreamPart
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.store import LogState, Page
from anabranch.live.storage.losses import accepted, forgotten, request_loss
from anabranch.live.storage.process import StorageProcess
from live.networks import LiveNetwork, eventually, live_network, run
from live.storage.test_process_damage import health, past

FILES = ("logs.sqlite", "logs.sqlite-wal")
WAIT_S = 60.0
LATER = 200  # messages that two of three acknowledge


async def publish(stream: Stream, first: int, count: int, copies: int) -> None:
    """Publish messages until so many storage nodes have acknowledged each."""
    for at in range(first, first + count, 20):
        some = range(at, min(at + 20, first + count))
        await asyncio.gather(*(stream.publish_stored(f"{n:>2000}", copies) for n in some))


def copied(folder: Path, name: str) -> Path:
    """Copy the files of the logs as a running node's disk has them now."""
    kept = folder / name
    kept.mkdir()
    for file in FILES:
        if (folder / file).exists():
            shutil.copy(folder / file, kept / file)
    return kept


def forget(folder: Path, kept: Path, share: float) -> None:
    """Put the files of the logs back, with only a share of what was written ahead."""
    for file in (*FILES, "logs.sqlite-shm"):
        (folder / file).unlink(missing_ok=True)
    for file in FILES:
        if (kept / file).exists():
            shutil.copy(kept / file, folder / file)
    ahead = folder / "logs.sqlite-wal"
    with ahead.open("r+b") as file:
        file.truncate(int(ahead.stat().st_size * share))


def state(storage: StorageProcess, part: StreamPart) -> LogState:
    return next((s for s in storage.store.states() if s.part == part), LogState(part))


def frames(storage: StorageProcess, part: StreamPart) -> list[tuple[int | None, bytes]]:
    page = Page(part, Selection(), MAX_NUMBER, 1 << 30)
    return [(row.offset, row.entry.frame) for row in storage.store.find(page).placed]


async def same_logs(live: LiveNetwork, part: StreamPart) -> None:
    """Wait until all logs are settled to their ends, and see that they are one."""

    def is_settled() -> bool:
        statuses = [storage.storage.status(part) for storage in live.storage]
        if any(status is None or status.lost or status.held for status in statuses):
            return False
        return len({at for s in statuses if s is not None for at in (s.length, s.high)}) == 1

    await eventually(is_settled, "all logs are one", WAIT_S)
    logs = [frames(storage, part) for storage in live.storage]
    assert logs[0] == logs[1] == logs[2]


def test_forgotten_end_of_a_log_is_copied_back_and_no_offset_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            a, b, c = live.storage
            stream = await (await live.join()).create_stream("kept", storage=3, public="subscribe")
            part = StreamPart(stream.id, 0)
            await publish(stream, 0, 20, copies=3)
            await c.stop()
            await publish(stream, 20, LATER, copies=2)
            before, length = frames(a, part), state(a, part).length
            kept = copied(b._folder, "kept")
            await a.stop()
            await b.stop()
            forget(b._folder, kept, 1 / 3)
            b = live.storage[1] = await live.start_storage(1)
            c = live.storage[2] = await live.start_storage(2)
            await eventually(lambda: b.storage.status(part) is not None, "it keeps the stream")
            assert 0 < state(b, part).length < length
            status, body = await health(b)
            assert (status, body["status"]) == (503, "forgotten")
            [range_] = body["forgotten"]
            assert (range_["stream"], range_["partition"]) == (stream.id, 0)
            assert (range_["start"], range_["end"]) == (state(b, part).length, length)
            await asyncio.sleep(8.0)  # as long as several elections take
            for storage in (b, c):
                found = storage.storage.status(part)
                assert found is not None
                assert found.primary is None, "nobody gives offsets that were given already"
            live.storage[0] = a = await live.start_storage(0)
            await same_logs(live, part)
            assert frames(b, part)[: len(before)] == before
            assert (await health(b))[0] == 200
            await publish(stream, 20 + LATER, 20, copies=3)
            assert sorted(await past(stream)) == list(range(40 + LATER))

    run(main(), 180.0)


def test_single_storage_node_goes_on_only_when_the_loss_is_accepted(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            [only] = live.storage
            stream = await (await live.join()).create_stream("kept", storage=1, public="subscribe")
            part = StreamPart(stream.id, 0)
            await publish(stream, 0, 60, copies=1)
            kept = copied(only._folder, "kept")
            await only.stop()
            forget(only._folder, kept, 0.6)
            only = live.storage[0] = await live.start_storage(0)
            await eventually(lambda: only.storage.status(part) is not None, "it keeps the stream")
            left = state(only, part).length
            assert left < 60
            await stream.publish("held")
            await asyncio.sleep(3.0)
            status, body = await health(only)
            assert (status, body["status"]) == (503, "forgotten")
            assert f"offsets {left} to 59 of {stream.id}" in body["error"]
            assert "accept-loss" in body["error"]
            assert [(f["start"], f["end"]) for f in body["forgotten"]] == [(left, 60)]
            assert state(only, part).length == left, "no offset is given a second time"
            assert len(forgotten(only._folder, stream.id)) == 1
            request_loss(only._folder, stream.id)
            await eventually(lambda: state(only, part).length > left, "it goes on", WAIT_S)
            assert forgotten(only._folder, stream.id) == []
            losses = [(loss.start, loss.end) for _, loss in accepted(only._folder, stream.id)]
            assert losses == [(left, 60)]
            status, body = await health(only)
            assert status == 200
            assert [(f["start"], f["end"]) for f in body["accepted_losses"]] == losses

    run(main(), 120.0)


def test_old_copy_of_a_folder_is_recognised_and_filled_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            stream = await (await live.join()).create_stream("kept", storage=3, public="subscribe")
            part = StreamPart(stream.id, 0)
            await publish(stream, 0, 20, copies=3)
            folder, backup = live.storage[1]._folder, tmp_path / "backup"
            await live.storage[1].stop()
            shutil.copytree(folder, backup)
            live.storage[1] = await live.start_storage(1)
            await publish(stream, 20, 60, copies=3)

            def is_marked(storage: StorageProcess) -> bool:
                marks = {mark.node: mark.length for mark in state(storage, part).marks}
                return marks.get(live.storage[1].identity.node) == 80

            await eventually(lambda: is_marked(live.storage[0]), "its mark is kept", WAIT_S)
            for storage in live.storage:
                await storage.stop()
            shutil.rmtree(folder)
            shutil.copytree(backup, folder)
            notices: list[Any] = []
            for index in range(3):
                live.storage[index] = await live.start_storage(index)
                live.storage[index].network.node.watch(notices.append)
            await same_logs(live, part)
            assert sorted(await past(stream)) == list(range(80))

    run(main(), 120.0)


def test_restored_node_hears_a_majority_of_the_others_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, storage=3) as live:
            stream = await (await live.join()).create_stream("kept", storage=3, public="subscribe")
            part = StreamPart(stream.id, 0)
            await publish(stream, 0, 20, copies=3)
            for storage in live.storage:
                await storage.stop()
            restored = await live.start_storage(1, restored=True)
            live.storage[1] = restored
            live.storage[2] = await live.start_storage(2)
            await eventually(lambda: restored.storage.status(part) is not None, "it keeps it")
            await asyncio.sleep(8.0)
            found = restored.storage.status(part)
            assert found is not None
            assert found.primary is None
            assert found.lost is not None
            assert not found.lost.is_known
            assert "an unknown part of" in (await health(restored))[1]["error"]
            live.storage[0] = await live.start_storage(0)
            await publish(stream, 20, 20, copies=3)
            await same_logs(live, part)
            assert not state(restored, part).is_restored

    run(main(), 120.0)
