"""What a subscriber asks a publisher for, and what is answered: both are signed.

    request = body (msgpack) | signature of the user who asks (64 bytes)
    answer  = body (msgpack) | signature of the user who answers (64 bytes)

The signature of a request covers a domain tag and the body, which names the network and all that
is asked; that of an answer covers a domain tag, the network, the hash of the whole request and
the answer's body, which names who answers: the publisher, or another who has its keys. So an
answer is to one request, and a request of one network, stream, publisher and user says nothing
anywhere else. The keys in an answer are sealed to the public key that the request names, which
must be that of its user.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec

from anabranch.core.encryption import KEY_ID_BYTES, Entropy, GroupKey, seal, unseal
from anabranch.core.errors import RemoteError
from anabranch.core.identity import KEY_BYTES, PUBLIC_KEY_BYTES, Curve, Signer, Verify
from anabranch.core.ids import MAX_TIMESTAMP_MS, StreamId
from anabranch.core.messages.links import MAX_KEY_ANSWER_BYTES, SIGNATURE_BYTES
from anabranch.core.messages.registry import Hash
from anabranch.core.messages.tracker import MAX_REASON, Node

NONCE_BYTES = 16
MAX_KEYS_ASKED = 8

_REQUEST_DOMAIN = b"anabranch key request v1\0"
_ANSWER_DOMAIN = b"anabranch key answer v1\0"

_KeyId = Annotated[bytes, msgspec.Meta(min_length=KEY_ID_BYTES, max_length=KEY_ID_BYTES)]
_Secret = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class KeyQuestion(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a request: this user asks this publisher for these keys of a stream."""

    network: Hash
    stream: StreamId
    publisher: Node
    user: Node
    public: Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
    key_ids: Annotated[tuple[_KeyId, ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS_ASKED)]
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIMESTAMP_MS)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class KeyReply(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of an answer: who answers, and keys, sealed; or why there are none."""

    by: Node
    sealed: Annotated[bytes, msgspec.Meta(max_length=MAX_KEY_ANSWER_BYTES)] = b""
    problem: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""


class _Key(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    id: _KeyId
    secret: _Secret


_Keys = Annotated[tuple[_Key, ...], msgspec.Meta(min_length=1, max_length=MAX_KEYS_ASKED)]

_encode = msgspec.msgpack.Encoder().encode
_decode_question = msgspec.msgpack.Decoder(KeyQuestion).decode
_decode_reply = msgspec.msgpack.Decoder(KeyReply).decode
_decode_keys = msgspec.msgpack.Decoder(_Keys).decode
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def make_request(signer: Signer, question: KeyQuestion) -> bytes:
    """Sign a question in the name of its user."""
    body = _encode(question)
    return body + signer.sign(_request_digest(body))


def peek_question(request: bytes) -> KeyQuestion:
    """Return what is asked, whoever asks it."""
    try:
        return _decode_question(request[:-SIGNATURE_BYTES])
    except _MALFORMED as error:
        raise RemoteError("key-request", str(error)) from error


def read_request(request: bytes, network: bytes, curve: Curve) -> KeyQuestion:
    """Return what is asked, if it is asked in this network by the user in whose name it is."""
    question = peek_question(request)
    body, signature = request[:-SIGNATURE_BYTES], request[-SIGNATURE_BYTES:]
    if question.network != network:
        raise RemoteError("key-request", "of another network")
    if curve.address(question.public) != question.user:
        raise RemoteError("key-request", "the public key is not that of the user")
    if not curve.verify(question.user, _request_digest(body), signature):
        raise RemoteError("key-request", "not signed by the user")
    return question


def make_answer(
    signer: Signer,
    curve: Curve,
    entropy: Entropy,
    request: bytes,
    question: KeyQuestion,
    keys: Sequence[GroupKey],
) -> bytes:
    """Seal keys to who asked for them, and sign."""
    plain = _encode([_Key(key.id, key.secret) for key in keys])
    sealed = seal(curve, entropy, question.public, plain, hashlib.sha256(request).digest())
    return _signed(signer, request, question.network, KeyReply(signer.node, sealed))


def make_refusal(signer: Signer, request: bytes, question: KeyQuestion, problem: str) -> bytes:
    """Say why there are no keys, and sign."""
    return _signed(signer, request, question.network, KeyReply(signer.node, b"", problem))


def read_answer(answer: bytes, request: bytes, network: bytes, verify: Verify) -> KeyReply:
    """Return what was answered to this request of ours, if who answers it has signed it."""
    body, signature = answer[:-SIGNATURE_BYTES], answer[-SIGNATURE_BYTES:]
    try:
        reply = _decode_reply(body)
    except _MALFORMED as error:
        raise RemoteError("key-answer", str(error)) from error
    if not verify(reply.by, _answer_digest(network, request, body), signature):
        raise RemoteError("key-answer", "not signed for this request by whom it names")
    return reply


def open_keys(signer: Signer, request: bytes, reply: KeyReply) -> list[GroupKey]:
    """Open the keys that were sealed to us."""
    plain = unseal(signer, reply.sealed, hashlib.sha256(request).digest())
    try:
        return [GroupKey(key.id, key.secret) for key in _decode_keys(plain)]
    except _MALFORMED as error:
        raise RemoteError("key-answer", str(error)) from error


def _signed(signer: Signer, request: bytes, network: bytes, reply: KeyReply) -> bytes:
    body = _encode(reply)
    return body + signer.sign(_answer_digest(network, request, body))


def _request_digest(body: bytes) -> bytes:
    return hashlib.sha256(_REQUEST_DOMAIN + body).digest()


def _answer_digest(network: bytes, request: bytes, body: bytes) -> bytes:
    # The network and the hash are of fixed size, and the body is the rest.
    asked = hashlib.sha256(request).digest()
    return hashlib.sha256(_ANSWER_DOMAIN + network + asked + body).digest()
