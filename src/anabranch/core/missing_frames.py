"""Asks other nodes for frames that are missing before a held one, while its chain waits.

The leader of a log asks the other storage nodes of the stream and some neighbours in the overlay
of the part, all at once: the chain waits only for a moment (chain_order.py). The question is a
Resend of one chain, as readers ask it. A frame counts only with the signature of its publisher. A
frame of a neighbour counts only if the publisher is permitted now; another storage node may also
hand on what was permitted once.
"""

from collections.abc import Callable

import msgspec

from anabranch.core import frames
from anabranch.core.chain_order import Want
from anabranch.core.errors import RemoteError
from anabranch.core.ids import MAX_SKEW_S, SEQUENCE_BITS, FrameHead, NodeId, StreamPart, part_key
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import Selection
from anabranch.core.part_log import PartLog
from anabranch.core.parts import Parts
from anabranch.core.registry_view import Registry
from anabranch.core.verified_frames import VerifiedFrames

ANSWER_S = 1.5  # how long an answer is of use
MAX_QUESTIONS = 4_096
MAX_STORAGE_NODES = 4  # that one question goes to
MAX_NEIGHBOURS = 2
MAX_PAGES = 16  # of one answer

TakeFrame = Callable[[PartLog, bytes, float], list[Effect]]


class _Question(msgspec.Struct):
    """A Resend that is not answered yet."""

    to: NodeId
    log: PartLog
    want: Want
    selection: Selection
    until: float
    pages: int = 0


class MissingFrames:
    """The questions of a storage node about missing frames."""

    def __init__(
        self,
        logs: dict[StreamPart, PartLog],
        registry: Registry,
        verified: VerifiedFrames,
        take: TakeFrame,
    ) -> None:
        self._logs = logs
        self._registry = registry
        self._verified = verified
        self._take = take
        self._parts: Parts | None = None
        self._questions: dict[int, _Question] = {}  # by ticket, in the order of `until`
        self._ticket = 0
        self._turn = 0  # of the neighbours
        self._ask_at: dict[StreamPart, float] = {}  # of the logs in which something is missing

    def attach(self, parts: Parts) -> None:
        """Ask the neighbours in the overlays of these parts, too."""
        self._parts = parts

    @property
    def wakeup_at(self) -> float | None:
        """When to ask."""
        return min(self._ask_at.values(), default=None)

    def tend(self, log: PartLog) -> None:
        """Take note of when a log wants something to be asked."""
        at = log.order.ask_at if log.standing.leads else None
        if at is not None:
            self._ask_at[log.part] = at
        elif self._ask_at:
            self._ask_at.pop(log.part, None)

    def wake(self, now: float) -> list[Effect]:
        """Ask what is due."""
        effects: list[Effect] = []
        for ticket, question in list(self._questions.items()):
            if question.until > now:
                break
            del self._questions[ticket]
        for part in [part for part, at in self._ask_at.items() if at <= now]:
            log = self._logs.get(part)
            if log is None or not log.standing.leads:
                del self._ask_at[part]
                continue
            for want in log.order.wants(now):
                effects += self._ask(log, want, now)
            self.tend(log)
        return effects

    def _ask(self, log: PartLog, want: Want, now: float) -> list[Effect]:
        selection = Selection(after=want.after, upto=want.upto, whose=want.chain, by_number=True)
        effects: list[Effect] = []
        for node in self._sources(log):
            if len(self._questions) >= MAX_QUESTIONS:
                break
            question = _Question(node, log, want, selection, now + ANSWER_S)
            effects.append(self._send(question, selection, now))
        return effects

    def _sources(self, log: PartLog) -> list[NodeId]:
        """Return who is asked: storage nodes first, and neighbours in turn."""
        nodes = log.standing.fellows[:MAX_STORAGE_NODES]
        state = self._parts.find(log.part) if self._parts is not None else None
        neighbours = list(state.overlay.neighbours(log.part)) if state is not None else []
        others = [node for node in neighbours if node not in nodes]
        self._turn += MAX_NEIGHBOURS
        first = self._turn % len(others) if others else 0
        return [*nodes, *(others[first:] + others[:first])[:MAX_NEIGHBOURS]]

    def _send(self, question: _Question, selection: Selection, now: float) -> Effect:
        self._ticket += 1
        question.selection, question.until = selection, now + ANSWER_S
        self._questions[self._ticket] = question
        return Send(question.to, Resend(self._ticket, question.log.part, selection))

    def receive(self, sender: NodeId, answer: Resent, now: float) -> list[Effect]:
        """Take the frames of an answer; RemoteError if one was not asked for, or is forged."""
        question = self._questions.get(answer.ticket)
        if question is None or question.to != sender:
            return []
        del self._questions[answer.ticket]
        log = question.log
        if answer.problem or not log.is_active:
            return []
        # All of the page is checked before any of it is taken: what was begun must be done.
        good = [frame for frame in answer.frames if self._is_good(question, frame, now)]
        effects = [effect for frame in good for effect in self._take(log, frame, now)]
        following = answer.following
        question.pages += 1
        goes_on = following is not None and following.cursor > question.selection.cursor
        if goes_on and following is not None and question.pages < MAX_PAGES:
            selection = msgspec.structs.replace(question.selection, cursor=following.cursor)
            effects.append(self._send(question, selection, now))
        return effects

    def _is_good(self, question: _Question, frame: bytes, now: float) -> bool:
        part, want = question.log.part, question.want
        head = frames.peek(frame)
        within = head.last > want.after and head.first <= want.upto
        if head.part != part_key(part) or head.chain != want.chain or not within:
            raise RemoteError("unasked-frame", str(part))
        if not self._is_permitted(question, head, now):
            return False
        if not self._verified.check(head, frame):
            raise RemoteError("forged", str(part))
        return True

    def _is_permitted(self, question: _Question, head: FrameHead, now: float) -> bool:
        part = question.log.part
        if (head.last >> SEQUENCE_BITS) / 1000 > now + MAX_SKEW_S:
            return False
        if self._registry.stores(part.stream, question.to):
            return self._registry.wrote(part.stream, head.publisher)
        return self._registry.permits(part, head.publisher, now)

    def forget(self, part: StreamPart) -> None:
        """Ask nothing more about a part."""
        self._ask_at.pop(part, None)

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"questions about missing frames": (len(self._questions), MAX_QUESTIONS)}
