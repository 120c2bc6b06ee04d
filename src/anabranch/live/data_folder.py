"""A node's data folder: its lasting node key, and its published frames that are not stored yet.

One process uses a folder at a time: it holds a lock on it. The folder belongs to one user in one
network. Frames are written in the transaction of the event in which they were made, which is
committed before `publish` can return: they survive the end of the process, however it ends. A
commit does not wait for the disk (SQLite, WAL, synchronous=NORMAL), so a power cut may take the
frames of the last moments.
"""

import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.frames import peek
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, StreamPart, show
from anabranch.core.machine import ForgetFrames, KeepFrame
from anabranch.core.messages.storage import FrameName
from anabranch.live.keys import load_or_make_key
from anabranch.live.private_files import PRIVATE_FILE, make_private_folder

if sys.platform != "win32":
    import fcntl

FOLDER_UNSTORED_BYTES = 256 << 20  # of frames, where there is a folder
APPLICATION_ID = 0x414E4446  # "ANDF"
SCHEMA_VERSION = 1
BUSY_S = 1.0
CHECKPOINT_PAGES = 4_000  # of the write-ahead log, which is then copied into the file

_SCHEMA = """
CREATE TABLE owner (network BLOB NOT NULL, user BLOB NOT NULL);
CREATE TABLE frames (
    id INTEGER PRIMARY KEY,
    stream TEXT NOT NULL,
    partition INTEGER NOT NULL,
    frame BLOB NOT NULL
);
"""

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

    def load(self) -> list[tuple[StreamPart, bytes]]:
        """Return the frames in the folder, oldest first."""
        assert self._database is not None
        try:
            rows = self._database.execute(
                "SELECT id, stream, partition, frame FROM frames ORDER BY id"
            ).fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        frames: list[tuple[StreamPart, bytes]] = []
        for number, stream, partition, frame in rows:
            try:
                head = peek(frame)
            except RemoteError as error:
                raise self._unusable(error) from error
            part = StreamPart(stream, partition)
            self._ids[part, FrameName(head.chain, head.last)] = number
            self._next_id = number + 1
            frames.append((part, frame))
        return frames

    # --- Frames ---------------------------------------------------------------------------

    def keep(self, effect: KeepFrame) -> None:
        """Write a frame; it is safe after the next `commit`."""
        number, self._next_id = self._next_id, self._next_id + 1
        part = effect.part
        row = (number, part.stream, part.partition, effect.frame)
        if self._write("INSERT INTO frames VALUES (?, ?, ?, ?)", [row]):
            self._ids[part, effect.name] = number

    def forget(self, effect: ForgetFrames) -> None:
        """Delete frames."""
        ids = (self._ids.pop((effect.part, name), None) for name in effect.names)
        self._write("DELETE FROM frames WHERE id = ?", [(each,) for each in ids if each])

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
