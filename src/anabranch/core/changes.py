"""What the registry is made of: a genesis record, and signed changes that form hash chains.

    change = body (msgpack) | signature (64 bytes)

The signature covers a domain tag, the network's name, the body's length and the body, byte for
byte: a change of one network says nothing in another. A change names the hashes of the newest
changes of its chain that its author knew: one, unless two trackers wrote at the same time. The
first of a stream names the network itself. The first entry of the network's own chain is the
genesis record, which nobody signs: its hash is the network's name.
"""

import hashlib
from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import Annotated, Final

import msgspec

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import MAX_PARTITIONS, MAX_TIMESTAMP_MS, NODE_ID_BYTES, NodeId
from anabranch.core.messages.registry import (
    MAX_CHANGE_BYTES,
    MAX_PAGE_BYTES,
    MAX_PAGE_CHANGES,
    Chain,
    Changes,
    Hash,
    Height,
)
from anabranch.core.messages.tracker import MAX_NEIGHBOURS, Address, Contact, Node
from anabranch.core.overlay import DEFAULT_DEGREE

GENESIS_VERSION = 1
NONCE_BYTES = 16
SIGNATURE_BYTES = 64
MAX_NETWORK_LABEL = 64
MAX_OVERLAY_NAME = 64
MAX_METADATA_BYTES = 4 * 1024
MAX_STREAM_TRACKERS = 16
MAX_NETWORK_TRACKERS = 32  # with addresses of ordinary length they fit one change
MAX_NETWORK_STORAGE = 64
MAX_STREAM_STORAGE = 16
MAX_PARENTS = 8  # newest changes that one change may name
MAX_CONFIRM_WITHIN_S = 366 * 86_400
MAX_ACTIONS = 64  # of one change, which holds as a whole or not at all

PUBLIC = NodeId(bytes(NODE_ID_BYTES))  # the zero address: a permission for everybody

_GENESIS_DOMAIN = b"anabranch genesis v1\0"
_CHANGE_DOMAIN = b"anabranch change v2\0"
_SIGNED_DOMAIN = b"anabranch signed change v2\0"


class Right(IntFlag):
    """What one may do with a stream."""

    PUBLISH = 1
    SUBSCRIBE = 2
    GRANT = 4
    EDIT = 8
    DELETE = 16


# Reading a module's name is several times cheaper than reading a member of an enum.
PUBLISH: Final = Right.PUBLISH
SUBSCRIBE: Final = Right.SUBSCRIBE

ALL_RIGHTS = Right.PUBLISH | Right.SUBSCRIBE | Right.GRANT | Right.EDIT | Right.DELETE
Rights = Annotated[int, msgspec.Meta(ge=0, le=int(ALL_RIGHTS))]
Millis = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]


def parse_rights(names: Sequence[str]) -> Right:
    """Read rights as people name them."""
    known = {str(right.name).lower(): right for right in Right}
    rights = Right(0)
    for name in names:
        if name.lower() not in known:
            raise LocalError(f"{name!r} is no right: choose of {', '.join(known)}")
        rights |= known[name.lower()]
    return rights


def name_rights(rights: int) -> tuple[str, ...]:
    """Name rights as people do."""
    return tuple(str(right.name).lower() for right in Right if rights & right)


# --- Records --------------------------------------------------------------------------------


class Genesis(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a network began, and who may change it."""

    version: Annotated[int, msgspec.Meta(ge=GENESIS_VERSION, le=GENESIS_VERSION)]
    name: Annotated[str, msgspec.Meta(max_length=MAX_NETWORK_LABEL)]
    created_ms: Millis
    owner: Node
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class TrackerEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tracker or a storage node: where nodes dial it, and where people look at it."""

    node: Node
    address: Address = ""
    http: Address = ""

    @property
    def contact(self) -> Contact:
        """What a node needs of it."""
        return Contact(self.node, self.address)


def named(trackers: Sequence[TrackerEntry], entry: TrackerEntry) -> tuple[TrackerEntry, ...]:
    """Add a tracker to a network's, or say anew of one of them where it is."""
    if entry.node in [known.node for known in trackers]:
        return tuple(entry if known.node == entry.node else known for known in trackers)
    return (*trackers, entry)


OwnTrackers = Annotated[tuple[Contact, ...], msgspec.Meta(max_length=MAX_STREAM_TRACKERS)]
ConfirmWithin = Annotated[int, msgspec.Meta(ge=0, le=MAX_CONFIRM_WITHIN_S)]
OwnStorage = Annotated[tuple[Node, ...], msgspec.Meta(max_length=MAX_STREAM_STORAGE)]


class CreateStream(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A stream begins, or begins anew after it was deleted: only its owner may say so."""

    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)] = 1
    overlay: Annotated[str, msgspec.Meta(max_length=MAX_OVERLAY_NAME)] = "random-regular"
    degree: Annotated[int, msgspec.Meta(ge=2, le=MAX_NEIGHBOURS)] = DEFAULT_DEGREE
    metadata: Annotated[str, msgspec.Meta(max_length=MAX_METADATA_BYTES)] = ""
    public: Rights = 0
    # Its own trackers, in the owner's order; with none, the network's serve it.
    trackers: OwnTrackers = ()
    storage: OwnStorage = ()  # the storage nodes that keep it
    # Rights count only if a tracker has confirmed them within this time; 0: as long as they last.
    confirm_within_s: ConfirmWithin = 0


class EditStream(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """The stream goes on with other settings; what is None stays as it is.

    Partitions can be added and not taken away: what was published there would be lost.
    """

    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)] | None = None
    overlay: Annotated[str, msgspec.Meta(max_length=MAX_OVERLAY_NAME)] | None = None
    degree: Annotated[int, msgspec.Meta(ge=2, le=MAX_NEIGHBOURS)] | None = None
    metadata: Annotated[str, msgspec.Meta(max_length=MAX_METADATA_BYTES)] | None = None
    trackers: OwnTrackers | None = None
    storage: OwnStorage | None = None
    confirm_within_s: ConfirmWithin | None = None

    def apply(self, settings: CreateStream) -> CreateStream:
        """Return the settings as they are after this."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return msgspec.structs.replace(
            settings, **{name: value for name, value in given.items() if value is not None}
        )


class SetPermission(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2
):
    """From now on `node` (or everybody, if it is PUBLIC) has exactly these rights."""

    node: Node
    rights: Rights
    expires_ms: Millis = 0  # 0: never


class DeleteStream(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """The stream is no more, and its permissions with it."""


class SetTrackers(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The network has exactly these trackers; the first of them writes the registry."""

    trackers: Annotated[
        tuple[TrackerEntry, ...], msgspec.Meta(min_length=1, max_length=MAX_NETWORK_TRACKERS)
    ]


class SetStorage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """The network has exactly these storage nodes."""

    nodes: Annotated[tuple[TrackerEntry, ...], msgspec.Meta(max_length=MAX_NETWORK_STORAGE)]


Action = CreateStream | EditStream | SetPermission | DeleteStream | SetTrackers | SetStorage


class Change(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a change: who does what, and where in which chain.

    Its depth is one more than that of the deepest change it names.
    """

    chain: Chain
    parents: Annotated[tuple[Hash, ...], msgspec.Meta(min_length=1, max_length=MAX_PARENTS)]
    depth: Height
    author: Node
    at_ms: Millis
    actions: Annotated[tuple[Action, ...], msgspec.Meta(min_length=1, max_length=MAX_ACTIONS)]


_encode = msgspec.msgpack.Encoder().encode
_decode_genesis = msgspec.msgpack.Decoder(Genesis).decode
_decode_change = msgspec.msgpack.Decoder(Change).decode
_decode_page = msgspec.msgpack.Decoder(Changes).decode

# --- Bytes ----------------------------------------------------------------------------------


def encode_genesis(genesis: Genesis) -> bytes:
    """Make the first entry of a network's chain."""
    return _encode(genesis)


def decode_genesis(encoded: bytes) -> Genesis:
    """Read a genesis record."""
    try:
        return _decode_genesis(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError("change-malformed", str(error)) from error


def network_name(genesis: Genesis | bytes) -> bytes:
    """Return the 32 bytes that name a network: the hash of its genesis record."""
    encoded = genesis if isinstance(genesis, bytes) else encode_genesis(genesis)
    return hashlib.sha256(_GENESIS_DOMAIN + encoded).digest()


def hash_change(encoded: bytes) -> bytes:
    """Return what the next change of the chain names it by."""
    return hashlib.sha256(_CHANGE_DOMAIN + encoded).digest()


def signed_digest(network: bytes, body: bytes) -> bytes:
    """Hash what the signature of a change covers."""
    assert len(network) == hashlib.sha256().digest_size
    return hashlib.sha256(_SIGNED_DOMAIN + network + len(body).to_bytes(4) + body).digest()


def encode_change(change: Change, network: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    """Make and sign a change."""
    body = _encode(change)
    if len(body) + SIGNATURE_BYTES > MAX_CHANGE_BYTES:
        raise LocalError(
            f"this change takes {len(body) + SIGNATURE_BYTES} bytes and may take "
            f"{MAX_CHANGE_BYTES}: shorten the metadata, or do less at once"
        )
    return body + sign(signed_digest(network, body))


def decode_change(encoded: bytes) -> Change:
    """Read a change; its signature is another matter."""
    if not SIGNATURE_BYTES < len(encoded) <= MAX_CHANGE_BYTES:
        raise RemoteError("change-malformed", f"{len(encoded)} bytes")
    try:
        return _decode_change(encoded[:-SIGNATURE_BYTES])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError("change-malformed", str(error)) from error


def pack_page(changes: Sequence[bytes], after: int) -> bytes:
    """Pack as many changes after the first `after` as one page takes: at least one, if any."""
    size, taken = 8, []
    for at in range(after, min(len(changes), after + MAX_PAGE_CHANGES)):
        size += len(changes[at]) + 3
        if size > MAX_PAGE_BYTES:
            break
        taken.append(changes[at])
    return _encode(taken)


def unpack_page(packed: bytes) -> tuple[bytes, ...]:
    """Read the changes of a page."""
    try:
        return _decode_page(packed)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteError("page-malformed", str(error)) from error
