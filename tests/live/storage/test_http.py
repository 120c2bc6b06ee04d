"""A storage node's pages over real sockets: what they say, and whom they refuse."""

import json
import socket
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.core.changes import Right
from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.core.store import Keep, Missing
from anabranch.live.storage import http as storage_http
from anabranch.live.storage.damage import Damage
from anabranch.live.storage.http import PAGES, StorageHttp
from anabranch.live.storage.tokens import authorization, make_token
from live.storage.shelf import (
    BEGAN_MS,
    EPOCH,
    NETWORK,
    NODE,
    OWNER_KEY,
    READER,
    STRANGER,
    WAIT_S,
    Shelf,
    Writer,
    serving,
)
from machines import OTHER, PART, START
from support.waiting import limit

OF_PART = f"/streams/{quote(PART.stream, safe='')}/partitions/0"


def filled(public: bool = True, messages: int = 10) -> Shelf:
    """Return a log of frames of one message each, a second apart."""
    shelf, writer = Shelf(public), Writer()
    for n in range(messages):
        at_ms = BEGAN_MS + n * 1000
        shelf.put([writer.frame(b"%d" % n, at_ms=at_ms)], at_ms)
    return shelf


def get(http: StorageHttp, path: str, token: str = "", **headers: str) -> tuple[int, Any]:
    """Ask for a page."""
    if token:
        headers["Authorization"] = authorization(token)
    request = Request(http.address + path, headers=headers)
    try:
        with urlopen(request, timeout=limit(WAIT_S)) as answer:
            body = answer.read()
            is_json = answer.headers["Content-Type"].startswith("application/json")
            return answer.status, json.loads(body) if is_json else body
    except HTTPError as error:
        with error:
            body = json.loads(error.read())
        body["headers"] = dict(error.headers)
        return error.code, body


def ask(shelf: Shelf, path: str, token: str = "", **options: Any) -> tuple[int, Any]:
    """Serve and ask for one page."""
    with serving(shelf, **options) as http:
        return get(http, path, token)


def test_the_first_page_lists_the_others_and_they_are_there() -> None:
    with serving(filled()) as http:
        status, body = get(http, "/")
        assert (status, body["pages"]) == (200, PAGES)
        for path in PAGES:
            named = path.replace("{stream}", PART.stream).replace("{partition}", "0")
            assert get(http, named)[0] == 200, path
        assert get(http, "/nothing")[0] == 404


def test_health_says_who_it_is_and_what_is_wrong() -> None:
    status, body = ask(filled(), "/health")
    assert (status, body["status"], body["role"], body["parts"]) == (200, "ok", "storage", 1)
    assert (body["node"], body["network"]) == (show(NODE), NETWORK.hex())
    status, body = ask(filled(), "/health", problem=lambda: "the disk is full: make room")
    assert (status, body["error"]) == (503, "the disk is full: make room")


def test_health_and_metrics_say_what_is_damaged_until_it_is_repaired() -> None:
    hole = Missing(3, 5, 3)
    damage = Damage({PART: (hole,)}, scrub={"progress": 0.25, "finished_s": 7.0})
    status, body = ask(filled(), "/health", damage=lambda: damage)
    assert (status, body["status"], body["damage"]["messages"]) == (503, "damaged", 2)
    place = {"stream": PART.stream, "partition": PART.partition}
    assert body["damage"]["ranges"] == [{**place, "start": 3, "end": 5}]
    assert body["scrub"]["progress"] == 0.25
    assert body["error"].startswith("2 messages in 1 ranges of offsets are damaged")
    with (
        serving(filled(), damage=lambda: damage) as http,
        urlopen(f"{http.address}/metrics") as answer,
    ):
        shown = answer.read().decode()
    assert "anabranch_storage_damaged_messages 2.0" in shown
    assert "anabranch_storage_scrub_progress 0.25" in shown
    status, body = ask(filled(), "/health", damage=lambda: Damage(is_rebuilding=True))
    assert (status, body["damage"]["rebuilding"]) == (503, True)
    assert ask(filled(), "/health", damage=Damage)[0] == 200


def test_parts_say_how_their_logs_stand() -> None:
    shelf = filled()
    shelf.put([Writer(21).frame(b"not settled")], settle=False)
    shelf.write(Keep(PART, (Writer(22).frame(b"held"),), BEGAN_MS))
    shelf.write(Keep(OTHER, (Writer(22, part=OTHER).frame(b"held"),), BEGAN_MS))

    async def sizes() -> dict[Any, int]:
        return {PART: 1234}

    status, body = ask(shelf, "/parts", sizes=sizes)
    assert (status, body["total"], body["truncated"]) == (200, 2, False)
    stand = {part["stream"]: part for part in body["parts"]}
    assert stand[PART.stream] == {
        "stream": PART.stream,
        "partition": 0,
        "start": 0,
        "high": 10,
        "length": 11,
        "held": 1,
        "epoch": EPOCH,
        "primary": show(NODE),
        "bytes": 1234,
    }
    assert (stand[OTHER.stream]["partition"], stand[OTHER.stream]["bytes"]) == (3, None)
    assert len(ask(shelf, "/parts?limit=1")[1]["parts"]) == 1


def test_figures_for_prometheus() -> None:
    with serving(filled()) as http:
        get(http, f"{OF_PART}/arrow")
        get(http, f"{OF_PART}/arrow?form=rows")
        text = get(http, "/metrics")[1].decode()
    found = {
        sample.name + sample.labels.get("what", ""): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["anabranch_storage_part_high"].value == 10
    assert found["anabranch_storage_part_high"].labels["stream"] == PART.stream
    assert found["anabranch_storage_led_parts"].value == 1
    assert found["anabranch_storage_http_totalranges"].value == 1
    assert found["anabranch_storage_http_totalrefused"].value == 1
    assert found["anabranch_storage_http_totalbytes"].value > 100
    assert found["anabranch_storage_readers"].value == 0


def test_offsets_and_where_a_time_lies() -> None:
    with serving(filled()) as http:
        assert get(http, f"{OF_PART}/offsets") == (200, {"start": 0, "high": 10, "length": 10})
        for after_ms, offset in [(-5_000_000, 0), (0, 0), (1, 1), (4000, 4), (9001, 10)]:
            path = f"{OF_PART}/offsets?timestamp_ms={BEGAN_MS + after_ms}"
            expected = {"start": 0, "high": 10, "length": 10, "offset": offset, "exact": True}
            assert get(http, path) == (200, expected)


# --- Who may read ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["offsets", "arrow"])
def test_a_private_stream_is_for_those_who_may_subscribe(page: str) -> None:
    path = f"{OF_PART}/{page}"
    with serving(filled(public=False)) as http:
        for key in (READER, OWNER_KEY):
            assert get(http, path, make_token(key, NETWORK, NODE, START))[0] == 200
        status, body = get(http, path)
        assert (status, body["problem"]) == (401, "no-token")
        assert body["headers"]["WWW-Authenticate"] == "Anabranch"
        status, body = get(http, path, make_token(STRANGER, NETWORK, NODE, START))
        assert (status, body["problem"]) == (403, "unpermitted")
        assert show(STRANGER.node) in body["error"]


@pytest.mark.parametrize(
    ("network", "node", "at", "problem"),
    [
        (b"m" * 32, NODE, START, "token-signature"),
        (NETWORK, OWNER_KEY.node, START, "token-signature"),
        (NETWORK, NODE, START - 4000, "token-expired"),
        (NETWORK, NODE, START + 4000, "token-too-long"),
    ],
)
def test_a_token_counts_here_and_now(network: bytes, node: Any, at: float, problem: str) -> None:
    with serving(filled(public=False)) as http:
        status, body = get(http, f"{OF_PART}/arrow", make_token(READER, network, node, at))
        assert (status, body["problem"]) == (401, problem)
        status, body = get(http, f"{OF_PART}/arrow", Authorization="Bearer abc")
        assert (status, body["problem"]) == (401, "token-scheme")


def test_a_public_stream_asks_nobody() -> None:
    with serving(filled()) as http:
        assert get(http, f"{OF_PART}/arrow")[0] == 200
        assert get(http, f"{OF_PART}/arrow", "whatever")[0] == 200


def test_a_permission_that_ends_takes_effect() -> None:
    shelf = filled(public=False)
    token = make_token(READER, NETWORK, NODE, START)
    with serving(shelf) as http:
        assert get(http, f"{OF_PART}/arrow", token)[0] == 200
        shelf.registry.permit(READER.node, Right.PUBLISH)
        assert get(http, f"{OF_PART}/arrow", token)[0] == 403


# --- What cannot be answered ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        (f"{OF_PART}/arrow?start=-1", 400, "start '-1'"),
        (f"{OF_PART}/arrow?start=x", 400, "start 'x'"),
        (f"{OF_PART}/arrow?start=5&end=4", 400, "end 4 lies before start 5"),
        (f"{OF_PART}/arrow?end={1 << 63}", 400, "end '"),
        (f"{OF_PART}/arrow?form=rows", 400, "messages or frames"),
        (f"{OF_PART}/arrow?publisher=me", 400, "publisher: 'me' is not an address"),
        (f"{OF_PART}/arrow?from_ms=soon", 400, "from_ms 'soon'"),
        (f"{OF_PART}/arrow?to_ms={1 << 43}", 400, "to_ms"),
        (f"{OF_PART}/arrow?start=11", 416, "can be read up to 10"),
        (f"{OF_PART}/offsets?timestamp_ms=", 400, "timestamp_ms ''"),
        ("/parts?limit=10001", 400, "limit"),
        (f"/streams/{quote(PART.stream, safe='')}/partitions/x/arrow", 400, "partition 'x'"),
        (f"/streams/{quote(PART.stream, safe='')}/partitions/100/arrow", 400, "partition '100'"),
        (f"/streams/{quote(PART.stream, safe='')}/partitions/1/arrow", 404, "GET /parts"),
        ("/streams/cars/partitions/0/arrow", 400, "is not a stream"),
        (f"/streams/{quote(PART.stream + 'x', safe='')}/partitions/0/offsets", 404, "not stored"),
    ],
)
def test_a_refusal_says_what_to_do(path: str, status: int, says: str) -> None:
    found, body = ask(filled(), path)
    assert (found, says in body["error"]) == (status, True), body
    assert body["problem"]


def test_what_retention_cut_is_said_with_where_the_log_begins() -> None:
    shelf = Shelf()
    shelf.cut([Writer().frame(b"a", b"b")], 500)
    status, body = ask(shelf, f"{OF_PART}/arrow?start=499")
    del body["headers"], body["error"]
    assert (status, body) == (416, {"problem": "cut-off", "start": 500, "high": 502})


def test_pages_are_only_read() -> None:
    with serving(filled()) as http:
        request = Request(f"{http.address}{OF_PART}/arrow", method="POST", data=b"")
        with pytest.raises(HTTPError) as caught:
            urlopen(request, timeout=limit(WAIT_S))
        with caught.value as answer:
            assert (answer.code, answer.headers["Allow"]) == (405, "GET")


def test_a_port_that_is_taken_is_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(LocalError, match="choose another port"),
        serving(filled(), port=taken.getsockname()[1]),
    ):
        pass
    with pytest.raises(LocalError, match="no port 65536"), serving(filled(), port=65536):
        pass


def test_readers_are_bounded_and_the_next_is_told_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_http, "MAX_READERS", 0)
    monkeypatch.setattr(storage_http, "MAX_SEARCHES", 0)
    with serving(filled()) as http:
        for path in ("arrow", "offsets?timestamp_ms=1"):
            status, body = get(http, f"{OF_PART}/{path}")
            assert (status, body["problem"]) == (503, "busy")
            assert body["headers"]["Retry-After"] == "2"
