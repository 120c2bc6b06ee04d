"""One chain of the registry: its changes, their order, and what follows from them.

Each change names the newest ones that its author knew, so that the history is a line, or, where
two trackers wrote at the same time, parts and meets again. Who has two branches keeps both. The
canonical order goes by depth and then by hash; the head is a hash that was rolled along it, so
that two who have the same head have the same changes, in the same order, and the same state.
"""

import copy
import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from anabranch.core.changes import (
    MAX_PARENTS,
    SIGNATURE_BYTES,
    Action,
    Change,
    decode_change,
    encode_change,
    hash_change,
    signed_digest,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import ChainState, NetworkState, StreamState, new_state
from anabranch.core.resolution import Entry, resolve, weigh

MAX_DEPTH = 10_000  # of a chain: in a line that is how many changes it may have,
OTHERS_DEPTH = 8_000  # and here only the owner may add more, who can thus always take rights back
MAX_CHANGES = MAX_DEPTH + 2_000  # of all branches together, but for the owner's own
MAX_STATES = 16  # that are remembered for those who know less than we do

_HEAD_DOMAIN = b"anabranch head v1\0"


def roll(head: bytes, encoded: bytes) -> bytes:
    """Return the head that one more change leaves."""
    return hashlib.sha256(_HEAD_DOMAIN + head + hash_change(encoded)).digest()


class History:
    """The changes of a chain, and what follows from them."""

    def __init__(self, chain: str, network: bytes) -> None:
        self.chain = chain
        self.network = network
        self._entries: dict[bytes, Entry] = {}  # by hash
        self._tips: dict[bytes, None] = {}
        self._states: OrderedDict[tuple[bytes, ...], ChainState] = OrderedDict()  # after these
        self._order: list[Entry] = []  # canonical, as are the next two
        self._changes: list[bytes] = []
        self._new: list[Entry] = []  # that have no place in the order yet
        self._heads = [network]  # what the first so many changes leave
        self._state: ChainState | None = new_state(chain, network)  # None: to be worked out
        owner = self._state.owner if isinstance(self._state, StreamState) else None
        self._owner: NodeId | None = owner  # None: only the network's owner changes it

    @property
    def height(self) -> int:
        """How many changes there are."""
        return len(self._entries)

    @property
    def head(self) -> bytes:
        """What all of them leave; the network's name while there are none."""
        self._arrange()
        return self._heads[-1]

    @property
    def changes(self) -> Sequence[bytes]:
        """All of them, in the canonical order."""
        self._arrange()
        return self._changes

    @property
    def state(self) -> ChainState:
        """What follows from all of them."""
        if self._state is None:
            self._arrange()
            self._state = resolve(new_state(self.chain, self.network), self._order)
        return self._state

    @property
    def tips(self) -> tuple[bytes, ...]:
        """The changes that no other one names, sorted."""
        return tuple(sorted(self._tips))

    @property
    def at_ms(self) -> int:
        """When the newest change was made, as its author says."""
        return max((self._entries[tip].at_ms for tip in self._tips), default=0)

    def head_at(self, after: int) -> bytes | None:
        """Return the head that the first `after` changes leave; None beyond the end."""
        self._arrange()
        return self._heads[after] if 0 <= after < len(self._heads) else None

    def has(self, encoded: bytes) -> bool:
        """Tell whether we have a change."""
        return self._name(encoded) in self._entries

    def extends(self, encoded: bytes) -> bool:
        """Tell whether the author of a change knew all that we know."""
        if not self._entries and self.chain == NETWORK:
            return True  # nothing but the genesis record fits
        return set(decode_change(encoded).parents) == set(self.next_parents())

    def next_parents(self) -> tuple[bytes, ...]:
        """Return what the next change is to name."""
        return self.tips[:MAX_PARENTS] or (self.network,)

    def next_depth(self) -> int:
        """Return how deep the next change will lie."""
        return 1 + max((self._entries[tip].depth for tip in self.tips[:MAX_PARENTS]), default=0)

    def examine(self, encoded: bytes, verify: Verify) -> None:
        """Raise RemoteError, and say what does not hold, unless a change can be added."""
        if not self.has(encoded):
            self._weigh(encoded, verify)

    def add(self, encoded: bytes, verify: Verify) -> bool:
        """Add a change; what raises RemoteError changes nothing. False: we have it already."""
        if self.has(encoded):
            return False
        entry, state = self._weigh(encoded, verify)
        self._entries[entry.hash] = entry
        named = entry.change.parents if entry.change is not None else ()
        in_line = all(tip in named for tip in self._tips)
        for parent in named:
            self._tips.pop(parent, None)
        self._tips[entry.hash] = None
        self._new.append(entry)
        if in_line:  # and there is one tip, whose state is the state of all
            self._state = state
            self._states.clear()
        else:
            self._state = None
            self._remember((entry.hash,), state)
        return True

    def copy(self) -> "History":
        """Return a history of its own that stands where this one stands."""
        twin = copy.copy(self)
        twin._entries, twin._tips = dict(self._entries), dict(self._tips)
        twin._states = self._states.copy()
        twin._order, twin._changes = list(self._order), list(self._changes)
        twin._heads, twin._new = list(self._heads), list(self._new)
        return twin

    # --- One change -----------------------------------------------------------------------

    def _name(self, encoded: bytes) -> bytes:
        genesis = self._entries.get(self.network)
        is_genesis = genesis is not None and encoded == genesis.encoded
        return self.network if is_genesis else hash_change(encoded)

    def _weigh(self, encoded: bytes, verify: Verify) -> tuple[Entry, ChainState]:
        if self.chain == NETWORK and not self._entries:
            state = NetworkState(self.network)
            state.begin(encoded)
            assert state.genesis is not None
            created_ms = state.genesis.created_ms
            return Entry(0, self.network, encoded, None, 1, created_ms, (), {}), state
        change = decode_change(encoded)
        named = self._check_place(change)
        check_signature(encoded, change, self.network, verify)
        parents = tuple(entry.index for entry in named)
        return weigh(self._base(change, named), change, encoded, self.height, parents)

    def _base(self, change: Change, named: list[Entry]) -> ChainState:
        """Return what the author of a change knew."""
        if all(tip in change.parents for tip in self._tips):
            return self.state
        parents = tuple(sorted(change.parents))
        state = self._states.get(parents)
        if state is None:
            state = resolve(new_state(self.chain, self.network), self._ancestors(named))
            self._remember(parents, state)
        return state

    def _remember(self, parents: tuple[bytes, ...], state: ChainState) -> None:
        self._states[parents] = state
        if len(self._states) > MAX_STATES:
            self._states.popitem(last=False)

    def _check_place(self, change: Change) -> list[Entry]:
        """Hold a change against those that it names; return them."""
        if change.chain != self.chain:
            raise RemoteError("wrong-chain", change.chain)
        if len(set(change.parents)) != len(change.parents):
            raise RemoteError("twice", "a change names each one before it once")
        if change.parents == (self.network,) and self.chain != NETWORK:
            named: list[Entry] = []
        elif any(parent not in self._entries for parent in change.parents):
            raise RemoteError("orphan", "it names changes that we do not have")
        else:
            named = [self._entries[parent] for parent in change.parents]
        if change.depth != 1 + max((entry.depth for entry in named), default=0):
            raise RemoteError("depth", str(change.depth))
        self._check_room(change)
        if any(change.at_ms < entry.at_ms for entry in named):
            raise RemoteError("clock", "a change is not older than the one before it")
        return named

    def _check_room(self, change: Change) -> None:
        """Depth is the change's own, so that all who read it agree whether there is room."""
        is_owner = self._owner in (None, change.author)
        if not is_owner and self.height >= MAX_CHANGES:
            raise RemoteError("full", f"a chain has at most {MAX_CHANGES} changes")
        if change.depth > (MAX_DEPTH if is_owner else OTHERS_DEPTH):
            raise RemoteError("full", f"{change.depth} changes, one after the other, are too many")

    def _ancestors(self, named: list[Entry]) -> list[Entry]:
        """Return entries with all that they follow from, in the canonical order."""
        found: dict[bytes, Entry] = {}
        waiting = list(named)
        while waiting:
            entry = waiting.pop()
            if entry.hash not in found:
                found[entry.hash] = entry
                parents = entry.change.parents if entry.change is not None else ()
                waiting += [self._entries[p] for p in parents if p in self._entries]
        return sorted(found.values(), key=lambda entry: entry.place)

    def _arrange(self) -> None:
        """Put all changes in their order anew, if some came that do not stand at the end."""
        if not self._new:
            return
        first = min(entry.place for entry in self._new)
        at = bisect_left(self._order, first, key=lambda entry: entry.place)
        tail = sorted([*self._order[at:], *self._new], key=lambda entry: entry.place)
        self._order[at:], self._new = tail, []
        self._changes[at:] = [entry.encoded for entry in tail]
        del self._heads[at + 1 :]
        for encoded in self._changes[at:]:
            self._heads.append(roll(self._heads[-1], encoded))


def check_signature(encoded: bytes, change: Change, network: bytes, verify: Verify) -> None:
    """Raise RemoteError unless a change is signed by its author, for this network."""
    body, signature = encoded[:-SIGNATURE_BYTES], encoded[-SIGNATURE_BYTES:]
    if not verify(change.author, signed_digest(network, body), signature):
        raise RemoteError("change-forged", change.chain)


def make_change(
    signer: Signer, history: History, actions: Action | Sequence[Action], now: float
) -> bytes:
    """Make and sign the change that comes next in a chain; LocalError if it would be refused."""
    done = tuple(actions) if isinstance(actions, Sequence) else (actions,)
    parents = history.next_parents()
    # A clock that is behind must not stop its user; one that is far off is the keeper's matter.
    at_ms = max(int(now * 1000), history.at_ms)
    change = Change(history.chain, parents, history.next_depth(), signer.node, at_ms, done)
    try:
        encoded = encode_change(change, history.network, signer.sign)
        decode_change(encoded)  # limits on fields are held when they are decoded
        history.examine(encoded, lambda author, digest, signature: True)
    except RemoteError as error:
        raise LocalError(f"the registry would refuse this: {error}") from error
    return encoded
