"""Keys in files: they come back as they went, for their owner alone, and are never shown."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity, KnownKeys
from anabranch.core.ids import show
from anabranch.live.keys import load_key, load_or_make_key, new_key, parse_key, save_key
from support.waiting import limit

SECRET = bytes(range(1, 33))
ORDER = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"  # of secp256k1
MAKE = """
import sys
from pathlib import Path
from anabranch.core.ids import show
from anabranch.live.keys import load_or_make_key
print(show(load_or_make_key(Path(sys.argv[1])).node))
"""

posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


def test_a_new_key_signs_and_differs_from_the_next() -> None:
    identity, secret = new_key()
    assert Identity(secret).node == identity.node
    assert KnownKeys().verify(identity.node, bytes(32), identity.sign(bytes(32)))
    assert new_key()[1] != secret


def test_a_key_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "mine.key"
    save_key(path, SECRET)
    assert load_key(path).node == Identity(SECRET).node
    assert path.read_bytes() == SECRET.hex().encode() + b"\n"


@posix
def test_file_and_folder_are_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "mine.key"
    save_key(path, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_key_is_overwritten_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.key"
    save_key(path, SECRET)
    _, other = new_key()
    with pytest.raises(LocalError, match="is there already"):
        save_key(path, other)
    assert load_key(path).node == Identity(SECRET).node
    save_key(path, other, overwrite=True)
    assert load_key(path).node == Identity(other).node


@pytest.mark.parametrize("secret", [b"", SECRET[1:], bytes(32), bytes.fromhex(ORDER)])
def test_what_is_no_key_is_not_saved(tmp_path: Path, secret: bytes) -> None:
    with pytest.raises(LocalError):
        save_key(tmp_path / "mine.key", secret)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for make in (lambda path: save_key(path, SECRET), load_or_make_key):
        with pytest.raises(LocalError, match=r"cannot be written \(Not a directory\)"):
            make(tmp_path / "file" / "mine.key")


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "mine.key"
    with pytest.raises(LocalError) as caught:
        load_key(path)
    assert f"`anabranch key new --out '{path}'`" in str(caught.value)


@posix
@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o644, 0o777])
def test_a_key_that_others_may_touch_is_refused_with_the_cure(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "my key"
    save_key(path, SECRET)
    path.chmod(mode)
    with pytest.raises(LocalError) as caught:
        load_key(path)
    cure = str(caught.value).split("`")[1]
    assert cure == f"chmod 600 '{path}'"
    subprocess.run(cure, shell=True, check=True)
    assert load_key(path).node == Identity(SECRET).node


@pytest.mark.parametrize(
    "content",
    [
        b"",
        SECRET.hex()[:-1].encode(),
        SECRET.hex().encode() + b"0",
        SECRET.hex().encode() * 1000,
        b"\xff" * 64,
        b"0" * 64,
        ORDER.encode(),
        b"-----BEGIN EC PRIVATE KEY-----\n",
    ],
)
def test_wrong_content_is_refused_without_showing_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(LocalError, match="holds no key") as caught:
        load_key(path)
    assert str(path) in str(caught.value)
    assert SECRET.hex()[:8] not in str(caught.value)


def test_a_folder_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read"):
        load_key(tmp_path)


@pytest.mark.parametrize("text", ["{}", "0x{}", " {}\n", "0x{}\r\n"])
def test_a_key_is_read_as_people_write_it(text: str) -> None:
    assert parse_key(text.format(SECRET.hex())) == SECRET
    assert parse_key(text.format(SECRET.hex().upper())) == SECRET


@pytest.mark.parametrize(
    "text",
    ["", "0x", SECRET.hex()[1:], "0X" + SECRET.hex(), SECRET.hex() + " 0", "٣" * 64, "0" * 64],
)
def test_what_is_no_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(LocalError) as caught:
        parse_key(text)
    assert SECRET.hex()[1:9] not in str(caught.value)


def test_a_key_is_made_once_and_then_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "mine.key"
    first = load_or_make_key(path)
    assert load_or_make_key(path).node == load_key(path).node == first.node


def test_processes_that_make_a_key_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "mine.key"
    command = [sys.executable, "-c", MAKE, str(path)]
    makers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="ascii")
        for _ in range(4)
    ]
    answers = {maker.communicate(timeout=limit(60))[0].strip() for maker in makers}
    assert answers == {show(load_key(path).node)}
    assert list(path.parent.iterdir()) == [path]
