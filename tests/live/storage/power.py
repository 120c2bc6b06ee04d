"""A disk in memory, below SQLite, that keeps only what was synchronised when the power goes.

What was written since then survives in part: each sector of each write does or does not, as it
falls out. A file that was never synchronised may be gone as a whole.
"""

from random import Random
from typing import Any

import apsw

SECTOR_BYTES = 512

Change = tuple[int, bytes | None]  # where bytes were written; or the length to which it was cut


class Content:
    """What a file has: as programs see it, as the disk has it, and the way from there to here."""

    def __init__(self, stored: bytes = b"", is_stored: bool = False) -> None:
        self.seen = bytearray(stored)
        self.stored = bytes(stored)
        self.is_stored = is_stored  # whether the folder knows of it for sure
        self.changes: list[Change] = []

    def change(self, change: Change) -> None:
        self.changes.append(change)
        _apply(self.seen, change)

    def sync(self) -> None:
        self.stored = bytes(self.seen)
        self.is_stored = True
        self.changes.clear()

    def survive(self, rng: Random) -> "Content | None":
        """Return what is left of it after the power went."""
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        if not self.is_stored and rng.random() >= share:
            return None
        left = bytearray(self.stored)
        for at, data in self.changes:
            if data is None:
                if rng.random() < share:
                    _apply(left, (at, None))
                continue
            for sector in _sectors(at, data):
                if rng.random() < share:
                    _apply(left, sector)
        return Content(bytes(left), True)


def _sectors(at: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces, end = [], at + len(data)
    start = at
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        pieces.append((start, data[start - at : stop - at]))
        start = stop
    return pieces


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    at, data = change
    if data is None:
        del content[at:]
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


class PowerVfs(apsw.VFS):
    """A file layer whose power can be cut after so many writes, or whose room can end."""

    def __init__(self, name: str, rng: Random, syncs: bool = True) -> None:
        self.name = name
        self.rng = rng
        self.syncs = syncs  # False: it says that it has synchronised, and has not
        self.files: dict[str, Content] = {}
        self.deleted: dict[
            str, Content
        ] = {}  # which may be there again, until the folder is synced
        self.left = -1  # changes until the power goes; negative: it stays
        self.is_off = False
        self.room_bytes: int | None = None  # of all files together
        super().__init__(name, base="")

    def cut_after(self, changes: int) -> None:
        """Let the power go after so many more writes and syncs."""
        self.left = changes

    def restart(self) -> None:
        """Come back, with what is left."""
        again = {name: file for name, file in self.deleted.items() if self.rng.random() < 0.5}
        left = {name: file.survive(self.rng) for name, file in (again | self.files).items()}
        self.deleted = {}
        self.files = {name: content for name, content in left.items() if content is not None}
        self.is_off, self.left = False, -1

    def spend(self) -> None:
        """Count a change; the power may go before it."""
        if self.left == 0:
            self.is_off = True
        if self.is_off:
            raise apsw.IOError("the power is off")
        self.left -= 1

    def check_room(self, more: int) -> None:
        """Refuse to grow beyond the room there is."""
        used = sum(len(content.seen) for content in self.files.values())
        if self.room_bytes is not None and more > 0 and used + more > self.room_bytes:
            raise apsw.FullError("no room")

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802 (SQLite's names)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return PowerFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        if self.is_off:
            return
        content = self.files.pop(filename, None)
        if content is not None:
            self.deleted[filename] = content
        if syncdir:
            self.deleted.clear()

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: N802
        return pathname in self.files


class PowerFile(apsw.VFSFile):
    """A file of it. Locks and shared memory are those of a real, empty file of the same name."""

    def __init__(self, vfs: PowerVfs, path: str, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self.vfs = vfs
        if path not in vfs.files:
            vfs.files[path] = Content()
        self.content = vfs.files[path]

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.vfs.is_off:
            raise apsw.IOError("the power is off")
        return bytes(self.content.seen[offset : offset + amount])

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self.vfs.check_room(offset + len(data) - len(self.content.seen))
        self.vfs.spend()
        self.content.change((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self.vfs.spend()
        self.content.change((newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.vfs.spend()
        if self.vfs.syncs:
            if not self.content.is_stored:  # then SQLite synchronises the folder too
                self.vfs.deleted.clear()
            self.content.sync()

    def xFileSize(self) -> int:  # noqa: N802
        return len(self.content.seen)

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR_BYTES
