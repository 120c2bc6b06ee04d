"""How a link opens: two nodes prove their keys and agree on the keys of the link's messages.

    dialler                                  acceptor
    Hello(network, node, nonce, key, wanted)  ->
                                         <-  Welcome(network, node, nonce, key, signature)
    Proof(signature)                     ->
                                         <-  Ready() and its tag

A packet is the protocol's version (1 byte) and a msgpack array that opens with its tag. The
version stands outside, so that a Hello of another version is told from garbage whatever its
shape. Each signature covers a domain tag, the signer's role, the network, both nodes, both nonces
and both ephemeral keys, each with its length before it. Both nonces are fresh, so nothing that was
said once can be said again; the roles differ, so nothing that one side signed can be sent back to
it.

The ephemeral keys are X25519 keys, made for one link. Each side agrees on the common secret after
it has verified the signature of the other, and then forgets its own ephemeral secret:

    secret = X25519(own ephemeral secret, ephemeral key of the other side)
    keys   = HKDF-SHA256(secret, salt = digest of the role "keys", 64 bytes)
    the first 32 bytes authenticate messages of the dialler, the last 32 those of the acceptor

From Ready on, each message carries a tag (core/link_mac.py). Ready is the acceptor's first message.
"""

import hashlib
from typing import Annotated, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from anabranch.core.codec import PROTOCOL_VERSION
from anabranch.core.encryption import Entropy
from anabranch.core.errors import RemoteError
from anabranch.core.identity import KEY_BYTES, Signer, Verify
from anabranch.core.ids import NODE_ID_BYTES, NodeId, show
from anabranch.core.link_mac import MAC_BYTES, LinkMac

NETWORK_BYTES = 32
NONCE_BYTES = 32
LINK_KEY_BYTES = 32
SIGNATURE_BYTES = 64
MAX_HANDSHAKE_BYTES = 256  # a Welcome, the longest, has 194

Network = Annotated[bytes, msgspec.Meta(min_length=NETWORK_BYTES, max_length=NETWORK_BYTES)]
Node = Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
LinkKey = Annotated[bytes, msgspec.Meta(min_length=LINK_KEY_BYTES, max_length=LINK_KEY_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=128):
    """Asks for a link with `wanted`, or with any node if that is empty."""

    network: Network
    node: Node
    nonce: Nonce
    key: LinkKey
    wanted: Annotated[bytes, msgspec.Meta(max_length=NODE_ID_BYTES)] = b""


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=129):
    """Names and proves the acceptor, and asks for the proof of the dialler."""

    network: Network
    node: Node
    nonce: Nonce
    key: LinkKey
    signature: Signature


class Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=130):
    """Proves the node that sent the Hello."""

    signature: Signature


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=131):
    """The link is up: packets follow."""


Opening = Hello | Welcome | Proof | Ready
_M = TypeVar("_M", Hello, Welcome, Proof, Ready)

_DOMAIN = b"anabranch link v2"
_DIALLER, _ACCEPTOR, _KEYS = b"dialler", b"acceptor", b"keys"
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Opening] = msgspec.msgpack.Decoder(Opening)


def encode(message: Opening) -> bytes:
    """Make the packet of a message."""
    return bytes([PROTOCOL_VERSION]) + _encoder.encode(message)


def decode(packet: bytes, expected: type[_M]) -> _M:
    """Read the one message that is due; anything else raises RemoteError."""
    if not 1 < len(packet) <= MAX_HANDSHAKE_BYTES:
        raise RemoteError("handshake-size", f"{len(packet)} bytes")
    if packet[0] != PROTOCOL_VERSION:
        raise RemoteError("protocol-version", f"{packet[0]}, ours is {PROTOCOL_VERSION}")
    try:
        message = _decoder.decode(memoryview(packet)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteError("malformed", str(error)) from error
    if not isinstance(message, expected):
        raise RemoteError(
            "handshake-order", f"{type(message).__name__} where {expected.__name__} was due"
        )
    return message


def digest(role: bytes, hello: Hello, acceptor: NodeId, nonce: bytes, key: bytes) -> bytes:
    """Hash what the signature of one side covers; `nonce` and `key` are the acceptor's."""
    hashed = hashlib.sha256()
    both = (hello.network, hello.node, acceptor, hello.nonce, nonce, hello.key, key)
    for field in (_DOMAIN, role, *both):
        hashed.update(len(field).to_bytes(2) + field)
    return hashed.digest()


class _EphemeralKey:
    """An X25519 key pair for one link."""

    def __init__(self, entropy: Entropy) -> None:
        secret = X25519PrivateKey.from_private_bytes(entropy(LINK_KEY_BYTES))
        self.public = secret.public_key().public_bytes_raw()
        self._secret: X25519PrivateKey | None = secret

    def agree(self, public: bytes, transcript: bytes) -> tuple[bytes, bytes]:
        """Return the keys for messages of the dialler and of the acceptor; works once."""
        secret, self._secret = self._secret, None
        assert secret is not None
        try:
            shared = secret.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a point of low order: the secret would be known to everyone
            raise RemoteError("weak-key", public.hex()) from error
        keys = HKDF(SHA256(), 2 * KEY_BYTES, transcript, _DOMAIN).derive(shared)
        return keys[:KEY_BYTES], keys[KEY_BYTES:]


class Dialling:
    """The side that dials. `wanted` is the node that must answer; None: any node."""

    mac: LinkMac  # once the acceptor has proved itself

    def __init__(self, me: Signer, network: bytes, entropy: Entropy, wanted: NodeId | None) -> None:
        nonce, self._key = entropy(NONCE_BYTES), _EphemeralKey(entropy)
        self.hello = Hello(
            network=network, node=me.node, nonce=nonce, key=self._key.public, wanted=wanted or b""
        )
        self.peer: NodeId | None = None  # once it has proved itself
        self._me = me

    def open(self) -> bytes:
        """Return the Hello."""
        return encode(self.hello)

    def prove(self, packet: bytes, verify: Verify) -> tuple[NodeId, bytes]:
        """Check the Welcome; return the node that sent it, and our Proof."""
        hello, welcome = self.hello, decode(packet, Welcome)
        if welcome.network != hello.network:
            raise RemoteError("wrong-network", welcome.network.hex())
        if welcome.node == hello.node:
            raise RemoteError("self-dial")
        if hello.wanted and welcome.node != hello.wanted:
            raise RemoteError("wrong-node", show(welcome.node))
        theirs = welcome.node, welcome.nonce, welcome.key
        if not verify(welcome.node, digest(_ACCEPTOR, hello, *theirs), welcome.signature):
            raise RemoteError("bad-proof", show(welcome.node))
        ours, others = self._key.agree(welcome.key, digest(_KEYS, hello, *theirs))
        self.peer, self.mac = welcome.node, LinkMac(send_key=ours, receive_key=others)
        return welcome.node, encode(
            Proof(signature=self._me.sign(digest(_DIALLER, hello, *theirs)))
        )

    def finish(self, packet: bytes) -> None:
        """Check the Ready, the first message with a tag."""
        message, tag = packet[:-MAC_BYTES], packet[-MAC_BYTES:]
        self.mac.check(message, tag)
        decode(message, Ready)


class Accepting:
    """The side that is dialled."""

    mac: LinkMac  # once the dialler has proved itself

    def __init__(self, me: Signer, network: bytes, entropy: Entropy) -> None:
        self.hello: Hello | None = None
        self._me = me
        self._network = network
        self._entropy = entropy
        self._key: _EphemeralKey
        self._nonce = b""

    def welcome(self, packet: bytes) -> bytes:
        """Check the Hello and answer it, or refuse it with a reason."""
        hello = decode(packet, Hello)
        if hello.network != self._network:
            raise RemoteError("wrong-network", hello.network.hex())
        if hello.wanted not in (b"", self._me.node):
            raise RemoteError("wrong-node", hello.wanted.hex())
        if hello.node == self._me.node:
            raise RemoteError("self-dial")
        self.hello = hello
        self._nonce, self._key = self._entropy(NONCE_BYTES), _EphemeralKey(self._entropy)
        signature = self._me.sign(digest(_ACCEPTOR, hello, *self._ours))
        node, nonce, key = self._ours
        return encode(
            Welcome(network=self._network, node=node, nonce=nonce, key=key, signature=signature)
        )

    def admit(self, packet: bytes, verify: Verify) -> NodeId:
        """Check the Proof; return the node that has proved itself."""
        hello, proof = self.hello, decode(packet, Proof)
        assert hello is not None
        if not verify(hello.node, digest(_DIALLER, hello, *self._ours), proof.signature):
            raise RemoteError("bad-proof", show(hello.node))
        others, ours = self._key.agree(hello.key, digest(_KEYS, hello, *self._ours))
        self.mac = LinkMac(send_key=ours, receive_key=others)
        return hello.node

    def ready(self) -> bytes:
        """Return the Ready, the first message with a tag."""
        message = encode(Ready())
        return message + self.mac.tag(message)

    @property
    def _ours(self) -> tuple[NodeId, bytes, bytes]:
        """What the Welcome says of this side, as signatures cover it."""
        return self._me.node, self._nonce, self._key.public
