"""Trackers that lie: an honest machine, and somebody who stands between it and the world."""

import asyncio

from anabranch.core import codec
from anabranch.core.changes import pack_page
from anabranch.core.history import roll
from anabranch.core.ids import NodeId, StreamPart
from anabranch.core.machine import (
    Connect,
    Disconnect,
    Effect,
    Event,
    LinkDown,
    LinkUp,
    Received,
    ReceivedBatch,
    Send,
)
from anabranch.core.messages import ChainChanged, ChainPage, ReadChain, WriteChange, Written
from anabranch.core.rendezvous import trackers_for
from anabranch.live.tracker import TrackerProcess
from live.networks import LiveNetwork


def path_served_by(live: LiveNetwork, index: int, owner: str) -> str:
    """Return the path of a stream for which this tracker is the first."""
    entries = [tracker.entry() for tracker in live.trackers]
    paths = (f"stream-{number}" for number in range(1_000))
    mine = entries[index].node
    return next(
        path
        for path in paths
        if trackers_for(StreamPart(f"{owner}/{path}", 0), entries)[0].node == mine
    )


async def kill(tracker: TrackerProcess) -> None:
    """End a tracker as a power cut does: nobody is told anything."""
    tracker.driver.detach()
    for link in list(tracker.driver.links.values()):
        link.wire.abort()  # type: ignore[attr-defined]
    await tracker.stop()


class FalseTracker:
    """Hears and says what it likes; here, all that its machine does."""

    def __init__(self, process: TrackerProcess) -> None:
        self.process = process
        self.honest = process.machine
        process.driver.attach(self)

    @property
    def wakeup_at(self) -> float | None:
        return self.honest.wakeup_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Do as the machine does, but for what is kept from it, and what is made of it."""
        if type(event) is ReceivedBatch:
            each = [Received(event.sender, packet) for packet in event.packets]
            return [effect for one in each for effect in self.handle(one, now)]
        kept = self.hear(event)
        effects = self.honest.handle(event, now) if kept is None else kept
        return [said for effect in effects for said in self.say(effect)]

    def hear(self, event: Event) -> list[Effect] | None:
        """Answer an event in the machine's stead; None: let it answer."""
        return None

    def say(self, effect: Effect) -> list[Effect]:
        """Make something else of what the machine wants."""
        return [effect]

    def is_node(self, peer: NodeId) -> bool:
        """Tell whether a peer is none of the trackers."""
        return not self.honest.keeper.is_tracker(peer)

    def admit_everybody(self) -> None:
        """Give a place to whoever asks for one."""
        self.honest.tracker._admits = None


class Hiding(FalseTracker):
    """Shows to nodes what a chain was once, and gives everybody a place; other trackers see all."""

    def __init__(self, process: TrackerProcess, chain: str) -> None:
        super().__init__(process)
        self._old = self.honest.keeper.history(chain).copy()
        self.admit_everybody()

    def hear(self, event: Event) -> list[Effect] | None:
        """Answer with the old chain."""
        if type(event) is not Received or not self.is_node(event.sender):
            return None
        asked, old = codec.decode(event.data), self._old
        if not isinstance(asked, ReadChain) or asked.chain != old.chain:
            return None
        after = asked.after if not asked.after or old.head_at(asked.after) == asked.head else 0
        packed = pack_page(old.changes, after)
        page = ChainPage(asked.ticket, old.chain, after, old.height, old.head, packed)
        return [Send(event.sender, page)]

    def say(self, effect: Effect) -> list[Effect]:
        """Say nothing of news."""
        news = effect.message if type(effect) is Send and self.is_node(effect.to) else None
        return [] if isinstance(news, ChainChanged) and news.chain == self._old.chain else [effect]


class Forging(FalseTracker):
    """Adds a change of its own making to a chain, for all who read it."""

    def __init__(self, process: TrackerProcess, chain: str, forged: bytes) -> None:
        super().__init__(process)
        self._chain = chain
        self._forged = forged

    def spread(self, *peers: NodeId) -> None:
        """Let others ask for it."""
        history = self.honest.keeper.history(self._chain)
        head = roll(history.head, self._forged)
        news = ChainChanged(self._chain, history.height + 1, head)
        for peer in peers:
            assert self.process.driver.say(peer, news)

    def hear(self, event: Event) -> list[Effect] | None:
        """Answer with the forged chain."""
        if type(event) is not Received:
            return None
        asked, history = codec.decode(event.data), self.honest.keeper.history(self._chain)
        if not isinstance(asked, ReadChain) or asked.chain != self._chain:
            return None
        changes = [*history.changes, self._forged]
        head, packed = roll(history.head, self._forged), pack_page(changes, 0)
        return [
            Send(event.sender, ChainPage(asked.ticket, self._chain, 0, len(changes), head, packed))
        ]


class Swallowing(FalseTracker):
    """Answers whoever asks it to write, and writes nothing."""

    def __init__(self, process: TrackerProcess, problem: str) -> None:
        super().__init__(process)
        self._problem = problem
        self.swallowed = 0

    def hear(self, event: Event) -> list[Effect] | None:
        """Say that it was done, or why it cannot be."""
        asked = codec.decode(event.data) if type(event) is Received else None
        if not isinstance(asked, WriteChange) or type(event) is not Received:
            return None
        self.swallowed += 1
        return [Send(event.sender, Written(asked.ticket, 3, self._problem))]


class Parted(FalseTracker):
    """Honest, and kept from some others by a network that does not carry between them."""

    def __init__(self, process: TrackerProcess) -> None:
        super().__init__(process)
        self._apart: set[NodeId] = set()

    def part(self, *others: TrackerProcess) -> None:
        """Be cut off from these."""
        driver = self.process.driver
        self._apart = {other.identity.node for other in others}
        for node in self._apart:
            link = driver.links.get(node)
            if link is not None:
                link.close("lost")
                driver.link_down(node, "lost")

    def heal(self) -> None:
        """Be cut off from nobody."""
        self._apart.clear()

    def hear(self, event: Event) -> list[Effect] | None:
        """Let no link stand."""
        if type(event) is LinkUp and event.peer in self._apart:
            return [Disconnect(event.peer, "lost")]
        if type(event) is Received and event.sender in self._apart:
            return []
        return None

    def say(self, effect: Effect) -> list[Effect]:
        """Let no dial succeed."""
        if type(effect) is not Connect or effect.peer not in self._apart:
            return [effect]
        failed = LinkDown(effect.peer, "timeout")
        asyncio.get_running_loop().call_soon(self.process.driver.feed, failed)
        return []
