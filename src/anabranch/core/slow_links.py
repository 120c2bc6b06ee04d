"""Back-pressure of a Peer: frames for slow links wait, and neighbours and publishers are slowed.

A node asks a neighbour to pause (`SlowDown`) for its own reason alone: most of the links on which
it would forward the neighbour's frames are full. The pause holds for that one link. A publisher
rests when most of its links are full or paused. Only a storage node that the stream names can slow
publishers that are not its neighbours: its `StorageSlowDown` is signed, and members pass it on.
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from anabranch.core.congestion import PAUSE_MS, Congestion
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.links import Links
from anabranch.core.machine import (
    Congested,
    Dropped,
    Effect,
    Forward,
    Send,
    Sizes,
    Writable,
)
from anabranch.core.messages import SlowDown, StorageSlowDown
from anabranch.core.messages.links import slow_down_digest
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Permits

STORAGE_PAUSE_EVERY_S = 0.05  # how often one storage node may slow one part
STORAGE_PAUSE_AGE_S = 30.0  # difference between its clock and ours, at most
MAX_STORAGE_PAUSES = 1_024  # pairs of a part and a storage node

Pause = Callable[[Part, float, float], None]  # for how many seconds our own publishing rests


class _Heard(msgspec.Struct, gc=False):
    """The last StorageSlowDown of one storage node in one part."""

    made_ms: int
    heard_at: float


class SlowLinks:
    """Outboxes of full and paused links, seen from the parts whose frames wait in them."""

    def __init__(
        self,
        parts: Parts,
        links: Links,
        congestion: Congestion,
        pause: Pause,
        network: bytes,
        verify: Verify,
        permits: Permits | None,
    ) -> None:
        self._parts = parts
        self._links = links
        self._congestion = congestion
        self._pause = pause
        self._network = network
        self._verify = verify
        self._permits = permits
        self._heard: OrderedDict[tuple[StreamPart, NodeId], _Heard] = OrderedDict()

    def congested(self, event: Congested, now: float) -> list[Effect]:
        """Begin to keep back all frames for a peer."""
        if self._links.is_up(event.peer):
            self._congestion.full(event.peer, now)
        return []

    def writable(self, event: Writable, now: float) -> list[Effect]:
        """Release the frames that waited for a full link."""
        return self._released(self._congestion.writable(event.peer))

    def wake(self, now: float) -> list[Effect]:
        """Release the frames whose pauses have ended."""
        return self._released(self._congestion.resumed(now))

    def _released(self, forwards: list[Forward]) -> list[Effect]:
        """Forward what waited to those that are still neighbours there; count the rest."""
        effects: list[Effect] = []
        for forward in forwards:
            peer = forward.branches[0][0]
            state = self._parts.get(forward.head.part)
            if state is not None and peer in state.overlay.neighbours(state.part):
                effects.append(forward)
            else:  # we left the part meanwhile, or changed neighbours
                effects.append(Dropped(forward.head, "parted", peer))
        return effects

    def slow_down(self, state: Part, sender: NodeId, message: SlowDown, now: float) -> None:
        """Pause the link to a neighbour in one part; no other link and no other node is slowed."""
        neighbours = len(state.overlay.neighbours(state.part))
        self._congestion.pause(sender, state.key, message.pause_ms / 1000, neighbours, now)
        self._rest(state, now)

    def _rest(self, state: Part, now: float) -> None:
        """Let a publisher rest while most of its links are full or paused."""
        if state.publishing is not None:
            neighbours = state.overlay.neighbours(state.part)
            rest_s = self._congestion.rest_s(state.key, neighbours, now)
            if rest_s > 0:
                self._pause(state, rest_s, now)

    def storage_slow_down(
        self, state: Part, sender: NodeId, message: StorageSlowDown, now: float
    ) -> list[Effect]:
        """Rest if we publish, and pass the signed wish of a storage node on."""
        part, node = message.part, message.node
        permits = self._permits
        heard = self._heard.get((part, node))
        is_known = permits is not None and permits.stores(part.stream, node)
        is_timely = abs(now * 1000 - message.at_ms) <= STORAGE_PAUSE_AGE_S * 1000
        if not is_known or not is_timely or (heard and message.at_ms <= heard.made_ms):
            self._links.strain(sender, now)  # the same comes from every neighbour once
            return []
        if heard and now < heard.heard_at + STORAGE_PAUSE_EVERY_S:
            return []
        digest = slow_down_digest(self._network, part, node, message.pause_ms, message.at_ms)
        if not self._verify(node, digest, message.signature):
            raise RemoteError("forged", f"StorageSlowDown of {part}")
        self._heard[part, node] = _Heard(message.at_ms, now)
        self._heard.move_to_end((part, node))
        if len(self._heard) > MAX_STORAGE_PAUSES:
            self._heard.popitem(last=False)
        if state.publishing is not None:
            self._pause(state, message.pause_ms / 1000, now)
        others = [peer for peer in state.overlay.neighbours(part) if peer not in (sender, node)]
        return [Send(peer, message) for peer in others]

    def keep_back(self, forward: Forward, now: float) -> list[Effect]:
        """Return what may leave of a Forward now; rest, or ask for a pause, if most of it waits."""
        head, branches = forward.head, len(forward.branches)
        kept = self._congestion.keep_back(forward)
        effects = kept.dropped + self._released(kept.resumed)
        state = self._parts.get(head.part)
        if state is None or kept.leaving is forward:
            pass
        elif state.publishing is not None and state.publishing.owns(head.chain):
            self._rest(state, now)
        elif 2 * kept.full > branches:
            slowed = self._congestion.neighbour_to_slow(state.key, head.chain, now)
            if slowed is not None:
                effects.append(Send(slowed, SlowDown(state.part, PAUSE_MS)))
        return effects if kept.leaving is None else [kept.leaving, *effects]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {"storage nodes that slowed a part": (len(self._heard), MAX_STORAGE_PAUSES)}
