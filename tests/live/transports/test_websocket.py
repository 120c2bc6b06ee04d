"""Listening, dialling and stopping: addresses, limits, texts that help, and nothing left behind."""

import asyncio
import gc
import shutil
import socket
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from picows import WSInvalidStatusError

from anabranch.core.errors import LocalError
from anabranch.live.transports import TransportError
from anabranch.live.transports.connection import Connection
from anabranch.live.transports.timing import Timing
from anabranch.live.transports.websocket import Limits, WebSocketTransport
from live.transports.endpoints import (
    LARGE,
    LOOPS,
    MIDDLE,
    NETWORK,
    SMALL,
    Endpoint,
    Owner,
    linked,
    proved_client,
    raw_client,
    run,
    silent_address,
    started,
    until,
)

both_loops = pytest.mark.parametrize("loop", LOOPS)


# --- Addresses ------------------------------------------------------------------------------


@both_loops
def test_the_address_has_the_port_that_was_free(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        assert home.address == ""
        async with started(home):
            assert home.address.startswith("ws://127.0.0.1:")
            assert int(home.address.rpartition(":")[2]) > 0

    run(test(), loop)


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_other_ways_to_name_this_machine(host: str) -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL, host=host), Endpoint(LARGE, host=None)
        try:
            await home.transport.start(home.owner)
        except TransportError as error:
            pytest.skip(f"this machine does not listen on {host}: {error}")
        await other.transport.start(other.owner)
        assert await other.transport.find(home.address) == SMALL.node
        await home.transport.stop()
        await other.transport.stop()

    run(test())


def test_who_does_not_listen_has_no_address_and_can_dial() -> None:
    async def test() -> None:
        home, quiet = Endpoint(SMALL), Endpoint(LARGE, host=None)
        async with started(home, quiet):
            assert quiet.address == ""
            await linked(quiet, home)
            home.link(quiet).send(b"hello")
            await until(lambda: quiet.owner.packets == [b"hello"])

    run(test())


def test_an_advertised_address_is_told_instead() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, host="0.0.0.0", advertise="wss://example.org:443/node")
        async with started(home):
            assert home.address == "wss://example.org:443/node"

    run(test())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"host": "0.0.0.0"}, "advertise"),
        ({"host": "::"}, "advertise"),
        ({"host": ""}, "advertise"),
        ({"advertise": "example.org"}, "write ws://host:port"),
        ({"advertise": "ws://" + "x" * 255}, "write ws://host:port"),
    ],
)
def test_what_nobody_could_dial_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(LocalError, match=text):
        WebSocketTransport(SMALL, NETWORK, **options)  # type: ignore[arg-type]


def test_a_network_has_a_name_of_32_bytes() -> None:
    with pytest.raises(LocalError, match="32 bytes"):
        WebSocketTransport(SMALL, b"short")


@both_loops
def test_a_port_in_use_is_named(loop: str) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            home = Endpoint(SMALL, port=port)
            with pytest.raises(TransportError, match=f"port {port} .* is in use: .* choose"):
                await home.transport.start(home.owner)
            await home.transport.stop()

    run(test(), loop)


# --- Finding --------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize(
    ("network", "text"),
    [(b"o" * 32, "this is another network"), (NETWORK, "own address")],
)
def test_find_explains_who_is_there(network: bytes, text: str, loop: str) -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL), Endpoint(SMALL, network)
        async with started(home, other):
            with pytest.raises(TransportError, match=text):
                await other.transport.find(home.address)
            assert (other.owner.ups, other.owner.downs) == ([], [])

    run(test(), loop)


@both_loops
def test_find_explains_that_nobody_answers(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(dial_s=0.1, tick_s=0.01))
        with silent_address() as silent:
            async with started(home):
                with pytest.raises(TransportError, match=r"no answer from .* within 0.1 s"):
                    await home.transport.find(silent)

    run(test(), loop)


@both_loops
def test_find_explains_that_there_is_no_way(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            with pytest.raises(TransportError, match="cannot be reached"):
                await home.transport.find("ws://255.255.255.255:1")  # never a node's address

    run(test(), loop)


async def serve_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be some other server."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    writer.close()
    await writer.wait_closed()


@both_loops
def test_find_explains_that_this_is_no_node(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        server = await asyncio.start_server(serve_http, "127.0.0.1", 0)
        address = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with started(home), server:
            with pytest.raises(TransportError, match="no Anabranch node answers at"):
                await home.transport.find(address)
            home.transport.dial(LARGE.node, address)
            await until(lambda: home.owner.downs)
            assert home.owner.downs == [(LARGE.node, "not-a-node")]

    run(test(), loop)


def test_a_find_that_is_given_up_leaves_nothing() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        with silent_address() as silent:
            async with started(home):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(home.transport.find(silent), 0.05)
                await until(lambda: set(home.transport.sizes().values()) == {0})

    run(test())


def test_a_stop_ends_what_is_being_dialled() -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        with silent_address() as silent:
            await home.transport.start(home.owner)
            home.transport.dial(LARGE.node, silent)
            finding = asyncio.create_task(home.transport.find(silent))
            await asyncio.sleep(0)
            await home.transport.stop()
            with pytest.raises(TransportError, match="stopped"):
                await finding
            home.transport.dial(MIDDLE.node, silent)
            with pytest.raises(TransportError, match="stopped"):
                await home.transport.find(silent)
            assert home.owner.downs == []
            assert set(home.transport.sizes().values()) == {0}

    run(test())


# --- Limits ---------------------------------------------------------------------------------


async def refused(address: str) -> int:
    with pytest.raises(WSInvalidStatusError) as caught:
        await raw_client(address)
    assert caught.value.response is not None
    return int(caught.value.response.status)


@both_loops
def test_one_address_may_have_so_many_pending_and_the_oldest_makes_room(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(pending_per_address=2))
        other = Endpoint(LARGE)
        async with started(home, other):
            clients = [await raw_client(home.address) for _ in range(3)]
            await until(lambda: clients[0].gone)
            assert not any(client.gone for client in clients[1:])
            assert home.transport.sizes()["pending"] == 2
            await linked(other, home)  # a node that proves itself gets in
            await until(lambda: clients[1].gone)
            assert not clients[2].gone

    run(test(), loop)


def test_place_with_most_pending_connections_makes_room_for_another() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(pending=8, pending_per_address=2))
        async with started(home):
            port = int(home.address.rpartition(":")[2])
            with ExitStack() as sockets:

                def come(host: int) -> socket.socket:
                    source = (f"127.0.0.{host}", 0)
                    opened = socket.create_connection(("127.0.0.1", port), source_address=source)
                    opened.setblocking(False)
                    return sockets.enter_context(opened)

                few = [come(host) for host in (2, 3, 4, 5)]
                many = [come(host) for host in (6, 6, 7, 7)]
                await until(lambda: home.transport.sizes()["pending"] == 8)
                newcomer = come(8)
                assert await asyncio.get_running_loop().sock_recv(many[0], 1) == b""
                for open_ in (*few, *many[1:], newcomer):
                    with pytest.raises(BlockingIOError):
                        open_.recv(1)
                assert home.transport.sizes()["pending"] == 8

    run(test())


@pytest.mark.parametrize(
    "address", ["ws://user@\xe9.example:1", "ws://@*\xe9?", "ws://a@127.0.0.1:1"]
)
def test_dial_of_an_address_with_a_user_fails_and_nothing_else(address: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            home.transport.dial(LARGE.node, address)
            await until(lambda: home.owner.downs)
            assert home.owner.downs == [(LARGE.node, "bad-address")]

    run(test())


def test_one_address_may_have_so_many_links_and_no_more() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(links_per_address=1))
        async with started(home):
            client = await proved_client(home.address, LARGE)
            assert await refused(home.address) == 429
            client.socket.disconnect()
            await until(lambda: home.owner.downs)
            await until(lambda: home.transport.sizes()["wires"] == 0)
            await proved_client(home.address, MIDDLE)

    run(test())


def test_one_address_may_come_so_often_and_no_more() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(burst=3, per_s=0.0))
        async with started(home):
            for _ in range(3):
                client = await raw_client(home.address)
                client.socket.disconnect()
            assert await refused(home.address) == 429
            # Who dials from here is somebody else's burden.
            other = Endpoint(LARGE)
            async with started(other):
                await linked(home, other)

    run(test())


def test_refusals_are_bounded_too() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(pending=0, refusals=2))
        async with started(home):
            host, port = home.address.removeprefix("ws://").split(":")
            with ExitStack() as sockets:
                for expected in (1, 2):
                    sockets.enter_context(socket.create_connection((host, int(port))))
                    await until(lambda e=expected: home.transport.sizes()["refusing"] == e)
                third = sockets.enter_context(socket.create_connection((host, int(port))))
                third.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(third, 1) == b""
                assert home.transport.sizes()["refusing"] == 2
            await until(lambda: home.transport.sizes()["refusing"] == 0)

    run(test())


def test_dials_under_way_are_bounded() -> None:
    async def test() -> None:
        home = Endpoint(SMALL, limits=Limits(dials=1))
        with silent_address() as silent:
            async with started(home):
                home.transport.dial(LARGE.node, silent)
                home.transport.dial(MIDDLE.node, silent)
                assert home.owner.downs == []
                await until(lambda: home.owner.downs)
                assert home.owner.downs == [(MIDDLE.node, "too-many-dials")]

    run(test())


# --- Nothing left behind --------------------------------------------------------------------


def connections() -> int:
    """Count the connections that anything still refers to, this test or one before it."""
    gc.collect()
    return sum(1 for kept in gc.get_objects() if type(kept) is Connection)


@both_loops
def test_two_hundred_reconnections_leave_nothing(loop: str) -> None:
    async def test() -> None:
        one, other = Endpoint(SMALL), Endpoint(LARGE)
        async with started(one, other):
            tasks = asyncio.all_tasks()
            before = connections()
            for number in range(200):
                await linked(one, other)
                ending, hearing = (one, other) if number % 2 else (other, one)
                ending.owner.links.pop(hearing.node).close("again")
                await until(lambda h=hearing: not h.owner.links)
            for endpoint in (one, other):
                await until(lambda e=endpoint: set(e.transport.sizes().values()) == {0})
            assert asyncio.all_tasks() == tasks
            assert connections() < before + 10

    run(test(), loop)


# --- TLS ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is needed to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(made)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return key, made


@both_loops
def test_links_over_tls(certificate: tuple[Path, Path], loop: str) -> None:
    key, made = certificate
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listening.load_cert_chain(made, key)
    trusting = ssl.create_default_context(cafile=str(made))

    async def test() -> None:
        home = Endpoint(SMALL, ssl=listening)
        friend = Endpoint(LARGE, client_ssl=trusting)
        stranger = Endpoint(MIDDLE)
        async with started(home, friend, stranger):
            assert home.address.startswith("wss://127.0.0.1:")
            await linked(friend, home)
            sent = [bytes([number]) * 60_000 for number in range(100)]
            for packet in sent:
                friend.link(home).send(packet)
            home.link(friend).send(b"hello")
            await until(lambda: home.owner.packets == sent and friend.owner.packets == [b"hello"])
            with pytest.raises(TransportError, match="client_ssl"):
                await stranger.transport.find(home.address)
            with pytest.raises(TransportError, match="no Anabranch node answers"):
                await stranger.transport.find(home.address.replace("wss", "ws"))

    run(test(), loop)


def test_an_owner_is_all_that_a_transport_needs() -> None:
    async def test() -> None:
        transport = WebSocketTransport(SMALL, NETWORK)
        await transport.start(Owner())
        await transport.stop()

    run(test())
