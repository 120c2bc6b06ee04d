"""The scrub: reads everything that is kept, so that damage is found before a reader meets it.

All rows are read first, a few at a time, and held against their checksums. Then SQLite checks every
page of the file, and each index against its table. That is spread over some days. It goes on where
it was when the node was started again; `anabranch storage scrub` asks for one at once, by a file
in the node's folder.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from anabranch.core.store import StoreError
from anabranch.live.storage.damage import SCRUB_DAYS
from anabranch.live.storage.sqlite import SqliteLogStore

STEP_ROWS = 1_000
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 30.0  # between two steps
LOOK_EVERY_S = 0.5  # for a request
DAY_S = 86_400.0
ROWS_SHARE = 0.9  # of the progress; the rest is the check of the pages

STATE, REQUEST = "scrub.json", "scrub-request"


class ScrubState(msgspec.Struct):
    """How far the scrub is."""

    started_s: float = 0.0  # 0: none was begun yet
    finished_s: float = 0.0  # when one has last come to its end
    after: int = 0  # up to this row all is read
    rows: int = 0  # that were read
    found: int = 0  # messages that were found damaged by it
    is_running: bool = False
    progress: float = 0.0
    structure: str = ""  # what was wrong with the file itself, when it was last checked


def request_scrub(folder: Path) -> None:
    """Ask the node that runs in a folder for a scrub."""
    (folder / REQUEST).touch()


def read_state(folder: Path) -> ScrubState:
    """Return how far the scrub of a folder is."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=ScrubState)
    except (OSError, msgspec.DecodeError):
        return ScrubState()


class Scrub:
    """Reads through a store, over and over; `days` is how long one time takes, 0: not by itself."""

    def __init__(
        self,
        store: SqliteLogStore,
        folder: Path,
        days: float = SCRUB_DAYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = read_state(folder)
        self.problem = ""  # why it does not get on
        self._store = store
        self._folder = folder
        self._period_s = days * DAY_S
        self._clock = clock
        self._is_urgent = False
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, on a thread."""
        self._thread = threading.Thread(target=self._run, name="log-scrub", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; the next start goes on from here."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        self._save()

    def shown(self) -> dict[str, Any]:
        """Return how far it is, for a page."""
        state = self.state
        return {
            "running": state.is_running,
            "progress": round(state.progress, 4),
            "rows": state.rows,
            "found": state.found,
            "started_s": state.started_s or None,
            "finished_s": state.finished_s or None,
            "structure": state.structure,
            "problem": self.problem,
        }

    def run_once(self, say: Callable[[ScrubState], None] = lambda state: None) -> None:
        """Read through all of it now."""
        self._begin()
        while self.state.is_running:
            self.step()
            say(self.state)

    def step(self) -> None:
        """Read some rows; after the last of them check the pages of the file."""
        state, before = self.state, self._damaged()
        after, count = self._store.scrub_rows(state.after, STEP_ROWS)
        state.rows += count
        state.found += max(0, self._damaged() - before)
        if count:
            state.after = after
            newest = max(self._store.newest_row, after, 1)
            state.progress = ROWS_SHARE * min(1.0, after / newest)
            return
        before = self._damaged()
        state.structure = self._store.scrub_structure()
        state.found += max(0, self._damaged() - before)
        state.is_running, state.progress, state.finished_s = False, 1.0, self._clock()
        self._save()

    def _damaged(self) -> int:
        holes = self._store.missing().values()
        return sum(hole.end - hole.start for each in holes for hole in each)

    # --- On the thread --------------------------------------------------------------------

    def _run(self) -> None:
        saved_s = self._clock()
        while not self._ends.is_set():
            request = self._folder / REQUEST
            if request.exists():
                request.unlink(missing_ok=True)
                self._is_urgent = True
                self._begin()
            if not self.state.is_running and self._is_due():
                self._begin()
            if not self.state.is_running:
                self._is_urgent = False
                self._ends.wait(LOOK_EVERY_S)
                continue
            try:
                self.step()
                self.problem = ""
            except StoreError as error:  # it goes on there when the disk does
                self.problem = str(error)
                self._ends.wait(MAX_PAUSE_S)
            if self._clock() > saved_s + LOOK_EVERY_S:
                saved_s = self._clock()
                self._save()
            self._pause()

    def _is_due(self) -> bool:
        started_s = self.state.started_s
        is_over = not started_s or self._clock() >= started_s + self._period_s
        return bool(self._period_s) and is_over

    def _begin(self) -> None:
        finished_s = self.state.finished_s
        self.state = ScrubState(self._clock(), finished_s, is_running=True)
        self._save()

    def _pause(self) -> None:
        """Wait so long that all is read when the time is over; not if the scrub was asked for."""
        if self._is_urgent or not self.state.is_running:
            return
        left_s = self.state.started_s + self._period_s * ROWS_SHARE - self._clock()
        steps = max(1.0, (self._store.newest_row - self.state.after) / STEP_ROWS)
        pause_s = min(max(left_s / steps, MIN_PAUSE_S), MAX_PAUSE_S)
        until = time.monotonic() + pause_s
        while time.monotonic() < until and not self._ends.wait(LOOK_EVERY_S):
            if (self._folder / REQUEST).exists():
                return

    def _save(self) -> None:
        path = self._folder / STATE
        written = path.with_name(f"{STATE}-new")
        written.write_bytes(msgspec.json.encode(self.state))
        written.replace(path)
