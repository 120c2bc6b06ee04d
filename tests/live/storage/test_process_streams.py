"""Which streams a storage node finds: those it keeps first, and all of them in turn."""

from pathlib import Path

import pytest

from anabranch.core.ids import StreamPart
from anabranch.live.storage import process
from live.networks import eventually, live_network, run


def test_many_streams_of_others_do_not_hide_those_that_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOOK_AT", 1)
    monkeypatch.setattr(process, "LOOK_EVERY_S", 0.05)

    async def main() -> None:
        async with live_network(tmp_path, storage=1) as live:
            network = await live.join()
            for n in range(4):
                await network.create_stream(f"a/{n}")
            kept = await network.create_stream("kept", storage=1)
            await kept.publish_stored("x")
            edited = await network.stream("a/2")
            await edited.edit(storage=1)
            part = StreamPart(edited.id, 0)
            await eventually(lambda: part in live.storage[0].storage.parts(), "it was found")
            await live.storage.pop(0).stop()
            live.storage.append(await live.start_storage(0))
            assert StreamPart(kept.id, 0) in live.storage[0].storage.parts()

    run(main())
