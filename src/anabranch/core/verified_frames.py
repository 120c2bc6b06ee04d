"""Frames whose signatures were found good a while ago, so that they need not be checked again.

A storage node gets most frames twice: live, and in the primary's log. To compare all of a frame
with one that was verified costs a hundredth of its signature.
"""

from anabranch.core.frames import digest, signature
from anabranch.core.identity import Verify
from anabranch.core.ids import FrameHead
from anabranch.core.machine import Sizes

MAX_BYTES = 16 << 20  # of the frames that are remembered


class VerifiedFrames:
    """Remembers the last frames that were verified."""

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()
        self._young_bytes = 0
        self._old_bytes = 0

    def __contains__(self, frame: bytes) -> bool:
        """Tell whether a frame is remembered."""
        return frame in self._young or frame in self._old

    def add(self, frame: bytes) -> None:
        """Remember a frame that was verified elsewhere; the older half is forgotten at times."""
        if self._young_bytes + len(frame) > MAX_BYTES // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = set(), 0
        if frame not in self._young:
            self._young.add(frame)
            self._young_bytes += len(frame)

    def check(self, head: FrameHead, frame: bytes) -> bool:
        """Tell whether a frame is its publisher's."""
        if frame in self:
            return True
        if not self._verify(head.publisher, digest(frame), signature(frame)):
            return False
        self.add(frame)
        return True

    def sizes(self) -> Sizes:
        """Return how much is remembered, with its bound."""
        return {"verified bytes": (self._young_bytes + self._old_bytes, MAX_BYTES)}
