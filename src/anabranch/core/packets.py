"""Packets that came together, where they lie: most are copies, and are never taken out."""

from collections.abc import Iterator, Sequence

import msgspec

from anabranch.core.ids import NodeId


class Packets(msgspec.Struct, frozen=True, gc=False):
    """Some bytes, and where in them each packet begins and ends: two edges for each."""

    data: bytes
    edges: Sequence[int]

    def __len__(self) -> int:
        return len(self.edges) // 2

    def __iter__(self) -> Iterator[bytes]:
        for begin, end in zip(self.edges[::2], self.edges[1::2], strict=True):
            yield self.data[begin:end]

    @property
    def size(self) -> int:
        """How many bytes they have, without what lies between them."""
        return sum(self.edges[1::2]) - sum(self.edges[::2])

    @classmethod
    def of(cls, packets: Sequence[bytes]) -> "Packets":
        """Put packets together."""
        edges, end = list[int](), 0
        for packet in packets:
            edges += (end, end := end + len(packet))
        return cls(b"".join(packets), edges)


class ReceivedBatch(msgspec.Struct, gc=False):
    """Packets came together, in this order: as if each had been Received, at less cost."""

    sender: NodeId
    packets: Packets
