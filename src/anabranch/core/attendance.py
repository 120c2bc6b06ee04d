"""Which parts a node attends: it comes when the application subscribes or publishes, and leaves
when nothing keeps it there."""

from anabranch.core.company import Company
from anabranch.core.congestion import Congestion
from anabranch.core.ids import StreamPart
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.machine import (
    Effect,
    Notice,
    Outcome,
    Publish,
    PublishNumbered,
    Retire,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.outgoing import Outgoing
from anabranch.core.overlay import Perform
from anabranch.core.parts import Part, Parts
from anabranch.core.permission import Permission
from anabranch.core.publishing import EXPIRED


class Attendance:
    """Does as the application wants with the parts it names."""

    __slots__ = ("_apply", "_company", "_congestion", "_keys", "_outgoing", "_parts", "_permission")

    def __init__(
        self,
        parts: Parts,
        outgoing: Outgoing,
        congestion: Congestion,
        permission: Permission,
        company: Company,
        apply: Perform,
        keys: KeyExchange | None = None,
    ) -> None:
        self._parts = parts
        self._outgoing = outgoing
        self._congestion = congestion
        self._permission = permission
        self._company = company
        self._apply = apply  # an overlay's effects
        self._keys = keys

    def subscribe(self, event: Subscribe, now: float) -> list[Effect]:
        """Deliver what comes in a part."""
        state, effects = self._attend(event.part, now)
        if state is not None:
            if state.reads and not event.reads and self._keys is not None:
                effects += self._keys.leave(state, now)
            state.subscribed, state.reads, state.plain = True, event.reads, event.plain
        return effects

    def unsubscribe(self, event: Unsubscribe, now: float) -> list[Effect]:
        """Deliver it no more."""
        state = self._parts.find(event.part)
        if state is None:
            return []
        state.subscribed = False
        effects = self._keys.leave(state, now) if self._keys is not None else []
        return effects + self._leave_if_idle(state, now)

    def publish(self, event: Publish, now: float) -> list[Effect]:
        """Send drafts, or say why not."""
        state = self._parts.find(event.part)
        if state is not None:  # as nearly always
            return self._outgoing.publish(state, event.drafts, now)
        state, effects = self._attend(event.part, now)
        if state is None:
            why = next(effect.kind for effect in effects if type(effect) is Notice)
            return effects + [Outcome(draft.ticket, why) for draft in event.drafts]
        return effects + self._outgoing.publish(state, event.drafts, now)

    def publish_numbered(self, event: PublishNumbered, now: float) -> list[Effect]:
        """Send drafts under their own numbers, or say why not."""
        state, effects = self._attend(event.part, now)
        if state is None:
            why = next(effect.kind for effect in effects if type(effect) is Notice)
            return [*effects, Outcome(event.ticket, why)]
        return effects + self._outgoing.publish_numbered(state, event, now)

    def retire(self, event: Retire, now: float) -> list[Effect]:
        """Publish no more."""
        state = self._parts.find(event.part)
        if state is None or state.publishing is None:
            return []
        return self._outgoing.stop(state, EXPIRED, now) + self._leave_if_idle(state, now)

    def leave(self, state: Part, now: float) -> list[Effect]:
        """Leave a part, whoever wants to be there."""
        self._congestion.left(state.key)
        self._permission.renew()
        effects = self._keys.leave(state, now) if self._keys is not None else []
        return effects + self._apply(self._parts.leave(state, now), now)

    def _attend(self, part: StreamPart, now: float) -> tuple[Part | None, list[Effect]]:
        state, effects = self._parts.join(part, now)
        self._company.watch(now)
        return state, self._apply(effects, now)

    def _leave_if_idle(self, state: Part, now: float) -> list[Effect]:
        return self.leave(state, now) if state.idle else []
