"""Frames: one signed batch of one or more consecutive messages of one publisher chain.

    head (75 bytes, fixed) | body (msgpack) | signature (64 bytes)

The head is read with one `unpack_from` and is all that a node needs to drop a known copy. The
signature covers a domain tag and every byte before it; the head is of fixed size and holds the
body's length, so no two frames share an encoding. A frame is forwarded byte for byte.

`previous` is the number of the chain's message before the frame (0: the chain begins here).
Nothing lies between it and `first`, so a frame settles the numbers (previous, last].
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import msgspec

from anabranch.core.encryption import AES_256_GCM, decrypt
from anabranch.core.errors import RemoteError
from anabranch.core.ids import MAX_SEQUENCE, SEQUENCE_BITS, ChainKey, FrameHead, PartKey
from anabranch.core.machine import Draft
from anabranch.core.messages.data import (
    MAX_FRAME_BODY_BYTES,
    MAX_FRAME_MESSAGES,
    MAX_KEY_ID_BYTES,
    MAX_NEXT_KEY_BYTES,
    Body,
    Item,
    Items,
)

FRAME_VERSION = 1
HEAD = struct.Struct(">B16s28sQQQHI")
HEAD_BYTES = HEAD.size
SIGNATURE_BYTES = 64
_AROUND_BODY_BYTES = HEAD_BYTES + SIGNATURE_BYTES
MIN_FRAME_BYTES = HEAD_BYTES + 1 + SIGNATURE_BYTES
MAX_FRAME_BYTES = HEAD_BYTES + MAX_FRAME_BODY_BYTES + SIGNATURE_BYTES

_CHAIN = slice(17, 45)  # where it stands in the head,
LAST_NUMBER = slice(61, 69)  # and the frame's last number
NAME_BYTES = 36  # of a frame: its last number and its chain

_DOMAIN = b"anabranch frame v1\0"
# Each hash begins as a copy of this one: OpenSSL searches its providers for every one that is new.
_HASH_BEGUN = hashlib.sha256(_DOMAIN)
_NUMBERS_END = 1 << 63
_CLEAR_END = b"\0\xc4\0"  # no encryption, no key, in msgpack
_CLEAR_END_AT = -SIGNATURE_BYTES - len(_CLEAR_END)


class Lock(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A body of which only the lock is looked at: the items stay where they are."""

    items: msgspec.Raw
    encryption: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    key_id: Annotated[bytes, msgspec.Meta(max_length=MAX_KEY_ID_BYTES)] = b""
    next_key: Annotated[bytes, msgspec.Meta(max_length=MAX_NEXT_KEY_BYTES)] = b""


Locking = Callable[[FrameHead, bytes], Body]  # makes a body of a frame's items

_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_decode_lock = msgspec.msgpack.Decoder(Lock).decode
_decode_items = msgspec.msgpack.Decoder(Items).decode


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message as the application sees it."""

    number: int
    content: bytes
    content_type: int

    @property
    def timestamp_ms(self) -> int:
        """When its publisher published it."""
        return self.number >> SEQUENCE_BITS

    @property
    def sequence(self) -> int:
        """Its place among the messages of that millisecond."""
        return self.number & MAX_SEQUENCE


def peek(data: bytes, at: int = 0, end: int | None = None) -> FrameHead:
    """Read the head of the frame that fills `data` from `at` to `end`, or to its own end."""
    size = (len(data) if end is None else end) - at
    if not MIN_FRAME_BYTES <= size <= MAX_FRAME_BYTES:
        raise RemoteError("frame-size", f"{size} bytes")
    version, part, chain, previous, first, last, count, body = HEAD.unpack_from(data, at)
    if version != FRAME_VERSION:
        raise RemoteError("frame-version", str(version))
    if body != size - _AROUND_BODY_BYTES:
        raise RemoteError("frame-length", f"says {body} bytes of body")
    # A frame of `count` messages needs that many different numbers, and one message needs one.
    fits = first == last if count == 1 else 1 < count <= min(MAX_FRAME_MESSAGES, last - first + 1)
    if not (fits and previous < first <= last < _NUMBERS_END):
        raise RemoteError("frame-numbers", f"{count} from {first} to {last}, after {previous}")
    return FrameHead(part, chain, previous, first, last, count)


def name(frame: bytes) -> bytes:
    """Return the name of a frame whose head is good: its last number and its chain.

    The order of these bytes is the order of (last number, chain).
    """
    return frame[LAST_NUMBER] + frame[_CHAIN]


def digest(frame: bytes) -> bytes:
    """Hash what the signature covers."""
    return _hashed(frame[:-SIGNATURE_BYTES])


def signature(frame: bytes) -> bytes:
    """Return the signature a frame carries."""
    return frame[-SIGNATURE_BYTES:]


def proof(frame: bytes) -> tuple[bytes, bytes]:
    """Return both, what was signed and the signature: every new frame needs them."""
    return _hashed(frame[:-SIGNATURE_BYTES]), frame[-SIGNATURE_BYTES:]


def _hashed(covered: bytes) -> bytes:
    hashed = _HASH_BEGUN.copy()
    hashed.update(covered)
    return hashed.digest()


def build(
    part: PartKey,
    chain: ChainKey,
    previous: int,
    drafts: Sequence[tuple[int, Draft]],
    sign: Callable[[bytes], bytes],
    lock: Locking | None = None,
) -> bytes:
    """Make and sign the frame of numbered drafts; a lock encrypts them."""
    assert 1 <= len(drafts) <= MAX_FRAME_MESSAGES
    first, last = drafts[0][0], drafts[-1][0]
    items = _encode([Item(number - first, d.content_type, d.content) for number, d in drafts])
    if lock is None:
        body = _encode((items, 0, b""))
    else:
        body = _encode(lock(FrameHead(part, chain, previous, first, last, len(drafts)), items))
    assert previous < first <= last
    assert len(body) <= MAX_FRAME_BODY_BYTES
    head = HEAD.pack(FRAME_VERSION, part, chain, previous, first, last, len(drafts), len(body))
    covered = head + body
    return covered + sign(_hashed(covered))


def is_clear(frame: bytes) -> bool:
    """Tell whether a glance shows that a frame is not encrypted; if not, its lock says more.

    A body in the clear is an array of three, of which the items end where its last bytes begin.
    """
    begins = frame.startswith(_clear_start(len(frame)), HEAD_BYTES)
    return begins and frame[_CLEAR_END_AT:-SIGNATURE_BYTES] == _CLEAR_END


@lru_cache(1_024)
def _clear_start(size: int) -> bytes:
    """Return how the body of a frame in the clear of this size begins, up to the items."""
    left = size - HEAD_BYTES - len(_CLEAR_END) - SIGNATURE_BYTES
    for kind, length_bytes in ((b"\x93\xc4", 1), (b"\x93\xc5", 2), (b"\x93\xc6", 4)):
        items = left - len(kind) - length_bytes
        if 0 <= items < 1 << 8 * length_bytes:
            return kind + items.to_bytes(length_bytes)
    return b"\x93" * 9  # the frame is too small, and has its last bytes where these would be


def lock_of(frame: bytes) -> Lock:
    """Read how a frame is encrypted and with which key, at a small part of what opening costs."""
    try:
        return _decode_lock(memoryview(frame)[HEAD_BYTES:-SIGNATURE_BYTES])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteError("frame-body", str(error)) from error


def messages(frame: bytes, key: bytes = b"", head: FrameHead | None = None) -> list[Message]:
    """Open a frame whose signature has been verified; `key` is the secret of its group key.

    What is wrong here was signed so by the publisher; the neighbour who carried it is innocent.
    Who has read the head already may give it.
    """
    head = head or peek(frame)
    try:
        body = _decode_body(frame[HEAD_BYTES:-SIGNATURE_BYTES])
        items = _decode_items(body.items if not body.encryption else _unlocked(head, body, key))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteError("frame-body", str(error)) from error
    if len(items) == 1 == head.count and not items[0].ahead:
        return [Message(head.first, items[0].content, items[0].content_type)]
    numbers = [head.first + item.ahead for item in items]
    ascending = all(a < b for a, b in pairwise(numbers))
    if (
        len(items) != head.count
        or not ascending
        or (numbers[0], numbers[-1]) != (head.first, head.last)
    ):
        raise RemoteError("frame-body", "messages do not match the head")
    return [
        Message(number, item.content, item.content_type)
        for number, item in zip(numbers, items, strict=True)
    ]


def _unlocked(head: FrameHead, body: Body, key: bytes) -> bytes:
    if body.encryption != AES_256_GCM:
        raise RemoteError("encrypted", f"with method {body.encryption}")
    if not key:
        raise RemoteError("no-key", body.key_id.hex())
    return decrypt(key, head, body.items)
