"""Three storage nodes, of which one has its log in a SQLite file that a test damages.

The file is a copy each time, of a node that was stopped in good order, or of one that was killed
and has a write-ahead log. Zeros are written over one place of it: before the node starts, or while
it runs. Then a reader that reaches only this node reads all of the log, a scrub runs to its end,
and the node is linked to the others. It has to say what it lacks, never less, and to have all of it
again in the end; or it refuses to start, and its text says what to do.
"""

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from anabranch.core import frames
from anabranch.core.changes import Right
from anabranch.core.machine import Damaged
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import Selection, Span
from anabranch.core.store import Answer, LogQuery, LogState, LogWrite, StoreError
from anabranch.live.storage.damage import Damage, damage_of
from anabranch.live.storage.rebuilding import aside
from anabranch.live.storage.scrub import Scrub
from anabranch.live.storage.sqlite import SqliteLogStore, Written
from machines import PART
from storage_desk import READER
from storage_world import Keeper, StorageWorld

SIZE = 3
FRAMES = 200
LARGE = 12_000  # bytes of a frame that needs overflow pages
NAME, WAL = "logs.sqlite", "logs.sqlite-wal"
REPAIR_S = 120.0  # of the world's time
WAL_HEADER_BYTES, WAL_FRAME_BYTES = 32, 24
PAGE_BYTES, SECTOR_BYTES = 4_096, 512
BY_NUMBER = Selection(by_number=True)

Rows = list[tuple[int, bytes]]  # offsets and frames


class FileStore:
    """A store on a disk, as the world uses one."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteLogStore(path, checkpoint_pages=1 << 30)

    def write(self, writes: Sequence[LogWrite]) -> Written:
        [written] = self.store.write([writes])
        return written

    def find(self, query: LogQuery) -> Answer:
        return self.store.find(query)

    def states(self) -> list[LogState]:
        return self.store.states()


class DamagedCluster(StorageWorld):
    """Storage nodes with equal logs; the first one has a file."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        super().__init__(SIZE, seed)
        self.folder = folder
        self.seen: Counter[str] = Counter()
        self.ticket = 0
        self.registry.let(READER, Right.SUBSCRIBE)
        self.stored = self._open(folder / "whole")
        self.start(*range(SIZE))
        self.run(10)
        self._fill()
        self.killed = shutil.copytree(folder / "whole", folder / "killed")
        self.stop(0)
        self.stored.close()
        self.whole = folder / "whole"
        self.good = self.log(1)
        self.state_before = self.state(1)
        assert self._are_equal(1, 2)

    def _open(self, folder: Path) -> SqliteLogStore:
        folder.mkdir(parents=True, exist_ok=True)
        disk = FileStore(folder / NAME)
        self.keepers[0].store = disk  # type: ignore[assignment]
        return disk.store

    def _fill(self) -> None:
        """Publish small frames and some large ones; some pages are left unused in the end."""
        rng = Random(5)
        for at in range(FRAMES):
            chain = rng.choice(self.chains)
            size = LARGE if at % 25 == 24 else rng.randrange(100, 900)
            contents = [rng.randbytes(size) for _ in range(rng.choice((1, 1, 3)))]
            frame = chain.frame(*contents, at=self.now)
            for place in range(SIZE):
                self.after((0.0, 0.2), lambda p=place, f=frame: self._take(p, f))  # type: ignore[misc]
            self.run(0.3)
        self.run(20)
        assert [self.status(place).high for place in range(SIZE)] == [self.high] * SIZE

    def _check(self, keeper: Keeper) -> None:
        """A hash in a hole is not known."""
        if keeper.place or not self.stored.missing():
            super()._check(keeper)

    # --- Places of the file ---------------------------------------------------------------

    def places(self, size: int) -> Sequence[int]:
        """Return where each page, or each sector, of the file begins."""
        return range(0, (self.whole / NAME).stat().st_size, size)

    def wal_places(self) -> Sequence[int]:
        """Return where each page of the write-ahead log of the killed node begins."""
        step = WAL_FRAME_BYTES + PAGE_BYTES
        size = (self.killed / WAL).stat().st_size
        return range(WAL_HEADER_BYTES + WAL_FRAME_BYTES, size, step)

    def newest_wal_places(self) -> Sequence[int]:
        """Return where the newest version of each page begins in the write-ahead log."""
        content = (self.killed / WAL).read_bytes()
        newest = {content[at - WAL_FRAME_BYTES :][:4]: at for at in self.wal_places()}
        return sorted(newest.values())

    # --- One damage -----------------------------------------------------------------------

    def damage_before_start(self, size: int, *places: int) -> None:
        """Start the node with a damaged file, let it be read, and see it whole again."""
        folder = self._copy(self.whole)
        for at in places:
            zero(folder / NAME, at, size)
        try:
            self.stored = self._open(folder)
        except StoreError as error:
            assert "move the file away and start the node again" in str(error)  # noqa: PT017
            assert str(folder) in str(error)  # noqa: PT017
            self.seen["refused"] += 1
            return
        self._start_alone()
        self._read_and_mend(folder, places)

    def damage_while_running(self, size: int, *places: int, is_killed: bool = False) -> None:
        """Damage the file of a node that runs, let it be read, and see it whole again."""
        folder = self._copy(self.killed if is_killed else self.whole)
        self.stored = self._open(folder)
        self._start_alone()
        self.read(Selection(start=self.high // 2, end=self.high // 2 + 9))
        under_way = [(each, self._page(each)) for each in (Selection(), BY_NUMBER)]
        for at in places:
            zero(folder / (WAL if is_killed else NAME), at, size)
        for selection, page in under_way:
            assert page.following is not None, "there is more than one page"
            self._check_rows(selection, *self.read(page.following, page), places)
        self._read_and_mend(folder, places)

    def damage_wal(self, size: int, at: int) -> None:
        """Damage the write-ahead log of a node that was killed, and see it whole again.

        SQLite drops all commits from there on: the log is shorter, and is copied from the others.
        """
        folder = self._copy(self.killed)
        zero(folder / WAL, at, size)
        self.stored = self._open(folder)
        self.seen["shorter"] += self.state(0).length < self.high
        self.part_into(range(SIZE))
        self.start(0)
        self._mend(folder, (at,))

    def _copy(self, source: Path) -> Path:
        folder = self.folder / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        (folder / f"{NAME}-shm").unlink(missing_ok=True)
        return folder

    def _start_alone(self) -> None:
        self.part_into((0,), range(1, SIZE))
        self.start(0)
        self.run(1)

    def _read_and_mend(self, folder: Path, at: Sequence[int]) -> None:
        self._check_reading(at)
        Scrub(self.stored, folder).run_once()
        missing = self.stored.missing().get(PART, ())
        shown = damage_of(self.stored, {}, {})
        assert bool(shown.problem) == bool(missing), at
        assert shown.messages == sum(hole.end - hole.start for hole in missing)
        self.seen["damaged" if missing else "whole"] += 1
        self._check_reading(at)
        self.part_into(range(SIZE))
        if missing:
            self.do(self.keepers[0], lambda m: m.tell(Damaged(PART), self.now))
        self._mend(folder, at)

    def _mend(self, folder: Path, at: Sequence[int]) -> None:
        """Let the others repair it, and see that all is as it was."""
        until = self.now + REPAIR_S
        while self.now < until and not self._is_mended():
            self.run(1)
        assert self._is_mended(), (at, self.stored.missing(), self.state(0), self.state_before)
        self.run(5)
        Scrub(self.stored, folder).run_once()
        assert damage_of(self.stored, {}, {}) == Damage(), at
        assert self.stored.scrub_structure() == "", at
        assert self.log(0) == self.log(1) == self.log(2) == self.good, at
        assert self._are_equal(1, 2)
        assert not aside(self.stored.path).exists()
        self._check_reading(at)
        self.stop(0)
        self.stored.close()

    def _are_equal(self, one: int, other: int) -> bool:
        """Tell whether two logs are the same; the order of the marks that they hold may differ."""
        states = [msgspec.structs.replace(self.state(place), marks=()) for place in (one, other)]
        return states[0] == states[1]

    def _is_mended(self) -> bool:
        state = self.state(0)
        is_long = (state.length, state.hash) == (self.state_before.length, self.state_before.hash)
        is_settled = state.high == self.state_before.high and not state.held
        return is_long and is_settled and not self.stored.missing()

    # --- Reading --------------------------------------------------------------------------

    def read(self, selection: Selection, begun: Resent | None = None) -> tuple[Rows, list[Span]]:
        """Read from the first node over the network, and return what its pages name as missing."""
        rows: Rows = []
        missing: list[Span] = []
        if begun is not None:
            rows, missing = _rows(begun), list(begun.missing)
        following: Selection | None = selection
        for _ in range(1_000):
            if following is None:
                return rows, missing
            answer = self._page(following)
            if answer.problem:  # it is being rebuilt, or has not caught up: another node is asked
                return rows, [*missing, Span(0, self.high)]
            rows += _rows(answer)
            missing += answer.missing
            following = answer.following
        raise AssertionError("the history has no end")

    def _page(self, selection: Selection) -> Resent:
        self.ticket += 1
        self.others.clear()
        self.hear(0, READER, Resend(self.ticket, PART, selection))
        until = self.now + 5
        while self.now < until:
            for _, to, message in self.others:
                if to == READER and isinstance(message, Resent):
                    assert message.ticket == self.ticket
                    return message
            self.run(0.05)
        raise AssertionError("no answer")

    def _check_reading(self, at: Sequence[int]) -> None:
        """Read in all ways: what does not come is named as missing."""
        middle = self.good[len(self.good) // 2][0]
        cuts = [Selection(), Selection(start=middle - 20, end=middle + 20), Selection(last=30)]
        numbers = [frames.peek(frame).last for _, frame in self.good]
        some = Selection(after=numbers[40], upto=numbers[90], by_number=True)
        cuts += [BY_NUMBER, Selection(last=30, by_number=True), some]
        for selection in cuts:
            self._check_rows(selection, *self.read(selection), at)

    def _check_rows(
        self, selection: Selection, rows: Rows, missing: Sequence[Span], at: Sequence[int]
    ) -> None:
        lost = {offset for span in missing for offset in range(span.start, span.end)}
        assert len({offset for offset, _ in rows}) == len(rows), at
        for row in self._wanted(selection):
            end = min(row[0] + frames.peek(row[1]).count, selection.end)
            its = set(range(max(row[0], selection.start), end))
            assert row in rows or its <= lost, (at, selection, row[0])
        assert all(row in self.good for row in rows), at

    def _wanted(self, selection: Selection) -> Rows:
        wanted = []
        for offset, frame in self.good:
            head = frames.peek(frame)
            is_in = selection.start < offset + head.count and offset < selection.end
            is_in &= selection.after < head.last and head.first <= selection.upto
            if selection.last:
                is_in &= offset + head.count > self.high - selection.last // 2
            if is_in:
                wanted.append((offset, frame))
        return wanted


def _rows(page: Resent) -> Rows:
    return list(zip(page.offsets, page.frames, strict=True))


def zero(path: Path, at: int, size: int) -> None:
    """Write zeros over a place of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size))
