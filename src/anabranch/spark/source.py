"""The format `anabranch` of Spark: stored streams as tables, once or continuously.

    spark.read.format("anabranch").option("subscribe", "city/cars").load()
    spark.readStream.format("anabranch").option("subscribe", "city/cars").load()

Columns and options are those that users of Spark's Kafka source know; options.py lists them. What
the driver does is here: which ranges there are. What executors do is in reading.py, and the way
back, from a DataFrame into a stream, in sink.py.
"""

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.core.errors import LocalError
from anabranch.live.errors import HistoryLost
from anabranch.spark.ddl import parse_ddl
from anabranch.spark.filters import Chosen
from anabranch.spark.logs import Logs
from anabranch.spark.offsets import (
    Positions,
    Span,
    begin_new,
    cut,
    merge,
    resolve,
    share,
    spans_between,
)
from anabranch.spark.options import EARLIEST, LATEST, Limit, SourceOptions, parse_options
from anabranch.spark.reading import Selected, Task, read_task
from anabranch.spark.values import check_type

if TYPE_CHECKING:
    import pyarrow

SHORTER_S = 60.0  # how long a log may be shorter than what was read of it

logger = logging.getLogger(__name__)

COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("stream", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("sequence", IntegerType()),
    ("publisher", StringType()),
    ("chain", StringType()),
    ("late", BooleanType()),
    ("key", BinaryType()),
    ("value", BinaryType()),
)


class AnabranchSource(DataSource):
    """Reads stored streams; writes into streams."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "anabranch"

    def schema(self) -> StructType:
        """Return the columns; a valueSchema makes a struct of `value`."""
        text = parse_options(self.options).value_schema
        if text is None:
            return _columns(BinaryType())
        is_json = text.lstrip().startswith("{")
        return _columns(_parse_struct(text) if is_json else parse_ddl(text))

    def reader(self, schema: StructType) -> "BatchReader":
        """Read once."""
        return BatchReader(parse_options(self.options), _checked(schema))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802
        """Read continuously."""
        return StreamReader(parse_options(self.options), _checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Write once."""
        from anabranch.spark.sink import SinkWriter

        return SinkWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        """Write continuously."""
        from anabranch.spark.sink import SinkStreamWriter

        return SinkStreamWriter(self.options, schema, overwrite)


def _columns(value: DataType) -> StructType:
    fields = [StructField(name, kind, name == "key") for name, kind in COLUMNS[:-1]]
    return StructType([*fields, StructField("value", value, not isinstance(value, BinaryType))])


def _parse_struct(text: str) -> StructType:
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalError(
            f"the option valueSchema is not the JSON of a StructType ({error!r}): write "
            "schema.json(), or DDL such as 'speed DOUBLE, line STRING'"
        ) from error


def _checked(schema: StructType) -> StructType:
    """Refuse columns that this source does not have."""
    names = [name for name, _ in COLUMNS]
    value = schema["value"].dataType if "value" in schema.names else None
    if schema.names != names or not isinstance(value, BinaryType | StructType):
        raise LocalError(
            f"the columns of this source are {', '.join(names)}: leave out schema(...); the "
            "option valueSchema says what is in the values"
        )
    if isinstance(value, StructType):
        check_type(value)
    return schema


# --- Once -----------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Reads everything between two sets of offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        for limit in (options.starting, options.ending):
            _refuse(limit, LATEST if limit is options.starting else EARLIEST)
        if options.most_per_trigger is not None:
            raise LocalError("maxOffsetsPerTrigger is for readStream, which has triggers")
        self._options = options
        self._schema = schema
        self._chosen = Chosen()

    @property
    def pushFilters(self) -> Any:  # noqa: N802
        """Take on the conditions that storage nodes can look at; return the others."""
        return _Pushdown(self._chosen)

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read."""
        logs = Logs(self._options)
        spans = self._chosen.trim(self._spans(logs))
        chosen = self._chosen
        selected = Selected(chosen.publisher, chosen.from_ms, chosen.to_ms)
        return _tasks(logs, spans, self._options, selected)

    def _spans(self, logs: Logs) -> list[Span]:
        options, parts = self._options, logs.parts()
        must = options.fail_on_data_loss
        start = resolve(options.starting or Limit(EARLIEST), parts, logs, must)
        end = resolve(options.ending or Limit(LATEST), parts, logs, must)
        return [Span(part, start[str(part)], end[str(part)]) for part in parts]

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        """Read a range, at an executor."""
        return read_task(partition, self._options, self._schema)


def _refuse(limit: Limit | None, word: int) -> None:
    """Refuse to begin at the end, or to end at the beginning."""
    if limit is None or limit.is_time:
        return
    if limit.everywhere == word or word in limit.each.values():
        raise LocalError(
            "a read that ends cannot begin at the latest offsets: give startingOffsets that are "
            "earlier, or use readStream"
        )


class _Pushdown:
    """Spark refuses readers with a `pushFilters` of their own unless its setting permits them.

    Where the setting is off this is taken for the one that every reader has, and never called:
    Spark then looks at all conditions itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._chosen.take(filters)


# --- Continuously ---------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is new, a batch at a time; Spark keeps the offsets."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.ending is not None:
            raise LocalError("a stream does not end: leave out the options about its end")
        self._options = options
        self._schema = schema
        self._logs = Logs(options)
        self._target: Positions | None = None  # beyond this nothing is read (AvailableNow)
        self._latest: Positions | None = None
        self._shorter_since: dict[str, float] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a query begins that never ran before."""
        limit = self._options.starting or Limit(LATEST)
        must = self._options.fail_on_data_loss
        return resolve(limit, self._logs.parts(), self._logs, must)

    def latestOffset(  # noqa: N802
        self, start: dict[str, int], limit: ReadLimit
    ) -> dict[str, int]:
        """Return how far the next batch goes."""
        self._latest = self._highs()
        self._notice_loss(start, self._latest)
        end = merge(start, self._target if self._target is not None else self._latest)
        if isinstance(limit, ReadMaxRows):
            return share(begin_new(start, end, self._logs), end, limit.max_rows)
        return end

    def _highs(self) -> Positions:
        return self._logs.highs(self._logs.parts(renewed=True))

    def _notice_loss(self, start: Positions, highs: Positions) -> None:
        """Say so if less can be read than was read already, and that does not change.

        It may be so for a while when a storage node has died, until the others agree.
        """
        now = time.monotonic()
        shorter = [name for name, high in highs.items() if high < start.get(name, 0)]
        self._shorter_since = {name: self._shorter_since.get(name, now) for name in shorter}
        for name, since in self._shorter_since.items():
            if now >= since + SHORTER_S:
                text = (
                    f"{name} was read up to {start[name]}, and its storage nodes have it up to "
                    f"{highs[name]}: if it was made anew, begin with a new checkpoint"
                )
                if self._options.fail_on_data_loss:
                    raise HistoryLost(text)
                self._shorter_since[name] = math.inf  # said once
                logger.warning("%s", text)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch may be."""
        most = self._options.most_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember how far there is something now: the query ends there."""
        self._target = self._highs()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """Return how far there is something, for who looks at the query's progress."""
        return self._latest

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the ranges of a batch."""
        start = begin_new(start, end, self._logs)
        return _tasks(self._logs, spans_between(start, end), self._options, Selected())

    def read(self, partition: InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        """Read a range, at an executor."""
        return read_task(partition, self._options, self._schema)


def _tasks(
    logs: Logs, spans: Iterable[Span], options: SourceOptions, selected: Selected
) -> list[InputPartition]:
    return [
        Task(logs.stream(span.part.stream), span, turn, selected)
        for turn, span in enumerate(cut(spans, options.least_partitions))
    ]
