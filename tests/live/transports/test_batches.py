"""Packets into batches and out of them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import codec
from anabranch.core.codec import MAX_PACKET_BYTES
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD
from anabranch.core.link_mac import MAC_BYTES
from anabranch.core.messages import Leave
from anabranch.core.packets import Packets
from anabranch.live.transports.batches import (
    COVERED_BYTES,
    FULL_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    batches,
    split,
    without,
)
from machines import PART, SIGNERS, Chain, packet

TAG = b"t" * MAC_BYTES


def joined(sent: list[bytes]) -> list[bytes]:
    return [bytes(batch) for batch in batches(sent, lambda covered: TAG)]


def packets(message: bytes) -> Packets:
    return split(message)[0]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
def test_one_batch_carries_what_was_sent(sent: list[bytes]) -> None:
    (batch,) = joined(sent)
    assert list(packets(batch)) == sent


def test_nothing_makes_no_batch() -> None:
    assert joined([]) == []


def test_a_batch_is_closed_when_it_is_full() -> None:
    sent = [bytes([number]) * 300_000 for number in range(9)]
    made = joined(sent)
    assert [len(packets(batch)) for batch in made] == [4, 4, 1]
    assert [packet for batch in made for packet in packets(batch)] == sent


def test_the_greatest_packets_fit() -> None:
    nearly = [b"x" * (FULL_BATCH_BYTES - MAX_PACKET_BYTES - 9), b"y" * MAX_PACKET_BYTES]
    (batch,) = joined([*nearly, b"z" * MAX_PACKET_BYTES])
    assert FULL_BATCH_BYTES < len(batch) <= MAX_MESSAGE_BYTES
    assert len(packets(batch)) == 3


def test_room_is_left_in_front() -> None:
    (batch,) = batches([b"packet"], lambda covered: TAG, bytes(14))
    assert batch == bytearray(bytes(14) + b"\0\0\0\6packet" + TAG)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\0",
        b"\0\0\0\2x",
        b"\xff\xff\xff\xffx",
        b"\0\0\0\1x\0",
        b"\0\0\0\1x\0\0\0\0",
        b"\0\0\0\1x\0\0\0\2x",
        (MAX_PACKET_BYTES + 1).to_bytes(4) + bytes(MAX_PACKET_BYTES + 1),
    ],
)
def test_bad_lengths_are_the_senders_mistake(batch: bytes) -> None:
    with pytest.raises(RemoteError, match="packet-length"):
        packets(batch + TAG)


@given(st.binary(max_size=60))
def test_what_can_be_read_was_written_so(batch: bytes) -> None:
    try:
        read = packets(batch + TAG)
    except RemoteError:
        return
    assert joined(list(read)) == [batch + TAG]


@st.composite
def queues(draw: st.DrawFn) -> list[bytes]:
    """Draw packets of data and of control, on both sides of the limit of what is covered."""
    sizes = st.one_of(
        st.integers(1, 200), st.integers(COVERED_BYTES - 3, COVERED_BYTES + 3), st.just(20_000)
    )
    heads = st.sampled_from([codec.DATA_HEAD, codec.encode(Leave(PART))[:2]])
    shapes = draw(st.lists(st.tuples(heads, sizes, st.integers(0, 255)), min_size=1, max_size=6))
    return [(head + bytes([fill]) * size)[:size] for head, size, fill in shapes]


@given(queues())
def test_the_receiver_finds_what_the_tag_covers(sent: list[bytes]) -> None:
    tagged: list[bytes] = []

    def tag(covered: bytes | memoryview) -> bytes:
        tagged.append(bytes(covered))
        return TAG

    (message,) = batches(sent, tag)
    found, covered = split(bytes(message))
    assert list(found) == sent
    assert tagged == [covered]
    # All that is left out is the end of large data packets.
    left_out = sum(max(0, len(p) - COVERED_BYTES) for p in sent if p.startswith(codec.DATA_HEAD))
    assert len(covered) == len(message) - MAC_BYTES - left_out


def test_the_route_and_the_head_of_a_frame_are_always_covered() -> None:
    assert 4 + codec.MAX_ROUTE_BYTES + HEAD.size <= COVERED_BYTES


def test_frames_that_somebody_has_are_taken_out_of_its_queue() -> None:
    chain = Chain(SIGNERS[5])
    one, two, three = (chain.frame() for _ in range(3))
    control = codec.encode(Leave(PART))
    queue = [packet(one), control, packet(two, route=b"\7" * 9), packet(three)]
    names = [frame[: HEAD.size] for frame in (two, one)]
    kept, size = without(queue, names)
    assert kept == [control, packet(three)]
    assert size == len(queue[0]) + len(queue[2])
    assert without(kept, names) == (kept, 0)


def test_what_is_no_frame_is_never_taken_out() -> None:
    frame = Chain(SIGNERS[5]).frame()
    disguised = b"\0\0\0\1\2" + frame  # where a data packet's frame would lie
    assert without([disguised, b"", b"\4"], [frame[: HEAD.size]]) == ([disguised, b"", b"\4"], 0)
