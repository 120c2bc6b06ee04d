"""Columns from several storage nodes, each of which lacks something."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from anabranch.live.columns import read_columns
from anabranch.live.errors import HistoryLost
from live.storage.shelf import Shelf, Writer, serving
from machines import PART

COUNT = 40


def read(lost: Sequence[Sequence[int]], form: str = "messages") -> list[int]:
    """Read all from servers that lack some frames each; return the offsets."""
    writer = Writer()
    made = [writer.frame(b"%d" % n) for n in range(COUNT)]
    offsets: list[int] = []

    async def read_all(urls: list[str]) -> None:
        sources = [(url, str) for url in urls]
        async for batch in read_columns(sources, PART.stream, 0, 0, COUNT, form):
            offsets.extend(batch.column("offset").to_pylist())

    with ExitStack() as stack:
        urls = []
        for those in lost:
            shelf = Shelf()
            shelf.put(made)
            for at in those:
                shelf.damage(made[at])
            urls.append(stack.enter_context(serving(shelf)).address)
        try:
            asyncio.run(read_all(urls))
        except HistoryLost as error:
            error.offsets = offsets  # type: ignore[attr-defined]
            raise
    return offsets


@pytest.mark.parametrize("form", ["messages", "frames"])
def test_what_one_lacks_comes_from_another(form: str) -> None:
    assert read([[3, 4, 20], [5, 39]], form) == list(range(COUNT))


def test_what_all_lack_is_named_at_the_end() -> None:
    with pytest.raises(HistoryLost, match="3 messages, at offsets 4 to 5, 39") as caught:
        read([[3, 4, 5, 39], [4, 5, 6, 39]])
    assert caught.value.lost == ((4, 6), (39, 40))
    assert caught.value.partitions == {0: caught.value.lost}
    missing = {4, 5, 39}
    assert caught.value.offsets == [n for n in range(COUNT) if n not in missing]  # type: ignore[attr-defined]
