"""How far a log and a page of the primary's log are the same.

A log has a hash at each of its positions, over everything before. So the two are the same up to
some position and nowhere after it, and that position is found by halving, without reading frames.
"""

from collections.abc import Sequence

from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.ids import FrameHead, PartKey
from anabranch.core.messages import Fetched
from anabranch.core.store import hash_after


def read_heads(page: Fetched, key: PartKey) -> list[FrameHead]:
    """Read the heads of a page's frames; RemoteError if it is no page of this part's log."""
    heads = [peek(entry.frame) for entry in page.entries]
    if any(head.part != key for head in heads):
        raise RemoteError("wrong-part", str(page.part))
    if any(entry.epoch > page.epoch for entry in page.entries):
        raise RemoteError("wrong-page", "an entry of an epoch to come")
    return heads


class Comparison:
    """Looks for the last position of a page up to which our log is the same."""

    def __init__(self, page: Fetched, heads: Sequence[FrameHead], length: int) -> None:
        """Compare a log of this length, as far as the primary's epoch had not begun."""
        self.page = page
        self.heads = heads
        ends = [(page.offset, page.hash)]
        for entry, head in zip(page.entries, heads, strict=True):
            offset, before = ends[-1]
            ends.append((offset + head.count, hash_after(before, offset, entry)))
        self.ends = ends
        most = min(length, page.begin)
        self._same = -1  # the last place in `ends` that is known to be the same; -1: none
        self._other = sum(1 for offset, _ in ends if offset <= most)  # the first that is not

    @property
    def question(self) -> int | None:
        """The offset at which our log's hash is to be looked up; None: all is known."""
        if self._other - self._same <= 1:
            return None
        return self.ends[(self._same + self._other) // 2][0]

    def tell(self, found: bytes) -> None:
        """Take our log's hash at the offset in question."""
        middle = (self._same + self._other) // 2
        if self.ends[middle][1] == found:
            self._same = middle
        else:
            self._other = middle

    @property
    def same(self) -> int:
        """How many entries of the page are the same in our log; -1: not even what is before it."""
        return self._same
