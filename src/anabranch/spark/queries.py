"""Streaming queries while they run: what each batch did, and an end with nothing half done."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:  # it is slow to import, and optional
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S = 0.2
FINISH_S = 10.0  # how long the batch under way may still take when we are asked to end
DEFAULT_TRIGGER = "1 second"


class Batch(msgspec.Struct, frozen=True):
    """What one batch of a query did."""

    query: str
    batch: int
    rows: int
    seconds: float
    rows_per_s: float
    offsets: Any  # where each stream part stands now
    late: int = 0  # rows, or sums of some, that came after their window was finished


Tell = Callable[[Batch], None]


def trigger_of(available_now: bool, every: str | None) -> dict[str, Any]:
    """Return the arguments for `trigger`."""
    return {"availableNow": True} if available_now else {"processingTime": every or DEFAULT_TRIGGER}


def follow(queries: "Sequence[StreamingQuery]", tell: Tell, ended: threading.Event) -> None:
    """Tell of every batch until the queries end; stop them when `ended` is set, or one fails."""
    told = dict.fromkeys((query.id for query in queries), -1)
    errors: list[BaseException] = []
    try:
        while any(query.isActive for query in queries) and not ended.wait(LOOK_EVERY_S):
            _tell_new(queries, told, tell)
            if any(query.exception() is not None for query in queries):
                break
    finally:
        errors += _stop(queries)
        _tell_new(queries, told, tell)
    for error in errors:
        # Ctrl-C reaches Spark's Python workers as well, in the midst of what they do.
        if not (ended.is_set() and KeyboardInterrupt.__name__ in str(error)):
            raise error


def _tell_new(queries: "Sequence[StreamingQuery]", told: dict[str, int], tell: Tell) -> None:
    for query in queries:
        for progress in query.recentProgress:
            if progress.batchId > told[query.id]:
                told[query.id] = progress.batchId
                if progress.numInputRows:
                    tell(_batch_of(progress))


def _batch_of(progress: Any) -> Batch:
    seconds = progress.durationMs.get("triggerExecution", 0) / 1000
    return Batch(
        progress.name,
        progress.batchId,
        progress.numInputRows,
        seconds,
        round(progress.numInputRows / max(seconds, 0.001), 1),
        json.loads(progress.sources[0].endOffset),
        sum(state.numRowsDroppedByWatermark for state in progress.stateOperators),
    )


def _stop(queries: "Sequence[StreamingQuery]") -> list[BaseException]:
    """Stop queries between two batches if they get there soon; a batch cut off is done again.

    Returned is why those failed that had failed before: what a batch says that is cut off is not.
    """
    until = time.monotonic() + FINISH_S
    errors: list[BaseException] = []
    for query in queries:
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S / 4)
        if (error := query.exception()) is not None:
            errors.append(error)
        query.stop()
    return errors
