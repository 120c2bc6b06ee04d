"""Answers storage nodes that compare their frames with those of this node.

Only storage nodes that the stream names are answered. A report covers frames that came at least
FLIGHT_S ago: later ones may still be on their way to the storage node. For each storage node the
frames of its last report stay ready, even if the cache of recent frames evicts them meanwhile: a
node that claims frames has to hand them over.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.frame_ranges import between, number_in, range_of, spans, split
from anabranch.core.frames import LAST_NUMBER, MAX_FRAME_BYTES, name
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import AskLacking, AskRanges, Lacking, Ranges
from anabranch.core.messages.storage import MAX_RANGES, MAX_REPORT_FRAMES, PAGE_BYTES
from anabranch.core.overlay import Kept
from anabranch.core.parts import Part, Parts

FLIGHT_S = 2.0
REPORT_S = 30.0  # how long the frames of a report stay ready
MAX_REPORTS = 32  # one for each storage node
MAX_NEW_FRAMES = 4_096  # of a report
MAX_NEW_BYTES = max(1 << 20, MAX_FRAME_BYTES)
MAX_OTHER_FRAMES = MAX_REPORT_FRAMES - MAX_NEW_FRAMES  # that lie in the same ranges
MAX_OTHER_BYTES = 1 << 20
MAX_PAGE_FRAMES = 256  # of an answer
MAX_AT_ONCE = 256.0  # requests of one storage node,
PER_S = 50.0  # and in the long run
MAX_ASKING = 4_096  # storage nodes

BUSY = "busy"

Stores = Callable[[str, NodeId], bool]  # whether a stream names a node as its storage node


class _Report(msgspec.Struct, eq=False):
    """The frames that were reported last to a storage node."""

    part: StreamPart
    ticket: int
    names: list[bytes]  # ascending
    frames: dict[bytes, bytes]  # by name
    until: float


class _Allowance(msgspec.Struct):
    """How many requests a storage node may still send."""

    left: float
    at: float


class ComparisonServer:
    """Reports the recent frames of stored streams, and hands over those that are lacking."""

    def __init__(self, parts: Parts, stores: Stores) -> None:
        self._parts = parts
        self._stores = stores
        self._reports: dict[NodeId, _Report] = {}
        self._allowances: dict[NodeId, _Allowance] = {}

    def ask_ranges(self, sender: NodeId, ask: AskRanges, now: float) -> list[Effect]:
        """Report the frames after a cursor."""
        if not self._stores(ask.part.stream, sender):
            return []  # or this node knows less of the stream than the sender, which asks again
        self._expire(now)
        is_full = sender not in self._reports and len(self._reports) >= MAX_REPORTS
        if is_full or not self._allows(sender, now):
            return [Send(sender, Ranges(ticket=ask.ticket, problem=BUSY))]
        state = self._parts.find(ask.part)
        if state is None:
            return [Send(sender, Ranges(ticket=ask.ticket, cursor=ask.cursor))]
        return [Send(sender, self._report(sender, state, ask, now))]

    def ask_lacking(self, sender: NodeId, ask: AskLacking, now: float) -> list[Effect]:
        """Hand over a page of the frames of the last report that the sender lacks."""
        if not self._stores(ask.part.stream, sender):
            return []
        report = self._reports.get(sender)
        is_there = report is not None and (report.part, report.ticket) == (ask.part, ask.report)
        if not self._allows(sender, now) or report is None or not is_there:
            return [Send(sender, Lacking(ticket=ask.ticket, problem=BUSY))]
        known = split(ask.names)
        if known is None:
            raise RemoteError("frame-names", f"{len(ask.names)} bytes")
        page: list[bytes] = []
        room, more = PAGE_BYTES, False
        for each in between(report.names, ask.low, ask.high):
            if each in known or each <= ask.cursor:
                continue
            frame = report.frames[each]
            room -= len(frame)
            if page and (room < 0 or len(page) == MAX_PAGE_FRAMES):
                more = True
                break
            page.append(frame)
        return [Send(sender, Lacking(ticket=ask.ticket, frames=tuple(page), more=more))]

    def gone(self, peer: NodeId) -> None:
        """Forget a node whose link has ended."""
        self._reports.pop(peer, None)
        self._allowances.pop(peer, None)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        reports = self._reports.values()
        sizes = (sum(map(len, report.frames.values())) for report in reports)
        return {
            "storage nodes that compare": (len(self._allowances), MAX_ASKING),
            "comparison reports": (len(reports), MAX_REPORTS),
            "bytes of a comparison report": (
                max(sizes, default=0),
                MAX_NEW_BYTES + MAX_OTHER_BYTES,
            ),
        }

    # --- A report -------------------------------------------------------------------------

    def _report(self, sender: NodeId, state: Part, ask: AskRanges, now: float) -> Ranges:
        begin, kept = self._parts.recent.positions(state.key)
        new, cursor, more = _new_frames(begin, kept, ask, now - FLIGHT_S)
        cuts = spans(sorted(new))
        if len(cuts) > MAX_RANGES:  # a quiet stream: each of its frames may be a range of its own
            new, cursor, more = _new_frames(begin, kept, ask, now - FLIGHT_S, MAX_RANGES)
            cuts = spans(sorted(new))
        if not new:
            return Ranges(ticket=ask.ticket, cursor=cursor)
        _add_others(new, kept, cuts, ask.after)
        names = sorted(new)
        self._reports[sender] = _Report(ask.part, ask.ticket, names, new, now + REPORT_S)
        ranges = tuple(range_of(names, low, high) for low, high in cuts)
        return Ranges(ticket=ask.ticket, ranges=ranges, cursor=cursor, more=more)

    def _expire(self, now: float) -> None:
        for peer in [peer for peer, report in self._reports.items() if report.until <= now]:
            del self._reports[peer]

    def _allows(self, peer: NodeId, now: float) -> bool:
        allowance = self._allowances.get(peer)
        if allowance is None:
            if len(self._allowances) >= MAX_ASKING:
                return False
            allowance = self._allowances[peer] = _Allowance(MAX_AT_ONCE, now)
        earned = (now - allowance.at) * PER_S
        allowance.left, allowance.at = min(MAX_AT_ONCE, allowance.left + earned), now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True


def _new_frames(
    begin: int, kept: Sequence[Kept], ask: AskRanges, until: float, most: int = MAX_NEW_FRAMES
) -> tuple[dict[bytes, bytes], int, bool]:
    """Return frames after the cursor by name, the next cursor, and whether more may follow."""
    found: dict[bytes, bytes] = {}
    size = 0
    first = min(max(0, ask.cursor + 1 - begin), len(kept))  # the cursor may be made up
    cursor = ask.cursor
    for position, each in enumerate(islice(kept, first, None), begin + first):
        if each.at > until:
            break
        if found and (len(found) >= most or size + len(each.frame) > MAX_NEW_BYTES):
            return found, cursor, True
        cursor = position
        named = name(each.frame)
        if number_in(named) > ask.after:
            found[named] = each.frame
            size += len(each.frame)
    return found, cursor, False


def _add_others(
    new: dict[bytes, bytes], kept: Sequence[Kept], cuts: Sequence[tuple[int, int]], after: int
) -> None:
    """Add frames that were reported before, or are too young, and lie in the same ranges.

    The storage node is likely to have them, and its digests cover them.
    """
    room, most = MAX_OTHER_BYTES, len(new) + MAX_OTHER_FRAMES
    lows = [low for low, _ in cuts]
    lowest, highest = max(cuts[0][0], after + 1).to_bytes(8), cuts[-1][1].to_bytes(8)
    for each in kept:
        if not lowest <= each.frame[LAST_NUMBER] <= highest:  # as nearly always
            continue
        named = name(each.frame)
        number = number_in(named)
        if number > cuts[bisect_right(lows, number) - 1][1] or named in new:
            continue
        room -= len(each.frame)
        if room < 0 or len(new) == most:
            return  # then these ranges differ, and the names of their frames are compared
        new[named] = each.frame
