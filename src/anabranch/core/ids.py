"""Names of things: nodes, streams, stream parts, messages.

A node is its address (20 bytes, shown as 0x and 40 hex digits). A stream is `<owner>/<path>`.
A stream part is one partition of a stream, and is one overlay. A message is named by its part,
its publisher, the publisher's chain and its *number* in that chain.

The number packs (timestamp in ms, sequence) into one integer below 2**63, so that order is `<`
and a duplicate check compares integers. 0 stands for "no message".
"""

import hashlib
import re
from typing import Annotated, NewType

import msgspec

from anabranch.core.errors import LocalError

NodeId = NewType("NodeId", bytes)
PartKey = NewType("PartKey", bytes)  # what a frame's fixed head carries instead of a stream's name
ChainKey = NewType("ChainKey", bytes)  # publisher and chain id, as they stand in a frame's head

NODE_ID_BYTES = 20
PART_KEY_BYTES = 16
CHAIN_KEY_BYTES = NODE_ID_BYTES + 8
SEQUENCE_BITS = 20
MAX_SEQUENCE = (1 << SEQUENCE_BITS) - 1
MAX_TIMESTAMP_MS = (1 << (63 - SEQUENCE_BITS)) - 1  # the year 2248
MAX_PARTITIONS = 100
MAX_STREAM_ID_LENGTH = 256
MAX_SKEW_S = 300.0  # between a clock and the numbers that are taken for new there

_STREAM_ID = re.compile(r"0x[0-9a-f]{40}/[A-Za-z0-9_.~-]+(?:/[A-Za-z0-9_.~-]+)*")

StreamId = Annotated[str, msgspec.Meta(min_length=44, max_length=MAX_STREAM_ID_LENGTH)]
Partition = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTITIONS)]


def show(node: NodeId) -> str:
    """Return the address as people write it."""
    return "0x" + node.hex()


def parse_node(text: str) -> NodeId:
    """Read an address as people write it."""
    if not re.fullmatch(r"0x[0-9a-fA-F]{40}", text):
        raise LocalError(f"{text!r} is not an address: write 0x and 40 hexadecimal digits")
    return NodeId(bytes.fromhex(text[2:]))


class StreamPart(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    order=True,
    cache_hash=True,
):
    """One partition of a stream: the unit that has an overlay."""

    stream: StreamId
    partition: Partition

    def __str__(self) -> str:
        return f"{self.stream}#{self.partition}"


def stream_part(stream: str, partition: int = 0) -> StreamPart:
    """Name a part, refusing names that no stream can have."""
    if len(stream) > MAX_STREAM_ID_LENGTH or not _STREAM_ID.fullmatch(stream):
        raise LocalError(
            f"{stream!r} is not a stream: write <owner address>/<path>, with an address of 0x and "
            "40 lower-case hexadecimal digits, such as 0x.../city/cars"
        )
    if not 0 <= partition < MAX_PARTITIONS:
        raise LocalError(f"partition {partition} does not exist: partitions go from 0 to 99")
    return StreamPart(stream, partition)


def part_key(part: StreamPart) -> PartKey:
    """Hash a part's name to the fixed size of a frame's head."""
    name = part.stream.encode()
    digest = hashlib.sha256(
        b"anabranch part v1" + len(name).to_bytes(2) + name + bytes([part.partition])
    )
    return PartKey(digest.digest()[:PART_KEY_BYTES])


def chain_key(publisher: NodeId, chain: int) -> ChainKey:
    """Join a publisher and the id of one of its chains."""
    return ChainKey(publisher + chain.to_bytes(8))


def publisher_of(key: ChainKey) -> NodeId:
    """Return whose chain this is."""
    return key[:NODE_ID_BYTES]  # type: ignore[return-value]  # to say NodeId takes as long again


def number_of(timestamp_ms: int, sequence: int) -> int:
    """Pack a message's place in its chain into one integer."""
    return timestamp_ms << SEQUENCE_BITS | sequence


def next_number(newest: int, now_ms: int) -> int:
    """Number the message after `newest`: same millisecond, sequence + 1; otherwise sequence 0.

    A clock that steps back must not break the chain's order, so time never goes below `newest`.
    """
    return max(newest + 1, number_of(now_ms, 0))


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """What a frame says of itself, and its name: a range of numbers of one chain in one part."""

    part: PartKey
    chain: ChainKey
    previous: int  # the number of the chain's message before the frame; 0: it begins here
    first: int
    last: int
    count: int

    @property
    def publisher(self) -> NodeId:
        """Whose address the frame must be signed with."""
        return publisher_of(self.chain)
