"""What a Peer runs beside its overlays: a small machine for control messages of its own kinds.

A service shares the Peer's links. Like an overlay it says `Hold` and `Release`, and the Peer
dials; unlike an overlay it belongs to no stream part.
"""

from typing import ClassVar

from anabranch.core.ids import NodeId
from anabranch.core.machine import Effect, Event, Sizes
from anabranch.core.messages import Control


class Service:
    """Base of all services: the defaults do nothing; override what you need."""

    messages: ClassVar[tuple[type, ...]] = ()  # the control messages that are for this service
    events: ClassVar[tuple[type, ...]] = ()  # the application's events that are for it
    wakeup_at: float | None = None

    def start(self, now: float) -> list[Effect]:
        """Begin; called once, by `Peer.handle` of the first event, before that event."""
        return []

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a control message; RemoteError costs the sender its link."""
        return []

    def tell(self, event: Event, now: float) -> list[Effect]:
        """Take an event of the application."""
        return []

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Learn that a link stands, ended, or could not be dialled."""
        return []

    def wake(self, now: float) -> list[Effect]:
        """Do what is due."""
        return []

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {}
