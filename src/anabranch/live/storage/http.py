"""What a storage node serves over HTTP: its logs by offset, as Arrow streams, and pages about them.

An error is JSON: `problem` is a stable word, `error` says what to do. Once an Arrow stream has
begun nothing but its rows can be sent, so what goes wrong then (a message that turns out to be
damaged, deleted or encrypted, a permission that was withdrawn, a reader that has stopped reading)
breaks the connection off: a stream without Arrow's mark of the end is not complete. Its rows are
right all the same, and whoever asks again from the offset behind them is told what is wrong.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from anabranch.core.changes import PUBLIC, Right
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import (
    MAX_PARTITIONS,
    MAX_TIMESTAMP_MS,
    NodeId,
    StreamPart,
    show,
    stream_part,
)
from anabranch.live.page_server import DEFAULT_LIMITS, PageLimits, PageServer
from anabranch.live.storage.columns import END_OF_STREAM, arrow
from anabranch.live.storage.damage import Damage
from anabranch.live.storage.figures import StorageFigures
from anabranch.live.storage.ranges import (
    Find,
    LogStatus,
    RangeReader,
    RequestError,
    Status,
    find_moment,
)
from anabranch.live.storage.requests import number_in, parse_number, parse_range
from anabranch.live.storage.tokens import SCHEME, check_token, token_in

MAX_READERS = 32  # ranges that are read at a time
MAX_SEARCHES = 4  # times that are looked up at a time
RETRY_S = 2  # when to ask again if there are so many
STALL_S = 120.0  # how long a reader may take for a page
DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000

ARROW_STREAM = "application/vnd.apache.arrow.stream"

Json = dict[str, Any]
Sizes = Callable[[], Awaitable[Mapping[StreamPart, int]]]  # bytes on the disk
NO_COMPARISONS: Mapping[str, int] = MappingProxyType({})
PAGES = {
    "/health": "whether all is well: 200, or 503 and the problem; what is damaged, and the scrub",
    "/parts": "the stream parts that are stored here, and how their logs stand: ?limit=1000",
    "/streams/{stream}/partitions/{partition}/offsets": "what can be read: the first offset, and "
    "that behind the last; ?timestamp_ms=T adds the first whose message is of that time or later",
    "/streams/{stream}/partitions/{partition}/arrow": "messages as an Arrow stream: ?start=OFFSET"
    "&end=OFFSET&form=messages|frames&publisher=ADDRESS&from_ms=T&to_ms=T, up to both ends and "
    "without them",
    "/metrics": "figures for Prometheus",
}


class Rights(Protocol):
    """What is asked of a registry."""

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right, by what is known and not too old."""


def all_is_well() -> str:
    """Name no problem."""
    return ""


def undamaged() -> Damage:
    """Know of no damage."""
    return Damage()


async def unmeasured() -> Mapping[StreamPart, int]:
    """Know the size of nothing."""
    return {}


class StorageHttp:
    """Serves the pages of one storage node, whose registry says who may read what."""

    def __init__(
        self,
        node: NodeId,
        network: bytes,
        registry: Rights,
        find: Find,
        status: Status,
        parts: Callable[[], Iterable[StreamPart]],
        clock: Callable[[], float],
        verify: Verify,
        host: str = "127.0.0.1",
        port: int = 0,
        problem: Callable[[], str] = all_is_well,
        damage: Callable[[], Damage] = undamaged,
        sizes: Sizes = unmeasured,
        compared: Mapping[str, int] = NO_COMPARISONS,
        limits: PageLimits = DEFAULT_LIMITS,
        registry_age_s: Callable[[], float] = float,
    ) -> None:
        self.address = ""
        self.counts = {"ranges": 0, "bytes": 0, "refused": 0, "broken": 0}
        self.readers = 0
        self._node = node
        self._network = network
        self._registry = registry
        self._find = find
        self._status = status
        self._parts = parts
        self._clock = clock
        self._verify = verify
        self._server = PageServer("storage node", host, port, limits)
        self._problem = problem
        self._damage = damage
        self._sizes = sizes
        self._searches = 0
        self._started_at = clock()
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(
            StorageFigures(
                *(node, parts, status, self.counts, lambda: self.readers, compared, damage),
                registry_age_s,
            )
        )
        self._collectors.register(self._server.figures)

    async def start(self) -> None:
        """Begin to listen; `address` says where."""
        arrow()  # whoever lacks it is told now, and not at the first request
        app = web.Application(middlewares=[self._errors_as_json])
        of_part = "/streams/{stream:.+}/partitions/{partition}"
        handlers = {
            "/": self._index,
            "/health": self._health,
            "/parts": self._list_parts,
            f"{of_part}/offsets": self._offsets,
            f"{of_part}/arrow": self._arrow,
            "/metrics": self._metrics,
        }
        app.add_routes(
            [web.get(path, handler, allow_head=False) for path, handler in handlers.items()]
        )
        self.address = await self._server.start(app)

    async def stop(self) -> None:
        """Stop listening, and let requests under way end."""
        await self._server.stop()

    # --- Pages ----------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        return _answer({**self._identity(), "pages": PAGES})

    async def _health(self, request: web.Request) -> web.Response:
        damage = self._damage()
        problem = self._problem() or damage.problem
        worst = "forgotten" if damage.lost else "diverged" if damage.disagreeing else "damaged"
        failing = "failing" if self._problem() else "damaged" if damage.missing else worst
        found = {
            "status": failing if problem else "ok",
            **self._identity(),
            "uptime_s": round(self._clock() - self._started_at, 3),
            "parts": sum(1 for _ in self._parts()),
            "readers": self.readers,
            "damage": damage.shown(),
            "scrub": damage.scrub,
            **damage.shown_losses(),
        }
        return _answer(found | {"error": problem}, 503) if problem else _answer(found)

    async def _list_parts(self, request: web.Request) -> web.Response:
        limit, parts = number_in(request, "limit", DEFAULT_LIMIT, MAX_LIMIT), sorted(self._parts())
        sizes = await self._sizes()
        listed = []
        for part in parts[:limit]:
            status = self._status(part)
            if status is not None:
                listed.append(_shown(part, status) | {"bytes": sizes.get(part)})
        return _answer({"parts": listed, "total": len(parts), "truncated": len(parts) > limit})

    async def _offsets(self, request: web.Request) -> web.Response:
        part, status = self._part_asked_for(request)
        self._admit(part, self._user(request, part))
        found: Json = {"start": status.start, "high": status.high, "length": status.length}
        if "timestamp_ms" in request.query:
            timestamp_ms = number_in(request, "timestamp_ms", 0, MAX_TIMESTAMP_MS)
            if self._searches >= MAX_SEARCHES:
                raise _busy("times are being looked up")
            self._searches += 1
            try:
                moment = await find_moment(self._find, part, status, timestamp_ms)
            finally:
                self._searches -= 1
            found |= msgspec.structs.asdict(moment)
        return _answer(found)

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._collectors)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    # --- Ranges ---------------------------------------------------------------------------

    async def _arrow(self, request: web.Request) -> web.StreamResponse:
        part, status = self._part_asked_for(request)
        user = self._user(request, part)
        self._admit(part, user)
        wanted = parse_range(request, part, status)
        if self.readers >= MAX_READERS:
            raise _busy("ranges are being read")
        self.readers += 1
        self.counts["ranges"] += 1
        try:
            reader = RangeReader(wanted, self._find, self._status)
            # What is wrong with the first page can still be said.
            first = [] if reader.is_done else await reader.read_page()
            return await self._serve(request, part, user, reader, first)
        finally:
            self.readers -= 1

    async def _serve(
        self,
        request: web.Request,
        part: StreamPart,
        user: NodeId,
        reader: RangeReader,
        first: list[bytes],
    ) -> web.StreamResponse:
        """Send all of a range, or break off."""
        response = web.StreamResponse(headers={"Content-Type": ARROW_STREAM})
        transport = request.transport
        if transport is None:
            return response  # the reader has gone already
        try:
            await response.prepare(request)
            await self._send(response, reader.schema.serialize(), *first)
            while not reader.is_done:
                self._admit(part, user)
                await self._send(response, *await reader.read_page())
            await self._send(response, END_OF_STREAM)
        except RequestError:
            self.counts["broken"] += 1
            transport.close()  # when what is on its way has come, or will not come any more
            asyncio.get_running_loop().call_later(STALL_S, transport.abort)
        except (TimeoutError, ConnectionError):
            self.counts["broken"] += 1
            transport.abort()
        except asyncio.CancelledError:  # we stop, and do not wait for somebody who does not read
            transport.abort()
            raise
        return response

    async def _send(self, response: web.StreamResponse, *pieces: bytes) -> None:
        async with asyncio.timeout(STALL_S):
            for piece in pieces:
                await response.write(memoryview(piece))
        self.counts["bytes"] += sum(map(len, pieces))

    # --- Who asks for what ----------------------------------------------------------------

    def _identity(self) -> Json:
        return {
            "network": self._network.hex(),
            "node": show(self._node),
            "role": "storage",
            "version": version("anabranch"),
        }

    def _part_asked_for(self, request: web.Request) -> tuple[StreamPart, LogStatus]:
        text = request.match_info["partition"]
        partition = parse_number(text, "partition", MAX_PARTITIONS - 1)
        try:
            part = stream_part(request.match_info["stream"], partition)
        except LocalError as error:
            raise RequestError(400, "bad-request", str(error)) from error
        status = self._status(part)
        if status is None:
            raise RequestError(
                404, "not-stored", f"{part} is not stored here: GET /parts lists what is"
            )
        return part, status

    def _user(self, request: web.Request, part: StreamPart) -> NodeId:
        """Return who asks; PUBLIC if everybody may, or nobody in particular asks."""
        header = request.headers.get("Authorization", "")
        if not header or self._may(part, PUBLIC):
            return PUBLIC
        try:
            return check_token(
                token_in(header), self._network, self._node, self._clock(), self._verify
            )
        except RemoteError as error:
            raise RequestError(401, error.reason, f"the token does not count: {error}") from error

    def _admit(self, part: StreamPart, user: NodeId) -> None:
        if self._may(part, user):
            return
        if user == PUBLIC:
            raise RequestError(
                401,
                "no-token",
                f"not everybody may subscribe to {part.stream}: say who you are with "
                f"Authorization: {SCHEME} <token>",
            )
        raise RequestError(
            403,
            "unpermitted",
            f"{show(user)} may not subscribe to {part.stream}: ask its owner for the permission",
        )

    def _may(self, part: StreamPart, user: NodeId) -> bool:
        return self._registry.may(part.stream, user, Right.SUBSCRIBE, self._clock())

    @web.middleware
    async def _errors_as_json(self, request: web.Request, handler: "Handler") -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            self.counts["refused"] += 1
            body = {"problem": error.problem, "error": str(error), **error.details}
            answer = _answer(body, error.status)
            if error.status == 401:
                answer.headers["WWW-Authenticate"] = SCHEME
            if error.status == 503:
                answer.headers["Retry-After"] = str(RETRY_S)
            return answer
        except web.HTTPNotFound:
            text = "no such page: GET / lists what there is"
            return _answer({"problem": "no-page", "error": text}, 404)
        except web.HTTPMethodNotAllowed as error:
            text = "these pages are only read: use GET"
            answer = _answer({"problem": "method", "error": text}, 405)
            answer.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
            return answer


# --- Requests and answers -----------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _answer(body: Json, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(body), status=status, content_type="application/json"
    )


def _shown(part: StreamPart, status: LogStatus) -> Json:
    return {
        "stream": part.stream,
        "partition": part.partition,
        "start": status.start,
        "high": status.high,
        "length": status.length,
        "held": status.held,
        "epoch": status.epoch,
        "primary": None if status.primary is None else show(status.primary),
    }


def _busy(what: str) -> RequestError:
    return RequestError(503, "busy", f"too many {what} here: ask again in {RETRY_S} s")
