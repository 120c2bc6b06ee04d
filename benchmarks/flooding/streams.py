"""Many streams. One key may make ten a second after the first two hundred: so several do."""

import asyncio

from anabranch import Network, Subscription, connect
from anabranch.core.overlay import DEFAULT_DEGREE
from anabranch.core.quotas import WRITES_AT_ONCE
from anabranch.live.keys import new_key

OF_ONE_OWNER = int(WRITES_AT_ONCE)
AT_ONCE = 100  # questions to the registry


async def create_streams(
    address: str, count: int, name: str = "s", degree: int = DEFAULT_DEGREE
) -> list[str]:
    """Create streams that everybody may publish and subscribe to; return their names."""
    paths = [f"{name}{index}" for index in range(count)]
    shares = [paths[at : at + OF_ONE_OWNER] for at in range(0, count, OF_ONE_OWNER)]
    made = await asyncio.gather(*(_create(address, share, degree) for share in shares))
    return [name for names in made for name in names]


async def _create(address: str, paths: list[str], degree: int) -> list[str]:
    async with connect(address, key=new_key()[0]) as owner:
        rights = ["publish", "subscribe"]
        found = [
            stream
            for some in _some(paths)
            for stream in await asyncio.gather(
                *(owner.create_stream(path, public=rights, degree=degree) for path in some)
            )
        ]
    return [stream.id for stream in found]


async def subscribe(network: Network, names: list[str]) -> list[Subscription]:
    """Join streams; what is returned has to be read."""
    joined: list[Subscription] = []
    for some in _some(names):
        for stream in await asyncio.gather(*(network.stream(name) for name in some)):
            joined.append(await stream.subscribe().__aenter__())
    return joined


def _some(names: list[str]) -> list[list[str]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]
