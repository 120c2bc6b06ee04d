"""Packets in batches: one WebSocket message holds one or more, each with its length before it.

    length (4 bytes, big-endian) | packet | length | packet | ... | tag (16 bytes)

The tag covers all before it, except what a data packet has beyond its first 2,048 bytes. That is
the body of a large frame: the publisher's signature covers it, and to hash it once more for every
link would cost more than all else that a link does.

A length of 0 at the beginning says that the message is no batch but an echo: a request (0) or the
answer to one (1), and 8 bytes that the answer repeats.

    0 (4 bytes) | 0 or 1 (1 byte) | 8 bytes | tag (16 bytes)
"""

import struct
from collections.abc import Callable, Iterator

from anabranch.core.codec import DATA_HEAD, MAX_PACKET_BYTES, name_of
from anabranch.core.errors import RemoteError
from anabranch.core.link_mac import MAC_BYTES
from anabranch.core.packets import Packets

LENGTH_BYTES = 4
LENGTHS = [length.to_bytes(LENGTH_BYTES) for length in range(4_096)]  # of most packets
FULL_BATCH_BYTES = 1024 * 1024  # a batch is closed once it has reached this
COVERED_BYTES = 2_048  # of a data packet
ECHO = bytes(LENGTH_BYTES)
MAX_BATCH_BYTES = FULL_BATCH_BYTES + LENGTH_BYTES + MAX_PACKET_BYTES
MAX_MESSAGE_BYTES = MAX_BATCH_BYTES + MAC_BYTES

_LENGTH = struct.Struct(">I")

Tagger = Callable[[bytes | memoryview], bytes]


def join_one(packet: bytes, tag: Tagger, room: bytes) -> bytearray:
    """Make the message of one packet."""
    head = _lengthen(len(packet))
    covered = packet[:COVERED_BYTES] if packet.startswith(DATA_HEAD) else packet
    return bytearray().join((room, head, packet, tag(head + covered)))


def batches(queue: list[bytes], tag: Tagger, room: bytes = b"") -> Iterator[bytearray]:
    """Join packets into as few messages as can be; `room` leads each, and its tag ends it."""
    pieces, size = list[bytes](), 0
    cut: list[int] = []  # places of pieces that the tag does not cover to their ends
    for packet in queue:
        length = len(packet)
        if length > COVERED_BYTES and packet.startswith(DATA_HEAD):
            cut.append(len(pieces) + 1)
        pieces.append(LENGTHS[length] if length < len(LENGTHS) else _lengthen(length))
        pieces.append(packet)
        size += LENGTH_BYTES + length
        if size >= FULL_BATCH_BYTES:
            yield _message(room, pieces, cut, tag)
            pieces, cut, size = [], [], 0
    if size:
        yield _message(room, pieces, cut, tag)


def _message(room: bytes, pieces: list[bytes], cut: list[int], tag: Tagger) -> bytearray:
    if not cut:
        batch = b"".join(pieces)
        return bytearray().join((room, batch, tag(batch)))
    covered = pieces.copy()
    for place in cut:
        covered[place] = covered[place][:COVERED_BYTES]
    return bytearray().join((room, *pieces, tag(b"".join(covered))))


def _lengthen(length: int) -> bytes:
    assert length <= MAX_PACKET_BYTES, length
    return length.to_bytes(LENGTH_BYTES)


def without(queue: list[bytes], names: list[bytes]) -> tuple[list[bytes], int]:
    """Return a queue without the frames that have these heads, and how many bytes those were."""
    gone = set(names)
    kept = [packet for packet in queue if name_of(packet) not in gone]
    return kept, sum(map(len, queue)) - sum(map(len, kept)) if len(kept) < len(queue) else 0


def split(message: bytes) -> tuple[Packets, bytes]:
    """Find the packets of a message; return them, and what of the message its tag covers."""
    at, end = 0, len(message) - MAC_BYTES
    length = int.from_bytes(message[:LENGTH_BYTES])
    if length == end - LENGTH_BYTES and 0 < length <= MAX_PACKET_BYTES:  # one, as often
        is_data = message.startswith(DATA_HEAD, LENGTH_BYTES)
        covered_to = min(end, LENGTH_BYTES + COVERED_BYTES) if is_data else end
        return Packets(message, (LENGTH_BYTES, end)), message[:covered_to]
    if end < LENGTH_BYTES:
        raise RemoteError("packet-length", f"{len(message)} bytes")
    edges: list[int] = []
    covered: list[bytes] = []
    covered_to, read_length = 0, _LENGTH.unpack_from
    while at < end:
        start = at + LENGTH_BYTES
        at = start + read_length(message, at)[0]
        if not start < at <= end or at - start > MAX_PACKET_BYTES:
            raise RemoteError("packet-length", f"{at - start} bytes at {start} of {end}")
        if at - start > COVERED_BYTES and message.startswith(DATA_HEAD, start):
            covered.append(message[covered_to : start + COVERED_BYTES])
            covered_to = at
        edges.append(start)
        edges.append(at)
    covered.append(message[covered_to:end])
    return Packets(message, edges), b"".join(covered)
