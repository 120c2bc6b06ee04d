"""What runs on simulated nodes that have a registry: it joins a stream once that is known.

An application names what it wants; the node's registry reads the stream's chain; when its word
has come, and there is such a stream, the node subscribes, or publishes.
"""

from collections.abc import Callable

from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Answered, Follow, Learned, Subscribe
from anabranch.sim.network import Application, SimNode
from anabranch.sim.simulator import Simulator

Exists = Callable[[SimNode, str], bool]  # whether a node's registry knows of a stream
Heard = Callable[[SimNode, Answered], None]


class Applications(Application):
    """One application for each node."""

    def __init__(self, sim: Simulator, exists: Exists) -> None:
        self._sim = sim
        self._exists = exists
        self._wanted: dict[NodeId, dict[StreamPart, bool]] = {}  # value: it has subscribed
        self.heard: Heard = lambda node, answered: None

    def want(self, node: SimNode, part: StreamPart) -> None:
        """Let a node want a part's messages, from when its registry knows of it."""
        if not node.alive:
            return
        self._wanted.setdefault(node.id, {})[part] = False
        self._sim.tell(node, Follow(part.stream))
        self._subscribe(node, part.stream)

    def want_no_more(self, node: SimNode, part: StreamPart) -> None:
        """Let it want them no more."""
        self._wanted.get(node.id, {}).pop(part, None)

    def begin(self, node: SimNode) -> None:
        """A node's life begins with nothing wanted."""
        self._wanted.pop(node.id, None)

    def told(self, node: SimNode, word: Learned | Answered) -> None:
        """Act upon the registry's word, after whatever the node is just doing."""
        machine = node.machine

        def act() -> None:
            if node.machine is not machine or not node.alive:
                return
            if type(word) is Learned:
                self._subscribe(node, word.chain)
            else:
                assert type(word) is Answered
                self.heard(node, word)

        self._sim.at(self._sim.now, act)

    def _subscribe(self, node: SimNode, stream: str) -> None:
        wanted = self._wanted.get(node.id, {})
        known = self._exists(node, stream)
        for part in [part for part in wanted if part.stream == stream]:
            if known and not wanted[part]:
                self._sim.tell(node, Subscribe(part))
            wanted[part] = known  # a stream that is deleted may come back
