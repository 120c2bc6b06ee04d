"""Streams into a table, each message once, however often the job is killed and started again.

Parquet goes through Spark's own file sink, which lists the files of each batch in a log: read such
a table with Spark. Delta goes through `deltalake`: a batch and its number are one transaction, so
that a batch which is run again finds that it is there already.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

import msgspec

from anabranch.core.errors import LocalError
from anabranch.spark.places import Job, claim, inside, make_folder
from anabranch.spark.queries import trigger_of

if TYPE_CHECKING:  # they are slow to import, and optional
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMATS = ("parquet", "delta")
PARTITIONED_BY = ("folder", "partition", "date")
CHECKPOINT = "_checkpoint"  # in the table's folder, where readers of tables do not look
MAX_FOLDER_LENGTH = 100
DELTA_BATCH_ROWS = 100_000  # a batch passes through the driver's memory on its way into Delta


class Archive(msgspec.Struct, frozen=True):
    """What to archive, and where."""

    streams: tuple[str, ...]
    out: str
    format: str = "parquet"
    checkpoint: str | None = None
    starting: str = "earliest"
    max_per_trigger: int | None = None
    available_now: bool = False
    trigger: str | None = None
    access: dict[str, str] = {}  # the source's options that name the network and the keys

    @property
    def remembers(self) -> str:
        """The place of its checkpoint."""
        return self.checkpoint or inside(self.out, CHECKPOINT)


def check_archive(archive: Archive) -> None:
    """Refuse what cannot be done before Spark is started for it; the checkpoint is ours after."""
    if archive.format not in FORMATS:
        raise LocalError(f"--format {archive.format}: choose of {', '.join(FORMATS)}")
    if archive.available_now and archive.trigger is not None:
        raise LocalError("--available-now and --trigger: leave one of them out")
    if archive.format == "delta":
        _need_deltalake()
    make_folder(archive.out)
    make_folder(archive.remembers)
    job = Job("archive", archive.streams, archive.out, archive.format)
    claim(archive.remembers, job, {archive.out: archive.remembers})


def start_archive(spark: "SparkSession", archive: Archive) -> "StreamingQuery":
    """Begin to write what is in the streams, and what comes."""
    rows = table_of(_read(spark, archive))
    writer = rows.writeStream.queryName("archive").option("checkpointLocation", archive.remembers)
    writer = writer.trigger(**trigger_of(archive.available_now, archive.trigger))
    if archive.format == "parquet":
        writer = writer.format("parquet").option("compression", "zstd")
        return writer.partitionBy(*PARTITIONED_BY).start(archive.out)
    application: Future[str] = Future()
    query = writer.foreachBatch(append_once(archive.out, application)).start()
    application.set_result(query.id)
    return query


def _read(spark: "SparkSession", archive: Archive) -> "DataFrame":
    at_once = archive.max_per_trigger
    if at_once is None and archive.format == "delta":
        at_once = DELTA_BATCH_ROWS
    options = {"subscribe": ",".join(archive.streams), "startingOffsets": archive.starting}
    if at_once is not None:
        options["maxOffsetsPerTrigger"] = str(at_once)
    return spark.readStream.format("anabranch").options(**options, **archive.access).load()


def table_of(rows: "DataFrame") -> "DataFrame":
    """Add what the table is partitioned by: the stream as a folder's name, and the day (UTC)."""
    from pyspark.sql.functions import regexp_replace, substring, to_date

    name = regexp_replace("stream", "[^0-9A-Za-z._-]+", "-")
    folder = substring(name, 1, MAX_FOLDER_LENGTH)
    return rows.withColumns({"folder": folder, "date": to_date("timestamp")})


def _need_deltalake() -> None:
    try:
        import deltalake  # noqa: F401
    except ModuleNotFoundError as error:
        raise LocalError(
            "Delta tables need deltalake: install it with pip install 'anabranch[spark]'"
        ) from error


def append_once(out: str, application: "Future[str]") -> "Callable[[DataFrame, int], None]":
    """Return what appends a batch to a Delta table, unless the table has it already.

    `application` is the name of the query, by which the table knows whose batches they are.
    """
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    def append(batch: "DataFrame", number: int) -> None:
        query = application.result()
        if not DeltaTable.is_deltatable(out):
            schema = batch.limit(0).toArrow().schema
            DeltaTable.create(out, schema, mode="ignore", partition_by=list(PARTITIONED_BY))
        # The rows go on top of what is looked at here: if another attempt at this batch is done
        # first, ours is refused. That is why there must be a table, empty as it may be.
        table = DeltaTable(out)
        last = table.transaction_version(query)
        if last is not None and last >= number:
            return
        rows = batch.toArrow()
        if rows.num_rows:
            transaction = Transaction(app_id=query, version=number)
            properties = CommitProperties(app_transactions=[transaction])
            write_deltalake(table, rows, mode="append", commit_properties=properties)

    def append_alone(batch: "DataFrame", number: int) -> None:
        try:
            append(batch, number)
        except CommitFailedError as error:
            raise LocalError(
                f"{out}: somebody else wrote there during batch {number} ({error}): see that this "
                "job runs once, and start it again"
            ) from error

    return append_alone
