"""The registry's file: what was stored is there again, and one tracker at a time has it."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from anabranch.core.changes import CreateStream, DeleteStream, SetPermission
from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.machine import Store, Stored
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry_keeper import RegistryKeeper
from anabranch.live.registry.sqlite import APPLICATION_ID, SCHEMA_VERSION, SqliteStore
from chains import ENTRIES, NET, STREAM, Writer, network_rows, stream_rows
from machines import KEYS, NODES, START


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.sqlite"


def fill(path: Path, rows: list[tuple[str, int, bytes]]) -> None:
    store = SqliteStore(path)
    for row in rows:
        store.store(*row)
    store.close()


def test_changes_come_back_in_the_order_in_which_they_came(path: Path) -> None:
    rows = stream_rows(STREAM, SetPermission(NODES[5], 1), DeleteStream())
    fill(path, [rows[0], *network_rows(*ENTRIES), *rows[1:]])
    store = SqliteStore(path)
    assert store.load() == sorted([*rows, *network_rows(*ENTRIES)])
    store.close()


def test_a_keeper_that_restarts_from_the_file_has_the_same_heads(path: Path) -> None:
    fill(path, network_rows(*ENTRIES))
    store, writer = SqliteStore(path), Writer()
    keeper: Any = RegistryKeeper(NET, KEYS.verify, store.load())
    for at in range(70):
        action = CreateStream() if at == 0 else SetPermission(NODES[at % 30], 1 + at % 31)
        change = writer.next(action)
        [effect] = keeper.write(NODES[1], 0, change, START)
        assert type(effect) is Store
        store.store(effect.chain, effect.sequence, effect.change)
        keeper.stored(Stored(effect.token))
        writer.add(action)
    store.close()
    store = SqliteStore(path)
    again: Any = RegistryKeeper(NET, KEYS.verify, store.load())
    store.close()
    for chain in (STREAM, NETWORK):
        assert again.history(chain).head == keeper.history(chain).head
    assert again.state(STREAM).permissions == keeper.state(STREAM).permissions


def test_a_branch_comes_back_as_it_came_and_makes_the_same_head(path: Path) -> None:
    writer = Writer().add(CreateStream())
    other = writer.fork().add(SetPermission(NODES[5], 1), SetPermission(NODES[5], 2))
    writer.add(SetPermission(NODES[6], 1))
    came = [*other.changes, writer.changes[1]]  # the last one is not as deep as the one before
    fill(path, [(STREAM, at, change) for at, change in enumerate(came, 1)])
    store = SqliteStore(path)
    keeper = RegistryKeeper(NET, KEYS.verify, store.load())
    store.close()
    both = writer.take(*other.changes).history
    assert both.changes != came
    assert keeper.history(STREAM).head == both.head


def test_real_signatures_survive_the_file(path: Path) -> None:
    owner = Identity(b"\1" * 32)
    writer = Writer(f"0x{owner.node.hex()}/a")
    change = writer.next(CreateStream(), signer=owner)
    fill(path, [(writer.chain, 1, change)])
    store = SqliteStore(path)
    [(_, _, stored)] = store.load()
    store.close()
    assert writer.history.add(stored, KnownKeys().verify)


def test_two_trackers_cannot_share_a_file(path: Path) -> None:
    first = SqliteStore(path)
    with pytest.raises(LocalError, match="a tracker runs on it already"):
        SqliteStore(path)
    first.store(STREAM, 1, b"x")
    first.close()
    second = SqliteStore(path)
    assert second.load() == [(STREAM, 1, b"x")]
    second.close()


def test_the_lock_is_held_before_anything_is_written(path: Path) -> None:
    fill(path, [])
    first = SqliteStore(path)
    first.load()
    with pytest.raises(LocalError, match="a tracker runs on it already"):
        SqliteStore(path)
    first.close()


def test_a_place_is_written_once(path: Path) -> None:
    store = SqliteStore(path)
    store.store(STREAM, 1, b"x")
    with pytest.raises(LocalError, match="UNIQUE"):
        store.store(STREAM, 1, b"y")
    assert store.load() == [(STREAM, 1, b"x")]
    store.close()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"this is a diary, and no registry at all\n" * 50)
    with pytest.raises(LocalError, match="is no registry, or it is damaged"):
        SqliteStore(path)


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE notes (text TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(LocalError, match="another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_of_a_later_release_is_refused(path: Path) -> None:
    fill(path, [])
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    with pytest.raises(LocalError, match="install the release that wrote it"):
        SqliteStore(path)


def test_a_folder_that_is_missing_or_a_folder_in_the_files_place(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="make it first"):
        SqliteStore(tmp_path / "nowhere" / "file")
    with pytest.raises(LocalError, match="cannot be"):
        SqliteStore(tmp_path)


def test_the_file_says_whose_it_is(path: Path) -> None:
    fill(path, [])
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
