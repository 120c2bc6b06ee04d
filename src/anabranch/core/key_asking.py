"""The subscriber's side of the key exchange: asking for keys, and asking again by another way.

While frames of a chain wait for a key, its publisher is asked, one request at a time. What is not
answered in time, or not as it should be, is asked through the next neighbour, with a request that
is new. Another who has the keys may answer for the publisher, and then gives all that were asked
for, which fit their ids; to refuse is the publisher's alone. A publisher that refused a key is not
asked for it again for a while. Nor is anybody for whom nothing waits, if nobody gave it while
frames waited for it: else whoever reads the past page by page would wait anew with every page.

A publisher has a chain in each part, and in each of its processes, and a request finds the process
by the chain. A few chains of one publisher are asked at once and the others wait for their turn: so
all come to it, and what is asked of a publisher does not grow with the chains that it makes up.

A first request goes by the way on which frames come, at every node. One of those nodes may be deaf
to requests, so the later ones stray: here and there they go to another neighbour. That they may,
and where, stands in their ticket, which is random but for its first byte: which try it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from anabranch.core.changes import PUBLISH, SUBSCRIBE
from anabranch.core.encryption import AES_256_GCM, KEY_ID_BYTES, Entropy, GroupKey
from anabranch.core.errors import RemoteError
from anabranch.core.group_keys import KeyRing
from anabranch.core.held_frames import MAX_HELD_FRAMES, ChainName, Held, HeldFrames, KeyName
from anabranch.core.identity import Curve, Signer
from anabranch.core.ids import ChainKey, NodeId, StreamPart, publisher_of
from anabranch.core.key_answering import KeyRegistry
from anabranch.core.key_records import (
    MAX_KEYS_ASKED,
    NONCE_BYTES,
    KeyQuestion,
    KeyReply,
    make_request,
    open_keys,
    read_answer,
)
from anabranch.core.key_routes import KeyRoutes
from anabranch.core.machine import Effect, Notice, Send, Sizes
from anabranch.core.messages import KeyAnswer, KeyRequest
from anabranch.core.messages.links import TICKET_BYTES
from anabranch.core.timers import Timers

ANSWER_S = 1.0  # how long the first request may go unanswered; each later one twice as long
ANSWER_MOST_S = 4.0
ASKS_PER_PUBLISHER = 4  # at once
REFUSED_S = 30.0
MAX_REFUSED = 1_024

NO_KEY = "no-key"


class _Ask(msgspec.Struct):
    """What we asked of the publisher of a chain, and whom on the way to it."""

    part: StreamPart
    tries: int = 0
    ticket: bytes = b""
    request: bytes = b""
    key_ids: tuple[bytes, ...] = ()
    sent_to: NodeId | None = None


class Told(msgspec.Struct):
    """The chain that was asked for, and the keys that were given or refused."""

    chain: ChainName
    keys: list[KeyName]


class _Line:
    """The chains of one publisher that are asked for, and those that wait for their turn."""

    def __init__(self) -> None:
        self.asked: dict[ChainName, None] = {}
        self.waiting: OrderedDict[ChainName, None] = OrderedDict()


class Asking:
    """Our own requests."""

    def __init__(
        self,
        signer: Signer,
        curve: Curve,
        entropy: Entropy,
        network: bytes,
        registry: KeyRegistry,
        ring: KeyRing,
        held: HeldFrames,
        routes: KeyRoutes,
        ways: Callable[[StreamPart, ChainKey], list[NodeId]],
    ) -> None:
        self._signer = signer
        self._curve = curve
        self._entropy = entropy
        self._network = network
        self._registry = registry
        self._ring = ring
        self._held = held
        self._routes = routes
        self._ways = ways  # our neighbours in a part, best first
        self._asks: dict[ChainName, _Ask] = {}  # one for each chain of which frames wait
        self._lines: dict[NodeId, _Line] = {}
        self._tickets: dict[bytes, ChainName] = {}
        self._again: Timers[ChainName] = Timers()
        self._refused: OrderedDict[KeyName, float] = OrderedDict()  # until when
        self._in_vain: OrderedDict[KeyName, float] = OrderedDict()  # likewise: what did not come

    @property
    def wakeup_at(self) -> float | None:
        """When something is to be asked again."""
        return self._again.next_at

    def is_ours(self, ticket: bytes) -> bool:
        """Tell whether a request that is under way is our own."""
        return ticket in self._tickets

    def is_refused(self, key: KeyName, now: float) -> bool:
        """Tell whether a publisher has refused a key a short while ago, or cannot have it."""
        return self._refused.get(key, 0.0) > now or len(key[2]) != KEY_ID_BYTES

    def is_in_vain(self, key: KeyName, now: float) -> bool:
        """Tell whether frames have waited for a key as long as they may, a short while ago."""
        return self._in_vain.get(key, 0.0) > now

    def gave_up(self, gone: Iterable[Held], now: float) -> None:
        """Frames have waited as long as they may: note the keys whose turn to be asked for came."""
        for held in gone:
            ask = self._asks[held.chain]
            # Where there was nobody to ask, there was no request.
            asked = not ask.key_ids or held.lock.key_id in ask.key_ids
            if ask.tries and asked and self._ring.find(*held.key) is None:
                _note(self._in_vain, held.key, now)

    def look(self, chains: Iterable[ChainName], now: float) -> list[Effect]:
        """Ask for what the frames of these chains wait for, and no more if none of them do."""
        publishers: dict[NodeId, None] = {}
        for chain in chains:
            publisher = publisher_of(chain[1])
            publishers[publisher] = None
            if not self._held.has(chain):
                self._forget(chain)
            elif chain not in self._asks:
                self._asks[chain] = _Ask(next(self._held.all_of(chain)).part)
                self._lines.setdefault(publisher, _Line()).waiting[chain] = None
        return self._go_on(publishers, now)

    def answer(
        self, sender: NodeId, message: KeyAnswer, now: float
    ) -> tuple[Told | None, list[Effect]]:
        """Take an answer to a request of ours: what we were told, if it counts."""
        chain = self._tickets[message.ticket]
        ask, publisher = self._asks[chain], publisher_of(chain[1])
        if ask.sent_to != sender:
            return None, []
        try:
            reply = read_answer(message.answer, ask.request, self._network, self._curve.verify)
            if reply.by != publisher:
                self._check_other(ask, reply, now)
        except RemoteError:  # whoever on the way made it, another way is tried
            return None, self._spoiled(chain, now)
        self._forget(chain)
        told = Told(chain, [(ask.part.stream, publisher, key_id) for key_id in ask.key_ids])
        return told, self._take(ask, publisher, reply, now)

    def again(self, now: float) -> list[Effect]:
        """Let what went unanswered wait for its next turn, and ask whose turn it is."""
        publishers: dict[NodeId, None] = {}
        for chain in self._again.pop_due(now):
            publisher = publisher_of(chain[1])
            line = self._lines[publisher]
            del line.asked[chain]
            line.waiting[chain] = None
            publishers[publisher] = None
        return self._go_on(publishers, now)

    def gone(self, peer: NodeId, now: float) -> None:
        """Let what was asked over a link that ended be asked again at once."""
        for chain in self._tickets.values():
            if self._asks[chain].sent_to == peer and chain in self._again:
                self._again.set(chain, now)

    def forgive(self, stream: str) -> None:
        """The registry has spoken of a stream: what was refused may be given now."""
        for table in (self._refused, self._in_vain):
            for name in [name for name in table if name[0] == stream]:
                del table[name]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        at_once = max((len(line.asked) for line in self._lines.values()), default=0)
        return {
            "keys asked for": (len(self._asks), MAX_HELD_FRAMES),
            "publishers asked": (len(self._lines), MAX_HELD_FRAMES),
            "keys asked for of a publisher at once": (at_once, ASKS_PER_PUBLISHER),
            "keys refused": (len(self._refused), MAX_REFUSED),
            "keys that did not come": (len(self._in_vain), MAX_REFUSED),
        }

    def _go_on(self, publishers: Iterable[NodeId], now: float) -> list[Effect]:
        """Ask for as many chains of each publisher as may be asked at once."""
        effects: list[Effect] = []
        for publisher in publishers:
            line = self._lines.get(publisher)
            while line and line.waiting and len(line.asked) < ASKS_PER_PUBLISHER:
                chain, _ = line.waiting.popitem(last=False)
                line.asked[chain] = None
                effects += self._ask(chain, now)
        return effects

    def _ask(self, chain: ChainName, now: float) -> list[Effect]:
        """Send a fresh request by the next way, and wait for its answer for a while."""
        ask = self._asks[chain]
        self._tickets.pop(ask.ticket, None)
        self._again.set(chain, now + min(ANSWER_S * 2**ask.tries, ANSWER_MOST_S))
        ways, publisher = self._ways(ask.part, chain[1]), publisher_of(chain[1])
        ask.sent_to = ways[ask.tries % len(ways)] if ways else None
        ask.tries += 1
        if ask.sent_to is None or not self._routes.allow(ask.sent_to, publisher, now):
            return []
        ask.key_ids = self._missing(chain)
        assert ask.key_ids, "nobody waits for a key that is here"
        ask.ticket = _new_ticket(ask.tries, self._entropy)
        question = KeyQuestion(
            self._network,
            ask.part.stream,
            publisher,
            self._signer.node,
            self._signer.public,
            ask.key_ids,
            int(now * 1000),
            self._entropy(NONCE_BYTES),
        )
        ask.request = make_request(self._signer, question)
        self._tickets[ask.ticket] = chain
        return [Send(ask.sent_to, KeyRequest(ask.part, chain[1], ask.ticket, 1, ask.request))]

    def _missing(self, chain: ChainName) -> tuple[bytes, ...]:
        """Return the keys that the frames of a chain wait for; that of the first is among them."""
        missing: dict[bytes, None] = {}
        for held in self._held.all_of(chain):
            lock = held.lock
            encrypted = lock.encryption == AES_256_GCM and len(lock.key_id) == KEY_ID_BYTES
            if encrypted and self._ring.find(*held.key) is None:
                missing[lock.key_id] = None
                if len(missing) == MAX_KEYS_ASKED:
                    break
        return tuple(missing)

    def _spoiled(self, chain: ChainName, now: float) -> list[Effect]:
        ask = self._asks[chain]
        del self._tickets[ask.ticket]
        if chain in self._again and ask.tries < len(self._ways(ask.part, chain[1])):
            return self._ask(chain, now)
        return []  # all ways were tried: when it is its turn, they are again

    def _check_other(self, ask: _Ask, reply: KeyReply, now: float) -> None:
        """Believe another than the publisher if he may have the keys, and gives all of them."""
        stream, may = ask.part.stream, self._registry.may
        if not any(may(stream, reply.by, right, now) for right in (SUBSCRIBE, PUBLISH)):
            raise RemoteError("key-answer", "by somebody who has no part in the stream")
        given = {key.id for key in open_keys(self._signer, ask.request, reply) if key.fits}
        if not given.issuperset(ask.key_ids):
            raise RemoteError("key-answer", "not the keys that were asked for")

    def _take(self, ask: _Ask, publisher: NodeId, reply: KeyReply, now: float) -> list[Effect]:
        """Learn the keys that we were given, and note those that we were not."""
        stream, problem, keys = ask.part.stream, reply.problem, list[GroupKey]()
        if not problem and not self._registry.wrote(stream, publisher):
            problem = "its publisher never had the right to publish"
        if not problem:
            try:
                keys = open_keys(self._signer, ask.request, reply)
            except RemoteError as error:  # who gave them signed it, so nobody else has spoiled it
                problem = str(error)
        effects: list[Effect] = []
        given = {key.id: key for key in keys if key.id in ask.key_ids and key.fits}
        for key in given.values():
            effects += self._ring.learn(stream, publisher, key)
        for key_id in ask.key_ids:
            if key_id not in given:
                _note(self._refused, (stream, publisher, key_id), now)
        if problem:
            effects.append(Notice(ask.part, NO_KEY, problem))
        return effects

    def _forget(self, chain: ChainName) -> None:
        ask = self._asks.pop(chain, None)
        if ask is None:
            return
        self._tickets.pop(ask.ticket, None)
        self._again.cancel(chain)
        publisher = publisher_of(chain[1])
        line = self._lines[publisher]
        line.asked.pop(chain, None)
        line.waiting.pop(chain, None)
        if not line.asked and not line.waiting:
            del self._lines[publisher]


def straying(ticket: bytes, hops: int) -> int | None:
    """Return by which of many ways a request leaves a node; None: by that of the frames."""
    drawn = ticket[1 + hops % (TICKET_BYTES - 1)]
    return drawn >> 1 if ticket[0] and drawn & 1 else None


def _note(table: OrderedDict[KeyName, float], name: KeyName, now: float) -> None:
    table.pop(name, None)
    table[name] = now + REFUSED_S
    if len(table) > MAX_REFUSED:
        table.popitem(last=False)


def _new_ticket(tries: int, entropy: Entropy) -> bytes:
    return bytes([min(tries - 1, 255)]) + entropy(TICKET_BYTES - 1)
