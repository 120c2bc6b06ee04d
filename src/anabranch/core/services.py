"""The services that a Peer runs: which message and which event is for whom, and their timers."""

from collections.abc import Sequence

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Hold, Release, Sizes, fullest
from anabranch.core.service import Service


class Services:
    """What runs beside the overlays; each control message and each event is for at most one."""

    __slots__ = ("_by_message", "_holds", "_services", "by_event", "taking")

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = tuple(services)
        self._by_message = {kind: each for each in self._services for kind in each.messages}
        self.by_event = {kind: each for each in self._services for kind in each.events}
        self._holds: dict[NodeId, int] = {}
        self.taking = self._by_message.get  # the service that takes a kind of message, or None

    @property
    def wakeup_at(self) -> float | None:
        """When the first of them wants to be woken."""
        first: float | None = None
        for each in self._services:
            at = each.wakeup_at
            if at is not None and (first is None or at < first):
                first = at
        return first

    def start(self, now: float) -> list[Effect]:
        """Let all of them begin."""
        return [effect for each in self._services for effect in each.start(now)]

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Tell all of them of a link."""
        return [effect for each in self._services for effect in each.link(peer, up, reason, now)]

    def wake(self, now: float) -> list[Effect]:
        """Wake those that are due."""
        effects: list[Effect] = []
        for each in self._services:
            if each.wakeup_at is not None and each.wakeup_at <= now:
                effects += each.wake(now)
        return effects

    def note(self, effects: Sequence[Effect]) -> None:
        """Take note of whom the services need a link to."""
        for effect in effects:
            if type(effect) is Hold:
                self._holds[effect.peer] = self._holds.get(effect.peer, 0) + 1
            elif type(effect) is Release:
                self._holds[effect.peer] -= 1
                if not self._holds[effect.peer]:
                    del self._holds[effect.peer]

    def rely_on(self, peer: NodeId) -> bool:
        """Tell whether a service chose `peer` itself, so that its answers are no flood."""
        return peer in self._holds

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound; of two with one name, the fullest."""
        return fullest(each.sizes() for each in self._services)
