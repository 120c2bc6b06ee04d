"""Streams that tests of the sink write to, with a subscriber that counts what comes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch import Message, Stream
from anabranch.core.frames import peek
from live.networks import eventually
from spark.network import RunningNetwork


class Place:
    """A stream to write to, its owner's node, and a subscriber that counts what comes."""

    def __init__(self, network: RunningNetwork, key_file: Path, name: str, **more: Any) -> None:
        self._network = network
        self._owner = network.join(key_file)
        more = {"storage": 2, "public": ["subscribe"], **more}
        self.stream: Stream = network.run(self._owner.create_stream(name, **more))
        self.came: list[Message] = []
        self._reading = network.start(self._read())
        self.options = network.options(key_file, stream=self.stream.id)

    async def _read(self) -> None:
        async with self.stream.subscribe() as messages:
            async for message in messages:
                self.came.append(message)

    def wait_for(self, count: int) -> list[Message]:
        """Return what has come, when so many have."""

        self._network.run(eventually(lambda: len(self.came) >= count, f"{count} messages"))
        return self.came

    def stored(self) -> list[Message]:
        """Return what the log has."""

        async def read() -> list[Message]:
            async with self.stream.history() as messages:
                return [message async for message in messages]

        return self._network.run(read())

    def frames(self) -> dict[tuple[bytes, int], bytes]:
        """Return the stored frames by chain and last number, byte for byte."""

        async def read() -> dict[tuple[bytes, int], bytes]:
            found = {}
            for partition in range(self.stream.partitions):
                batches = self.stream.batches(partition=partition, form="frames")
                async for batch in batches:
                    for row in batch.to_pylist():
                        head = peek(row["frame"])
                        found[head.chain, head.last] = row["frame"]
            return found

        return self._network.run(read())

    def close(self) -> None:
        self._reading.cancel()
        self._network.run(self._owner.close())


@contextmanager
def place(network: RunningNetwork, key_file: Path, name: str, **more: Any) -> Iterator[Place]:
    made = Place(network, key_file, name, **more)
    try:
        yield made
    finally:
        made.close()


def contents(messages: list[Message]) -> list[Any]:
    """Return what messages say."""
    return [message.content for message in messages]
