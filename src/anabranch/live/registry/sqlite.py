"""The registry of a tracker in one SQLite file: every change of every chain, as they came.

A change is on the disk when `store` returns: the log is written ahead and synchronised at every
commit. One tracker holds the file for as long as it runs, so that two cannot write two histories.
"""

import sqlite3
from pathlib import Path

from anabranch.core.errors import LocalError

APPLICATION_ID = 0x414E4142  # "ANAB"
SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE changes (
    chain TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    change BLOB NOT NULL,
    PRIMARY KEY (chain, sequence)
) WITHOUT ROWID
"""


class SqliteStore:
    """A file of changes. One thread at a time may use it, and not always the same."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise LocalError(f"there is no folder {self.path.parent}: make it first")
        try:
            self._database = sqlite3.connect(
                self.path, timeout=0.0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise LocalError(f"{self.path} cannot be opened ({error}): is it a folder?") from error
        try:
            self._open()
        except sqlite3.Error as error:
            self._database.close()
            raise _explain(self.path, error) from error
        except LocalError:
            self._database.close()
            raise

    def load(self) -> list[tuple[str, int, bytes]]:
        """Return every change, chain by chain, in the order in which they were stored."""
        try:
            rows = self._database.execute(
                "SELECT chain, sequence, change FROM changes ORDER BY chain, sequence"
            ).fetchall()
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error
        return [(chain, sequence, bytes(change)) for chain, sequence, change in rows]

    def store(self, chain: str, sequence: int, change: bytes) -> None:
        """Write one change; it is on the disk when this returns."""
        try:
            self._database.execute(
                "INSERT INTO changes VALUES (?, ?, ?)", (chain, sequence, change)
            )
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def _open(self) -> None:
        execute = self._database.execute
        # In the exclusive mode the locks that are taken are kept until the end.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        application = execute("PRAGMA application_id").fetchone()[0]
        version = execute("PRAGMA user_version").fetchone()[0]
        tables = execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        is_new = application == 0 and version == 0 and tables == 0
        if not is_new and application != APPLICATION_ID:
            raise LocalError(f"{self.path} is the file of another program: name another file")
        if not is_new and version != SCHEMA_VERSION:
            raise LocalError(
                f"{self.path} has format {version} and this release reads {SCHEMA_VERSION}: "
                "install the release that wrote it"
            )
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN IMMEDIATE")
        if is_new:
            execute(_SCHEMA)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        execute("COMMIT")


def _explain(path: Path, error: sqlite3.Error) -> LocalError:
    """Say what to do about a failure of the database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LocalError(
            f"{path} is in use: a tracker runs on it already; stop it or name another file"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return LocalError(f"{path} is no registry, or it is damaged ({error}): name another file")
    if code == sqlite3.SQLITE_FULL:
        return LocalError(f"{path} cannot grow: the disk is full; make room")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return LocalError(f"{path} cannot be written ({error}): check who may write there")
    return LocalError(f"{path}: {error}: check the disk")
