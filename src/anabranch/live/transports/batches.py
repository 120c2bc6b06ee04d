"""Packets in batches: one WebSocket message carries one or more, each with its length before it.

length (4 bytes, big-endian) | packet | length | packet | ...
"""

from collections.abc import Iterator

from anabranch.core.codec import MAX_PACKET_BYTES, name_of
from anabranch.core.errors import RemoteError
from anabranch.core.packets import Packets

LENGTH_BYTES = 4
LENGTHS = [length.to_bytes(LENGTH_BYTES) for length in range(4_096)]  # of most packets
FULL_BATCH_BYTES = 1024 * 1024  # a batch is closed once it has reached this
MAX_BATCH_BYTES = FULL_BATCH_BYTES + LENGTH_BYTES + MAX_PACKET_BYTES


def batches(queue: list[bytes], room: bytes = b"") -> Iterator[bytearray]:
    """Join packets into as few batches as can be; `room` leads each."""
    pieces, size = [room], 0
    for packet in queue:
        length = len(packet)
        pieces.append(LENGTHS[length] if length < len(LENGTHS) else _lengthen(length))
        pieces.append(packet)
        size += LENGTH_BYTES + length
        if size >= FULL_BATCH_BYTES:
            yield bytearray().join(pieces)
            pieces, size = [room], 0
    if size:
        yield bytearray().join(pieces)


def _lengthen(length: int) -> bytes:
    assert length <= MAX_PACKET_BYTES, length
    return length.to_bytes(LENGTH_BYTES)


def without(queue: list[bytes], names: list[bytes]) -> tuple[list[bytes], int]:
    """Return a queue without the frames that have these heads, and how many bytes those were."""
    gone = set(names)
    kept = [packet for packet in queue if name_of(packet) not in gone]
    return kept, sum(map(len, queue)) - sum(map(len, kept)) if len(kept) < len(queue) else 0


def packets(batch: bytes) -> Packets:
    """Find the packets of a batch."""
    at, end = 0, len(batch)
    length = int.from_bytes(batch[:LENGTH_BYTES])
    if length == end - LENGTH_BYTES and 0 < length <= MAX_PACKET_BYTES:  # one, as nearly always
        return Packets(batch, (LENGTH_BYTES, end))
    edges: list[int] = []
    while at < end or not edges:
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(batch[at:start])
        if not start < at <= end or at - start > MAX_PACKET_BYTES:
            raise RemoteError("packet-length", f"{at - start} bytes at {start} of {end}")
        edges.append(start)
        edges.append(at)
    return Packets(batch, edges)
