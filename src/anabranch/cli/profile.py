"""`anabranch profile`: the networks you have a name for, and which of them is meant."""

from pathlib import Path
from typing import Annotated, Any

import typer

from anabranch.cli.console import handled, print_json, say
from anabranch.cli.options import AsJson
from anabranch.live.address import parse_address
from anabranch.live.profiles import (
    Profile,
    current_profile,
    default_key_file,
    find_profile,
    load_profiles,
    save_profile,
)

app = typer.Typer(no_args_is_help=True, help="Name networks, and choose one.")

Name = Annotated[str, typer.Argument(help="The profile's name.")]


@app.command("list")
@handled()
def list_profiles(as_json: AsJson = False) -> None:
    """List the profiles; the current one has a star."""
    profiles = load_profiles()
    current = find_profile() if profiles else None
    for profile in profiles.values():
        chosen = current is not None and profile.name == current.name
        if as_json:
            print_json({**_row(profile), "current": chosen})
        else:
            typer.echo(f"{'*' if chosen else ' '} {profile.name}  {profile.address}")
    if not profiles and not as_json:
        typer.echo("no profiles yet: anabranch up, or anabranch profile add NAME ADDRESS", err=True)


@app.command()
@handled()
def use(name: Name, as_json: AsJson = False) -> None:
    """Choose the profile that commands and `connect()` use from now on."""
    profile = current_profile(name)
    save_profile(profile)
    say(_row(profile), as_json)


@app.command()
@handled()
def add(
    name: Name,
    address: Annotated[str, typer.Argument(help="anabranch://GENESIS@host:port.")],
    key: Annotated[
        Path | None, typer.Option(help="Your key in it; by default the one you have already.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Name a network, or change what a name means, and choose it."""
    key_file = default_key_file() if key is None else key.absolute()
    profile = Profile(name, parse_address(address), key_file)
    save_profile(profile)
    say(_row(profile), as_json)


def _row(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "address": str(profile.address),
        "key": str(profile.key_file),
    }
