"""What a run records: one schema for the simulator and for live nodes.

A trace is a sequence of small records, each with its kind and with `at`, the time in seconds
(Unix time; simulated runs begin at a fixed date). Names are text: nodes as addresses, stream
parts as `stream#partition`, chains as 16 hex digits. `number` is the place of a frame's last
message in its chain, (timestamp in ms << 20) | sequence.
"""

import msgspec


class _Record(msgspec.Struct, tag_field="kind", tag=str.lower, gc=False, omit_defaults=True):
    at: float
    node: str  # where it happened


class _OfFrame(_Record):
    part: str
    publisher: str
    chain: str
    number: int


class Published(_OfFrame):
    """A frame left its publisher's hands."""

    count: int
    size_bytes: int


class Sent(_OfFrame):
    """A copy of a frame left for a neighbour."""

    peer: str
    size_bytes: int


class Received(_OfFrame):
    """The first copy of a frame came from a neighbour."""

    peer: str
    hops: int


class Duplicate(_OfFrame):
    """A later copy of a frame came from a neighbour."""

    peer: str


class Delivered(_OfFrame):
    """A frame's messages were handed to the application."""

    count: int
    hops: int
    delay_ms: float


class Dropped(_OfFrame):
    """A frame, or a copy of it, ended here."""

    reason: str
    peer: str = ""


class Subscribed(_Record):
    """The node's application wants the messages of a part from now on."""

    part: str


class Unsubscribed(_Record):
    """It wants them no more."""

    part: str


class Stopped(_Record):
    """The node ended, in good order or not, and its subscriptions with it."""


class Linked(_Record):
    """A link came up or went down."""

    peer: str
    up: bool
    reason: str = ""


class Instruction(_Record):
    """A tracker (`node`) told `peer` whom to have for neighbours."""

    peer: str
    part: str
    counter: int
    neighbours: list[str]


class Rtt(_Record):
    """A round trip was measured."""

    peer: str
    rtt_ms: float


class Unicast(_Record):
    """How long a message takes that is sent straight to `peer`, with or without a link."""

    peer: str
    delay_ms: float


class Topology(_Record):
    """A snapshot of one node's neighbours in one part."""

    part: str
    neighbours: list[str]


class Noted(_Record):
    """A machine had something to say."""

    what: str
    detail: str = ""
    part: str = ""


Record = (
    Published
    | Sent
    | Received
    | Duplicate
    | Delivered
    | Dropped
    | Subscribed
    | Unsubscribed
    | Stopped
    | Linked
    | Instruction
    | Rtt
    | Unicast
    | Topology
    | Noted
)

KINDS: dict[str, type[msgspec.Struct]] = {kind.__name__.lower(): kind for kind in Record.__args__}
