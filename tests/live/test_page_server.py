"""Pages under attack: idle connections, slow requests, readers that read nothing."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from anabranch import connect
from anabranch.live.keys import load_or_make_key
from anabranch.live.page_server import PageLimits, PageServer, _Gate
from live.networks import eventually, run

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def say_hello(request: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


async def close(writers: Sequence[asyncio.StreamWriter]) -> None:
    """Close connections, some of which the other side has ended already."""
    for writer in writers:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


class Site:
    """Pages that are served, and connections to them."""

    def __init__(self, server: PageServer, address: str) -> None:
        self.server = server
        self.url = address
        place = urlsplit(address)
        self.place = (str(place.hostname), int(place.port or 0))
        self.opened: list[asyncio.StreamWriter] = []

    async def open(self, text: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection(*self.place)
        self.opened.append(writer)
        writer.write(text)
        await writer.drain()
        return reader, writer

    async def get(self) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + "/") as response:
            return response.status, await response.text()


@asynccontextmanager
async def site(handler: Handler = say_hello, **limits: float) -> AsyncIterator[Site]:
    server = PageServer("test", "127.0.0.1", 0, PageLimits(**limits))  # type: ignore[arg-type]
    app = web.Application()
    app.add_routes([web.get("/", handler), web.post("/", handler)])
    served = Site(server, await server.start(app))
    try:
        yield served
    finally:
        await close(served.opened)
        await server.stop()
        assert not server.gates
        assert not server.waiting
        assert not server.stalled


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side ends the connection."""
    read = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while chunk := await reader.read(4_096):
                read += chunk
    return read


def test_idle_connections_make_room_for_newcomers() -> None:
    async def main() -> None:
        async with site(connections=8) as served:
            for _ in range(40):
                await served.open()
            await eventually(lambda: len(served.server.gates) == 8, "eight are admitted")
            for _ in range(5):
                assert await served.get() == (200, "hello")
            assert served.server.counts["evicted"] >= 32

    run(main())


def test_connections_with_requests_under_way_are_not_evicted() -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def wait(request: web.Request) -> web.StreamResponse:
            await done.wait()
            return web.Response(text="done")

        async with site(wait, connections=4) as served:
            asked = [asyncio.create_task(served.get()) for _ in range(4)]
            await eventually(
                lambda: len(served.server.gates) == 4 and not served.server.waiting, "four ask"
            )
            status, text = await served.get()
            assert (status, json.loads(text)["problem"]) == (503, "too-many-connections")
            assert served.server.counts["refused"] == 1
            done.set()
            assert await asyncio.gather(*asked) == [(200, "done")] * 4

    run(main())


def test_request_that_is_never_complete_is_ended() -> None:
    async def main() -> None:
        async with site(request_s=0.2) as served:
            reader, _ = await served.open(b"GET / HTTP/1.1\r\nHost: a\r\n")
            assert await ended(reader) == b""
            assert served.server.counts["timed-out"] == 1

    run(main())


def test_body_that_is_never_complete_is_refused() -> None:
    async def main() -> None:
        async with site(request_s=0.2) as served:
            head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1"
            reader, _ = await served.open(head)
            assert (await ended(reader)).startswith(b"HTTP/1.1 408")

    run(main())


def test_connections_whose_bodies_never_come_make_room_for_newcomers() -> None:
    async def main() -> None:
        async with site(connections=8, request_s=60) as served:
            head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n1"
            for _ in range(24):
                await served.open(head)
            await eventually(lambda: len(served.server.gates) == 8, "eight are admitted")
            for _ in range(5):
                assert await served.get() == (200, "hello")

    run(main())


def test_readers_that_read_nothing_make_room_for_newcomers() -> None:
    async def main() -> None:
        async def much(request: web.Request) -> web.StreamResponse:
            return web.Response(body=bytes(64 << 20) if request.method == "POST" else b"hello")

        async with site(much, connections=4, request_s=0.3, stall_s=60) as served:
            for _ in range(4):
                await served.open(b"POST / HTTP/1.1\r\nHost: a\r\n\r\n")
            await eventually(lambda: len(served.server.stalled) == 4, "four do not read")
            await asyncio.sleep(0.3)
            for _ in range(2):
                assert await served.get() == (200, "hello")
            assert served.server.counts["evicted"] == 1

    run(main())


def test_connection_that_is_kept_alive_is_ended_when_idle() -> None:
    async def main() -> None:
        async with site(idle_s=0.2) as served:
            reader, _ = await served.open(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"hello" in await ended(reader)

    run(main())


def test_reader_that_reads_nothing_is_ended() -> None:
    async def main() -> None:
        async def much(request: web.Request) -> web.StreamResponse:
            return web.Response(body=bytes(64 << 20))

        async with site(much, stall_s=0.3, idle_s=0.1) as served:
            await served.open(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await eventually(lambda: served.server.counts["stalled"] == 1, "it is ended")

    run(main())


def test_slow_reader_of_a_large_page_gets_all_of_it() -> None:
    async def main() -> None:
        body = bytes(8 << 20)

        async def much(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body)

        async with site(much, request_s=0.2, idle_s=0.2) as served:
            reader, _ = await served.open(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            read, chunk = 0, b"-"
            while chunk:
                chunk = await reader.read(256 << 10)
                read += len(chunk)
                await asyncio.sleep(0.02)  # longer in all than any other limit
            assert read > len(body)

    run(main())


def test_place_beyond_its_share_evicts_its_own_connection() -> None:
    server = PageServer("test", "127.0.0.1", 0, PageLimits(connections=10, per_place=2))
    gates = [_Gate(server, asyncio.Protocol()) for _ in range(5)]
    assert server.admit(gates[0], "192.0.2.1")
    assert [server.admit(gate, "198.51.100.1") for gate in gates[1:4]] == [True] * 3
    assert list(server.gates) == [gates[0], gates[2], gates[3]]
    assert server.counts == {"evicted": 1}
    server.waiting.clear()  # all of them have requests under way
    assert not server.admit(gates[4], "198.51.100.1")
    assert server.counts == {"evicted": 1, "refused": 1}


def test_figures_of_connections_name_what_ended_them() -> None:
    async def main() -> None:
        async with site(connections=1) as served:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(served.server.figures)
            await served.open()
            await served.open()
            await eventually(lambda: served.server.counts["evicted"] == 1, "one is evicted")
            text = generate_latest(registry).decode()
            assert "anabranch_page_connections_bound 1.0" in text
            assert 'anabranch_page_connections_ended_total{why="evicted"} 1.0' in text

    run(main())


IDLE = 300


def test_tracker_with_few_descriptors_serves_newcomers_beside_idle_connections(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "anabranch", "tracker", "--data", str(tmp_path / "data")]
    command += ["--port", "0", "--http-port", "0", "--json", "--with-parent"]
    few = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*few, *command], stdin=pipe, stdout=pipe, stderr=pipe) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            ready = json.loads(child.stdout.readline())
            warning = child.stderr.readline().decode()
            assert "256 files and sockets" in warning
            assert "ulimit -n" in warning

            async def main() -> None:
                port, idle = ready["http_port"], []
                for _ in range(IDLE):
                    idle.append(await asyncio.open_connection("127.0.0.1", port))
                try:
                    async with aiohttp.ClientSession() as session:
                        for _ in range(5):
                            async with session.get(ready["http"] + "/health") as response:
                                assert response.status == 200
                    async with connect(
                        ready["network"], key=load_or_make_key(tmp_path / "user.key")
                    ) as network:
                        assert await network.create_stream("newcomer")
                finally:
                    await close([writer for _, writer in idle])

            run(main())
        finally:
            child.stdin.close()
            assert child.wait(20) == 0


@pytest.mark.parametrize("text", ["nowhere", "10.0.0.0/99", ""])
def test_trusted_proxy_that_is_no_prefix_is_refused(text: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", "tracker", "--data", str(tmp_path)]
    done = subprocess.run(
        [*command, "--trusted-proxy", text], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "is no address or prefix" in done.stderr
