"""What a node keeps of the registry: what it uses, and of the rest only the newest."""

import pytest

from anabranch import MemoryNetwork, NoSuchStream
from anabranch.live import questions as module
from live.networks import run


def test_chains_that_were_not_looked_up_for_long_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LOOKED_UP", 4)

    async def test() -> None:
        async with MemoryNetwork() as memory, memory.join() as owner, memory.join() as reader:
            used = await owner.create_stream("used")
            names = [(await owner.create_stream(f"other/{n}")).id for n in range(12)]
            ours = await reader.stream(used.id)
            async with ours.subscribe() as messages:
                first = await reader.stream(names[0])
                for name in names:
                    await reader.stream(name)
                followed, _ = reader.node.registry.sizes()["followed chains"]
                assert followed <= 7  # those four, the one to come, what is used, the network's own
                with pytest.raises(NoSuchStream, match=r"ask network\.stream"):
                    first.info()
                assert (await reader.stream(names[0])).info()["id"] == names[0]
                await (await owner.stream(used.id)).publish("still here")
                async for message in messages:
                    assert message.content == "still here"
                    break

    run(test())
