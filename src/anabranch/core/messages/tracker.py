"""What nodes and trackers say to each other."""

from typing import Annotated

import msgspec

from anabranch.core.ids import NODE_ID_BYTES, NodeId, StreamPart

MAX_NEIGHBOURS = 64
MAX_ADDRESS_LENGTH = 255
MAX_RTT_US = 60_000_000
MAX_REASON = 64
MAX_PROBES = 4  # that a tracker may ask for at once

Node = Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
Nodes = Annotated[tuple[Node, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)]
Address = Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_LENGTH)]
MAX_COUNTER = 1 << 62  # a tracker goes on from what a node reports, and must be able to
Counter = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
RttUs = Annotated[int, msgspec.Meta(ge=0, le=MAX_RTT_US)]


class Contact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node and where it listens; the address is empty where the transport needs none."""

    node: Node
    address: Address = ""


class Status(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=16):
    """A node's place in one overlay: the last instruction it carried out and what came of it.

    Counter 0 says that it has carried out none: it has just joined, or restarted.
    """

    part: StreamPart
    counter: Counter
    neighbours: Nodes = ()
    rtts_us: Annotated[tuple[RttUs, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)] = ()
    address: Address = ""
    dialable: bool = True  # whether others can dial it, as far as it knows


class Instruction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=17):
    """A tracker's word to a node: be neighbour of exactly these, dial these and accept those."""

    part: StreamPart
    counter: Counter
    connect: Annotated[tuple[Contact, ...], msgspec.Meta(max_length=MAX_NEIGHBOURS)] = ()
    accept: Nodes = ()


class Leave(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=18):
    """A node leaves one overlay in good order."""

    part: StreamPart


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
DelayUs = Annotated[int, msgspec.Meta(ge=0, le=MAX_RTT_US)]


class Report(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=19):
    """A node's own account of one part, for people to look at: totals since it joined."""

    part: StreamPart
    published: Count = 0
    delivered: Count = 0
    duplicates: Count = 0
    dropped: Count = 0
    missed: Count = 0  # by slow readers of the node's own
    delay_mean_us: DelayUs = 0  # of what was delivered since the last report
    delay_p50_us: DelayUs = 0
    delay_p99_us: DelayUs = 0
    cpu_ms: Count = 0  # of the whole process
    unstored: Count = 0  # messages published by the node that its storage nodes did not sign for
    registry_age_s: Count = 0  # since a tracker last confirmed each ledger that the node follows


class Refused(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=20):
    """A tracker's word to a node: you have no place in this overlay, and why."""

    part: StreamPart
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]


class Probe(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=21):
    """A tracker's word to a node: measure round trips; dial these, those will dial you."""

    part: StreamPart
    connect: Annotated[tuple[Contact, ...], msgspec.Meta(max_length=MAX_PROBES)] = ()
    accept: Annotated[tuple[Node, ...], msgspec.Meta(max_length=MAX_PROBES)] = ()


class Probed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=22):
    """A node's answer: the round trip to one of them; 0 says that it could not be reached."""

    part: StreamPart
    node: Node
    rtt_us: RttUs = 0


class Listening(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=23):
    """A node's request to a tracker: dial me at this address, and tell me whether you could."""

    address: Address


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=24):
    """A tracker's answer: the host of the node's link, and whether it could dial the address.

    The host is empty where it is unknown, or that of a proxy.
    """

    host: Address
    address: Address
    dialable: bool
