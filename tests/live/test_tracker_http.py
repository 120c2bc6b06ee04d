"""A tracker's pages over a real socket, from a tracker that was fed statuses and reports."""

import asyncio
import random
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId, StreamPart, show, stream_part
from anabranch.core.machine import Send
from anabranch.core.messages import Report, Status
from anabranch.core.overlay import PartSettings
from anabranch.core.prediction import MAX_SOURCES
from anabranch.core.tracker import QUIET_S, Tracker
from anabranch.live.tracker_figures import MAX_PARTS_SHOWN, TrackerView
from anabranch.live.tracker_http import MAX_LIMIT, MAX_PREDICTIONS, PAGES, About, TrackerHttp
from anabranch.overlays import TOPOLOGIES
from machines import NODES, OTHER, OWNER, PART, START, Field, Hand
from support.waiting import limit, within

A, B, C, D = NODES[1:5]
RTT_US = 20_000
TIMEOUT_S = 20.0
ABOUT = About("test network", NODES[0])

Page = tuple[int, Any]
Get = Callable[[str], Awaitable[Page]]


def busy() -> Field:
    """Let four nodes be in PART, one of them in OTHER, too."""
    field = Field(degree=2)
    field.settle(A, B, C, D)
    for place, node in enumerate((A, B)):
        counter, peers = field.told[node].counter, field.neighbours(node)
        rtts = (RTT_US,) * len(peers)
        field.hand.hear(node, Status(PART, counter, peers, rtts, f"ws://node-{place}"))
    field.hand.hear(B, Status(OTHER, 0))
    field.hand.hear(
        A,
        Report(
            PART, published=3, delivered=10, duplicates=20, dropped=1, unstored=4, registry_age_s=70
        ),
    )
    field.hand.hear(B, Report(PART, delivered=5, missed=2, delay_mean_us=900, registry_age_s=30))
    field.take([e for e in field.hand.wait(2.0) if type(e) is Send])
    return field


def serve(
    field: Any, use: Callable[[TrackerHttp, Get], Awaitable[None]], **options: Any
) -> TrackerHttp:
    """Start the pages, use them through a client, and stop them."""
    view: TrackerView = field.hand.machine
    http = TrackerHttp(view, ABOUT, lambda: field.hand.now, rng=random.Random(1), **options)

    async def run() -> None:
        await http.start()
        try:
            async with aiohttp.ClientSession() as session:

                async def get(path: str) -> Page:
                    async with session.get(http.address + path) as answer:
                        assert answer.content_type == "application/json"
                        return answer.status, await answer.json()

                await use(http, get)
        finally:
            await http.stop()

    asyncio.run(within(TIMEOUT_S, run()))
    return http


def ask(path: str, field: Any = None, **options: Any) -> Page:
    """Ask for one page."""
    pages: list[Page] = []

    async def use(http: TrackerHttp, get: Get) -> None:
        pages.append(await get(path))

    serve(field or busy(), use, **options)
    return pages[0]


def test_the_first_page_lists_the_others_and_they_are_there() -> None:
    async def use(http: TrackerHttp, get: Get) -> None:
        status, body = await get("/")
        assert (status, body["network"], body["role"]) == (200, "test network", "tracker")
        assert body["pages"] == PAGES
        for path in PAGES.keys() - {"/metrics", "/nodes/{address}", "/prediction"}:
            assert (await get(path))[0] == 200, path

    serve(busy(), use)


def test_health_says_who_and_how_much() -> None:
    status, body = ask("/health")
    assert status == 200
    assert body.pop("version")
    assert body == {
        "status": "ok",
        "network": "test network",
        "node": show(NODES[0]),
        "role": "tracker",
        "uptime_s": 0,
        "nodes": 4,
        "parts": 2,
    }


def test_health_says_what_is_wrong() -> None:
    status, body = ask("/health", problem=lambda: "the disk is full: make room")
    assert (status, body["status"]) == (503, "failing")
    assert body["error"] == "the disk is full: make room"


def test_streams_and_sizes() -> None:
    _, streams = ask("/streams")
    assert streams == {
        "streams": [
            {"stream": PART.stream, "partitions": [{"partition": 0, "nodes": 4, "links": 4}]},
            {"stream": OTHER.stream, "partitions": [{"partition": 3, "nodes": 1, "links": 0}]},
        ],
        "truncated": False,
    }
    _, sizes = ask(f"/topology-size?stream={PART.stream}")
    assert sizes["parts"] == [{"stream": PART.stream, "partition": 0, "nodes": 4, "links": 4}]


def test_the_topology_has_addresses_and_round_trips() -> None:
    field = busy()
    _, body = ask(f"/topology?stream={PART.stream}&partition=0", field)
    (part,) = body["parts"]
    assert (part["stream"], part["partition"], part["nodes"]) == (PART.stream, 0, 4)
    assert part["topology"] == {
        show(node): {
            "address": address,
            "neighbours": [
                {"node": show(peer), "rtt_ms": 20 if address else None}
                for peer in field.neighbours(node)
            ],
        }
        for node, address in [(A, "ws://node-0"), (B, "ws://node-1"), (C, ""), (D, "")]
    }


def test_without_a_stream_the_topology_has_all_parts() -> None:
    _, body = ask("/topology")
    assert [len(part["topology"]) for part in body["parts"]] == [4, 1]
    assert body["truncated"] is False


@pytest.mark.parametrize(("limit", "shown", "truncated"), [(3, [3], True), (4, [4], True)])
def test_the_limit_holds_over_all_parts(limit: int, shown: list[int], truncated: bool) -> None:
    _, body = ask(f"/topology?limit={limit}")
    assert [len(part["topology"]) for part in body["parts"]] == shown
    assert body["truncated"] is truncated


def test_lists_are_cut_at_the_limit_and_say_so() -> None:
    async def use(http: TrackerHttp, get: Get) -> None:
        assert (await get("/topology?limit=5"))[1]["truncated"] is False
        _, body = await get("/nodes?limit=2")
        assert ([n["node"] for n in body["nodes"]], body["total"]) == ([show(A), show(B)], 4)
        assert body["truncated"] is True
        for path in ("/streams", "/topology-size", f"/nodes/{show(B)}"):
            assert (await get(f"{path}?limit=1"))[1]["truncated"] is True
            assert (await get(f"{path}?limit=2"))[1]["truncated"] is False

    serve(busy(), use)


def test_one_node_in_detail() -> None:
    field = busy()
    field.hand.wait(1.5)
    status, body = ask(f"/nodes/{show(B)}", field)
    assert (status, body["node"], body["total"]) == (200, show(B), 2)
    here, there = body["parts"]
    report = here.pop("report")
    assert here == {
        "stream": PART.stream,
        "partition": 0,
        "address": "ws://node-1",
        "dialable": True,
        "counter": field.told[B].counter,
        "status_age_s": 3.5,
        "neighbours": [{"node": show(p), "rtt_ms": 20} for p in field.neighbours(B)],
        "reported": [show(p) for p in field.neighbours(B)],
    }
    assert (report["age_s"], report["delivered"], report["missed"]) == (3.5, 5, 2)
    assert report["delay_mean_us"] == 900
    assert (there["stream"], there["report"]) == (OTHER.stream, None)


def test_reports_have_totals_and_ages() -> None:
    field = busy()
    _, body = ask("/reports", field)
    assert (body["now"], body["truncated"]) == (field.hand.now, False)
    here, there = body["parts"]
    assert (here["stream"], here["nodes"], here["links"]) == (PART.stream, 4, 4)
    assert [(r["node"], r["age_s"], r["delivered"]) for r in here["reports"]] == [
        (show(A), 2, 10),
        (show(B), 2, 5),
    ]
    assert (there["stream"], there["partition"], there["reports"]) == (OTHER.stream, 3, [])
    _, fewer = ask(f"/reports?limit=1&stream={PART.stream}")
    assert (len(fewer["parts"][0]["reports"]), fewer["truncated"]) == (1, True)


def test_the_prediction_comes_from_the_round_trips() -> None:
    field = busy()
    assert A in field.neighbours(B)  # so that the two measured three links of the ring
    status, body = ask(f"/prediction?stream={PART.stream}", field)
    assert status == 200
    assert (body["stream"], body["partition"], body["sampled"]) == (PART.stream, 0, False)
    assert (body["nodes"], body["links"], body["measured_links"]) == (4, 4, 3)
    assert (body["pairs"], body["unreachable_pairs"]) == (12, 0)
    assert (body["min_ms"], body["max_ms"]) == (pytest.approx(10), pytest.approx(30))
    _, body = ask(f"/prediction?stream={PART.stream}&source={show(A)}", field)
    assert (body["sources"], body["pairs"], body["max_ms"]) == (1, 3, pytest.approx(20))


def crowd(size: int, parts: int = 1) -> Any:
    """Let many nodes be in as many parts."""
    named = [stream_part(f"{OWNER}/{number}") for number in range(parts)]
    known = dict.fromkeys(named, PartSettings(degree=4))
    field = Field(directory=known.get)
    for number in range(size):
        field.hand.hear(NodeId(number.to_bytes(20)), Status(named[number % parts], 0))
    field.hand.wait(QUIET_S)
    return field


def test_the_prediction_for_many_is_sampled() -> None:
    _, body = ask(f"/prediction?stream={OWNER}/0", crowd(MAX_SOURCES + 10))
    assert (body["sampled"], body["sources"]) == (True, MAX_SOURCES)
    assert (body["pairs"], body["mean_ms"]) == (0, None)


class Reluctant(Tracker):
    """Its topology can be looked at only after a sign."""

    sign = threading.Event()

    def rtts_us(self, part: StreamPart) -> Any:
        return Patient(super().rtts_us(part))


class Patient(dict[Any, Any]):
    """Round trips that are looked up only after a sign."""

    def get(self, key: Any, default: Any = None) -> Any:
        assert Reluctant.sign.wait(limit(TIMEOUT_S))
        return super().get(key, default)


def test_predictions_at_a_time_are_bounded() -> None:
    settings = {PART: PartSettings()}
    field = Field()
    field.hand = Hand(Reluctant(NODES[0], settings.get, random.Random(1), TOPOLOGIES), START)
    field.join(A, B)

    async def use(http: TrackerHttp, get: Get) -> None:
        path = f"/prediction?stream={PART.stream}"
        asked = [asyncio.create_task(get(path)) for _ in range(MAX_PREDICTIONS + 1)]
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        ((status, body),) = [task.result() for task in done]
        assert status == 503
        assert "ask again" in body["error"]
        Reluctant.sign.set()
        others = await asyncio.gather(*asked)
        assert sorted(status for status, _ in others) == [200] * MAX_PREDICTIONS + [503]
        assert (await get(path))[0] == 200

    serve(field, use)


@pytest.mark.parametrize(
    ("path", "status", "advice"),
    [
        (f"/topology?stream={OWNER}/nothing", 404, "GET /streams"),
        (f"/prediction?stream={OWNER}/nothing", 404, "GET /streams"),
        (f"/prediction?stream={'x' * 3000}", 404, "GET /streams"),
        (f"/topology?stream={PART.stream}&partition=7", 404, "those of this stream are 0"),
        (f"/prediction?stream={OTHER.stream}", 404, "those of this stream are 3"),
        (f"/topology?stream={PART.stream}&partition=x", 400, "from 0 to 99"),
        (f"/topology?stream={PART.stream}&partition=100", 400, "from 0 to 99"),
        (f"/prediction?stream={PART.stream}&partition=-1", 400, "from 0 to 99"),
        (f"/prediction?stream={PART.stream}&partition={'9' * 5000}", 400, "from 0 to 99"),
        ("/topology?partition=0", 400, "&stream="),
        ("/prediction", 400, "stream=ID"),
        (f"/prediction?stream={PART.stream}&source=me", 400, "40 hexadecimal digits"),
        (f"/prediction?stream={PART.stream}&source={show(NODES[9])}", 404, "GET /topology"),
        ("/topology?limit=0", 400, f"to {MAX_LIMIT}"),
        (f"/nodes?limit={MAX_LIMIT + 1}", 400, f"to {MAX_LIMIT}"),
        ("/streams?limit=", 400, "write a number"),
        ("/streams?limit=²", 400, "write a number"),
        (f"/nodes/{show(NODES[9])}", 404, "GET /nodes"),
        ("/nodes/me", 400, "40 hexadecimal digits"),
        ("/nothing", 404, "GET /"),
    ],
)
def test_an_error_says_what_to_do(path: str, status: int, advice: str) -> None:
    answered, body = ask(path)
    assert answered == status
    assert list(body) == ["error"]
    assert advice in body["error"]
    assert len(body["error"]) < 500


def test_the_pages_are_only_read() -> None:
    async def use(http: TrackerHttp, get: Get) -> None:
        async with aiohttp.ClientSession() as session:
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                async with session.request(method, http.address + "/nodes", data=b"x") as answer:
                    assert answer.status == 405
                    assert answer.headers["Allow"] == "GET, HEAD"
                    assert "use GET" in (await answer.json())["error"]

    serve(busy(), use)


def figures(field: Any) -> dict[tuple[str, str], float]:
    """Return what Prometheus reads, by name and by its last label."""
    found: dict[tuple[str, str], float] = {}

    async def use(http: TrackerHttp, get: Get) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(http.address + "/metrics") as answer,
        ):
            assert answer.status == 200
            assert answer.content_type == "text/plain"
            text = await answer.text()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label = sample.labels.get("stream", sample.labels.get("what", ""))
                found[sample.name.removeprefix("anabranch_"), label] = sample.value

    serve(field, use)
    return found


def test_prometheus_gets_figures_of_every_part() -> None:
    field = busy()
    found = figures(field)
    assert found["tracker_parts", ""] == 2
    assert found["tracker_nodes", ""] == 4
    assert found["part_nodes", PART.stream] == 4
    assert found["part_links", PART.stream] == 4
    assert found["part_rtt_mean_seconds", PART.stream] == pytest.approx(0.02)
    assert ("part_rtt_mean_seconds", OTHER.stream) not in found
    assert found["part_reporting_nodes", PART.stream] == 2
    assert found["part_published_messages", PART.stream] == 3
    assert found["part_delivered_messages", PART.stream] == 15
    assert found["part_duplicate_frames", PART.stream] == 20
    assert found["part_dropped_frames", PART.stream] == 1
    assert found["part_missed_messages", PART.stream] == 2
    assert found["part_unstored_messages", PART.stream] == 4
    assert found["part_registry_age_seconds", PART.stream] == 70
    for what, count in field.hand.machine.counts.items():
        assert found["tracker_handled_total", what] == count


def test_prometheus_gets_only_the_largest_parts() -> None:
    field = crowd(MAX_PARTS_SHOWN + 1, MAX_PARTS_SHOWN + 1)
    large = field.hand.machine.parts()[-1]
    field.hand.hear(A, Status(large, 0))
    found = figures(field)
    assert found["tracker_parts", ""] == MAX_PARTS_SHOWN + 1
    assert found["part_nodes", large.stream] == 2
    assert sum(1 for name, _ in found if name == "part_nodes") == MAX_PARTS_SHOWN


def test_a_port_that_is_taken_is_named() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(LocalError, match="choose another port"):
        ask("/health", port=taken.getsockname()[1])


def test_when_it_has_stopped_nobody_listens() -> None:
    async def use(http: TrackerHttp, get: Get) -> None:
        await get("/health")
        await http.stop()
        await http.stop()

    http = serve(busy(), use)
    host, port = http.address.removeprefix("http://").split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), limit(TIMEOUT_S))
