"""Where jobs write: a folder here, or a place that Spark reaches by its address (s3://, hdfs://).

A checkpoint belongs to one job. Spark would take another's for its own, and skip or repeat rows
without a word; so each checkpoint has a note of whose it is, and so has each table.
"""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core.errors import LocalError

NOTE = "anabranch-job.json"  # in the folder of a checkpoint
# What shows that a folder holds a table that some streaming query has written.
LOGS = {"parquet": "_spark_metadata", "delta": "_delta_log"}
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


class Job(msgspec.Struct, frozen=True):
    """What a checkpoint is of."""

    name: str
    streams: tuple[str, ...]
    out: str
    format: str


def place_of(text: str) -> str:
    """Name a place in full: Spark may look from another folder than we do."""
    if ADDRESS.match(text):
        return text.rstrip("/")
    return str(Path(text).expanduser().absolute())


def inside(place: str, *names: str) -> str:
    """Name something in a folder."""
    return "/".join((place, *names))


def make_folder(place: str) -> None:
    """Make a folder, and see that we may write there, before Spark is asked to."""
    if ADDRESS.match(place):
        return  # Spark has its own ways to get there, and says so if it has none
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise LocalError(
            f"{place} cannot be written to ({error.strerror}): name another folder"
        ) from error


def exists(place: str) -> bool:
    """Tell whether there is something."""
    filesystem, path = _find(place)
    return bool(filesystem.get_file_info(path).type.name != "NotFound")


def claim(checkpoint: str, job: Job, tables: Sequence[str]) -> None:
    """Note whose checkpoint it is, or see that it is this job's, which writes these tables."""
    note = inside(checkpoint, NOTE)
    if not exists(note):
        if exists(inside(checkpoint, "metadata")):
            raise LocalError(f"{checkpoint} is the checkpoint of another program: name another")
        for table in tables:
            _check_table(table, checkpoint)
        filesystem, path = _find(note)
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(path) as file:
            file.write(msgspec.json.encode(job))
        return
    filesystem, path = _find(note)
    with filesystem.open_input_stream(path) as file:
        try:
            before = msgspec.json.decode(file.read(), type=Job)
        except msgspec.DecodeError as error:
            raise LocalError(f"{note} cannot be read ({error}): name another checkpoint") from error
    if before != job:
        raise LocalError(
            f"{checkpoint} is the checkpoint of another job ({_differences(before, job)}): "
            "name another with --checkpoint"
        )


def _differences(before: Job, now: Job) -> str:
    pairs = ((name, getattr(before, name), getattr(now, name)) for name in Job.__struct_fields__)
    return "; ".join(f"{name}: {_say(b)}, not {_say(n)}" for name, b, n in pairs if b != n)


def _say(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _check_table(table: str, checkpoint: str) -> None:
    """A table that is there already is one that a new job would repeat, or lose rows of."""
    if any(exists(inside(table, log)) for log in LOGS.values()):
        raise LocalError(
            f"{table} holds a table already, and {checkpoint} knows nothing of it: name its own "
            "checkpoint with --checkpoint, or another folder with --out"
        )


def _find(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    if not ADDRESS.match(place):
        return fs.LocalFileSystem(), place
    try:
        filesystem, path = fs.FileSystem.from_uri(place)
    except (OSError, ValueError) as error:
        raise LocalError(f"{place} cannot be reached from here: {error}") from error
    return filesystem, str(path)
