"""Frames: what is signed comes back whole, what was touched never verifies, junk is refused."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import frames
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD, MAX_FRAME_BYTES, MIN_FRAME_BYTES, Message
from anabranch.core.identity import CheapKeys, Identity, KnownKeys, Signer, Verify
from anabranch.core.ids import FrameHead, chain_key, number_of, part_key, stream_part
from anabranch.core.machine import Draft
from anabranch.core.messages.data import (
    CONTENT_JSON,
    CONTENT_TEXT,
    MAX_CONTENT_BYTES,
    MAX_FRAME_BODY_BYTES,
    MAX_FRAME_MESSAGES,
    Body,
    Item,
)

GOLDEN = Path(__file__).parent / "golden" / "frame.txt"
PART = part_key(stream_part("0x" + "0a" * 20 + "/city/cars", 3))
CHEAP = CheapKeys()
CHEAP_SIGNER = CHEAP.identity(b"a simulated node")
REAL_SIGNER = Identity((1).to_bytes(32))
END = 1 << 63
KEY = b"k" * 32

Numbered = list[tuple[int, Draft]]

DRAFTS = st.builds(Draft, st.binary(max_size=20), st.integers(0, 255))


@st.composite
def chains(draw: st.DrawFn) -> tuple[int, Numbered]:
    """Draw the number before a frame, and its numbered drafts."""
    start = draw(st.integers(0, END - 2**40))
    count = draw(st.integers(1, MAX_FRAME_MESSAGES))
    drafts = draw(st.lists(DRAFTS, min_size=1, max_size=4))
    steps = draw(st.lists(st.integers(1, 2**30), min_size=1, max_size=4))
    numbers = accumulate((steps[i % len(steps)] for i in range(count)), initial=start)
    previous, *rest = numbers
    return previous, [(number, drafts[i % len(drafts)]) for i, number in enumerate(rest)]


def build(signer: Signer, previous: int, drafts: Sequence[tuple[int, Draft]]) -> bytes:
    """Make the frame of a signer's chain 7."""
    return frames.build(PART, chain_key(signer.node, 7), previous, drafts, signer.sign)


def head(body: int, previous: int = 4, first: int = 5, last: int = 5, count: int = 1) -> bytes:
    """Make the head of a frame that says whatever is wanted."""
    return HEAD.pack(1, PART, chain_key(REAL_SIGNER.node, 7), previous, first, last, count, body)


def unsigned(body: bytes, first: int = 5, last: int = 5, count: int = 1) -> bytes:
    """Make a frame around a body; nobody looks at its signature."""
    return head(len(body), first - 1, first, last, count) + body + bytes(64)


def packed(items: Sequence[Item], encryption: int = 0) -> bytes:
    """Make a body of items."""
    return msgspec.msgpack.encode(Body(msgspec.msgpack.encode(items), encryption))


def accepted(frame: bytes, verify: Verify) -> bool:
    """Do what a node does with a frame that it has not seen."""
    try:
        seen = frames.peek(frame)
    except RemoteError:
        return False
    return verify(seen.publisher, frames.digest(frame), frames.signature(frame))


def reason(function: Callable[..., object], *args: object) -> str:
    """Return why something is refused."""
    with pytest.raises(RemoteError) as caught:
        function(*args)
    return caught.value.reason


# --- Good frames ----------------------------------------------------------------------------


@given(chains())
def test_a_frame_opens_to_what_was_put_in(chain: tuple[int, Numbered]) -> None:
    previous, drafts = chain
    frame = build(CHEAP_SIGNER, previous, drafts)
    seen = frames.peek(frame)
    first, last = drafts[0][0], drafts[-1][0]
    chain_7 = chain_key(CHEAP_SIGNER.node, 7)
    assert seen == FrameHead(PART, chain_7, previous, first, last, len(drafts))
    assert seen.publisher == CHEAP_SIGNER.node
    assert accepted(frame, CHEAP.verify)
    opened = [Message(number, draft.content, draft.content_type) for number, draft in drafts]
    assert frames.messages(frame) == opened
    assert frames.peek(b"route" + frame, 5) == seen


def test_a_frame_holds_1_to_256_messages() -> None:
    for count in range(1, 257):
        frame = build(CHEAP_SIGNER, 9, [(10 + i, Draft(bytes([i]))) for i in range(count)])
        assert frames.messages(frame) == [Message(10 + i, bytes([i]), 0) for i in range(count)]


@pytest.mark.parametrize("count", [0, MAX_FRAME_MESSAGES + 1])
def test_building_a_frame_of_none_or_too_many_is_our_mistake(count: int) -> None:
    with pytest.raises(AssertionError):
        build(CHEAP_SIGNER, 9, [(10 + i, Draft(b"")) for i in range(count)])


def test_building_a_frame_in_the_wrong_order_is_our_mistake() -> None:
    for previous, numbers in ((10, [10]), (11, [10]), (1, [10, 9])):
        with pytest.raises(AssertionError):
            build(CHEAP_SIGNER, previous, [(number, Draft(b"")) for number in numbers])


def test_the_frame_is_the_recorded_one() -> None:
    drafts = [
        (number_of(1_700_000_000_000, 0), Draft(b'{"speed": 50}', CONTENT_JSON)),
        (number_of(1_700_000_000_000, 1), Draft(b"", 0)),
        (number_of(1_700_000_000_250, 0), Draft("grüße".encode(), CONTENT_TEXT)),
    ]
    frame = build(REAL_SIGNER, number_of(1_699_999_999_999, 3), drafts)
    rows = [row.split() for row in GOLDEN.read_text().splitlines() if row and row[0] != "#"]
    assert "".join(digits for _, *row in rows for digits in row) == frame.hex()
    assert accepted(frame, KnownKeys().verify)


def test_a_message_knows_its_time_and_its_place() -> None:
    message = Message(number_of(1_700_000_000_250, 17), b"", 0)
    assert (message.timestamp_ms, message.sequence) == (1_700_000_000_250, 17)


def test_the_largest_content_fits_and_one_byte_more_is_refused() -> None:
    largest = bytes(MAX_CONTENT_BYTES)
    frame = build(CHEAP_SIGNER, 0, [(1, Draft(largest))])
    assert frames.messages(frame) == [Message(1, largest, 0)]
    too_large = packed([Item(0, 0, largest + b"\0")])
    assert reason(frames.messages, unsigned(too_large)) == "frame-body"


# --- Frames that were touched ---------------------------------------------------------------


SMALL = [(10, Draft(b"one")), (12, Draft(b"two", 255))]


@pytest.mark.parametrize("known", [False, True])
def test_a_real_frame_with_any_bit_flipped_is_rejected(known: bool) -> None:
    frame = build(REAL_SIGNER, 9, SMALL)
    keys = KnownKeys()
    if known:
        assert accepted(frame, keys.verify)
    reject_every_flip(frame, keys.verify)
    assert len(keys) == known  # nothing that was rejected is remembered
    assert accepted(frame, keys.verify)


def test_a_simulated_frame_with_any_bit_flipped_is_rejected() -> None:
    frame = build(CHEAP_SIGNER, 9, SMALL)
    assert accepted(frame, CHEAP.verify)
    reject_every_flip(frame, CHEAP.verify)


def reject_every_flip(frame: bytes, verify: Verify) -> None:
    number = int.from_bytes(frame)
    for bit in range(8 * len(frame)):
        assert not accepted((number ^ 1 << bit).to_bytes(len(frame)), verify), bit


@given(chains(), st.data())
def test_a_frame_that_was_edited_is_rejected(
    chain: tuple[int, Numbered], data: st.DataObject
) -> None:
    frame = build(CHEAP_SIGNER, *chain)
    at = data.draw(st.integers(0, len(frame)))
    removed = data.draw(st.integers(0, 8))
    edited = frame[:at] + data.draw(st.binary(max_size=8)) + frame[at + removed :]
    assert accepted(edited, CHEAP.verify) is (edited == frame)


def test_a_frame_in_the_name_of_another_is_rejected_and_harms_nobody() -> None:
    keys, bob = KnownKeys(), Identity((2).to_bytes(32))
    forged = frames.build(PART, chain_key(bob.node, 7), 9, SMALL, REAL_SIGNER.sign)
    assert not accepted(forged, keys.verify)
    for signer in (bob, REAL_SIGNER):
        assert accepted(build(signer, 9, SMALL), keys.verify)
    assert not accepted(forged, keys.verify)


def test_a_frame_says_its_real_length() -> None:
    frame = build(REAL_SIGNER, 9, SMALL)
    for other in (frame[:-1], frame + b"\0", frame[:80] + frame[81:]):
        assert reason(frames.peek, other) == "frame-length"


def test_signing_is_bound_to_frames() -> None:
    # A signature made for anything else, even over the same bytes, must not make a frame.
    frame = build(REAL_SIGNER, 9, SMALL)
    bare = hashlib.sha256(frame[:-64]).digest()
    assert frames.digest(frame) != bare
    assert not accepted(frame[:-64] + REAL_SIGNER.sign(bare), KnownKeys().verify)


# --- Hostile frames -------------------------------------------------------------------------


def survive(data: bytes, at: int = 0) -> None:
    """Read: the answer is a RemoteError, or a head and messages that agree."""
    with suppress(RemoteError):
        frames.peek(data, at)
    with suppress(RemoteError):
        seen, opened = frames.peek(data), frames.messages(data)
        assert len(opened) == seen.count
        assert (opened[0].number, opened[-1].number) == (seen.first, seen.last)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_bytes_are_survived(data: bytes, at: int) -> None:
    survive(data, at)
    survive(unsigned(b"\x90" + data))


NUMBERS = st.integers(0, 20) | st.integers(END - 3, END + 3) | st.just(2**64 - 1)


@settings(max_examples=300)
@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 300), st.binary(max_size=80))
def test_any_head_is_survived(
    previous: int, first: int, last: int, count: int, body: bytes
) -> None:
    survive(head(len(body), previous, first, last, count) + body + bytes(64))


ITEMS = st.builds(
    Item,
    st.integers(0, 4) | st.integers(-1, 2**64 - 1),
    st.integers(-1, 256),
    st.binary(max_size=4) | st.text(max_size=2),
)


@settings(max_examples=300)
@given(st.lists(ITEMS, max_size=5), st.integers(1, 5), st.integers(0, 5), st.integers(-1, 256))
def test_any_items_are_survived(items: list[Item], count: int, span: int, encryption: int) -> None:
    survive(unsigned(packed(items, encryption), 5, 5 + span, count))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "frame-size"),
        (bytes(MIN_FRAME_BYTES - 1), "frame-size"),
        (bytes(MIN_FRAME_BYTES), "frame-version"),
        (bytes(MAX_FRAME_BYTES), "frame-version"),
        (bytes(MAX_FRAME_BYTES + 1), "frame-size"),
        (b"\2" + unsigned(b"\x90")[1:], "frame-version"),
        (head(0) + b"\x90" + bytes(64), "frame-length"),
        (head(2) + b"\x90" + bytes(64), "frame-length"),
        (head(1, 5, 5, 5, 1) + b"\x90" + bytes(64), "frame-numbers"),  # not after the previous
        (head(1, 4, 5, 4, 1) + b"\x90" + bytes(64), "frame-numbers"),  # ends before it begins
        (head(1, 4, 5, END, 2) + b"\x90" + bytes(64), "frame-numbers"),
        (head(1, 4, 5, 5, 0) + b"\x90" + bytes(64), "frame-numbers"),
        (head(1, 4, 5, 5, 2) + b"\x90" + bytes(64), "frame-numbers"),  # two on one number
        (head(1, 4, 5, 6, 1) + b"\x90" + bytes(64), "frame-numbers"),  # one on two numbers
        (head(1, 4, 5, 900, 257) + b"\x90" + bytes(64), "frame-numbers"),
        (head(1, 0, 0, 0, 1) + b"\x90" + bytes(64), "frame-numbers"),  # 0 is no message
    ],
)
def test_a_bad_head_is_refused_with_its_reason(data: bytes, why: str) -> None:
    assert reason(frames.peek, data) == why
    assert reason(frames.messages, data) == why


def test_the_widest_head_is_taken() -> None:
    frame = head(MAX_FRAME_BODY_BYTES, 0, 1, END - 1, 256) + bytes(MAX_FRAME_BODY_BYTES + 64)
    assert len(frame) == MAX_FRAME_BYTES
    assert frames.peek(frame).last == END - 1


def item(ahead: int) -> Item:
    return Item(ahead, 0, b"")


@pytest.mark.parametrize(
    ("items", "last", "count"),
    [
        ([], 5, 1),
        ([item(1)], 5, 1),  # does not begin at the first number
        ([item(0), item(1)], 5, 1),
        ([item(0)], 7, 2),
        ([item(1), item(2)], 7, 2),
        ([item(0), item(1), item(2)], 7, 2),  # one more than the head says
        ([item(0), item(2)], 7, 3),  # one less
        ([item(0), item(1)], 7, 2),  # does not end at the last number
        ([item(0), item(2), item(2)], 7, 3),
        ([item(0), item(3), item(1), item(2)], 7, 3),
        ([item(0), item(2), item(1), item(3)], 8, 4),
        ([item(0), item(END - 1)], 7, 2),
    ],
)
def test_items_that_do_not_match_the_head_are_refused(
    items: list[Item], last: int, count: int
) -> None:
    assert reason(frames.messages, unsigned(packed(items), 5, last, count)) == "frame-body"


@pytest.mark.parametrize(
    "body",
    [
        b"\xc0",
        b"\x90",
        b"\x91\xc4\x01\x90",
        b"\x91\xc4\x00",
        b"\x91\xc4\x01\x91" + b"\x91" * 2_000,  # nested
        b"\x91\xc5\x07\xd0" + b"\x91" * 2_000,
        packed([Item(0, 0, b"")]) + b"\0",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xc4\x05\xdd\xff\xff\xff\xff",
        b"\x91\xa2\x91\x93",  # text where bytes are due
    ],
)
def test_a_bad_body_is_refused(body: bytes) -> None:
    assert reason(frames.messages, unsigned(body)) == "frame-body"


def test_an_encrypted_frame_is_not_opened_without_its_key() -> None:
    assert reason(frames.messages, unsigned(packed([Item(0, 0, b"")], 1))) == "no-key"
    assert reason(frames.messages, unsigned(packed([Item(0, 0, b"")], 1)), KEY) == "undecryptable"


@pytest.mark.parametrize("method", [2, 255])
def test_an_encryption_that_we_do_not_know_is_refused_whatever_the_key(method: int) -> None:
    assert reason(frames.messages, unsigned(packed([Item(0, 0, b"")], method)), KEY) == "encrypted"
