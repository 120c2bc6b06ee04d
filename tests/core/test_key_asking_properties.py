"""Frames of many chains and keys, in any order: each is read or dropped, once, and in its order."""

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core import frames, group_keys, held_frames
from anabranch.core.encryption import GroupKey, key_id
from anabranch.core.group_keys import FrameLock
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import FrameHead, chain_key, next_number, part_key
from anabranch.core.machine import Deliver, Draft, Dropped, LinkDown, LinkUp
from anabranch.core.messages import KeyAnswer, KeyRequest
from key_world import READ, WRITE, KeyWorld, as_it_is, losing
from machines import NODES, PART, SIGNERS, data, leftovers

PUBLISHERS, READER = (1, 3), 2
CHAINS, KEYS_EACH = 9, 6
BOUNDS = ((held_frames, "MAX_HELD_FRAMES", 12), (held_frames, "MAX_HELD_PER_CHAIN", 3))

ENTROPY = random.Random(7).randbytes

STEPS = st.one_of(
    st.tuples(
        st.just("frame"),
        st.sampled_from(PUBLISHERS),
        st.integers(1, CHAINS),
        st.integers(0, KEYS_EACH - 1),
        st.sampled_from(("clear", "last", "plain", "plain")),
    ),
    st.tuples(st.just("know"), st.sampled_from(PUBLISHERS), st.integers(0, KEYS_EACH - 1)),
    st.tuples(st.just("lose"), st.sampled_from((KeyRequest, KeyAnswer, None))),
    st.tuples(st.just("wait"), st.sampled_from((0, 1, 3, 10))),
    st.tuples(st.just("unlink"), st.sampled_from(PUBLISHERS)),
)


class Story:
    """A reader between two publishers, whose frames come in whatever chains and keys."""

    def __init__(self) -> None:
        self.world = KeyWorld((1, 2), (2, 3))
        for place in PUBLISHERS:
            self.world.let(place, WRITE | READ)
        self.world.let(READER, READ)
        self.world.start(1, 2, 3)
        self.keys = {
            (place, number): GroupKey(key_id(secret := bytes([place, number]) * 16), secret)
            for place in PUBLISHERS
            for number in range(KEYS_EACH)
        }
        self.newest: dict[bytes, int] = defaultdict(int)
        self.came: dict[bytes, list[int]] = defaultdict(list)

    def frame(self, place: int, chain: int, number: int, kind: str) -> None:
        """Let the next frame of a chain come: in the clear, or locked, perhaps with a next key."""
        name = chain_key(NODES[place], chain)
        last = next_number(self.newest[name], int(self.world.now * 1000))
        following = self.keys[place, (number + 1) % KEYS_EACH] if kind == "last" else None
        lock = FrameLock(self.keys[place, number], following, ENTROPY)
        frame = frames.build(
            part_key(PART),
            name,
            self.newest[name],
            [(last, Draft(b"."))],
            SIGNERS[place].sign,
            None if kind == "clear" else lock,
        )
        self.newest[name] = last
        self.came[name].append(last)
        self.world.do(READER, data(NODES[place], frame))

    def know(self, place: int, number: int) -> None:
        """Let the publisher be the process that has this key."""
        self.world.peers[NODES[place]]._keys._ring.use(PART.stream, self.keys[place, number])

    def lose(self, kind: type | None) -> None:
        self.world.fate = losing(kind) if kind is not None else as_it_is

    def wait(self, seconds: int) -> None:
        self.world.wait(seconds)

    def unlink(self, place: int) -> None:
        self.world.do(READER, LinkDown(NODES[place], "reset"))
        self.world.do(READER, LinkUp(NODES[place]))

    def went(self, *kinds: Any) -> dict[bytes, list[int]]:
        """Return what became of frames at the reader, chain by chain."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for effect in self.world.effects[NODES[READER]]:
            head: FrameHead = getattr(effect, "head", None)
            if type(effect) in kinds and getattr(effect, "reason", "") != "duplicate":
                found[head.chain].append(head.last)
        return found


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=100, deadline=None)
def test_each_frame_is_read_or_dropped_once_and_in_its_order(steps: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, bound in BOUNDS:
            patch.setattr(module, name, bound)
        patch.setattr(group_keys, "MAX_KEYS_EACH", KEYS_EACH - 2)
        story = Story()
        for name, *arguments in steps:
            getattr(story, name)(*arguments)
            left = leftovers(story.world.peers[NODES[READER]])
            assert left.get("keys asked for", 0) <= left.get("frames without a key", 0)
        story.world.wait(HOLD_S)
    assert {name: sorted(story.went(Deliver, Dropped)[name]) for name in story.came} == story.came
    for delivered in story.went(Deliver).values():
        assert delivered == sorted(delivered)
    left = leftovers(story.world.peers[NODES[READER]])
    assert not {"keys asked for", "publishers asked", "keys awaited"} & set(left)
