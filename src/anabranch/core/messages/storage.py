"""What storage nodes say to each other, and to those who read from them or publish to them.

The log of a stream part is a row of frames. Its messages have dense offsets, so a frame of three
messages takes three of them, and a position in the log is the offset of a frame's first message.
One storage node, the primary of an epoch, gives offsets; the others fetch its log from it.

Whoever reads asks for a page at a time (`Resend`), and asks for the next when it has room for it:
nobody keeps a page for somebody who does not read. Neighbours answer the same question from the
frames of the last while.
"""

from typing import Annotated

import msgspec

from anabranch.core.ids import CHAIN_KEY_BYTES, NODE_ID_BYTES, ChainKey, NodeId, StreamPart
from anabranch.core.messages.data import MAX_FRAME_BODY_BYTES
from anabranch.core.messages.links import Signature
from anabranch.core.messages.registry import HASH_BYTES, NO_HASH, Hash, Problem, Ticket

MAX_NUMBER = (1 << 63) - 1  # of messages, and of offsets: it stands for "no end"
MAX_EPOCH = 1 << 40
MAX_LAST = 10_000_000
MAX_PAGE_FRAMES = 4_096
PAGE_BYTES = 256 * 1024  # of the frames of a page; a larger frame goes alone
MAX_NAMED = 1_024
MAX_SPANS = 1_024  # of offsets that one answer names as lacking
CURSOR_BYTES = 8 + CHAIN_KEY_BYTES
FRAME_OVERHEAD_BYTES = 139  # a frame's head and signature (frames.py)

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=MAX_EPOCH)]
Frame = Annotated[bytes, msgspec.Meta(max_length=MAX_FRAME_BODY_BYTES + FRAME_OVERHEAD_BYTES)]
Frames = Annotated[tuple[Frame, ...], msgspec.Meta(max_length=MAX_PAGE_FRAMES)]
OneChain = Annotated[ChainKey, msgspec.Meta(min_length=CHAIN_KEY_BYTES, max_length=CHAIN_KEY_BYTES)]


class Selection(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which messages are wanted: those for which all of it holds, in whole frames.

    In the order of offsets (`by_number` is false) they come up to the high mark. In the order of
    numbers, which is that of their publishers' time, those come too that have no offset yet.
    """

    start: Offset = 0
    end: Offset = MAX_NUMBER  # offsets from `start` up to this one, without it
    after: Number = 0
    upto: Number = MAX_NUMBER  # numbers above `after`, up to this one
    whose: Annotated[bytes, msgspec.Meta(max_length=CHAIN_KEY_BYTES)] = b""  # publisher, or chain
    last: Annotated[int, msgspec.Meta(ge=0, le=MAX_LAST)] = 0  # only so many of them; 0: all
    by_number: bool = False
    # Of what comes in the order of numbers: the (last number, chain) after which to go on.
    cursor: Annotated[bytes, msgspec.Meta(max_length=CURSOR_BYTES)] = b""


class Span(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The offsets from `start` up to `end`, without `end`."""

    start: Offset
    end: Offset


Spans = Annotated[tuple[Span, ...], msgspec.Meta(max_length=MAX_SPANS)]


# --- Readers --------------------------------------------------------------------------------


class Resend(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=48):
    """Send me a page of what is selected; `Resent` answers."""

    ticket: Ticket
    part: StreamPart
    selection: Selection


class Resent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=49):
    """A page: `following` selects the rest, here or at another storage node; None: that was all.

    The log that was asked has the messages from `start` up to its high mark. `offsets` are those
    of the frames' first messages; MAX_NUMBER stands for one that has none yet.
    """

    ticket: Ticket
    frames: Frames = ()
    offsets: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_PAGE_FRAMES)] = ()
    following: Selection | None = None
    start: Offset = 0
    high: Offset = 0
    problem: Problem = ""
    # In the order of offsets: those between the ends of the page that are damaged at this node. In
    # the order of numbers: those of the log, since the numbers of lost messages are not known.
    missing: Spans = ()
    # The offsets of those frames of the page that are late (Entry).
    late: Annotated[tuple[Offset, ...], msgspec.Meta(max_length=MAX_PAGE_FRAMES)] = ()


# --- Publishers -----------------------------------------------------------------------------


class FrameName(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A frame of a part: its chain and the number of its last message."""

    chain: OneChain
    last: Number


Names = Annotated[tuple[FrameName, ...], msgspec.Meta(max_length=MAX_NAMED)]


class AskStored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=50):
    """Tell me when you hold these frames for good: on your disk, with offsets that will stay."""

    part: StreamPart
    names: Names


class Holding(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stored frame: its first message's offset, the SHA-256 of the frame, and if it is late."""

    name: FrameName
    offset: Offset
    digest: Hash
    late: bool = False


Holdings = Annotated[tuple[Holding, ...], msgspec.Meta(min_length=1, max_length=MAX_NAMED)]


class Acknowledged(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=51
):
    """A storage node's signed word that it holds frames; core/receipts.py says what is signed."""

    part: StreamPart
    holdings: Holdings
    signature: Signature


class Hand(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=52):
    """Frames that a storage node may lack: from their publisher, or from another storage node."""

    part: StreamPart
    frames: Frames


SomeNames = Annotated[tuple[FrameName, ...], msgspec.Meta(min_length=1, max_length=MAX_NAMED)]


class LackingNames(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=62
):
    """Answer of a storage node to AskStored: these frames are not on its disk. Hand them over."""

    part: StreamPart
    names: SomeNames


class Declined(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=63):
    """Answer of a storage node to AskStored: these frames would be refused. Offer them no more."""

    part: StreamPart
    names: SomeNames


# --- Storage nodes among themselves ---------------------------------------------------------


class Vote(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=53):
    """I would be the primary of an epoch: my log is of `log_epoch`, and so long.

    Without `sure` it is only asked whether there would be a vote: nothing is promised.
    """

    part: StreamPart
    epoch: Epoch
    log_epoch: Epoch
    length: Offset
    sure: bool


class Voted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=54):
    """The answer to a Vote; a voter that knows a higher epoch names that one."""

    part: StreamPart
    epoch: Epoch
    granted: bool
    sure: bool


class Lead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=55):
    """I am the primary of this epoch, which began when my log was `begin` long: fetch it."""

    part: StreamPart
    epoch: Epoch
    begin: Offset


class Fetch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=56):
    """My log is on my disk up to `offset`, and that is its hash there: send what follows.

    This is also what tells a primary how far its followers are.
    """

    part: StreamPart
    epoch: Epoch
    offset: Offset
    hash: Hash
    high: Offset  # how much of it I know to be settled
    # With what my log is stamped; 0 while my log is below its record, and must not be counted.
    log_epoch: Epoch


LATE = -1  # mark of an entry whose frame came behind a newer one of its chain


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A frame in the log: in which epoch it was placed there, and when.

    `mark` is the entry's place in the order of its chain. 0: it follows the newest frame before it.
    LATE: a newer frame of its chain lies before it, or one with the same `previous`. Above 0 it is
    a gap record: the messages with numbers from `mark` up to the frame's `previous` were missing
    when the frame was placed. The record has no offset of its own, so that offsets stay dense.
    """

    epoch: Epoch
    placed_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
    frame: Frame
    mark: Annotated[int, msgspec.Meta(ge=LATE, le=MAX_NUMBER)] = 0


class Fetched(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=57):
    """What follows in the primary's log after `offset`, whose hash there is `hash`.

    If that is not where the follower's log ends, and the same, it cuts its log back to what it
    knows to be settled; or, if the primary's log begins only there, begins anew at that place.
    """

    part: StreamPart
    epoch: Epoch
    begin: Offset
    high: Offset
    offset: Offset
    hash: Hash = NO_HASH
    starts_here: bool = False  # the primary has nothing before `offset`
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_PAGE_FRAMES)] = ()


class AskEntries(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=64):
    """Send the entries of a log from `start` on, up to `end`: they are damaged at the sender."""

    ticket: Ticket
    part: StreamPart
    start: Offset
    end: Offset


class Entries(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=65):
    """Entries of a log without a hole, from the offset on that was asked for; none if it lacks it.

    `hash` is that of the log at this offset. The requester checks that the entries lead from there
    to the hash of its own log behind the hole.
    """

    ticket: Ticket
    part: StreamPart
    offset: Offset
    hash: Hash = NO_HASH
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_PAGE_FRAMES)] = ()
    length: Offset = 0  # how far the log of the sender has come, or had come before it forgot


# --- How far the logs of storage nodes have come ----------------------------------------------


MAX_MARKS = 16  # as many storage nodes as a stream may have

NodeIdBytes = Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]


class Mark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A storage node's signed statement on its log; core/log_marks.py says what is signed.

    Its log is stamped with `epoch` and `length` long, on its disk. All before `high` is settled;
    `hash` is that of the log there.
    """

    node: NodeIdBytes
    epoch: Epoch
    length: Offset
    high: Offset
    hash: Hash
    signature: Signature


Marks = Annotated[tuple[Mark, ...], msgspec.Meta(max_length=MAX_MARKS)]


class Marked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=72):
    """The sender's newest mark, to be kept by the other storage nodes."""

    part: StreamPart
    mark: Mark


class AskRank(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=73):
    """How does your log stand, and which is the newest mark of mine that you have?"""

    part: StreamPart


class Ranked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=74):
    """The answer to AskRank: how the sender's log stands on its disk.

    `is_whole` is false while the sender's own log is below its record.
    """

    part: StreamPart
    epoch: Epoch  # promised
    log_epoch: Epoch
    start: Offset
    length: Offset
    hash: Hash
    is_whole: bool
    mark: Mark | None = None  # the newest of the receiver


class Disagree(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=75):
    """Our logs disagree below a high-water mark. These are the marks that I have.

    Each side looks whether its own log contradicts marks of a majority.
    """

    part: StreamPart
    marks: Marks
    is_answer: bool = False


# --- A storage node and those that may hold frames which it lacks -----------------------------

NAME_BYTES = CURSOR_BYTES  # of a frame: its last number and its chain, in this order
RANGE_DIGEST_BYTES = 16
MAX_RANGES = 256  # in one report
MAX_REPORT_FRAMES = 8_192  # that the ranges of one report hold together

NameBytes = Annotated[bytes, msgspec.Meta(max_length=NAME_BYTES)]


class FrameRange(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """How many frames the sender holds with last numbers from `low` to `high`, and their digest.

    The digest is the beginning of the SHA-256 of the names of these frames, in ascending order.
    """

    low: Number
    high: Number
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPORT_FRAMES)]
    digest: Annotated[
        bytes, msgspec.Meta(min_length=RANGE_DIGEST_BYTES, max_length=RANGE_DIGEST_BYTES)
    ]


class AskRanges(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=66):
    """A storage node asks which frames the receiver has taken after `cursor`; Ranges answers.

    Frames that end at the number `after` or before it are not wanted.
    """

    ticket: Ticket
    part: StreamPart
    cursor: Number = 0
    after: Number = 0


class Ranges(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=67):
    """A report: ranges in ascending order, without overlap, that cover the frames up to `cursor`.

    The sender keeps the frames of its last report ready for a while (AskLacking).
    """

    ticket: Ticket
    ranges: Annotated[tuple[FrameRange, ...], msgspec.Meta(max_length=MAX_RANGES)] = ()
    cursor: Number = 0
    more: bool = False  # further frames can be asked for at once, from the cursor on
    problem: Problem = ""


class AskLacking(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=68):
    """A storage node asks for those frames of a report that it lacks; Lacking answers.

    `names` are those of its own frames with last numbers from `low` to `high`, one after another.
    """

    ticket: Ticket
    part: StreamPart
    report: Ticket  # the ticket of the report
    low: Number
    high: Number
    names: Annotated[bytes, msgspec.Meta(max_length=MAX_NAMED * NAME_BYTES)] = b""
    cursor: NameBytes = b""  # the name of the last frame that has come already


class Lacking(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=69):
    """Frames in the ascending order of their names; if there are `more`, they follow on request."""

    ticket: Ticket
    frames: Frames = ()
    more: bool = False
    problem: Problem = ""


__all__ = [
    "HASH_BYTES",
    "LATE",
    "MAX_NAMED",
    "MAX_NUMBER",
    "MAX_PAGE_FRAMES",
    "MAX_SPANS",
    "PAGE_BYTES",
    "Acknowledged",
    "AskEntries",
    "AskLacking",
    "AskRanges",
    "AskRank",
    "AskStored",
    "Declined",
    "Disagree",
    "Entries",
    "Entry",
    "Fetch",
    "Fetched",
    "FrameName",
    "FrameRange",
    "Hand",
    "Holding",
    "Lacking",
    "LackingNames",
    "Lead",
    "Mark",
    "Marked",
    "Ranges",
    "Ranked",
    "Resend",
    "Resent",
    "Selection",
    "Span",
    "Vote",
    "Voted",
]
