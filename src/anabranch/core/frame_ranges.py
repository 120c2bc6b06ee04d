"""Ranges of frames, and their digests: two nodes compare them instead of all names.

A range is a span of last numbers. Its digest covers the names of all frames in it, so equal digests
mean equal sets. A report cuts the frames into ranges of few frames each, and also where a long time
lies between two frames: the other node may have many frames there.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from anabranch.core.frames import NAME_BYTES
from anabranch.core.ids import CHAIN_KEY_BYTES, SEQUENCE_BITS
from anabranch.core.messages.storage import MAX_NUMBER, RANGE_DIGEST_BYTES, FrameRange

RANGE_FRAMES = 64  # that lie in one range, or a few more that were reported before
HOLE = 1_000 << SEQUENCE_BITS  # between two frames, which lie in two ranges then

_LOWEST, _HIGHEST = bytes(CHAIN_KEY_BYTES), b"\xff" * CHAIN_KEY_BYTES

Names = Sequence[bytes]  # of frames: last number and chain, in ascending order


def number_in(name: bytes) -> int:
    """Return the last number of a frame from its name."""
    return int.from_bytes(name[:8])


def digest_of(names: Names) -> bytes:
    """Return the digest of the names of a range."""
    return hashlib.sha256(b"".join(names)).digest()[:RANGE_DIGEST_BYTES]


def between(names: Names, low: int, high: int) -> Names:
    """Return the names with last numbers from `low` to `high`."""
    begin = bisect_left(names, low.to_bytes(8) + _LOWEST)
    return names[begin : bisect_right(names, min(high, MAX_NUMBER).to_bytes(8) + _HIGHEST)]


def spans(names: Names) -> list[tuple[int, int]]:
    """Cut frames into spans of last numbers, in ascending order and without overlap."""
    found: list[tuple[int, int]] = []
    count = 0
    for name in names:
        number = number_in(name)
        if found and number <= found[-1][1]:  # equal: one number lies in one span
            continue
        if found and count < RANGE_FRAMES and number - found[-1][1] <= HOLE:
            found[-1] = (found[-1][0], number)
            count += 1
        else:
            found.append((number, number))
            count = 1
    return found


def range_of(names: Names, low: int, high: int) -> FrameRange:
    """Describe the frames of a span: `names` are those of all frames that are held."""
    inside = between(names, low, high)
    return FrameRange(low=low, high=high, count=len(inside), digest=digest_of(inside))


def split(joined: bytes) -> frozenset[bytes] | None:
    """Take names apart that were joined; None if they are no names."""
    if len(joined) % NAME_BYTES:
        return None
    return frozenset(joined[at : at + NAME_BYTES] for at in range(0, len(joined), NAME_BYTES))
