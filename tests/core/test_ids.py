"""Names: what is one, what is not, and that two things never share one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import (
    CHAIN_KEY_BYTES,
    MAX_PARTITIONS,
    MAX_SEQUENCE,
    MAX_STREAM_ID_LENGTH,
    MAX_TIMESTAMP_MS,
    PART_KEY_BYTES,
    NodeId,
    StreamPart,
    chain_key,
    next_number,
    number_of,
    parse_node,
    part_key,
    publisher_of,
    show,
    stream_part,
)

OWNER = "0x" + "0a" * 20

NODES = st.binary(min_size=20, max_size=20).map(NodeId)
WORDS = st.text("abcXYZ019_.~-", min_size=1, max_size=12)
STREAMS = st.builds(
    lambda node, words: f"{show(node)}/{'/'.join(words)}",
    NODES,
    st.lists(WORDS, min_size=1, max_size=4),
)
PARTS = st.builds(stream_part, STREAMS, st.integers(0, MAX_PARTITIONS - 1))
TIMES = st.integers(0, MAX_TIMESTAMP_MS)
SEQUENCES = st.integers(0, MAX_SEQUENCE)
NUMBERS = st.builds(number_of, TIMES, SEQUENCES)


@given(NODES)
def test_an_address_reads_back_in_either_case(node: NodeId) -> None:
    text = show(node)
    assert (len(text), text[:2]) == (42, "0x")
    assert parse_node(text) == parse_node("0x" + text[2:].upper()) == node


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "0a" * 20,
        "0x" + "0a" * 19,
        "0x" + "0a" * 21,
        "0X" + "0a" * 20,
        "0x" + "0g" * 20,
        " " + OWNER,
        OWNER + "\n",
        "0x" + "٠" * 40,  # digits, but not ours
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(LocalError, match="not an address"):
        parse_node(text)


@pytest.mark.parametrize(
    "path", ["a", "city/cars", "a-b_c.d~e/F/0", "a" * (MAX_STREAM_ID_LENGTH - 43)]
)
def test_a_stream_has_an_owner_and_a_path(path: str) -> None:
    assert stream_part(f"{OWNER}/{path}") == StreamPart(f"{OWNER}/{path}", 0)


@pytest.mark.parametrize(
    "stream",
    [
        "",
        OWNER,
        OWNER + "/",
        OWNER + "//a",
        OWNER + "/a/",
        OWNER + "/a//b",
        OWNER + "/a b",
        OWNER + "/ä",
        OWNER + "/a#1",
        OWNER + "/a\n",
        OWNER.upper() + "/a",
        OWNER.replace("a", "A") + "/a",
        "city/cars",
        f"{OWNER}/{'a' * (MAX_STREAM_ID_LENGTH - 42)}",
    ],
)
def test_what_is_no_stream_is_refused(stream: str) -> None:
    with pytest.raises(LocalError, match="not a stream"):
        stream_part(stream)


@pytest.mark.parametrize("partition", [-1, MAX_PARTITIONS])
def test_a_partition_beyond_the_limit_is_refused(partition: int) -> None:
    with pytest.raises(LocalError, match="does not exist"):
        stream_part(OWNER + "/a", partition)


def test_a_part_is_written_with_its_partition() -> None:
    assert str(stream_part(OWNER + "/a", 7)) == OWNER + "/a#7"


@given(PARTS, PARTS)
def test_parts_share_a_key_only_if_they_are_the_same(a: StreamPart, b: StreamPart) -> None:
    assert len(part_key(a)) == PART_KEY_BYTES
    assert (part_key(a) == part_key(b)) is (a == b)


def test_the_key_of_a_part_depends_on_every_piece_of_its_name() -> None:
    names = [OWNER + "/a", OWNER + "/b", OWNER + "/a/b", "0x" + "0b" * 20 + "/a"]
    keys = [part_key(stream_part(name, at)) for name in names for at in range(MAX_PARTITIONS)]
    assert len(set(keys)) == len(names) * MAX_PARTITIONS
    # Every node must agree on this for ever: it stands in every frame.
    assert keys[3].hex() == "586c609b114e72c33bd92af1f86a4fff"


@given(NODES, st.integers(0, 2**64 - 1))
def test_a_chain_key_holds_its_publisher(node: NodeId, chain: int) -> None:
    key = chain_key(node, chain)
    assert len(key) == CHAIN_KEY_BYTES
    assert publisher_of(key) == node
    assert int.from_bytes(key[20:]) == chain


@given(TIMES, SEQUENCES, TIMES, SEQUENCES)
def test_numbers_order_as_time_and_sequence_do(t1: int, s1: int, t2: int, s2: int) -> None:
    assert (number_of(t1, s1) < number_of(t2, s2)) is ((t1, s1) < (t2, s2))
    assert 0 <= number_of(t1, s1) < 2**63


@given(NUMBERS, TIMES)
def test_the_next_number_is_higher_and_never_before_the_clock(newest: int, now_ms: int) -> None:
    number = next_number(newest, now_ms)
    assert number > newest
    assert number >= number_of(now_ms, 0)
    assert number in (newest + 1, number_of(now_ms, 0))


@pytest.mark.parametrize(
    ("newest", "now_ms", "expected"),
    [
        ((0, 0), 5, (5, 0)),
        ((5, 0), 5, (5, 1)),
        ((5, 9), 6, (6, 0)),
        ((5, 9), 4, (5, 10)),  # the clock stepped back
        ((5, MAX_SEQUENCE), 5, (6, 0)),  # a full millisecond borrows from the next
        ((0, 0), 0, (0, 1)),  # 0 stands for no message
    ],
)
def test_the_next_number_by_example(
    newest: tuple[int, int], now_ms: int, expected: tuple[int, int]
) -> None:
    assert next_number(number_of(*newest), now_ms) == number_of(*expected)
