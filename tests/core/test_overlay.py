"""The frames of the last while, and the defaults of the contract."""

import random
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.errors import LocalError
from anabranch.core.ids import FrameHead, PartKey, chain_key, part_key
from anabranch.core.messages import Contact, Leave
from anabranch.core.messages.tracker import MAX_NEIGHBOURS
from anabranch.core.overlay import Carried, Overlay, PartSettings, RecentFrames
from machines import NODES, OTHER, PART, START

KEY, OTHER_KEY = part_key(PART), part_key(OTHER)


def test_frames_are_kept_per_part_in_the_order_they_came() -> None:
    recent = RecentFrames()
    recent.add(KEY, b"one", START)
    recent.add(OTHER_KEY, b"other", START)
    recent.add(KEY, b"two", START + 1)
    assert recent.since(KEY, 0.0) == [b"one", b"two"]
    assert recent.since(KEY, START) == [b"one", b"two"]
    assert recent.since(KEY, START + 0.1) == [b"two"]
    assert recent.since(KEY, START + 2) == []
    assert recent.since(PartKey(bytes(16)), 0.0) == []


def test_frames_are_forgotten_by_age_by_number_and_by_size() -> None:
    recent = RecentFrames(keep_s=10, frames=3, size_bytes=100)
    recent.add(KEY, b"old", START)
    recent.add(KEY, b"edge", START + 1)
    recent.add(KEY, b"new", START + 11)
    assert recent.since(KEY, 0.0) == [b"edge", b"new"]
    for name in (b"a", b"b"):
        recent.add(KEY, name, START + 11)
    assert recent.since(KEY, 0.0) == [b"new", b"a", b"b"]
    recent.add(KEY, bytes(99), START + 11)
    assert recent.since(KEY, 0.0) == [b"b", bytes(99)]
    assert recent.sizes() == {
        "recent frames": (2, 3),
        "recent bytes": (100, 100),
        "recent bytes of all parts": (100, 64 << 20),
    }


def test_parts_that_are_quiet_give_room_to_others_first() -> None:
    recent = RecentFrames(keep_s=10, all_bytes=100)
    for at in range(6):
        recent.add(KEY, bytes(10), START + at)
    for _ in range(4):
        recent.add(OTHER_KEY, bytes(10), START + 12)
    assert recent.sizes()["recent bytes of all parts"] == (100, 100)
    recent.add(OTHER_KEY, bytes(10), START + 12)  # one too many: what is over is over
    assert len(recent.since(KEY, 0.0)) == 4
    assert len(recent.since(OTHER_KEY, 0.0)) == 2  # and of who has most, the older half goes
    assert recent.sizes()["recent bytes of all parts"] == (60, 100)


def test_what_all_parts_remember_together_is_bounded() -> None:
    recent = RecentFrames(all_bytes=1_000)
    parts = [PartKey(bytes([i]) * 16) for i in range(20)]
    for number in range(2_000):
        recent.add(parts[number * number % 20], number.to_bytes(4) + bytes(number % 50), START)
        kept = sum(len(frame) for part in parts for frame in recent.since(part, 0.0))
        assert recent.sizes()["recent bytes of all parts"] == (kept, 1_000)
        assert kept <= 1_000
    for part in parts:
        recent.forget(part)
    assert recent.sizes()["recent bytes of all parts"] == (0, 1_000)


def test_frames_of_a_stored_part_are_kept_regardless_of_their_age() -> None:
    recent = RecentFrames(keep_s=10, frames=2, size_bytes=100, stored_frames=4, stored_bytes=50)
    recent.mark_stored(KEY, True, START)
    for number in range(4):
        recent.add(KEY, b"%d" % number * 10, START + 1_000 * number)
    assert [kept.frame[:1] for kept in recent.positions(KEY)[1]] == [b"0", b"1", b"2", b"3"]
    recent.add(KEY, b"4" * 10, START + 4_000)  # one frame too many
    recent.add(KEY, b"5" * 25, START + 4_000)  # and too many bytes
    assert [kept.frame[:1] for kept in recent.positions(KEY)[1]] == [b"3", b"4", b"5"]
    sizes = recent.sizes()
    assert sizes["recent frames of a stored part"] == (3, 4)
    assert sizes["recent bytes of a stored part"] == (45, 50)
    recent.mark_stored(KEY, False, START)
    recent.add(KEY, b"6", START + 5_000)
    assert recent.since(KEY, 0.0) == [b"6"]


def test_newcomers_get_no_more_of_a_stored_part_than_of_others() -> None:
    recent = RecentFrames(frames=3, size_bytes=30)
    recent.mark_stored(KEY, True, START)
    for number in range(9):
        recent.add(KEY, b"%d" % number, START + number)
    assert recent.since(KEY, START + 2) == [b"6", b"7", b"8"]
    recent.add(KEY, bytes(29), START + 9)
    assert recent.since(KEY, START) == [b"8", bytes(29)]


def test_positions_grow_even_when_a_part_is_joined_again() -> None:
    recent = RecentFrames()
    assert recent.positions(KEY) == (0, ())
    for _ in range(3):
        recent.add(KEY, b"frame", START)
    first, kept = recent.positions(KEY)
    assert (first > 0, len(kept)) == (True, 3)
    recent.forget(KEY)
    recent.add(KEY, b"frame", START + 0.001)
    assert recent.positions(KEY)[0] > first + 3


def test_stored_parts_give_room_to_others_by_their_size() -> None:
    recent = RecentFrames(keep_s=10, all_bytes=100)
    recent.mark_stored(KEY, True, START)
    for at in range(8):
        recent.add(KEY, bytes(10), START + at)
    for at in range(3):
        recent.add(OTHER_KEY, bytes(10), START + 1_000 + at)
    assert len(recent.positions(KEY)[1]) == 4  # the older half
    assert recent.sizes()["recent bytes of all parts"] == (70, 100)


def test_a_frame_larger_than_all_there_is_room_for_is_not_kept() -> None:
    recent = RecentFrames(size_bytes=100)
    recent.add(KEY, b"small", START)
    recent.add(KEY, bytes(101), START)
    assert recent.since(KEY, 0.0) == []
    recent.add(KEY, b"small", START)
    assert recent.since(KEY, 0.0) == [b"small"]
    assert recent.sizes()["recent bytes"] == (5, 100)


def test_a_part_that_is_forgotten_leaves_nothing() -> None:
    recent = RecentFrames()
    recent.add(KEY, b"one", START)
    recent.add(OTHER_KEY, b"other", START)
    recent.forget(KEY)
    recent.forget(PartKey(bytes(16)))
    assert recent.since(KEY, 0.0) == []
    assert recent.sizes()["recent frames"][0] == 1
    recent.forget(OTHER_KEY)
    assert [size for size, _ in recent.sizes().values()] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 50)), max_size=60))
def test_recent_frames_equal_a_dumb_twin(steps: list[tuple[int, int]]) -> None:
    recent, twin = RecentFrames(keep_s=10, frames=5, size_bytes=100), []
    now = START
    for after, size in steps:
        now += after
        recent.add(KEY, bytes(size), now)
        twin.append((now, bytes(size)))
        while len(twin) > 5 or sum(len(f) for _, f in twin) > 100 or twin[0][0] < now - 10:
            del twin[0]
            if not twin:
                break
        assert recent.since(KEY, 0.0) == [frame for _, frame in twin]
        assert recent.since(KEY, now - 3) == [frame for at, frame in twin if at >= now - 3]
        size = sum(len(frame) for _, frame in twin)
        assert tuple(each for each, _ in recent.sizes().values()) == (len(twin), size, size)


@pytest.mark.parametrize(("degree", "fits"), [(1, 0), (2, 1), (MAX_NEIGHBOURS, 1), (65, 0)])
def test_a_degree_that_no_overlay_can_have_is_refused(degree: int, fits: int) -> None:
    with nullcontext() if fits else pytest.raises(LocalError, match="degree"):
        assert PartSettings(degree=degree).degree == degree


def test_the_defaults_do_nothing() -> None:
    overlay = Overlay(Contact(NODES[0]), random.Random(1), RecentFrames(), lambda _: True)
    assert overlay.me == Contact(NODES[0])
    assert 0 <= overlay.rng.random() < 1
    carried = Carried(FrameHead(KEY, chain_key(NODES[1], 1), 0, 1, 1, 1), b"", b"frame")
    assert overlay.join(PART, PartSettings(), START) == []
    assert overlay.publish(PART, carried, START) == []
    assert overlay.carry(PART, carried, NODES[1], True, START) == []
    assert overlay.receive(NODES[1], Leave(PART), START) == []
    assert overlay.link(NODES[1], True, "", START) == []
    assert overlay.wake(START) == []
    assert overlay.leave(PART, START) == []
    overlay.rtt(NODES[1], 0.1, 0.0)
    assert (overlay.wakeup_at, overlay.sizes()) == (None, {})
    assert (overlay.noiseless, overlay.sees_copies) == (False, False)
    assert overlay.hops(b"\5") == 0


@pytest.mark.parametrize("sender", NODES[:3])
def test_frames_come_from_neighbours_unless_an_overlay_says_otherwise(sender: bytes) -> None:
    class Two(Overlay):
        def neighbours(self, part: object) -> list[bytes]:
            return NODES[1:3]

    overlay = Two(Contact(NODES[0]), random.Random(1), RecentFrames(), lambda _: True)
    assert overlay.accepts(PART, sender) is (sender in NODES[1:3])
