"""What an application has asked the registry, until it is answered or the time is over.

A change goes to the writer, a list of streams comes from whoever is read from. A question whose
link ends is asked again when there is one, which does no harm: the keeper knows a change that it
has written already.
"""

from collections.abc import Callable

import msgspec

from anabranch.core.changes import decode_change
from anabranch.core.errors import RemoteError
from anabranch.core.ids import NodeId
from anabranch.core.machine import Answered, Effect, Request, Send
from anabranch.core.messages import ChainList, ListChains, WriteChange, Written
from anabranch.core.timers import Timers

REQUEST_S = 10.0
MAX_REQUESTS = 256


class _Asked(msgspec.Struct):
    ticket: int  # the application's
    message: WriteChange | ListChains
    chain: str  # that is to be changed, if any
    to: NodeId | None = None  # None: it waits for a link
    was_sent: bool = False


class Requests:
    """The questions under way, each with a ticket of ours."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._ticket = 0
        self._timers: Timers[int] = Timers()

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
        self._timers.set(self._ticket, now + REQUEST_S)
        return []

    def send(
        self, writer: NodeId, source: NodeId | None, is_up: Callable[[NodeId], bool]
    ) -> list[Effect]:
        """Send what waits and can be sent."""
        effects: list[Effect] = []
        for ticket, asked in self._asked.items():
            to = writer if isinstance(asked.message, WriteChange) else source
            if asked.to is None and to is not None and is_up(to):
                asked.to, asked.was_sent = to, True
                effects.append(Send(to, msgspec.structs.replace(asked.message, ticket=ticket)))
        return effects

    def answer(self, sender: NodeId, message: Written | ChainList) -> tuple[list[Effect], str]:
        """Take an answer; return what follows, and the chain that there may be news of."""
        asked = self._asked.get(message.ticket)
        if asked is None or asked.to != sender:
            return [], ""  # it comes too late
        if isinstance(asked.message, WriteChange) is not isinstance(message, Written):
            raise RemoteError("wrong-answer", type(message).__name__)
        del self._asked[message.ticket]
        self._timers.cancel(message.ticket)
        answer = msgspec.structs.replace(message, ticket=asked.message.ticket)
        return [Answered(asked.ticket, answer)], asked.chain

    def unsend(self, peer: NodeId) -> None:
        """The link to `peer` ended: what it was asked waits again."""
        for asked in self._asked.values():
            if asked.to == peer:
                asked.to = None

    def expire(self, now: float) -> list[Effect]:
        """Answer what has waited too long."""
        effects: list[Effect] = []
        for ticket in self._timers.pop_due(now):
            asked = self._asked.pop(ticket)
            problem = "timeout" if asked.was_sent else "registry-unreachable"
            effects.append(Answered(asked.ticket, None, problem))
        return effects
