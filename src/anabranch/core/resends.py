"""Questions for frames of the past: to whom they go, and what an answer must be like.

A question waits for its turn (turns.py), and then for the link to whom it is for. It is heard of
exactly once: its answer, or why there is none. Links to storage nodes are held while somebody
needs them, and for a short while after. Who says that it is busy is left alone for a moment.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Verify
from anabranch.core.ids import FrameHead, NodeId, PartKey, StreamPart
from anabranch.core.machine import Effect, Hold, Release, Send, Sizes
from anabranch.core.messages import Contact, Resend, Resent
from anabranch.core.messages.storage import Selection
from anabranch.core.timers import Timers
from anabranch.core.turns import Turns

MAX_IDLE = 64  # links to storage nodes that are held though nobody needs them now
IDLE_S = 10.0
PAUSE_S = 0.2  # so long nobody asks one that is busy,
AGAIN_AFTER_S = (0.2, 0.6)  # and whoever did asks again after a random while between these
BUSY_FOR_S = 60.0  # for which it is no failure that all who could answer are busy

LATE = "no answer in time"
DOWN = "it cannot be reached"
BUSY = "busy"  # as storage nodes and neighbours say it

Heard = Callable[[NodeId, Resent | str, float], list[Effect]]  # who answered what; or why not


class Sources(Protocol):
    """What a reader must know of a stream; a registry knows it."""

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        """Return its storage nodes."""

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        """Tell whether somebody may publish to it, or ever could."""


class Inspector:
    """Tells good frames from bad ones, whoever sends them."""

    def __init__(self, sources: Sources, verify: Verify) -> None:
        self._sources = sources
        self._verify = verify

    def fits(self, key: PartKey, wanted: Selection, frame: bytes) -> FrameHead | None:
        """Read the head of a frame; None if it is not one of those that were asked for."""
        try:
            head = frames.peek(frame)
        except RemoteError:
            return None
        is_asked_for = head.part == key and head.chain.startswith(wanted.whose)
        within = head.last > wanted.after and head.first <= wanted.upto
        return head if is_asked_for and within else None

    def proves(self, part: StreamPart, head: FrameHead, frame: bytes) -> bool:
        """Tell whether it is signed by somebody who could publish it."""
        publisher = head.publisher
        if not self._sources.wrote(part.stream, publisher):
            return False
        return self._verify(publisher, *frames.proof(frame))


def leads_on(asked: Selection, following: Selection) -> bool:
    """Tell whether what follows a page is a rest of what was asked for, and not all of it.

    The last so many are looked for from the end: as long as some are missing, the cursor says how
    far back they were looked for. Otherwise the start, or the cursor, goes forward.
    """
    same = msgspec.structs.replace(
        following, start=asked.start, cursor=asked.cursor, last=asked.last
    )
    if same != asked or following.start < asked.start:
        return False
    if following.last:
        goes_back = not asked.cursor or following.cursor < asked.cursor
        return 0 < following.last <= asked.last and goes_back
    if asked.last:
        return True
    return (following.start, following.cursor) > (asked.start, asked.cursor)


class _Question(msgspec.Struct):
    """A Resend that waits for its turn, for a link, or for its answer."""

    to: Contact
    dials: bool  # it is for a storage node; else for a neighbour, to whom the link stands
    part: StreamPart
    selection: Selection
    within_s: float
    heard: Heard


class Resends:
    """The questions of a node, and its links to storage nodes."""

    def __init__(self) -> None:
        self._turns: Turns[_Question] = Turns()
        self._asked: dict[int, _Question] = {}
        self._tickets = 0
        self._up: dict[NodeId, None] = {}  # every link of ours, so bounded by those
        self._needs: dict[NodeId, int] = {}  # storage nodes that we hold: for how many
        self._down: dict[NodeId, None] = {}  # of these: those that could not be reached
        self._busy: dict[NodeId, float] = {}  # of those that are up: until when we let them be
        self._late: Timers[int] = Timers()
        self._idle: Timers[NodeId] = Timers()

    @property
    def wakeup_at(self) -> float | None:
        """When an answer is late, a link has been idle for long, or a question has its turn."""
        times = (self._late.next_at, self._idle.next_at, self._turns.wakeup_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def has_turn(self) -> bool:
        """Whether a question waits that may be asked now."""
        return self._turns.has_turn

    def ask(
        self,
        to: Contact,
        dials: bool,
        part: StreamPart,
        selection: Selection,
        within_s: float,
        heard: Heard,
    ) -> None:
        """Ask as soon as it is its turn (`pump`)."""
        self._turns.wait(to.node, _Question(to, dials, part, selection, within_s, heard))

    def need(self, contact: Contact) -> list[Effect]:
        """Hold a link to a storage node, once more."""
        node = contact.node
        needs = self._needs.get(node)
        self._needs[node] = (needs or 0) + 1
        self._idle.cancel(node)
        return [Hold(node, contact.address)] if needs is None else []

    def spare(self, node: NodeId, now: float) -> None:
        """Need it once less."""
        self._needs[node] -= 1
        if not self._needs[node]:
            self._idle.set(node, now + IDLE_S)

    def pump(self, now: float) -> list[Effect]:
        """Ask whose turn it is; a question to who cannot be asked is answered at once."""
        effects: list[Effect] = []
        while (question := self._turns.take(now)) is not None:
            if question.dials:
                effects += self.need(question.to)
            self._tickets += 1
            self._asked[self._tickets] = question
            self._late.set(self._tickets, now + question.within_s)
            if self._busy.get(question.to.node, now) > now:
                effects += self._fail(self._tickets, BUSY, now)
            elif question.to.node in self._up:
                effects.append(self._send(self._tickets, now))
            elif not question.dials or question.to.node in self._down:
                effects += self._fail(self._tickets, DOWN, now)
        return effects + self._shed()

    def receive(self, sender: NodeId, message: Resent, now: float) -> list[Effect]:
        """Take an answer; one that comes too late is of no use."""
        question = self._asked.get(message.ticket)
        if question is None:
            return []
        if question.to.node != sender:
            raise RemoteError("unasked", "a resend that somebody else was asked for")
        self._end(message.ticket, now)
        if message.problem != BUSY:
            self._busy.pop(sender, None)
            return question.heard(sender, message, now)
        if sender in self._up:
            self._busy[sender] = now + PAUSE_S
        return question.heard(sender, BUSY, now)

    def link(self, peer: NodeId, up: bool, now: float) -> list[Effect]:
        """Ask those whom we can reach now; ask nobody whom we cannot."""
        mine = [ticket for ticket, asked in self._asked.items() if asked.to.node == peer]
        if up:
            self._up[peer] = None
            self._down.pop(peer, None)
            return [self._send(ticket, now) for ticket in mine]
        self._up.pop(peer, None)
        self._busy.pop(peer, None)
        if peer in self._needs:
            self._down[peer] = None
        return [effect for ticket in mine for effect in self._fail(ticket, DOWN, now)]

    def wake(self, now: float) -> list[Effect]:
        """Give up on late answers, and let go of links that nobody needs."""
        effects: list[Effect] = []
        for ticket in self._late.pop_due(now):
            effects += self._fail(ticket, LATE, now)
        for node in self._idle.pop_due(now):
            effects += self._release(node)
        return effects

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        idle = sum(1 for needs in self._needs.values() if not needs)
        return {**self._turns.sizes(), "idle keepers": (idle, MAX_IDLE)}

    def _send(self, ticket: int, now: float) -> Effect:
        question = self._asked[ticket]
        self._turns.sent(question.to.node, now)
        return Send(question.to.node, Resend(ticket, question.part, question.selection))

    def _fail(self, ticket: int, why: str, now: float) -> list[Effect]:
        question = self._asked[ticket]
        self._end(ticket, now)
        return question.heard(question.to.node, why, now)

    def _end(self, ticket: int, now: float) -> None:
        question = self._asked.pop(ticket)
        self._late.cancel(ticket)
        self._turns.done(question.to.node)
        if question.dials:
            self.spare(question.to.node, now)

    def _shed(self) -> list[Effect]:
        """Keep few links that nobody needs: those go first that were needed longest ago."""
        idle = [node for node, needs in self._needs.items() if not needs]
        idle.sort(key=lambda node: self._idle.at(node) or 0.0)
        return [
            effect
            for node in idle[: max(0, len(idle) - MAX_IDLE)]
            for effect in self._release(node)
        ]

    def _release(self, node: NodeId) -> list[Effect]:
        del self._needs[node]
        self._down.pop(node, None)
        self._idle.cancel(node)
        return [Release(node)]
