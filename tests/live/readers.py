"""Readers in the background, for tests that look at what came; and links that break."""

import asyncio
from collections.abc import Sequence
from typing import Any

from anabranch import AnabranchError, Message, Network, Stream
from anabranch.live.node import Node
from live.networks import eventually, neighbours


class Reader:
    """Reads a stream from the moment it is begun, and keeps everything."""

    def __init__(self, stream: Stream, **options: Any) -> None:
        self.messages: list[Message] = []
        self.failure: AnabranchError | None = None
        self.subscription = stream.subscribe(**options)
        self.ended: asyncio.Task[None]

    async def begin(self) -> "Reader":
        """Enter the subscription and read in a task of its own."""
        await self.subscription.__aenter__()
        self.ended = asyncio.create_task(self._read())
        return self

    async def _read(self) -> None:
        try:
            async for message in self.subscription:
                self.messages.append(message)
        except AnabranchError as error:
            self.failure = error

    async def stop(self) -> None:
        """Leave, with what has come so far."""
        self.subscription.close()
        await self.ended

    @property
    def contents(self) -> list[Any]:
        """What came, in its order."""
        return [message.content for message in self.messages]

    def by_chain(self) -> dict[tuple[int, str], list[Any]]:
        """What came in each chain of each partition, in its order."""
        chains: dict[tuple[int, str], list[Any]] = {}
        for message in self.messages:
            chains.setdefault((message.partition, message.chain), []).append(message.content)
        return chains


async def read(stream: Stream, **options: Any) -> Reader:
    """Begin to read a stream."""
    return await Reader(stream, **options).begin()


async def read_everywhere(networks: Sequence[Network], name: str) -> list[Reader]:
    """Begin to read a stream at each of these nodes."""
    return [await read(await network.stream(name)) for network in networks]


async def all_linked(
    networks: Sequence[Network], name: str, degree: int, partitions: int = 1
) -> None:
    """Wait until each node has so many neighbours in each partition of a stream."""
    await eventually(
        lambda: all(
            neighbours(network, name, partition) == degree
            for network in networks
            for partition in range(partitions)
        ),
        f"{degree} neighbours of each of {len(networks)} nodes",
    )


async def all_have(readers: Sequence[Reader], count: int) -> None:
    """Wait until each reader has so many messages."""
    await eventually(
        lambda: all(len(reader.messages) >= count for reader in readers),
        f"{count} messages at each reader",
    )


async def all_read(readers: Sequence[Reader], content: Any) -> None:
    """Wait until each reader has this message."""
    await eventually(
        lambda: all(content in reader.contents for reader in readers), f"{content!r} everywhere"
    )


async def cut_links(node: Node) -> int:
    """Break every socket of a node, without a goodbye; return how many when all are gone."""
    links = list(node.driver.links.values())
    for link in links:
        link.wire.abort()  # type: ignore[attr-defined]
    await eventually(
        lambda: not any(node.driver.links.get(link.peer) is link for link in links),
        "the end of links that were cut",
    )
    return len(links)
