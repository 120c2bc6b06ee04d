"""What executors read: every message of a range once, whoever fails them meanwhile."""

import json
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import InputPartition

from anabranch import Stream
from anabranch.core.ids import StreamPart
from anabranch.live.errors import AnabranchError, HistoryLost, NetworkUnreachable, NotPermitted
from anabranch.live.storage.columnar import read_batches
from anabranch.spark import reading
from anabranch.spark.access import StoredStream, look_up
from anabranch.spark.offsets import Span
from anabranch.spark.options import parse_options
from anabranch.spark.reading import Selected, Task, read_task
from anabranch.spark.source import _columns
from spark.false_storage import Answer, Spoil, false_storage
from spark.network import RunningNetwork, running_network

MANY = 6_000  # more than one page has
DEAD = "http://127.0.0.1:1"  # nobody listens there

Rows = list[dict[str, Any]]


class Place:
    """A network with a public stream and a private one, and who reads them."""

    def __init__(self, network: RunningNetwork) -> None:
        self.network = network
        self.owner_key = network.new_key_file("owner")
        owner = network.join(self.owner_key)
        run = network.run
        self.open: Stream = run(owner.create_stream("open", public=["subscribe"], storage=2))
        self.private: Stream = run(owner.create_stream("private", storage=2))
        for some in (range(300), range(300, MANY)):  # at different times
            network.store(self.open, ({"n": n, "pad": "x" * 300} for n in some))
        network.store(self.private, ({"n": n} for n in range(50)))

    def read(
        self,
        stream: Stream,
        start: int = 0,
        end: int = MANY,
        *,
        urls: Callable[[list[str]], list[str]] = list,
        selected: Selected | None = None,
        key_file: Path | None = None,
        schema: t.DataType | None = None,
        stored: StoredStream | None = None,
        **options: str,
    ) -> Rows:
        """Read a range as a task does; `urls` says whom to ask instead of the storage nodes."""
        given = self.network.options(key_file or self.owner_key, subscribe=stream.id, **options)
        parsed = parse_options(given)
        stored = stored or look_up(parsed.access, [stream.id])[0]
        nodes, places = zip(*stored.storage, strict=True)
        told = urls(list(places))
        stored = msgspec.structs.replace(stored, storage=tuple(zip(nodes, told, strict=False)))
        task = Task(stored, Span(StreamPart(stream.id, 0), start, end), 0, selected)
        task = pickle.loads(pickle.dumps(task))  # as it comes to an executor
        batches = read_task(task, parsed, _columns(schema or t.BinaryType()))
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_network(tmp_path_factory.mktemp("reading"), storage=2) as network:
        yield Place(network)


@pytest.fixture
def spoiled() -> Iterator[Callable[[str, Spoil], str]]:
    with ExitStack() as stack:
        yield lambda url, spoil: stack.enter_context(false_storage(url, spoil))


def numbers(rows: Rows) -> list[int]:
    return [json.loads(row["value"])["n"] for row in rows]


def offsets(rows: Rows) -> list[int]:
    return [row["offset"] for row in rows]


# --- Ranges -------------------------------------------------------------------------------------


def test_a_range_is_read_exactly(place: Place) -> None:
    rows = place.read(place.open, 17, 4_321)
    assert offsets(rows) == list(range(17, 4_321))
    assert numbers(rows) == list(range(17, 4_321))
    assert {row["stream"] for row in rows} == {place.open.id}
    assert {row["partition"] for row in rows} == {0}
    assert {row["key"] for row in rows} == {None}
    assert {row["publisher"] for row in rows} == {place.open.id.partition("/")[0]}
    assert place.read(place.open, 5, 5) == []


def test_a_task_without_a_range_reads_nothing(place: Place) -> None:
    options = parse_options(place.network.options(place.owner_key, subscribe="open"))
    assert list(read_task(InputPartition(None), options, _columns(t.BinaryType()))) == []


@pytest.mark.parametrize("verify", ["false", "true"])
def test_the_rows_are_the_same_in_either_form(place: Place, verify: str) -> None:
    whole = place.read(place.open, 0, 900)
    middle = int(whole[450]["timestamp"].timestamp() * 1000)
    me = whole[0]["publisher"]
    chosen = [row for row in whole if row["timestamp"].timestamp() * 1000 >= middle]
    assert 0 < len(chosen) < len(whole)
    selected = Selected(me, from_ms=middle)
    assert place.read(place.open, 0, 900, verify=verify, selected=selected) == chosen
    others = [row for row in whole if row not in chosen]
    assert place.read(place.open, 0, 900, verify=verify, selected=Selected(to_ms=middle)) == others
    nobody = Selected("0x" + "00" * 19 + "01")
    assert place.read(place.open, 0, 900, verify=verify, selected=nobody) == []


# --- Storage nodes that fail --------------------------------------------------------------------


def test_one_that_is_not_there_is_passed_over(place: Place) -> None:
    rows = place.read(place.open, urls=lambda urls: [DEAD, urls[1]])
    assert offsets(rows) == list(range(MANY))


@pytest.mark.parametrize("verify", ["false", "true"])
def test_another_goes_on_where_one_broke_off(
    place: Place, verify: str, spoiled: Callable[[str, Spoil], str]
) -> None:
    asked: list[str] = []

    def break_off(path: str, ask: Callable[[str], Answer]) -> Answer:
        asked.append(path)
        status, body, size = ask(path)
        return status, body, size * 2 // 3

    def note(path: str, ask: Callable[[str], Answer]) -> Answer:
        asked.append(path)
        return ask(path)

    rows = place.read(
        place.open,
        verify=verify,
        urls=lambda urls: [spoiled(urls[0], break_off), spoiled(urls[1], note)],
    )
    assert offsets(rows) == list(range(MANY))
    begun = [int(re.findall(r"start=(\d+)", path)[0]) for path in asked]
    assert begun[0] == 0
    assert 0 < begun[1] < MANY  # not from the beginning


def test_one_that_knows_of_less_is_followed_by_one_that_knows_more(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    def shorten(path: str, ask: Callable[[str], Answer]) -> Answer:
        return ask(path.replace(f"end={MANY}", "end=1000"))

    rows = place.read(place.open, urls=lambda urls: [spoiled(urls[0], shorten), urls[1]])
    assert offsets(rows) == list(range(MANY))


def test_a_false_signature_is_found_and_the_true_frame_taken(
    place: Place, spoiled: Callable[[str, Spoil], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PATIENCE_S", 0.0)
    access = parse_options(place.network.options(place.owner_key, subscribe="open")).access
    url = look_up(access, ["open"])[0].storage[0][1]
    with read_batches(url, place.open.id, 0, 0, 10, form="frames") as batches:
        frame = next(batches).column("frame")[0].as_py()
    other = frame[:-1] + bytes([frame[-1] ^ 1])

    def forge(path: str, ask: Callable[[str], Answer]) -> Answer:
        status, body, size = ask(path)
        assert frame in body
        return status, body.replace(frame, other), size

    rows = place.read(
        place.open, 0, 500, verify="true", urls=lambda urls: [spoiled(urls[0], forge), urls[1]]
    )
    assert offsets(rows) == list(range(500))
    with pytest.raises(NetworkUnreachable, match=r"from offset 0 on: .*@0 was not signed by 0x"):
        place.read(place.open, 0, 500, verify="true", urls=lambda urls: [spoiled(urls[0], forge)])


def respell(body: bytes, change: Callable[[pa.Table], pa.Table], **about: str) -> Answer:
    """Write an answer anew."""
    table = pa.ipc.open_stream(body).read_all()
    told = {**(table.schema.metadata or {}), **about}
    table = change(table).replace_schema_metadata(told)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made = sink.getvalue().to_pybytes()
    return 200, made, len(made)


def without_end(table: pa.Table) -> pa.Table:
    return table.slice(0, table.num_rows // 2)


def count_too_many(table: pa.Table) -> pa.Table:
    counts = pa.array([10_000] * (table.num_rows // 2), pa.int32())
    return without_end(table).set_column(1, table.schema.field("count"), counts)


def without_frames(table: pa.Table) -> pa.Table:
    frames = pa.nulls(table.num_rows, pa.binary())
    return table.set_column(table.num_columns - 1, table.schema.field("frame"), frames)


@pytest.mark.parametrize(
    ("change", "about"),
    [
        (without_end, {}),
        (count_too_many, {}),
        (without_frames, {}),
        (lambda table: table.slice(table.num_rows // 2), {"start": "250"}),
        (lambda table: table.slice(0, 0), {"start": "500"}),
        (lambda table: table.slice(0, 0), {"end": "9000"}),
        (lambda table: table, {"end": "none"}),
        (lambda table: table.drop_columns("frame"), {}),
    ],
)
def test_who_leaves_something_out_is_found_out(
    place: Place,
    spoiled: Callable[[str, Spoil], str],
    change: Callable[[pa.Table], pa.Table],
    about: dict[str, str],
) -> None:
    def lie(path: str, ask: Callable[[str], Answer]) -> Answer:
        return respell(ask(path)[1], change, **about)

    rows = place.read(
        place.open, 0, 500, verify="true", urls=lambda urls: [spoiled(urls[0], lie), urls[1]]
    )
    assert offsets(rows) == list(range(500))


def test_nobody_is_waited_for_for_ever(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PATIENCE_S", 0.0)
    with pytest.raises(NetworkUnreachable, match=r"#0 cannot be read from offset 7 on: .*:1 does"):
        place.read(place.open, 7, urls=lambda urls: [DEAD, DEAD])
    with pytest.raises(NetworkUnreachable, match=r"offset 6000 on: .* only up to 6000"):
        place.read(place.open, 0, MANY + 10)


def test_storage_nodes_that_have_moved_are_found_again(place: Place) -> None:
    # The registry is asked where they are when none of them answers.
    rows = place.read(place.open, 0, 100, urls=lambda urls: [DEAD, DEAD])
    assert offsets(rows) == list(range(100))


# --- What is not there any more -----------------------------------------------------------------


def cut_off_before(begin: int) -> Spoil:
    def refuse(path: str, ask: Callable[[str], Answer]) -> Answer:
        if int(re.findall(r"start=(\d+)", path)[0]) >= begin:
            return ask(path)
        error = {"problem": "cut-off", "error": "is not kept", "start": begin, "high": MANY}
        body = json.dumps(error).encode()
        return 416, body, len(body)

    return refuse


def test_what_one_has_deleted_another_may_have(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    rows = place.read(
        place.open, 0, 200, urls=lambda urls: [spoiled(urls[0], cut_off_before(50)), urls[1]]
    )
    assert offsets(rows) == list(range(200))


def test_who_says_that_nothing_is_lost_where_he_says_it_is_loses_nothing(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    def refuse(path: str, ask: Callable[[str], Answer]) -> Answer:
        begin = int(re.findall(r"start=(\d+)", path)[0])
        error = {"problem": "cut-off", "error": "is not kept", "start": ["x", begin][begin > 3]}
        body = json.dumps(error).encode()
        return 416, body, len(body)

    for start in (3, 4):
        rows = place.read(
            place.open,
            start,
            200,
            urls=lambda urls: [spoiled(urls[0], refuse), urls[1]],
            failOnDataLoss="false",
        )
        assert offsets(rows) == list(range(start, 200))


def test_lost_messages_are_an_error_or_a_warning(
    place: Place, spoiled: Callable[[str, Spoil], str], caplog: pytest.LogCaptureFixture
) -> None:
    def urls(true: list[str]) -> list[str]:
        return [spoiled(true[0], cut_off_before(80)), spoiled(true[1], cut_off_before(50))]

    with pytest.raises(HistoryLost, match=r"offsets 3 to 49 .*#0 are not kept .* begin at 50"):
        place.read(place.open, 3, 200, urls=urls)
    with caplog.at_level(logging.WARNING):
        rows = place.read(place.open, 3, 200, urls=urls, failOnDataLoss="false")
    assert offsets(rows) == list(range(50, 200))
    assert len(caplog.messages) == 1
    assert "offsets 3 to 49" in caplog.messages[0]


def damaged_at(begin: int, end: int) -> Spoil:
    def refuse(path: str, ask: Callable[[str], Answer]) -> Answer:
        start, stop = (int(re.findall(rf"{name}=(\d+)", path)[0]) for name in ("start", "end"))
        if start >= end or stop <= begin:
            return ask(path)
        if start < begin:  # it sends what is good, and breaks off
            status, body, _ = ask(path.replace(f"end={stop}", f"end={begin}"))
            return status, body, len(body) - 8
        missing = [[start, min(stop, end)]]
        error = {"problem": "damaged", "error": "is damaged", "offset": start, "missing": missing}
        body = json.dumps(error).encode()
        return 503, body, len(body)

    return refuse


def test_what_is_damaged_at_one_comes_from_another(
    place: Place, spoiled: Callable[[str, Spoil], str]
) -> None:
    def urls(true: list[str]) -> list[str]:
        return [spoiled(true[0], damaged_at(20, 40)), spoiled(true[1], damaged_at(60, 61))]

    assert offsets(place.read(place.open, 0, 100, urls=urls)) == list(range(100))


def test_what_is_damaged_everywhere_is_an_error_or_a_warning(
    place: Place, spoiled: Callable[[str, Spoil], str], caplog: pytest.LogCaptureFixture
) -> None:
    def urls(true: list[str]) -> list[str]:
        return [spoiled(true[0], damaged_at(20, 40)), spoiled(true[1], damaged_at(30, 50))]

    text = r"offsets 30 to 39 \(10 messages\) of .*#0 are damaged at every storage node.*false"
    with pytest.raises(HistoryLost, match=text):
        place.read(place.open, 0, 100, urls=urls)
    with caplog.at_level(logging.WARNING):
        rows = place.read(place.open, 0, 100, urls=urls, failOnDataLoss="false")
    assert offsets(rows) == [*range(30), *range(40, 100)]
    assert "30 to 39" in caplog.messages[0]


# --- Values -------------------------------------------------------------------------------------


def test_values_are_decoded(place: Place) -> None:
    schema = t.StructType([t.StructField("n", t.LongType())])
    rows = place.read(place.open, 0, 100, schema=schema)
    assert [row["value"] for row in rows] == [{"n": n} for n in range(100)]


def test_a_value_that_does_not_fit_is_named_nulled_or_dropped(place: Place) -> None:
    owner = place.network.join(place.owner_key)
    mixed = place.network.run(owner.create_stream("mixed", public=["subscribe"], storage=1))
    place.network.store(mixed, [{"n": 0}, "text", {"n": "two"}, {"n": 3}])
    schema = t.StructType([t.StructField("n", t.LongType())])
    with pytest.raises(AnabranchError, match=r"mixed#0@1 cannot be decoded, as it is not JSON"):
        place.read(mixed, 0, 4, schema=schema)
    rows = place.read(mixed, 0, 4, schema=schema, mode="PERMISSIVE")
    assert [row["value"] for row in rows] == [{"n": 0}, None, None, {"n": 3}]
    rows = place.read(mixed, 0, 4, schema=schema, mode="DROPMALFORMED")
    assert [(row["offset"], row["value"]) for row in rows] == [(0, {"n": 0}), (3, {"n": 3})]


# --- Permission ---------------------------------------------------------------------------------


def test_who_may_not_read_gets_nothing(place: Place) -> None:
    stranger = place.network.new_key_file("stranger")
    access = parse_options(place.network.options(place.owner_key, subscribe="private")).access
    stored = look_up(access, ["private"])[0]
    with pytest.raises(NotPermitted, match=r"may not subscribe to .*/private: ask its owner"):
        place.read(place.private, 0, 10, key_file=stranger, stored=stored)
