"""Packets in batches: one WebSocket message carries one or more, each with its length before it.

length (4 bytes, big-endian) | packet | length | packet | ...
"""

from collections.abc import Iterator

from anabranch.core.codec import MAX_PACKET_BYTES
from anabranch.core.errors import RemoteError

LENGTH_BYTES = 4
FULL_BATCH_BYTES = 1024 * 1024  # a batch is closed once it has reached this
MAX_BATCH_BYTES = FULL_BATCH_BYTES + LENGTH_BYTES + MAX_PACKET_BYTES


def lengthen(packet: bytes) -> bytes:
    """Return what stands before a packet."""
    assert 0 < len(packet) <= MAX_PACKET_BYTES, len(packet)
    return len(packet).to_bytes(LENGTH_BYTES)


def batches(pieces: list[bytes], room: bytes = b"") -> Iterator[bytearray]:
    """Join lengths and packets, in turn, into as few batches as can be; `room` leads each."""
    start = size = 0
    for end in range(1, len(pieces), 2):
        size += LENGTH_BYTES + len(pieces[end])
        if size >= FULL_BATCH_BYTES:
            yield bytearray().join([room, *pieces[start : end + 1]])
            start, size = end + 1, 0
    if start < len(pieces):
        yield bytearray().join([room, *pieces[start:]])


def packets(batch: bytes) -> list[bytes]:
    """Take a batch apart."""
    found: list[bytes] = []
    at, end = 0, len(batch)
    while at < end or not found:
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(batch[at:start])
        if not start < at <= end or at - start > MAX_PACKET_BYTES:
            raise RemoteError("packet-length", f"{at - start} bytes at {start} of {end}")
        found.append(batch[start:at])
    return found
