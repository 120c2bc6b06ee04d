"""The key exchange: frames wait for their key, and the key comes from who published them.

A subscriber that gets a frame whose key it lacks keeps the frame back and asks. The request goes
hop by hop towards the publisher, to the neighbour from whom the first copies of the chain come,
and the answer goes back the same way. Nobody on the way can read, change or make either; who
loses them can only delay. Nobody asks for the key of a frame that it merely carries.

A publisher may be gone whose past is read. Where a request does not come any nearer to it, or when
two before it were in vain, whoever on the way may read and has the keys answers for the publisher.
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
from anabranch.core.group_keys import KeyRing, Locks
from anabranch.core.held_frames import ChainName, Held, HeldFrames, KeyName, QueueName
from anabranch.core.identity import Curve, Signer
from anabranch.core.ids import ChainKey, FrameHead, NodeId, StreamPart, part_key, publisher_of
from anabranch.core.key_answering import UNPERMITTED, Answering, KeyRegistry
from anabranch.core.key_asking import NO_KEY, Asking, straying
from anabranch.core.key_routes import KeyRoutes
from anabranch.core.machine import Deliver, Dropped, Effect, KeepKey, Missed, Notice, Send, Sizes
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.messages.links import MAX_KEY_HOPS
from anabranch.core.messages.storage import MAX_NUMBER
from anabranch.core.parts import MAX_PARTS, Part, Parts
from anabranch.core.service import Service
from anabranch.core.standing_keys import StandingKeys

READABLE_FOR_S = 1.0  # after this our own permission is looked up again
FIRST_ASKED_S = 2.0  # within this time of a new key, those who need it ask for it,
LAST_ASKED_S = 0.5  # and soon after each other
IN_VAIN = 2  # after so many requests for a key somebody else may answer for its publisher
MAX_ENDINGS = 8  # that wait for the frames of one reader

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
        self._locks = Locks(self._ring, registry.stream, entropy, StandingKeys(signer))
        self.lock = self._locks.next  # what encrypts the next frame that we publish
        self._held = HeldFrames()
        self.waiting = self._held.order  # frames for their keys: false if there is none
        self._routes = KeyRoutes()
        common = (signer, curve, entropy, network, registry, self._ring)
        self._asking = Asking(*common, self._held, self._routes, self._ways)
        self._answering = Answering(*common, self._locks)
        self._readable: dict[str, float] = {}  # streams that we may read: until when that holds
        # What is to be said to readers after all that came for them up to a place.
        self._endings: dict[int, deque[tuple[int, Effect]]] = {}

    # --- What the Peer needs of us --------------------------------------------------------

    def secret(self, stream: str, publisher: NodeId, key_id: bytes) -> bytes | None:
        """Return the secret of a group key, if we have it."""
        return self._ring.find(stream, publisher, key_id)

    @property
    def lingers_until(self) -> float:
        """Until when others are likely to ask us for the key of what we have just published."""
        pending = inf if self._answering.is_asked else 0.0
        first, last = self._locks.newest_at, self._answering.asked_at
        return max(first + FIRST_ASKED_S, last + LAST_ASKED_S, pending)

    def passes(self, frame: bytes) -> bool:
        """Tell at a glance whether a frame needs no key and waits for none; False: look closer."""
        return not self.waiting and frames.is_clear(frame)

    def deliver(
        self,
        part: StreamPart,
        head: FrameHead,
        frame: bytes,
        hops: int,
        sender: NodeId | None,
        now: float,
        to: int = 0,
        after: int = 0,
        upto: int = MAX_NUMBER,
        skip: int = 0,
        most: int = MAX_NUMBER,
        late: bool = False,
    ) -> list[Effect]:
        """Deliver a frame with its key, or keep it back until the key is here.

        To whom, and what of it, stands in the Deliver that comes of it.
        """
        try:
            lock = frames.lock_of(frame)
        except RemoteError:
            lock = _IN_THE_CLEAR  # its publisher signed nonsense: whoever opens it will see
        if not lock.encryption and not self._held.order:
            return [Deliver(part, head, frame, hops, b"", to, after, upto, skip, most, late)]
        held = Held(part, head, frame, hops, sender, lock, to, after, upto, skip, most, late)
        if held.queue not in self._held:  # else it must not overtake those that wait
            passed, learned = self._pass(held, now)
            if not passed and self._asking.is_in_vain(held.key, now):
                passed = held.lost(NO_KEY)
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
        gone = self._held.leave(part.key)
        effects = [effect for held in gone for effect in held.lost(NO_KEY)]
        effects += self._drain(dict.fromkeys(held.queue for held in gone), (), now)
        self._rearm()
        return effects

    def close(self, reader: int, now: float) -> list[Effect]:
        """Who reads under a ticket reads no more: nothing waits for it, and nothing is said."""
        self._endings.pop(reader, None)
        gone = self._held.close(reader)
        effects: list[Effect] = [Dropped(each.head, NO_KEY, each.sender, reader) for each in gone]
        effects += self._asking.look(dict.fromkeys(each.chain for each in gone), now)
        self._rearm()
        return effects

    def follow(self, reader: int, effect: Effect) -> list[Effect]:
        """Say something to a reader after all that waits for it now; at once, if nothing does.

        That messages of a chain are missing is said after what waits of that chain.
        """
        if type(effect) is Missed:
            queue = (part_key(effect.part), effect.chain, reader)
            if queue in self._held:
                self._held.of(queue)[-1].miss(effect)
                return []
        elif self._held.oldest(reader) is not None:
            endings = self._endings.setdefault(reader, deque())
            endings.append((self._held.newest, effect))
            assert len(endings) <= MAX_ENDINGS
            return []
        return [effect]

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
        lock = held.lock
        if lock.encryption != AES_256_GCM:
            return [held.opened(b"")], None
        if not self._may_read(held.part.stream, now):
            return held.lost(UNREADABLE), None
        secret, kept = self._locks.find(held.key, held.head.first, now)
        if secret is None:
            return held.lost(NO_KEY) if self._asking.is_refused(held.key, now) else [], None
        effects, learned = self._learn_next(held, GroupKey(lock.key_id, secret))
        return [*kept, *effects, held.opened(secret)], learned

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
        self, queues: Iterable[QueueName], keys: Iterable[KeyName], now: float
    ) -> list[Effect]:
        """Let the frames go that need wait no more: of these queues, and for these keys.

        Nothing is asked before all have gone: what is learned from one chain is asked of none.
        """
        effects: list[Effect] = []
        looked_at: dict[ChainName, None] = {}
        learned, waiting = deque(keys), deque(queues)
        while learned or waiting:
            if not waiting:
                waiting += self._held.awaiting(learned.popleft())
                continue
            queue = waiting.popleft()
            looked_at[queue[:2]] = None
            effects += self._drain_queue(queue, learned, now)
        return effects + self._asking.look(looked_at, now) + self._end()

    def _drain_queue(self, queue: QueueName, learned: deque[KeyName], now: float) -> list[Effect]:
        """Let the first frames of a queue go, and add the keys that were in them to the learned."""
        effects: list[Effect] = []
        while queue in self._held:
            passed = self._let_go(self._held.of(queue)[0], learned, now)
            if not passed:
                break
            self._held.take(queue)
            effects += passed
        return effects

    def _let_go(self, held: Held, learned: deque[KeyName], now: float) -> list[Effect]:
        """Say what becomes of a frame that has waited; nothing if it has no key yet."""
        passed, following = self._pass(held, now)
        if following is not None:
            learned.append(following)
        if passed and type(passed[-1]) is Deliver:
            if not self._counts(held, now):
                # It waited so long that its publisher has lost the right meanwhile.
                passed[-1:] = held.lost(UNPERMITTED)
            elif held.gap is not None:
                passed.append(held.gap)
        return passed

    def _counts(self, held: Held, now: float) -> bool:
        """Tell whether a frame still counts; for who reads in order it does, as it would stored."""
        publisher = held.head.publisher
        if held.to and self._registry.wrote(held.part.stream, publisher):
            return True
        return self._registry.permits(held.part, publisher, now)

    def _give_up(self, gone: list[Held], now: float) -> list[Effect]:
        """Count frames that waited in vain, and let those go that waited behind them."""
        effects, learned = list[Effect](), deque[KeyName]()
        for held in gone:
            # Not all of them lack their key: some only waited for those before them.
            effects += self._let_go(held, learned, now) or held.lost(NO_KEY)
        return effects + self._drain(dict.fromkeys(held.queue for held in gone), learned, now)

    def _end(self) -> list[Effect]:
        """Say what was to follow on frames that wait no more."""
        effects: list[Effect] = []
        for reader in list(self._endings):
            endings, oldest = self._endings[reader], self._held.oldest(reader)
            while endings and (oldest is None or oldest > endings[0][0]):
                effects.append(endings.popleft()[1])
            if not endings:
                del self._endings[reader]
        return effects

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
        chain, taken = message.chain, None
        upstream = self._congestion.upstream(state.key, chain)
        if publisher_of(chain) == self._me:
            mine = state.publishing
            ours = mine is not None and mine.chain == chain
            # A chain that comes to us is another process's, which knows better who has its keys;
            # one that does not may be of a former life of ours. One with given numbers is shared.
            if ours or upstream is None or (mine is not None and mine.owns(chain)):
                taken = self._answering.take(sender, message, ours, now)
        if taken is None and state.subscribed and state.reads:
            onward = [peer for peer in state.overlay.neighbours(state.part) if peer != sender]
            lost = upstream not in onward or message.ticket[0] >= IN_VAIN
            if lost and self._may_read(state.part.stream, now):
                taken = self._answering.stand_in(sender, message, now)
        return taken if taken is not None else self._passed_on(state, sender, message, now)

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
            effects += self._drain(self._held.queues(told.chain), told.keys, now)
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
        self._asking.gave_up(gone, now)
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
        endings = max(map(len, self._endings.values()), default=0)
        return {
            "streams we may read": (len(self._readable), MAX_PARTS),
            "endings that wait for a reader's frames": (endings, MAX_ENDINGS),
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
