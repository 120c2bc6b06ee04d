"""`anabranch key` as a person or a script meets it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli import app
from anabranch.core.ids import show
from anabranch.live.address import parse_address
from anabranch.live.keys import load_key
from anabranch.live.profiles import Profile, default_key_file, save_profile

ADDRESS = parse_address("anabranch://" + "ab" * 32 + "@127.0.0.1:7700")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return tmp_path


def answer(*arguments: str) -> dict[str, str]:
    result = CliRunner().invoke(app, ["key", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return dict(json.loads(result.stdout))


def test_a_key_is_made_and_shown_by_its_address(folder: Path) -> None:
    file = folder / "mine.key"
    made = answer("new", "--out", str(file))
    assert made == {"address": show(load_key(file).node), "file": str(file)}
    assert answer("show", "--file", str(file)) == made


def test_without_a_profile_it_is_the_default_key() -> None:
    made = answer("new")
    assert made["file"] == str(default_key_file())
    assert answer("show") == made


def test_with_a_profile_it_is_the_profiles_key(folder: Path) -> None:
    for name in ("one", "two"):
        save_profile(Profile(name, ADDRESS, folder / f"{name}.key"))
    two = answer("new")
    assert two["file"] == str(folder / "two.key")
    one = answer("new", "--out", str(folder / "one.key"))
    assert answer("show") == two
    assert answer("show", "--profile", "one") == one


def test_a_person_reads_address_and_file_and_never_the_secret(folder: Path) -> None:
    file = folder / "mine.key"
    for arguments in (["new", "--out", str(file)], ["show", "--file", str(file)]):
        result = CliRunner().invoke(app, ["key", *arguments])
        assert result.exit_code == 0, result.output
        address = show(load_key(file).node)
        assert result.stdout == f"address  {address}\nfile     {file}\n"
        assert file.read_text().strip() not in result.output


def test_a_key_is_lost_only_by_force(folder: Path) -> None:
    file = folder / "mine.key"
    first = answer("new", "--out", str(file))
    refused = CliRunner().invoke(app, ["key", "new", "--out", str(file)])
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert answer("show", "--file", str(file)) == first
    second = answer("new", "--out", str(file), "--force")
    assert second["address"] != first["address"]
    assert answer("show", "--file", str(file)) == second


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["show"], "make one with `anabranch key new --out"),
        (["show", "--profile", "moon"], "there is no profile 'moon'"),
        (["show", "--profile", "moon", "--file", "x"], "leave one of them out"),
        (["new", "--out", "/dev/null/key"], "cannot be written (Not a directory)"),
    ],
)
def test_bad_input_is_answered_in_one_line(arguments: list[str], advice: str) -> None:
    result = CliRunner().invoke(app, ["key", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert advice in result.stderr
    assert len(result.stderr.splitlines()) == 1
