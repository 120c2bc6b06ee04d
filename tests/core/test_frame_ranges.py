"""Ranges of frames: they cover everything once, and equal digests mean equal sets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.frame_ranges import (
    HOLE,
    RANGE_FRAMES,
    between,
    digest_of,
    number_in,
    range_of,
    spans,
    split,
)
from anabranch.core.frames import NAME_BYTES, name, peek
from machines import SIGNERS, Chain

CHAINS = [b"a" * 28, b"b" * 28]
names = st.sets(
    st.builds(
        lambda number, chain: (number * HOLE // 3).to_bytes(8) + chain,
        st.integers(0, 1_000),
        st.sampled_from(CHAINS),
    ),
    max_size=400,
).map(sorted)


def test_a_frames_name_is_its_last_number_and_its_chain() -> None:
    frame = Chain(SIGNERS[3]).frame(b"one", b"two")
    head = peek(frame)
    assert name(frame) == head.last.to_bytes(8) + head.chain
    assert len(name(frame)) == NAME_BYTES
    assert number_in(name(frame)) == head.last


@given(names)
def test_spans_cover_all_frames_once_and_are_small(held: list[bytes]) -> None:
    cuts = spans(held)
    assert all(low <= high for low, high in cuts)
    assert all(high < low for (_, high), (low, _) in pairwise(cuts))
    assert [name for low, high in cuts for name in between(held, low, high)] == held
    for low, high in cuts:
        numbers = sorted({number_in(name) for name in between(held, low, high)})
        assert len(numbers) <= RANGE_FRAMES
        assert all(b - a <= HOLE for a, b in pairwise(numbers))


@given(names, st.integers(0, 400 * HOLE), st.integers(0, 400 * HOLE))
def test_between_finds_exactly_the_names_of_a_span(held: list[bytes], low: int, high: int) -> None:
    expected = [name for name in held if low <= number_in(name) <= high]
    assert list(between(held, low, high)) == expected


@given(names, names)
def test_digests_are_equal_only_for_equal_sets(ours: list[bytes], theirs: list[bytes]) -> None:
    assert (digest_of(ours) == digest_of(theirs)) == (ours == theirs)


def test_a_range_says_how_many_frames_lie_in_it() -> None:
    held = [number.to_bytes(8) + CHAINS[0] for number in range(1, 11)]
    found = range_of(held, 3, 6)
    assert (found.low, found.high, found.count) == (3, 6, 4)
    assert found.digest == digest_of(held[2:6])


def test_names_are_taken_apart_and_other_bytes_are_none() -> None:
    held = [number.to_bytes(8) + CHAINS[0] for number in range(3)]
    assert split(b"".join(held)) == frozenset(held)
    assert split(b"") == frozenset()
    assert split(b"x" * 35) is None
