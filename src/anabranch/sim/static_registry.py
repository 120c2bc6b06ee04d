"""A registry that never changes, and permits everything: for runs that are about something else."""

from collections.abc import Sequence
from math import inf

from anabranch.core.changes import Action, CreateStream, Right, TrackerEntry
from anabranch.core.identity import Signer
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import Effect, Learned
from anabranch.core.messages import WriteChange
from anabranch.core.overlay import PartSettings
from anabranch.core.registry import StreamState
from anabranch.core.registry_view import Registry


class StaticRegistry(Registry):
    """Streams that all name the same storage nodes."""

    def __init__(self, streams: Sequence[str], storage: Sequence[NodeId]) -> None:
        self._entries = tuple(TrackerEntry(node, "sim://storage") for node in storage)
        self._streams: dict[str, StreamState] = {}
        public = Right.PUBLISH | Right.SUBSCRIBE
        for name in streams:
            self._streams[name] = state = StreamState(name, b"")
            state.act(CreateStream(public=public, storage=tuple(storage)))

    def start(self, now: float) -> list[Effect]:
        """Say what there is."""
        return [Learned(name, 1) for name in self._streams]

    @property
    def trackers(self) -> tuple[TrackerEntry, ...]:
        """Return none: nobody asks."""
        return ()

    @property
    def storage(self) -> tuple[TrackerEntry, ...]:
        """Return the storage nodes."""
        return self._entries

    def knows(self, chain: str) -> bool:
        """Tell whether there is such a stream."""
        return chain in self._streams

    def version(self, chain: str) -> int:
        """Return the one version there is."""
        return 1

    def stream(self, name: str) -> StreamState | None:
        """Return a stream."""
        return self._streams.get(name)

    def directory(self, part: StreamPart) -> PartSettings | None:
        """Return nothing: the cluster knows the settings."""
        return None

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Permit it."""
        return True

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Permit it."""
        return True

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Do nothing: all is known."""
        return []

    def confirmed_at(self, stream: str) -> float:
        """Confirm it, for ever."""
        return inf

    def forget(self, chain: str) -> None:
        """Forget nothing."""

    def propose(
        self, signer: Signer, chain: str, actions: Action | Sequence[Action], now: float
    ) -> WriteChange:
        """Refuse to change."""
        raise AssertionError("a static registry does not change")

    def includes(self, proposal: WriteChange) -> bool:
        """Tell that nothing was proposed."""
        return False
