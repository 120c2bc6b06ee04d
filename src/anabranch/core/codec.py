"""Packets: what one link carries at a time.

    version (1) | 0 | control message, msgpack
    version (1) | 1 | overlay (1) | route length (1) | route | frame
    version (1) | 2 | control message that holds frames, msgpack

A limit stands on every field (in the types) and on the whole (here). Hostile bytes raise
RemoteError and nothing else.
"""

from collections.abc import Callable
from functools import lru_cache

import msgspec

from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD_BYTES, MAX_FRAME_BYTES
from anabranch.core.messages import Bulk, Control, Small

PROTOCOL_VERSION = 5
CONTROL, DATA, BULK = 0, 1, 2
MAX_CONTROL_BYTES = 128 * 1024  # an Instruction with 64 addresses of 255 wide characters fits
MAX_ROUTE_BYTES = 64
MAX_BULK_BYTES = MAX_FRAME_BYTES + 192 * 1024  # one large frame, or a page of small ones
MAX_PACKET_BYTES = MAX_BULK_BYTES
MAX_DATA_BYTES = 4 + MAX_ROUTE_BYTES + MAX_FRAME_BYTES

DATA_HEAD = bytes([PROTOCOL_VERSION, DATA])
_CONTROL_HEAD = bytes([PROTOCOL_VERSION, CONTROL])
_BULK_HEAD = bytes([PROTOCOL_VERSION, BULK])
_encode = msgspec.msgpack.Encoder().encode
_decode_small: Callable[[bytes | memoryview], Small] = msgspec.msgpack.Decoder(Small).decode
_decode_bulk: Callable[[bytes | memoryview], Bulk] = msgspec.msgpack.Decoder(Bulk).decode


def encode(message: Control) -> bytes:
    """Make the packet of a control message."""
    if isinstance(message, Bulk):
        packet = _BULK_HEAD + _encode(message)
        assert len(packet) <= MAX_BULK_BYTES, type(message).__name__
        return packet
    packet = _CONTROL_HEAD + _encode(message)
    assert len(packet) <= MAX_CONTROL_BYTES, type(message).__name__
    return packet


def kind(data: bytes) -> int:
    """Tell what a packet holds, refusing what is none."""
    if len(data) < 3:
        raise RemoteError("packet-size", f"{len(data)} bytes")
    if data[0] != PROTOCOL_VERSION:
        raise RemoteError("protocol-version", f"{data[0]}, ours is {PROTOCOL_VERSION}")
    if data[1] > BULK:
        raise RemoteError("packet-kind", str(data[1]))
    return data[1]


def decode(data: bytes) -> Control:
    """Read a control packet."""
    sort = kind(data)
    if sort == DATA:
        raise RemoteError("packet-kind", "data where control was due")
    if len(data) > (MAX_BULK_BYTES if sort == BULK else MAX_CONTROL_BYTES):
        raise RemoteError("packet-size", f"{len(data)} bytes of control")
    try:
        return (_decode_bulk if sort == BULK else _decode_small)(memoryview(data)[2:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError("malformed", str(error)) from error


@lru_cache(1_024)
def carry_head(overlay: int, route: bytes) -> bytes:
    """Make what stands before a frame in its packet."""
    assert len(route) <= MAX_ROUTE_BYTES
    return bytes((PROTOCOL_VERSION, DATA, overlay, len(route))) + route


def name_of(packet: bytes) -> bytes:
    """Return the head of the frame that a packet of our own carries; nothing if it has none."""
    if not packet.startswith(DATA_HEAD):
        return b""
    start = 4 + packet[3]
    return packet[start : start + HEAD_BYTES]


def frame_start(data: bytes, at: int = 0, end: int | None = None) -> int:
    """Return where the frame begins in a data packet, which fills `data` from `at` to `end`."""
    size = (len(data) if end is None else end) - at
    if size > MAX_DATA_BYTES or size < 5:
        raise RemoteError("packet-size", f"{size} bytes of data")
    if data[at + 3] > MAX_ROUTE_BYTES:
        raise RemoteError("route-size", str(data[at + 3]))
    return at + 4 + data[at + 3]
