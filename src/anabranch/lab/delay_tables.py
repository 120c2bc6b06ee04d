"""Underlays that are tables: places lie at the table's rows, and a table can come from a file."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

TableMs = Sequence[Sequence[float]]  # from the place of the row to that of the column


class TableError(ValueError):
    """A table that cannot be read; the message says what is wrong with it."""


class DelayTable:
    """A table of delays; every place lies at one of its rows, behind an access delay of its own."""

    def __init__(
        self,
        table_ms: TableMs,
        rows: Sequence[int],
        access_ms: Sequence[float] = (),
        beyond: int = 0,  # the row of all places after these: the trackers'
    ) -> None:
        self._table_s = [[delay_ms / 1000 for delay_ms in row] for row in table_ms]
        self._rows = rows
        self._access_s = [delay_ms / 1000 for delay_ms in access_ms]
        self._beyond = beyond

    def row(self, place: int) -> int:
        """Return the row of the table at which a place lies."""
        return self._rows[place] if place < len(self._rows) else self._beyond

    def delay_s(self, a: int, b: int) -> float:
        """Return the delay between the two rows, and the access delays at both ends."""
        across_s = self._table_s[self.row(a)][self.row(b)]
        return across_s + (self._access_s[a] + self._access_s[b]) if self._access_s else across_s

    def mean_delay_s(self, nodes: int) -> float:
        """Return the mean delay over all ordered pairs of nodes, without going through them all."""
        counts = [0] * len(self._table_s)
        for row in self._rows[:nodes]:
            counts[row] += 1
        total_s = math.fsum(
            delay_s * here * (there - (a == b))  # nobody sends to itself
            for a, (row, here) in enumerate(zip(self._table_s, counts, strict=True))
            for b, (delay_s, there) in enumerate(zip(row, counts, strict=True))
        )
        # Every node pays its access delay in all pairs that it begins, and in all that it ends.
        access_s = 2 * (nodes - 1) * math.fsum(self._access_s[:nodes])
        return (total_s + access_s) / (nodes * (nodes - 1))


def from_file(path: Path, nodes: int) -> DelayTable:
    """Let the nodes take the rows of a file in turn; trackers lie at the first row."""
    table_ms = read_table(path)
    return DelayTable(table_ms, [place % len(table_ms) for place in range(nodes)])


def read_table(path: Path) -> list[list[float]]:
    """Read a square table of milliseconds, separated by commas, or raise TableError."""
    try:
        with path.open(newline="") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), 1) if row]
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} is not text with commas: {error}") from error
    if not lines:
        raise TableError(f"{path} has no rows: write one row of milliseconds for each place")
    table_ms = [[_milliseconds(path, number, cell) for cell in row] for number, row in lines]
    for (number, _), row in zip(lines, table_ms, strict=True):
        if len(row) != len(table_ms):
            raise TableError(
                f"{path} is not square: it has {len(table_ms)} rows, and line {number} has"
                f" {len(row)} columns"
            )
    return table_ms


def _milliseconds(path: Path, line: int, cell: str) -> float:
    try:
        delay_ms = float(cell)
    except ValueError:
        raise TableError(f"{path}, line {line}: {cell.strip()!r} is not a number") from None
    if not 0 <= delay_ms < math.inf:
        raise TableError(f"{path}, line {line}: a delay must be 0 or more, not {cell.strip()}")
    return delay_ms
