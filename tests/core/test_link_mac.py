"""Tags of the messages of a link: each verifies once, at its position, in its direction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import RemoteError
from anabranch.core.link_mac import MAC_BYTES, LinkMac

FIRST, SECOND = b"1" * 32, b"2" * 32


def ends() -> tuple[LinkMac, LinkMac]:
    return LinkMac(FIRST, SECOND), LinkMac(SECOND, FIRST)


def refused(receiver: LinkMac, message: bytes, tag: bytes) -> bool:
    try:
        receiver.check(message, tag)
    except RemoteError as error:
        return error.reason == "bad-mac"
    return False


@given(st.lists(st.binary(max_size=600), max_size=20))
def test_messages_in_order_verify(messages: list[bytes]) -> None:
    one, other = ends()
    for message in messages:
        tag = one.tag(message)
        assert len(tag) == MAC_BYTES
        other.check(message, tag)
        one.check(message, other.tag(message))


@given(st.binary(min_size=1, max_size=200), st.data())
def test_an_altered_message_or_tag_does_not_verify(message: bytes, data: st.DataObject) -> None:
    one, other = ends()
    tagged = bytearray(message + one.tag(message))
    tagged[data.draw(st.integers(0, len(tagged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert refused(other, bytes(tagged[:-MAC_BYTES]), bytes(tagged[-MAC_BYTES:]))


@pytest.mark.parametrize("size", range(MAC_BYTES))
def test_a_tag_that_was_cut_short_does_not_verify(size: int) -> None:
    one, other = ends()
    assert refused(other, b"message", one.tag(b"message")[:size])


def test_a_repeated_message_does_not_verify() -> None:
    one, other = ends()
    tag = one.tag(b"message")
    other.check(b"message", tag)
    assert refused(other, b"message", tag)


def test_messages_that_changed_places_do_not_verify() -> None:
    one, other = ends()
    first, second = one.tag(b"first"), one.tag(b"second")
    assert refused(other, b"second", second)
    assert refused(other, b"first", first)


def test_the_message_after_a_lost_one_does_not_verify() -> None:
    one, other = ends()
    one.tag(b"lost")
    assert refused(other, b"next", one.tag(b"next"))


def test_a_message_that_is_returned_to_its_sender_does_not_verify() -> None:
    one, _ = ends()
    assert refused(one, b"message", one.tag(b"message"))


def test_a_message_of_another_link_does_not_verify() -> None:
    _, other = ends()
    stranger = LinkMac(b"3" * 32, b"4" * 32)
    assert refused(other, b"message", stranger.tag(b"message"))


def test_any_slice_of_memory_is_tagged_as_its_bytes() -> None:
    one, other = ends()
    other.check(b"message", one.tag(memoryview(b"a message")[2:]))
