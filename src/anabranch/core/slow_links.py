"""What a Peer does about links that are full: keep frames back, and pass word to the publishers."""

from collections.abc import Callable

from anabranch.core.congestion import PAUSE_MS, Congestion
from anabranch.core.ids import ChainKey
from anabranch.core.links import Links
from anabranch.core.machine import Congested, Dropped, Effect, Forward, Send, Writable
from anabranch.core.messages import SlowDown
from anabranch.core.parts import Part, Parts

Pause = Callable[[Part, float, float], None]  # for how many seconds our own publishing rests


class SlowLinks:
    """The outboxes of full links, seen from the parts whose frames wait in them."""

    def __init__(self, parts: Parts, links: Links, congestion: Congestion, pause: Pause) -> None:
        self._parts = parts
        self._links = links
        self._congestion = congestion
        self._pause = pause

    def congested(self, event: Congested, now: float) -> list[Effect]:
        """Begin to keep back what is for a peer."""
        if self._links.is_up(event.peer):
            self._congestion.full(event.peer, now)
        return []

    def writable(self, event: Writable, now: float) -> list[Effect]:
        """Let go what waited for a peer, as far as it is still our neighbour there."""
        effects: list[Effect] = []
        for forward in self._congestion.writable(event.peer):
            state = self._parts.get(forward.head.part)
            if state is not None and event.peer in state.overlay.neighbours(state.part):
                effects.append(forward)
            else:  # we left the part meanwhile, or changed neighbours
                effects.append(Dropped(forward.head, "parted", event.peer))
        return effects

    def slow_down(self, state: Part, message: SlowDown, now: float) -> list[Effect]:
        """A neighbour cannot keep up with a chain."""
        return self._tell(state, message.chain, message.pause_ms, now)

    def keep_back(self, forward: Forward, now: float) -> list[Effect]:
        """Return what may leave of a Forward now, and the word that some of it may not."""
        head = forward.head
        leaving, effects = self._congestion.keep_back(forward)
        state = self._parts.get(head.part)
        if leaving is not forward and state is not None:
            effects += self._tell(state, head.chain, PAUSE_MS, now)
        return effects if leaving is None else [leaving, *effects]

    def _tell(self, state: Part, chain: ChainKey, pause_ms: int, now: float) -> list[Effect]:
        """Pass the word towards the publisher, or heed it if that is us."""
        if state.publishing is not None and state.publishing.owns(chain):
            self._pause(state, pause_ms / 1000, now)
            return []
        upstream = self._congestion.whom_to_tell(state.key, chain, now)
        return [Send(upstream, SlowDown(state.part, chain, pause_ms))] if upstream else []
