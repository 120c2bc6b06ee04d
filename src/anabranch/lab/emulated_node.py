"""One node of an emulated network: `python -m anabranch.lab.emulated_node`.

Its plan is the first line of its standard input; the words after it, one a line, say what to do
when. It answers each with a line of JSON, and ends when its input does.
"""

import asyncio
import struct
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId
from anabranch.live.address import parse_address
from anabranch.live.client import Network
from anabranch.live.loop import run
from anabranch.live.stream import Stream
from anabranch.live.subscription import Subscription
from anabranch.live.transports.delayed import DelayedTransport, Way
from anabranch.live.transports.websocket import WebSocketTransport

CONTENT = struct.Struct(">HHd48x")  # round, publisher, when; 60 bytes: the paper's have under 100
HOST = "127.0.0.1"


class Plan(msgspec.Struct):
    """What a node has to know."""

    index: int
    secret: bytes
    network: str  # its address
    stream: str
    ways: list[tuple[bytes, Way]]
    key_store: str


class Arrival(msgspec.Struct, array_like=True):
    """A message that reached the application."""

    round: int
    publisher: int
    delay_s: float
    hops: int


class Answer(msgspec.Struct):
    """What is said on standard output, after each word."""

    at: float  # by this process's clock
    node_at: float  # by the clock of its node
    duplicates: int = 0
    arrivals: list[Arrival] = []


class EmulatedNode:
    """Joins, publishes and counts as it is told."""

    def __init__(self, plan: Plan, network: Network, stream: Stream) -> None:
        self._plan = plan
        self._network = network
        self._stream = stream
        self._arrivals: list[Arrival] = []
        self._reading: asyncio.Task[None] | None = None
        self._publishing: list[asyncio.Task[object]] = []

    async def join(self, subscription: Subscription) -> None:
        """Become a member of the stream."""
        self._reading = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: Subscription) -> None:
        async for message in subscription:
            number, publisher, published_at = CONTENT.unpack(message.content)
            if publisher != self._plan.index:
                delay_s = time.time() - published_at
                self._arrivals.append(Arrival(number, publisher, delay_s, message.hops))

    def publish(self, number: int) -> None:
        """Publish the message of a round; nobody waits until a neighbour has it."""
        content = CONTENT.pack(number, self._plan.index, time.time())
        self._publishing.append(asyncio.create_task(self._stream.publish(content)))

    async def tell(self) -> Answer:
        """Tell what has come, once what was published is with the neighbours."""
        await asyncio.gather(*self._publishing)
        if self._reading is not None and self._reading.done():
            self._reading.result()
        parts = self._network.metrics["parts"].values()
        return Answer(
            time.time(),
            self._network.node.driver.now(),
            sum(part["duplicates"] for part in parts),
            self._arrivals,
        )

    def stop(self) -> None:
        """Read nothing more."""
        for task in (self._reading, *self._publishing):
            if task is not None:
                task.cancel()


def network_of(plan: Plan) -> Network:
    """Name the network, with links that are as long as the plan says."""
    identity, address = Identity(plan.secret), parse_address(plan.network)
    near = WebSocketTransport(identity, address.genesis, HOST)
    far = DelayedTransport(near, {NodeId(node): way for node, way in plan.ways})
    return Network(
        plan.network,
        address.genesis,
        address.ws_urls,
        identity,
        identity,
        far,
        key_store=Path(plan.key_store),
    )


async def work(plan: Plan, words: asyncio.StreamReader) -> None:
    """Do what is said until nothing more is."""
    async with AsyncExitStack() as stack:
        network = await stack.enter_async_context(network_of(plan))
        stream = await network.stream(plan.stream)
        node = EmulatedNode(plan, network, stream)
        stack.callback(node.stop)
        _say(await node.tell())
        async for line in words:
            word, _, number = line.decode().strip().partition(" ")
            if word == "join":
                reading = stream.subscribe(ordered=False)
                await node.join(await stack.enter_async_context(reading))
            elif word == "publish":
                node.publish(int(number))
                continue
            _say(await node.tell())


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def main() -> None:
    """Read the plan, and what to do."""
    loop = asyncio.get_running_loop()
    words = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    plan = msgspec.json.decode(await words.readline(), type=Plan)
    await work(plan, words)


if __name__ == "__main__":
    run(main())
