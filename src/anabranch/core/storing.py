"""Events and effects of those who store streams, and of those who read them in order.

They belong to the loop (machine.py), which names them all; here they stand together.
"""

import msgspec

from anabranch.core.ids import ChainKey, NodeId, StreamPart
from anabranch.core.messages import Acknowledged
from anabranch.core.messages.storage import FrameName, Selection, Span
from anabranch.core.store import Answer, LogQuery, LogState, LogWrite, Placed

# --- What can happen ------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True):
    """The application reads a part in order: what is delivered so goes to this `ticket`.

    `history` is what it wants of the past, from storage nodes; without `live` that is all. What
    comes live is delivered in the order of each publisher's chain, and what is missing there is
    asked of others if `fills`.
    """

    ticket: int  # above 0
    part: StreamPart
    history: Selection | None = None
    live: bool = True
    fills: bool = True


class Drained(msgspec.Struct, gc=False):
    """The application has taken what was delivered of its history, and has room for more."""

    ticket: int


class Close(msgspec.Struct, gc=False):
    """The application reads no more under this ticket."""

    ticket: int


class OfferUnstored(msgspec.Struct, gc=False):
    """The application is about to leave: offer at once what storage nodes have not signed for."""


class Wrote(msgspec.Struct):
    """A Write is on the disk, and that is how the logs stand after it; or `problem` says why not.

    `placed` are the frames that got a place in a log by an Order or OrderHeld, by part, in order.
    """

    token: int
    problem: str = ""
    states: tuple[LogState, ...] = ()
    placed: tuple[tuple[StreamPart, tuple[Placed, ...]], ...] = ()


class Damaged(msgspec.Struct, frozen=True):
    """The store has found that something of a log is damaged, or is not any more."""

    part: StreamPart


class LossAccepted(msgspec.Struct, frozen=True):
    """An operator lets the logs of a stream go on without what the disk has forgotten."""

    stream: str


class Found(msgspec.Struct):
    """The answer to a Find."""

    token: int
    answer: Answer


# --- What a machine wants done --------------------------------------------------------------


class Missed(msgspec.Struct, gc=False):
    """Messages of a chain with numbers above `after` and below `before` did not come.

    Who reads under the ticket `to` goes on without them; `reason` says why they did not come.
    """

    to: int
    part: StreamPart
    chain: ChainKey
    after: int
    before: int
    reason: str


class PageEnded(msgspec.Struct, gc=False):
    """All of a page of history was delivered: the next is fetched after a Drained."""

    to: int


class HistoryEnded(msgspec.Struct, gc=False):
    """All of the history that was asked for is delivered; or a part, and the problem."""

    to: int
    problem: str = ""
    lost: tuple[Span, ...] = ()  # offsets of it that are damaged at all storage nodes


class Receipt(msgspec.Struct):
    """Storage nodes hold the message of a draft, in their signed words; or too few said so.

    `offset` is that of the first message of its frame, whose number is `first`.
    """

    ticket: int
    words: tuple[tuple[NodeId, Acknowledged], ...] = ()
    problem: str = ""
    offset: int = 0
    first: int = 0
    late: bool = False  # the log has a newer frame of its chain before it


class KeepFrame(msgspec.Struct, gc=False):
    """Keep a published frame in the data folder until a ForgetFrames names it."""

    part: StreamPart
    name: FrameName
    frame: bytes
    is_given: bool = False  # its numbers are the application's choice


class ForgetFrames(msgspec.Struct):
    """Delete frames of a part from the data folder."""

    part: StreamPart
    names: tuple[FrameName, ...]


class Write(msgspec.Struct):
    """Write all of this to the store, as a whole; a Wrote with this token answers, in order."""

    token: int
    writes: tuple[LogWrite, ...]


class Find(msgspec.Struct):
    """Look something up in the store; a Found with this token answers, in any order."""

    token: int
    query: LogQuery
