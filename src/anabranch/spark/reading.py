"""What an executor does: a range of offsets of one part in, Arrow batches of its messages out.

If a storage node dies, has less than the range, or sends something false, another one goes on at
the same offset: nothing comes twice, and nothing is left out.
"""

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from anabranch.core.errors import LocalError
from anabranch.core.ids import NodeId, StreamPart, number_of, parse_node
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.live.errors import AnabranchError, HistoryLost, NetworkUnreachable, NotPermitted
from anabranch.live.storage.columnar import Batches, RefusedError, read_batches
from anabranch.live.storage.columns import FRAMES, MESSAGES, Wanted, schema_of
from anabranch.spark.access import StoredStream, look_up, token
from anabranch.spark.offsets import Span
from anabranch.spark.opening import FalseFrameError, KeyRing, Opener
from anabranch.spark.options import DROPMALFORMED, FAILFAST, SourceOptions
from anabranch.spark.values import Decoder

if TYPE_CHECKING:
    import pyarrow

PATIENCE_S = 60.0  # how long a range may not get on
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between one round of all storage nodes and the next

logger = logging.getLogger(__name__)


class Selected(msgspec.Struct, frozen=True):
    """Which messages of a range are wanted."""

    publisher: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class Task(InputPartition):
    """A range that one Spark task reads."""

    def __init__(
        self, stored: StoredStream, span: Span, turn: int = 0, selected: Selected | None = None
    ) -> None:
        self.stored = stored
        self.span = span
        self.turn = turn  # which storage node is asked first, so that all of them have work
        self.selected = selected or Selected()


def read_task(
    task: InputPartition, options: SourceOptions, schema: StructType
) -> Iterator["pyarrow.RecordBatch"]:
    """Read a range, in the columns that Spark expects."""
    if not isinstance(task, Task):  # what Spark makes when there is nothing to read
        return
    shape = Shape(task.span.part, options, schema)
    for batch in RangeReader(task, options).read():
        if batch.num_rows:
            yield shape.apply(batch)


# --- Ranges -------------------------------------------------------------------------------------


class RangeReader:
    """Reads one range from whichever storage nodes have it."""

    def __init__(self, task: Task, options: SourceOptions) -> None:
        self.position = task.span.start  # everything before has come
        self._options = options
        self._stored = task.stored
        self._part, self._end = task.span.part, task.span.end
        self._turn = task.turn
        self._selected = task.selected
        self._ring = KeyRing(options.access, task.stored)
        self._as_frames = options.verify or not task.stored.is_public
        self._lost: dict[NodeId, int] = {}  # where what can be read begins at storage nodes
        self._damaged: dict[NodeId, int] = {}  # of these: those where a part of it is damaged
        self._problem: AnabranchError | None = None

    def read(self) -> Iterator["pyarrow.RecordBatch"]:
        """Read to the end, in batches that have the columns of messages."""
        until, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while self.position < self._end:
            before = self.position
            places = self._stored.storage
            for place in range(len(places)):
                yield from self._read_from(*places[(self._turn + place) % len(places)])
                if self.position >= self._end:
                    return
            if self.position > before:
                self._forget_lost()  # it was about what lies behind us
                until, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
                continue
            is_late = time.monotonic() > until
            if len(self._lost) == len(places) or (self._lost and is_late):
                self._skip()
                continue
            if is_late or isinstance(self._problem, NotPermitted):
                raise self._failure()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            if isinstance(self._problem, NetworkUnreachable):
                self._renew()

    def _read_from(self, node: NodeId, url: str) -> Iterator["pyarrow.RecordBatch"]:
        """Read as far as one storage node goes."""
        try:
            yield from self._batches(node, url)
        except RefusedError as error:
            self._problem = error
            if error.problem == "encrypted" and not self._as_frames:
                self._as_frames = True
                yield from self._read_from(node, url)
            elif error.problem == "cut-off":
                begin = error.body.get("start")
                if type(begin) is int and begin > self.position:  # else it contradicts itself
                    self._lost[node] = begin
            elif (behind := error.damaged_upto(self.position)) is not None:
                self._lost[node] = self._damaged[node] = min(behind, self._end)
        except AnabranchError as error:
            if isinstance(error, HistoryLost):
                raise  # no other storage node has the key
            self._problem = error

    def _batches(self, node: NodeId, url: str) -> Iterator["pyarrow.RecordBatch"]:
        form = FRAMES if self._as_frames else MESSAGES
        selected = msgspec.structs.asdict(self._selected)
        shown = token(self._options.access, self._stored, node)
        where = (url, self._part.stream, self._part.partition, self.position, self._end)
        with read_batches(*where, token=shown, form=form, **selected) as batches:
            self._check_answer(url, batches, form)
            opener = self._opener(batches.start, batches.end) if self._as_frames else None
            for batch in batches:
                if opener is None:
                    yield batch
                    self.position = batches.position
                else:
                    yield from opener.open(batch)
                    self.position = opener.position  # which it knows from the frames themselves
            if opener is not None:
                opener.end()
            # It may know of less than the range, and then another must go on.
            self.position = max(self.position, batches.end)
            self._problem = AnabranchError(f"{url} has it only up to {batches.end}")

    def _check_answer(self, url: str, batches: Batches, form: str) -> None:
        """Refuse what is not the range that was asked for, so that another goes on."""
        wanted = Wanted(self._part, self.position, self._end, form)
        told, is_ours = batches.schema, batches.start == self.position <= batches.end <= self._end
        named = told.metadata.get(b"form") == form.encode()
        if not (is_ours and named and told.equals(schema_of(wanted))):
            raise FalseFrameError(f"{url} sends something else than offsets {self.position} on")

    def _opener(self, start: int, end: int) -> Opener:
        selected = self._selected
        whose = parse_node(selected.publisher) if selected.publisher else b""
        after = max(number_of(selected.from_ms or 0, 0) - 1, 0)
        upto = MAX_NUMBER
        if selected.to_ms is not None:
            upto = max(number_of(selected.to_ms, 0) - 1, 0)
        wanted = Wanted(self._part, start, end, MESSAGES, whose, after, upto)
        return Opener(wanted, self._ring, self._options.verify)

    # --- What is not there ----------------------------------------------------------------

    def _skip(self) -> None:
        """Go on where the log begins now, if that is what the reader wants."""
        begin = min(self._lost.values())
        why = "damaged at every storage node" if self._damaged else "not kept any more"
        offsets = f"offsets {self.position} to {begin - 1} ({begin - self.position} messages)"
        lost = f"{offsets} of {self._part} are {why}"
        if self._options.fail_on_data_loss:
            raise HistoryLost(
                f"{lost}: begin at {begin}, or set failOnDataLoss to false to go on without them",
                {self._part.partition: [(self.position, begin)]},
            )
        logger.warning("%s: going on at %d", lost, begin)
        self.position = begin
        self._forget_lost()

    def _forget_lost(self) -> None:
        self._lost.clear()
        self._damaged.clear()

    def _failure(self) -> AnabranchError:
        text = f"{self._part} cannot be read from offset {self.position} on: {self._problem}"
        if isinstance(self._problem, NotPermitted):
            return NotPermitted(text)
        return NetworkUnreachable(text)

    def _renew(self) -> None:
        """Ask the registry where the storage nodes are, if it can be asked from here."""
        try:
            self._stored = look_up(self._options.access, [self._part.stream])[0]
        except (NetworkUnreachable, LocalError) as error:
            self._problem = NetworkUnreachable(f"{self._problem}; {error}")


# --- Columns ------------------------------------------------------------------------------------


class Shape:
    """Gives batches the columns that Spark expects."""

    def __init__(self, part: StreamPart, options: SourceOptions, schema: StructType) -> None:
        import pyarrow

        self._arrow = pyarrow
        self._part = part
        self._mode = options.mode
        self._schema = to_arrow_schema(schema, timezone="UTC")
        value = self._schema.field("value").type
        self._decoder = Decoder(value) if pyarrow.types.is_struct(value) else None

    def apply(self, batch: "pyarrow.RecordBatch") -> "pyarrow.RecordBatch":
        """Return the same messages, with their stream and with decoded values if asked for."""
        pa, keep = self._arrow, None
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        columns["stream"] = pa.repeat(pa.scalar(self._part.stream, pa.string()), batch.num_rows)
        columns["partition"] = pa.repeat(
            pa.scalar(self._part.partition, pa.int32()), batch.num_rows
        )
        if "key" not in columns:
            columns["key"] = pa.nulls(batch.num_rows, pa.binary())
        if self._decoder is not None:
            columns["value"], bad = self._decoder.decode(batch.column("value"))
            if bad and self._mode == FAILFAST:
                place = min(bad)
                offset = batch.column("offset")[place].as_py()
                raise AnabranchError(
                    f"the value of {self._part}@{offset} cannot be decoded, as {bad[place]}: set "
                    "mode to PERMISSIVE for nulls instead, or to DROPMALFORMED to leave such out"
                )
            if bad and self._mode == DROPMALFORMED:
                keep = columns["value"].is_valid()
        shaped = pa.record_batch(
            [columns[field.name] for field in self._schema], schema=self._schema
        )
        return shaped if keep is None else shaped.filter(keep)
