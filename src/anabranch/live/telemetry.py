"""A node's trace as an ordinary stream: what it sees, published in batches of JSON lines.

The node never waits for its telemetry: what does not fit into the queue is dropped, counted, and
told to the readers by a `noted` record. Records about the telemetry stream itself are left out,
or else each batch would give rise to the next.
"""

import asyncio
from collections import deque
from types import TracebackType

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import StreamPart, show
from anabranch.live.client import Network
from anabranch.live.errors import AnabranchError, NotPermitted
from anabranch.live.stream import Stream
from anabranch.traces.schema import Noted, Record, Stopped

BATCH_BYTES = 64 * 1024  # of one message
BATCH_S = 1.0  # how long a record waits for others
MAX_WAITING_BATCHES = 64  # not yet published; 4 MiB
AT_ONCE = 8  # batches on their way at one time
FLUSH_S = 5.0  # how long the last batches may take when the node leaves
DROPPED = "telemetry-dropped"

_encode = msgspec.json.Encoder().encode


class _Batch:
    """Some records, encoded."""

    def __init__(self) -> None:
        self.lines = bytearray()
        self.records = 0


class Telemetry:
    """Publishes what a node records to a stream, within `async with`.

    `async with connect() as network, Telemetry(network, "ops/telemetry"):` is all there is to do;
    the stream must exist, and our key must be permitted to publish to it.
    """

    def __init__(self, network: Network, stream: str) -> None:
        self.published = 0  # records that a neighbour has
        self.dropped = 0  # records that found no room, or nobody to take them
        self.problem = ""  # why the last batch that could not be published was not
        self._network = network
        self._name = stream
        self._open = _Batch()
        self._waiting: deque[_Batch] = deque()
        self._more = asyncio.Event()
        self._untold = 0  # dropped, and not told to the readers yet
        self._ended = False
        self._own = ""  # how the names of the stream's parts begin
        self._publishing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Telemetry":
        stream = await self._network.stream(self._name)
        if not stream.may("publish"):
            raise NotPermitted(
                f"{self._network.me} may not publish its telemetry to {stream.id}: its owner can "
                f"permit it with `anabranch stream grant {stream.id} {self._network.me} publish`"
            )
        self._own = f"{stream.id}#"
        node = self._network.node
        for partition in range(stream.partitions):  # so that none goes by its hash
            node.observer.name_part(StreamPart(stream.id, partition))
        node.observer.record(node.driver.now(), self.write)
        self._publishing = asyncio.create_task(self._publish_all(stream))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._publishing is not None
        node = self._network.node
        self.write(Stopped(node.driver.now(), show(node.node)))  # as far as the readers can see
        self._close()
        self._ended = True
        self._more.set()
        await asyncio.wait({self._publishing}, timeout=FLUSH_S)
        self._publishing.cancel()
        await asyncio.gather(self._publishing, return_exceptions=True)
        for batch in self._waiting:
            self.dropped += batch.records
        self._waiting.clear()

    def figures(self) -> dict[str, int | str]:
        """Return what became of the records so far."""
        row: dict[str, int | str] = {"published": self.published, "dropped": self.dropped}
        return {**row, "problem": self.problem} if self.problem else row

    # --- Records come ---------------------------------------------------------------------

    def write(self, record: Record) -> None:
        """Take one record; never wait."""
        if self._ended or getattr(record, "part", "").startswith(self._own):
            return
        line = _encode(record)
        if len(self._open.lines) + len(line) >= BATCH_BYTES:
            self._close()
        self._open.lines += line
        self._open.lines += b"\n"
        self._open.records += 1

    def _close(self) -> None:
        """Let the open batch wait to be published, and begin another."""
        batch, self._open = self._open, _Batch()
        if not batch.records:
            return
        if len(self._waiting) >= MAX_WAITING_BATCHES:
            self._lose(batch)
            return
        self._waiting.append(batch)
        self._more.set()

    def _lose(self, batch: _Batch) -> None:
        self.dropped += batch.records
        self._untold += batch.records

    # --- Batches go -----------------------------------------------------------------------

    async def _publish_all(self, stream: Stream) -> None:
        while True:
            try:
                async with asyncio.timeout(BATCH_S):
                    await self._more.wait()
            except TimeoutError:
                self._close()
            self._more.clear()
            while self._waiting:
                self._tell_dropped()
                count = min(AT_ONCE, len(self._waiting))
                batches = [self._waiting.popleft() for _ in range(count)]
                await asyncio.gather(*(self._publish(stream, batch) for batch in batches))
            if self._ended:
                return

    def _tell_dropped(self) -> None:
        """Let the readers know that records are missing, at about the place where they are."""
        if self._untold:
            node = self._network.node
            record = Noted(node.driver.now(), show(node.node), DROPPED, str(self._untold))
            self._untold = 0
            self._waiting[0].lines += _encode(record) + b"\n"

    async def _publish(self, stream: Stream, batch: _Batch) -> None:
        taken = False
        try:
            await stream.publish(batch.lines.decode())
            taken = True
        except (AnabranchError, LocalError) as error:  # the next batch may do better
            self.problem = str(error)
        finally:  # when we leave, it may be cut off
            if taken:
                self.published += batch.records
            else:
                self._lose(batch)
