"""What a storage node keeps on its disk, and how its machine speaks of it.

Frames are kept as they came. The log of a part is an order of them: a frame is *held* until it
has its place in the log, and held again if that place is taken back. A `Write` of several of
these is done as a whole or not at all, in order, and is on the disk when `Wrote` answers. A store
does what it is told; what should be told it is the business of storage.py.

The log has a hash at each of its positions, over everything before: two logs of one length and
one hash are the same log.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    MAX_SKEW_S,
    NODE_ID_BYTES,
    SEQUENCE_BITS,
    ChainKey,
    NodeId,
    StreamPart,
)
from anabranch.core.messages.registry import NO_HASH
from anabranch.core.messages.storage import (
    MAX_NUMBER,
    MAX_SPANS,
    Entry,
    FrameName,
    Mark,
    Selection,
    Span,
)

NOBODY = NodeId(bytes(NODE_ID_BYTES))
DIVERGED = "diverged"  # how the problem of a write begins that cannot be true
GONE = "gone"  # and of one that rests on a frame which the disk has lost


class StoreError(LocalError):
    """The disk does not do what it should: nothing was changed; the text says what to do."""


class InUseError(StoreError):
    """Another process has the file."""


class DivergedError(StoreError):
    """A frame was to get a second place in a log: whoever has it so is wrong."""

    def __init__(self, part: StreamPart, chain: bytes, last: int) -> None:
        super().__init__(f"{DIVERGED}: frame {chain.hex()} {last} would be in {part} twice")


class GoneError(StoreError):
    """A held frame that was to get a place is not there any more: its row was damaged."""

    def __init__(self, part: StreamPart, name: FrameName) -> None:
        super().__init__(f"{GONE}: frame {name.chain.hex()} {name.last} is not held in {part}")


class Missing(msgspec.Struct, frozen=True):
    """A hole in a log: offsets from `start` up to `end` that were there and are damaged.

    It is filled from the left with entries of another storage node. Up to `filled` there are some,
    which are not shown before the hole is closed: only the last one proves that all are right.
    """

    start: int
    end: int
    filled: int
    before_ms: int = MAX_NUMBER  # no message of it was published later

    @property
    def span(self) -> Span:
        """Its offsets."""
        return Span(self.start, self.end)


def hole_around(missing: Sequence[Missing], offset: int) -> Missing | None:
    """Return the hole in which an offset lies, not at its start: no hash is known there."""
    return next((hole for hole in missing if hole.start < offset < hole.end), None)


Rank = tuple[int, int]  # log_epoch and length: the higher one has all that the lower one settled


class Loss(msgspec.Struct, frozen=True):
    """Offsets that an operator has given up, since no storage node has their messages."""

    start: int
    end: int
    accepted_ms: int


class LogState(msgspec.Struct, frozen=True):
    """Where the log of a part stands on the disk."""

    part: StreamPart
    epoch: int = 0  # the highest that was promised to anybody
    voted: NodeId = NOBODY  # whom we promised it to
    log_epoch: int = 0  # the last epoch whose primary's log at its beginning is a part of ours
    start: int = 0  # the first offset that is still there
    length: int = 0  # the offset of the next message
    high: int = 0  # all before this offset is settled
    hash: bytes = NO_HASH  # of the log, at its end
    held: int = 0  # frames without a place in the log
    missing: tuple[Missing, ...] = ()  # its holes, in order
    # From the record of the log (log_record.py):
    owed: Rank = (0, 0)  # the recorded rank, if the log is below it
    is_restored: bool = False  # the other storage nodes have to say how far it must come
    marks: tuple[Mark, ...] = ()  # the newest of each storage node
    losses: tuple[Loss, ...] = ()  # that were accepted

    @property
    def rank(self) -> Rank:
        """How much the log is worth as that of a primary."""
        return self.log_epoch, self.length


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A frame of the log, with its offset; `offset` is None while it is only held."""

    offset: int | None
    entry: Entry  # of one that is only held: epoch 0, and when it came


def hash_after(before: bytes, offset: int, entry: Entry) -> bytes:
    """Return the log's hash after an entry that begins at an offset.

    A mark makes the hashed text longer, so an entry without one has the hash it always had.
    """
    numbers = offset.to_bytes(8) + entry.epoch.to_bytes(8) + entry.placed_ms.to_bytes(8)
    if entry.mark:
        numbers += entry.mark.to_bytes(8, signed=True)
    return hashlib.sha256(before + numbers + hashlib.sha256(entry.frame).digest()).digest()


# --- What can be written --------------------------------------------------------------------


class Keep(msgspec.Struct, frozen=True):
    """Hold frames; those that are held or in the log already stay as they are."""

    part: StreamPart
    frames: tuple[bytes, ...]
    came_ms: int


class Order(msgspec.Struct, frozen=True):
    """Give frames the next places in the log, in this order; those that have one keep theirs.

    `marks` are those of their entries; none: all are 0.
    """

    part: StreamPart
    epoch: int
    placed_ms: int
    frames: tuple[bytes, ...]
    marks: tuple[int, ...] = ()


class OrderHeld(msgspec.Struct, frozen=True):
    """Give held frames the next places in the log, in this order; those that have one keep theirs.

    If one of them is not there any more, the whole write fails (GoneError): the marks of the frames
    behind it say that it lies before them.
    """

    part: StreamPart
    epoch: int
    placed_ms: int
    names: tuple[FrameName, ...]
    marks: tuple[int, ...] = ()


def marks_of(write: Order | OrderHeld) -> Sequence[int]:
    """Return the mark of each frame."""
    count = len(write.frames) if isinstance(write, Order) else len(write.names)
    return write.marks or (0,) * count


class Copy(msgspec.Struct, frozen=True):
    """Put entries of the primary's log at the end of ours, which is at this offset.

    If one of their frames has a place already, the whole write fails (DivergedError).
    """

    part: StreamPart
    offset: int
    entries: tuple[Entry, ...]


class Truncate(msgspec.Struct, frozen=True):
    """Take back all places from an offset on: their frames are held again."""

    part: StreamPart
    length: int


class Restart(msgspec.Struct, frozen=True):
    """Let the log begin anew, empty, at an offset: everything that was in it is deleted."""

    part: StreamPart
    offset: int
    hash: bytes


class Promise(msgspec.Struct, frozen=True):
    """Promise an epoch to somebody, or to nobody."""

    part: StreamPart
    epoch: int
    voted: NodeId


class Adopt(msgspec.Struct, frozen=True):
    """Our log contains what the primary of this epoch had when it began."""

    part: StreamPart
    log_epoch: int


class Settle(msgspec.Struct, frozen=True):
    """All before this offset is settled."""

    part: StreamPart
    high: int


class Fill(msgspec.Struct, frozen=True):
    """Put entries of another node's log into a hole of ours, where it is filled up to `offset`.

    `hash` is that of the other log there. When the hole is full and its hashes do not lead to what
    follows, all that was filled in is dropped. A Fill that fits no hole does nothing.
    """

    part: StreamPart
    offset: int
    hash: bytes
    entries: tuple[Entry, ...]


class Delete(msgspec.Struct, frozen=True):
    """Keep nothing of a part."""

    part: StreamPart


# --- What is written to the record alone ------------------------------------------------------


class KeepMarks(msgspec.Struct, frozen=True):
    """Remember these marks, and no others."""

    part: StreamPart
    marks: tuple[Mark, ...]


class Owe(msgspec.Struct, frozen=True):
    """The log had come at least so far, as the other storage nodes say.

    If a majority of them was heard (`by_majority`), a restored log needs no more than that.
    """

    part: StreamPart
    rank: Rank
    by_majority: bool = False


class Doubt(msgspec.Struct, frozen=True):
    """Others have to say how far the log had come: there may have been one before this one."""

    part: StreamPart


class AcceptLoss(msgspec.Struct, frozen=True):
    """The log is taken as it is: what it had beyond is given up."""

    part: StreamPart
    loss: Loss


ForRecord = KeepMarks | Doubt | Owe | AcceptLoss
LogWrite = (
    Keep
    | Order
    | OrderHeld
    | Copy
    | Truncate
    | Restart
    | Promise
    | Adopt
    | Settle
    | Fill
    | Delete
    | ForRecord
)


# --- What can be read -----------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True):
    """Some of what is selected: at least one frame if there is any, and not many bytes.

    `limit` is the offset that is not passed in the order of offsets (a high mark, or MAX_NUMBER).
    """

    part: StreamPart
    selection: Selection
    limit: int
    size_bytes: int


class Named(msgspec.Struct, frozen=True):
    """These frames, as far as they are there."""

    part: StreamPart
    names: tuple[FrameName, ...]


class HashAt(msgspec.Struct, frozen=True):
    """The log's hash at a position: no hash if no frame begins there and the log does not end."""

    part: StreamPart
    offset: int


class HolesIn(msgspec.Struct, frozen=True):
    """The holes of a log."""

    part: StreamPart


class NamesIn(msgspec.Struct, frozen=True):
    """The names of all frames with last numbers in some spans: of each span at most so many."""

    part: StreamPart
    spans: tuple[tuple[int, int, int], ...]  # the lowest number, the highest, and how many names


class ChainsIn(msgspec.Struct, frozen=True):
    """The newest placed number of some chains, and the held frames above it.

    Of each chain at most `most` held frames are named, and of all of them not many bytes are read.
    """

    part: StreamPart
    chains: tuple[tuple[ChainKey, int], ...]  # with the newest number if it is known, or UNKNOWN
    most: int


class HeldIn(msgspec.Struct, frozen=True):
    """The names of held frames in ascending order, from after `cursor` on: at most so many."""

    part: StreamPart
    cursor: bytes
    most: int


UNKNOWN = -1


class HeldFrame(msgspec.Struct, frozen=True):
    """A held frame of a chain, without its content."""

    previous: int
    last: int
    came_ms: int


class ChainEnd(msgspec.Struct, frozen=True):
    """The end of a chain in a log: its newest placed number, 0 if there is none in the log."""

    newest: int = 0
    held: tuple[HeldFrame, ...] = ()  # with larger numbers, in ascending order
    has_more: bool = False  # such held frames


LogQuery = Page | Named | HashAt | HolesIn | NamesIn | ChainsIn | HeldIn


class Answer(msgspec.Struct, frozen=True):
    """The answer to a query. It has no damaged frame; `missing` names the damaged offsets."""

    placed: tuple[Placed, ...] = ()
    following: Selection | None = None
    hash: bytes = b""
    missing: tuple[Span, ...] = ()
    lacking: tuple[Missing, ...] = ()  # the answer to HolesIn
    problem: str = ""
    names: tuple[tuple[bytes, ...], ...] = ()  # by span, in ascending order (NamesIn; HeldIn: one)
    chains: tuple[ChainEnd, ...] = ()  # in the order of the question (ChainsIn)
    floor_ms: int = 0  # frames that were placed before this may have been deleted; 0: none were


# How far a publisher's clock may be ahead of the leader's, and leaders' clocks of each other.
CLOCKS_MS = 60_000 + int(MAX_SKEW_S * 1000)


def spans_for(
    missing: Sequence[Missing], wanted: Selection, end: int, after: int = 0
) -> tuple[Span, ...]:
    """Return what a page lacks: in the order of offsets, of those up to `end`.

    In the order of numbers every hole counts in which a message may have a number that is wanted,
    and above `after`, where the page begins.
    """
    if wanted.by_number:
        after_ms = max(wanted.after, after) >> SEQUENCE_BITS
        spans = [hole.span for hole in missing if hole.before_ms >= after_ms]
    else:
        cut = [(max(hole.start, wanted.start), min(hole.end, end)) for hole in missing]
        spans = [Span(start, stop) for start, stop in cut if start < stop]
    if len(spans) > MAX_SPANS:
        spans[MAX_SPANS - 1 :] = [Span(spans[MAX_SPANS - 1].start, spans[-1].end)]
    return tuple(spans)


def with_hole(missing: Sequence[Missing], hole: Missing) -> tuple[Missing, ...]:
    """Add a hole to others, in order; those that it touches become one with it, and empty."""
    apart = [each for each in missing if each.end < hole.start or each.start > hole.end]
    touching = [each for each in missing if each not in apart]
    start = min([hole.start, *(each.start for each in touching)])
    end = max([hole.end, *(each.end for each in touching)])
    before_ms = max([hole.before_ms, *(each.before_ms for each in touching)])
    whole = Missing(start, end, start, before_ms)
    return tuple(sorted([*apart, whole], key=lambda each: each.start))
