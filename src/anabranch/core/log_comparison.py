"""How far a log and a page of the primary's log are the same.

A log has a hash at each of its positions, over everything before. So the two are the same up to
some position and nowhere after it, and that position is found by halving, without reading frames.
Inside a hole of the log no hash is known: such positions are left out.
"""

from collections.abc import Sequence

from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.ids import FrameHead, PartKey
from anabranch.core.messages import Fetched
from anabranch.core.store import Missing, hash_after, hole_around


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

    def __init__(
        self,
        page: Fetched,
        heads: Sequence[FrameHead],
        length: int,
        missing: Sequence[Missing] = (),
    ) -> None:
        """Compare a log of this length with these holes, up to the begin of the primary's epoch."""
        self.page = page
        self.heads = heads
        ends = [(page.offset, page.hash)]
        for entry, head in zip(page.entries, heads, strict=True):
            offset, before = ends[-1]
            ends.append((offset + head.count, hash_after(before, offset, entry)))
        self.ends = ends
        most = min(length, page.begin)
        within = [index for index, (offset, _) in enumerate(ends) if offset <= most]
        # The positions in `ends` at which the hash of our log is known.
        self._known = [i for i in within if hole_around(missing, ends[i][0]) is None]
        self._same = -1  # the last place in `_known` that is known to be the same; -1: none
        self._other = len(self._known)  # the first that is not
        self._compared = len(within)

    @property
    def question(self) -> int | None:
        """The offset at which our log's hash is to be looked up; None: all is known."""
        if self._other - self._same <= 1:
            return None
        return self.ends[self._known[self._middle]][0]

    @property
    def _middle(self) -> int:
        return (self._same + self._other) // 2

    def tell(self, found: bytes) -> None:
        """Take our log's hash at the offset in question."""
        middle = self._middle
        if self.ends[self._known[middle]][1] == found:
            self._same = middle
        else:
            self._other = middle

    @property
    def same(self) -> int:
        """How many entries of the page are the same in our log; -1: not even what is before it."""
        return self._known[self._same] if self._same >= 0 else -1

    @property
    def ends_in_hole(self) -> bool:
        """Whether the page ends in a hole before which all is the same: no difference was seen."""
        return 0 <= self._same == len(self._known) - 1 and self.same < self._compared - 1
