"""What follows from the changes of a chain: a stream and who may use it, or the network itself.

Everyone who reads a chain checks every change: it is signed by its author, and the author had the
right to make it, by the state that the changes before it made. Which changes come before which,
and what happens where two were made at the same time, is told in history.py.

A change is as old as its author says, which is what expiry is measured by: time never runs back
along a chain, and the keeper that writes it takes no change that is far from its own clock.
"""

import copy
from abc import ABC, abstractmethod
from typing import Self

import msgspec

from anabranch.core.changes import (
    ALL_RIGHTS,
    MAX_METADATA_BYTES,
    PUBLIC,
    Action,
    CreateStream,
    DeleteStream,
    EditStream,
    Genesis,
    Right,
    SetPermission,
    SetStorage,
    SetTrackers,
    TrackerEntry,
    decode_genesis,
    network_name,
)
from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import NodeId, parse_node, stream_part
from anabranch.core.messages.registry import NETWORK

MAX_PERMISSIONS = 10_000  # of one stream
MAX_WRITERS = 50_000  # who could ever publish to one stream, and is remembered for its history

STALE = "stale"  # the reason of a change that does not name the newest ones

_NEEDED: dict[type, Right] = {
    SetPermission: Right.GRANT,
    EditStream: Right.EDIT,
    DeleteStream: Right.DELETE,
}


class Permission(msgspec.Struct, frozen=True, gc=False):
    """What one node, or everybody, may do with a stream, and until when (0: for ever)."""

    rights: int
    expires_ms: int = 0

    def at(self, at_ms: int) -> int:
        """Return the rights that have not expired."""
        return 0 if self.expires_ms and self.expires_ms <= at_ms else self.rights


NOTHING = Permission(0)
_ALL = int(ALL_RIGHTS)


class ChainState(ABC):
    """What follows from the changes of one chain, as far as it has been read."""

    def __init__(self, chain: str, network: bytes) -> None:
        self.chain = chain
        self.network = network

    def copy(self) -> Self:
        """Return a state of its own that stands where this one stands."""
        return copy.copy(self)

    @abstractmethod
    def allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        """Raise RemoteError if the author may not do this, or if it makes no sense now."""

    @abstractmethod
    def act(self, action: Action) -> None:
        """Let an action that is allowed have its consequences."""


class StreamState(ChainState):
    """A stream: how it is set up (`created`; None: there is no such stream), and who may what."""

    def __init__(self, chain: str, network: bytes) -> None:
        super().__init__(chain, network)
        stream_part(chain)  # refuses a name that no stream can have
        self.owner = parse_node(chain.partition("/")[0])
        self.created: CreateStream | None = None
        self.permissions: dict[NodeId, Permission] = {}
        self.removals = 0  # grows with every change that may take from anybody what he reads
        self.changes = 0  # that were made to it, of any kind
        self.writers: dict[NodeId, None] = {}  # who was ever told that he may publish
        self.first_storage: tuple[NodeId, ...] = ()  # the first storage nodes that it named

    def copy(self) -> Self:
        """Return a state of its own that stands where this one stands."""
        twin = super().copy()
        twin.permissions = dict(self.permissions)
        twin.writers = dict(self.writers)
        return twin

    # --- What others may ask --------------------------------------------------------------

    def may(self, node: NodeId, right: Right, now: float) -> bool:
        """Tell whether a node has a right now: as the owner, as everybody has, or as its own."""
        wanted = int(right)  # flags are taken apart by Python code, integers are not
        return self.held(node, int(now * 1000)) & wanted == wanted

    def is_public(self, right: Right, now: float) -> bool:
        """Tell whether everybody has a right now."""
        return self.created is not None and self._own(PUBLIC, int(now * 1000)) & right == right

    def readers(self, now: float) -> frozenset[NodeId]:
        """Return who may subscribe now: the owner, those who were told so, PUBLIC if everybody."""
        if self.created is None:
            return frozenset()
        at_ms = int(now * 1000)
        told = (node for node in self.permissions if self._own(node, at_ms) & Right.SUBSCRIBE)
        return frozenset((self.owner, *told))

    def wrote(self, node: NodeId) -> bool:
        """Tell whether a node may publish, or ever could: what it published then still counts."""
        return node == self.owner or node in self.writers or PUBLIC in self.writers

    def next_expiry(self, now: float) -> int | None:
        """Return when the next permission ends, in ms; None: none that holds now ever does."""
        times = [held.expires_ms for held in self.permissions.values()]
        return min((at for at in times if at > now * 1000), default=None)

    def lapsed(self, since: float, now: float) -> bool:
        """Tell whether a permission to subscribe has ended of itself in the meantime."""
        return any(
            held.rights & Right.SUBSCRIBE and since * 1000 < held.expires_ms <= now * 1000
            for held in self.permissions.values()
        )

    def last_lapse(self, now: float) -> int:
        """Return when a permission to subscribe last ended of itself, in ms; 0: none ever did."""
        held = (each for each in self.permissions.values() if each.rights & Right.SUBSCRIBE)
        return max((each.expires_ms for each in held if each.expires_ms <= now * 1000), default=0)

    def held(self, node: NodeId, at_ms: int) -> int:
        """Return all rights of a node at a time."""
        if self.created is None:
            return 0
        if node == self.owner:
            return _ALL
        return self._own(node, at_ms) | self._own(PUBLIC, at_ms)

    def _own(self, node: NodeId, at_ms: int) -> int:
        return self.permissions.get(node, NOTHING).at(at_ms)

    # --- Changes --------------------------------------------------------------------------

    def allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        """Raise RemoteError if the author may not do this, or if it makes no sense now."""
        if type(action) is CreateStream:
            if author != self.owner:
                raise RemoteError("forbidden", "only the owner whom its name names creates it")
            if self.created is not None:
                raise RemoteError("exists", self.chain)
            _check_metadata(action.metadata)
            return
        needed = _NEEDED.get(type(action))
        if needed is None:
            raise RemoteError("wrong-chain", "the network's own matters stand in its own chain")
        if self.created is None:
            raise RemoteError("no-such-stream", "create it first")
        if not self.held(author, at_ms) & needed:
            raise RemoteError("forbidden", f"this needs the right to {str(needed.name).lower()}")
        if type(action) is EditStream:
            _check_metadata(action.metadata or "")
            if action.partitions is not None and action.partitions < self.created.partitions:
                raise RemoteError("partitions", "they can be added and not taken away")
        if type(action) is SetPermission and action.rights:
            is_new = action.node not in self.permissions
            if is_new and len(self.permissions) >= MAX_PERMISSIONS:
                raise RemoteError("full", f"{MAX_PERMISSIONS} permissions: take one away first")

    def needs(self, action: Action) -> int:
        """Return the right that somebody who is not the owner needs for an action."""
        return int(_NEEDED.get(type(action), 0))

    def act(self, action: Action) -> None:
        """Let an action that is allowed have its consequences."""
        if type(action) is CreateStream:
            self.created, self.first_storage = action, action.storage
            self.permissions = {}
            self.hold(PUBLIC, Permission(action.public))
        elif type(action) is EditStream:
            assert self.created is not None
            self.created = action.apply(self.created)
            self.first_storage = self.first_storage or self.created.storage
        elif type(action) is SetPermission:
            self.hold(action.node, Permission(action.rights, action.expires_ms))
        else:
            self.created = None
            self.permissions = {}

    def hold(self, node: NodeId, permission: Permission) -> None:
        """Let a node have exactly these rights."""
        if permission.rights:
            self.permissions[node] = permission
            if permission.rights & Right.PUBLISH and len(self.writers) < MAX_WRITERS:
                self.writers[node] = None
        else:
            self.permissions.pop(node, None)


class NetworkState(ChainState):
    """The network's own: how it began, its trackers in the order of writing, its storage nodes."""

    def __init__(self, network: bytes) -> None:
        super().__init__(NETWORK, network)
        self.genesis: Genesis | None = None
        self.trackers: tuple[TrackerEntry, ...] = ()
        self.storage: tuple[TrackerEntry, ...] = ()

    @property
    def owner(self) -> NodeId | None:
        """Who may change it; None: it has not begun."""
        return self.genesis.owner if self.genesis is not None else None

    def begin(self, encoded: bytes) -> None:
        """Take the genesis record, which is right if its hash is the network's name."""
        if network_name(encoded) != self.network:
            raise RemoteError("wrong-genesis", "its hash is not the network's name")
        self.genesis = decode_genesis(encoded)

    def allow(self, author: NodeId, at_ms: int, action: Action) -> None:
        """Raise RemoteError if the author may not do this, or if it makes no sense now."""
        if type(action) is SetTrackers:
            entries = action.trackers
        elif type(action) is SetStorage:
            entries = action.nodes
        else:
            raise RemoteError("wrong-chain", "streams have chains of their own")
        if self.genesis is None or author != self.genesis.owner:
            raise RemoteError(
                "forbidden", "only the network's owner names its trackers and storage nodes"
            )
        if len({entry.node for entry in entries}) != len(entries):
            raise RemoteError("twice", "a node is named once")

    def act(self, action: Action) -> None:
        """Let an action that is allowed have its consequences."""
        if type(action) is SetTrackers:
            self.trackers = action.trackers
        else:
            assert type(action) is SetStorage
            self.storage = action.nodes


def _check_metadata(metadata: str) -> None:
    if len(metadata.encode()) > MAX_METADATA_BYTES:
        raise RemoteError("metadata", f"it takes at most {MAX_METADATA_BYTES} bytes")


def is_chain_name(name: str) -> bool:
    """Tell whether a chain could have this name."""
    if name == NETWORK:
        return True
    try:
        stream_part(name)
    except LocalError:
        return False
    return True


def new_state(chain: str, network: bytes) -> ChainState:
    """Return the state of a chain of which nothing has been read."""
    return NetworkState(network) if chain == NETWORK else StreamState(chain, network)
