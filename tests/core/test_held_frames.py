"""Frames that wait for their key: in order, and never too many, too much or too long."""

from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import held_frames
from anabranch.core.frames import Lock
from anabranch.core.held_frames import HOLD_S, Held, HeldFrames
from anabranch.core.ids import FrameHead, chain_key, part_key
from machines import NODES, OTHER, PART, START

KEY = part_key(PART)
LOCK = Lock(msgspec.Raw(b""), 1, b"i" * 16)


def chain(number: int = 1, to: int = 0) -> tuple[bytes, bytes, int]:
    return KEY, chain_key(NODES[1], number), to


def held(
    number: int,
    of: int = 1,
    size: int = 1,
    part: bytes = KEY,
    by: int = 1,
    lock: Lock = LOCK,
    to: int = 0,
) -> Held:
    head = FrameHead(part, chain_key(NODES[by], of), number - 1, number, number, 1)
    return Held(PART, head, bytes(size), 1, NODES[2], lock, to)


def numbers(frames: list[Held]) -> list[int]:
    return [each.head.last for each in frames]


def sizes(frames: HeldFrames) -> list[int]:
    return [size for size, _ in frames.sizes().values()]


def test_frames_leave_a_chain_in_the_order_of_their_coming() -> None:
    frames = HeldFrames()
    for number in (3, 1, 2):
        assert frames.put(held(number), START) == []
    assert frames.put(held(9, of=2), START) == []
    assert numbers(list(frames.of(chain()))) == [3, 1, 2]
    assert numbers([frames.take(chain()) for _ in range(3)]) == [3, 1, 2]
    assert chain() not in frames
    assert chain(2) in frames
    frames.take(chain(2))
    assert sizes(frames) == [0] * 7


def test_a_frame_waits_for_so_long() -> None:
    frames = HeldFrames()
    assert frames.next_at is None
    frames.put(held(1), START)
    frames.put(held(2, of=2), START + 1)
    assert frames.next_at == START + HOLD_S
    assert frames.expire(START + HOLD_S - 0.01) == []
    assert numbers(frames.expire(START + HOLD_S)) == [1]
    assert frames.next_at == START + 1 + HOLD_S
    assert numbers(frames.expire(START + 99)) == [2]


def test_a_chain_that_is_too_long_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_PER_CHAIN", 2)
    frames = HeldFrames()
    gone = [numbers(frames.put(held(number), START)) for number in (1, 2, 3, 4)]
    assert gone == [[], [], [1], [2]]
    assert frames.put(held(9, of=2), START) == []


def test_too_many_frames_cost_the_oldest_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_FRAMES", 3)
    frames = HeldFrames()
    gone = [numbers(frames.put(held(n, of=n), START)) for n in (1, 2, 3, 4, 5)]
    assert gone == [[], [], [], [1], [2]]


def test_too_many_bytes_cost_as_many_of_the_oldest_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_BYTES", 10)
    frames = HeldFrames()
    for number in (1, 2, 3):
        assert frames.put(held(number, of=number, size=3), START) == []
    assert numbers(frames.put(held(4, of=4, size=7), START)) == [1, 2]
    assert len(frames) == 2


def test_a_part_that_is_left_leaves_nothing_behind() -> None:
    frames = HeldFrames()
    other = part_key(OTHER)
    for number in (1, 2):
        frames.put(held(number), START)
        frames.put(held(number, of=2), START)
        frames.put(held(number, part=other), START)
    assert numbers(frames.leave(KEY)) == [1, 2, 1, 2]
    assert (chain() in frames, (other, chain()[1], 0) in frames) == (False, True)
    assert numbers(frames.leave(other)) == [1, 2]
    assert sizes(frames) == [0] * 7


# --- Publishers ------------------------------------------------------------------------------


def test_a_publisher_of_too_much_crowds_out_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_FRAMES", 10)
    frames = HeldFrames()
    frames.put(held(1, by=2), START)
    gone = [each for n in range(1, 51) for each in frames.put(held(n, of=n), START)]
    assert numbers(gone) == list(range(1, 42))  # it had nine places, and used them anew
    for number in (2, 3, 4, 5):  # whoever has less than an equal share gets it
        (gone_now,) = frames.put(held(number, by=2), START)
        assert gone_now.head.publisher == NODES[1]
    (gone_now,) = frames.put(held(6, by=2), START)  # and no more
    assert gone_now.head.publisher == NODES[2]
    assert len(frames) == 10


def test_a_publisher_of_great_frames_crowds_out_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_BYTES", 100)
    frames = HeldFrames()
    for number in range(1, 11):
        frames.put(held(number, by=2), START)
    for number in range(1, 21):
        gone = frames.put(held(number, size=30), START)
        assert all(each.head.publisher == NODES[1] for each in gone)
    assert len(frames.of((KEY, chain_key(NODES[2], 1), 0))) == 10


def test_many_publishers_have_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_FRAMES", 12)
    frames = HeldFrames()
    for by, amount in ((1, 12), (2, 9), (3, 9), (4, 1)):
        for number in range(1, amount + 1):
            frames.put(held(number, by=by), START)
    shares = [len(frames.of((KEY, chain_key(NODES[by], 1), 0))) for by in (1, 2, 3, 4)]
    assert shares == [3, 4, 4, 1]


# --- Keys ------------------------------------------------------------------------------------


def test_who_waits_for_a_key_is_who_has_it_first() -> None:
    frames = HeldFrames()
    locks = [Lock(msgspec.Raw(b""), 1, bytes([number]) * 16) for number in range(3)]

    def awaited(which: int, by: int = 1) -> list[int]:
        """Return the chains that wait for a key, by their numbers."""
        found = frames.awaiting((PART.stream, NODES[by], locks[which].key_id))
        return [int.from_bytes(name[1][-8:]) for name in found]

    for number, of, which in ((1, 1, 0), (2, 1, 1), (1, 2, 1), (1, 3, 0), (2, 2, 2)):
        frames.put(held(number, of=of, lock=locks[which]), START)
    assert (awaited(0), awaited(1), awaited(2)) == ([1, 3], [2], [])
    assert awaited(0, by=2) == []
    frames.take(chain(1))
    frames.take(chain(2))
    assert (awaited(0), awaited(1), awaited(2)) == ([3], [1], [2])
    frames.expire(START + HOLD_S)
    assert sizes(frames) == [0] * 7


@given(st.lists(st.tuples(st.sampled_from("ptex"), st.integers(1, 3), st.integers(1, 50))))
def test_nothing_is_lost_doubled_or_overtaken(steps: list[tuple[str, int, int]]) -> None:
    """Every frame that came is waiting or has gone, and those of a chain went in their order."""
    frames, now, number = HeldFrames(), START, 0
    came: dict[object, list[int]] = defaultdict(list)
    went: dict[object, list[int]] = defaultdict(list)
    for step, of, amount in steps:
        gone: list[Held] = []
        if step == "p":
            number += 1
            came[chain(of)].append(number)
            gone = frames.put(held(number, of, amount), now)
        elif step == "t" and chain(of) in frames:
            gone = [frames.take(chain(of))]
        elif step == "e":
            now += amount
            gone = frames.expire(now)
        for each in gone:
            went[each.queue].append(each.head.last)
    waiting = 0
    for name, all_of_it in came.items():
        rest = numbers(list(frames.of(name))) if name in frames else []
        assert went[name] + rest == all_of_it
        waiting += len(rest)
    assert waiting == len(frames)


# --- Readers ---------------------------------------------------------------------------------


def test_readers_of_one_chain_wait_apart() -> None:
    frames = HeldFrames()
    for number, to in ((1, 0), (1, 5), (2, 5), (3, 0)):
        frames.put(held(number, to=to), START)
    assert numbers([frames.take(chain(to=5)) for _ in range(2)]) == [1, 2]
    assert (chain(to=5) in frames, chain() in frames) == (False, True)
    assert numbers(list(frames.of(chain()))) == [1, 3]


def test_all_that_waits_of_a_chain_is_found_whoever_waits_for_it() -> None:
    frames = HeldFrames()
    name = chain()[:2]
    assert (frames.has(name), frames.queues(name), list(frames.all_of(name))) == (False, [], [])
    for number, to in ((1, 5), (2, 6), (3, 5)):
        frames.put(held(number, to=to), START)
    frames.put(held(4, of=2, to=5), START)
    assert frames.queues(name) == [chain(to=5), chain(to=6)]
    assert numbers(list(frames.all_of(name))) == [1, 3, 2]
    assert frames.awaiting(held(1).key) == [chain(to=5), chain(to=6), chain(2, to=5)]
    frames.take(chain(to=6))
    assert (frames.has(name), frames.queues(name)) == (True, [chain(to=5)])


def test_a_reader_that_has_closed_leaves_nothing_behind_and_the_others_wait_on() -> None:
    frames = HeldFrames()
    for number, of_chain, to in ((1, 1, 5), (2, 2, 5), (3, 1, 6), (4, 1, 5)):
        frames.put(held(number, of=of_chain, to=to), START)
    assert frames.close(7) == []
    assert numbers(frames.close(5)) == [1, 4, 2]
    assert (frames.oldest(5), len(frames)) == (None, 1)
    assert numbers(frames.close(6)) == [3]
    assert sizes(frames) == [0] * 7


def test_the_first_frame_that_waits_for_a_reader_is_known_by_its_place() -> None:
    frames = HeldFrames()
    assert frames.oldest(5) is None
    for number, of_chain, to in ((1, 1, 5), (2, 2, 6), (3, 3, 5)):
        frames.put(held(number, of=of_chain, to=to), START)
    assert (frames.oldest(5), frames.oldest(6), frames.newest) == (1, 2, 3)
    frames.take(chain(1, to=5))
    assert frames.oldest(5) == frames.newest
