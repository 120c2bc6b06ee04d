"""The way back: a DataFrame, of a batch or of a streaming query, is published into a stream.

    frame.write.format("anabranch").mode("append").option("stream", "city/speeds").save()
    frame.writeStream.format("anabranch").option("stream", "city/speeds").option(
        "checkpointLocation", ...).start()

The column `value` (binary or string) is what is published; `key` travels with it and chooses the
partition, unless a column `partition` names one. Options: stream, copies (storage nodes that must
hold a row before its batch is done; 1), orderBy (columns), contentType (bytes, text or json; by the
type of `value` bytes or text), and those that say which network and whose key.

Every row is published once, however often Spark runs its task. Its number follows from the query,
the batch, the task, and its position among the rows of the task: they are put in the order of the
orderBy columns, and of partition, key and value. So a second attempt signs the same frames.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType, StructType

from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.core.messages.data import CONTENT_BYTES, CONTENT_JSON, CONTENT_TEXT
from anabranch.live.terms import full_name
from anabranch.spark.access import (
    ACCESS_OPTIONS,
    identity_of,
    open_network,
    parse_access,
    wait_for,
)
from anabranch.spark.epochs import Checkpoint, Epoch, one_write
from anabranch.spark.publisher import Target, node_of, open_target, write
from anabranch.spark.rows import arrange, check_columns, gather

if TYPE_CHECKING:
    import pyarrow

SINK_OPTIONS = ("stream", "copies", "orderBy", "contentType", *ACCESS_OPTIONS)
OF_SPARK = ("checkpointlocation", "queryname", "path")  # that come along
MAX_TASKS = 256  # that write at once: each has chains of its own, and nodes know so many
MAX_COPIES = 100
CONTENT_TYPES = {"bytes": CONTENT_BYTES, "text": CONTENT_TEXT, "json": CONTENT_JSON}


@dataclass
class Committed(WriterCommitMessage):
    """What one task did."""

    published: int = 0
    found: int = 0  # that an earlier attempt had published
    stands: Mapping[str, int] | None = None  # how far its chains have come


class SinkOptions(msgspec.Struct, frozen=True):
    """What is written where."""

    target: Target
    order_by: tuple[str, ...]


def parse_sink_options(options: Mapping[str, str], schema: StructType) -> SinkOptions:
    """Read the options of a sink; whatever is wrong is said in one sentence."""
    given = {name.lower(): str(value) for name, value in options.items()}
    access = parse_access(given)
    known = {name.lower() for name in SINK_OPTIONS}
    for name in given:
        if name not in known and name not in OF_SPARK:
            raise LocalError(f"there is no option {name!r}: the sink has {', '.join(SINK_OPTIONS)}")
    stream = given.get("stream", "").strip()
    if not stream:
        raise LocalError("name the stream to write to with the option stream")
    order_by = tuple(name.strip() for name in given.get("orderby", "").split(",") if name.strip())
    check_columns(schema, order_by)
    copies = given.get("copies", "1")
    if not (copies.isascii() and copies.isdigit() and 1 <= int(copies) <= MAX_COPIES):
        raise LocalError(f"the option copies is {copies[:60]!r}: write a number from 1 on")
    is_text = isinstance(schema["value"].dataType, StringType)
    content_type = given.get("contenttype", "text" if is_text else "bytes").strip().lower()
    if content_type not in CONTENT_TYPES:
        raise LocalError(
            f"the option contentType is {content_type[:60]!r}: write {', '.join(CONTENT_TYPES)}"
        )
    name = full_name(stream, show(identity_of(access).node))
    target = Target(access, name, CONTENT_TYPES[content_type], int(copies))
    return SinkOptions(target, order_by)


class SinkWriter(DataSourceArrowWriter):
    """Writes a table once."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        _refuse_to_overwrite(overwrite)
        self._options = parse_sink_options(options, schema)
        _check_target(self._options.target)
        self._epoch = one_write(int(time.time() * 1000))

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Committed:
        """Publish the rows of a task, at an executor."""
        return _write(self._options, self._epoch, iterator, lingers=True)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is written already: it was when each task ended."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published cannot be taken back."""


class SinkStreamWriter(DataSourceStreamArrowWriter):
    """Writes a batch of a query; Spark makes one for every batch, here and again to commit it."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool = False
    ) -> None:
        _refuse_to_overwrite(overwrite)
        self._options = parse_sink_options(options, schema)
        given = {name.lower(): value for name, value in options.items()}
        self._location = given.get("checkpointlocation")
        self._epoch = Checkpoint(self._location).epoch()
        if self._epoch.batch == 0:  # later a task will tell
            _check_target(self._options.target)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> Committed:
        """Publish the rows of a task, at an executor."""
        return _write(self._options, self._epoch, iterator, lingers=False)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Note how far the chains have come."""
        stands: dict[str, int] = {}
        for message in messages:
            if isinstance(message, Committed):
                stands |= message.stands or {}
        Checkpoint(self._location).note(msgspec.structs.replace(self._epoch, batch=batchId), stands)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was published cannot be taken back; whoever tries again leaves it as it is."""


def _refuse_to_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise LocalError(
            "what was published cannot be taken back: write with mode('append'), and queries with "
            "outputMode('append') or outputMode('update')"
        )


def check_task(task: int) -> None:
    """Refuse more tasks than nodes can tell apart."""
    if task >= MAX_TASKS:
        raise LocalError(
            f"more than {MAX_TASKS} tasks write at once: use coalesce({MAX_TASKS}), or fewer"
        )


def _check_target(target: Target) -> None:
    """Find out at the driver what would else keep every task from writing."""

    async def look() -> None:
        async with open_network(target.access) as network:
            await open_target(network, target)

    wait_for(look)


def _write(
    options: SinkOptions,
    epoch: Epoch,
    iterator: "Iterator[pyarrow.RecordBatch]",
    lingers: bool,
) -> Committed:
    context = TaskContext.get()
    assert context is not None
    task, target = context.partitionId(), options.target
    check_task(task)
    batches = gather(iterator)
    if not batches:
        return Committed(stands={})
    node = node_of(target.access)
    partitions = node.run(node.network.stream(target.stream)).partitions
    rows = arrange(batches, options.order_by, partitions)
    written = write(target, epoch, task, rows, lingers)
    return Committed(written.published, written.found, written.stands)
