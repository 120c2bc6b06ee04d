"""Profiles: which network is meant, from which file, and with which key."""

import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anabranch.core.errors import LocalError
from anabranch.live.address import parse_address
from anabranch.live.keys import load_key
from anabranch.live.profiles import (
    Profile,
    config_path,
    current_profile,
    default_key_file,
    find_profile,
    load_profiles,
    profile_identity,
    save_profile,
)
from support.waiting import limit

ADDRESS = parse_address("anabranch://" + "ab" * 32 + "@127.0.0.1:7700")
OTHER = parse_address("anabranchs://" + "cd" * 32 + "@example.org:1,example.net:2")
SAVE = """
import sys
from pathlib import Path
from anabranch.live.address import parse_address
from anabranch.live.profiles import Profile, save_profile
for number in range(10):
    address = parse_address("anabranch://" + "ab" * 32 + "@host")
    save_profile(Profile(f"{sys.argv[1]}-{number}", address, Path("key").absolute()))
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "conf" / "config.toml"
    monkeypatch.setenv("ANABRANCH_CONFIG", str(path))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return path


def write(config: Path, text: str) -> None:
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(text)


def test_the_file_is_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("ANABRANCH_CONFIG", "here.toml")
    assert config_path() == tmp_path / "here.toml"
    monkeypatch.setenv("ANABRANCH_CONFIG", "")
    assert config_path() == tmp_path / "xdg" / "anabranch" / "config.toml"
    at_home = tmp_path / "me" / ".config" / "anabranch" / "config.toml"
    for no_place in ("", "relative/path"):
        monkeypatch.setenv("XDG_CONFIG_HOME", no_place)
        assert config_path() == at_home
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.delenv("ANABRANCH_CONFIG")
    assert config_path() == at_home
    assert default_key_file() == at_home.parent / "keys" / "default.key"


def test_profiles_come_back_as_they_were_saved(config: Path, tmp_path: Path) -> None:
    local = Profile("local", ADDRESS, config.parent / "keys" / "local.key")
    away = Profile("away", OTHER, tmp_path / "away.key")
    save_profile(local)
    save_profile(away, make_current=False)
    assert load_profiles() == {"local": local, "away": away}
    assert current_profile() == local
    save_profile(away)
    assert current_profile() == away


def test_the_file_says_what_a_person_would_write(config: Path, tmp_path: Path) -> None:
    save_profile(Profile("local", ADDRESS, config.parent / "keys" / "local.key"))
    save_profile(Profile("away", OTHER, tmp_path / "away.key"), make_current=False)
    assert tomllib.loads(config.read_text()) == {
        "current": "local",
        "profiles": {
            "local": {"address": str(ADDRESS), "key": "keys/local.key"},
            "away": {"address": str(OTHER), "key": str(tmp_path / "away.key")},
        },
    }


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_the_file_is_closed_to_others(config: Path) -> None:
    save_profile(Profile("local", ADDRESS, config.parent / "key"))
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


def test_saving_keeps_what_else_is_in_the_file(config: Path) -> None:
    write(
        config,
        f"""
        since = 2024-05-01T10:00:00Z
        [profiles.local]
        address = "{OTHER}"
        colour = "blue"
        [elsewhere]
        list = [1, {{ a = 2.5 }}]
        """,
    )
    before = tomllib.loads(config.read_text())
    save_profile(Profile("local", ADDRESS, config.parent / "key"), make_current=False)
    before["profiles"]["local"] |= {"address": str(ADDRESS), "key": "key"}
    assert tomllib.loads(config.read_text()) == before


def test_who_names_a_profile_gets_it(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two", "three"):
        save_profile(Profile(name, ADDRESS, config.parent / "key"))
    assert current_profile().name == "three"
    monkeypatch.setenv("ANABRANCH_PROFILE", "two")
    assert current_profile().name == "two"
    assert current_profile("one").name == "one"


def test_no_choice_says_how_to_choose(config: Path) -> None:
    assert load_profiles() == {}
    assert find_profile() is None
    with pytest.raises(LocalError, match="no network is chosen: start one with `anabranch up`"):
        current_profile()
    save_profile(Profile("local", ADDRESS, config.parent / "key"), make_current=False)
    with pytest.raises(LocalError, match="choose one of local with `anabranch profile use NAME`"):
        current_profile()


def test_a_profile_that_is_not_there_is_named_beside_those_that_are(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LocalError, match=r"there is no profile 'moon'.*make one with"):
        current_profile("moon")
    for name in ("one", "two"):
        save_profile(Profile(name, ADDRESS, config.parent / "key"))
    monkeypatch.setenv("ANABRANCH_PROFILE", "moon")
    with pytest.raises(LocalError, match=r"there is no profile 'moon'.*choose one of one, two"):
        find_profile()


def test_keys_are_found_from_the_files_own_folder(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    entry = f'address = "{ADDRESS}"\n'
    write(
        config,
        f'[profiles.a]\n{entry}key = "../x.key"\n[profiles.b]\n{entry}'
        f'[profiles.c]\n{entry}key = "~/c.key"\n',
    )
    files = {name: profile.key_file for name, profile in load_profiles().items()}
    assert files["a"].resolve() == tmp_path / "x.key"
    assert files["b"] == default_key_file() == config.parent / "keys" / "default.key"
    assert files["c"] == tmp_path / "me" / "c.key"


def test_a_profiles_key_is_made_once(config: Path) -> None:
    profile = Profile("local", ADDRESS, config.parent / "keys" / "local.key")
    identity = profile_identity(profile)
    assert profile_identity(profile).node == load_key(profile.key_file).node == identity.node


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("current = 'local'\n\n[profiles\n", "at line 3"),
        ("current = 3", r"Expected `str \| null`, got `int` - at `\$.current`"),
        ("profiles = 3", r"\$.profiles"),
        ("[profiles.local]\naddress = 3", r"\$.profiles\[...\].address"),
        ("[profiles.local]\nkey = 'x'", "missing required field `address`"),
        ("current = 'caf\udce9'", "invalid continuation byte"),
    ],
)
def test_a_bad_file_is_named_and_left_alone(config: Path, text: str, complaint: str) -> None:
    write(config, "")
    config.write_bytes(text.encode(errors="surrogateescape"))
    before = config.read_bytes()
    for act in (
        load_profiles,
        current_profile,
        lambda: save_profile(Profile("local", ADDRESS, config.parent / "key")),
    ):
        with pytest.raises(LocalError, match=complaint) as caught:
            act()
        assert str(config) in str(caught.value)
    assert config.read_bytes() == before


def test_a_bad_profile_is_named_and_does_not_harm_the_others(config: Path) -> None:
    write(
        config,
        f'current = "good"\n[profiles.bad]\naddress = "nowhere"\n'
        f'[profiles.good]\naddress = "{ADDRESS}"\n',
    )
    assert current_profile().address == ADDRESS
    with pytest.raises(LocalError, match=r"config.toml, profile 'bad': 'nowhere' is not"):
        current_profile("bad")
    save_profile(Profile("new", OTHER, config.parent / "key"))
    assert current_profile().name == "new"


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "a/b", "x" * 65, "é"])
def test_a_name_that_nobody_could_type_is_refused(name: str) -> None:
    with pytest.raises(LocalError, match="cannot name a profile"):
        Profile(name, ADDRESS, Path("key"))


def test_a_file_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path))
    with pytest.raises(LocalError, match=r"cannot be read .*set ANABRANCH_CONFIG"):
        load_profiles()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "file" / "config.toml"))
    with pytest.raises(LocalError, match=r"cannot be written .*set ANABRANCH_CONFIG"):
        save_profile(Profile("local", ADDRESS, tmp_path / "key"))


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_processes_that_save_at_once_lose_nothing(config: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", SAVE, name]) for name in ("a", "b", "c")]
    assert [writer.wait(limit(60)) for writer in writers] == [0, 0, 0]
    wanted = {f"{writer}-{number}" for writer in "abc" for number in range(10)}
    assert set(load_profiles()) == wanted
    assert current_profile().name in {"a-9", "b-9", "c-9"}
