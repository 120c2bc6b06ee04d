"""Checks of an address: only the node that holds the key passes, and no link is made or lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck
from anabranch.live.transports.checks import Targets, is_this_machine
from anabranch.live.transports.limits import parse_prefix
from live.transports.endpoints import (
    LARGE,
    LOOPS,
    MIDDLE,
    QUICK,
    SMALL,
    Endpoint,
    run,
    started,
    until,
)


async def checked(
    home: Endpoint, peer: NodeId, address: str, seen: str = "", is_outside: bool = False
) -> bool:
    """Let an endpoint check an address; the answer never comes before the call returns."""
    answers: list[bool] = []
    home.transport.check(DialCheck(peer, address, seen, is_outside), answers.append)
    assert answers == []
    await until(lambda: answers)
    await asyncio.sleep(0.02)
    assert len(answers) == 1
    return answers[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_check_of_a_node_succeeds_and_makes_no_link(loop: str) -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, other):
            assert await checked(home, LARGE.node, other.address)
            await until(lambda: not other.transport.sizes()["wires"])
            assert home.owner.ups == other.owner.ups == []
            assert other.owner.downs == home.owner.downs == []
            assert home.transport.sizes()["wires"] == home.transport.sizes()["tasks"] == 0

    run(test(), loop)


def test_check_leaves_the_link_that_stands_as_it_is() -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, other):
            other.dial(home)
            await until(lambda: home.owner.links and other.owner.links)
            assert home.link(other).host == "127.0.0.1"
            assert other.link(home).host == ""
            assert await checked(home, LARGE.node, other.address)
            await asyncio.sleep(4 * QUICK.crossing_s)  # after which a second link replaces one
            assert home.owner.downs == other.owner.downs == []
            home.link(other).send(b"still there")
            await until(lambda: other.owner.packets == [b"still there"])

    run(test())


def test_check_of_an_address_where_another_node_answers_fails() -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL), Endpoint(MIDDLE)
        async with started(home, other):
            assert not await checked(home, LARGE.node, other.address)
            assert not await checked(home, LARGE.node, home.address)  # its own

    run(test())


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("serve", [silent, web])
def test_check_of_another_server_fails_in_time(serve: Callable[..., Any]) -> None:
    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        quick = type(QUICK)(crossing_s=0.05, linger_s=0.5, tick_s=0.01, dial_s=0.3)
        home = Endpoint(SMALL, timing=quick)
        async with started(home):
            assert not await checked(home, LARGE.node, f"ws://127.0.0.1:{port}")
        server.close()

    run(test())


@pytest.mark.parametrize("address", ["", "junk", "ws://127.0.0.1:1", "ws://nowhere.invalid:80"])
def test_check_of_what_cannot_be_dialled_fails(address: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            assert not await checked(home, LARGE.node, address)

    run(test())


def test_check_for_a_node_outside_does_not_connect_to_an_internal_host() -> None:
    async def test() -> None:
        connections: list[object] = []

        async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(writer)
            writer.close()

        server = await asyncio.start_server(count, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        home = Endpoint(SMALL)
        async with started(home):
            # A name, a number and another form of an address that is not recognised by its text.
            for host in ("localhost", "2130706433", "127.1", "127.0.0.1"):
                address = f"ws://{host}:{port}"
                assert not await checked(home, LARGE.node, address, "93.184.215.7", True), host
            assert connections == []
            assert not await checked(home, LARGE.node, f"ws://localhost:{port}", "127.0.0.1")
            assert len(connections) == 1
        server.close()

    run(test())


def test_check_for_a_node_outside_connects_to_the_host_that_it_is_seen_at() -> None:
    async def test() -> None:
        home, other = Endpoint(SMALL), Endpoint(LARGE)
        async with started(home, other):
            assert await checked(home, LARGE.node, other.address, "127.0.0.1", True)
            assert not await checked(home, LARGE.node, other.address, "127.0.0.2", True)

    run(test())


@pytest.mark.parametrize(
    ("ip", "port", "seen", "is_outside", "expected"),
    [
        ("93.184.215.7", 80, "93.184.215.7", True, True),
        ("93.184.215.8", 80, "93.184.215.7", True, True),
        ("10.0.0.3", 80, "93.184.215.7", True, False),
        ("10.0.0.3", 80, "10.0.0.9", False, True),
        ("169.254.169.254", 80, "", True, False),
        ("127.0.0.1", 80, "127.0.0.1", False, True),
        ("127.0.0.1", 7701, "127.0.0.1", False, False),  # the tracker's own port
        ("127.0.0.1", 7701, "127.0.0.1", True, False),
        ("::1", 80, "93.184.215.7", True, False),
        ("::ffff:10.0.0.3", 80, "93.184.215.7", True, False),
        ("198.51.99.4", 80, "93.184.215.7", True, False),  # a proxy
        ("198.51.99.4", 80, "198.51.99.4", False, False),
    ],
)
def test_target_of_a_check_is_judged_by_its_address(
    ip: str, port: int, seen: str, is_outside: bool, expected: bool
) -> None:
    check = DialCheck(LARGE.node, "ws://example.org:80", seen, is_outside)
    assert Targets(check, 7701, [parse_prefix("198.51.99.0/24")]).admits(ip, port) is expected


def test_address_of_this_machine_is_recognised() -> None:
    assert is_this_machine("127.0.0.1")
    assert not is_this_machine("93.184.215.7")
    assert not is_this_machine("no address")
