"""A registry that changes its mind with every message: who may publish, and what there is."""

from anabranch.core.changes import CreateStream, Right
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Learned, Send
from anabranch.core.messages import ChainChanged, ChainPage, Control, ReadChain
from anabranch.core.messages.registry import NETWORK
from anabranch.core.overlay import Directory, PartSettings
from anabranch.core.registry import StreamState
from anabranch.core.service import Service


class Register(Service):
    """Tells a Peer of one part now this and now that."""

    messages = (ChainChanged, ChainPage)

    def __init__(self, part: StreamPart, keeper: NodeId, others: Directory) -> None:
        self._part = part
        self._keeper = keeper
        self._others = others
        self._turn = 0

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take any word for a change, and a page for a lie."""
        if type(message) is ChainPage:
            raise RemoteError("bad-chain", "")
        self._turn += 1
        self.wakeup_at = now + 1
        return [Learned(self._part.stream, self._turn)]

    def wake(self, now: float) -> list[Effect]:
        """Let every part be learned of."""
        self.wakeup_at = None
        return [Learned(NETWORK, self._turn)]

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Permit some, now and then."""
        return (self._turn + publisher[0]) % 2 == 0

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Say yes as often as no."""
        return (self._turn + user[0] + right) % 2 == 0

    def stream(self, name: str) -> StreamState | None:
        """Know a stream that is private, public, or not there."""
        state = StreamState(name, bytes(32)) if self._turn % 3 else None
        if state is not None and self._turn % 2:
            state.act(CreateStream(public=self._turn % 4))
        return state

    def confirmed_at(self, stream: str) -> float:
        """Have heard of everything, or of nothing."""
        return float("inf") if self._turn % 2 else 0.0

    def stores(self, stream: str, user: NodeId) -> bool:
        """Tell that nobody stores anything."""
        return False

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Ask the keeper, if the mood is right."""
        return [Send(self._keeper, ReadChain(self._turn, stream))] if self._turn % 3 else []

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Know the part as it should be, with other settings, or not at all."""
        usual = self._others(part)
        if part != self._part:
            return usual
        return [usual, usual, PartSettings(degree=3), None][self._turn % 4]
