"""A node's data folder: its lasting node key, and its published frames that are not stored yet.

One process uses a folder at a time: it holds a lock on it. The folder belongs to one user in one
network. Frames are written in the transaction of the event in which they were made, which is
committed before `publish` can return: they survive the end of the process, however it ends. A
commit does not wait for the disk (SQLite, WAL, synchronous=NORMAL), so a power cut may take the
frames of the last moments.

Each frame has a checksum: a storage node would end the link to a node that hands it a frame which
is not what its publisher signed. Damaged frames are left out when the folder is read, and counted.
"""

import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import suppress
from errno import ENOTDIR
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.frames import peek
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, StreamPart, show
from anabranch.core.machine import ForgetFrames, KeepFrame
from anabranch.core.messages.data import MAX_FRAME_MESSAGES
from anabranch.core.messages.storage import FrameName
from anabranch.live.keys import load_or_make_key
from anabranch.live.private_files import PRIVATE_FILE, make_private_folder

if sys.platform != "win32":
    import fcntl

FOLDER_UNSTORED_BYTES = 256 << 20  # of frames, where there is a folder
APPLICATION_ID = 0x414E4446  # "ANDF"
SCHEMA_VERSION = 2
BUSY_S = 1.0
CHECKPOINT_PAGES = 4_000  # of the write-ahead log, which is then copied into the file

_SCHEMA = """
CREATE TABLE owner (network BLOB NOT NULL, user BLOB NOT NULL);
CREATE TABLE frames (
    id INTEGER PRIMARY KEY,
    stream TEXT NOT NULL,
    partition INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    given INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    frame BLOB NOT NULL
);
"""
_INSERT = "INSERT INTO frames VALUES (?, ?, ?, ?, ?, ?, ?)"

Name = tuple[StreamPart, FrameName]


class DataFolder:
    """The lock, the node key and the frames."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._database: sqlite3.Connection | None = None
        self._ids: dict[Name, int] = {}  # of the frames in the file
        self._next_id = 1
        self._is_open = False  # a transaction
        self.problem = ""  # why frames are not written any more
        self.damaged: dict[StreamPart, int] = {}  # messages that were damaged when it was read

    def node_identity(self) -> Identity:
        """Return the node's own key, which is made when there is none."""
        self._make()
        return load_or_make_key(self.path / "node.key")

    def open(self, network: bytes, user: NodeId) -> None:
        """Lock the folder, which from then on belongs to this user in this network."""
        self._make()
        self._take_lock()
        try:
            self._database = self._connect(network, user)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error
        except BaseException:
            self.close()
            raise

    def load(self) -> list[KeepFrame]:
        """Return the frames in the folder, oldest first, without those that are damaged."""
        assert self._database is not None
        try:
            rows = self._database.execute("SELECT * FROM frames ORDER BY id").fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._unusable(error) from error
        frames: list[KeepFrame] = []
        bad: list[int] = []
        for row in rows:
            number = row[0]
            self._next_id = max(self._next_id, number + 1)
            kept = _kept_in(row)
            if kept is None:
                part, count = _lost_in(row)
                self.damaged[part] = self.damaged.get(part, 0) + count
                bad.append(number)
                continue
            self._ids[kept.part, kept.name] = number
            frames.append(kept)
        self._write("DELETE FROM frames WHERE id = ?", [(number,) for number in bad])
        self.commit()
        return frames

    # --- Frames ---------------------------------------------------------------------------

    def keep(self, effect: KeepFrame) -> None:
        """Write a frame; it is safe after the next `commit`."""
        number, self._next_id = self._next_id, self._next_id + 1
        if self._write(_INSERT, [_row_of(number, effect)]):
            self._ids[effect.part, effect.name] = number

    def forget(self, effect: ForgetFrames) -> None:
        """Delete frames."""
        ids = (self._ids.pop((effect.part, name), None) for name in effect.names)
        self._write("DELETE FROM frames WHERE id = ?", [(each,) for each in ids if each])

    def write_anew(self, frames: Iterable[KeepFrame]) -> bool:
        """Write all frames after a failure; tell whether the disk took them."""
        if self._database is None:
            return False
        self.problem, self._ids = "", {}
        if self._execute("BEGIN IMMEDIATE"):
            self._is_open = self._execute("DELETE FROM frames")
        for effect in frames:
            if not self._is_open:
                break
            self.keep(effect)
        self.commit()
        return not self.problem

    def commit(self) -> None:
        """Make everything that was written since the last time survive this process."""
        if self._is_open:
            self._is_open = False
            self._execute("COMMIT")

    def _write(self, sql: str, rows: list[tuple[Any, ...]]) -> bool:
        if not rows or self._database is None or self.problem:
            return False
        if not self._is_open:
            self._is_open = self._execute("BEGIN IMMEDIATE")
        return self._is_open and self._execute(sql, rows)

    def _execute(self, sql: str, rows: list[tuple[Any, ...]] | None = None) -> bool:
        """Do it; if the disk fails, note the problem and write no more: memory still holds all."""
        assert self._database is not None
        try:
            if rows is None:
                self._database.execute(sql)
            else:
                self._database.executemany(sql, rows)
        except sqlite3.Error as error:
            self.problem = str(self._unusable(error))
            self._is_open = False
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            return False
        return True

    @property
    def loss(self) -> str:
        """Say how many messages were damaged in the folder; empty if none was."""
        count = sum(self.damaged.values())
        text = f"{count} messages in {self.path} were damaged on the disk, and are lost"
        return text if count else ""

    def close(self) -> None:
        """Write what is to be written, and let the folder go."""
        self.commit()
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- The file -------------------------------------------------------------------------

    def _make(self) -> None:
        try:
            make_private_folder(self.path)
            if not self.path.is_dir():
                raise NotADirectoryError(ENOTDIR, "it is a file")
        except OSError as error:
            raise LocalError(
                f"{self.path} cannot be made a folder ({error.strerror}): name another with --data"
            ) from error

    def _take_lock(self) -> None:
        """Keep other processes out; the lock ends with this process, however that ends."""
        lock = open(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, PRIVATE_FILE), "r+b")  # noqa: SIM115
        try:
            if sys.platform != "win32":
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise LocalError(
                f"another process uses the data folder {self.path}: name another one (--data), "
                "since each process needs its own"
            ) from error
        self._lock = lock

    def _connect(self, network: bytes, user: NodeId) -> sqlite3.Connection:
        path = self.path / "unstored.sqlite"
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))
        database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._set_up(database, network, user)
        except BaseException:
            database.close()
            raise
        return database

    def _set_up(self, database: sqlite3.Connection, network: bytes, user: NodeId) -> None:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        application = database.execute("PRAGMA application_id").fetchone()[0]
        tables = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if version == 0 and application == 0 and not tables:
            database.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}")
            database.execute("INSERT INTO owner VALUES (?, ?)", (network, user))
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute("COMMIT")
        elif (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            raise LocalError(
                f"{self.path} is no data folder of this release: name another one (--data)"
            )
        owner = database.execute("SELECT network, user FROM owner").fetchone()
        if owner != (network, bytes(user)):
            whose = "another network" if owner[0] != network else show(NodeId(owner[1]))
            raise LocalError(
                f"the data folder {self.path} belongs to {whose}: name another one (--data)"
            )

    def _unusable(self, error: Exception) -> LocalError:
        return LocalError(
            f"the data folder {self.path} cannot be used ({error}): make room there, check who may "
            "write there, or name another one (--data)"
        )


def _row_of(number: int, kept: KeepFrame) -> tuple[Any, ...]:
    part, given, frame = kept.part, int(kept.is_given), kept.frame
    count = peek(frame).count
    check = _checksum(part, given, frame)
    return (number, part.stream, part.partition, count, given, check, frame)


def _checksum(part: StreamPart, given: int, frame: bytes) -> int:
    return crc32(frame, crc32(f"{part} {given}".encode()))


def _kept_in(row: tuple[Any, ...]) -> KeepFrame | None:
    """Return the frame of a row; None if that is not what was written."""
    _, stream, partition, count, given, checksum, frame = row
    if type(stream) is not str or type(partition) is not int or type(frame) is not bytes:
        return None
    part = StreamPart(stream, partition)
    if _checksum(part, given, frame) != checksum:
        return None
    try:
        head = peek(frame)
    except RemoteError:
        return None
    kept = KeepFrame(part, FrameName(head.chain, head.last), frame, bool(given))
    return kept if head.count == count else None


def _lost_in(row: tuple[Any, ...]) -> tuple[StreamPart, int]:
    """Return, as far as a damaged row tells, of which part and how many its messages were."""
    _, stream, partition, count, *_ = row
    part = StreamPart(str(stream), partition if type(partition) is int else 0)
    return part, count if type(count) is int and 0 < count <= MAX_FRAME_MESSAGES else 1
