"""Packets into batches and out of them again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.codec import MAX_PACKET_BYTES
from anabranch.core.errors import RemoteError
from anabranch.live.transports.batches import (
    FULL_BATCH_BYTES,
    MAX_BATCH_BYTES,
    batches,
    lengthen,
    packets,
)


def joined(sent: list[bytes]) -> list[bytes]:
    pieces = [piece for packet in sent for piece in (lengthen(packet), packet)]
    return [bytes(batch) for batch in batches(pieces)]


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=30))
def test_one_batch_carries_what_was_sent(sent: list[bytes]) -> None:
    (batch,) = joined(sent)
    assert packets(batch) == sent


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
    (batch,) = batches([lengthen(b"packet"), b"packet"], bytes(14))
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
    assert joined(read) == [batch]
