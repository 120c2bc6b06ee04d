"""Where jobs write: a folder here, or a place that Spark reaches by its address (s3://, hdfs://).

A checkpoint belongs to one job. Spark would take another's for its own, and skip or repeat rows
without a word; so each checkpoint has a note of whose it is, and so has each table.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core.errors import LocalError

NOTE = "anabranch-job.json"  # in the folder of a checkpoint
# What shows that a folder holds a table that some streaming query has written.
LOGS = {"parquet": "_spark_metadata", "delta": "_delta_log"}
HIDDEN = (".", "_")  # how the names begin of what readers of tables do not look at
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


def files_in(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the files that Spark sees in a folder here; say why if they cannot be told."""
    real = os.path.realpath(folder)
    if real in above:
        raise LocalError(f"{folder} leads back to {real}, again and again: remove this link")
    try:
        for path in folder.iterdir():
            if path.name.startswith(HIDDEN):
                continue
            if path.is_dir():
                yield from files_in(path, (*above, real))
            elif path.is_file():
                yield path
    except OSError as error:
        raise LocalError(f"{folder} cannot be read ({error.strerror}): name another") from error


def check_file(path: Path) -> None:
    """See before a job that its page can be written, and make the folder for it."""
    if path.exists() and not path.is_file():
        raise LocalError(f"{path} is no file: name one with --out, such as {path / 'report.html'}")
    make_folder(place_of(str(path.parent)))


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all: one that was there before is there until then."""
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise LocalError(
            f"{path} cannot be written ({error.strerror}): name another with --out"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


# --- Whose checkpoint it is -----------------------------------------------------------------


def claim(checkpoint: str, job: Job, tables: Mapping[str, str]) -> None:
    """Note whose checkpoint it is, or see that it is this job's.

    `tables` are those that it writes, with the checkpoint of the query that does.
    """
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
    for table, query in tables.items():
        _check_kept(table, LOGS[job.format], query)


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
    for entry in _entries(table):
        place = inside(table, entry.base_name)
        if entry.base_name.startswith(HIDDEN) or f"{checkpoint}/".startswith(f"{place}/"):
            continue
        if entry.is_file or _entries(place):
            raise LocalError(
                f"{place} is not of this job, and readers of the table would not see it any more: "
                "name another folder with --out"
            )


def _check_kept(table: str, log: str, query: str) -> None:
    """What is committed is never written again, and so must be in the table."""
    committed = any(entry.base_name.isdecimal() for entry in _entries(inside(query, "commits")))
    if committed and not exists(inside(table, log)):
        raise LocalError(
            f"the table in {table} is gone, and {query} says that rows are in it: restore the "
            "table, or remove that checkpoint too, to begin anew"
        )


def _entries(folder: str) -> list[Any]:
    """Return what lies in a folder; nothing, if there is none."""
    from pyarrow import fs

    filesystem, path = _find(folder)
    try:
        return list(filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)))
    except OSError as error:
        raise LocalError(f"{folder} cannot be read ({error}): name another") from error


def _find(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    if not ADDRESS.match(place):
        return fs.LocalFileSystem(), place
    try:
        filesystem, path = fs.FileSystem.from_uri(place)
    except (OSError, ValueError) as error:
        raise LocalError(f"{place} cannot be reached from here: {error}") from error
    return filesystem, str(path)
