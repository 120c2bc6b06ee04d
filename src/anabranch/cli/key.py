"""`anabranch key`: the key that signs what you publish, of which only the address is shown."""

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.console import fail, handled, say
from anabranch.core.identity import Identity
from anabranch.core.ids import show as show_address
from anabranch.live.keys import load_key, new_key, save_key
from anabranch.live.profiles import default_key_file, find_profile

app = typer.Typer(no_args_is_help=True, help="Make a key, and show its address.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.command()
@handled()
def new(
    out: Annotated[
        Path | None, typer.Option(help="A file; by default that of the current profile.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a key, which is then lost for ever.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key and keep it in a file."""
    file = out or _key_file(None)
    if file.exists() and not force:
        fail(f"{file} is there already: name another with --out, or lose it with --force")
    identity, secret = new_key()
    save_key(file, secret, overwrite=force)
    _answer(identity, file, as_json)


@app.command()
@handled()
def show(
    file: Annotated[
        Path | None, typer.Option(help="A file; by default that of the current profile.")
    ] = None,
    profile: Annotated[str | None, typer.Option(help="The profile whose key it is.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the address of a key."""
    if file is not None and profile is not None:
        fail("--file and --profile both name a key: leave one of them out")
    file = file or _key_file(profile)
    _answer(load_key(file), file, as_json)


def _key_file(profile: str | None) -> Path:
    found = find_profile(profile)
    return default_key_file() if found is None else found.key_file


def _answer(identity: Identity, file: Path, as_json: bool) -> None:
    say({"address": show_address(identity.node), "file": str(file)}, as_json)
