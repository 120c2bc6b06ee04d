"""Turns what a driver sees into records, for any driver."""

from collections.abc import Callable, Sequence

from anabranch.core.ids import (
    NODE_ID_BYTES,
    ChainKey,
    FrameHead,
    NodeId,
    PartKey,
    StreamPart,
    part_key,
    show,
)
from anabranch.traces import schema

Write = Callable[[schema.Record], None]

MAX_NAMES = 1_000_000


class Recorder:
    """Names things once and writes a record for everything that happens.

    Looking a name up is written out in place: it happens several times for every packet.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._nodes: dict[bytes, str] = {}
        self._parts: dict[PartKey, str] = {}
        self._chains: dict[ChainKey, tuple[str, str]] = {}

    def add(self, write: Write) -> None:
        """Write every record to one more place from now on."""
        first = self._write

        def both(record: schema.Record) -> None:
            first(record)
            write(record)

        self._write = both

    def name_part(self, part: StreamPart) -> None:
        """Let records call a part by its name, since frames carry only its hash."""
        self._parts[part_key(part)] = str(part)

    def published(self, at: float, node: NodeId, head: FrameHead, size_bytes: int) -> None:
        """A node published a frame."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        self._write(
            schema.Published(
                at,
                self._nodes.get(node) or self._name(node),
                self._parts.get(head.part) or head.part.hex(),
                publisher,
                chain,
                head.last,
                head.count,
                size_bytes,
            )
        )

    def sent(
        self, at: float, node: NodeId, peers: Sequence[NodeId], head: FrameHead, size_bytes: int
    ) -> None:
        """Copies of one frame left for some neighbours."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        sender = self._nodes.get(node) or self._name(node)
        part = self._parts.get(head.part) or head.part.hex()
        for peer in peers:
            to = self._nodes.get(peer) or self._name(peer)
            self._write(schema.Sent(at, sender, part, publisher, chain, head.last, to, size_bytes))

    def received(self, at: float, node: NodeId, peer: NodeId, head: FrameHead, hops: int) -> None:
        """A first copy came."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        self._write(
            schema.Received(
                at,
                self._nodes.get(node) or self._name(node),
                self._parts.get(head.part) or head.part.hex(),
                publisher,
                chain,
                head.last,
                self._nodes.get(peer) or self._name(peer),
                hops,
            )
        )

    def delivered(
        self, at: float, node: NodeId, head: FrameHead, hops: int, delay_ms: float
    ) -> None:
        """The application has it."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        self._write(
            schema.Delivered(
                at,
                self._nodes.get(node) or self._name(node),
                self._parts.get(head.part) or head.part.hex(),
                publisher,
                chain,
                head.last,
                head.count,
                hops,
                delay_ms,
            )
        )

    def dropped(
        self, at: float, node: NodeId, peer: NodeId | None, head: FrameHead, reason: str
    ) -> None:
        """A frame, or a copy of it, ended, and not because it was here before."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        name = self._nodes.get(node) or self._name(node)
        part = self._parts.get(head.part) or head.part.hex()
        sender = "" if peer is None else self._nodes.get(peer) or self._name(peer)
        self._write(schema.Dropped(at, name, part, publisher, chain, head.last, reason, sender))

    def duplicate(self, at: float, node: NodeId, peer: NodeId, head: FrameHead) -> None:
        """A copy ended as most do: the frame was here before."""
        publisher, chain = self._chains.get(head.chain) or self._chain(head.chain)
        name = self._nodes.get(node) or self._name(node)
        part = self._parts.get(head.part) or head.part.hex()
        sender = self._nodes.get(peer) or self._name(peer)
        self._write(schema.Duplicate(at, name, part, publisher, chain, head.last, sender))

    def subscribed(self, at: float, node: NodeId, part: StreamPart, wants: bool) -> None:
        """An application wants the messages of a part, or wants them no more."""
        kind = schema.Subscribed if wants else schema.Unsubscribed
        self._write(kind(at, self._nodes.get(node) or self._name(node), str(part)))

    def stopped(self, at: float, node: NodeId) -> None:
        """A node ended."""
        self._write(schema.Stopped(at, self._nodes.get(node) or self._name(node)))

    def linked(self, at: float, node: NodeId, peer: NodeId, up: bool, reason: str = "") -> None:
        """A link changed."""
        self._write(
            schema.Linked(
                at,
                self._nodes.get(node) or self._name(node),
                self._nodes.get(peer) or self._name(peer),
                up,
                reason,
            )
        )

    def instruction(
        self,
        at: float,
        node: NodeId,
        peer: NodeId,
        part: StreamPart,
        counter: int,
        neighbours: Sequence[NodeId],
    ) -> None:
        """A tracker spoke."""
        names = [self._nodes.get(n) or self._name(n) for n in neighbours]
        self._write(
            schema.Instruction(
                at,
                self._nodes.get(node) or self._name(node),
                self._nodes.get(peer) or self._name(peer),
                str(part),
                counter,
                names,
            )
        )

    def rtt(self, at: float, node: NodeId, peer: NodeId, seconds: float) -> None:
        """A round trip was measured."""
        self._write(
            schema.Rtt(
                at,
                self._nodes.get(node) or self._name(node),
                self._nodes.get(peer) or self._name(peer),
                round(seconds * 1000, 3),
            )
        )

    def unicast(self, at: float, node: NodeId, peer: NodeId, seconds: float) -> None:
        """The way straight to another node is known."""
        self._write(
            schema.Unicast(
                at,
                self._nodes.get(node) or self._name(node),
                self._nodes.get(peer) or self._name(peer),
                seconds * 1000,
            )
        )

    def topology(
        self, at: float, node: NodeId, part: StreamPart, neighbours: Sequence[NodeId]
    ) -> None:
        """A snapshot of one node's neighbours."""
        names = [self._nodes.get(n) or self._name(n) for n in neighbours]
        self._write(
            schema.Topology(at, self._nodes.get(node) or self._name(node), str(part), names)
        )

    def noted(
        self, at: float, node: NodeId, what: str, detail: str, part: StreamPart | None
    ) -> None:
        """A machine had something to say."""
        name = "" if part is None else str(part)
        self._write(schema.Noted(at, self._nodes.get(node) or self._name(node), what, detail, name))

    def _name(self, node: NodeId) -> str:
        if len(self._nodes) >= MAX_NAMES:
            self._nodes.clear()
        name = self._nodes[node] = show(node)
        return name

    def _chain(self, key: ChainKey) -> tuple[str, str]:
        if len(self._chains) >= MAX_NAMES:
            self._chains.clear()
        names = (show(NodeId(key[:NODE_ID_BYTES])), key[NODE_ID_BYTES:].hex())
        self._chains[key] = names
        return names
