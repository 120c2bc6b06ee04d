"""The socket below a connection, before anybody has proved anything."""

import asyncio

import pytest

from anabranch.live.transports.timing import Timing
from anabranch.live.transports.wire import MAX_UNPROVED_BYTES
from live.transports.endpoints import LOOPS, SMALL, Endpoint, raw_client, run, started, until

both_loops = pytest.mark.parametrize("loop", LOOPS)


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@both_loops
def test_who_has_proved_nothing_cannot_fill_our_memory(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            client = await raw_client(home.address)
            client.say(bytes(2 * MAX_UNPROVED_BYTES))
            await until(lambda: client.gone)
            assert client.closed is None  # without a word
            await until(lambda: home.transport.sizes()["wires"] == 0)

    run(test(), loop)


@both_loops
@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"HTTP/1.1 400"),
    ],
)
def test_what_is_no_upgrade_is_refused(request_line: bytes, answer: bytes, loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL)
        async with started(home):
            host, port = home.address.removeprefix("ws://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request_line)
            assert (await rest_of(reader)).startswith(answer)
            writer.close()
            await writer.wait_closed()
            await until(lambda: home.transport.sizes()["wires"] == 0)

    run(test(), loop)


@both_loops
def test_who_connects_and_asks_for_nothing_is_shown_out(loop: str) -> None:
    async def test() -> None:
        home = Endpoint(SMALL, timing=Timing(dial_s=0.1, tick_s=0.01))
        async with started(home):
            host, port = home.address.removeprefix("ws://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await rest_of(reader) == b""
            writer.close()
            await writer.wait_closed()
            assert home.transport.sizes()["pending"] == 0

    run(test(), loop)
