"""Ranges that do not come to their end: no reader takes them for complete."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import IncompleteRead
from typing import Any

import pytest

from anabranch.core.changes import Right
from anabranch.core.ids import show
from anabranch.core.store import Delete, LogQuery, Page
from anabranch.live import page_server
from anabranch.live.errors import NetworkUnreachable
from anabranch.live.storage import http as storage_http
from anabranch.live.storage import ranges
from anabranch.live.storage.columnar import (
    BrokenOffError,
    RefusedError,
    read_batches,
    stream_batches,
)
from anabranch.live.storage.columns import END_OF_STREAM, Columns, Wanted
from anabranch.live.storage.http import StorageHttp
from anabranch.live.storage.tokens import make_token
from live.storage.shelf import (
    BEGAN_MS,
    NETWORK,
    NODE,
    READER,
    WAIT_S,
    Shelf,
    Writer,
    place,
    serving,
)
from machines import PART, START
from support.waiting import limit, wait_until, within

FRAMES = 6
LARGE = 256 * 1024  # more than the system keeps for a reader who does not read
MANY = 64


@pytest.fixture(autouse=True)
def _a_frame_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "READ_BYTES", 1)


def filled(public: bool = True, size: int = 1, count: int = FRAMES) -> tuple[Shelf, list[bytes]]:
    """Return a log of frames of one message each, and these."""
    shelf, writer = Shelf(public), Writer()
    made = [writer.frame(bytes(size), at_ms=BEGAN_MS + n) for n in range(count)]
    shelf.put(made)
    return shelf, made


def at_page(number: int, do: Callable[[], object]) -> Callable[[LogQuery], None]:
    """Let something happen when that page is looked up."""
    looked = 0

    def before_find(query: LogQuery) -> None:
        nonlocal looked
        looked += 1
        if looked == number:
            do()

    return before_find


def read_until_it_breaks(http: StorageHttp, **options: Any) -> tuple[list[int], BrokenOffError]:
    """Return the offsets that came, and how it ended."""
    found: list[int] = []
    batches = read_batches(http.address, PART.stream, 0, 0, FRAMES, **options)
    with batches, pytest.raises(BrokenOffError) as caught:
        found.extend(row for batch in batches for row in batch.column("offset").to_pylist())
    assert caught.value.position == len(found)
    assert list(batches) == []  # it has ended, and stays so
    return found, caught.value


def spoil_by_damage(shelf: Shelf, made: list[bytes]) -> None:
    shelf.damage(made[3])


def spoil_by_retention(shelf: Shelf, made: list[bytes]) -> None:
    shelf.cut(made[4:], 4)


def spoil_by_revoking(shelf: Shelf, made: list[bytes]) -> None:
    shelf.registry.permit(READER.node, Right.PUBLISH)


def spoil_by_deleting(shelf: Shelf, made: list[bytes]) -> None:
    shelf.write(Delete(PART))


def spoil_by_fire(shelf: Shelf, made: list[bytes]) -> None:
    shelf.problem = "the disk is on fire"


@pytest.mark.parametrize(
    ("spoil", "rows"),
    [
        (spoil_by_damage, 3),
        (spoil_by_retention, 3),
        (spoil_by_revoking, 4),
        (spoil_by_deleting, 3),
        (spoil_by_fire, 3),
    ],
)
@pytest.mark.parametrize("chosen", [{}, {"publisher": show(Writer().signer.node)}])
def test_what_goes_wrong_on_the_way_breaks_it_off(spoil: Any, rows: int, chosen: Any) -> None:
    """What was read is right, and nothing that may have a hole is taken for all."""
    shelf, made = filled(public=False)
    shelf.before_find = at_page(4, lambda: spoil(shelf, made))
    token = make_token(READER, NETWORK, NODE, START)
    with serving(shelf) as http:
        found, broken = read_until_it_breaks(http, token=token, **chosen)
        assert found == list(range(rows))
        # Whoever reads HTTP by other means sees it as well: the response itself does not end.
        assert isinstance(broken.__cause__, IncompleteRead)
        assert http.counts["broken"] == 1
        assert http.readers == 0


def test_a_mistake_of_our_own_breaks_it_off_too() -> None:
    shelf, _ = filled()

    def crash() -> None:
        raise RuntimeError("as if there were a mistake")

    shelf.before_find = at_page(4, crash)
    with serving(shelf) as http:
        assert read_until_it_breaks(http)[0] == [0, 1, 2]
        assert http.readers == 0


def test_asking_again_from_there_says_what_is_wrong() -> None:
    shelf, writer = Shelf(), Writer()
    shelf.put([*(writer.frame(b"x") for _ in range(4)), writer.encrypted(), writer.frame(b"x")])
    with serving(shelf) as http:
        found, broken = read_until_it_breaks(http)
        assert found == [0, 1, 2, 3]
        with pytest.raises(RefusedError, match="form=frames") as caught:
            read_batches(http.address, PART.stream, 0, broken.position)
        assert (caught.value.status, caught.value.body["offset"]) == (409, 4)
        batches = read_batches(http.address, PART.stream, 0, broken.position, form="frames")
        assert sum(batch.num_rows for batch in batches) == 2


# --- Slow readers ---------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    wait_until(condition, "what must happen", WAIT_S)


def test_nothing_is_looked_up_for_who_does_not_read() -> None:
    """A page is looked up when those before it have left, so one is held and not the range."""
    shelf, _ = filled(size=LARGE, count=MANY)
    with serving(shelf) as http:
        left: list[int] = []  # pages, whenever one was looked up
        shelf.before_find = lambda query: left.append(http.counts["bytes"] // LARGE)
        with read_batches(http.address, PART.stream) as batches:
            next(batches)
            # The system keeps some of it for the reader; then the server stands still.
            until(lambda: http.counts["bytes"] > LARGE)
            assert len(left) < MANY // 2
            assert len(list(batches)) == MANY - 1
        assert left == list(range(MANY))
        until(lambda: http.readers == 0)


def test_who_reads_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_http, "STALL_S", 0.2)
    shelf, _ = filled(size=LARGE, count=MANY)
    with serving(shelf) as http, read_batches(http.address, PART.stream) as batches:
        until(lambda: http.counts["broken"] == 1)
        assert http.readers == 0
        with pytest.raises(BrokenOffError):
            list(batches)


def test_who_goes_away_makes_room() -> None:
    shelf, _ = filled(size=LARGE, count=MANY)
    with serving(shelf) as http:
        batches = read_batches(http.address, PART.stream)
        next(batches)
        assert http.readers == 1
        batches.close()
        until(lambda: http.readers == 0)
        assert list(batches) == []


def test_readers_beyond_the_bound_are_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_http, "MAX_READERS", 2)
    shelf, _ = filled(size=LARGE, count=MANY)
    with serving(shelf) as http:
        first, second = (read_batches(http.address, PART.stream) for _ in range(2))
        with pytest.raises(RefusedError) as caught:
            read_batches(http.address, PART.stream)
        assert (caught.value.status, caught.value.problem) == (503, "busy")
        assert len(list(first)) == MANY
        until(lambda: http.readers == 1)
        assert len(list(read_batches(http.address, PART.stream))) == MANY
        second.close()


def test_a_server_that_stops_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "STOP_S", 0.1)
    shelf, _ = filled(size=LARGE, count=MANY)
    with serving(shelf) as http:
        batches = read_batches(http.address, PART.stream)
        next(batches)
    assert http.readers == 0
    with pytest.raises(BrokenOffError):
        list(batches)


def test_a_task_that_is_cancelled_reads_no_more() -> None:
    shelf, _ = filled(size=LARGE, count=MANY)

    async def read(http: StorageHttp) -> None:
        came = asyncio.Event()

        async def forever() -> None:
            async for _ in stream_batches(http.address, PART.stream):
                came.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(forever())
        await came.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with serving(shelf) as http:
        asyncio.run(within(WAIT_S, read(http)))
        until(lambda: http.readers == 0)


# --- Other ends of a connection -------------------------------------------------------------


@contextmanager
def answering(answer: bytes, until: threading.Event | None = None) -> Iterator[str]:
    """Answer one request with these bytes, and hang up, perhaps later."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as link:
                link.recv(65536)
                link.sendall(answer)
                assert until is None or until.wait(limit(WAIT_S))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(limit(WAIT_S))


def stream(end: bytes) -> bytes:
    """Write a small Arrow stream."""
    columns = Columns(Wanted(PART, 0, 2))
    writer = Writer()
    (batch,) = columns.add(place([writer.frame(b"0"), writer.frame(b"1")]))
    return bytes(columns.schema.serialize()) + bytes(batch.serialize()) + end


OK = b"HTTP/1.1 200 OK\r\n"
CLOSE = OK + b"Connection: close\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


# The values of two messages lie from 0 to 1 and from 1 to 2; or so it should be.
LYING_LENGTHS = (b"\0\0\0\0\1\0\0\0\2\0\0\0", b"\0\0\0\0\1\0\0\0\xff\xff\xff\0")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def is_receiving(thread: threading.Thread) -> bool:
    """Tell whether a thread waits for bytes from a socket."""
    assert thread.ident is not None
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_name == "readinto"


def test_a_thread_that_waits_for_a_silent_server_is_told_of_the_end() -> None:
    silent, ends = threading.Event(), []
    with answering(CHUNKED + chunk(stream(b"")), until=silent) as url:
        batches = read_batches(url, PART.stream, timeout_s=10 * WAIT_S)
        next(batches)

        def wait() -> None:
            with pytest.raises(BrokenOffError) as caught:
                next(batches)
            ends.append(caught.value.position)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: is_receiving(thread))
        batches.close()
        thread.join(limit(WAIT_S))
        assert ends == [2]
        silent.set()


@pytest.mark.parametrize(
    "answer",
    [
        CLOSE + stream(b""),
        CHUNKED + chunk(stream(b"")) + chunk(b""),
        CHUNKED + chunk(stream(b"")),
        CHUNKED + chunk(stream(END_OF_STREAM)),  # it ends, but something may have been to follow
        CHUNKED + chunk(stream(END_OF_STREAM)) + chunk(b"more") + chunk(b""),
        OK + b"Content-Length: 999999\r\n\r\n" + stream(END_OF_STREAM),
        CLOSE + stream(b"")[:-50],
        CLOSE + stream(b"\xff\xff\xff\xff\x10\0\0\0garbage"),
        CLOSE + stream(END_OF_STREAM).replace(*LYING_LENGTHS),
    ],
)
def test_whatever_cuts_it_short_is_seen(answer: bytes) -> None:
    with (
        answering(answer) as url,
        read_batches(url, PART.stream) as batches,
        pytest.raises(BrokenOffError),
    ):
        list(batches)


def test_the_mark_of_the_end_is_what_it_takes() -> None:
    whole = chunk(stream(END_OF_STREAM)) + chunk(b"")
    with answering(CHUNKED + whole) as url, read_batches(url, PART.stream) as batches:
        assert [batch.num_rows for batch in batches] == [2]


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", CLOSE + b"hello", OK + b"\r\n"])
def test_what_is_no_storage_node_is_said(answer: bytes) -> None:
    with answering(answer) as url, pytest.raises(NetworkUnreachable):
        read_batches(url, PART.stream)


def test_a_page_is_what_it_should_be() -> None:
    shelf, _ = filled()
    with serving(shelf) as http:
        list(read_batches(http.address, PART.stream, 0, 1, 3))
    first = shelf.looked[0]
    assert isinstance(first, Page)
    assert (first.limit, first.selection.start, first.selection.end) == (3, 1, 3)
