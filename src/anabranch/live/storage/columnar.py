"""Reads stored messages by offset over HTTP, as Arrow record batches.

    with read_batches(url, stream, 0, start, end, token) as batches:
        for batch in batches: ...

It needs no event loop and no node, only a storage node's address, so it runs where Spark's
executors do. A range that does not come to its end raises: what was read until then is right, and
`position` says where to go on, at this storage node or at another one.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.live.errors import AnabranchError, NetworkUnreachable, NoSuchStream, NotPermitted
from anabranch.live.storage.columns import END_OF_STREAM, FRAMES, KEY, MESSAGES, arrow
from anabranch.live.storage.tokens import authorization

if TYPE_CHECKING:
    import pyarrow

ANSWER_S = 60.0  # how long a storage node may say nothing
MAX_ERROR_BYTES = 64 * 1024

_END_BYTES = len(END_OF_STREAM)


class RefusedError(AnabranchError):
    """A storage node does not serve what was asked for; `problem` is a stable word for why."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(str(body.get("error", f"the storage node answers with status {status}")))
        self.status = status
        self.problem = str(body.get("problem", ""))
        self.body = body

    def damaged_upto(self, position: int) -> int | None:
        """Return up to which offset it is damaged there from this one on; None: it is not that."""
        missing = self.body.get("missing")
        first = missing[0] if self.problem == "damaged" and isinstance(missing, list) else None
        if not isinstance(first, list) or [type(each) for each in first] != [int, int]:
            return None
        return first[1] if first[0] <= position < first[1] <= MAX_NUMBER else None


class BrokenOffError(AnabranchError):
    """A range did not come to its end: everything before `position` has come."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(
            f"the storage node broke off at offset {position} ({why}): ask for the rest from "
            "there; if it cannot be served, the answer says why"
        )
        self.position = position


class Offsets(msgspec.Struct, frozen=True):
    """What can be read of a part: offsets from `start` up to `high`, without it."""

    start: int
    high: int
    offset: int | None = None  # the first whose message is of the time that was asked for, or later
    exact: bool = True  # false: no message before `offset` is, but perhaps neither is that one
    length: int | None = None  # of the log at this storage node, with what is not settled yet


def read_offsets(
    url: str,
    stream: str,
    partition: int = 0,
    *,
    timestamp_ms: int | None = None,
    token: str | None = None,
    timeout_s: float = ANSWER_S,
) -> Offsets:
    """Ask a storage node which offsets of a part can be read, and where a time lies among them."""
    path = _path(stream, partition, "offsets", timestamp_ms=timestamp_ms)
    connection, response = _ask(url, path, token, timeout_s)
    try:
        return msgspec.json.decode(response.read(), type=Offsets)
    except (OSError, HTTPException, msgspec.DecodeError) as error:
        raise NetworkUnreachable(f"{url} does not answer as a storage node: {error!r}") from error
    finally:
        response.close()
        connection.close()


def read_batches(
    url: str,
    stream: str,
    partition: int = 0,
    start: int | None = None,
    end: int | None = None,
    token: str | None = None,
    form: str = MESSAGES,
    *,
    publisher: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    timeout_s: float = ANSWER_S,
) -> "Batches":
    """Read a range of a part: offsets from `start` up to `end`, without it, or all there are.

    What was published in a time (from `from_ms` up to `to_ms`, without it), or by one publisher,
    can be chosen. columns.py says which columns there are in either form.
    """
    selected = {"publisher": publisher, "from_ms": from_ms, "to_ms": to_ms}
    path = _path(stream, partition, "arrow", start=start, end=end, form=form, **selected)
    return Batches(*_ask(url, path, token, timeout_s))


async def stream_batches(
    url: str,
    stream: str,
    partition: int = 0,
    start: int | None = None,
    end: int | None = None,
    **options: Any,
) -> AsyncIterator["pyarrow.RecordBatch"]:
    """Read a range as `read_batches` does, where there is an event loop, which goes on."""
    batches = await asyncio.to_thread(read_batches, url, stream, partition, start, end, **options)
    try:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch
    finally:
        batches.close()


class Batches:
    """The record batches of a range, in order of offsets; close it, or use it as a context."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        pa = arrow()
        self._connection = connection
        self._socket: socket.socket | None = connection.sock
        self._body = _Body(response)
        self._lock = threading.RLock()  # who reads has it
        self._reading = True
        self.position = 0
        try:
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._body, mode="r"))
            about = self.schema.metadata
            self.start, self.end = int(about[b"start"]), int(about[b"end"])
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise NetworkUnreachable(f"this is no Arrow stream of a log: {error!r}") from error
        self.position = self.start  # everything before this offset has come

    @property
    def schema(self) -> "pyarrow.Schema":
        """The columns; the metadata say of what they are."""
        return self._reader.schema

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> "pyarrow.RecordBatch":
        with self._lock:
            if not self._reading:
                raise StopIteration
            return self._read()

    def _read(self) -> "pyarrow.RecordBatch":
        try:
            batch = self._reader.read_next_batch()
            batch.validate(full=True)  # it is a stranger's: Arrow would believe every length
            _check_nulls(batch)
        except StopIteration:
            self._finish()
            raise
        except (OSError, HTTPException, arrow().ArrowInvalid) as error:
            self.close()
            raise BrokenOffError(self.position, repr(error)) from error
        if batch.num_rows:
            last = batch.num_rows - 1
            is_frames = self.schema.metadata[b"form"] == FRAMES.encode()
            count = batch.column("count")[last].as_py() if is_frames else 1
            self.position = batch.column("offset")[last].as_py() + count
        return batch

    def _finish(self) -> None:
        """Arrow takes the end of the bytes for the end of the stream: look closer."""
        try:
            is_complete = self._body.is_complete()
        except (OSError, HTTPException) as error:
            raise BrokenOffError(self.position, repr(error)) from error
        finally:
            self.close()
        if not is_complete:
            raise BrokenOffError(self.position, "without the mark of the end")
        self.position = self.end

    def close(self) -> None:
        """Read no more; another thread that is reading meanwhile gets an error."""
        self._reading = False
        if self._socket is not None:
            with suppress(OSError):  # it has ended already
                self._socket.shutdown(socket.SHUT_RDWR)  # which wakes whoever reads
        with self._lock:
            self._body.close()
            self._connection.close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_nulls(batch: "pyarrow.RecordBatch") -> None:
    """Refuse rows that lack something: that a column says of itself it has no nulls is no proof."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count and name != KEY:
            raise arrow().ArrowInvalid(f"rows without {name}")


class _Body:
    """The bytes of a response as a file, of which the last ones are remembered."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._tail = b""
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._response.read(None if size < 0 else size)
        self._tail = (self._tail + data[-_END_BYTES:])[-_END_BYTES:]
        return data

    def is_complete(self) -> bool:
        """Tell whether the response ends here, with the mark of the end."""
        return not self.read() and self._tail == END_OF_STREAM

    def close(self) -> None:
        self.closed = True
        self._response.close()


# --- Requests -----------------------------------------------------------------------------------


def _path(stream: str, partition: int, page: str, **query: int | str | None) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    asked = f"?{urlencode(given)}" if given else ""
    return f"/streams/{quote(stream, safe='')}/partitions/{partition}/{page}{asked}"


_CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


def _ask(
    url: str, path: str, token: str | None, timeout_s: float
) -> tuple[HTTPConnection, HTTPResponse]:
    """Ask a storage node; what it refuses is raised."""
    where = urlsplit(url)
    kind = _CONNECTIONS.get(where.scheme)
    if kind is None or not where.hostname:
        raise LocalError(f"{url!r} is not a storage node's address: write http://host:port")
    connection = kind(where.netloc, timeout=timeout_s)
    headers = {"Authorization": authorization(token)} if token else {}
    try:
        connection.request("GET", where.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        if response.status == 200:
            return connection, response
        refusal = _refusal(response.status, response.read(MAX_ERROR_BYTES))
    except (OSError, HTTPException) as error:
        connection.close()
        raise NetworkUnreachable(f"the storage node at {url} does not answer: {error!r}") from error
    connection.close()
    raise refusal


def _refusal(status: int, answer: bytes) -> AnabranchError:
    try:
        body = json.loads(answer)
    except ValueError:
        body = None
    refused = RefusedError(status, body if isinstance(body, dict) else {})
    if status in (401, 403):
        return NotPermitted(str(refused))
    return NoSuchStream(str(refused)) if status == 404 else refused
