"""The options that say which network is meant, and with which key."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from anabranch.cli.options import Address, AsJson, KeyFile, Profile, WithParent, network_of
from anabranch.core.errors import LocalError
from anabranch.core.ids import show
from anabranch.live import profiles
from anabranch.live.address import parse_address
from anabranch.live.keys import load_or_make_key
from anabranch.live.profiles import default_key_file, save_profile

HOME = "anabranch://" + "ab" * 32 + "@127.0.0.1:7700"
AWAY = "anabranch://" + "cd" * 32 + "@127.0.0.1:7800"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANABRANCH_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.delenv("ANABRANCH_PROFILE", raising=False)
    return tmp_path


def key(file: Path) -> str:
    """Make a key; return its address."""
    return show(load_or_make_key(file).node)


def profile(folder: Path, name: str, address: str = HOME) -> str:
    """Save a profile and make it current; return the address of its key."""
    file = folder / f"{name}.key"
    save_profile(profiles.Profile(name, parse_address(address), file))
    return key(file)


def chosen(
    name: str | None = None, address: str | None = None, key_file: Path | None = None
) -> tuple[str, str]:
    network = network_of(name, address, key_file)
    return network.address, network.me


def test_without_options_it_is_the_current_profile(folder: Path) -> None:
    profile(folder, "one")
    me = profile(folder, "two", AWAY)
    assert chosen() == (AWAY, me)


def test_a_profile_is_named(folder: Path) -> None:
    me = profile(folder, "one")
    profile(folder, "two", AWAY)
    assert chosen("one") == (HOME, me)
    with pytest.raises(LocalError, match="there is no profile 'moon'"):
        chosen("moon")


def test_a_key_is_given_with_a_profile_or_an_address(folder: Path) -> None:
    profile(folder, "one")
    mine = key(folder / "mine.key")
    assert chosen("one", None, folder / "mine.key") == (HOME, mine)
    assert chosen(None, AWAY, folder / "mine.key") == (AWAY, mine)


def test_an_address_is_used_with_the_key_of_a_profile(folder: Path) -> None:
    one, two = profile(folder, "one"), profile(folder, "two")
    assert chosen(None, AWAY) == (AWAY, two)
    assert chosen("one", AWAY) == (AWAY, one)


def test_an_address_without_any_profile_is_used_with_the_default_key() -> None:
    me = key(default_key_file())
    assert chosen(None, AWAY) == (AWAY, me)


def test_without_any_key_the_error_says_how_to_make_one() -> None:
    with pytest.raises(LocalError, match="make one with `anabranch key new"):
        chosen(None, AWAY)


def test_without_any_network_the_error_says_what_to_do() -> None:
    with pytest.raises(LocalError, match="start one with `anabranch up`"):
        chosen()


def test_an_address_that_is_none_is_refused(folder: Path) -> None:
    profile(folder, "one")
    with pytest.raises(LocalError):
        chosen(None, "moon")


def test_what_else_a_connection_needs_is_passed_on(folder: Path) -> None:
    profile(folder, "one")
    for address in (None, HOME):
        with pytest.raises(LocalError, match="no place to listen"):
            network_of(None, address, None, listen="nowhere")


def test_the_options_are_called_as_every_command_calls_them() -> None:
    app = typer.Typer()

    @app.command()
    def show_options(
        profile: Profile = None,
        address: Address = None,
        key: KeyFile = None,
        as_json: AsJson = False,
        with_parent: WithParent = False,
    ) -> None:
        typer.echo(f"{profile} {address} {key} {as_json} {with_parent}")

    given = ["--profile", "p", "--address", "a", "--key", "k", "--json", "--with-parent"]
    assert CliRunner().invoke(app, given).output == "p a k True True\n"
    assert CliRunner().invoke(app, []).output == "None None None False False\n"
    assert "--with-parent" not in CliRunner().invoke(app, ["--help"]).output
