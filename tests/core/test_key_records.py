"""Requests for keys and their answers: signed, bound to each other, and read by one alone."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.encryption import GroupKey
from anabranch.core.errors import RemoteError
from anabranch.core.identity import CheapKeys, Curve, KnownKeys
from anabranch.core.ids import MAX_STREAM_ID_LENGTH, MAX_TIMESTAMP_MS, NodeId, show
from anabranch.core.key_records import (
    MAX_KEYS_ASKED,
    KeyQuestion,
    KeyReply,
    make_answer,
    make_refusal,
    make_request,
    open_keys,
    peek_question,
    read_answer,
    read_request,
)
from anabranch.core.messages.links import MAX_KEY_ANSWER_BYTES, MAX_KEY_REQUEST_BYTES

NET = b"n" * 32
CURVES: list[Curve] = [KnownKeys(), CheapKeys()]
KEY_LIST = [GroupKey(bytes([i]) * 16, bytes([100 + i]) * 32) for i in range(MAX_KEYS_ASKED)]


class Three:
    """A user who asks, a publisher, and somebody else."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.user, self.publisher, self.eve = (curve.identity(bytes([i]) * 32) for i in (1, 2, 3))

    def question(self, **others: Any) -> KeyQuestion:
        stream = show(self.publisher.node) + "/cars"
        plain = KeyQuestion(
            NET,
            stream,
            self.publisher.node,
            self.user.node,
            self.user.public,
            (b"i" * 16,),
            1_000,
            b"o" * 16,
        )
        return msgspec.structs.replace(plain, **others)

    def request(self, **others: Any) -> bytes:
        return make_request(self.user, self.question(**others))

    def answer(self, request: bytes, keys: list[GroupKey] = KEY_LIST[:1]) -> bytes:
        entropy = random.Random(1).randbytes
        question = read_request(request, NET, self.curve)
        return make_answer(self.publisher, self.curve, entropy, request, question, keys)

    def read(self, answer: bytes, request: bytes, network: bytes = NET) -> Any:
        return read_answer(answer, request, network, self.curve.verify)


THREE = [Three(curve) for curve in CURVES]
both = pytest.mark.parametrize("three", THREE, ids=["real", "cheap"])


def refused(function: Any, *args: Any) -> bool:
    with pytest.raises(RemoteError) as caught:
        function(*args)
    return caught.value.reason in ("key-request", "key-answer", "undecryptable", "public-key")


@both
def test_a_question_and_its_keys_come_across(three: Three) -> None:
    request = three.request()
    assert read_request(request, NET, three.curve) == three.question()
    reply = three.read(three.answer(request), request)
    assert open_keys(three.user, request, reply) == KEY_LIST[:1]
    assert (reply.by, reply.problem) == (three.publisher.node, "")


@both
def test_a_refusal_says_why(three: Three) -> None:
    request = three.request()
    answer = make_refusal(three.publisher, request, three.question(), "unpermitted")
    reply = three.read(answer, request)
    assert reply == KeyReply(three.publisher.node, b"", "unpermitted")
    assert refused(open_keys, three.user, request, reply)


@both
@given(st.data())
@settings(max_examples=60)
def test_no_flipped_bit_goes_unnoticed(three: Three, data: st.DataObject) -> None:
    request = three.request()
    answer = three.answer(request)
    for original, read in (
        (request, lambda touched: read_request(touched, NET, three.curve)),
        (answer, lambda touched: three.read(touched, request)),
    ):
        touched = bytearray(original)
        touched[data.draw(st.integers(0, len(touched) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert refused(read, bytes(touched))


@both
def test_nobody_asks_in_the_name_of_another(three: Three) -> None:
    question = three.question()
    assert peek_question(make_request(three.eve, question)) == question  # whoever asks it
    assert refused(read_request, make_request(three.eve, question), NET, three.curve)
    # With the victim's address and one's own public key the answer would be sealed to oneself.
    mixed = three.question(public=three.eve.public)
    assert refused(read_request, make_request(three.user, mixed), NET, three.curve)
    assert refused(read_request, make_request(three.eve, mixed), NET, three.curve)
    named = three.question(user=three.eve.node)
    assert refused(read_request, make_request(three.user, named), NET, three.curve)


@both
def test_a_request_is_for_one_network(three: Three) -> None:
    assert refused(read_request, three.request(), b"m" * 32, three.curve)


@both
def test_an_answer_is_to_one_request_in_one_network(three: Three) -> None:
    request, other = three.request(), three.request(nonce=b"p" * 16)
    answer = three.answer(request)
    assert refused(three.read, answer, other)
    assert refused(three.read, answer, request, b"m" * 32)


@both
def test_nobody_answers_in_the_name_of_another(three: Three) -> None:
    request = three.request()
    entropy = random.Random(1).randbytes
    question = three.question()
    false = make_answer(three.eve, three.curve, entropy, request, question, KEY_LIST[:1])
    refusal = make_refusal(three.eve, request, question, "no")
    for answer in (false, refusal):
        assert three.read(answer, request).by == three.eve.node
        named = answer.replace(three.eve.node, three.publisher.node)
        assert named != answer
        assert refused(three.read, named, request)


@both
def test_only_who_asked_reads_the_answer(three: Three) -> None:
    request = three.request()
    answer = three.answer(request)
    assert KEY_LIST[0].secret not in answer
    reply = three.read(answer, request)
    assert refused(open_keys, three.eve, request, reply)
    assert refused(open_keys, three.user, request + b"x", reply)


@both
@given(st.binary(max_size=300))
def test_junk_is_refused(three: Three, junk: bytes) -> None:
    assert refused(read_request, junk, NET, three.curve)
    assert refused(peek_question, junk)
    assert refused(three.read, junk, b"request")


def test_the_largest_fit_their_messages() -> None:
    three = THREE[0]
    stream = show(three.publisher.node) + "/"
    ids = tuple(key.id for key in KEY_LIST)
    request = three.request(
        stream=stream + "x" * (MAX_STREAM_ID_LENGTH - len(stream)),
        key_ids=ids,
        at_ms=MAX_TIMESTAMP_MS,
    )
    assert len(request) <= MAX_KEY_REQUEST_BYTES
    answer = three.answer(request, KEY_LIST)
    assert len(answer) <= MAX_KEY_ANSWER_BYTES
    assert open_keys(three.user, request, three.read(answer, request)) == KEY_LIST


@pytest.mark.parametrize(
    "field",
    [
        {"key_ids": ()},
        {"key_ids": (b"i" * 16,) * (MAX_KEYS_ASKED + 1)},
        {"key_ids": (b"i" * 15,)},
        {"nonce": b""},
        {"user": NodeId(b"x")},
        {"public": b""},
        {"network": b""},
        {"at_ms": -1},
    ],
)
def test_a_field_beyond_its_limit_is_refused(field: dict[str, Any]) -> None:
    assert refused(read_request, THREE[1].request(**field), NET, THREE[1].curve)
