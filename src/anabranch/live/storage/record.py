"""The file of the records: how far each log had come, beside the file of the logs.

It is a second SQLite file, which is synchronised at every commit, after that of the logs. So a disk
that forgets the end of one file does not forget it in the other as well. Each row has a checksum.

A file of logs that has been used with a record says so in its table `recorded`. If the record is
gone then, or cannot be read, nobody here knows how far the logs had come: every log is recovered as
after `storage --restored`. For logs of earlier releases the record is made from the logs.
"""

from contextlib import suppress
from pathlib import Path
from typing import cast
from zlib import crc32

import apsw
import msgspec

from anabranch.core.ids import StreamPart
from anabranch.core.log_record import Changes, Record
from anabranch.core.store import StoreError
from anabranch.live.storage.schema import explain

APPLICATION_ID = 0x414E5243  # "ANRC"
RECORD_VERSION = 1
BUSY_MS = 2_000
CHECKPOINT_PAGES = 1_000  # of what is written ahead: each checkpoint synchronises twice more

_SCHEMA = """
CREATE TABLE records (
    stream TEXT NOT NULL,
    partition INTEGER NOT NULL,
    record BLOB NOT NULL,        -- msgpack (log_record.py)
    checksum INTEGER NOT NULL,   -- CRC-32 of the record
    PRIMARY KEY (stream, partition)
) STRICT, WITHOUT ROWID
"""
_PUT = (
    "INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (stream, partition) "
    "DO UPDATE SET record = excluded.record, checksum = excluded.checksum"
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode

_DAMAGE = (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError, msgspec.DecodeError)


def record_path(logs: Path) -> Path:
    """Return the path of the record that belongs to a file of logs."""
    return logs.with_name(f"{logs.name}-record")


class RecordFile:
    """The records of a file of logs; one thread at a time may write."""

    def __init__(self, logs: Path, vfs: str | None = None) -> None:
        """Open it, or make it; a file that cannot be read is moved aside, and `is_lost` says so."""
        self.path = record_path(logs)
        self.is_lost = False
        try:
            try:
                self._database, self.is_new = _open(self.path, vfs)
                self.records = _read(self._database)
            except _DAMAGE:
                if vfs is None:
                    self.path.replace(self.path.with_name(f"{self.path.name}-damaged"))
                for suffix in ("-wal", "-shm"):
                    self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
                self.is_lost, self.records = True, []
                self._database, self.is_new = _open(self.path, vfs)
        except (apsw.Error, OSError) as error:
            raise explain(self.path, error) from error
        self._wal_pages = 0
        self._database.set_wal_hook(self._count_pages)

    def save(self, changes: Changes) -> None:
        """Write some records; they are on the disk when this returns."""
        if not changes:
            return
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            try:
                for part, record in changes.items():
                    _put(database, part, record)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except apsw.Error as error:
            raise explain(self.path, error) from error
        if self._wal_pages >= CHECKPOINT_PAGES:
            with suppress(apsw.Error):  # it is safe where it is
                database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _count_pages(self, database: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def close(self) -> None:
        """Let go of the file, with everything in its place if the disk lets us."""
        with suppress(apsw.Error):
            self._database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._database.close()


def read_records(logs: Path) -> list[Record]:
    """Read the records of a file of logs that a node has open."""
    path = record_path(logs)
    if not path.exists():
        return []
    try:
        database = apsw.Connection(str(path))
        try:
            database.set_busy_timeout(BUSY_MS)
            database.execute("PRAGMA query_only = 1")
            return _read(database)
        finally:
            database.close()
    except (apsw.Error, msgspec.DecodeError) as error:
        raise explain(path, error) from error


def _put(database: apsw.Connection, part: StreamPart, record: Record | None) -> None:
    if record is None:
        where = "stream = ? AND partition = ?"
        database.execute(f"DELETE FROM records WHERE {where}", (part.stream, part.partition))
        return
    text = _encode(record)
    database.execute(_PUT, (part.stream, part.partition, text, crc32(text)))


def _open(path: Path, vfs: str | None) -> tuple[apsw.Connection, bool]:
    """Open the file; tell whether it is new."""
    database = apsw.Connection(str(path), vfs=vfs)
    try:
        database.set_busy_timeout(BUSY_MS)
        database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # its errors would not be ours
        tables = database.execute("SELECT count(*) FROM sqlite_schema").get
        application = database.pragma("application_id")
        if tables and application != APPLICATION_ID:
            raise StoreError(f"{path} is the file of another program: name another folder")
        if tables and database.pragma("user_version") != RECORD_VERSION:
            raise StoreError(f"{path} is of another release: install the one that wrote it")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if not tables:
            database.execute("BEGIN IMMEDIATE")
            database.execute(_SCHEMA)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {RECORD_VERSION}")
            database.execute("COMMIT")
        return database, not tables
    except BaseException:
        database.close()
        raise


def _read(database: apsw.Connection) -> list[Record]:
    records = []
    # The cast lets a row of any type come.
    select = "SELECT CAST(record AS BLOB), checksum FROM records"
    rows = cast(list[tuple[bytes, int]], database.execute(select).fetchall())
    for text, checksum in rows:
        if crc32(text) != checksum:
            raise apsw.CorruptError("a record is not what was written")
        records.append(_decode(text))
    return records
