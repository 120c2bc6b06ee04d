"""Who may have keys gets them: ours, and those of others for whom we stand in.

A publisher may be gone whose messages are still read. So whoever reads a stream, and holds all the
keys that somebody asks for, may give them in its stead: to those to whom the publisher would. It
refuses nobody, since that is the publisher's to do. A key is only passed on by who knows of as
many removals of readers as its maker did: whom it was made to exclude, it excludes here too.

A request counts if the user in whose name it is made has signed it, a short while ago, and for the
first time. It is answered by the registry's word as of now, not as of when we last
read it: who was removed a moment ago must not be given a key. What does not count is not answered
at all, and whoever carried it here is innocent.
"""

import hashlib
from collections import OrderedDict, deque
from typing import Protocol

import msgspec

from anabranch.core.changes import Right
from anabranch.core.encryption import Entropy, GroupKey
from anabranch.core.errors import RemoteError
from anabranch.core.group_keys import KeyRing, Locks, Readership
from anabranch.core.identity import Curve, Signer
from anabranch.core.ids import NodeId, StreamPart, publisher_of
from anabranch.core.key_records import (
    KeyQuestion,
    make_answer,
    make_refusal,
    peek_question,
    read_request,
)
from anabranch.core.machine import Effect, Send, Sizes
from anabranch.core.messages import KeyAnswer, KeyRequest

MAX_REQUEST_AGE_S = 300.0  # and as far ahead may its clock be
MAX_TAKEN = 8_192  # requests that we know again
CONFIRM_WITHIN_S = 5.0  # how long a request waits for the registry
LOOK_EVERY_S = 0.5
ANSWERS_AT_ONCE = 64  # each costs three operations on the curve
NEXT_ANSWERS_S = 0.01
MAX_PENDING = 4_096
MAX_PENDING_PER_PEER = 1_024

UNPERMITTED = "unpermitted"
UNKNOWN_KEY = "unknown-key"


class KeyRegistry(Protocol):
    """What the key exchange needs of a reader of the registry."""

    def stream(self, name: str) -> Readership | None:
        """Return what is known of a stream."""

    def may(self, stream: str, user: NodeId, right: Right, now: float) -> bool:
        """Tell whether a user has a right, as far as we know."""

    def permits(self, part: StreamPart, publisher: NodeId, now: float) -> bool:
        """Tell whether a publisher may publish to a part, as far as we know."""

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        """Tell whether somebody may publish to a stream, or ever could."""

    def doubt(self, stream: str, now: float) -> list[Effect]:
        """Read a stream's chain anew: Learned answers."""

    def confirmed_at(self, stream: str) -> float:
        """Return when a tracker last confirmed what we know of a stream."""


class _Pending(msgspec.Struct):
    sender: NodeId
    message: KeyRequest
    question: KeyQuestion
    stands_in: bool  # for the publisher
    came_at: float


class Answering:
    """The requests for our own keys, and for those of others."""

    def __init__(
        self,
        signer: Signer,
        curve: Curve,
        entropy: Entropy,
        network: bytes,
        registry: KeyRegistry,
        ring: KeyRing,
        locks: Locks,
    ) -> None:
        self.wakeup_at: float | None = None
        self.asked_at = 0.0  # when somebody last asked for a key of ours
        self._signer = signer
        self._curve = curve
        self._entropy = entropy
        self._network = network
        self._registry = registry
        self._ring = ring
        self._locks = locks
        self._taken: OrderedDict[bytes, None] = OrderedDict()  # hashes of requests, oldest first
        self._pending: deque[_Pending] = deque()
        self._per_peer: dict[NodeId, int] = {}

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for our answer."""
        return bool(self._pending)

    def take(
        self, sender: NodeId, message: KeyRequest, ours: bool, now: float
    ) -> list[Effect] | None:
        """Take a request to our user; None if the chain is not ours and neither are the keys.

        Another process may publish in the name of the same user, with keys that it alone has.
        """
        question = self._read(message, now)
        if question is None or question.publisher != self._signer.node:
            return []
        if not ours and not self._own(question):
            return None
        return self._wait(_Pending(sender, message, question, False, now))

    def stand_in(self, sender: NodeId, message: KeyRequest, now: float) -> list[Effect] | None:
        """Take a request to another whose keys we have; None if we lack any of them."""
        question = self._read(message, now)
        if question is None or not self._others(question):
            return None
        return self._wait(_Pending(sender, message, question, True, now))

    def _read(self, message: KeyRequest, now: float) -> KeyQuestion | None:
        """Look at what is asked; None if it contradicts the outside, or is of another time."""
        try:
            question = peek_question(message.request)
        except RemoteError:
            return None  # it says nothing of who sent it: the sender may only have carried it
        named = (message.part.stream, publisher_of(message.chain))
        if (question.stream, question.publisher) != named:
            return None
        recent = abs(question.at_ms / 1000 - now) <= MAX_REQUEST_AGE_S
        return question if recent else None

    def _wait(self, pending: _Pending) -> list[Effect]:
        """Let a request wait for the registry's word, if it is new and well signed."""
        sender, request, now = pending.sender, pending.message.request, pending.came_at
        hashed = hashlib.sha256(request).digest()
        if hashed in self._taken or not self._has_room(sender):
            return []
        try:
            read_request(request, self._network, self._curve)
        except RemoteError:
            return []
        if not pending.stands_in:
            self.asked_at = now
        self._taken[hashed] = None
        if len(self._taken) > MAX_TAKEN:
            self._taken.popitem(last=False)
        self._pending.append(pending)
        self._per_peer[sender] = self._per_peer.get(sender, 0) + 1
        if self.wakeup_at is None:
            self.wakeup_at = now + LOOK_EVERY_S
        return self._registry.doubt(pending.question.stream, now)

    def judge(self, now: float) -> list[Effect]:
        """Answer the requests since which the registry has spoken, and give up the oldest."""
        effects: list[Effect] = []
        unsure: dict[str, None] = {}
        left = ANSWERS_AT_ONCE
        for _ in range(len(self._pending)):
            pending = self._pending.popleft()
            stream = pending.question.stream
            confirmed = self._registry.confirmed_at(stream) >= pending.came_at
            if confirmed and left:
                left -= 1
                effects += self._answered(pending, now)
            elif confirmed or pending.came_at + CONFIRM_WITHIN_S > now:
                self._pending.append(pending)
                if not confirmed:
                    unsure[stream] = None
                continue
            self._forget(pending)
        for stream in unsure:
            effects += self._registry.doubt(stream, now)
        self.wakeup_at = None
        if self._pending:
            self.wakeup_at = now + (LOOK_EVERY_S if left else NEXT_ANSWERS_S)
        return effects

    def gone(self, peer: NodeId) -> None:
        """Forget what was asked over a link that ended."""
        for _ in range(self._per_peer.get(peer, 0) and len(self._pending)):
            pending = self._pending.popleft()
            if pending.sender == peer:
                self._forget(pending)
            else:
                self._pending.append(pending)

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        fullest = max(self._per_peer.values(), default=0)
        return {
            "key requests taken": (len(self._taken), MAX_TAKEN),
            "key requests pending": (len(self._pending), MAX_PENDING),
            "key requests pending of a peer": (fullest, MAX_PENDING_PER_PEER),
        }

    def _has_room(self, sender: NodeId) -> bool:
        pending = self._per_peer.get(sender, 0)
        return len(self._pending) < MAX_PENDING and pending < MAX_PENDING_PER_PEER

    def _own(self, question: KeyQuestion) -> list[GroupKey]:
        """Return those of the keys asked for that are our own."""
        stream = question.stream
        found = ((key_id, self._ring.own(stream, key_id)) for key_id in question.key_ids)
        return [GroupKey(key_id, secret) for key_id, secret in found if secret is not None]

    def _others(self, question: KeyQuestion) -> list[GroupKey]:
        """Return the keys asked for, if we have all of them and know enough to give them."""
        stream, publisher = question.stream, question.publisher
        state, keys = self._registry.stream(stream), list[GroupKey]()
        for key_id in question.key_ids:
            secret = self._ring.find(stream, publisher, key_id)
            if secret is None or state is None:
                return []
            keys.append(GroupKey(key_id, secret))
            if keys[-1].removals > state.removals:
                return []
        return keys

    def _answered(self, pending: _Pending, now: float) -> list[Effect]:
        question, message = pending.question, pending.message
        stream, request, may = question.stream, message.request, self._registry.may
        permitted = may(stream, question.user, Right.SUBSCRIBE, now)
        if pending.stands_in:
            permitted = permitted and may(stream, self._signer.node, Right.SUBSCRIBE, now)
            keys = self._others(question) if permitted else []
            if not keys:
                return []  # whoever lacks them asks somebody else, since nobody has refused
        else:
            keys = self._own(question) if permitted else []
            if keys:
                self._locks.gave(stream, question.user)
        if keys:
            answer = make_answer(self._signer, self._curve, self._entropy, request, question, keys)
        else:
            why = UNKNOWN_KEY if permitted else UNPERMITTED
            answer = make_refusal(self._signer, request, question, why)
        return [Send(pending.sender, KeyAnswer(message.part, message.ticket, answer))]

    def _forget(self, pending: _Pending) -> None:
        self._per_peer[pending.sender] -= 1
        if not self._per_peer[pending.sender]:
            del self._per_peer[pending.sender]
