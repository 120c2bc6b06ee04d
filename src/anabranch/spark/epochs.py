"""What a sink knows of the batch it writes: which numbers its rows have, and what came before them.

The numbers of a batch begin at the time that Spark itself noted for it, before it ran, in the
query's checkpoint: whoever runs the batch again finds the same. How far each chain has come is
noted beside that when a batch is done, in `anabranch/<batch>`: the next one goes on from there.
"""

import hashlib
import json
import posixpath
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import SEQUENCE_BITS
from anabranch.core.parts import JOIN_WINDOW_S

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

NOTES = "anabranch"  # the folder in the checkpoint
MAX_NOTES = 100  # so many batches can be gone back, as Spark's own logs allow
# Nodes that have just come take nothing that is older than a minute, so no number may be: a batch
# that is late counts from a later time, by whole steps.
STEP_MS = int(JOIN_WINDOW_S * 1000) - 10_000
STEP = STEP_MS << SEQUENCE_BITS
# Nothing is begun at the end of a step: what was sent in it is stored, or was lost, when the next
# begins, so that whoever looks then sees all that another attempt published under its numbers.
GUARD_MS = 10_000

_DOMAIN = b"anabranch sink v1\0"


class Epoch(msgspec.Struct, frozen=True):
    """One batch of one query: the name of the query, when it began, and where chains stood."""

    query: str
    batch: int
    began_ms: int
    stands: dict[str, int] = {}  # the last number of each chain before it

    def chain(self, task: int, stream: str, partition: int) -> int:
        """Return the chain that one task writes into one part of a stream."""
        digest = hashlib.sha256(_DOMAIN)
        for text in (self.query, stream):
            data = text.encode()
            digest.update(len(data).to_bytes(2) + data)
        digest.update(task.to_bytes(4) + bytes([partition]))
        return int.from_bytes(digest.digest()[:8])

    def numbering(self, chain: int) -> "Numbering":
        """Return the numbers that the rows of a chain have."""
        last = self.stands.get(f"{chain:016x}", 0)
        return Numbering(last, max(self.began_ms << SEQUENCE_BITS, last + 1))


class Numbering(msgspec.Struct, frozen=True):
    """The numbers of a chain in one batch, by the positions of its rows."""

    previous: int  # the last one before
    base: int

    def number(self, position: int, step: int) -> int:
        """Return the number that a row has if it is published in this step."""
        return self.base + position + step * STEP

    def step(self, now_ms: int) -> int:
        """Return how many steps late it is."""
        return max(0, self._late_ms(now_ms) // STEP_MS)

    def pause_ms(self, now_ms: int) -> int:
        """Return how long to wait for the next step, because this one is nearly over."""
        left_ms = STEP_MS - self._late_ms(now_ms) % STEP_MS
        return left_ms if left_ms <= GUARD_MS and self._late_ms(now_ms) >= 0 else 0

    def _late_ms(self, now_ms: int) -> int:
        return now_ms - (self.base >> SEQUENCE_BITS)

    def position(self, number: int) -> int:
        """Return which row has a number, whenever it was published."""
        return (number - self.base) % STEP


def one_write(now_ms: int) -> Epoch:
    """Begin a write that is not part of any query."""
    return Epoch(uuid.uuid4().hex, 0, now_ms)


class Checkpoint:
    """The folder of a query: what Spark notes there, and what we do."""

    def __init__(self, location: str | None) -> None:
        if not location:
            raise LocalError(
                "the sink finds the query's checkpoint by the option checkpointLocation: set it "
                "with writeStream.option('checkpointLocation', ...), even if the setting "
                "spark.sql.streaming.checkpointLocation names one"
            )
        self.location = location
        self._files, self._folder = _open(location)

    def epoch(self) -> Epoch:
        """Return the batch that runs: Spark has noted it and no later one."""
        try:
            query = json.loads(self._read("metadata"))["id"]
            batch = max(self._numbers("offsets"))
            noted = json.loads(self._read(f"offsets/{batch}").splitlines()[1])
            began_ms = int(noted["batchTimestampMs"])
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise LocalError(
                f"the checkpoint {self.location} has no batch that the sink could read ({error!r}):"
                " it must be readable from the driver's Python process"
            ) from error
        return Epoch(query, batch, began_ms, self._stands(batch))

    def note(self, epoch: Epoch, stands: dict[str, int]) -> None:
        """Note how far chains have come, for the batches after this one."""
        text = json.dumps({"query": epoch.query, "chains": epoch.stands | stands}).encode()
        folder, name = self._path(NOTES), self._path(f"{NOTES}/{epoch.batch}")
        self._files.create_dir(folder, recursive=True)
        with self._files.open_output_stream(f"{name}.new") as file:
            file.write(text)
        self._files.move(f"{name}.new", name)
        for old in self._numbers(NOTES):
            if old <= epoch.batch - MAX_NOTES:
                self._files.delete_file(self._path(f"{NOTES}/{old}"))

    def _stands(self, batch: int) -> dict[str, int]:
        earlier = [number for number in self._numbers(NOTES) if number < batch]
        if not earlier:
            return {}
        try:
            return msgspec.convert(
                json.loads(self._read(f"{NOTES}/{max(earlier)}"))["chains"], dict[str, int]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise LocalError(
                f"{NOTES}/{max(earlier)} in the checkpoint {self.location} is not what the sink "
                "wrote: delete that file"
            ) from error

    def _numbers(self, folder: str) -> list[int]:
        from pyarrow.fs import FileSelector

        found: list[Any] = self._files.get_file_info(
            FileSelector(self._path(folder), allow_not_found=True)
        )
        return [int(info.base_name) for info in found if info.base_name.isdecimal()]

    def _read(self, name: str) -> str:
        with self._files.open_input_stream(self._path(name)) as file:
            return bytes(file.read()).decode()

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, name)


def _open(location: str) -> "tuple[FileSystem, str]":
    """Find the file system of a location as Spark writes it."""
    import pyarrow
    from pyarrow.fs import FileSystem, LocalFileSystem

    if location.startswith("file:"):
        return LocalFileSystem(), "/" + location.removeprefix("file:").lstrip("/")
    if "://" not in location:
        return LocalFileSystem(), posixpath.abspath(location)
    try:
        found: tuple[FileSystem, str] = FileSystem.from_uri(location)
    except (OSError, pyarrow.ArrowException) as error:
        raise LocalError(
            f"the checkpoint {location} cannot be opened from Python ({error}): the sink reads "
            "there when a batch began"
        ) from error
    return found
