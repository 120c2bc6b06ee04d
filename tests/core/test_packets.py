"""Packets that lie in some bytes."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.packets import Packets


@given(st.lists(st.binary(max_size=9)))
def test_what_was_put_together_falls_apart_again(packets: list[bytes]) -> None:
    together = Packets.of(packets)
    assert list(together) == packets
    assert len(together) == len(packets)
    assert together.data == b"".join(packets)
    assert together.size == len(together.data)


def test_what_lies_between_packets_is_none() -> None:
    apart = Packets(b"..one..two", [2, 5, 7, 10])
    assert (list(apart), apart.size) == ([b"one", b"two"], 6)
