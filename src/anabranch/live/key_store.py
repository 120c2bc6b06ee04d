"""The group keys that a user has, in one SQLite file that nobody else may read.

What was published encrypted stays readable after a restart, and a publisher can still give its
older keys to those who may have them. The file is made when there is a first key to keep. Each
secret in it is encrypted with a key that follows from the user's own, so that the file alone
opens nothing. Several processes of one user may share it.
"""

import hashlib
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId, show
from anabranch.core.machine import KeepKey
from anabranch.live.keys import OTHERS
from anabranch.live.private_files import PRIVATE_FILE, make_private_folder
from anabranch.live.profiles import config_path

MAX_LOADED = 10_000  # of our own and of others' the newest; older ones are asked for anew
MAX_KEPT = 100_000
MAX_KEPT_EACH = 1_000  # of one publisher who is not us: nobody drives out the keys of the others
NONCE_BYTES = 12
CLEAN_EVERY = 256  # writes
BUSY_S = 1.0
APPLICATION_ID = 0x414E4B59  # "ANKY"
SCHEMA_VERSION = 1

_DOMAIN = b"anabranch key store v1\0"
_SCHEMA = """
CREATE TABLE group_keys (
    network BLOB NOT NULL,
    stream TEXT NOT NULL,
    publisher BLOB NOT NULL,
    key_id BLOB NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (network, stream, publisher, key_id)
)
"""


def default_key_store(user: NodeId) -> Path:
    """Return where a user's group keys are kept unless another place is named."""
    return config_path().parent / "group-keys" / f"{show(user)}.sqlite"


class KeyStore:
    """The group keys of one user in one network."""

    def __init__(self, path: Path, network: bytes, identity: Identity) -> None:
        self.path = path
        self._network = network
        self._me = identity.node
        self._writes = 0
        # A signature of this digest is made nowhere else, and by nobody else.
        secret = identity.sign(hashlib.sha256(_DOMAIN + identity.node).digest())
        self._cipher = AESGCM(hashlib.sha256(_DOMAIN + secret).digest())
        self._database: sqlite3.Connection | None = None

    def load(self) -> list[KeepKey]:
        """Return the newest keys of this network, oldest first; none if there is no file yet."""
        if not self.path.exists():
            return []
        rows = self._run(
            lambda database: [*self._newest(database, "="), *self._newest(database, "<>")]
        )
        return [self._open_key(*row[:4]) for row in sorted(rows, key=lambda row: row[4])]

    def keep(self, key: KeepKey) -> None:
        """Keep a key; one that is there already stays."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, key.secret, self._bound_to(key))
        row = (self._network, key.stream, key.publisher, key.key_id, sealed)

        def write(database: sqlite3.Connection) -> list[Any]:
            database.execute("INSERT OR IGNORE INTO group_keys VALUES (?, ?, ?, ?, ?)", row)
            if key.publisher != self._me:
                database.execute(
                    "DELETE FROM group_keys WHERE rowid IN (SELECT rowid FROM group_keys WHERE "
                    "network = ? AND stream = ? AND publisher = ? "
                    "ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
                    (*row[:3], MAX_KEPT_EACH),
                )
            self._writes += 1
            if self._writes % CLEAN_EVERY == 1:
                for compared in ("=", "<>"):
                    self._clean(database, compared)
            return []

        self._run(write)

    def close(self) -> None:
        """Let go of the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # --- The file -------------------------------------------------------------------------

    def _run(self, work: Callable[[sqlite3.Connection], list[Any]]) -> list[Any]:
        try:
            if self._database is None:
                self._database = self._open()
            return work(self._database)
        except (sqlite3.Error, OSError) as error:
            raise LocalError(
                f"the key store {self.path} cannot be used ({error}): check who may write there, "
                "or move it away if it is none"
            ) from error

    def _open(self) -> sqlite3.Connection:
        make_private_folder(self.path.parent)
        # SQLite gives its log the permissions that the file has.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))
        if self.path.stat().st_mode & OTHERS and sys.platform != "win32":
            raise LocalError(
                f"others than you may read the keys in {self.path}: run "
                f"`chmod {PRIVATE_FILE:o} {self.path}`"
            )
        database = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            self._set_up(database)
        except BaseException:
            database.close()
            raise
        return database

    def _set_up(self, database: sqlite3.Connection) -> None:
        execute = database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")  # a key that a power cut takes is asked for anew
        execute("BEGIN IMMEDIATE")
        version = execute("PRAGMA user_version").fetchone()[0]
        application = execute("PRAGMA application_id").fetchone()[0]
        tables = execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if version == 0 and application == 0 and not tables:
            execute(_SCHEMA)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            raise LocalError(f"{self.path} is no key store of this release: move it away")
        execute("COMMIT")

    def _clean(self, database: sqlite3.Connection, compared: str) -> None:
        """Let the oldest go of the keys whose publisher is us (`=`), or is not (`<>`)."""
        database.execute(
            "DELETE FROM group_keys WHERE rowid IN (SELECT rowid FROM group_keys "
            f"WHERE publisher {compared} ? ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
            (self._me, MAX_KEPT),
        )

    def _newest(self, database: sqlite3.Connection, compared: str) -> list[Any]:
        """Return the newest keys whose publisher is us (`=`), or is not (`<>`)."""
        return database.execute(
            "SELECT stream, publisher, key_id, sealed, rowid FROM group_keys "
            f"WHERE network = ? AND publisher {compared} ? ORDER BY rowid DESC LIMIT ?",
            (self._network, self._me, MAX_LOADED),
        ).fetchall()

    # --- One key --------------------------------------------------------------------------

    def _bound_to(self, key: KeepKey) -> bytes:
        """A sealed secret opens only where it was put: rows cannot be exchanged."""
        name = key.stream.encode()
        return self._network + len(name).to_bytes(2) + name + key.publisher + key.key_id

    def _open_key(self, stream: str, publisher: bytes, key_id: bytes, sealed: bytes) -> KeepKey:
        key = KeepKey(stream, NodeId(publisher), key_id, b"")
        try:
            key.secret = self._cipher.decrypt(
                sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._bound_to(key)
            )
        except InvalidTag as error:
            raise LocalError(
                f"the key store {self.path} is damaged, or was made with another key: move it away"
            ) from error
        return key
