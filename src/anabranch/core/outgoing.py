"""Our own messages on their way: made into frames, offered to neighbours, offered again.

A frame counts as sent when a neighbour says `Got`. Until then it is offered anew: at once to every
neighbour that comes, and every while to all of them. If that is much, only the oldest leave at
once, and the next ones as those are confirmed.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from anabranch.core.duplicates import NEW
from anabranch.core.frames import Locking
from anabranch.core.identity import Signer
from anabranch.core.ids import ChainKey, NodeId, PartKey, chain_key, publisher_of
from anabranch.core.key_exchange import KeyExchange
from anabranch.core.machine import Deliver, Draft, Effect, Forward, Published, PublishNumbered
from anabranch.core.messages.storage import FrameName
from anabranch.core.overlay import Carried, Perform, RecentFrames
from anabranch.core.parts import Part
from anabranch.core.permission import DOUBT_FOR_S, Permission
from anabranch.core.publishing import UNPERMITTED, Flight, Owed, Publishing, Unconfirmed
from anabranch.core.reader import Reader
from anabranch.core.receipts import Receipts
from anabranch.core.timers import Timers

Entropy = Callable[[int], bytes]


class Outgoing:
    """The parts in which something of ours waits: for time, for neighbours, or for their word."""

    __slots__ = (
        *("_apply", "_busy", "_due", "_entropy", "_flight", "_hungry", "_keys", "_patience_s"),
        *("_permission", "_reader", "_receipts", "_recent", "_serve", "_signer"),
    )

    def __init__(
        self,
        recent: RecentFrames,
        signer: Signer,
        entropy: Entropy,
        patience_s: float,
        permission: Permission,
        apply: Perform,
        serve: Perform,
        keys: KeyExchange | None = None,
        reader: Reader | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        self._recent = recent
        self._signer = signer
        self._entropy = entropy
        self._patience_s = patience_s
        self._permission = permission
        self._apply = apply  # an overlay's effects
        self._serve = serve  # a service's effects
        self._keys = keys
        self._reader = reader
        self._receipts = receipts
        self._busy: dict[PartKey, Part] = {}
        self._due: Timers[PartKey] = Timers()
        self._flight = Flight()
        self._hungry: OrderedDict[PartKey, Part] = OrderedDict()  # that wait for room in it

    def __len__(self) -> int:
        return len(self._busy)

    @property
    def wakeup_at(self) -> float | None:
        """When something of a part is due."""
        return self._due.next_at

    def publish(self, state: Part, drafts: Sequence[Draft], now: float) -> list[Effect]:
        """Take drafts of the application."""
        publishing = state.publishing or self._begin(state)
        return self._permit(state, publishing, publishing.waiting.add(drafts), now)

    def publish_numbered(self, state: Part, event: PublishNumbered, now: float) -> list[Effect]:
        """Take drafts of the application that have their numbers."""
        publishing = state.publishing or self._begin(state)
        return self._permit(state, publishing, publishing.waiting.add_numbered(event, now), now)

    def _begin(self, state: Part) -> Publishing:
        chain = chain_key(self._signer.node, int.from_bytes(self._entropy(8)))
        sign, patience_s = self._signer.sign, self._patience_s
        state.publishing = Publishing(state.key, chain, sign, patience_s, self._flight)
        self._see_storage(state)
        return state.publishing

    def _see_storage(self, state: Part) -> None:
        """Note, for the hot path, whether the stream names storage nodes."""
        receipts = self._receipts
        state.is_stored = receipts is not None and receipts.stores(state.part.stream)

    def _permit(
        self, state: Part, publishing: Publishing, effects: list[Effect], now: float
    ) -> list[Effect]:
        """Send what waits; if we may not publish, ask the registry once more."""
        permission = self._permission
        if permission.everyone or permission.allows_chain(
            state.part, state.key, publishing.chain, now
        ):
            publishing.doubted_until = None
        elif publishing.doubted_until is None:
            asked = self._permission.ask(state.part.stream, now)
            if asked:
                publishing.doubted_until = now + DOUBT_FOR_S
                effects += self._serve(asked, now)
            else:
                effects += publishing.refuse(UNPERMITTED)
        return effects + self.pump(state, now)

    def stop(self, state: Part, result: str, now: float) -> list[Effect]:
        """Publish no more in a part; what is not confirmed has this outcome."""
        if state.publishing is None:
            return []
        effects = state.publishing.close(result)
        effects += self._withdraw(state, state.publishing, now)
        state.publishing = None
        self.forget(state)
        return effects

    def _withdraw(self, state: Part, publishing: Publishing, now: float) -> list[Effect]:
        """Store no frame that no neighbour took: its messages count as not published."""
        effects: list[Effect] = []
        for chain, last in publishing.take_given_up():
            if self._receipts is not None:
                withdrawn = self._receipts.withdraw(state.part, FrameName(chain, last))
                effects += self._serve(withdrawn, now)
        return effects

    def pump(self, state: Part, now: float) -> list[Effect]:
        """Send what may leave now."""
        publishing = state.publishing
        assert publishing is not None
        effects, waiting = self.look(state, now), publishing.waiting
        while waiting.count and (made := self._next_frame(state, effects, now)) is not None:
            head, frame = made.head, made.frame
            is_new = state.seen.take(head.chain, head.previous, head.first, head.last) is NEW
            if state.is_stored or made.copies:
                effects += self._keep_for_storage(state, made, now)
            if is_new or not made.is_given:  # else it was published before, here or elsewhere
                self._recent.add(state.key, frame, now)
                effects.append(Published(head, frame, made.is_given))
                if state.subscribed:
                    effects += self._deliver(state, made, now)
            if publishing.behind:
                publishing.owe([made])
            else:
                effects += self._offer(state, made, None, now)
        self._rearm(state)
        return effects

    def _keep_for_storage(self, state: Part, made: Unconfirmed, now: float) -> list[Effect]:
        """Keep a frame until it is stored, and ask for the receipts that are wanted of it."""
        if self._receipts is None:
            return []
        named, copies = (state.part, made.head, made.frame), made.copies
        return self._serve(self._receipts.published(*named, copies, now, made.is_given), now)

    def _deliver(self, state: Part, made: Unconfirmed, now: float) -> list[Effect]:
        """Hand our own frame to those on this node who want it."""
        head, frame, effects = made.head, made.frame, list[Effect]()
        if state.plain and (self._keys is None or not state.reads):
            effects.append(Deliver(state.part, head, frame, 0))
        elif state.plain and self._keys is not None:
            effects += self._keys.deliver(state.part, head, frame, 0, None, now)
        if self._reader is not None:
            effects += self._reader.take(state, head, frame, 0, None, now)
        return effects

    def _next_frame(self, state: Part, effects: list[Effect], now: float) -> Unconfirmed | None:
        """Make the next frame of a part, encrypted if not everybody may read it."""
        assert state.publishing is not None
        keys, stream = self._keys, state.part.stream
        if keys is None:
            return state.publishing.next_frame(now)

        def lock(given: int) -> Locking | None:
            locking, kept = keys.lock(stream, now, given)
            effects.extend(kept)
            return locking

        return state.publishing.next_frame(now, lock)

    def look(self, state: Part, now: float) -> list[Effect]:
        """Offer what is unconfirmed to those who have become neighbours since the last look."""
        publishing = state.publishing
        if publishing is None:
            return []
        neighbours = tuple(state.overlay.neighbours(state.part))
        if neighbours == publishing.neighbours or not publishing.meet(neighbours):
            return []
        effects = self._go_on(state, now)
        self._rearm(state)
        return effects

    def look_everywhere(self, now: float) -> list[Effect]:
        """Look in every part where something waits."""
        effects: list[Effect] = []
        for state in list(self._busy.values()):
            effects += self.look(state, now)
        return effects + self._feed(now)

    def got(
        self, state: Part, chain: ChainKey, numbers: Sequence[int], now: float
    ) -> list[Effect] | None:
        """A neighbour has the frames of a chain that end with these numbers; None: it cannot."""
        if publisher_of(chain) != self._signer.node:
            return None
        publishing = state.publishing
        if publishing is None:
            return []  # of a chain that we have ended
        if not publishing.could_have(chain, max(numbers)):
            return None
        effects = [e for number in numbers for e in publishing.confirm(chain, number)]
        if effects:
            behind = publishing.behind
            if behind:
                effects += self._resume(state, now)
            if behind or publishing.waiting.count:
                effects += self.pump(state, now)
            elif publishing.wakeup_at is None:
                self.forget(state)
            effects += self._feed(now)
        return effects

    def pause(self, state: Part, seconds: float, now: float) -> None:
        """Publish nothing in a part for a while."""
        assert state.publishing is not None
        state.publishing.pause(seconds, now)
        self._rearm(state)

    def reconsider(self, state: Part, now: float) -> list[Effect]:
        """The registry has spoken: let the drafts go that waited for its word, or refuse them."""
        publishing = state.publishing
        if publishing is not None:
            self._see_storage(state)
        if publishing is None or publishing.doubted_until is None:
            return []
        publishing.doubted_until = None
        effects = [] if self._permitted(state, now) else publishing.refuse(UNPERMITTED)
        return effects + self.pump(state, now)

    def wake(self, now: float) -> list[Effect]:
        """Give up, offer again and make frames where it is time to."""
        effects: list[Effect] = []
        for key in self._due.pop_due(now):
            state = self._busy[key]
            publishing = state.publishing
            assert publishing is not None
            effects += publishing.expire(now)
            effects += self._withdraw(state, publishing, now)
            effects += self.look(state, now)
            effects += self._resume(state, now)
            if due := publishing.due_again(now):
                publishing.owe(due)
                effects += self._go_on(state, now)
            effects += self.pump(state, now)
        return effects + self._feed(now)

    def forget(self, state: Part) -> None:
        """Nothing waits in a part any more."""
        self._busy.pop(state.key, None)
        self._hungry.pop(state.key, None)
        self._due.cancel(state.key)

    def _permitted(self, state: Part, now: float) -> bool:
        return self._permission.permits(state.part, self._signer.node, now)

    def _go_on(self, state: Part, now: float) -> list[Effect]:
        """Offer what is next in the backlog of a part, as far as there is room."""
        publishing = state.publishing
        assert publishing is not None
        effects: list[Effect] = []
        while (next_one := publishing.take_off(now)) is not None:
            frame, owed = next_one
            effects += self._offer(state, frame, owed, now)
        if publishing.waits_for_others:
            self._hungry[state.key] = state
        return effects

    def _resume(self, state: Part, now: float) -> list[Effect]:
        """Go on unless a pause forbids it."""
        assert state.publishing is not None
        return self._go_on(state, now) if state.publishing.resumes(now) else []

    def _feed(self, now: float) -> list[Effect]:
        """Let the parts go on, in turn, that waited for others to make room."""
        effects: list[Effect] = []
        while self._hungry and not self._flight.full:
            _, state = self._hungry.popitem(last=False)
            effects += self._resume(state, now)
            self._rearm(state)
        return effects

    def _offer(self, state: Part, made: Unconfirmed, to: Owed, now: float) -> list[Effect]:
        """Give a frame to the overlay, for all neighbours or only for some of them."""
        assert state.publishing is not None
        onward = state.overlay.publish(state.part, Carried(made.head, b"", made.frame), now)
        if to is not None:
            onward = [only for effect in onward if (only := _narrowed(effect, to)) is not None]
        offered = Forward in map(type, onward)
        state.publishing.tried(made, offered, now)
        return self._apply(onward, now)

    def _rearm(self, state: Part) -> None:
        at = state.publishing.wakeup_at if state.publishing is not None else None
        if at is None:
            self.forget(state)
        else:
            self._busy[state.key] = state
            self._due.set(state.key, at)


def _narrowed(effect: Effect, to: frozenset[NodeId]) -> Effect | None:
    """Leave only some branches of a Forward; everything else is as it was."""
    if type(effect) is not Forward:
        return effect
    branches = [branch for branch in effect.branches if branch[0] in to]
    return Forward(effect.overlay, effect.head, branches, effect.frame) if branches else None
