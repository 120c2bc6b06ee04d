"""Keys of messages: they come back as they went, and no content can break who looks for one."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.message_key import join_key, split_key
from anabranch.core.messages.data import (
    CONTENT_BYTES,
    CONTENT_JSON,
    CONTENT_TEXT,
    KEYED,
    MAX_KEY_BYTES,
)

TYPES = st.integers(0, KEYED - 1)
KEYS = st.none() | st.binary(max_size=40) | st.just(bytes(MAX_KEY_BYTES))


@given(KEYS, st.binary(), TYPES)
def test_a_key_and_a_content_come_back_as_they_were(
    key: bytes | None, content: bytes, content_type: int
) -> None:
    assert split_key(*join_key(content, content_type, key)) == (key, content, content_type)


@pytest.mark.parametrize(
    ("content", "content_type", "key", "joined"),
    [
        (b"{}", CONTENT_JSON, b"id", (b"\0\2id{}", 0x81)),
        (b"", CONTENT_TEXT, b"id", (b"\0\2id", 0x82)),
        (b"ab", CONTENT_BYTES, b"", (b"\0\0ab", 0x80)),
        (b"", CONTENT_BYTES, b"", (b"\0\0", 0x80)),
        (b"x", CONTENT_BYTES, b"k" * 1_024, (b"\4\0" + b"k" * 1_024 + b"x", 0x80)),
        (b"\0\2id{}", CONTENT_JSON, None, (b"\0\2id{}", 1)),  # without a key nothing changes
    ],
)
def test_the_form_on_the_wire_never_changes(
    content: bytes, content_type: int, key: bytes | None, joined: tuple[bytes, int]
) -> None:
    assert join_key(content, content_type, key) == joined
    assert split_key(*joined) == (key, content, content_type)


def test_a_key_that_is_too_long_is_the_callers_mistake() -> None:
    with pytest.raises(LocalError, match=r"a key of 1,025 bytes: at most 1,024 .* use its hash"):
        join_key(b"", CONTENT_JSON, bytes(MAX_KEY_BYTES + 1))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\1", b"\0\1", b"\0\3ab", b"\xff\xff", b"\4\1" + bytes(5_000)],
    ids=["empty", "half", "half-and-long", "no-key", "cut-off", "longest", "too-long"],
)
@pytest.mark.parametrize("content_type", [KEYED, KEYED | CONTENT_JSON, 255])
def test_a_type_that_promises_a_key_where_there_is_none_stays(
    content: bytes, content_type: int
) -> None:
    assert split_key(content, content_type) == (None, content, content_type)


@given(st.binary(max_size=12), st.integers(0, 255))
@example(b"\0\1k", 255)
def test_what_splits_is_what_would_be_joined(content: bytes, content_type: int) -> None:
    key, rest, kind = split_key(content, content_type)
    if kind < KEYED:
        assert join_key(rest, kind, key) == (content, content_type)
    else:
        assert (key, rest, kind) == (None, content, content_type)
