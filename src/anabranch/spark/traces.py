"""Traces as typed DataFrames: files that runs leave behind, and telemetry that nodes publish.

All records are rows of one wide table, `records`: the column `run` names the run that a record is
of, and the others are those of `traces.files.COLUMNS`; what a kind of record has no field for is
null. The functions of `tables` start from it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from anabranch.core.errors import LocalError
from anabranch.spark.session import explain
from anabranch.traces.files import COLUMNS
from anabranch.traces.schema import KINDS

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "float64": DoubleType(),
    "int64": LongType(),
    "int32": IntegerType(),
    "bool_": BooleanType(),
    "list<string>": ArrayType(StringType()),
}
FIELDS = [StructField(name, TYPES[kind]) for name, kind in COLUMNS.items()]
SCHEMA = StructType([StructField("run", StringType()), *FIELDS])

FORMS = {".jsonl": "json", ".parquet": "parquet"}
UNREADABLE = "unreadable"  # the kind of a row that stands for a line that is no record
SHOWN_CHARACTERS = 200  # of such a line
NO_CHARACTER = "\ufffd"  # what stands for bytes that are no UTF-8

# What no record of ours exceeds, and no table has to cope with; not a number is above them all.
MAX_AT_S = 4e9  # the year 2096
MAX_DELAY_MS = 1000 * MAX_AT_S
BOUNDS: dict[str, tuple[float, float]] = {
    "at": (0.0, MAX_AT_S),
    "delay_ms": (-MAX_DELAY_MS, MAX_DELAY_MS),  # clocks differ
    "rtt_ms": (0.0, MAX_DELAY_MS),
    **dict.fromkeys(("number", "count", "size_bytes", "hops", "counter"), (0.0, inf)),
}
# Records are older than the message that they come in, unless a clock was set back meanwhile. One
# from the future would make all windows of a stream close before their time.
MAX_AHEAD_S = 10.0

UNFINISHED = re.compile(r"(\S+) is not a Parquet file")
SPARK_FILE = r"^part-\d{5}-"

_CORRUPT = "_corrupt"
_WITH_CORRUPT = StructType([*SCHEMA.fields, StructField(_CORRUPT, StringType())])


def read_traces(
    spark: SparkSession, *paths: str | Path, run: str | None = None, check: bool = True
) -> DataFrame:
    """Read trace files (.jsonl or .parquet) and folders of them as one table of records.

    A run is named by its file, or, in a table that Spark wrote, by its folder; if two have the
    same name, all are named by their paths below the folder that holds them all. `run` is one
    name for all, for the traces of the nodes of one network. A line that is no record raises
    LocalError; unless `check`, Spark raises it in the first action, which spares one reading.
    """
    if not paths:
        raise LocalError("no trace was named: give a .jsonl or .parquet file, or a folder")
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(map(str, paths)):
        for suffix in _forms_of(path):
            found.setdefault(suffix, []).append(path)
    naming = Naming() if run is not None else _naming(spark, found)
    tables = [_read(spark, suffix, of, naming, check) for suffix, of in sorted(found.items())]
    records = tables[0]
    for table in tables[1:]:
        records = records.unionByName(table)
    return records if run is None else records.withColumn("run", sf.lit(run))


def records_of(messages: DataFrame, run: str | None = None) -> DataFrame:
    """Take the records out of telemetry messages, whose values are JSON lines.

    `messages` are rows of the source, streaming or not. A run is named by its stream. The lines
    are somebody else's: one that is no record becomes a row of kind `unreadable`.
    """
    text = sf.col("value").cast("string")
    lines = messages.select(
        (sf.col("stream") if run is None else sf.lit(run)).alias("_stream"),
        sf.col("publisher").alias("_publisher"),
        sf.col("timestamp").cast("double").alias("_sent_at"),
        sf.is_valid_utf8(text).alias("_is_text"),
        sf.explode(sf.split(sf.make_valid_utf8(text), "\n")).alias("_line"),
    ).where(sf.col("_line") != "")
    is_text = sf.col("_is_text") | ~sf.contains("_line", sf.lit(NO_CHARACTER))
    is_past = sf.col("at") <= sf.col("_sent_at") + MAX_AHEAD_S
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    read = lines.withColumn("_record", sf.from_json("_line", _WITH_CORRUPT, options))
    wide = read.select(
        "_stream",
        "_publisher",
        "_sent_at",
        "_is_text",
        "_line",
        *(f"_record.{n}" for n in [*COLUMNS, _CORRUPT]),
    ).withColumn("_whole", _is_whole() & is_past & is_text)
    stands_for_line = {
        "kind": sf.lit(UNREADABLE),
        "at": sf.col("_sent_at"),
        "node": sf.col("_publisher"),
        "detail": sf.substring("_line", 1, SHOWN_CHARACTERS),
    }
    columns = [
        sf.when(sf.col("_whole"), _filled(field.name))
        .otherwise(stands_for_line.get(field.name, sf.lit(None)))
        .cast(field.dataType)
        .alias(field.name)
        for field in FIELDS
    ]
    return wide.select(sf.col("_stream").alias("run"), *columns)


def of_kind(records: DataFrame, kind: str) -> DataFrame:
    """Return the records of one kind with the columns that it has."""
    if kind not in KINDS:
        raise LocalError(f"no record is of kind {kind!r}: choose one of {', '.join(sorted(KINDS))}")
    fields = KINDS[kind].__struct_fields__
    return records.where(sf.col("kind") == kind).select("run", *fields)


# --- Files ----------------------------------------------------------------------------------


class Naming(NamedTuple):
    """How runs are named: by the last of their path, or by all that comes after `below`."""

    below: str | None = None
    keeps_suffix: bool = False  # the trace of one run lies beside that of another, in another form


def _forms_of(path: str) -> Sequence[str]:
    """Return how the traces at a path end: a file's own name, or all that lie in a folder."""
    suffix = Path(path).suffix
    if "://" in path:  # not for us to look into
        return [suffix] if suffix in FORMS else list(FORMS)
    if not Path(path).exists():
        raise LocalError(f"{path}: there is no such trace")
    if Path(path).is_file() and suffix not in FORMS:
        raise LocalError(f"{path}: a trace's name ends in .jsonl or .parquet")
    if Path(path).is_file():
        return [suffix]
    seen = {file.suffix for file in _visible(Path(path))}
    forms = [suffix for suffix in FORMS if suffix in seen]
    if not forms:
        raise LocalError(f"{path}: no file in this folder ends in .jsonl or .parquet")
    return forms


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files that Spark sees in a folder."""
    for path in folder.iterdir():
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir():
            yield from _visible(path)
        else:
            yield path


def _reader(spark: SparkSession, suffix: str) -> DataFrameReader:
    reader = spark.read.option("recursiveFileLookup", True)
    return reader.option("pathGlobFilter", f"*{suffix}")


def _read(
    spark: SparkSession, suffix: str, paths: list[str], naming: Naming, check: bool
) -> DataFrame:
    reader, run = _reader(spark, suffix), _run_of_file(suffix, naming)
    with _explained(paths):
        if suffix == ".jsonl":
            reader = reader.option("columnNameOfCorruptRecord", _CORRUPT)
            return _read_lines(reader, paths, run, check)
        _check_columns(reader.parquet(*paths).schema, paths)
        rows = reader.schema(SCHEMA).parquet(*paths)
        _check_rows(rows)
        return rows.withColumn("run", sf.coalesce("run", run))


@contextmanager
def _explained(paths: list[str]) -> Iterator[None]:
    """Say in one sentence why traces cannot be read."""
    try:
        yield
    except PySparkException as error:
        raise LocalError(f"{', '.join(paths)}: {explain(error)}") from error
    except Py4JJavaError as error:
        file = UNFINISHED.search(str(error))
        raise LocalError(
            f"{_plain(file[1]) if file else ', '.join(paths)}: no whole Parquet file; "
            "the trace of a process that was killed has no end, unless it is a .jsonl"
        ) from error


def _read_lines(reader: DataFrameReader, paths: list[str], run: Column, check: bool) -> DataFrame:
    rows = (
        reader.schema(_WITH_CORRUPT).json(paths).withColumn("_file", sf.col("_metadata.file_path"))
    )
    shown = sf.substring(
        sf.coalesce(_CORRUPT, sf.to_json(sf.struct(*COLUMNS))), 1, SHOWN_CHARACTERS
    )
    complaint = sf.concat(sf.col("_file"), sf.lit(": this line is no record: "), shown)
    if check:
        bad = rows.where(~_is_whole()).select(complaint.alias("complaint")).first()
        if bad is not None:
            raise LocalError(_plain(bad["complaint"]))
    kind = sf.when(_is_whole(), sf.col("kind")).otherwise(sf.raise_error(complaint))
    columns = [
        (kind if field.name == "kind" else _filled(field.name)).alias(field.name)
        for field in FIELDS
    ]
    return rows.select(sf.coalesce("run", run).alias("run"), *columns)


def _check_columns(found: StructType, paths: list[str]) -> None:
    """A Parquet file of something else is named before Spark stumbles over a column."""
    types = {field.name: field.dataType for field in found.fields}
    for name in ("kind", "at", "node"):
        if name not in types:
            raise LocalError(f"{', '.join(paths)}: no trace, for it has no column {name!r}")
    for field in SCHEMA.fields:
        if types.get(field.name, field.dataType) != field.dataType:
            raise LocalError(
                f"{', '.join(paths)}: no trace, for its column {field.name!r} is "
                f"{types[field.name].simpleString()}, not {field.dataType.simpleString()}"
            )


def _check_rows(rows: DataFrame) -> None:
    stands_for_line = (sf.col("kind") == UNREADABLE) & _is_bounded()
    is_good = sf.coalesce(_is_record() | stands_for_line, sf.lit(False))
    shown = sf.substring(sf.to_json(sf.struct(*COLUMNS)), 1, SHOWN_CHARACTERS).alias("shown")
    file = sf.col("_metadata.file_path").alias("file")
    row = rows.where(~is_good).select("kind", file, shown).first()
    if row is None:
        return
    if row["kind"] not in (*KINDS, UNREADABLE):
        raise LocalError(_plain(f"{row['file']}: no record is of kind {row['kind']!r}"))
    raise LocalError(_plain(f"{row['file']}: this row is no record: {row['shown']}"))


def _plain(complaint: str) -> str:
    return unquote(complaint).removeprefix("file:").replace("///", "/", 1)


def _naming(spark: SparkSession, found: Mapping[str, list[str]]) -> Naming:
    """Decide how runs are named: what lies at different places is not one run."""
    named: dict[str, str] = {}  # the place of every run, and that without the suffix
    for suffix, paths in found.items():
        with _explained(paths):
            files = _reader(spark, suffix).schema(SCHEMA).format(FORMS[suffix]).load(paths)
            for file in files.inputFiles():
                folder, _, name = file.rpartition("/")
                if re.match(SPARK_FILE, name):
                    named[folder] = folder
                else:
                    named[file] = file.removesuffix(suffix)
    if len({path.rpartition("/")[2] for path in named.values()}) == len(named):
        return Naming()
    folders = sorted(path.split("/")[:-1] for path in named)
    # What the first and the last of them have in common, all between have.
    both = zip(folders[0], folders[-1], strict=False)
    shared = [name for name, other in takewhile(lambda pair: pair[0] == pair[1], both)]
    # Spark writes the beginning of a file's address with one slash here and with three there.
    below = "/".join([*shared, ""]).removeprefix("file:").replace("///", "/", 1)
    return Naming(below, len(set(named.values())) < len(named))


def _run_of_file(suffix: str, naming: Naming) -> Column:
    """Name a run by its file; the files of a table that Spark wrote are named by their folder.

    This is worked out for every row: only what is cheap is done for all of them.
    """
    file, path = sf.col("_metadata.file_name"), sf.col("_metadata.file_path")
    if naming.below is None:
        stem = sf.left(file, sf.length(file) - len(suffix))
        folder = sf.substring_index(sf.substring_index(path, "/", -2), "/", 1)
    else:
        below = sf.substr(path, sf.locate(naming.below, path) + len(naming.below))
        stem = below if naming.keeps_suffix else sf.left(below, sf.length(below) - len(suffix))
        folder = sf.left(below, sf.length(below) - sf.length(file) - 1)
    name = sf.when(file.startswith("part-") & file.rlike(SPARK_FILE), folder).otherwise(stem)
    decoded = sf.url_decode(sf.replace(name, sf.lit("+"), sf.lit("%2B")))
    return sf.when(sf.contains(name, sf.lit("%")), decoded).otherwise(name)


# --- Lines ----------------------------------------------------------------------------------


def _is_whole() -> Column:
    """Tell whether a line was read as a record."""
    return _is_record() & sf.col(_CORRUPT).isNull()


def _is_record() -> Column:
    """Tell whether a row is of a known kind, with all that it must have, and within bounds."""
    whole = sf.lit(False)
    for kind, struct in KINDS.items():
        of_this = sf.col("kind") == kind
        for field in msgspec.structs.fields(struct):
            if field.required:
                of_this = of_this & sf.col(field.encode_name).isNotNull()
        whole = whole | of_this
    return sf.coalesce(whole, sf.lit(False)) & _is_bounded()


def _is_bounded() -> Column:
    bounded = sf.lit(True)
    for name, (least, most) in BOUNDS.items():
        bounded = bounded & sf.coalesce(sf.col(name).between(least, most), sf.lit(True))
    return bounded


def _filled(name: str) -> Column:
    """Return a column with the defaults that JSON lines leave out."""
    column = sf.col(name)
    for kind, struct in KINDS.items():
        for field in msgspec.structs.fields(struct):
            if field.encode_name == name and not field.required:
                is_left_out = column.isNull() & (sf.col("kind") == kind)
                column = sf.when(is_left_out, sf.lit(field.default)).otherwise(column)
    return column
