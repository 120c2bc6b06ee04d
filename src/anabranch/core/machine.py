"""The one loop: `effects = machine.handle(event, now)`.

Events are what can happen to a protocol participant, effects are what it wants done. Both are
small structs; a driver (live/ or sim/) turns the world into the first and the second into the
world. A machine opens no socket, reads no clock and draws no global randomness.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from anabranch.core.ids import FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.messages import Control
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.core.packets import ReceivedBatch as ReceivedBatch
from anabranch.core.storing import Close as Close
from anabranch.core.storing import Damaged as Damaged
from anabranch.core.storing import Drained as Drained
from anabranch.core.storing import Find as Find
from anabranch.core.storing import ForgetFrames as ForgetFrames
from anabranch.core.storing import Found as Found
from anabranch.core.storing import HistoryEnded as HistoryEnded
from anabranch.core.storing import KeepFrame as KeepFrame
from anabranch.core.storing import LossAccepted as LossAccepted
from anabranch.core.storing import Missed as Missed
from anabranch.core.storing import OfferUnstored as OfferUnstored
from anabranch.core.storing import Open as Open
from anabranch.core.storing import PageEnded as PageEnded
from anabranch.core.storing import Receipt as Receipt
from anabranch.core.storing import Write as Write
from anabranch.core.storing import Wrote as Wrote

# --- What can happen ------------------------------------------------------------------------


class Received(msgspec.Struct, gc=False):
    """A packet came over the link from `sender`, whose identity the transport has proved."""

    sender: NodeId
    data: bytes


class Wakeup(msgspec.Struct, gc=False):
    """The time in `wakeup_at` has come."""


class LinkUp(msgspec.Struct, gc=False):
    """A link to `peer` stands, whoever dialled; the handshake may have measured its round trip."""

    peer: NodeId
    rtt_s: float | None = None
    host: str = ""  # from which the peer dialled, if it did and that is known


class LinkDown(msgspec.Struct, gc=False):
    """The link to `peer` ended, or dialling it failed."""

    peer: NodeId
    reason: str


class DialChecked(msgspec.Struct, gc=False):
    """The answer to a DialCheck: whether `peer` has proved its key at the address."""

    peer: NodeId
    address: str
    reached: bool


class Rtt(msgspec.Struct, gc=False):
    """The transport measured the round trip to `peer` anew."""

    peer: NodeId
    seconds: float


class Congested(msgspec.Struct, gc=False):
    """What waits for `peer` has passed the high mark of its queue."""

    peer: NodeId


class Writable(msgspec.Struct, gc=False):
    """What waits for `peer` has fallen below the low mark again."""

    peer: NodeId


class Subscribe(msgspec.Struct, gc=False):
    """The application wants the messages of `part`; if it does not read them, it needs no keys.

    `plain`: it wants them as they come. Otherwise they come in the order of those who `Open`.
    """

    part: StreamPart
    reads: bool = True
    plain: bool = True


class Unsubscribe(msgspec.Struct, gc=False):
    """The application wants them no more; what it publishes there keeps the node in the overlay."""

    part: StreamPart


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to be: `ticket` comes back in its Outcome.

    If `copies` are wanted, a Receipt with this ticket follows when so many storage nodes have
    said that they hold it, or when that has not come about in time.
    """

    content: bytes
    content_type: int = 0
    ticket: int = 0
    copies: int = 0


class Publish(msgspec.Struct):
    """The application publishes; drafts that are handed over together may leave in one frame."""

    part: StreamPart
    drafts: Sequence[Draft]


class PublishNumbered(msgspec.Struct):
    """The application publishes drafts under numbers of its own choice, in a chain of its choice.

    They leave in one frame, and `previous` is the number of the chain's message before it (0: the
    chain begins here). Published again, even by another process of the same user, it is the same
    frame to the byte. Its one Outcome has this `ticket`, and so has the Receipt if `copies` are
    wanted; what the drafts themselves say of the two is not looked at.
    """

    part: StreamPart
    chain: int
    previous: int
    drafts: Sequence[tuple[int, Draft]]  # with their numbers, which ascend
    ticket: int = 0
    copies: int = 0


class Retire(msgspec.Struct, gc=False):
    """The application publishes to `part` no more; its subscription keeps it in the overlay."""

    part: StreamPart


class Follow(msgspec.Struct, gc=False):
    """The application needs a chain of the registry, now and kept up to date: Learned answers."""

    chain: str


class Request(msgspec.Struct):
    """The application asks the registry something: exactly one Answered with its ticket follows."""

    ticket: int
    message: Control


class Stored(msgspec.Struct, gc=False):
    """What a Store named by `token` handed over is on the disk, or `problem` says why not."""

    token: int
    problem: str = ""


Event = (
    Received
    | ReceivedBatch
    | Wakeup
    | LinkUp
    | LinkDown
    | DialChecked
    | Rtt
    | Congested
    | Writable
    | Subscribe
    | Unsubscribe
    | Publish
    | PublishNumbered
    | Retire
    | Follow
    | Request
    | Stored
    | Open
    | Drained
    | Close
    | OfferUnstored
    | Wrote
    | Damaged
    | LossAccepted
    | Found
)

# --- What a machine wants done --------------------------------------------------------------


class Send(msgspec.Struct, gc=False):
    """Send a control message."""

    to: NodeId
    message: Control


class Forward(msgspec.Struct, gc=False):
    """Send one frame, byte for byte, to each peer with that peer's route.

    What `is_first_hand` came from who made it, so that hardly anybody has it as yet: it leaves at
    once. What came by others may wait for copies that make it needless.
    """

    overlay: int
    head: FrameHead
    branches: Sequence[tuple[NodeId, bytes]]
    frame: bytes
    is_first_hand: bool = False


class Published(msgspec.Struct, gc=False):
    """Take note of a frame we have just made and signed, under numbers that were given or not."""

    head: FrameHead
    frame: bytes
    is_given: bool = False


class Deliver(msgspec.Struct, gc=False):
    """Hand a frame's messages to the application, once; `key` opens them if they are encrypted.

    It is for who reads under the ticket `to`, and of its messages those with numbers above
    `after`, up to `upto`, but the first `skip` of the frame, and not those after the first `most`;
    0: it is for everybody who reads the part as it comes, and all of it.
    """

    part: StreamPart
    head: FrameHead
    frame: bytes
    hops: int
    key: bytes = b""
    to: int = 0
    after: int = 0
    upto: int = MAX_NUMBER
    skip: int = 0
    most: int = MAX_NUMBER  # counted from the beginning of the frame, as `skip` is
    late: bool = False  # in the log it lies behind a newer frame of its chain


class Dropped(msgspec.Struct, gc=False):
    """A frame ends here, and why; for who reads under the ticket `to`, if it is not 0."""

    head: FrameHead
    reason: str
    peer: NodeId | None = None
    to: int = 0


class Copies(msgspec.Struct, gc=False):
    """Frames of a part came from `peer` that were here before, and end here: their heads.

    What is queued for `peer` and is the same need not be sent any more.
    """

    part: PartKey
    peer: NodeId
    names: list[bytes]


class Outcome(msgspec.Struct, gc=False):
    """What became of a draft: `sent`, or why not. Exactly one for every draft."""

    ticket: int
    result: str
    number: int = 0


class Notice(msgspec.Struct, gc=False):
    """Something the operator or the application may want to know."""

    part: StreamPart | None
    kind: str
    detail: str = ""


class Learned(msgspec.Struct, gc=False):
    """The registry's word on a chain has come, or changed: `height` changes, 0 if there is none."""

    chain: str
    height: int


class Answered(msgspec.Struct):
    """What the registry said to a Request; or no message, and the problem."""

    ticket: int
    message: Control | None
    problem: str = ""


class Store(msgspec.Struct, gc=False):
    """Keep a change of the registry on the disk; a Stored with this token answers."""

    token: int
    chain: str
    sequence: int  # of the changes of this chain, in the order in which they came to us
    change: bytes


class KeepKey(msgspec.Struct, gc=False):
    """Keep a group key in the local key store, so that it is there after a restart."""

    stream: str
    publisher: NodeId
    key_id: bytes
    secret: bytes


class Connect(msgspec.Struct, gc=False):
    """Dial `peer`; a LinkUp or a LinkDown answers."""

    peer: NodeId
    address: str = ""


class DialCheck(msgspec.Struct, gc=False):
    """Dial `peer`, let it prove its key, and hang up; a DialChecked answers.

    For a node outside, the address must not lead to an internal host or to this machine, whatever
    its name resolves to, unless that is the host from which the node's own link comes.
    """

    peer: NodeId
    address: str
    seen: str = ""  # host from which the node's link comes; empty: unknown
    is_outside: bool = False


class Advertise(msgspec.Struct, gc=False):
    """From a service to its Peer: tell trackers this address, and whether others can dial it."""

    address: str
    dialable: bool


class Disconnect(msgspec.Struct, gc=False):
    """End the link to `peer`; no LinkDown answers."""

    peer: NodeId
    reason: str


class Hold(msgspec.Struct, gc=False):
    """From an overlay to its Peer: this overlay needs a link to `peer`, and dials if `dial`."""

    peer: NodeId
    address: str = ""
    dial: bool = True


class Release(msgspec.Struct, gc=False):
    """From an overlay to its Peer: this overlay needs the link no more."""

    peer: NodeId


Effect = (
    Send
    | Forward
    | Published
    | Deliver
    | Dropped
    | Copies
    | Outcome
    | Notice
    | Learned
    | Answered
    | Store
    | KeepKey
    | Missed
    | PageEnded
    | HistoryEnded
    | Receipt
    | KeepFrame
    | ForgetFrames
    | Write
    | Find
    | Connect
    | DialCheck
    | Disconnect
    | Hold
    | Advertise
    | Release
)


Sizes = dict[str, tuple[int, int]]  # a bounded table's name: its size and its bound


def fullest(tables: Iterable[Sizes]) -> Sizes:
    """Merge tables; of those with one name, keep the fullest."""
    merged: Sizes = {}
    for table in tables:
        for name, size in table.items():
            merged[name] = max(merged.get(name, size), size)
    return merged


class Machine(Protocol):
    """A protocol participant: a peer, a tracker."""

    @property
    def wakeup_at(self) -> float | None:
        """When the machine wants a Wakeup: its one timer."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; return what is to be done about it."""

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
