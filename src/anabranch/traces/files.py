"""Traces on disk: JSON lines or Parquet, chosen by the file's name, and always a hash.

The hash is that of the trace alone: the same run gives the same hash whatever the file's form.
"""

import hashlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.traces.schema import KINDS, Noted, Record

BATCH_RECORDS = 10_000
ROW_GROUP_RECORDS = 100_000  # of a Parquet file: each has its own dictionaries of names
FULL = "trace-full"  # what the last record of a trace says that has come to its limit

_lines = msgspec.json.Encoder().encode_lines
_read = msgspec.json.Decoder(Record).decode

COLUMNS = {
    "kind": "string",
    "at": "float64",
    "node": "string",
    "peer": "string",
    "part": "string",
    "publisher": "string",
    "chain": "string",
    "number": "int64",
    "count": "int32",
    "size_bytes": "int32",
    "hops": "int32",
    "delay_ms": "float64",
    "reason": "string",
    "up": "bool_",
    "counter": "int64",
    "rtt_ms": "float64",
    "neighbours": "list<string>",
    "what": "string",
    "detail": "string",
}


class TraceWriter:
    """Streams records to a file, or only hashes and counts them when there is no path.

    One with a limit ends with a record that says so, and counts what it does not take any more.
    """

    def __init__(self, path: Path | None = None, max_records: int | None = None) -> None:
        self.records = 0
        self.refused = 0
        self._room = max_records
        self._hash = hashlib.sha256()
        self._batch: list[Record] = []
        self._file: FileIO | None = None
        self._parquet: Any = None
        self._tables: list[Any] = []  # of the row group to come
        if path is None:
            return
        if path.suffix == ".jsonl":
            # Batches of whole lines, and nothing between them and the disk: a process that is
            # killed leaves no half of a line.
            self._file = path.open("wb", buffering=0)
        elif path.suffix == ".parquet":
            self._parquet = _open_parquet(path)
        else:
            raise LocalError(f"{path.name}: a trace's name ends in .jsonl or .parquet")

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, record: Record) -> None:
        """Take one record."""
        if self._room is not None:
            if self._room <= 0:
                self.refused += 1
                return
            self._room -= 1
            if self._room == 0:
                record = Noted(record.at, record.node, FULL, "the rest of the trace is missing")
                self.refused += 1
        self._batch.append(record)
        if len(self._batch) >= BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Write out what has gathered."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        lines = _lines(batch)
        self._hash.update(lines)
        self.records += len(batch)
        if self._file is not None:
            self._file.write(lines)
        if self._parquet is not None:
            self._tables.append(_table(batch))
            if sum(map(len, self._tables)) >= ROW_GROUP_RECORDS:
                self._write_group()

    def _write_group(self) -> None:
        tables, self._tables = self._tables, []
        if tables:
            self._parquet.write_table(_pyarrow().concat_tables(tables))

    def close(self) -> None:
        """Finish the file."""
        self.flush()
        if self._file is not None:
            self._file.close()
        if self._parquet is not None:
            self._write_group()
            self._parquet.close()

    def sha256(self) -> str:
        """Return the hash of all records so far."""
        self.flush()
        return self._hash.hexdigest()


def read_trace(path: Path) -> Iterator[Record]:
    """Read a trace back, one record at a time."""
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _read(line)
            except msgspec.DecodeError as error:
                raise LocalError(f"{path.name}, line {number}: {error}") from error


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LocalError("Parquet traces need pyarrow: pip install 'anabranch[lab]'") from error
    return pyarrow


def _schema(arrow: Any) -> Any:
    types = {"list<string>": arrow.list_(arrow.string())}
    return arrow.schema(
        [
            (name, types[kind] if kind in types else getattr(arrow, kind)())
            for name, kind in COLUMNS.items()
        ]
    )


def _open_parquet(path: Path) -> Any:
    arrow = _pyarrow()
    return arrow.parquet.ParquetWriter(path, _schema(arrow), compression="zstd")


def _table(batch: list[Record]) -> Any:
    arrow = _pyarrow()
    schema = _schema(arrow)
    # Column by column takes an eighth of the time that a dictionary for every record takes.
    columns = {name: [getattr(record, name, None) for record in batch] for name in COLUMNS}
    columns["kind"] = [type(record).__name__.lower() for record in batch]
    return arrow.table(
        [arrow.array(columns[field.name], type=field.type) for field in schema], schema=schema
    )


def _read_parquet(path: Path) -> Iterator[Record]:
    arrow = _pyarrow()
    for batch in arrow.parquet.ParquetFile(path).iter_batches(batch_size=BATCH_RECORDS):
        for row in batch.to_pylist():
            fields = ("kind", *KINDS[row["kind"]].__struct_fields__)
            yield msgspec.convert({name: row[name] for name in fields}, Record)
