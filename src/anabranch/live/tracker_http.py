"""What a tracker shows to people and their programs: JSON over HTTP, to read and not to write.

Every answer has a bounded size (`limit`), and an error says in `error` what to do instead.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    MAX_PARTITIONS,
    MAX_STREAM_ID_LENGTH,
    NodeId,
    StreamPart,
    parse_node,
    show,
)
from anabranch.core.prediction import predict
from anabranch.core.tracked import TrackedNode
from anabranch.live.page_server import DEFAULT_LIMITS, PageLimits, PageServer
from anabranch.live.tracker_figures import TrackerFigures, TrackerView, figures_of

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_PREDICTIONS = 2  # at a time, each on a thread of its own

Json = dict[str, Any]
PAGES = {
    "/health": "whether all is well: 200, or 503 and the problem",
    "/streams": "the streams that have nodes here, with the size of each partition",
    "/topology": "who is whose neighbour, with round trips: ?stream=ID&partition=0&limit=1000",
    "/topology-size": "nodes and links of each stream part",
    "/nodes": "the nodes, and how many stream parts each is in",
    "/nodes/{address}": "one node: its parts, neighbours, round trips and last report",
    "/reports": "what nodes say of themselves: ?stream=ID&partition=0&limit=1000",
    "/prediction": "delays predicted from the round trips: ?stream=ID&partition=0&source=NODE",
    "/metrics": "figures for Prometheus",
}


class About(msgspec.Struct, frozen=True):
    """Whose page this is."""

    network: str
    node: NodeId
    role: str = "tracker"


class RequestError(Exception):
    """A request cannot be answered; the text says what to do instead."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def all_is_well() -> str:
    """Name no problem."""
    return ""


class TrackerHttp:
    """Serves one tracker's pages; `problem` returns what is wrong with it, or nothing."""

    def __init__(
        self,
        tracker: TrackerView,
        about: About,
        clock: Callable[[], float],
        host: str = "127.0.0.1",
        port: int = 0,
        problem: Callable[[], str] = all_is_well,
        rng: random.Random | None = None,
        limits: PageLimits = DEFAULT_LIMITS,
    ) -> None:
        self.address = ""
        self._tracker = tracker
        self._about = about
        self._clock = clock
        self._server = PageServer("tracker", host, port, limits)
        self._problem = problem
        self._rng = rng or random.Random()
        self._started_at = clock()
        self._predictions = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(TrackerFigures(tracker))
        self._registry.register(self._server.figures)

    async def start(self) -> None:
        """Begin to listen; `address` says where."""
        app = web.Application(middlewares=[_errors_as_json])
        handlers = {
            "/": self._index,
            "/health": self._health,
            "/streams": self._streams,
            "/topology": self._topology,
            "/topology-size": self._topology_size,
            "/nodes": self._nodes,
            "/nodes/{address}": self._node,
            "/reports": self._reports,
            "/prediction": self._prediction,
            "/metrics": self._metrics,
        }
        app.add_routes([web.get(path, handler) for path, handler in handlers.items()])
        self.address = await self._server.start(app)

    async def stop(self) -> None:
        """Stop listening, and let requests under way end."""
        await self._server.stop()

    # --- Pages ----------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        return _answer({**self._identity(), "pages": PAGES})

    async def _health(self, request: web.Request) -> web.Response:
        problem = self._problem()
        found = {
            "status": "failing" if problem else "ok",
            **self._identity(),
            "uptime_s": round(self._clock() - self._started_at, 3),
            "nodes": len(self._tracker.members()),
            "parts": len(self._tracker.parts()),
        }
        return _answer(found | {"error": problem}, 503) if problem else _answer(found)

    async def _streams(self, request: web.Request) -> web.Response:
        limit = _limit(request)
        streams: dict[str, list[Json]] = {}
        parts = self._tracker.parts()
        for part in parts[:limit]:
            size = {"partition": part.partition, **self._size(part)}
            streams.setdefault(part.stream, []).append(size)
        listed = [{"stream": stream, "partitions": sizes} for stream, sizes in streams.items()]
        return _answer({"streams": listed, "truncated": len(parts) > limit})

    async def _topology_size(self, request: web.Request) -> web.Response:
        limit, parts = _limit(request), self._parts_asked_for(request)
        sizes = [{**_named(part), **self._size(part)} for part in parts[:limit]]
        return _answer({"parts": sizes, "truncated": len(parts) > limit})

    async def _topology(self, request: web.Request) -> web.Response:
        left = _limit(request)
        listed: list[Json] = []
        truncated = False
        for part in self._parts_asked_for(request):
            nodes = self._tracker.nodes(part)
            if left <= 0:
                truncated = True
                break
            chosen = sorted(nodes)[:left]
            topology = {
                show(node): {
                    "address": nodes[node].address,
                    "neighbours": self._neighbours(part, node, nodes[node]),
                }
                for node in chosen
            }
            left -= len(chosen)
            truncated |= len(chosen) < len(nodes)
            listed.append({**_named(part), "nodes": len(nodes), "topology": topology})
        return _answer({"parts": listed, "truncated": truncated})

    async def _nodes(self, request: web.Request) -> web.Response:
        limit, members = _limit(request), self._tracker.members()
        listed = []
        for node in members[:limit]:
            parts = self._tracker.parts_of(node)
            address = self._tracker.nodes(parts[0])[node].address
            dialable = self._tracker.nodes(parts[0])[node].dialable
            row = {"node": show(node), "address": address, "dialable": dialable}
            listed.append({**row, "parts": len(parts)})
        return _answer({"nodes": listed, "total": len(members), "truncated": len(members) > limit})

    async def _node(self, request: web.Request) -> web.Response:
        limit = _limit(request)
        node = _node_named(request.match_info["address"])
        parts = self._tracker.parts_of(node)
        if not parts:
            raise RequestError(
                404, f"{show(node)} is in no stream part here: GET /nodes lists who is"
            )
        listed = [self._membership(part, node) for part in parts[:limit]]
        return _answer(
            {"node": show(node), "parts": listed, "total": len(parts)}
            | {"truncated": len(parts) > limit}
        )

    async def _reports(self, request: web.Request) -> web.Response:
        left, now = _limit(request), self._clock()
        listed: list[Json] = []
        truncated = False
        for part in self._parts_asked_for(request):
            if left <= 0:
                truncated = True
                break
            nodes = self._tracker.nodes(part)
            known = [node for node in sorted(nodes) if nodes[node].report is not None]
            reports = [{"node": show(n), **(_report(nodes[n], now) or {})} for n in known[:left]]
            left -= max(1, len(reports))  # a part without reports is shown, too
            truncated |= len(reports) < len(known)
            listed.append({**_named(part), **self._size(part), "reports": reports})
        return _answer({"now": now, "parts": listed, "truncated": truncated})

    async def _prediction(self, request: web.Request) -> web.Response:
        if "stream" not in request.query:
            raise RequestError(400, "which stream? GET /prediction?stream=ID&partition=0")
        part = self._parts_asked_for(request, default_partition=0)[0]
        if self._predictions >= MAX_PREDICTIONS:
            raise RequestError(503, "too many predictions are under way: ask again in a second")
        # The thread gets copies, and a sample where the nodes are many, so that it ends soon.
        work = partial(
            predict,
            self._tracker.topology(part),
            self._tracker.rtts_us(part),
            sources=self._source(request, part),
            rng=random.Random(self._rng.getrandbits(64)),
        )
        self._predictions += 1
        try:
            found = await asyncio.to_thread(work)
        finally:
            self._predictions -= 1
        return _answer({**_named(part), **msgspec.to_builtins(found)})

    def _source(self, request: web.Request, part: StreamPart) -> list[NodeId] | None:
        """Return the one node whose messages the delays are asked for; None: all nodes."""
        if "source" not in request.query:
            return None
        node = _node_named(request.query["source"])
        if node not in self._tracker.nodes(part):
            raise RequestError(404, f"{show(node)} is not in {part}: GET /topology lists who is")
        return [node]

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    # --- What they are made of ------------------------------------------------------------

    def _identity(self) -> Json:
        about = self._about
        return {
            "network": about.network,
            "node": show(about.node),
            "role": about.role,
            "version": version("anabranch"),
        }

    def _size(self, part: StreamPart) -> Json:
        figures = figures_of(self._tracker, part)
        return {"nodes": figures.nodes, "links": figures.links}

    def _neighbours(self, part: StreamPart, node: NodeId, known: TrackedNode) -> list[Json]:
        rtts_us = dict(zip(known.reported, known.rtts_us, strict=False))
        return [
            {"node": show(peer), "rtt_ms": rtts_us.get(peer, 0) / 1000 or None}
            for peer in self._tracker.neighbours(part, node)
        ]

    def _membership(self, part: StreamPart, node: NodeId) -> Json:
        known, now = self._tracker.nodes(part)[node], self._clock()
        return {
            **_named(part),
            "address": known.address,
            "dialable": known.dialable,
            "counter": known.counter,
            "status_age_s": round(now - known.heard_at, 3),
            "neighbours": self._neighbours(part, node, known),
            "reported": [show(peer) for peer in known.reported],
            "report": _report(known, now),
        }

    def _parts_asked_for(
        self, request: web.Request, default_partition: int | None = None
    ) -> list[StreamPart]:
        """Return the parts that the query names: all, those of a stream, or one."""
        stream, partition = request.query.get("stream"), request.query.get("partition")
        if stream is None:
            if partition is not None:
                raise RequestError(400, "a partition of which stream? Add &stream=ID")
            return self._tracker.parts()
        wanted = default_partition
        if partition is not None:
            wanted = _number(partition, "partition", 0, MAX_PARTITIONS - 1)
        of_stream = [part for part in self._tracker.parts() if part.stream == stream]
        if not of_stream:
            shown = stream[:MAX_STREAM_ID_LENGTH]
            raise RequestError(404, f"no stream {shown!r} here: GET /streams lists those there are")
        if wanted is None:
            return of_stream
        found = [part for part in of_stream if part.partition == wanted]
        if not found:
            text = ", ".join(str(part.partition) for part in of_stream)
            raise RequestError(
                404, f"partition {wanted} has no nodes: those of this stream are {text}"
            )
        return found


# --- Requests and answers -----------------------------------------------------------------------


def _answer(body: Json, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )


def _named(part: StreamPart) -> Json:
    return {"stream": part.stream, "partition": part.partition}


def _report(known: TrackedNode, now: float) -> Json | None:
    if known.report is None:
        return None
    totals = msgspec.structs.asdict(known.report)
    del totals["part"]
    return {"age_s": round(now - known.report_at, 3), "dialable": known.dialable, **totals}


def _limit(request: web.Request) -> int:
    return _number(request.query.get("limit", str(DEFAULT_LIMIT)), "limit", 1, MAX_LIMIT)


def _number(text: str, name: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise RequestError(400, f"{name} {text[:30]!r}: write a number from {least} to {most}")
    return int(text)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _answer({"error": str(error)}, error.status)
    except web.HTTPNotFound:
        return _answer({"error": "no such page: GET / lists what there is"}, 404)
    except web.HTTPMethodNotAllowed as error:
        answer = _answer({"error": "these pages are only read: use GET"}, 405)
        answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return answer


def _node_named(text: str) -> NodeId:
    try:
        return parse_node(text)
    except LocalError as error:
        raise RequestError(400, str(error)) from error
