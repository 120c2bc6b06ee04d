"""Links that are slow, or stand still, while a publisher gives all it has: nobody else suffers."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from anabranch import Network, Stream
from anabranch.core import congestion, slow_links
from anabranch.core.ids import NodeId, StreamPart, parse_node
from anabranch.core.messages.links import MAX_PAUSE_MS
from anabranch.live.keys import load_or_make_key, new_key
from anabranch.live.local import Child
from anabranch.live.transports.connection import MAX_QUEUED_BYTES
from anabranch.live.transports.websocket import WebSocketTransport
from anabranch.traces.recorder import Recorder
from anabranch.traces.schema import Linked
from live.networks import LiveNetwork, eventually, live_network, neighbours, run
from live.readers import Reader, all_have, read_everywhere
from live.throttled import ThrottledLink, ThrottledTransport
from support.waiting import limit

AT_ONCE = 64  # messages that wait for their outcome
LOOK_EVERY_S = 0.005


async def publish_all(stream: Stream, count: int, size: int) -> None:
    """Publish as fast as can be; each message begins with its number."""
    numbers = iter(range(count))

    async def publish() -> None:
        for number in numbers:
            await stream.publish(number.to_bytes(4) + bytes(size - 4))

    async with asyncio.TaskGroup() as publishing:
        for _ in range(AT_ONCE):
            publishing.create_task(publish())


class Watch:
    """Looks at nodes again and again, and holds them to the bounds of all their queues."""

    def __init__(self, nodes: Sequence[Network]) -> None:
        self.most: dict[str, int] = {}
        self._nodes = nodes

    def look(self) -> None:
        """Look once."""
        for network in self._nodes:
            for name, (size, bound) in network.node.peer.sizes().items():
                assert size <= bound, name
                self._note(name, size)
            for link in network.node.driver.links.values():
                self._note("bytes in a link", _waiting_bytes(link))
        assert self.most["bytes in a link"] <= MAX_QUEUED_BYTES

    def _note(self, name: str, size: int) -> None:
        self.most[name] = max(size, self.most.get(name, 0))


def _waiting_bytes(link: Any) -> int:
    if isinstance(link, ThrottledLink):
        return link.queued_bytes
    socket = link.wire.transport.underlying_transport
    return int(socket.get_write_buffer_size()) if not socket.is_closing() else 0


@asynccontextmanager
async def watching(nodes: Sequence[Network]) -> AsyncIterator[Watch]:
    """Look at nodes until the context ends."""
    watch = Watch(nodes)

    async def keep_looking() -> None:
        while True:
            watch.look()
            await asyncio.sleep(LOOK_EVERY_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield watch
    finally:
        looking.cancel()
        [ended] = await asyncio.gather(looking, return_exceptions=True)
        if not isinstance(ended, asyncio.CancelledError):
            raise ended  # a bound was broken


# --- A neighbour that stands still ----------------------------------------------------------


@asynccontextmanager
async def neighbour_process(live: LiveNetwork, stream: str) -> AsyncIterator[Child]:
    """Run one node of a stream in a process of its own."""
    key = live.folder / "neighbour.key"
    load_or_make_key(key)
    arguments = ["node", stream, "--address", str(live.address), "--key", str(key)]
    arguments += ["--listen", "127.0.0.1:0", "--interval", "0.1"]
    child = Child("neighbour", arguments)
    await child.start()
    try:
        yield child
    finally:
        await child.kill()


def test_a_neighbour_that_stands_still_is_cut_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(congestion, "CUT_AFTER_S", 1.5)
    count, size = 400, 32_000  # more than the queues of one link hold together

    async def main() -> None:
        async with live_network(tmp_path) as live:
            trace: list[Any] = []
            nodes = [await live.join(recorder=Recorder(trace.append)) for _ in range(4)]
            stream = await nodes[0].create_stream("slow", public="subscribe")
            part = StreamPart(stream.id, 0)
            readers = await read_everywhere(nodes, stream.id)
            async with neighbour_process(live, stream.id) as child, watching(nodes) as watch:
                still = parse_node(child.ready["node"])
                await eventually(
                    lambda: all(neighbours(node, stream.id) == 4 for node in nodes), "neighbours"
                )
                child.signal(signal.SIGSTOP)
                await publish_all(stream, count, size)
                await everyone_has_all(readers, count)
                await eventually(lambda: are_rid_of(nodes, still), "the link is cut")
                assert watch.most["outbox frames"] > 0
                ends = {row.reason for row in trace if type(row) is Linked and not row.up}
                assert ends == {"link-full"}
                child.signal(signal.SIGCONT)
                another = await nodes[1].stream(stream.id)
                await eventually(
                    lambda: still in nodes[1].node.peer.neighbours(part), "it is back", 40.0
                )
                for number in range(20):
                    await another.publish(number.to_bytes(4))
                chain = f"{nodes[1].me}.{nodes[1].node.publications.chain(part)}"
                await eventually(lambda: heard(child, chain) == 20, "it hears what is new")

    run(main())


async def everyone_has_all(readers: Sequence[Reader], count: int) -> None:
    """Wait until each reader has each message, and see that it has it once."""
    await all_have(readers, count)
    for reader in readers:
        numbers = [int.from_bytes(content[:4]) for content in reader.contents]
        assert sorted(numbers) == list(range(count))


def are_rid_of(nodes: Sequence[Network], peer: NodeId) -> bool:
    """Tell whether none of the nodes has a link to a peer any more."""
    return not any(peer in network.node.driver.links for network in nodes)


def heard(child: Child, chain: str) -> int:
    """Return how many messages of a chain a process says it was delivered."""
    return int(child.last["stats"]["chains"].get(chain, {}).get("messages", 0))


# --- A slow link in a cycle -----------------------------------------------------------------


class Ring:
    """Four nodes in a ring, of which the first publishes, and their links."""

    def __init__(self, joined: Sequence[tuple[Network, ThrottledTransport]], stream: str) -> None:
        self.nodes = [network for network, _ in joined]
        self._part = StreamPart(stream, 0)
        self._transports = {network.node.node: transport for network, transport in joined}
        self._peers = {network.node.node: network.node.peer for network, _ in joined}

    def slow_down_links_of_publisher(self, bytes_per_s: float) -> None:
        """Make both links of the publisher slow."""
        publisher = self.nodes[0].node.node
        for peer in self._peers[publisher].neighbours(self._part):
            self._transports[publisher].bytes_per_s[peer] = bytes_per_s

    def slow_down_far_link(self, bytes_per_s: float) -> None:
        """Make a link slow of which neither end publishes."""
        publisher = self.nodes[0].node.node
        near = self._peers[publisher].neighbours(self._part)[0]
        [far] = set(self._peers[near].neighbours(self._part)) - {publisher}
        for one, other in ((near, far), (far, near)):
            self._transports[one].bytes_per_s[other] = bytes_per_s

    def losses(self) -> list[tuple[NodeId, str]]:
        """Return the links that ended, and why."""
        return [loss for transport in self._transports.values() for loss in transport.lost]

    def drops(self) -> dict[str, int]:
        """Return how many frames were dropped, by reason."""
        counted: dict[str, int] = {}
        for network in self.nodes:
            for reason, count in network.metrics["parts"][str(self._part)]["dropped"].items():
                counted[reason] = counted.get(reason, 0) + count
        return counted


async def join_throttled(live: LiveNetwork) -> tuple[Network, ThrottledTransport]:
    """Connect a node whose links can be made slow."""
    identity, address = new_key()[0], live.address
    transport = ThrottledTransport(WebSocketTransport(identity, address.genesis, "127.0.0.1"))
    network = Network(
        str(address), address.genesis, address.ws_urls, live.owner, identity, transport
    )
    return await live.enter(network), transport


def stretch_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pause last for as many turns of the loop as it does where nothing else runs."""
    pause_ms = min(MAX_PAUSE_MS, int(1000 * limit(0.1)))
    monkeypatch.setattr(slow_links, "PAUSE_MS", pause_ms)
    monkeypatch.setattr(congestion, "PAUSE_MS", pause_ms)
    monkeypatch.setattr(congestion, "CUT_AFTER_S", limit(congestion.CUT_AFTER_S))


def test_a_slow_link_in_a_cycle_slows_no_publisher_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 1_500, 16_000  # three times what an outbox holds
    stretch_pauses(monkeypatch)

    async def main() -> None:
        async with live_network(tmp_path) as live:
            joined = [await join_throttled(live) for _ in range(4)]
            stream = await joined[0][0].create_stream("ring", degree=2, public="subscribe")
            ring = Ring(joined, stream.id)
            readers = await read_everywhere(ring.nodes, stream.id)
            await eventually(
                lambda: all(neighbours(node, stream.id) == 2 for node in ring.nodes), "a ring"
            )
            ring.slow_down_far_link(8e6)
            async with watching(ring.nodes) as watch:
                await publish_all(stream, count, size)
                await everyone_has_all(readers, count)
            # Each end gets over the other way round what the slow link has no room for.
            assert watch.most["outbox frames"] > 0
            assert ring.losses() == []
            assert ring.drops().keys() <= {"link-full"}

    run(main())


def test_a_publisher_whose_links_are_slow_rests_and_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, size = 1_500, 16_000  # three times what an outbox holds
    stretch_pauses(monkeypatch)

    async def main() -> None:
        async with live_network(tmp_path) as live:
            joined = [await join_throttled(live) for _ in range(4)]
            stream = await joined[0][0].create_stream("ring", degree=2, public="subscribe")
            ring = Ring(joined, stream.id)
            readers = await read_everywhere(ring.nodes, stream.id)
            await eventually(
                lambda: all(neighbours(node, stream.id) == 2 for node in ring.nodes), "a ring"
            )
            ring.slow_down_links_of_publisher(8e6)
            async with watching(ring.nodes) as watch:
                await publish_all(stream, count, size)
                await everyone_has_all(readers, count)
            # An outbox that overflowed would have dropped frames, had the publisher not rested.
            assert watch.most["outbox frames"] > 0
            assert watch.most["waiting drafts"] > 0
            assert (ring.losses(), ring.drops()) == ([], {})

    run(main())
