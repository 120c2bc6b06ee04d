"""Much of a stream's past at once: Arrow batches by offset, from any of its storage nodes."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from anabranch.core.coverage import LostOffsets
from anabranch.core.messages.storage import Span
from anabranch.live.errors import HistoryLost, NetworkUnreachable

if TYPE_CHECKING:
    import pyarrow

ROUNDS = 3  # how often every storage node is tried

Source = tuple[str, Callable[[], str]]  # a storage node's pages, and a token for it


async def read_columns(
    sources: Sequence[Source], stream: str, partition: int, start: int, end: int | None, form: str
) -> AsyncIterator["pyarrow.RecordBatch"]:
    """Read a range; if a storage node breaks off, the next goes on at the same offset.

    Messages that are damaged at all of them are left out, and named by a HistoryLost at the end.
    """
    from anabranch.live.storage.columnar import BrokenOffError, RefusedError, stream_batches

    place = _Place(sources, start)
    while place.source is not None:
        url, token = place.source
        try:
            options = {"token": token(), "form": form}
            async for batch in stream_batches(
                url, stream, partition, place.position, end, **options
            ):
                yield batch
                last = batch.num_rows - 1
                counted = batch.column("count")[last].as_py() if form == "frames" else 1
                place.advance(batch.column("offset")[last].as_py() + counted)
        except BrokenOffError as error:
            place.advance(error.position)
            place.fail(str(error))
        except RefusedError as error:
            hole = error.damaged_upto(place.position)
            if hole is None:
                raise
            place.lack(hole)
        except NetworkUnreachable as error:
            place.fail(str(error))
        else:
            lost = place.lost
            if lost.spans:
                text = f"{stream}#{partition} cannot be read as a whole: {lost.text}"
                spans = [(span.start, span.end) for span in lost.spans]
                raise HistoryLost(text, {partition: spans})
            return
    where = f"{stream} cannot be read from offset {place.position} on"
    raise NetworkUnreachable(f"{where}: {place.problem}")


class _Place:
    """Where a range is read: up to which offset, and at which storage node."""

    def __init__(self, sources: Sequence[Source], start: int) -> None:
        self.position = start
        self.lost = LostOffsets()
        self.problem = "none of its storage nodes has pages"
        self._sources = sources
        self._turn = 0
        self._tries = 0  # in vain at this position
        self._lacking: dict[int, int] = {}  # which of the sources lack it, and up to which offset
        self._absent: set[int] = set()  # did not answer while others lacked something

    @property
    def source(self) -> Source | None:
        """The storage node to be asked; None: all were asked in vain."""
        if self._tries >= ROUNDS * len(self._sources):
            return None
        return self._sources[self._turn % len(self._sources)]

    def advance(self, position: int) -> None:
        """Go on from an offset."""
        if position > self.position:
            self.position, self._tries = position, 0
            self._lacking.clear()

    def fail(self, problem: str) -> None:
        """Turn to the next one."""
        self.problem = problem
        self._next()

    def lack(self, end: int) -> None:
        """Turn to the next one, since the messages up to an offset are damaged here."""
        self._lacking[self._turn % len(self._sources)] = end
        self._absent -= set(self._lacking)
        self._next()

    def _next(self) -> None:
        self._turn += 1
        self._tries += 1
        is_late = self._tries >= ROUNDS * len(self._sources)
        asked = len(self._lacking) + len(self._absent)
        if self._lacking and (is_late or asked == len(self._sources)):
            if is_late:
                self._absent = set(range(len(self._sources))) - set(self._lacking)
            end = min(self._lacking.values())
            self.lost.add((Span(self.position, end),))
            self.advance(end)
