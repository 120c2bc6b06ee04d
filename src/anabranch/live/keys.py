"""Keys in files: 64 hexadecimal digits and a newline, readable by nobody but their owner.

No text that leaves this module, error or not, contains a digit of a key.
"""

import os
import re
import secrets
import shlex
import sys
from contextlib import suppress
from pathlib import Path

from anabranch.core.errors import LocalError
from anabranch.core.identity import KEY_BYTES, Identity
from anabranch.live.private_files import PRIVATE_FILE, write_private

MAX_KEY_FILE_BYTES = 1024  # whatever is longer is no key, and is not read
OTHERS = 0o077

_KEY = re.compile(rf"(?:0x)?([0-9a-fA-F]{{{2 * KEY_BYTES}}})")


def new_key() -> tuple[Identity, bytes]:
    """Make a key; return who it signs for, and its secret bytes."""
    secret = secrets.token_bytes(KEY_BYTES)
    return Identity(secret), secret


def parse_key(text: str) -> bytes:
    """Read a key as people write it: 64 hexadecimal digits, with or without 0x."""
    found = _KEY.fullmatch(text.strip())
    if found is None:
        raise LocalError("this is not a key: write 64 hexadecimal digits, with or without 0x")
    secret = bytes.fromhex(found[1])
    Identity(secret)  # refuses the few numbers that are no keys
    return secret


def save_key(path: Path, secret: bytes, *, overwrite: bool = False) -> None:
    """Keep a key in a file; one that is there already stays, unless told otherwise."""
    Identity(secret)  # what cannot be loaded again is not saved
    try:
        _write(path, secret, overwrite)
    except FileExistsError as error:
        raise LocalError(
            f"{path} is there already, and a key that is overwritten is lost: name another file"
        ) from error


def load_key(path: Path) -> Identity:
    """Read a key that `save_key` kept, if nobody else can."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_KEY_FILE_BYTES)
    except FileNotFoundError as error:
        make = f"anabranch key new --out {shlex.quote(str(path))}"
        raise LocalError(f"there is no key in {path}: make one with `{make}`") from error
    except OSError as error:
        raise LocalError(f"{path} cannot be read ({error.strerror}): name another file") from error
    if mode & OTHERS and sys.platform != "win32":
        mend = f"chmod {PRIVATE_FILE:o} {shlex.quote(str(path))}"
        raise LocalError(f"others than you may read or change the key in {path}: run `{mend}`")
    try:
        return Identity(parse_key(content.decode("ascii", "replace")))
    except LocalError as error:
        raise LocalError(f"{path} holds no key: {error}") from error


def load_or_make_key(path: Path) -> Identity:
    """Read the key in a file; make it first if there is none."""
    if not path.exists():
        # Another process may be quicker, and then both of us must use its key.
        with suppress(FileExistsError):
            _write(path, new_key()[1], overwrite=False)
    return load_key(path)


def _write(path: Path, secret: bytes, overwrite: bool) -> None:
    try:
        write_private(path, secret.hex() + "\n", overwrite=overwrite)
    except FileExistsError:
        raise
    except OSError as error:
        raise LocalError(
            f"{path} cannot be written ({error.strerror}): name another file"
        ) from error
