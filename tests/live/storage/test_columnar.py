"""Reading ranges over real sockets: exactly what was asked for, or an error."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.live.errors import NetworkUnreachable, NoSuchStream, NotPermitted
from anabranch.live.storage import ranges
from anabranch.live.storage.columnar import (
    BrokenOffError,
    Offsets,
    RefusedError,
    read_batches,
    read_offsets,
    stream_batches,
)
from anabranch.live.storage.http import StorageHttp
from anabranch.live.storage.tokens import make_token
from live.storage.shelf import BEGAN_MS, NETWORK, NODE, READER, Shelf, Writer, serving
from machines import PART, START


def filled(*counts: int, public: bool = True) -> Shelf:
    """Return a log of frames with so many messages each, numbered, of two publishers in turn."""
    shelf, writers, at = Shelf(public), [Writer(20), Writer(21)], 0
    made = []
    for turn, count in enumerate(counts):
        contents = [b"%d" % n for n in range(at, at + count)]
        made.append(writers[turn % 2].frame(*contents, at_ms=BEGAN_MS + turn * 1000))
        at += count
    shelf.put(made)
    return shelf


def values(http: StorageHttp, *args: Any, **options: Any) -> list[int]:
    """Read a range; return what its messages say, which is their offsets."""
    with read_batches(http.address, PART.stream, 0, *args, **options) as batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert batches.position == batches.end
    if rows and "value" in rows[0]:
        assert [int(row["value"]) for row in rows] == [row["offset"] for row in rows]
    return [row["offset"] for row in rows]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.integers(0, 60), st.integers(0, 60))
def test_every_range_is_trimmed_exactly(counts: list[int], one: int, two: int) -> None:
    shelf = filled(*counts)
    high = sum(counts)
    start, end = min(one, two, high), max(one, two)
    with serving(shelf) as http:
        assert values(http, start, end) == list(range(start, min(end, high)))
        assert values(http) == list(range(high))


@pytest.mark.parametrize("form", ["messages", "frames"])
def test_a_range_of_many_pages_comes_whole(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(ranges, "READ_BYTES", 2_000)
    shelf = filled(*[1, 3, 2] * 40)
    with serving(shelf) as http:
        found = values(http, 3, 238, form=form)
        assert len(shelf.looked) >= 10
    whole = [row for first in range(0, 240, 6) for row in (first, first + 1, first + 4)]
    frames = [offset for offset in whole if offset > 0 and offset < 238]
    assert found == (list(range(3, 238)) if form == "messages" else frames)


def test_the_range_ends_where_the_log_was_settled_when_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "READ_BYTES", 1)
    shelf, late = filled(1, 1, 1), Writer(22)
    shelf.put([late.frame(b"3")], settle=False)
    shelf.before_find = lambda query: shelf.put([late.frame(b"later")])
    with serving(shelf) as http:
        assert values(http, 1) == [1, 2]
        shelf.before_find = lambda query: None
        assert len(values(http, 1, 4)) == 3
        assert values(http, 2, 2) == []
        assert values(http, shelf.state().high) == []


def test_one_publisher_and_one_time_can_be_chosen() -> None:
    with serving(filled(2, 2, 2, 2, 2)) as http:
        assert values(http, publisher=show(Writer(21).signer.node)) == [2, 3, 6, 7]
        assert values(http, from_ms=BEGAN_MS + 1000, to_ms=BEGAN_MS + 3000) == [2, 3, 4, 5]
        chosen = {"publisher": show(Writer(20).signer.node), "from_ms": BEGAN_MS + 1}
        assert values(http, 0, 9, **chosen) == [4, 5, 8]
        assert values(http, from_ms=BEGAN_MS + 3000, form="frames") == [6, 8]
        assert values(http, to_ms=0) == []


def test_metadata_say_what_was_covered() -> None:
    with (
        serving(filled(3, 3)) as http,
        read_batches(http.address, PART.stream, 0, 2, 100) as batches,
    ):
        assert (batches.start, batches.end) == (2, 6)
        assert batches.schema.metadata[b"stream"] == PART.stream.encode()
        assert sum(batch.num_rows for batch in batches) == 4
        assert list(batches) == []


def test_what_nobody_can_open_is_left_out() -> None:
    shelf, writer = Shelf(), Writer()
    shelf.put([writer.frame(b"0"), writer.sealed(b"garbage", 3), writer.frame(b"4")])
    with serving(shelf) as http:
        assert values(http) == [0, 4]
        assert values(http, form="frames") == [0, 1, 4]


def test_offsets_are_read() -> None:
    with serving(filled(1, 1, 1)) as http:
        assert read_offsets(http.address, PART.stream) == Offsets(0, 3, length=3)
        found = read_offsets(http.address, PART.stream, 0, timestamp_ms=BEGAN_MS + 1500)
        assert found == Offsets(0, 3, 2, True, 3)


def test_a_user_with_a_token_reads_what_is_private() -> None:
    with serving(filled(1, 1, public=False)) as http:
        token = make_token(READER, NETWORK, NODE, START)
        assert values(http, 0, 2, token) == [0, 1]
        assert read_offsets(http.address, PART.stream, token=token).high == 2
        with pytest.raises(NotPermitted, match="say who you are"):
            values(http)


def test_a_loop_goes_on_while_it_reads() -> None:
    async def read(http: StorageHttp) -> list[int]:
        batches = stream_batches(http.address, PART.stream, 0, 1, 4)
        return [row["offset"] async for batch in batches for row in batch.to_pylist()]

    with serving(filled(2, 2, 2)) as http:
        assert asyncio.run(read(http)) == [1, 2, 3]


# --- What cannot be read --------------------------------------------------------------------


def test_refusals_are_errors_of_their_kind() -> None:
    shelf = Shelf()
    shelf.cut([Writer().frame(b"500")], 500)
    with serving(shelf) as http:
        with pytest.raises(NoSuchStream, match="not stored"):
            read_batches(http.address, PART.stream, 1)
        with pytest.raises(RefusedError, match="begins at 500") as caught:
            read_batches(http.address, PART.stream, 0, 0)
        assert (caught.value.status, caught.value.problem) == (416, "cut-off")
        assert caught.value.body["start"] == 500
        with pytest.raises(RefusedError, match="messages or frames"):
            read_batches(http.address, PART.stream, form="rows")


@pytest.mark.parametrize("url", ["", "ws://127.0.0.1:1", "127.0.0.1:80"])
def test_an_address_must_be_one(url: str) -> None:
    with pytest.raises(LocalError, match="write http://host:port"):
        read_offsets(url, PART.stream)


def test_nobody_there() -> None:
    with serving(filled(1)) as http:
        address = http.address
    with pytest.raises(NetworkUnreachable, match="does not answer"):
        read_batches(address, PART.stream)


@pytest.mark.parametrize(
    ("spoil", "status", "problem"),
    [
        (lambda shelf: shelf.put([Writer(30).encrypted()]), 409, "encrypted"),
        (lambda shelf: setattr(shelf, "problem", "the disk is on fire"), 503, "failing"),
    ],
)
def test_what_is_wrong_with_the_first_page_is_said(spoil: Any, status: int, problem: str) -> None:
    shelf = filled(1, 1)
    spoil(shelf)
    with serving(shelf) as http, pytest.raises(RefusedError) as caught:
        read_batches(http.address, PART.stream)
    assert (caught.value.status, caught.value.problem) == (status, problem)


def test_a_damaged_frame_is_never_served_or_passed_over() -> None:
    shelf, writer = Shelf(), Writer()
    made = [writer.frame(b"%d" % n) for n in range(3)]
    shelf.put(made)
    shelf.damage(made[1])
    with serving(shelf) as http:
        for options in ({}, {"publisher": show(writer.signer.node)}, {"form": "frames"}):
            batches = read_batches(http.address, PART.stream, **options)
            with batches, pytest.raises(BrokenOffError) as broken:
                assert [row for batch in batches for row in batch.column("offset").to_pylist()]
            assert broken.value.position == 1
            with pytest.raises(RefusedError, match="ask another storage node") as caught:
                read_batches(http.address, PART.stream, 0, 1, **options)
            assert caught.value.problem == "damaged"
            assert caught.value.body["missing"] == [[1, 2]]
            assert caught.value.damaged_upto(1) == 2
        assert values(http, 0, 1) == [0]
        assert values(http, 2, 3) == [2]
