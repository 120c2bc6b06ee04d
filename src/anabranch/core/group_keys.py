"""Group keys: those we know, and those we encrypt our own frames with.

A publisher has a key of its own for each private stream, from its start on. Two things end a key:

- *rotation*, when it has been used for long: the frame that is the last of a key carries the next
  one, wrapped, so that nobody who reads need ask;
- *rekeying*, when somebody who could read no longer may: the next key is given to nobody, and who
  still may read asks for it. This happens whenever the registry counts a removal, whoever had the
  key, and from whomever.

A stream that everybody may read is not encrypted. A stream of which the registry says nothing is:
what it is unsure of, a publisher keeps to itself.

Frames whose numbers were given have keys that are made otherwise (standing_keys.py).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from anabranch.core.changes import PUBLIC
from anabranch.core.encryption import (
    AES_256_GCM,
    NONCE_BYTES,
    Entropy,
    GroupKey,
    encrypt,
    new_key,
    wrap,
)
from anabranch.core.ids import FrameHead, NodeId
from anabranch.core.machine import Effect, KeepKey, Sizes
from anabranch.core.messages.data import Body
from anabranch.core.standing_keys import StandingKeys, StandingLock

MAX_KEYS = 10_000  # that others gave us; those used longest ago go first,
MAX_KEYS_EACH = 256  # as they do among those of one publisher of one stream
MAX_OWN_KEYS = 10_000
MAX_LOCKS = 1_000  # streams that we publish to; a stream that is forgotten begins a new key
ROTATE_S = 3_600.0
ROTATE_FRAMES = 1 << 20


class Readership(Protocol):
    """What the registry says of who may read one stream."""

    @property
    def removals(self) -> int:
        """How often anybody has been told that he may read no more."""

    @property
    def changes(self) -> int:
        """How many changes were made to the stream, of any kind."""

    def last_lapse(self, now: float) -> int:
        """Return when a permission to subscribe last ended of itself, in ms; 0: none ever did."""

    def lapsed(self, since: float, now: float) -> bool:
        """Tell whether a permission to read has ended of itself in the meantime."""

    def readers(self, now: float) -> frozenset[NodeId]:
        """Return who may subscribe now; PUBLIC is among them if everybody may."""

    def next_expiry(self, now: float) -> int | None:
        """Return when, in ms, the next permission ends."""


class KeyRing:
    """The group keys that this node knows: those that it made, and those that others gave it.

    The two are kept apart, and what others give is bounded for each of them: nobody can make us
    forget our own keys, nor those of another publisher, by giving us ever more.
    """

    def __init__(self, me: NodeId, kept: Iterable[KeepKey] = ()) -> None:
        self.me = me
        self._own: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()  # last used last
        # By stream and publisher, and by id. Here, too, both are in the order of their last use.
        self._learned: OrderedDict[tuple[str, NodeId], OrderedDict[bytes, bytes]] = OrderedDict()
        self._size = 0
        for entry in kept:
            key = GroupKey(entry.key_id, entry.secret)
            if entry.publisher != me:
                self.learn(entry.stream, entry.publisher, key)
            elif key.fits:
                self.use(entry.stream, key)

    def __len__(self) -> int:
        return len(self._own) + self._size

    def find(self, stream: str, publisher: NodeId, key_id: bytes) -> bytes | None:
        """Return the secret of a key, if we have it."""
        if publisher == self.me and (secret := self.own(stream, key_id)) is not None:
            return secret
        learned = self._learned.get((stream, publisher))
        if learned is None or key_id not in learned:
            return None
        self._learned.move_to_end((stream, publisher))
        learned.move_to_end(key_id)
        return learned[key_id]

    def own(self, stream: str, key_id: bytes) -> bytes | None:
        """Return the secret of a key that is ours to give."""
        return self._own.get((stream, key_id))

    def use(self, stream: str, key: GroupKey) -> list[Effect]:
        """Take a key of our own into use, or go on using it: of those, the last used stay."""
        name = (stream, key.id)
        if name in self._own:
            self._own.move_to_end(name)
            return []
        self._own[name] = key.secret
        if len(self._own) > MAX_OWN_KEYS:
            self._own.popitem(last=False)
        return [KeepKey(stream, self.me, key.id, key.secret)]

    def learn(self, stream: str, publisher: NodeId, key: GroupKey) -> list[Effect]:
        """Learn a key that another process made; one that does not fit its id is none.

        One that publishes in our own name may have made it. Such a key is not ours to give, nor
        to keep: that process alone knows who has it, and rekeys when one of them may read no more.
        """
        if not key.fits or self.find(stream, publisher, key.id) is not None:
            return []
        learned = self._learned.setdefault((stream, publisher), OrderedDict())
        self._learned.move_to_end((stream, publisher))
        learned[key.id] = key.secret
        self._size += 1
        if len(learned) > MAX_KEYS_EACH:
            self._forget_of((stream, publisher))
        if self._size > MAX_KEYS:
            self._forget_of(next(iter(self._learned)))
        return [] if publisher == self.me else [KeepKey(stream, publisher, key.id, key.secret)]

    def sizes(self) -> Sizes:
        """Return the tables with their bounds."""
        return {
            "group keys": (self._size, MAX_KEYS),
            "group keys of a publisher": (
                max(map(len, self._learned.values()), default=0),
                MAX_KEYS_EACH,
            ),
            "group keys of our own": (len(self._own), MAX_OWN_KEYS),
        }

    def _forget_of(self, group: tuple[str, NodeId]) -> None:
        learned = self._learned[group]
        learned.popitem(last=False)
        self._size -= 1
        if not learned:
            del self._learned[group]


class FrameLock(msgspec.Struct):
    """Encrypts one frame; if it is the last one of its key, the next key travels in it."""

    key: GroupKey
    following: GroupKey | None
    entropy: Entropy

    def __call__(self, head: FrameHead, items: bytes) -> Body:
        """Make the body of a frame's items."""
        key, entropy = self.key, self.entropy
        encrypted = encrypt(key, head, items, entropy(NONCE_BYTES))
        next_key = b""
        if self.following is not None:
            next_key = wrap(key, self.following, head, entropy(NONCE_BYTES))
        return Body(encrypted, AES_256_GCM, key.id, next_key)


class _Current(msgspec.Struct):
    """How the frames of one stream are encrypted now."""

    readers: frozenset[NodeId]  # who may have the key
    look_again_at: float | None  # when a permission ends
    removals: int = 0
    changes: int = 0
    lapse_ms: int = 0  # when a permission last ended of itself
    looked_at: float = 0.0
    key: GroupKey | None = None  # None: everybody may read
    since: float = 0.0
    frames: int = 0


class Locks:
    """What our own frames are encrypted with, stream by stream."""

    def __init__(
        self,
        ring: KeyRing,
        stream: Callable[[str], Readership | None],
        entropy: Entropy,
        standing: StandingKeys | None = None,
    ) -> None:
        self._ring = ring
        self._stream = stream
        self._entropy = entropy
        self._standing = standing
        self._current: OrderedDict[str, _Current] = OrderedDict()
        self._changed: set[str] = set()  # of which the registry has spoken since we last looked
        self.newest_at = 0.0  # when we last took a new key into use

    def learned(self, stream: str) -> None:
        """The registry has spoken: look who may read before the next frame is made."""
        if stream in self._current:
            self._changed.add(stream)

    def next(
        self, stream: str, now: float, given: int = 0
    ) -> tuple[FrameLock | StandingLock | None, list[Effect]]:
        """Return what encrypts the next frame of a stream: nothing, if everybody may read it.

        The numbers of that frame may be `given`: then this is the first of them.
        """
        current = self._look(stream, now)
        if PUBLIC in current.readers:
            return None, []
        if given:
            key = self._make_standing(stream, current, given)
            kept = self._ring.use(stream, key)
            if kept:
                self.newest_at = now
            return StandingLock(key), kept
        if current.key is None:
            self._begin(current, new_key(self._entropy, current.removals), now)
        assert current.key is not None
        key, following = current.key, None
        effects = self._ring.use(stream, key)
        current.frames += 1
        if current.frames >= ROTATE_FRAMES or now - current.since >= ROTATE_S:
            following = new_key(self._entropy, current.removals)
            self._begin(current, following, now)
            effects += self._ring.use(stream, following)
        return FrameLock(key, following, self._entropy), effects

    def find(
        self, name: tuple[str, NodeId, bytes], first: int, now: float
    ) -> tuple[bytes | None, list[Effect]]:
        """Return the secret of a key by stream, publisher and id, if we have it or can make it.

        What another process of ours encrypted so we can read; `first` is its frame's first number.
        Such a key is kept: after the next change of the stream it could not be made again.
        """
        stream, publisher, key_id = name
        secret = self._ring.find(*name)
        if secret is not None or publisher != self._ring.me or self._standing is None:
            return secret, []
        key = self._make_standing(stream, self._look(stream, now), first)
        if key.id != key_id:
            return None, []
        return key.secret, self._ring.use(stream, key)

    def gave(self, stream: str, user: NodeId) -> None:
        """Take note of who has a key, who may lose the right to it before the next frame."""
        current = self._current.get(stream)
        if current is not None:
            current.readers |= {user}

    def sizes(self) -> Sizes:
        """Return the table with its bound."""
        return {"streams with a lock": (len(self._current), MAX_LOCKS)}

    def _look(self, stream: str, now: float) -> _Current:
        """Return how a stream is encrypted, without a key if the last one may be used no more."""
        current = self._current.get(stream)
        if current is not None and stream not in self._changed:
            until = current.look_again_at
            if until is None or until > now:
                return current
        self._changed.discard(stream)
        state = self._stream(stream)
        readers = frozenset[NodeId]() if state is None else state.readers(now)
        expiry_ms = None if state is None else state.next_expiry(now)
        until = None if expiry_ms is None else expiry_ms / 1000
        removals = 0 if state is None else state.removals
        if current is None:
            current = self._current[stream] = _Current(readers, until)
            if len(self._current) > MAX_LOCKS:
                forgotten, _ = self._current.popitem(last=False)
                self._changed.discard(forgotten)
        elif current.readers - readers or removals != current.removals:
            current.key = None  # somebody knows it who may read no more
        elif state is not None and state.lapsed(current.looked_at, now):
            current.key = None  # perhaps of another process of ours: we need not have seen him
        current.readers, current.look_again_at = readers, until
        current.removals, current.looked_at = removals, now
        if state is not None:
            current.changes, current.lapse_ms = state.changes, state.last_lapse(now)
        return current

    def _make_standing(self, stream: str, current: _Current, first: int) -> GroupKey:
        assert self._standing is not None
        stands = current.removals, current.changes, current.lapse_ms
        return self._standing.make(stream, *stands, first)

    def _begin(self, current: _Current, key: GroupKey, now: float) -> None:
        current.key, current.since, current.frames = key, now, 0
        self.newest_at = now
