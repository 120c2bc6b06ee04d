"""Trackers that die and come back, over real sockets: overlays carry on, and nodes find others."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from anabranch import Network, NetworkUnreachable, Stream, connect
from anabranch.core.ids import NodeId, StreamPart, show
from anabranch.core.rendezvous import trackers_for
from anabranch.live.address import NetworkAddress
from anabranch.live.keys import new_key
from anabranch.live.tracker import TrackerProcess
from anabranch.live.transports import Link
from live.networks import (
    LiveNetwork,
    eventually,
    live_network,
    neighbours,
    restart_tracker,
    run,
    traffic,
)
from live.readers import Reader, all_have, read, read_everywhere

DEGREE = 4
NODES = 6  # one more than DEGREE needs, so that there is more than one way to be linked
BACK_S = 45.0  # who was away is dialled again at longer and longer intervals


def path_served_by(live: LiveNetwork, index: int, owner: str) -> str:
    """Return the path of a stream for which this tracker is the first."""
    entries = [tracker.entry() for tracker in live.trackers]
    for number in range(1_000):
        part = StreamPart(f"{owner}/stream-{number}", 0)
        if trackers_for(part, entries)[0].node == entries[index].node:
            return f"stream-{number}"
    raise AssertionError("rendezvous hashing favours one tracker")


async def topology(tracker: TrackerProcess, stream: str) -> dict[str, set[str]]:
    """Ask a tracker, over HTTP, who is whose neighbour; nothing if the stream is not there."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{tracker.http.address}/topology", params={"stream": stream}) as answer,
    ):
        if answer.status == 404:
            return {}
        nodes: dict[str, Any] = (await answer.json())["parts"][0]["topology"]
    return {name: {peer["node"] for peer in node["neighbours"]} for name, node in nodes.items()}


def own_topology(nodes: list[Network], stream: str) -> dict[NodeId, tuple[NodeId, ...]]:
    """Return who is whose neighbour, as the nodes themselves have it."""
    return {n.node.node: n.node.peer.neighbours(StreamPart(stream, 0)) for n in nodes}


def shown(found: dict[NodeId, tuple[NodeId, ...]]) -> dict[str, set[str]]:
    return {show(node): {show(peer) for peer in peers} for node, peers in found.items()}


def links_between(nodes: list[Network]) -> dict[tuple[NodeId, NodeId], Link]:
    """Return the links that nodes have to each other; a link that was lost and made is another."""
    names = {network.node.node for network in nodes}
    return {
        (network.node.node, peer): link
        for network in nodes
        for peer, link in network.node.driver.links.items()
        if peer in names
    }


async def members(live: LiveNetwork, path: str) -> tuple[list[Network], list[Reader], Stream]:
    """Let nodes read a new stream; return them, their readers, and the publisher's stream."""
    publisher = await live.join()
    stream = await publisher.create_stream(path, degree=DEGREE)
    listeners = [await live.join() for _ in range(NODES - 1)]
    readers = await read_everywhere(listeners, stream.id)
    await stream.publish("the publisher is in the overlay, too")
    nodes = [publisher, *listeners]
    await eventually(
        lambda: all(neighbours(node, stream.id) == DEGREE for node in nodes), "all neighbours"
    )
    await all_have(readers, 1)
    for reader in readers:
        reader.messages.clear()
    return nodes, readers, stream


async def settled(live: LiveNetwork, index: int, nodes: list[Network], stream: str) -> None:
    """Wait until a tracker says of the overlay what its nodes say of it."""
    tracker = live.trackers[index].machine.tracker
    part = StreamPart(stream, 0)
    await eventually(
        lambda: tracker.topology(part) == own_topology(nodes, stream),
        "the tracker and the nodes agree",
        BACK_S,
    )
    assert await topology(live.trackers[index], stream) == shown(own_topology(nodes, stream))


async def nothing_lost(readers: list[Reader], published: list[int]) -> None:
    """Wait until everybody has everything, once; while neighbours change, order may too."""
    await all_have(readers, len(published))
    assert [sorted(reader.contents) for reader in readers] == [published] * len(readers)


async def complete_from_its_first(late: Reader, published: list[int]) -> None:
    """Wait until a newcomer has everything since the first message that it got, once."""
    await eventually(lambda: published[-1] in late.contents, "the newcomer has the last message")
    assert sorted(late.contents) == published[min(late.contents) :]


def test_nodes_of_a_dead_tracker_move_to_the_next_and_newcomers_join_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            path = path_served_by(live, 1, show(live.owner.node))
            nodes, readers, stream = await members(live, path)
            assert await topology(live.trackers[0], stream.id) == {}
            before = links_between(nodes)
            async with traffic(stream) as published:
                await live.trackers[1].stop()
                await settled(live, 0, nodes, stream.id)
                # The next tracker has taken over the links as it found them.
                assert links_between(nodes) == before
                newcomer = await live.join()
                late = await read(await newcomer.stream(stream.id))
                await eventually(lambda: bool(late.messages), "a newcomer hears something")
                await settled(live, 0, [*nodes, newcomer], stream.id)
            await nothing_lost(readers, published)
            await complete_from_its_first(late, published)

    run(main())


def test_a_restarted_tracker_takes_over_what_its_nodes_report(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes, readers, stream = await members(live, "restart")
            await settled(live, 0, nodes, stream.id)
            before, links = own_topology(nodes, stream.id), links_between(nodes)
            async with traffic(stream) as published:
                await live.trackers[0].stop()
                await restart_tracker(live, 0)
                assert live.trackers[0].machine.tracker.parts() == []
                await settled(live, 0, nodes, stream.id)
            await nothing_lost(readers, published)
            assert own_topology(nodes, stream.id) == before
            assert links_between(nodes) == links

    run(main())


def test_nodes_return_to_their_first_tracker(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            path = path_served_by(live, 0, show(live.owner.node))
            nodes, readers, stream = await members(live, path)
            async with traffic(stream) as published:
                await live.trackers[0].stop()
                await settled(live, 1, nodes, stream.id)
                await restart_tracker(live, 0)
                await settled(live, 0, nodes, stream.id)
                second = live.trackers[1].machine.tracker
                await eventually(lambda: second.parts() == [], "the second tracker is left")
            await nothing_lost(readers, published)

    run(main(), timeout_s=90.0)


def test_overlays_carry_while_every_tracker_is_dead(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            nodes, readers, stream = await members(live, "headless")
            links = links_between(nodes)
            async with traffic(stream) as published:
                for tracker in live.trackers:
                    await tracker.stop()
                so_far = len(published)
                await eventually(lambda: len(published) > so_far + 100, "publishing goes on")
                with pytest.raises(NetworkUnreachable, match="is the tracker running"):
                    await connect(str(live.address), key=live.owner).__aenter__()
                assert links_between(nodes) == links
                for index in range(2):
                    await restart_tracker(live, index)
                newcomer = await live.join()
                late = await read(await newcomer.stream(stream.id))
                await eventually(lambda: bool(late.messages), "a newcomer hears something", BACK_S)
            await nothing_lost(readers, published)
            await complete_from_its_first(late, published)

    run(main(), timeout_s=90.0)


async def serve_read(live: LiveNetwork, stream: str) -> None:
    """See that a new node can read of a stream; the trackers that are alive tell it."""
    reader = await live.join()
    assert (await reader.stream(stream)).info()["metadata"] == "kept"


def test_the_registry_outlives_its_writer(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            live.address = NetworkAddress(
                live.address.genesis,
                (*live.trackers[0].address.hosts, *live.trackers[1].address.hosts),
            )
            second = live.trackers[1].machine
            owner = await live.join()
            kept = await owner.create_stream("kept", metadata="kept")
            await eventually(lambda: kept.id in second.keeper.streams(), "the second's copy")
            await live.trackers[0].stop()
            await serve_read(live, kept.id)
            # The second tracker takes over, and the first finds what was written meanwhile.
            meanwhile = await owner.create_stream("meanwhile")
            assert second.keeper.streams() == [kept.id, meanwhile.id]
            await restart_tracker(live, 0)
            first = live.trackers[0].machine
            await eventually(lambda: first.keeper.digest == second.keeper.digest, "one registry")
            await eventually(lambda: not second.succession.writes(owner.node.driver.now()), "back")
            after = await owner.create_stream("after")
            await eventually(lambda: first.keeper.digest == second.keeper.digest, "one registry")
            assert sorted(first.keeper.streams()) == sorted([kept.id, meanwhile.id, after.id])
            await live.trackers[1].stop()
            await serve_read(live, kept.id)

    run(main())


def test_every_tracker_serves_some_of_many_streams(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path, trackers=2) as live:
            member = await live.join()
            for number in range(40):
                stream = await member.create_stream(f"many/{number}")
                await read(stream)
            trackers = [tracker.machine.tracker for tracker in live.trackers]
            await eventually(lambda: sum(len(t.parts()) for t in trackers) == 40, "all are served")
            entries = [tracker.entry() for tracker in live.trackers]
            for tracker in trackers:
                assert tracker.parts()
                for part in tracker.parts():
                    assert trackers_for(part, entries)[0].node == tracker.me.node

    run(main())


def test_an_owner_may_name_trackers_that_the_network_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live, AsyncExitStack() as stack:
            own = TrackerProcess(tmp_path / "own", join=live.address, owner=new_key()[0])
            await own.start()
            stack.push_async_callback(own.stop)
            assert not await own.take_place()
            nodes = [await live.join() for _ in range(3)]
            entry = own.entry()
            created = await nodes[0].create_stream("own", trackers=[entry.contact])
            readers = await read_everywhere(nodes, created.id)
            await created.publish("over its own tracker")
            await all_have(readers, 1)
            assert set(await topology(own, created.id)) == {show(n.node.node) for n in nodes}
            assert live.trackers[0].machine.tracker.parts() == []
            assert created.info()["trackers"] == [show(entry.node)]

    run(main())
