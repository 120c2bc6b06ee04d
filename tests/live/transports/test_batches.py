"""Packets into batches and out of them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import codec
from anabranch.core.codec import MAX_PACKET_BYTES
from anabranch.core.errors import RemoteError
from anabranch.core.frames import HEAD
from anabranch.core.messages import Leave
from anabranch.live.transports.batches import (
    FULL_BATCH_BYTES,
    MAX_BATCH_BYTES,
    batches,
    packets,
    without,
)
from machines import PART, SIGNERS, Chain, packet


def joined(sent: list[bytes]) -> list[bytes]:
    return [bytes(batch) for batch in batches(sent)]


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
    assert FULL_BATCH_BYTES < len(batch) <= MAX_BATCH_BYTES
    assert len(packets(batch)) == 3


def test_room_is_left_in_front() -> None:
    (batch,) = batches([b"packet"], bytes(14))
    assert batch == bytearray(bytes(14) + b"\0\0\0\6packet")


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
        packets(batch)


@given(st.binary(max_size=60))
def test_what_can_be_read_was_written_so(batch: bytes) -> None:
    try:
        read = packets(batch)
    except RemoteError:
        return
    assert joined(list(read)) == [batch]


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
