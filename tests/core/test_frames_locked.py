"""Frames that are locked: who has the key opens them, and nobody else."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.encryption import GroupKey, encrypt
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD, Locking, Message
from anabranch.core.ids import FrameHead, chain_key, part_key
from anabranch.core.machine import Draft
from anabranch.core.messages.data import MAX_CONTENT_BYTES, Body, Item
from machines import KEYS, PART, SIGNERS

KEY = b"k" * 32
SIGNER = SIGNERS[0]
CHAIN = chain_key(SIGNER.node, 7)

DRAFTS = st.builds(Draft, st.binary(max_size=20), st.integers(0, 255))
Numbered = list[tuple[int, Draft]]


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, Numbered]:
    """Draw the number before a frame, and its numbered drafts."""
    steps = draw(st.lists(st.integers(1, 2**30), min_size=1, max_size=8))
    previous, *numbers = accumulate(steps, initial=draw(st.integers(0, 2**60)))
    return previous, [(number, draw(DRAFTS)) for number in numbers]


def lock(head: FrameHead, items: bytes) -> Body:
    """Lock items with KEY."""
    encrypted = encrypt(GroupKey(b"i" * 16, KEY), head, items, b"nonce" + bytes(7))
    return Body(encrypted, 1, b"i" * 16, b"n" * 76)


def build(previous: int, drafts: Sequence[tuple[int, Draft]], locking: Locking | None) -> bytes:
    """Make a frame."""
    return frames.build(part_key(PART), CHAIN, previous, drafts, SIGNER.sign, locking)


def with_body(body: bytes) -> bytes:
    """Make a frame around a body; nobody looks at its signature."""
    return HEAD.pack(1, part_key(PART), CHAIN, 4, 5, 5, 1, len(body)) + body + bytes(64)


def lock_fields(frame: bytes) -> tuple[int, bytes, bytes]:
    """Return what a frame says of its lock."""
    read = frames.lock_of(frame)
    return read.encryption, read.key_id, read.next_key


def reason(function: Callable[..., object], *args: object) -> str:
    """Return why something is refused."""
    with pytest.raises(RemoteError) as caught:
        function(*args)
    return caught.value.reason


@given(batches())
def test_a_locked_frame_opens_with_its_key_to_what_was_put_in(batch: tuple[int, Numbered]) -> None:
    frame = build(*batch, lock)
    opened = [Message(number, draft.content, draft.content_type) for number, draft in batch[1]]
    assert frames.messages(frame, KEY) == opened
    assert lock_fields(frame) == (1, b"i" * 16, b"n" * 76)
    assert reason(frames.messages, frame) == "no-key"
    assert reason(frames.messages, frame, b"x" * 32) == "undecryptable"
    assert KEYS.verify(SIGNER.node, frames.digest(frame), frames.signature(frame))


def test_what_is_locked_cannot_be_read_and_what_is_not_can() -> None:
    drafts = [(10, Draft(b"a secret of some length"))]
    assert b"a secret" not in build(9, drafts, lock)
    assert b"a secret" in build(9, drafts, None)


def test_the_largest_message_fits_a_locked_frame() -> None:
    largest = bytes(MAX_CONTENT_BYTES)
    assert frames.messages(build(9, [(10, Draft(largest))], lock), KEY)[0].content == largest


def test_a_frame_in_the_clear_is_what_it_was_before_there_were_keys() -> None:
    frame = build(9, [(10, Draft(b"x"))], None)
    assert lock_fields(frame) == (0, b"", b"")
    items = msgspec.msgpack.encode([Item(0, 0, b"x")])
    assert frame[HEAD.size : -64] == msgspec.msgpack.encode([items, 0, b""])
    assert frames.messages(frame, KEY) == frames.messages(frame)  # a key does no harm


def test_the_lock_is_told_which_frame_it_locks() -> None:
    seen: list[FrameHead] = []

    def note(head: FrameHead, items: bytes) -> Body:
        seen.append(head)
        return Body(items)

    frame = build(9, [(10, Draft(b"x")), (12, Draft(b"y"))], note)
    assert seen == [frames.peek(frame)]


def test_the_items_of_one_frame_do_not_open_in_another() -> None:
    one, other = build(9, [(10, Draft(b"x"))], lock), build(9, [(11, Draft(b"x"))], lock)
    swapped = other[: HEAD.size] + one[HEAD.size :]
    assert reason(frames.messages, swapped, KEY) == "undecryptable"


@pytest.mark.parametrize(
    "body", [b"\xff", msgspec.msgpack.encode([b"", 1, b"k" * 33]), msgspec.msgpack.encode([])]
)
def test_the_lock_of_what_is_no_body_is_refused(body: bytes) -> None:
    assert reason(frames.lock_of, with_body(body)) == "frame-body"


def test_what_is_locked_and_is_no_items_is_the_publishers_mistake() -> None:
    frame = build(9, [(10, Draft(b"x"))], lambda head, _: lock(head, b"\xff"))
    assert reason(frames.messages, frame, KEY) == "frame-body"


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.booleans())
def test_a_glance_never_takes_what_is_locked_for_clear(contents: list[bytes], locks: bool) -> None:
    drafts = [(number, Draft(content)) for number, content in enumerate(contents, 5)]
    frame = build(4, drafts, lock if locks else None)
    assert frames.is_clear(frame) == (not frames.lock_of(frame).encryption) == (not locks)


@given(st.binary(min_size=1, max_size=90))
def test_what_a_glance_takes_for_clear_is(body: bytes) -> None:
    for made in (body, b"\x93\xc4" + body, b"\x93\xc5\0" + body, body + b"\0\xc4\0"):
        if frames.is_clear(with_body(made)):
            assert lock_fields(with_body(made)) == (0, b"", b"")


def test_a_key_that_ends_like_a_body_in_the_clear_deceives_nobody() -> None:
    body = msgspec.msgpack.encode((b"items", 1, b"key" + b"\0\xc4\0"))
    assert not frames.is_clear(with_body(body))
