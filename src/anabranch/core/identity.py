"""Who signs: secp256k1 keys whose address names the node, and a cheap stand-in for simulation.

A signature is 64 bytes, (r, s) with low s, over a 32-byte digest. It carries no recovery id: a
node that knows the publisher's key would not look at one, and a node that does not would reject
a frame whose id had been tampered with on the way, so the two would disagree about one frame.
The key of a publisher seen for the first time is recovered by trying both ids, once, and kept;
from then on a frame costs one plain verification.

Two keys can also agree on a secret that nobody else can compute, each from its own secret and the
other's public key. What is sealed to a user is sealed with such a secret.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from coincurve import PrivateKey, PublicKey
from coincurve._libsecp256k1 import ffi, lib
from coincurve.context import GLOBAL_CONTEXT
from Crypto.Hash import keccak

from anabranch.core.errors import LocalError, RemoteError
from anabranch.core.ids import NODE_ID_BYTES, NodeId

KEY_BYTES = DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
PUBLIC_KEY_BYTES = 33
MAX_KNOWN_KEYS = 10_000

# What is looked up once need not be looked up for every message.
_CONTEXT, _SIGNATURE = GLOBAL_CONTEXT.ctx, ffi.typeof("secp256k1_ecdsa_signature *")
_COMPACT, _new, _NULL = ffi.typeof("unsigned char[64]"), ffi.new, ffi.NULL
_sign, _write = lib.secp256k1_ecdsa_sign, lib.secp256k1_ecdsa_signature_serialize_compact
_check, _read = lib.secp256k1_ecdsa_verify, lib.secp256k1_ecdsa_signature_parse_compact

Verify = Callable[[NodeId, bytes, bytes], bool]  # publisher, digest, signature


class Signer(Protocol):
    """Something that signs digests in the name of one node, and agrees on secrets in its name."""

    node: NodeId

    @property
    def public(self) -> bytes:
        """Return the public key, 33 bytes."""

    def sign(self, digest: bytes) -> bytes:
        """Return the 64-byte signature of a 32-byte digest."""

    def agree(self, public: bytes) -> bytes:
        """Return the 32 bytes that only we and the holder of this public key can compute."""


class Curve(Protocol):
    """The arithmetic of keys: the real one, or the cheap one of a simulation."""

    def identity(self, secret: bytes) -> Signer:
        """Make the identity of a secret."""

    def address(self, public: bytes) -> NodeId:
        """Return the address of a public key; RemoteError if these bytes are none."""

    def verify(self, publisher: NodeId, digest: bytes, signature: bytes) -> bool:
        """Tell whether `publisher` signed `digest`."""


def address_of(key: PublicKey) -> NodeId:
    """Return the Ethereum address of a public key."""
    hashed = keccak.new(digest_bits=256, data=key.format(compressed=False)[1:]).digest()
    return NodeId(hashed[-NODE_ID_BYTES:])


class Identity:
    """A node's own key."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise LocalError(f"a key has {KEY_BYTES} bytes, this one has {len(secret)}")
        try:
            self._key = PrivateKey(secret)
        except ValueError as error:
            raise LocalError("these bytes are no secp256k1 key: make a new one") from error
        self.node = address_of(self._key.public_key)

    def sign(self, digest: bytes) -> bytes:
        """Sign with a deterministic nonce (RFC 6979), so that no entropy is needed."""
        assert len(digest) == DIGEST_BYTES  # the library below reads that many
        made, compact = _new(_SIGNATURE), _new(_COMPACT)
        if not _sign(_CONTEXT, made, digest, self._key.secret, _NULL, _NULL):
            raise LocalError("this key cannot sign: make a new one")
        _write(_CONTEXT, compact, made)
        return bytes(ffi.buffer(compact))

    @property
    def public(self) -> bytes:
        """Return the public key in its short form."""
        return self._key.public_key.format()

    def agree(self, public: bytes) -> bytes:
        """Agree on a secret by Diffie-Hellman: the hash of the common point."""
        return self._key.ecdh(_parse(public).format())


class KnownKeys:
    """Verifies signatures, remembering the keys of the publishers it has met."""

    __slots__ = ("_bound", "_keys")

    def __init__(self, bound: int = MAX_KNOWN_KEYS) -> None:
        self._bound = bound
        self._keys: OrderedDict[NodeId, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, publisher: NodeId, digest: bytes, signature: bytes) -> bool:
        """Tell whether `publisher` signed `digest`."""
        if len(signature) != SIGNATURE_BYTES or len(digest) != DIGEST_BYTES:
            return False  # the library below reads that many
        key, is_known = self._keys.get(publisher), True
        if key is None:
            found, is_known = _recover(publisher, digest, signature), False
            if found is None:
                return False
            key = found.public_key
        elif len(self._keys) > 1:  # a single one is at the end
            self._keys.move_to_end(publisher)
        # Recovery accepts a high s and plain verification does not, so every frame passes here.
        parsed = _new(_SIGNATURE)
        if not _read(_CONTEXT, parsed, signature) or not _check(_CONTEXT, parsed, digest, key):
            return False
        if not is_known:
            self._keys[publisher] = key
            if len(self._keys) > self._bound:
                self._keys.popitem(last=False)
        return True

    def identity(self, secret: bytes) -> Identity:
        """Make the identity of a secret."""
        return Identity(secret)

    def address(self, public: bytes) -> NodeId:
        """Return the Ethereum address of a public key."""
        return address_of(_parse(public))


def _parse(public: bytes) -> PublicKey:
    """Read a public key in its short form, and in no other: one key has one encoding here."""
    if len(public) != PUBLIC_KEY_BYTES:
        raise RemoteError("public-key", f"{len(public)} bytes")
    try:
        return PublicKey(public)
    except ValueError as error:
        raise RemoteError("public-key", "no point of the curve") from error


def _recover(publisher: NodeId, digest: bytes, signature: bytes) -> PublicKey | None:
    for recovery_id in (b"\0", b"\1"):
        try:
            key = PublicKey.from_signature_and_message(signature + recovery_id, digest, hasher=None)
        except ValueError:
            continue
        if address_of(key) == publisher:
            return key
    return None


_PRIME = (1 << 127) - 1
_GENERATOR = 43  # it generates the whole group


class CheapKeys:
    """For simulation: keyed hashes instead of curves, a thousandth of the cost.

    A node holds only its own CheapIdentity, and `verify` answers yes or no, so a node that does
    not hold a secret cannot sign with it: forging is still forging.
    """

    def __init__(self) -> None:
        self._secrets: dict[NodeId, bytes] = {}
        self._addresses: dict[bytes, NodeId] = {}

    def identity(self, secret: bytes) -> "CheapIdentity":
        """Make the identity of a secret and let everyone verify it."""
        identity = CheapIdentity(secret)
        self._secrets[identity.node] = secret
        self._addresses[identity.public] = identity.node
        return identity

    def address(self, public: bytes) -> NodeId:
        """Return the address of a public key that was made here."""
        if public not in self._addresses:
            raise RemoteError("public-key", "nobody has it")
        return self._addresses[public]

    def verify(self, publisher: NodeId, digest: bytes, signature: bytes) -> bool:
        """Tell whether `publisher` signed `digest`."""
        secret = self._secrets.get(publisher)
        return secret is not None and signature == _keyed(secret, digest)


class CheapIdentity:
    """A simulated node's own key."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.node = NodeId(hashlib.sha256(b"cheap address" + secret).digest()[:NODE_ID_BYTES])
        self._exponent = int.from_bytes(hashlib.sha256(b"cheap exponent" + secret).digest()[:16])
        self.public = pow(_GENERATOR, self._exponent, _PRIME).to_bytes(PUBLIC_KEY_BYTES)

    def sign(self, digest: bytes) -> bytes:
        """Return the keyed hash that stands for a signature."""
        return _keyed(self._secret, digest)

    def agree(self, public: bytes) -> bytes:
        """Agree on a secret in a group that is far too small for anything but simulation."""
        if len(public) != PUBLIC_KEY_BYTES:
            raise RemoteError("public-key", f"{len(public)} bytes")
        common = pow(int.from_bytes(public), self._exponent, _PRIME)
        return hashlib.sha256(b"cheap secret" + common.to_bytes(16)).digest()


def _keyed(secret: bytes, digest: bytes) -> bytes:
    return hashlib.blake2b(digest, key=secret, digest_size=64).digest()
