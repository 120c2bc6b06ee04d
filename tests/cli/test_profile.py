"""`anabranch profile`: naming networks and choosing one."""

from pathlib import Path

import pytest

from cli.commands import answer, answers, refusal, shown

ADDRESS = f"anabranch://{'ab' * 32}@127.0.0.1:7700"
OTHER = f"anabranch://{'cd' * 32}@[::1]:7702"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the profiles be in a folder of this test's own."""
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)


def test_networks_get_names_and_one_is_current(tmp_path: Path) -> None:
    assert answers("profile", "list") == []
    added = answer("profile", "add", "home", ADDRESS, "--key", str(tmp_path / "my.key"))
    assert added == {"name": "home", "address": ADDRESS, "key": str(tmp_path / "my.key")}
    default = answer("profile", "add", "work", OTHER)["key"]
    assert default == str(tmp_path / "keys" / "default.key")
    assert [(row["name"], row["current"]) for row in answers("profile", "list")] == [
        ("home", False),
        ("work", True),
    ]
    assert answer("profile", "use", "home") == added
    assert shown("profile", "list").splitlines() == [f"* home  {ADDRESS}", f"  work  {OTHER}"]


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    answer("profile", "add", "home", ADDRESS)
    answer("profile", "add", "work", OTHER)
    monkeypatch.setenv("ANABRANCH_PROFILE", "home")
    assert [row["name"] for row in answers("profile", "list") if row["current"]] == ["home"]


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("use", "nowhere"), "make one with `anabranch up`"),
        (("add", "home", "127.0.0.1:7700"), "anabranch://"),
        (("add", "my home", ADDRESS), "cannot name a profile"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], advice: str) -> None:
    assert advice in refusal("profile", *arguments)
