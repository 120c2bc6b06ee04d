"""The file of a storage node's logs: its tables, how it is opened, and what can be wrong with it.

It is an ordinary SQLite file. While a node runs on it, tools may look but nobody else may write:

    sqlite3 -readonly logs.sqlite "SELECT * FROM log LIMIT 10"

A transaction is on the disk when it is committed: the log is written ahead (WAL) and synchronised
at every commit. Whoever writes holds a lock on a second, empty file beside the first, until its
process ends, in whatever way.

Every row has a checksum, because a disk may say something else years later. That of a frame covers
the frame and its place; its name and numbers are copies of what the frame says itself (rows.py).
A row whose checksum does not hold is cut out, and its offsets stand in the table `missing` until
another storage node has sent them again (holes.py). Where the file itself is damaged, so that
SQLite cannot read it, it is rebuilt from its good rows (rebuilding.py).
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import apsw

from anabranch.core.store import InUseError, StoreError

APPLICATION_ID = 0x414E4C47  # "ANLG"
SCHEMA_VERSION = 2
BUSY_MS = 2_000  # a tool that looks may be in the way for a moment
CACHE_KIB = 32 * 1024

_SCHEMA = """
CREATE TABLE parts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    stream TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,      -- promised
    voted BLOB NOT NULL,         -- to whom
    log_epoch INTEGER NOT NULL,
    start INTEGER NOT NULL,      -- the first offset
    length INTEGER NOT NULL,     -- the next offset
    high INTEGER NOT NULL,       -- all before is settled
    hash BLOB NOT NULL,          -- of the log, at its end
    held INTEGER NOT NULL,       -- frames without an offset
    frames INTEGER NOT NULL,
    bytes INTEGER NOT NULL,      -- of all frames
    checksum INTEGER NOT NULL,   -- CRC-32 of this row
    UNIQUE (stream, partition)
) STRICT;

CREATE TABLE frames (
    id INTEGER PRIMARY KEY,
    part INTEGER NOT NULL,
    chain BLOB NOT NULL,         -- 20 bytes of publisher, 8 of chain; as the frame says
    previous INTEGER NOT NULL,   -- numbers: milliseconds << 20 | sequence
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    count INTEGER NOT NULL,      -- messages
    offset INTEGER,              -- of the first message; NULL: the frame is only held
    epoch INTEGER NOT NULL,      -- in which it was placed; 0: it is only held
    placed_ms INTEGER NOT NULL,  -- when; of one that is only held: when it came
    hash_before BLOB NOT NULL,   -- of the log, up to this frame; empty if it is only held
    checksum INTEGER NOT NULL,   -- CRC-32 of the frame and its place (rows.py)
    frame BLOB NOT NULL,         -- as it came
    mark INTEGER NOT NULL DEFAULT 0  -- -1: late; above 0: first number of the gap before it
) STRICT;

-- Ids of logs that were deleted or begun anew, whose frames are swept away little by little.
CREATE TABLE discarded (part INTEGER PRIMARY KEY) STRICT;
"""

_VIEW = """
CREATE VIEW log AS
SELECT stream, partition, offset, count AS messages, frames.epoch,
    strftime('%Y-%m-%d %H:%M:%f', placed_ms / 1000.0, 'unixepoch') AS placed,
    strftime('%Y-%m-%d %H:%M:%f', (first >> 20) / 1000.0, 'unixepoch') AS published,
    '0x' || lower(hex(substr(chain, 1, 20))) AS publisher,
    lower(hex(substr(chain, 21))) AS chain,
    length(frame) AS bytes, frames.id AS frame, mark = -1 AS late,
    CASE WHEN mark > 0 THEN strftime('%Y-%m-%d %H:%M:%f', (mark >> 20) / 1000.0, 'unixepoch') END
        AS missing_from
FROM frames JOIN parts ON parts.id = frames.part
WHERE offset IS NOT NULL;
"""

# Offsets of a log that are damaged. It came later than the other tables: a file may lack it.
MISSING = """
CREATE TABLE IF NOT EXISTS missing (
    part INTEGER NOT NULL,
    start INTEGER NOT NULL,
    end INTEGER NOT NULL,
    filled INTEGER NOT NULL,     -- up to here there are entries that are not proved yet
    before_ms INTEGER NOT NULL,  -- no message of it was published later
    PRIMARY KEY (part, start)
) STRICT, WITHOUT ROWID
"""

# Says, by having a row, that a record belongs to this file (record.py). A file may lack the table.
RECORDED = "CREATE TABLE IF NOT EXISTS recorded (since_ms INTEGER NOT NULL) STRICT"

INDEXES = {
    "by_chain": "CREATE UNIQUE INDEX by_chain ON frames (part, chain, last)",
    "by_number": "CREATE INDEX by_number ON frames (part, last, chain, first, count)",
    "by_offset": (
        "CREATE INDEX by_offset ON frames (part, offset, epoch, placed_ms) WHERE offset IS NOT NULL"
    ),
    "held": "CREATE INDEX held ON frames (part, last, chain, placed_ms) WHERE offset IS NULL",
}


def take_lock(path: Path) -> apsw.Connection:
    """Take the lock of a file of logs; closing it, or the end of the process, frees it."""
    name = f"{path}-lock"
    try:
        lock = apsw.Connection(name)
    except apsw.Error as error:
        raise explain(path, error) from error
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except apsw.BusyError as error:
        lock.close()
        raise InUseError(
            f"{path} is in use: a storage node runs on it already; stop it or name another folder"
        ) from error
    except apsw.Error as error:
        lock.close()
        raise explain(path, error) from error
    return lock


def open_for_writing(path: Path, vfs: str | None) -> apsw.Connection:
    """Open a file of logs, or make it."""

    def prepare(database: apsw.Connection) -> None:
        is_new = _recognise(path, database)
        if is_new:
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if is_new:
            database.execute("BEGIN IMMEDIATE")
            create(database, INDEXES.values())
            database.execute("COMMIT")
        database.execute(MISSING)
        database.execute(RECORDED)

    return _open(path, vfs, prepare)


def create(database: apsw.Connection, indexes: Iterable[str]) -> None:
    """Make the tables of a new file, and some of its indexes."""
    for statement in (_SCHEMA, _VIEW, MISSING, RECORDED, *indexes):
        database.execute(statement)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def migrate(database: apsw.Connection) -> None:
    """Give a file of the first format the column `mark`. Its rows stay as they are."""
    if database.pragma("user_version") == SCHEMA_VERSION:
        return
    with database:
        database.execute("ALTER TABLE frames ADD COLUMN mark INTEGER NOT NULL DEFAULT 0")
        database.execute("DROP VIEW IF EXISTS log")
        database.execute(_VIEW)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def open_for_reading(path: Path, vfs: str | None) -> apsw.Connection:
    """Open a file of logs that is there."""
    return _open(path, vfs, lambda database: database.execute("PRAGMA query_only = 1"))


def explain(path: Path, error: Exception) -> StoreError:
    """Say what to do about a failure of the database."""
    if isinstance(error, apsw.FullError):
        return StoreError(f"{path} cannot grow: the disk is full; make room")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreError(f"{path} is written by another program: let it end")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError):
        return damage(path, str(error))
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return StoreError(f"{path} cannot be written ({error}): check who may write there")
    return StoreError(f"{path}: {error}: check the disk")


def damage(path: Path, what: str) -> StoreError:
    """Say what to do about a file that says what cannot be."""
    return StoreError(
        f"{path} is damaged ({what}), and how its logs stood cannot be read from it: move the file "
        "away and start the node again, and the other storage nodes send its logs anew"
    )


def _open(
    path: Path, vfs: str | None, prepare: Callable[[apsw.Connection], object]
) -> apsw.Connection:
    try:
        database = apsw.Connection(str(path), vfs=vfs)
    except apsw.Error as error:
        raise explain(path, error) from error
    try:
        database.set_busy_timeout(BUSY_MS)
        database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        prepare(database)
    except apsw.Error as error:
        database.close()
        raise explain(path, error) from error
    except StoreError:
        database.close()
        raise
    return database


def _recognise(path: Path, database: apsw.Connection) -> bool:
    """Return whether the file is new; refuse those of other programs and releases."""
    application = database.pragma("application_id")
    version = database.pragma("user_version")
    tables = database.execute("SELECT count(*) FROM sqlite_schema").get
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != APPLICATION_ID:
        raise StoreError(f"{path} is the file of another program: name another folder")
    if not 1 <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{path} has format {version} and this release reads {SCHEMA_VERSION}: "
            "install the release that wrote it"
        )
    return False
