"""The pages of several trackers read as one, over real sockets."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from anabranch.live.errors import NetworkUnreachable, NoSuchStream
from anabranch.live.pages import Pages
from support.waiting import within

TIMEOUT_S = 20.0
UNKNOWN = {"error": "no stream 's' here: GET /streams lists those there are"}

Answer = tuple[int, Any]


class Trackers:
    """Servers that answer every page as the test says, and write down what they were asked."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.asked: list[str] = []
        self._stack = stack

    async def serve(self, status: int, body: Any) -> str:
        """Start one; return its address."""

        async def answer(request: web.Request) -> web.Response:
            self.asked.append(request.path_qs)
            if isinstance(body, str):
                return web.Response(text=body, status=status)
            if isinstance(body, bytes):
                return web.Response(body=body, status=status, content_type="application/json")
            return web.json_response(body, status=status)

        app = web.Application()
        app.add_routes([web.get("/{page}", answer)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"


def dead() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def read(
    *answers: Answer | None,
    use: Callable[[Pages, Trackers], Awaitable[Any]],
    more: tuple[str, ...] = (),
) -> Any:
    """Start a tracker per answer, dead ones for None, and use their pages."""

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            trackers = Trackers(stack)
            addresses = [dead() if a is None else await trackers.serve(*a) for a in answers]
            async with Pages([*addresses, *more]) as pages:
                return await use(pages, trackers)

    return asyncio.run(within(TIMEOUT_S, main()))


async def ask(pages: Pages, _: Trackers) -> Any:
    return await pages.ask("/reports")


async def parts(pages: Pages, _: Trackers) -> Any:
    return await pages.parts(stream="s")


async def prediction(pages: Pages, _: Trackers) -> Any:
    return await pages.prediction("s", 3)


def part(nodes: int, stream: str = "s", partition: int = 0) -> dict[str, Any]:
    return {"stream": stream, "partition": partition, "nodes": nodes, "topology": {}}


def test_every_tracker_is_asked() -> None:
    assert read((200, {"a": 1}), (200, {"b": 2}), use=ask) == [{"a": 1}, {"b": 2}]


def test_a_dead_tracker_does_not_matter() -> None:
    assert read(None, (200, {"a": 1}), use=ask) == [{"a": 1}]
    assert read((200, {"a": 1}), None, use=ask) == [{"a": 1}]


@pytest.mark.parametrize(
    "noise",
    [(200, "words"), (500, "words"), (200, b"{"), (200, b'"\xff"'), (200, ["a"]), (404, UNKNOWN)],
)
def test_who_cannot_answer_leaves_it_to_the_others(noise: Answer) -> None:
    assert read(noise, (200, {"a": 1}), use=ask) == [{"a": 1}]


def test_a_tracker_without_pages_is_not_asked() -> None:
    assert read((200, {"a": 1}), use=ask, more=("",)) == [{"a": 1}]


def test_what_no_tracker_knows_is_no_stream() -> None:
    with pytest.raises(NoSuchStream, match="no stream 's' here"):
        read(None, (404, UNKNOWN), (404, UNKNOWN), use=ask)
    with pytest.raises(NoSuchStream, match="the trackers know nothing of this"):
        read((404, {}), use=ask)


@pytest.mark.parametrize("answers", [(), (None,), (None, None), ((200, "no JSON"),)])
def test_without_an_answer_the_network_is_out_of_reach(answers: tuple[Answer | None]) -> None:
    with pytest.raises(NetworkUnreachable, match="is the network running"):
        read(*answers, use=ask)


def test_an_address_that_is_none_is_a_dead_tracker() -> None:
    assert read((200, {"a": 1}), use=ask, more=("nonsense", "http://[", "ftp://x")) == [{"a": 1}]


def test_a_part_is_shown_once_and_by_who_has_most_of_it() -> None:
    shown = read(
        (200, {"parts": [part(2), part(9, "z")]}),
        (200, {"parts": [part(5), part(1, partition=1)]}),
        (200, {"parts": [part(3)]}),
        (404, UNKNOWN),
        use=parts,
    )
    assert [(p["stream"], p["partition"], p["nodes"]) for p in shown] == [
        ("s", 0, 5),
        ("s", 1, 1),
        ("z", 0, 9),
    ]


def test_the_prediction_is_of_who_has_most_of_the_part() -> None:
    small, large = {"nodes": 2, "p50_ms": 1.0}, {"nodes": 7, "p50_ms": 4.0}
    assert read((200, small), (200, large), (404, UNKNOWN), None, use=prediction) == large


def test_the_query_reaches_the_tracker() -> None:
    async def use(pages: Pages, trackers: Trackers) -> list[str]:
        await pages.ask("/health")
        await pages.parts(stream="0x1/a b&c")
        await pages.prediction("s", 3, limit="9")
        return trackers.asked

    asked = read((200, {"parts": [], "nodes": 0}), use=use)
    assert asked == [
        "/health",
        "/topology?stream=0x1/a+b%26c",
        "/prediction?stream=s&partition=3&limit=9",
    ]
