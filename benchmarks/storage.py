"""What the store of a storage node does in a second, beside bare SQLite, in one run.

Frames of one message of 308 bytes, and of 32. `append`: groups of some hundred frames, each group
on the disk before the next; bare SQLite inserts the same bytes into a table with one index, with
the same settings. The store also synchronises its record, a second file, after each group: bare
SQLite with two syncs commits one small row into a second file as well. `read`: all of the log, a
page at a time; bare SQLite selects the same rows, as many at a time. They take turns, so that a
machine that drifts does so for all.

    python benchmarks/storage.py [--json]
"""

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from anabranch.core import frames
from anabranch.core.ids import NodeId, StreamPart, chain_key, number_of, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages.storage import MAX_NUMBER, PAGE_BYTES, Selection
from anabranch.core.store import Order, Page
from anabranch.live.storage.sqlite import SqliteLogStore

SIZE = 308
GROUP = 500  # messages, at least, that are committed together
ROUNDS = 5
APPEND_BAR, READ_BAR = 50_000, 300_000  # messages a second
PART = StreamPart("0x" + "1" * 40 + "/benchmark", 0)
CHAINS = [chain_key(NodeId(bytes([at]) * 20), 1) for at in range(10)]

Row = dict[str, object]


def make_frames(messages: int, each: int, since: int) -> list[bytes]:
    """Make frames of so many messages each, of ten publishers, one after the other."""
    made = []
    for at in range(messages // each):
        first = number_of(1_700_000_000_000 + since + at, 0)
        drafts = [(first + ahead, Draft(os.urandom(SIZE))) for ahead in range(each)]
        chain = CHAINS[at % len(CHAINS)]
        made.append(frames.build(part_key(PART), chain, first - 1, drafts, lambda d: d * 2))
    return made


def groups(made: list[bytes], each: int) -> Iterator[tuple[bytes, ...]]:
    """Cut frames into what goes into one commit."""
    width = max(GROUP // each, 16)
    for at in range(0, len(made), width):
        yield tuple(made[at : at + width])


class Bare:
    """The same bytes in a table of bare SQLite."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path, isolation_level=None)
        execute = self.database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("CREATE TABLE frames (id INTEGER PRIMARY KEY, chain BLOB, last INT, frame BLOB)")
        execute("CREATE UNIQUE INDEX names ON frames (chain, last)")

    def append(self, group: tuple[bytes, ...]) -> None:
        """Insert some frames, and wait for the disk."""
        rows = [(head.chain, head.last, frame) for frame in group for head in [frames.peek(frame)]]
        self.database.execute("BEGIN IMMEDIATE")
        self.database.executemany("INSERT INTO frames VALUES (NULL, ?, ?, ?)", rows)
        self.database.execute("COMMIT")

    def read(self, most: int) -> int:
        """Select everything, so many rows at a time."""
        after = 0
        while rows := self.database.execute(
            "SELECT id, chain, last, frame FROM frames WHERE id > ? ORDER BY id LIMIT ?",
            (after, most),
        ).fetchall():
            after = rows[-1][0]
        return after

    def close(self) -> None:
        """Let go of the file."""
        self.database.close()


class BareTwice(Bare):
    """The same, and after each group one small row of a second file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.second = sqlite3.connect(path.with_name("second.sqlite"), isolation_level=None)
        self.second.execute("PRAGMA journal_mode = WAL")
        self.second.execute("PRAGMA synchronous = FULL")
        self.second.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, record BLOB)")

    def append(self, group: tuple[bytes, ...]) -> None:
        """Insert some frames, and wait for the disk; and once more for the row."""
        super().append(group)
        self.second.execute("INSERT OR REPLACE INTO records VALUES (1, ?)", (bytes(150),))

    def close(self) -> None:
        """Let go of both files."""
        super().close()
        self.second.close()


def append_ours(store: SqliteLogStore, group: tuple[bytes, ...]) -> None:
    """Give some frames their places in the log, and wait for the disk."""
    store.write([[Order(PART, 1, 1_700_000_000_000, group)]])


def read_ours(store: SqliteLogStore) -> int:
    """Read all of the log."""
    selection: Selection | None = Selection()
    count = 0
    while selection is not None:
        answer = store.find(Page(PART, selection, MAX_NUMBER, PAGE_BYTES))
        count += len(answer.placed)
        selection = answer.following
    return count


def timed(work: Callable[[], object]) -> float:
    """Return how many seconds something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def row(name: str, each: int, messages: int, ours: list[float], bare: list[float], bar: int) -> Row:
    """Sum up what two took for the same."""
    mine, theirs = (messages / statistics.median(took) for took in (ours, bare))
    return {
        "row": name,
        "messages_per_frame": each,
        "messages_per_s": round(mine),
        "bare_sqlite_per_s": round(theirs),
        "ratio": round(mine / theirs, 3),
        "bar_per_s": bar,
    }


def measure_log(folder: Path, each: int, messages: int) -> list[Row]:
    """Append to a log and to bare tables in turn; then read in turn."""
    store, bare = SqliteLogStore(folder / "logs.sqlite"), Bare(folder / "bare.sqlite")
    twice = BareTwice(folder / "twice.sqlite")
    ours: list[float] = []
    theirs: list[float] = []
    two_syncs: list[float] = []
    for at in range(ROUNDS):
        made = list(groups(make_frames(messages, each, at * messages), each))
        ours.append(timed(lambda made=made: [append_ours(store, group) for group in made]))
        theirs.append(timed(lambda made=made: [bare.append(group) for group in made]))
        two_syncs.append(timed(lambda made=made: [twice.append(group) for group in made]))
    rows = [row("append", each, messages, ours, theirs, APPEND_BAR)]
    ratio = statistics.median(two_syncs) / statistics.median(ours)
    rows[0]["ratio_two_syncs"] = round(ratio, 3)
    stored = ROUNDS * (messages // each)
    page = max(1, PAGE_BYTES // len(made[0][0]))
    assert read_ours(store) == bare.read(page) == stored
    ours = [timed(lambda: read_ours(store)) for _ in range(ROUNDS)]
    theirs = [timed(lambda: bare.read(page)) for _ in range(ROUNDS)]
    rows.append(row("read", each, stored * each, ours, theirs, READ_BAR))
    store.close()
    bare.close()
    twice.close()
    return rows


def measure() -> Iterator[Row]:
    """Return a row for each thing that is measured."""
    for each, messages in ((1, 20_000), (32, 64_000)):
        with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
            yield from measure_log(Path(folder), each, messages)


def main() -> None:
    """Print a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    as_json = parser.parse_args().json
    for found in measure():
        if as_json:
            print(json.dumps(found))
        else:
            twice = found.get("ratio_two_syncs")
            print(
                f"{found['row']:>7}, {found['messages_per_frame']:>2} in a frame: "
                f"{found['messages_per_s']:,} messages a second (bar {found['bar_per_s']:,}), "
                f"bare SQLite {found['bare_sqlite_per_s']:,}, ratio {found['ratio']}"
                + (f" (with two syncs {twice})" if twice is not None else "")
            )


if __name__ == "__main__":
    main()
