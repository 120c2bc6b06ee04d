"""What others may ask of a tracker: parts, members, topology, round trips."""

from collections.abc import Mapping

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Sizes, fullest
from anabranch.core.tracked import TrackedNode, TrackedPart

MAX_PARTS = 10_000
MAX_NODES_PER_PART = 1_000_000
MAX_PARTS_PER_NODE = 1_000


class TrackerView:
    """The overlays of a tracker, to look at."""

    def __init__(self) -> None:
        self._parts: dict[StreamPart, TrackedPart] = {}
        self._parts_of: dict[NodeId, dict[StreamPart, None]] = {}

    def parts(self) -> list[StreamPart]:
        """Return the parts that have nodes, sorted."""
        return sorted(self._parts)

    def members(self) -> list[NodeId]:
        """Return the nodes that are in any part, sorted."""
        return sorted(self._parts_of)

    def parts_of(self, node: NodeId) -> list[StreamPart]:
        """Return the parts that a node is in, sorted."""
        return sorted(self._parts_of.get(node, ()))

    def nodes(self, part: StreamPart) -> Mapping[NodeId, TrackedNode]:
        """Return what is known of each node of a part: to look at, not to change."""
        state = self._parts.get(part)
        return state.nodes if state else {}

    def neighbours(self, part: StreamPart, node: NodeId) -> tuple[NodeId, ...]:
        """Return the neighbours that a node of a part should have, sorted."""
        state = self._parts.get(part)
        if state is None or node not in state.nodes:
            return ()
        return tuple(sorted(state.graph.neighbours(node)))

    def placed_last(self, part: StreamPart) -> list[NodeId]:
        """Return the nodes of a part whose unused slots stay empty for now, sorted."""
        state = self._parts.get(part)
        return sorted(n for n in state.nodes if state.disputes.waits(n)) if state else []

    def topology(self, part: StreamPart) -> dict[NodeId, tuple[NodeId, ...]]:
        """Return every node of a part with its neighbours, sorted."""
        state = self._parts.get(part)
        return state.topology() if state else {}

    def rtts_us(self, part: StreamPart) -> dict[tuple[NodeId, NodeId], int]:
        """Return the round trips that the nodes of a part reported, per reporting node."""
        state = self._parts.get(part)
        return state.rtts_us() if state else {}

    def sizes(self) -> Sizes:
        """Return every bounded table by name, with its size and its bound."""
        parts, per_node = self._parts.values(), self._parts_of.values()
        return {
            "tracked parts": (len(self._parts), MAX_PARTS),
            "nodes of a part": (max((len(p.nodes) for p in parts), default=0), MAX_NODES_PER_PART),
            "parts of a node": (max(map(len, per_node), default=0), MAX_PARTS_PER_NODE),
            **fullest(part.sizes() for part in parts),
        }
