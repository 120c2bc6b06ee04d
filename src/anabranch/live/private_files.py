"""Files for their owner's eyes only, that are there whole or not at all."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700


def write_private(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a file that survives a crash from here on; FileExistsError unless it may go."""
    path = path.resolve()  # what a symbolic link points to is written, not the link
    make_private_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)  # made with PRIVATE_FILE permissions
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if overwrite:
            draft.replace(path)
        else:
            path.hardlink_to(draft)  # unlike a rename, this never takes another file's place
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def make_private_folder(folder: Path) -> None:
    """Make a folder and those above it; folders that are there keep their permissions."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(PRIVATE_FOLDER, exist_ok=True)
        _sync_folder(path.parent)


@contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file between our reading and our writing it.

    The lock ends with the process that holds it, however that ends. Windows has no such lock:
    there the file stays whole, and the last of several writers wins.
    """
    path = path.resolve()
    make_private_folder(path.parent)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
    try:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    """Make a new name as durable as what it names."""
    if sys.platform == "win32":
        return  # folders cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
