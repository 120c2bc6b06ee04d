"""Joining a network: what connect() takes, what it says when it cannot, and how it ends."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch import (
    AnabranchError,
    Closed,
    LocalError,
    MemoryNetwork,
    Network,
    NetworkUnreachable,
    NoSuchStream,
    NotPermitted,
    StreamExists,
    connect,
)
from anabranch.core.ids import show
from anabranch.core.messages import ChainList, Control, Written
from anabranch.live.address import Host, NetworkAddress
from anabranch.live.keys import new_key, save_key
from live.networks import eventually, live_network, run
from live.readers import all_have, read, read_everywhere

IDENTITY, SECRET = new_key()
NOBODY = NetworkAddress(bytes(32), (Host("127.0.0.1", 1),))


# --- Joining --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda folder: IDENTITY,
        lambda folder: SECRET,
        lambda folder: SECRET.hex(),
        lambda folder: "0x" + SECRET.hex().upper(),
        lambda folder: folder / "my.key",
    ],
)
def test_a_key_is_taken_in_any_form(form: Callable[[Path], Any], tmp_path: Path) -> None:
    save_key(tmp_path / "my.key", SECRET)
    network = connect(str(NOBODY), key=form(tmp_path))
    assert network.me == show(IDENTITY.node)
    assert network.address == str(NOBODY)


def test_without_a_key_or_with_a_wrong_one_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"give a key.*anabranch key new"):
        connect(str(NOBODY))
    with pytest.raises(LocalError, match="64 hexadecimal digits"):
        connect(str(NOBODY), key="secret")
    with pytest.raises(LocalError, match="make one with `anabranch key new"):
        connect(str(NOBODY), key=tmp_path / "none.key")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "127.0.0.1:7700"}, "neither anabranch:// nor"),
        ({"address": f"anabranch://{'0' * 63}@127.0.0.1"}, "64 hexadecimal digits"),
        ({"profile": "home"}, "not both"),
        ({"listen": "7700"}, "host:port"),
        ({"listen": "0.0.0.0:0"}, "advertise"),
        ({"advertise": "example.org"}, "ws://host:port"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_dialled(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(LocalError, match=said):
        connect(**{"address": str(NOBODY), "key": IDENTITY, **options})


def test_a_tracker_that_is_not_running_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(NetworkUnreachable, match=r"nothing listens at ws://127\.0\.0\.1:1"):
            async with connect(str(NOBODY), key=IDENTITY):
                raise AssertionError("it cannot be entered")
        async with live_network(tmp_path) as live:
            gone = live.address
            await live.trackers.pop().stop()
        with pytest.raises(NetworkUnreachable, match=r"nothing listens.*is the tracker running"):
            await connect(str(gone), key=IDENTITY).__aenter__()

    run(main())


def test_what_is_no_tracker_is_told_from_one(tmp_path: Path) -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = NetworkAddress(bytes(32), (Host("127.0.0.1", port),))
        with pytest.raises(NetworkUnreachable, match="no Anabranch node answers"):
            await connect(str(address), key=IDENTITY).__aenter__()
        server.close()
        await server.wait_closed()

    run(main())


def test_another_network_than_the_one_named_is_not_joined(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            wrong = NetworkAddress(bytes(32), live.address.hosts)
            with pytest.raises(NetworkUnreachable, match="this is another network.*" + "00" * 32):
                await connect(str(wrong), key=IDENTITY).__aenter__()

    run(main())


def test_the_first_host_that_answers_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            hosts = (Host("127.0.0.1", 1), *live.address.hosts)
            address = NetworkAddress(live.address.genesis, hosts)
            async with connect(str(address), key=IDENTITY) as network:
                assert [t["address"] for t in await network.trackers()] == [
                    live.trackers[0].transport.address
                ]

    run(main())


def test_a_port_of_ones_own_choice_and_one_that_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            async with live_network(tmp_path) as live:
                with pytest.raises(Exception, match=f"port {port} of 127.0.0.1 is in use"):
                    await live.join(listen=f"127.0.0.1:{port}")
                node = await live.join(listen="127.0.0.1:0", advertise="ws://localhost:7")
                assert node.node.address == "ws://localhost:7"

    run(main())


# --- Streams --------------------------------------------------------------------------------


def test_a_stream_is_created_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(2)]
            stream = await nodes[0].create_stream("one", partitions=3, degree=5, metadata="{}")
            assert stream.id == f"{nodes[0].me}/one"
            for node in nodes:
                with pytest.raises(StreamExists, match="exist_ok, --exist-ok"):
                    await node.create_stream("one")
                same = await node.create_stream("one", partitions=7, exist_ok=True)
                assert (same.id, same.partitions) == (stream.id, 3)
            info = (await nodes[1].stream("one")).info()
            assert (info["degree"], info["metadata"], info["partitions"]) == (5, "{}", 3)
            assert await nodes[1].streams() == [stream.id]

    run(main())


def test_of_many_who_create_a_stream_at_once_one_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes = [await live.join() for _ in range(5)]
            results = await asyncio.gather(
                *(node.create_stream("race", partitions=i + 1) for i, node in enumerate(nodes)),
                return_exceptions=True,
            )
            won = [i for i, result in enumerate(results) if not isinstance(result, Exception)]
            assert len(won) == 1
            assert sum(isinstance(result, StreamExists) for result in results) == 4
            for node in nodes:
                assert (await node.stream("race")).partitions == won[0] + 1
            taken = await asyncio.gather(
                *(node.create_stream("other", exist_ok=True) for node in nodes)
            )
            assert {stream.id for stream in taken} == {f"{nodes[0].me}/other"}

    run(main())


def test_a_stream_that_is_not_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node = await live.join()
            with pytest.raises(NoSuchStream, match="anabranch stream list"):
                await node.stream("nowhere")
            with pytest.raises(LocalError):
                await node.stream("a//b#c")
            with pytest.raises(NotPermitted, match="forbidden"):
                await node.create_stream("0x" + "11" * 20 + "/not-mine")
            assert await node.streams() == []

    run(main())


def test_streams_are_listed_by_prefix(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            node, other = await live.join(), await live.join(IDENTITY)
            for path in ("b", "a/1", "a/2"):
                await node.create_stream(path)
            await other.create_stream("a/1")
            mine, its = node.me, other.me
            assert await other.streams(f"{mine}/a/") == [f"{mine}/a/1", f"{mine}/a/2"]
            assert await other.streams(its) == [f"{its}/a/1"]
            assert len(await node.streams()) == 4

    run(main())


# --- The end --------------------------------------------------------------------------------


def test_nothing_can_be_done_before_or_after(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            network = connect(str(live.address), key=live.owner)
            with pytest.raises(LocalError, match="join the network first"):
                await network.create_stream("early")
            async with network:
                stream = await network.create_stream("late")
                reader = await read(stream)
                with pytest.raises(LocalError, match="connect again"):
                    await network.__aenter__()
            await reader.ended
            assert reader.failure is None
            uses = [
                lambda: network.create_stream("more"),
                lambda: network.stream("late"),
                network.streams,
                lambda: stream.publish("late"),
                stream.delete,
                lambda: read(stream),
            ]
            for use in uses:
                with pytest.raises(Closed, match="connect again"):
                    await use()
            await network.close()  # once more does no harm
            with pytest.raises(LocalError, match="connect again"):
                await network.__aenter__()

    run(main())


def test_one_key_in_two_connections_is_two_nodes(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            nodes: list[Network] = [await live.join(IDENTITY) for _ in range(2)]
            assert nodes[0].me == nodes[1].me
            stream = await nodes[0].create_stream("mine")
            readers = await read_everywhere(nodes, stream.id)
            streams = [await node.stream("mine") for node in nodes]
            ids = await asyncio.gather(*(streams[i % 2].publish(i) for i in range(40)))
            assert {i.publisher for i in ids} == {nodes[0].me}
            assert len({i.chain for i in ids}) == 2
            await all_have(readers, 40)
            for reader in readers:
                assert sorted(reader.contents) == list(range(40))
                assert {message.id for message in reader.messages} == set(ids)

    run(main())


def test_an_error_in_the_body_ends_the_connection_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with live_network(tmp_path) as live:
            begun: list[asyncio.Task[Any]] = []

            async def fail() -> None:
                async with connect(str(live.address), key=live.owner) as network:
                    stream = await network.create_stream("left")
                    begun.append(asyncio.create_task(stream.publish("to nobody")))
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            with pytest.raises(Closed):
                await begun[0]
            tracker = live.trackers[0]
            await eventually(lambda: not tracker.driver.links, "the node to be gone")

    run(main())


def test_who_is_tired_of_waiting_for_the_next_message_may_ask_again() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice, memory.join() as bob:
            stream = await alice.create_stream("a")
            async with (await bob.stream(stream.id)).subscribe() as messages:
                reading = aiter(messages)
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(reading), 0.01)
                await stream.publish("at last")
                assert (await anext(reading)).content == "at last"

    run(main())


def test_leaving_that_is_cancelled_leaves_all_the_same() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as alice:
            stream = await alice.create_stream("a")
            waiting = asyncio.create_task(stream.publish("nobody is there"))
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(alice.close(), 0.05)
            await alice.close()  # as one who comes too late
            with pytest.raises(Closed):
                await waiting
            assert alice.node.node not in memory.hub.transports

    run(main())


def test_a_tracker_that_lists_streams_without_end_is_told_from_one_that_lists_them() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as network:
            names = [(await network.create_stream(f"s/{at}")).id for at in range(3)]
            assert await network.streams() == sorted(names)

            async def always_the_same(message: Control) -> ChainList:
                return ChainList(0, tuple(sorted(names)), more=True)

            network.node.request = always_the_same  # type: ignore[method-assign]
            with pytest.raises(AnabranchError, match="out of order"):
                await network.streams()

    run(main())


def test_a_registry_that_is_busy_is_asked_again() -> None:
    async def main() -> None:
        async with MemoryNetwork() as memory, memory.join() as network:
            ask, refusals = network.node.request, [Written(0, 0, "busy: try again soon")] * 2

            async def busy_at_first(message: Control) -> Control:
                return refusals.pop() if refusals else await ask(message)

            network.node.request = busy_at_first  # type: ignore[method-assign]
            stream = await network.create_stream("in/the/end")
            assert await network.streams() == [stream.id]
            assert refusals == []

    run(main())
