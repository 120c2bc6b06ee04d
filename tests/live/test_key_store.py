"""The key store: keys come back, to their owner alone, and the file says nothing to others."""

import os
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.core.ids import NodeId
from anabranch.core.machine import KeepKey
from anabranch.live import key_store
from anabranch.live.key_store import KeyStore, default_key_store

ANN, BEN = Identity(b"a" * 32), Identity(b"b" * 32)
NET = b"n" * 32
STREAM = "0x" + "0a" * 20 + "/secret"


def key(at: int, stream: str = STREAM) -> KeepKey:
    return KeepKey(stream, ANN.node, at.to_bytes(16), b"secret %025d" % at)


def filled(path: Path, *keys: KeepKey, identity: Identity = ANN) -> Path:
    store = KeyStore(path, NET, identity)
    for each in keys:
        store.keep(each)
    store.close()
    return path


def load(path: Path, network: bytes = NET, identity: Identity = ANN) -> list[KeepKey]:
    store = KeyStore(path, network, identity)
    try:
        return store.load()
    finally:
        store.close()


def test_keys_come_back_in_their_order(tmp_path: Path) -> None:
    path = filled(tmp_path / "deep" / "keys.sqlite", key(2), key(1), key(2), key(1, STREAM + "2"))
    assert load(path) == [key(2), key(1), key(1, STREAM + "2")]
    assert load(path, b"m" * 32) == []


def test_no_file_is_made_before_there_is_a_key(tmp_path: Path) -> None:
    assert load(tmp_path / "keys.sqlite") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions there")
def test_nobody_else_may_read_the_file_or_its_log(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = KeyStore(tmp_path / "deep" / "keys.sqlite", NET, ANN)
        store.keep(key(1))
        files = list((tmp_path / "deep").iterdir())
        assert len(files) >= 2  # the log is there while the store is open
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
        store.close()
    finally:
        os.umask(before)
    (tmp_path / "deep" / "keys.sqlite").chmod(0o640)
    with pytest.raises(LocalError, match=r"others than you may read.*chmod 600"):
        load(tmp_path / "deep" / "keys.sqlite")


def test_the_file_alone_opens_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "keys.sqlite", key(1))
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert key(1).secret not in content
    with pytest.raises(LocalError, match="another key"):
        load(path, identity=BEN)


def test_a_secret_opens_only_in_its_own_row(tmp_path: Path) -> None:
    path = filled(tmp_path / "keys.sqlite", key(1), key(2))
    database = sqlite3.connect(path)
    sealed = database.execute("SELECT sealed FROM group_keys ORDER BY rowid").fetchone()[0]
    database.execute("UPDATE group_keys SET sealed = ? WHERE rowid = 2", (sealed,))
    database.commit()
    database.close()
    with pytest.raises(LocalError, match="damaged"):
        load(path)


def test_two_processes_share_a_store(tmp_path: Path) -> None:
    one, other = (KeyStore(tmp_path / "keys.sqlite", NET, ANN) for _ in range(2))
    one.keep(key(1))
    other.keep(key(2))
    assert one.load() == other.load() == [key(1), key(2)]
    one.close()
    other.close()


def test_a_store_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "MAX_KEPT", 3)
    monkeypatch.setattr(key_store, "MAX_LOADED", 2)
    monkeypatch.setattr(key_store, "CLEAN_EVERY", 5)
    path = filled(tmp_path / "keys.sqlite", *(key(at) for at in range(6)))
    assert load(path) == [key(4), key(5)]
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM group_keys").fetchone() == (3,)  # cleaned last
    database.close()


def test_nobody_drives_out_the_keys_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "MAX_KEPT_EACH", 2)
    monkeypatch.setattr(key_store, "MAX_LOADED", 3)
    own = [KeepKey(STREAM, BEN.node, at.to_bytes(16), b"o" * 32) for at in range(3)]
    other = KeepKey(STREAM, NodeId(b"c" * 20), bytes(16), b"c" * 32)
    path = filled(tmp_path / "k.sqlite", *own, other, *map(key, range(9)), identity=BEN)
    assert load(path, identity=BEN) == [*own, other, key(7), key(8)]


def test_what_is_no_store_is_named(tmp_path: Path) -> None:
    path = tmp_path / "keys.sqlite"
    path.write_bytes(b"text" * 1000)
    path.chmod(0o600)
    with pytest.raises(LocalError, match="cannot be used"):
        load(path)
    path.unlink()
    database = sqlite3.connect(path)
    database.execute("PRAGMA application_id = 7")
    database.execute("CREATE TABLE other (x)")
    database.close()
    path.chmod(0o600)
    with pytest.raises(LocalError, match="no key store"):
        load(path)
    with pytest.raises(LocalError, match="cannot be used"):
        filled(tmp_path / "keys.sqlite" / "below", key(1))


def test_every_user_has_a_store_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    path = default_key_store(NodeId(b"\x0a" * 20))
    assert path == tmp_path / "group-keys" / ("0x" + "0a" * 20 + ".sqlite")
