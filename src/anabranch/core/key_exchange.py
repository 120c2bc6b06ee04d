"""The key exchange: frames wait for their key, and the key comes from who published them.

A subscriber that gets a frame whose key it lacks keeps the frame back and asks. The request goes
hop by hop towards the publisher, to the neighbour from whom the first copies of the chain come,
and the answer goes back the same way. Nobody on the way can read, change or make either; who
loses them can only delay. Nobody asks for the key of a frame that it merely carries.
"""

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

import msgspec

from anabranch.core import frames
from anabranch.core.changes import Right
from anabranch.core.congestion import Congestion
from anabranch.core.encryption import AES_256_GCM, Entropy, GroupKey, unwrap
from anabranch.core.errors import RemoteError
from anabranch.core.frames import Locking
from anabranch.core.group_keys import KeyRing, Locks
from anabranch.core.held_frames import ChainName, Held, HeldFrames, KeyName
from anabranch.core.identity import Curve, Signer
from anabranch.core.ids import ChainKey, FrameHead, NodeId, StreamPart, publisher_of
from anabranch.core.key_answering import UNPERMITTED, Answering, KeyRegistry
from anabranch.core.key_asking import NO_KEY, Asking, straying
from anabranch.core.key_routes import KeyRoutes
from anabranch.core.machine import Deliver, Dropped, Effect, KeepKey, Notice, Send, Sizes
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.messages.links import MAX_KEY_HOPS
from anabranch.core.parts import MAX_PARTS, Part, Parts
from anabranch.core.service import Service

READABLE_FOR_S = 1.0  # after this our own permission is looked up again
FIRST_ASKED_S = 2.0  # within this time of a new key, those who need it ask for it,
LAST_ASKED_S = 0.5  # and soon after each other

UNREADABLE = "unreadable"  # we may not read it, as far as we know

_IN_THE_CLEAR = frames.Lock(msgspec.Raw(b""))


class KeyExchange(Service):
    """What makes private streams readable, for those who may read them."""

    messages = (KeyRequest, KeyAnswer)

    def __init__(
        self,
        signer: Signer,
        curve: Curve,
        entropy: Entropy,
        network: bytes,
        registry: KeyRegistry,
        kept: Iterable[KeepKey],
        parts: Parts,
        congestion: Congestion,
    ) -> None:
        self._me = signer.node
        self._registry = registry
        self._parts = parts
        self._congestion = congestion
        self._ring = KeyRing(signer.node, kept)
        self._locks = Locks(self._ring, registry.stream, entropy)
        self._held = HeldFrames()
        self._routes = KeyRoutes()
        common = (signer, curve, entropy, network, registry, self._ring)
        self._asking = Asking(*common, self._held, self._routes, self._ways)
        self._answering = Answering(*common, self._locks)
        self._readable: dict[str, float] = {}  # streams that we may read: until when that holds

    # --- What the Peer needs of us --------------------------------------------------------

    def lock(self, stream: str, now: float) -> tuple[Locking | None, list[Effect]]:
        """Return what encrypts the next frame that we publish; None if everybody may read it."""
        return self._locks.next(stream, now)

    @property
    def lingers_until(self) -> float:
        """Until when others are likely to ask us for the key of what we have just published."""
        pending = inf if self._answering.is_asked else 0.0
        first, last = self._locks.newest_at, self._answering.asked_at
        return max(first + FIRST_ASKED_S, last + LAST_ASKED_S, pending)

    def deliver(
        self,
        part: StreamPart,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        now: float,
    ) -> list[Effect]:
        """Deliver a frame with its key, or keep it back until the key is here."""
        try:
            lock = frames.lock_of(frame)
        except RemoteError:
            lock = _IN_THE_CLEAR  # its publisher signed nonsense: whoever opens it will see
        if not lock.encryption and not self._held:
            return [Deliver(part, head, frame, hops)]
        held = Held(part, head, frame, hops, sender, lock)
        if held.chain not in self._held:  # else it must not overtake those that wait
            passed, learned = self._pass(held, now)
            if passed:
                if learned is not None:
                    passed += self._drain((), [learned], now)
                    self._rearm()
                return passed
        effects = self._give_up(self._held.put(held, now), now)
        effects += self._asking.look([held.chain], now)
        self._rearm()
        return effects

    def leave(self, part: Part, now: float) -> list[Effect]:
        """The application wants nothing of a part any more."""
        effects = self._give_up(self._held.leave(part.key), now)
        self._rearm()
        return effects

    def learned(self, stream: str, now: float) -> list[Effect]:
        """The registry has spoken of a stream: others may be those who may read it."""
        self._locks.learned(stream)
        self._asking.forgive(stream)
        self._readable.pop(stream, None)
        effects = self._answering.judge(now)
        self._rearm()
        return effects

    # --- Frames that are ours to deliver --------------------------------------------------

    def _pass(self, held: Held, now: float) -> tuple[list[Effect], KeyName | None]:
        """Say what becomes of a frame, nothing if it has to wait; and what key was in it."""
        lock, head, stream = held.lock, held.head, held.part.stream
        if lock.encryption != AES_256_GCM:
            return [Deliver(held.part, head, held.frame, held.hops)], None
        if not self._may_read(stream, now):
            return [Dropped(head, UNREADABLE, held.sender)], None
        secret = self._ring.find(*held.key)
        if secret is None:
            refused = self._asking.is_refused(held.key, now)
            return [Dropped(head, NO_KEY, held.sender)] if refused else [], None
        effects, learned = self._learn_next(held, GroupKey(lock.key_id, secret))
        effects.append(Deliver(held.part, head, held.frame, held.hops, secret))
        return effects, learned

    def _may_read(self, stream: str, now: float) -> bool:
        if self._readable.get(stream, 0.0) > now:
            return True
        if not self._registry.may(stream, self._me, Right.SUBSCRIBE, now):
            return False
        if len(self._readable) >= MAX_PARTS:
            self._readable.clear()
        self._readable[stream] = now + READABLE_FOR_S
        return True

    def _learn_next(self, held: Held, key: GroupKey) -> tuple[list[Effect], KeyName | None]:
        if not held.lock.next_key:
            return [], None
        try:
            following = unwrap(key, held.lock.next_key, held.head)
        except RemoteError:
            return [], None  # its publisher made it so: when that key is used, we ask for it
        stream, publisher = held.part.stream, held.head.publisher
        effects = self._ring.learn(stream, publisher, following)
        return effects, (stream, publisher, following.id)

    def _drain(
        self, chains: Iterable[ChainName], keys: Iterable[KeyName], now: float
    ) -> list[Effect]:
        """Let the frames go that need wait no more: of these chains, and for these keys.

        Nothing is asked before all have gone: what is learned from one chain is asked of none.
        """
        effects: list[Effect] = []
        looked_at: dict[ChainName, None] = {}
        learned, waiting = deque(keys), deque(chains)
        while learned or waiting:
            if not waiting:
                waiting += self._held.awaiting(learned.popleft())
                continue
            chain = waiting.popleft()
            looked_at[chain] = None
            effects += self._drain_chain(chain, learned, now)
        return effects + self._asking.look(looked_at, now)

    def _drain_chain(self, chain: ChainName, learned: deque[KeyName], now: float) -> list[Effect]:
        """Let the first frames of a chain go, and add the keys that were in them to the learned."""
        effects: list[Effect] = []
        while chain in self._held:
            held = self._held.of(chain)[0]
            passed, following = self._pass(held, now)
            if not passed:
                break
            self._held.take(chain)
            if following is not None:
                learned.append(following)
            readable = type(passed[-1]) is Deliver
            if readable and not self._registry.permits(held.part, held.head.publisher, now):
                # It waited so long that its publisher has lost the right meanwhile.
                passed[-1] = Dropped(held.head, UNPERMITTED, held.sender)
            effects += passed
        return effects

    def _give_up(self, gone: list[Held], now: float) -> list[Effect]:
        """Count frames that waited in vain, and let those go that waited behind them."""
        effects: list[Effect] = [Dropped(each.head, NO_KEY, each.sender) for each in gone]
        return effects + self._drain(dict.fromkeys(held.chain for held in gone), (), now)

    # --- Requests and answers -------------------------------------------------------------

    def receive(self, sender: NodeId, message: Control, now: float) -> list[Effect]:
        """Take a request or an answer: it is for us, or we pass it on."""
        effects: list[Effect] = []
        if type(message) is KeyRequest:
            effects = self._requested(sender, message, now)
        elif type(message) is KeyAnswer:
            effects = self._answered(sender, message, now)
        self._rearm()
        return effects

    def _requested(self, sender: NodeId, message: KeyRequest, now: float) -> list[Effect]:
        state = self._parts.find(message.part)
        if state is None or not state.overlay.accepts(state.part, sender):
            return []
        if publisher_of(message.chain) == self._me:
            ours = state.publishing is not None and state.publishing.chain == message.chain
            # A chain that comes to us is another process's, which knows better who has its keys;
            # one that does not may be of a former life of ours.
            if ours or self._congestion.upstream(state.key, message.chain) is None:
                taken = self._answering.take(sender, message, ours, now)
                if taken is not None:
                    return taken
        return self._passed_on(state, sender, message, now)

    def _passed_on(
        self, state: Part, sender: NodeId, message: KeyRequest, now: float
    ) -> list[Effect]:
        ticket, hops = message.ticket, message.hops + 1
        if hops > MAX_KEY_HOPS or self._asking.is_ours(ticket):
            return []
        ways = [peer for peer in self._ways(state.part, message.chain) if peer != sender]
        publisher = publisher_of(message.chain)
        if not ways or not self._routes.has_room(ticket, sender, publisher, now):
            return []
        stray = straying(ticket, hops)
        if stray is None and ways[0] != self._congestion.upstream(state.key, message.chain):
            stray = ticket[-1]  # we do not know the way
        to = ways[0] if stray is None else ways[stray % len(ways)]
        if not self._routes.allow(to, publisher, now):
            return []
        self._routes.add(ticket, sender, to, publisher, now)
        return [Send(to, KeyRequest(message.part, message.chain, ticket, hops, message.request))]

    def _answered(self, sender: NodeId, message: KeyAnswer, now: float) -> list[Effect]:
        if not self._asking.is_ours(message.ticket):
            back = self._routes.back(message.ticket, sender, now)
            return [Send(back, message)] if back is not None else []
        told, effects = self._asking.answer(sender, message, now)
        if told is not None:
            effects += self._drain([told.chain], told.keys, now)
        return effects

    def _ways(self, part: StreamPart, chain: ChainKey) -> list[NodeId]:
        """Return our neighbours, the one from whom the chain comes before all others."""
        state = self._parts.find(part)
        if state is None:
            return []
        upstream = self._congestion.upstream(state.key, chain)
        return sorted(state.overlay.neighbours(part), key=lambda peer: peer != upstream)

    # --- Links and time -------------------------------------------------------------------

    def link(self, peer: NodeId, up: bool, reason: str, now: float) -> list[Effect]:
        """Ask again what was asked over a link that ended."""
        if not up:
            self._routes.gone(peer)
            self._answering.gone(peer)
            self._asking.gone(peer, now)
            self._rearm()
        return []

    def wake(self, now: float) -> list[Effect]:
        """Give up what has waited too long, ask again, and answer."""
        gone = self._held.expire(now)
        effects = self._give_up(gone, now)
        for part in dict.fromkeys(held.part for held in gone):
            effects.append(Notice(part, NO_KEY, "its publisher did not answer in time"))
        effects += self._asking.again(now)
        if self._answering.wakeup_at is not None and self._answering.wakeup_at <= now:
            effects += self._answering.judge(now)
        self._rearm()
        return effects

    def sizes(self) -> Sizes:
        """Return every bounded table with its bound."""
        return {
            "streams we may read": (len(self._readable), MAX_PARTS),
            **self._ring.sizes(),
            **self._locks.sizes(),
            **self._held.sizes(),
            **self._routes.sizes(),
            **self._asking.sizes(),
            **self._answering.sizes(),
        }

    def _rearm(self) -> None:
        times = (self._held.next_at, self._asking.wakeup_at, self._answering.wakeup_at)
        self.wakeup_at = min((at for at in times if at is not None), default=None)


KeyExchangeFactory = Callable[[Parts, Congestion], KeyExchange]
