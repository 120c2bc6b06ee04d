"""What comes live while somebody still reads the past.

It waits for the past to end. If it is too much, the oldest is forgotten, since it is likely to be
in the past by then; but not that it exists.
"""

from collections import OrderedDict

from anabranch.core.ids import ChainKey, FrameHead, NodeId
from anabranch.core.machine import Sizes
from anabranch.core.subscription import MAX_CHAINS, MAX_WAITING_BYTES, MAX_WAITING_FRAMES

Live = tuple[FrameHead, bytes, int, NodeId | None, float]
Ranges = dict[ChainKey, tuple[int, int]]  # above which number something lies, and where it ends


class HeldLive:
    """Frames of any chains, in the order in which they came."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[ChainKey, int], Live] = OrderedDict()
        self._bytes = 0
        self._forgotten: Ranges = {}

    def hold(self, live: Live) -> None:
        """Keep a frame."""
        head, frame, *_ = live
        name = head.chain, head.last
        if name in self._frames:
            return
        self._frames[name] = live
        self._bytes += len(frame)
        while len(self._frames) > MAX_WAITING_FRAMES or self._bytes > MAX_WAITING_BYTES:
            _, (oldest, content, *_) = self._frames.popitem(last=False)
            self._bytes -= len(content)
            if oldest.chain in self._forgotten or len(self._forgotten) < MAX_CHAINS:
                after, last = self._forgotten.get(oldest.chain, (oldest.previous, 0))
                both = min(after, oldest.previous), max(last, oldest.last)
                self._forgotten[oldest.chain] = both

    def had(self, head: FrameHead) -> bool:
        """Tell whether a frame has come, even if it is forgotten by now."""
        after, last = self._forgotten.get(head.chain, (0, 0))
        return (head.chain, head.last) in self._frames or after < head.first <= head.last <= last

    def take(self) -> tuple[list[Live], Ranges]:
        """Hand over what there is, and what is forgotten."""
        frames, forgotten = list(self._frames.values()), self._forgotten
        self._frames, self._bytes, self._forgotten = OrderedDict(), 0, {}
        return frames, forgotten

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "live frames before the history": (len(self._frames), MAX_WAITING_FRAMES),
            "live bytes before the history": (self._bytes, MAX_WAITING_BYTES),
            "live chains before the history": (len(self._forgotten), MAX_CHAINS),
        }
