"""What follows from a chain of changes, and which change may come next.

Everyone who reads a chain checks every change: it names its chain, extends the head, is signed by
its author, and the author had the right to make it, by the state that the changes before it made.
Two who hold the same head therefore hold the same state.

A change is as old as its author says, which is what expiry is measured by: time never runs back
along a chain, and the keeper that writes it takes no change that is far from its own clock.
"""

import copy
from abc import ABC, abstractmethod
from typing import Self

import msgspec

from anabranch.core.changes import (
    MAX_METADATA_BYTES,
    PUBLIC,
    SIGNATURE_BYTES,
    Action,
    Change,
    CreateStream,
    DeleteStream,
    Genesis,
    Right,
    SetPermission,
    SetTrackers,
    TrackerEntry,
    decode_change,
    decode_genesis,
    encode_change,
    hash_change,
    network_name,
    signed_digest,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NodeId, parse_node, stream_part
from anabranch.core.messages.registry import NETWORK

MAX_CHANGES = 100_000  # of one chain
MAX_PERMISSIONS = 10_000  # of one stream

STALE = "stale"  # the reason of a change that does not extend the head


class Permission(msgspec.Struct, frozen=True, gc=False):
    """What one node, or everybody, may do with a stream, and until when (0: for ever)."""

    rights: int
    expires_ms: int = 0


class ChainState(ABC):
    """A chain as far as it has been read: how long it is, its head, and what follows from it."""

    def __init__(self, chain: str, network: bytes) -> None:
        self.chain = chain
        self.network = network
        self.height = 0
        self.head = network
        self.at_ms = 0

    def apply(self, encoded: bytes, verify: Verify) -> None:
        """Examine the next change and add it; what raises RemoteError changes nothing."""
        self.advance(encoded, self.examine(encoded, verify))

    def examine(self, encoded: bytes, verify: Verify) -> Change:
        """Return the next change, or raise RemoteError and say what does not hold."""
        change = decode_change(encoded)
        self.check(change)
        check_signature(encoded, change, self.network, verify)
        return change

    def check(self, change: Change) -> None:
        """Hold a change against the chain, but for its signature."""
        if change.chain != self.chain:
            raise RemoteError("wrong-chain", change.chain)
        if self.height >= MAX_CHANGES:
            raise RemoteError("full", f"a chain has at most {MAX_CHANGES} changes")
        if change.height != self.height + 1 or change.previous != self.head:
            raise RemoteError(STALE, "read the chain and try again")
        if change.at_ms < self.at_ms:
            raise RemoteError("clock", "a change is not older than the one before it")
        self._allow(change.author, change.at_ms, change.action)

    def advance(self, encoded: bytes, change: Change) -> None:
        """Add a change that was examined."""
        self.height += 1
        self.head = hash_change(encoded)
        self.at_ms = change.at_ms
        self._act(change.action)

    def copy(self) -> Self:
        """Return a state of its own that stands where this one stands."""
        return copy.copy(self)

    @abstractmethod
    def _allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        """Raise RemoteError if the author may not do this, or if it makes no sense now."""

    @abstractmethod
    def _act(self, action: Action) -> None:
        """Let an action that is allowed have its consequences."""


class StreamState(ChainState):
    """A stream: what its owner chose (`created`; None: there is no such stream), who may what."""

    def __init__(self, chain: str, network: bytes) -> None:
        super().__init__(chain, network)
        stream_part(chain)  # refuses a name that no stream can have
        self.owner = parse_node(chain.partition("/")[0])
        self.created: CreateStream | None = None
        self.permissions: dict[NodeId, Permission] = {}

    def may(self, node: NodeId, right: Right, now: float) -> bool:
        """Tell whether a node has a right now: as the owner, as everybody has, or as its own."""
        return self._may(node, right, int(now * 1000))

    def copy(self) -> Self:
        """Return a state of its own that stands where this one stands."""
        twin = super().copy()
        twin.permissions = dict(self.permissions)
        return twin

    def _may(self, node: NodeId, right: Right, at_ms: int) -> bool:
        if self.created is None:
            return False
        held = self._rights(node, at_ms) | self._rights(PUBLIC, at_ms)
        return node == self.owner or held & right == right

    def _rights(self, node: NodeId, at_ms: int) -> int:
        held = self.permissions.get(node)
        if held is None or (held.expires_ms and held.expires_ms <= at_ms):
            return 0
        return held.rights

    def _allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        if type(action) is CreateStream:
            if author != self.owner:
                raise RemoteError("forbidden", "only the owner whom its name names creates it")
            if self.created is not None:
                raise RemoteError("exists", self.chain)
            if len(action.metadata.encode()) > MAX_METADATA_BYTES:
                raise RemoteError("metadata", f"it takes at most {MAX_METADATA_BYTES} bytes")
            return
        if type(action) is SetTrackers:
            raise RemoteError("wrong-chain", "the network's trackers stand in its own chain")
        if self.created is None:
            raise RemoteError("no-such-stream", "create it first")
        needed = Right.DELETE if type(action) is DeleteStream else Right.GRANT
        if not self._may(author, needed, at_ms):
            raise RemoteError("forbidden", f"this needs the right to {str(needed.name).lower()}")
        if type(action) is SetPermission and action.rights:
            is_new = action.node not in self.permissions
            if is_new and len(self.permissions) >= MAX_PERMISSIONS:
                raise RemoteError("full", f"{MAX_PERMISSIONS} permissions: take one away first")

    def _act(self, action: Action) -> None:
        if type(action) is CreateStream:
            self.created = action
            self.permissions = {PUBLIC: Permission(action.public)} if action.public else {}
        elif type(action) is SetPermission and action.rights:
            self.permissions[action.node] = Permission(action.rights, action.expires_ms)
        elif type(action) is SetPermission:
            self.permissions.pop(action.node, None)
        else:
            self.created = None
            self.permissions = {}


class NetworkState(ChainState):
    """The network's own: how it began, and its trackers, of which the first writes the registry."""

    def __init__(self, network: bytes) -> None:
        super().__init__(NETWORK, network)
        self.genesis: Genesis | None = None
        self.trackers: tuple[TrackerEntry, ...] = ()

    def apply(self, encoded: bytes, verify: Verify) -> None:
        """Take the genesis record first, which is right if its hash is; then changes."""
        if self.genesis is None:
            self.begin(encoded)
        else:
            super().apply(encoded, verify)

    def begin(self, encoded: bytes) -> None:
        """Take the genesis record; its hash, the network's name, is the head it leaves."""
        if network_name(encoded) != self.network:
            raise RemoteError("wrong-genesis", "its hash is not the network's name")
        self.genesis = decode_genesis(encoded)
        self.height = 1
        self.at_ms = self.genesis.created_ms

    def _allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        if type(action) is not SetTrackers:
            raise RemoteError("wrong-chain", "streams have chains of their own")
        if self.genesis is None or author != self.genesis.owner:
            raise RemoteError("forbidden", "only the network's owner names its trackers")
        if len({entry.node for entry in action.trackers}) != len(action.trackers):
            raise RemoteError("twice", "a tracker is named once")

    def _act(self, action: Action) -> None:
        assert type(action) is SetTrackers
        self.trackers = action.trackers


def check_signature(encoded: bytes, change: Change, network: bytes, verify: Verify) -> None:
    """Raise RemoteError unless a change is signed by its author, for this network."""
    body, signature = encoded[:-SIGNATURE_BYTES], encoded[-SIGNATURE_BYTES:]
    if not verify(change.author, signed_digest(network, body), signature):
        raise RemoteError("change-forged", change.chain)


def is_chain_name(name: str) -> bool:
    """Tell whether a chain could have this name."""
    if name == NETWORK:
        return True
    try:
        stream_part(name)
    except LocalError:
        return False
    return True


def new_chain(name: str, network: bytes) -> ChainState:
    """Return the state of a chain of which nothing has been read."""
    return NetworkState(network) if name == NETWORK else StreamState(name, network)


def make_change(signer: Signer, state: ChainState, action: Action, now: float) -> bytes:
    """Make and sign the change that comes next in a chain; LocalError if it would be refused."""
    # A clock that is behind must not stop its user; one that is far off is the keeper's matter.
    at_ms = max(int(now * 1000), state.at_ms)
    change = Change(state.chain, state.height + 1, state.head, signer.node, at_ms, action)
    encoded = encode_change(change, state.network, signer.sign)
    try:
        decode_change(encoded)  # limits on fields are held when they are decoded
        state.check(change)
    except RemoteError as error:
        raise LocalError(f"the registry would refuse this: {error}") from error
    return encoded
