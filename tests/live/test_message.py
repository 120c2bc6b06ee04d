"""Contents in and out, and the names of messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import FrameHead, PartKey, chain_key, number_of, show
from anabranch.core.messages.data import CONTENT_BYTES, CONTENT_JSON, CONTENT_TEXT, KEYED
from anabranch.live.message import (
    Message,
    decode_content,
    encode_content,
    encode_key,
    message_id,
    names_of,
    names_of_chain,
)
from machines import NODES, OWNER

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
).filter(lambda value: not isinstance(value, str))


@given(JSON)
def test_json_comes_back_as_it_was(content: Any) -> None:
    data, content_type = encode_content(content)
    assert content_type == CONTENT_JSON
    assert decode_content(data, content_type) == (content, "json", "")


@given(TEXT)
def test_text_comes_back_as_it_was(content: str) -> None:
    data, content_type = encode_content(content)
    assert content_type == CONTENT_TEXT
    assert decode_content(data, content_type) == (content, "text", "")


@given(st.binary(), st.sampled_from([bytes, bytearray, memoryview]))
def test_bytes_come_back_as_they_were(content: bytes, kind: type) -> None:
    data, content_type = encode_content(kind(content))
    assert (type(data), content_type) == (bytes, CONTENT_BYTES)
    assert decode_content(data, content_type) == (content, "bytes", "")


@pytest.mark.parametrize(
    "content",
    [
        object(),
        {"a": [1, object()]},
        {(1, 2): 3},
        {"a": "\ud800"},
        "\ud800",
        iter([1]),
    ],
)
def test_what_cannot_be_sent_is_the_callers_mistake(content: Any) -> None:
    with pytest.raises(LocalError, match="publish a dict, a list, text or bytes"):
        encode_content(content)


def test_a_list_that_holds_itself_is_the_callers_mistake() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(LocalError, match="this list cannot be sent"):
        encode_content(endless)


@pytest.mark.parametrize(
    ("content", "content_type", "problem"),
    [
        (b"{", CONTENT_JSON, "not json"),
        (b"", CONTENT_JSON, "not json"),
        (b'"\xff"', CONTENT_JSON, "not json"),
        (b'{"a": NaN}', CONTENT_JSON, "not json"),
        (b"[" * 100_000, CONTENT_JSON, "not json"),
        (b"1" * 5_000, CONTENT_JSON, "not json"),
        (b"\xff", CONTENT_TEXT, "not text"),
        (b"hello", 77, "unknown content type 77"),
        (b"\0", KEYED | CONTENT_JSON, "no key where content type 129 promises one"),
    ],
)
def test_what_its_publisher_got_wrong_comes_as_bytes(
    content: bytes, content_type: int, problem: str
) -> None:
    shown, name, why = decode_content(content, content_type)
    assert (shown, name) == (content, "bytes")
    assert why.startswith(problem)


@given(st.binary(max_size=60), st.integers(0, 255))
def test_no_content_can_break_its_reader(content: bytes, content_type: int) -> None:
    shown, name, problem = decode_content(content, content_type)
    assert name in ("json", "text", "bytes")
    assert bool(problem) <= (shown == content)


@pytest.mark.parametrize(
    ("key", "data"), [(None, None), ("", b""), ("grün", b"gr\xc3\xbcn"), (b"\xff\0", b"\xff\0")]
)
def test_a_key_is_text_or_bytes(key: str | bytes | None, data: bytes | None) -> None:
    assert encode_key(key) == data


@pytest.mark.parametrize("key", [7, 1.5, ["a"], "\ud800"])
def test_what_is_no_key_is_the_callers_mistake(key: Any) -> None:
    with pytest.raises(LocalError, match=r"is no key .*: give text or bytes"):
        encode_key(key)


def message(number: int, **more: Any) -> Message:
    chain = chain_key(NODES[1], 0xAB)
    publisher, name = names_of_chain(chain)
    return Message(b"", f"{OWNER}/one", 3, publisher, name, number, "bytes", 2, 5_250.5, **more)


def test_a_message_knows_when_it_was_made_and_what_it_is_called() -> None:
    came = message(number_of(5_000, 7))
    assert (came.timestamp_ms, came.sequence, came.delay_ms) == (5_000, 7, 250.5)
    assert str(came.id) == f"{OWNER}/one#3/5000.7@{show(NODES[1])}.00000000000000ab"
    assert came.id == message_id(came.stream, 3, came.publisher, came.chain, came.number)
    assert (came.missed, came.problem, came.key) == (0, "", None)


def test_names_stand_in_the_head() -> None:
    head = FrameHead(PartKey(bytes(16)), chain_key(NODES[2], 1), 0, 1, 1, 1)
    assert names_of(head) == (show(NODES[2]), "0000000000000001")


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2, max_size=20))
def test_names_are_in_the_order_of_their_numbers(places: list[tuple[int, int]]) -> None:
    numbers = [number_of(*place) for place in places]
    assert sorted(message(n).id for n in numbers) == [message(n).id for n in sorted(numbers)]
    assert len({message(n).id for n in numbers}) == len(set(numbers))
