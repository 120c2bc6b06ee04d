"""Networks by name: one TOML file says where each is and which key is ours there.

    current = "local"

    [profiles.local]
    address = "anabranch://GENESIS@127.0.0.1:7700"
    key = "keys/local.key"      # as seen from the file's own folder

What else stands in the file is kept when a profile is saved, except comments.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from anabranch.core.errors import LocalError
from anabranch.core.identity import Identity
from anabranch.live.address import NetworkAddress, parse_address
from anabranch.live.keys import load_or_make_key
from anabranch.live.private_files import one_writer, write_private

CONFIG_VARIABLE = "ANABRANCH_CONFIG"
PROFILE_VARIABLE = "ANABRANCH_PROFILE"
DEFAULT_KEY = Path("keys", "default.key")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Profile(msgspec.Struct, frozen=True):
    """A network that has a name here, and the file of the key that is ours in it."""

    name: str
    address: NetworkAddress
    key_file: Path

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LocalError(
                f"{self.name!r} cannot name a profile: write up to 64 letters, digits, _, - and ."
            )


class _Entry(msgspec.Struct):
    address: str
    key: str | None = None


class _Content(msgspec.Struct):
    current: str | None = None
    profiles: dict[str, _Entry] = {}


def config_path() -> Path:
    """Return the file of the profiles, which need not be there."""
    chosen = os.environ.get(CONFIG_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if Path(base).is_absolute():  # as its specification says, a relative one does not count
        return Path(base, "anabranch", "config.toml")
    try:
        return Path.home() / ".config" / "anabranch" / "config.toml"
    except RuntimeError as error:
        raise LocalError(f"you have no home folder: set {CONFIG_VARIABLE} to a file") from error


def default_key_file() -> Path:
    """Return the file of the key of those who have no profile, or one that names no key."""
    return config_path().parent / DEFAULT_KEY


def load_profiles() -> dict[str, Profile]:
    """Read every profile."""
    path = config_path()
    content = _read(path)[1]
    return {name: _profile(path, name, entry) for name, entry in content.profiles.items()}


def find_profile(name: str | None = None) -> Profile | None:
    """Return the profile of this name, or else the current one; None if none is chosen."""
    path = config_path()
    content = _read(path)[1]
    name = name or os.environ.get(PROFILE_VARIABLE) or content.current
    if not name:
        return None
    if name not in content.profiles:
        known = ", ".join(content.profiles)
        advice = f"choose one of {known}" if known else "make one with `anabranch up`"
        raise LocalError(f"there is no profile {name!r} in {path}: {advice}")
    return _profile(path, name, content.profiles[name])


def current_profile(name: str | None = None) -> Profile:
    """Return the profile of this name, or else the current one."""
    profile = find_profile(name)
    if profile is None:
        known = ", ".join(_read(config_path())[1].profiles)
        advice = (
            f"choose one of {known} with `anabranch profile use NAME`"
            if known
            else "start one with `anabranch up`, or name one that runs elsewhere with "
            "`anabranch profile add NAME ADDRESS`"
        )
        raise LocalError(f"no network is chosen: {advice}")
    return profile


def save_profile(profile: Profile, *, make_current: bool = True) -> None:
    """Add a profile to the file, or change the one of the same name."""
    path = config_path()
    try:
        with one_writer(path):
            document, _ = _read(path)
            entry = document.setdefault("profiles", {}).setdefault(profile.name, {})
            entry["address"] = str(profile.address)
            entry["key"] = _seen_from(path.parent, profile.key_file)
            if make_current:
                document["current"] = profile.name
            write_private(path, tomli_w.dumps(document), overwrite=True)
    except OSError as error:
        raise LocalError(
            f"{path} cannot be written ({error.strerror}): set {CONFIG_VARIABLE} to another file"
        ) from error


def profile_identity(profile: Profile) -> Identity:
    """Load the profile's key, or make it where there is none."""
    return load_or_make_key(profile.key_file)


def _read(path: Path) -> tuple[dict[str, Any], _Content]:
    """Return all that the file says, and the part of it that is ours."""
    try:
        document = tomllib.loads(path.read_bytes().decode())
        return document, msgspec.convert(document, _Content)
    except FileNotFoundError:
        return {}, _Content()
    except OSError as error:
        raise LocalError(
            f"{path} cannot be read ({error.strerror}): set {CONFIG_VARIABLE} to another file"
        ) from error
    except ValueError as error:  # not UTF-8, not TOML, or not what we expect in it
        raise LocalError(f"{path} is wrong: {error}; mend it or move it away") from error


def _profile(path: Path, name: str, entry: _Entry) -> Profile:
    key_file = path.parent / (os.path.expanduser(entry.key) if entry.key else DEFAULT_KEY)
    try:
        return Profile(name, parse_address(entry.address), key_file)
    except LocalError as error:
        raise LocalError(f"{path}, profile {name!r}: {error}") from error


def _seen_from(folder: Path, key_file: Path) -> str:
    """Write a path so that the folder may move with the keys that lie in it."""
    folder, key_file = folder.absolute(), key_file.absolute()
    if key_file.is_relative_to(folder):
        return key_file.relative_to(folder).as_posix()
    return str(key_file)
