"""Much of a stream's past at once: Arrow batches by offset, from any of its storage nodes."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

from anabranch.live.errors import NetworkUnreachable

if TYPE_CHECKING:
    import pyarrow

ROUNDS = 3  # how often every storage node is tried

Source = tuple[str, Callable[[], str]]  # a storage node's pages, and a token for it


async def read_columns(
    sources: Sequence[Source], stream: str, partition: int, start: int, end: int | None, form: str
) -> AsyncIterator["pyarrow.RecordBatch"]:
    """Read a range; if a storage node breaks off, the next goes on at the same offset."""
    from anabranch.live.storage.columnar import BrokenOffError, stream_batches

    problem = "none of its storage nodes has pages"
    position = start
    for url, token in [*sources] * ROUNDS:
        try:
            options = {"token": token(), "form": form}
            async for batch in stream_batches(url, stream, partition, position, end, **options):
                yield batch
                last = batch.num_rows - 1
                counted = batch.column("count")[last].as_py() if form == "frames" else 1
                position = batch.column("offset")[last].as_py() + counted
        except BrokenOffError as error:
            position, problem = error.position, str(error)
        except NetworkUnreachable as error:
            problem = str(error)
        else:
            return
    raise NetworkUnreachable(f"{stream} cannot be read from offset {position} on: {problem}")
