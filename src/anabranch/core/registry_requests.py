"""What an application has asked the registry, until it is answered or the time is over.

Any tracker answers: it passes a change on to whoever writes. A question that a tracker does not
answer is put to the next one as well, and one whose link ends is asked again, which does no harm:
whoever writes knows a change that is written already.

One tracker alone cannot keep a change out of the registry. What it refuses is put to the others,
and what it says it has written they are shown, too, who see to it that it is.
"""

from collections.abc import Sequence

import msgspec

from anabranch.core.changes import decode_change
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.machine import Answered, Effect, Request, Send
from anabranch.core.messages import ChainList, ListChains, WriteChange, Written
from anabranch.core.registry import STALE
from anabranch.core.timers import Timers

REQUEST_S = 10.0
NEXT_S = 3.0  # how long one tracker has for an answer before another is asked too
MAX_REQUESTS = 256
NO_TICKET = 0  # of what needs no answer

END, NEXT = "end", "next"


class _Asked(msgspec.Struct):
    ticket: int  # the application's
    message: WriteChange | ListChains
    chain: str  # that is to be changed, if any
    # Who may answer, and what he has against a change.
    asked: dict[NodeId, Written | None] = msgspec.field(default_factory=dict)
    was_sent: bool = False

    @property
    def refusals(self) -> list[Written]:
        return [refusal for refusal in self.asked.values() if refusal is not None]

    @property
    def refusal(self) -> Written:
        """What counts of several: that one may try again, else what the first of them said."""
        stale = [each for each in self.refusals if each.problem.partition(":")[0] == STALE]
        return (stale or self.refusals)[0]


class Requests:
    """The questions under way, each with a ticket of ours."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._waiting: dict[int, None] = {}  # those that somebody, or somebody else, is to be asked
        self._ticket = 0
        self._timers: Timers[tuple[str, int]] = Timers()

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def wakeup_at(self) -> float | None:
        """When the first of them has waited too long."""
        return self._timers.next_at

    def add(self, request: Request, now: float) -> list[Effect]:
        """Take a question; it is sent by `send`."""
        message = request.message
        if not isinstance(message, WriteChange | ListChains):
            return [Answered(request.ticket, None, "not-a-question")]
        if len(self._asked) >= MAX_REQUESTS:
            return [Answered(request.ticket, None, "busy")]
        chain = ""
        if isinstance(message, WriteChange):
            try:
                chain = decode_change(message.change).chain
            except RemoteError as error:  # it is the application's own
                return [Answered(request.ticket, None, str(error))]
        self._ticket += 1
        self._asked[self._ticket] = _Asked(request.ticket, message, chain)
        self._waiting[self._ticket] = None
        self._timers.set((END, self._ticket), now + REQUEST_S)
        return []

    def send(self, trackers: Sequence[NodeId], now: float) -> list[Effect]:
        """Send what waits to the first of these that has not been asked."""
        effects: list[Effect] = []
        for ticket in list(self._waiting):
            asked = self._asked[ticket]
            to = next((tracker for tracker in trackers if tracker not in asked.asked), None)
            if to is None:
                continue
            del self._waiting[ticket]
            asked.asked[to], asked.was_sent = None, True
            self._timers.set((NEXT, ticket), now + NEXT_S)
            effects.append(Send(to, msgspec.structs.replace(asked.message, ticket=ticket)))
        return effects

    def answer(
        self, sender: NodeId, message: Written | ChainList, trackers: Sequence[NodeId] = ()
    ) -> tuple[list[Effect], str]:
        """Take an answer; return what follows, and the chain that there may be news of."""
        ticket, asked = message.ticket, self._asked.get(message.ticket)
        if asked is None or asked.asked.get(sender, message) is not None:
            return [], ""  # it comes too late, or once more
        if isinstance(asked.message, WriteChange) is not isinstance(message, Written):
            raise RemoteError("wrong-answer", type(message).__name__)
        others = [tracker for tracker in trackers if tracker not in asked.asked]
        if isinstance(message, Written) and message.problem:
            asked.asked[sender] = message
            if others:
                self._waiting[ticket] = None
            if others or len(asked.refusals) < len(asked.asked):
                return [], asked.chain
            message = asked.refusal
        effects = self._settle(ticket, message)
        if isinstance(asked.message, WriteChange):
            shown = msgspec.structs.replace(asked.message, ticket=NO_TICKET)
            effects += [Send(other, shown) for other in others]
        return effects, asked.chain

    def _settle(self, ticket: int, message: Written | ChainList) -> list[Effect]:
        asked = self._asked[ticket]
        self._forget(ticket)
        answer = msgspec.structs.replace(message, ticket=asked.message.ticket)
        return [Answered(asked.ticket, answer)]

    def unsend(self, tracker: NodeId) -> None:
        """The link to a tracker ended: what it was asked waits again."""
        for ticket, asked in self._asked.items():
            if tracker in asked.asked:
                del asked.asked[tracker]
                self._waiting[ticket] = None

    def wake(self, now: float) -> list[Effect]:
        """Answer what has waited too long; let others be asked what one does not answer."""
        effects: list[Effect] = []
        for kind, ticket in self._timers.pop_due(now):
            asked = self._asked.get(ticket)
            if asked is None:
                continue
            if asked.refusals:  # who has not answered by now has had its time
                effects += self._settle(ticket, asked.refusal)
            elif kind == NEXT:
                self._waiting[ticket] = None
            else:
                self._forget(ticket)
                problem = "timeout" if asked.was_sent else "registry-unreachable"
                effects.append(Answered(asked.ticket, None, problem))
        return effects

    def _forget(self, ticket: int) -> None:
        del self._asked[ticket]
        self._waiting.pop(ticket, None)
        self._timers.cancel((END, ticket))
        self._timers.cancel((NEXT, ticket))
