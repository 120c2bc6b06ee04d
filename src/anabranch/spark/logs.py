"""What the storage nodes say of the logs that are read: asked of all of them, from the driver.

Offsets are the same everywhere, but high marks are not: a storage node may not have heard yet how
far the log is settled. The highest that is told counts, and tasks go to whoever has so much. But
nothing is settled that most storage nodes do not hold: one that tells of more than the others have
is not believed, as a query would wait for ever for what it says.
"""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.live.errors import AnabranchError, NetworkUnreachable, NoSuchStream, NotPermitted
from anabranch.live.storage.columnar import Offsets, RefusedError, read_offsets
from anabranch.live.terms import require_part
from anabranch.spark.access import StoredStream, look_up, token
from anabranch.spark.options import SourceOptions

ANSWER_S = 10.0  # how long a storage node may take to say how its log stands
AVOIDED_S = 30.0  # how long one that did not answer is left alone, if others do
PATIENCE_S = 20.0  # how long it may take until one of them answers
PAUSE_S = 0.5
RENEW_S = 10.0  # how old the registry's word on partitions and storage nodes may be
MAX_THREADS = 8


class Logs:
    """The parts that are read, and how far each can be read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._streams: dict[str, StoredStream] = {}
        self._renew_at = 0.0
        self._avoided: dict[str, float] = {}  # pages of storage nodes, until when

    # --- The registry ---------------------------------------------------------------------

    def stream(self, name: str) -> StoredStream:
        """Return what the registry says of a stream that is read."""
        if name not in self._streams:
            self._streams |= {found.name: found for found in look_up(self._options.access, [name])}
        return self._streams[name]

    def parts(self, renewed: bool = False) -> list[StreamPart]:
        """Return the parts that are read; if they are to be renewed, with those that are new."""
        if not self._streams:
            self._renew()
        elif renewed and time.monotonic() > self._renew_at:
            # Whoever reads from storage nodes need not end because no tracker answers.
            with suppress(NetworkUnreachable):
                self._renew()
        assigned, parts = self._options.assigned, []
        for name in self._options.streams:
            stream = self._streams[name]
            if assigned is None:
                parts += stream.parts
                continue
            for partition in assigned[name]:
                require_part(name, stream.partitions, partition)
                parts.append(StreamPart(name, partition))
        return parts

    def _renew(self) -> None:
        self._renew_at = time.monotonic() + AVOIDED_S
        found = look_up(self._options.access, self._options.streams)
        self._streams |= {stream.name: stream for stream in found}
        self._renew_at = time.monotonic() + RENEW_S

    # --- The storage nodes ----------------------------------------------------------------

    def offsets(self, part: StreamPart, timestamp_ms: int | None = None) -> Offsets:
        """Return what can be read of a part; wait a while for somebody who says it."""
        until = time.monotonic() + PATIENCE_S
        while True:
            found = self._ask(part, timestamp_ms)
            if isinstance(found, Offsets):
                return found
            if isinstance(found, NotPermitted | LocalError) or time.monotonic() > until:
                raise found
            time.sleep(PAUSE_S)
            if isinstance(found, NetworkUnreachable):  # perhaps they have gone somewhere else
                with suppress(NetworkUnreachable):
                    self._renew()

    def highs(self, parts: Iterable[StreamPart]) -> dict[str, int]:
        """Return how far each part can be read; one that nobody keeps yet is left out."""
        parts = list(parts)
        with ThreadPoolExecutor(min(max(len(parts), 1), MAX_THREADS)) as threads:
            found = dict(zip(parts, threads.map(self._ask, parts), strict=True))
        highs = {}
        for part, answer in found.items():
            if isinstance(answer, NoSuchStream):
                continue
            log = answer if isinstance(answer, Offsets) else self.offsets(part)
            highs[str(part)] = log.high
        return highs

    def _ask(
        self, part: StreamPart, timestamp_ms: int | None = None
    ) -> Offsets | AnabranchError | LocalError:
        """Ask every storage node of a part once; return why if none has an answer."""
        stream = self.stream(part.stream)
        now = time.monotonic()
        asked = [place for place in stream.storage if self._avoided.get(place[1], 0.0) < now]
        answers: list[Offsets] = []
        problems: list[AnabranchError | LocalError] = []
        for node, url in asked or stream.storage:
            try:
                answers.append(self._ask_one(stream, part, node, url, timestamp_ms))
            except NetworkUnreachable as error:
                self._avoided[url] = time.monotonic() + AVOIDED_S
                problems.append(error)
            except (AnabranchError, LocalError) as error:
                problems.append(error)
        if answers:
            furthest = max(answers, key=lambda log: log.high)
            start = min(log.start for log in answers)
            high = min(furthest.high, settled_at_most(answers, stream.copies))
            return Offsets(start, max(start, high), furthest.offset, furthest.exact)
        for url in [url for _, url in stream.storage]:
            self._avoided.pop(url, None)  # nobody is left whom we could ask instead
        return min(problems, key=_weight)

    def _ask_one(
        self,
        stream: StoredStream,
        part: StreamPart,
        node: NodeId,
        url: str,
        timestamp_ms: int | None,
    ) -> Offsets:
        shown = token(self._options.access, stream, node)
        return read_offsets(
            url,
            part.stream,
            part.partition,
            timestamp_ms=timestamp_ms,
            token=shown,
            timeout_s=ANSWER_S,
        )


def settled_at_most(answers: Iterable[Offsets], copies: int) -> int:
    """Return how far a log can be settled at most, if one of those who answered may lie.

    What is settled most of the storage nodes hold, and so some of those who answered.
    """
    lengths = sorted(
        (log.high if log.length is None else log.length for log in answers), reverse=True
    )
    silent = copies - len(lengths)
    holders = max(copies // 2 + 1 - silent, 1)
    return lengths[holders - 1]


def _weight(problem: Exception) -> int:
    """Order problems by how much they say: a refusal more than a silence."""
    kinds = (LocalError, NotPermitted, NoSuchStream, RefusedError, NetworkUnreachable)
    return next(
        (place for place, kind in enumerate(kinds) if isinstance(problem, kind)), len(kinds)
    )
