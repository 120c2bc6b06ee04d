"""What two neighbours say to each other about a stream part, besides its data."""

import hashlib
from typing import Annotated

import msgspec

from anabranch.core.ids import (
    CHAIN_KEY_BYTES,
    MAX_TIMESTAMP_MS,
    NODE_ID_BYTES,
    ChainKey,
    NodeId,
    StreamPart,
)

MAX_RECENT_MS = 60_000
MAX_PAUSE_MS = 1_000
SIGNATURE_BYTES = 64
TICKET_BYTES = 16
MAX_KEY_REQUEST_BYTES = 1_024
MAX_KEY_ANSWER_BYTES = 4 * 1_024
MAX_KEY_HOPS = 64
MAX_GOT = 256  # frames in one word

Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
PauseMs = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAUSE_MS)]
RequestTicket = Annotated[bytes, msgspec.Meta(min_length=TICKET_BYTES, max_length=TICKET_BYTES)]


class Meet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """I take you for my neighbour in `part`: data may flow once both have said so.

    `recent_ms` asks for the frames of that last while: a newcomer misses nothing that was
    published between its joining and its first neighbour.
    """

    part: StreamPart
    reply: bool = False
    recent_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_RECENT_MS)] = 0


class Bye(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """You are not my neighbour in `part` any more."""

    part: StreamPart


class SlowDown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Most links of the sender in `part` are full: send it nothing there for a while."""

    part: StreamPart
    pause_ms: PauseMs


class StorageSlowDown(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8
):
    """A storage node cannot write as fast as `part` is published: publishers rest for a while.

    It is signed, and passed on to all members once.
    """

    part: StreamPart
    node: Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
    pause_ms: PauseMs
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]
    signature: Signature


_SLOW_DOWN_DOMAIN = b"anabranch storage slow down v1\0"


def slow_down_digest(
    network: bytes, part: StreamPart, node: NodeId, pause_ms: int, at_ms: int
) -> bytes:
    """Return the digest that a storage node signs in a StorageSlowDown."""
    name = part.stream.encode()
    digest = hashlib.sha256(_SLOW_DOWN_DOMAIN)
    digest.update(len(network).to_bytes(2) + network + node)
    digest.update(len(name).to_bytes(2) + name + bytes([part.partition]))
    digest.update(pause_ms.to_bytes(4) + at_ms.to_bytes(8))
    return digest.digest()


class Got(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """To who made frames and sent them to us: we have those that end with these numbers."""

    part: StreamPart
    chain: Annotated[ChainKey, msgspec.Meta(min_length=CHAIN_KEY_BYTES, max_length=CHAIN_KEY_BYTES)]
    numbers: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)], ...],
        msgspec.Meta(min_length=1, max_length=MAX_GOT),
    ]


class Introduce(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The first word on every link: for which user this node acts, and that user's signature."""

    user: Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
    until_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]
    signature: Signature


class KeyRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """A subscriber asks the publisher of `chain` for group keys: pass it on towards there.

    The ticket's first byte tells which try it is, the others are random. The first try goes the way
    that the chain's frames came; of later ones the random bytes say where they leave that way.
    """

    part: StreamPart
    chain: Annotated[ChainKey, msgspec.Meta(min_length=CHAIN_KEY_BYTES, max_length=CHAIN_KEY_BYTES)]
    ticket: RequestTicket
    hops: Annotated[int, msgspec.Meta(ge=1, le=MAX_KEY_HOPS)]
    request: Annotated[bytes, msgspec.Meta(max_length=MAX_KEY_REQUEST_BYTES)]


class KeyAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """The answer of the publisher, or of who has its keys, sealed to the subscriber.

    It goes back the way the request came.
    """

    part: StreamPart
    ticket: RequestTicket
    answer: Annotated[bytes, msgspec.Meta(max_length=MAX_KEY_ANSWER_BYTES)]
