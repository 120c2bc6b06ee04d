"""How a link opens: two nodes prove their keys to each other before either believes the other.

    dialler                                  acceptor
    Hello(network, node, nonce, wanted)  ->
                                         <-  Welcome(network, node, nonce, signature)
    Proof(signature)                     ->
                                         <-  Ready()

A packet is the protocol's version (1 byte) and a msgpack array that opens with its tag. The
version stands outside, so that a Hello of another version is told from garbage whatever its
shape. Each signature covers a domain tag, the signer's role, the network, both nodes and both
nonces, each with its length before it. Both nonces are fresh, so nothing that was said once can
be said again; the roles differ, so nothing that one side signed can be sent back to it.
"""

import hashlib
from typing import Annotated, TypeVar

import msgspec

from anabranch.core.codec import PROTOCOL_VERSION
from anabranch.core.errors import RemoteError
from anabranch.core.identity import Signer, Verify
from anabranch.core.ids import NODE_ID_BYTES, NodeId, show

NETWORK_BYTES = 32
NONCE_BYTES = 32
SIGNATURE_BYTES = 64
MAX_HANDSHAKE_BYTES = 256  # a Welcome, the longest, has 162

Network = Annotated[bytes, msgspec.Meta(min_length=NETWORK_BYTES, max_length=NETWORK_BYTES)]
Node = Annotated[NodeId, msgspec.Meta(min_length=NODE_ID_BYTES, max_length=NODE_ID_BYTES)]
Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=48):
    """I want a link with `wanted`, or, if that is empty, with whoever you are."""

    network: Network
    node: Node
    nonce: Nonce
    wanted: Annotated[bytes, msgspec.Meta(max_length=NODE_ID_BYTES)] = b""


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=49):
    """This is who I am, and the proof; now prove who you are."""

    network: Network
    node: Node
    nonce: Nonce
    signature: Signature


class Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=50):
    """The proof of who said Hello."""

    signature: Signature


class Ready(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=51):
    """The link stands; packets follow."""


Opening = Hello | Welcome | Proof | Ready
_M = TypeVar("_M", Hello, Welcome, Proof, Ready)

_DOMAIN = b"anabranch link v1"
_DIALLER, _ACCEPTOR = b"dialler", b"acceptor"
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


def digest(role: bytes, hello: Hello, acceptor: NodeId, nonce: bytes) -> bytes:
    """Hash what the signature of one side covers; `nonce` is the acceptor's."""
    hashed = hashlib.sha256()
    for field in (_DOMAIN, role, hello.network, hello.node, acceptor, hello.nonce, nonce):
        hashed.update(len(field).to_bytes(2) + field)
    return hashed.digest()


class Dialling:
    """The side that reaches out. `wanted` is whom it must find; None: whoever is there."""

    def __init__(self, me: Signer, network: bytes, nonce: bytes, wanted: NodeId | None) -> None:
        self.hello = Hello(network, me.node, nonce, wanted or b"")
        self.peer: NodeId | None = None  # once it has proved itself
        self._me = me

    def open(self) -> bytes:
        """Say Hello."""
        return encode(self.hello)

    def prove(self, packet: bytes, verify: Verify) -> tuple[NodeId, bytes]:
        """Take the Welcome and hold its sender to it; return who that is, and our Proof."""
        hello, welcome = self.hello, decode(packet, Welcome)
        if welcome.network != hello.network:
            raise RemoteError("wrong-network", welcome.network.hex())
        if welcome.node == hello.node:
            raise RemoteError("self-dial")
        if hello.wanted and welcome.node != hello.wanted:
            raise RemoteError("wrong-node", show(welcome.node))
        signed = digest(_ACCEPTOR, hello, welcome.node, welcome.nonce)
        if not verify(welcome.node, signed, welcome.signature):
            raise RemoteError("bad-proof", show(welcome.node))
        self.peer = welcome.node
        mine = digest(_DIALLER, hello, welcome.node, welcome.nonce)
        return welcome.node, encode(Proof(self._me.sign(mine)))

    def finish(self, packet: bytes) -> None:
        """Take the Ready."""
        decode(packet, Ready)


class Accepting:
    """The side that was reached."""

    def __init__(self, me: Signer, network: bytes, nonce: bytes) -> None:
        self.hello: Hello | None = None
        self._me = me
        self._network = network
        self._nonce = nonce

    def welcome(self, packet: bytes) -> bytes:
        """Take the Hello and answer it, or refuse it in a word."""
        hello = decode(packet, Hello)
        if hello.network != self._network:
            raise RemoteError("wrong-network", hello.network.hex())
        if hello.wanted not in (b"", self._me.node):
            raise RemoteError("wrong-node", hello.wanted.hex())
        if hello.node == self._me.node:
            raise RemoteError("self-dial")
        self.hello = hello
        mine = digest(_ACCEPTOR, hello, self._me.node, self._nonce)
        return encode(Welcome(self._network, self._me.node, self._nonce, self._me.sign(mine)))

    def admit(self, packet: bytes, verify: Verify) -> NodeId:
        """Take the Proof; return who it is that has proved itself."""
        hello, proof = self.hello, decode(packet, Proof)
        assert hello is not None
        signed = digest(_DIALLER, hello, self._me.node, self._nonce)
        if not verify(hello.node, signed, proof.signature):
            raise RemoteError("bad-proof", show(hello.node))
        return hello.node
