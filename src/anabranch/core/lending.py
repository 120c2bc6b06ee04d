"""What neighbours may have of us: frames of the last while, of one chain, a page at a time."""

from collections.abc import Sequence

import msgspec

from anabranch.core.frames import peek
from anabranch.core.ids import CHAIN_KEY_BYTES, FrameHead, NodeId
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import Resend, Resent
from anabranch.core.messages.storage import PAGE_BYTES, Selection
from anabranch.core.parts import Parts

MAX_LENT_FRAMES = 256  # in one answer
MAX_AT_ONCE = 64.0  # questions of one neighbour,
PER_S = 20.0  # and how many a second after that
MAX_BORROWERS = 4_096

NOT_STORED = "not-stored"
BUSY = "busy"


class _Allowance(msgspec.Struct):
    """How many questions a neighbour may still ask."""

    left: float
    at: float


class Lending:
    """Answers the neighbours' questions, within bounds."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._allowances: dict[NodeId, _Allowance] = {}

    def answer(self, sender: NodeId, message: Resend, now: float) -> list[Effect]:
        """Send a page of what we have; who is no neighbour gets no answer."""
        state = self._parts.find(message.part)
        if state is None or not state.overlay.accepts(state.part, sender):
            return []
        wanted, ticket = message.selection, message.ticket
        if not self._allows(sender, now):
            return [Send(sender, Resent(ticket, problem=BUSY))]
        if not wanted.by_number or len(wanted.whose) != CHAIN_KEY_BYTES or wanted.last:
            return [Send(sender, Resent(ticket, problem=NOT_STORED))]
        return [Send(sender, page(self._parts.recent.since(state.key, 0.0), wanted, ticket))]

    def gone(self, peer: NodeId) -> None:
        """Forget a peer whose link ended."""
        self._allowances.pop(peer, None)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {"borrowers": (len(self._allowances), MAX_BORROWERS)}

    def _allows(self, peer: NodeId, now: float) -> bool:
        allowance = self._allowances.get(peer)
        if allowance is None:
            if len(self._allowances) >= MAX_BORROWERS:
                return False
            allowance = self._allowances[peer] = _Allowance(MAX_AT_ONCE, now)
        earned = (now - allowance.at) * PER_S
        allowance.left, allowance.at = min(MAX_AT_ONCE, allowance.left + earned), now
        if allowance.left < 1:
            return False
        allowance.left -= 1
        return True


def page(recent: Sequence[bytes], wanted: Selection, ticket: int) -> Resent:
    """Make a page of the frames of one chain, in the order of numbers."""
    found = [(head, frame) for frame in recent if _fits(head := peek(frame), wanted)]
    found.sort(key=lambda row: row[0].last)
    lent: list[bytes] = []
    room = PAGE_BYTES
    for head, frame in found:
        room -= len(frame)
        if lent and (room < 0 or len(lent) == MAX_LENT_FRAMES):
            cursor = peek(lent[-1]).last.to_bytes(8) + head.chain
            following = msgspec.structs.replace(wanted, cursor=cursor)
            return Resent(ticket, tuple(lent), following=following)
        lent.append(frame)
    return Resent(ticket, tuple(lent))


def _fits(head: FrameHead, wanted: Selection) -> bool:
    within = head.last > wanted.after and head.first <= wanted.upto
    later = head.last.to_bytes(8) + head.chain > wanted.cursor
    return head.chain == wanted.whose and within and later
