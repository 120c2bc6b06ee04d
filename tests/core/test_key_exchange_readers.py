"""Those who read in order on one node: each waits for its own frames, and hears what it misses."""

import random

import pytest

from anabranch.core import frames
from anabranch.core.encryption import GroupKey, new_key
from anabranch.core.group_keys import FrameLock
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import chain_key, next_number, part_key
from anabranch.core.key_answering import UNPERMITTED
from anabranch.core.key_asking import ANSWER_S, NO_KEY
from anabranch.core.key_exchange import MAX_ENDINGS, UNREADABLE
from anabranch.core.machine import (
    Deliver,
    Draft,
    Dropped,
    Effect,
    HistoryEnded,
    Missed,
    PageEnded,
    Publish,
    Subscribe,
)
from anabranch.core.messages import KeyAnswer
from anabranch.core.messages.storage import MAX_NUMBER
from key_world import READ, WRITE, KeyWorld, as_it_is, line, losing
from machines import NODES, PART, SIGNERS, leftovers

ENTROPY = random.Random(7).randbytes
READER = 2
LIMITS = {"after": 11, "upto": 1 << 62, "skip": 2, "most": 5}


def waiting(*contents: bytes) -> KeyWorld:
    """Let frames wait for a key at one who reads them as they come."""
    world = line(2, READER)
    world.fate = losing(KeyAnswer)
    world.publish(1, *contents)
    return world


def silent(*contents: bytes) -> KeyWorld:
    """Let a publisher publish what nobody delivers as it comes."""
    world = line(2)
    world.let(READER, READ)
    world.announce()
    world.do(READER, Subscribe(PART, reads=True, plain=False))
    world.publish(1, *contents)
    assert world.read(READER) == []
    return world


def made(world: KeyWorld, chain: int, lock: FrameLock | None) -> bytes:
    """Make the first frame of a chain of the publisher."""
    numbered = [(next_number(0, int(world.now * 1000)), Draft(b"in %d" % chain))]
    name = chain_key(NODES[1], chain)
    return frames.build(part_key(PART), name, 0, numbered, SIGNERS[1].sign, lock)


def arrive(world: KeyWorld) -> None:
    """Let the keys come that were asked for."""
    world.fate = as_it_is
    world.wait(ANSWER_S * 4)


def limits(effects: list[Effect], to: int) -> list[dict[str, int]]:
    names = ("after", "upto", "skip", "most")
    delivered = [each for each in effects if type(each) is Deliver and each.to == to]
    return [{name: getattr(each, name) for name in names} for each in delivered]


def of_reader(world: KeyWorld) -> list[Effect]:
    return world.effects[NODES[READER]]


# --- To whom, and what of it ----------------------------------------------------------------


def test_what_is_delivered_says_to_whom_and_what_of_it_is_wanted() -> None:
    world = waiting(b"one")
    (frame,) = world.published()
    world.open(READER, frame, to=9, **LIMITS)  # which waits for its key
    arrive(world)
    world.open(READER, frame, to=8, **LIMITS)  # whose key is here
    assert world.read(READER, to=9) == world.read(READER, to=8) == [b"one"]
    assert limits(of_reader(world), 9) == limits(of_reader(world), 8) == [LIMITS]


def test_so_it_is_with_what_is_in_the_clear() -> None:
    world = line(2, READER)
    frame = made(world, 5, None)
    world.open(READER, frame, to=9, **LIMITS)
    assert limits(of_reader(world), 9) == [LIMITS]
    world.open(READER, frame)
    all_of_it = {"after": 0, "upto": MAX_NUMBER, "skip": 0, "most": MAX_NUMBER}
    assert limits(of_reader(world), 9)[1:] == [all_of_it]


# --- Apart from each other ------------------------------------------------------------------


def test_who_waits_for_the_past_does_not_hold_up_what_comes() -> None:
    world = silent(b"old")
    world.state.removals += 1  # a reason for another key
    world.announce()
    world.publish(1, b"new")
    old, new = world.published()
    world.open(READER, new, to=8)
    world.fate = losing(KeyAnswer)
    world.open(READER, old, to=9)
    world.open(READER, new, to=9)
    world.open(READER, new, to=7)
    assert (world.read(READER, to=8), world.read(READER, to=7)) == ([b"new"], [b"new"])
    assert world.read(READER, to=9) == []  # for this one it would be out of order
    arrive(world)
    assert world.read(READER, to=9) == [b"old", b"new"]


def test_all_readers_of_a_chain_need_one_request() -> None:
    world = waiting(b"one", b"two")
    first, second = world.published()
    world.open(READER, first, second, to=9)
    world.open(READER, second, to=8)
    assert len(world.requests()) == 1
    arrive(world)
    for to, contents in ((0, [b"one", b"two"]), (9, [b"one", b"two"]), (8, [b"two"])):
        assert world.read(READER, to) == contents
    left = leftovers(world.peers[NODES[READER]])
    assert not {"keys asked for", "chains without a key", "readers without a key"} & set(left)


def test_a_reader_that_has_closed_waits_no_more_and_the_others_do() -> None:
    world = waiting(b"one")
    (frame,) = world.published()
    world.open(READER, frame, to=9)
    _close(world, 9)
    assert [(each.reason, each.to) for each in world._of(READER, Dropped)] == [(NO_KEY, 9)]
    assert "keys asked for" in leftovers(world.peers[NODES[READER]])
    arrive(world)
    assert (world.read(READER), world.read(READER, to=9)) == ([b"one"], [])


def test_when_the_last_reader_has_closed_nothing_is_asked_any_more() -> None:
    world = silent(b"one")
    world.fate = losing(KeyAnswer)
    world.open(READER, *world.published(), to=9)
    asked = len(world.requests())
    _close(world, 9)
    _close(world, 9)
    assert world._of(READER, Missed) == []  # nobody is there to hear of it
    arrive(world)
    assert len(world.requests()) == asked
    assert "keys asked for" not in leftovers(world.peers[NODES[READER]])


def _close(world: KeyWorld, ticket: int) -> None:
    effects = world.peers[NODES[READER]]._keys.close(ticket, world.now)
    world._perform(NODES[READER], effects)


# --- What follows on frames -----------------------------------------------------------------


def follow(world: KeyWorld, to: int, effect: Effect) -> None:
    effects = world.peers[NODES[READER]]._keys.follow(to, effect)
    world._perform(NODES[READER], effects)


def order(world: KeyWorld, to: int = 9) -> list[str]:
    """Return what a reader got, in its order, by kind."""
    kinds = (Deliver, PageEnded, HistoryEnded, Missed)
    got = [each for each in of_reader(world) if type(each) in kinds]
    return [type(each).__name__ for each in got if each.to == to]


def test_the_end_of_a_page_is_told_after_the_frames_of_the_page() -> None:
    world = silent(b"one", b"two", b"three")
    first, second, third = world.published()
    follow(world, 9, PageEnded(9))
    assert order(world) == ["PageEnded"]  # nothing waits
    world.fate = losing(KeyAnswer)
    world.open(READER, first, second, to=9)
    world.open(READER, first, to=8)
    follow(world, 9, PageEnded(9))
    follow(world, 9, HistoryEnded(9))
    follow(world, 7, PageEnded(7))
    world.open(READER, third, to=9)
    assert (order(world), order(world, 7)) == (["PageEnded"], ["PageEnded"])
    arrive(world)
    assert order(world)[1:] == ["Deliver"] * 3 + ["PageEnded", "HistoryEnded"]


def test_it_waits_for_no_frame_that_came_later() -> None:
    world = silent(b"one")
    (first,) = world.published()
    world.fate = losing(KeyAnswer)
    world.open(READER, first, to=9)
    follow(world, 9, HistoryEnded(9))
    world.wait(HOLD_S / 2)
    world.state.removals += 1
    world.announce()
    world.publish(1, b"two")
    world.open(READER, world.published()[-1], to=9)
    world.wait(HOLD_S / 2)
    assert order(world) == ["Missed", "HistoryEnded"]
    world.wait(HOLD_S / 2)
    assert order(world) == ["Missed", "HistoryEnded", "Missed"]


def test_who_has_closed_is_told_no_end() -> None:
    world = silent(b"one")
    world.fate = losing(KeyAnswer)
    world.open(READER, *world.published(), to=9)
    follow(world, 9, HistoryEnded(9))
    _close(world, 9)
    arrive(world)
    world.wait(HOLD_S)
    assert order(world) == []
    name = "endings that wait for a reader's frames"
    assert world.peers[NODES[READER]].sizes()[name] == (0, MAX_ENDINGS)


# --- What is missed -------------------------------------------------------------------------


def test_who_reads_in_order_hears_what_it_misses_for_want_of_a_key() -> None:
    world = waiting(b"one")
    (frame,) = world.published()
    head = frames.peek(frame)
    world.open(READER, frame, to=9)
    world.open(READER, frame, to=8, after=head.first - 7, upto=head.last)
    world.wait(HOLD_S)
    missed = [Missed(to, PART, head.chain, head.first - 1, head.last + 1, NO_KEY) for to in (9, 8)]
    assert world._of(READER, Missed) == missed
    assert world.dropped(READER) == [NO_KEY] * 3


def test_and_what_it_may_not_read() -> None:
    world = silent(b"one")
    world.remove(READER)
    world.announce(READER)
    world.open(READER, *world.published(), to=9)
    (missed,) = world._of(READER, Missed)
    assert (missed.to, missed.reason) == (9, UNREADABLE)


@pytest.mark.parametrize(("after", "upto", "expected"), [(0, 2, (-1, 3)), (2, 9, (2, 5))])
def test_of_a_frame_that_is_wanted_in_part_that_part_is_missed(
    after: int, upto: int, expected: tuple[int, int]
) -> None:
    world = silent()
    world.do(1, Publish(PART, [Draft(b"%d" % at) for at in range(5)]))
    world.remove(READER)
    world.announce(READER)
    (frame,) = world.published()
    first = frames.peek(frame).first
    world.open(READER, frame, to=9, after=first + after if after else 0, upto=first + upto)
    (missed,) = world._of(READER, Missed)
    assert (missed.after - first, missed.before - first) == expected


# --- Publishers that have lost the right ----------------------------------------------------


def test_what_waited_in_order_counts_though_its_publisher_may_publish_no_more() -> None:
    world = waiting(b"one")
    world.open(READER, *world.published(), to=9)
    world.remove(1)
    world.announce(READER)
    arrive(world)
    assert (world.read(READER), world.dropped(READER)) == ([], [UNPERMITTED])
    assert world.read(READER, to=9) == [b"one"]


def test_but_not_if_he_never_could() -> None:
    world = line(2, READER)
    world.publish(1, b"zero")
    (kept,) = world.kept[NODES[READER]]
    key, following = GroupKey(kept.key_id, kept.secret), new_key(ENTROPY)
    world.fate = losing(KeyAnswer)
    world.open(READER, made(world, 5, FrameLock(following, None, ENTROPY)))
    world.remove(1)
    world.state.writers.clear()
    world.announce(READER)
    world.open(READER, made(world, 6, FrameLock(key, following, ENTROPY)), to=8)
    (missed,) = world._of(READER, Missed)
    assert (missed.to, missed.reason) == (9, UNPERMITTED)
    assert (world.read(READER, to=9), world.dropped(READER)) == ([], [UNPERMITTED])


def test_a_publisher_is_read_in_order_while_it_may_publish() -> None:
    world = KeyWorld((1, 2))
    for place, rights in ((1, WRITE), (READER, READ)):
        world.let(place, rights)
    world.start(1, subscribe=False)
    world.start(READER)
    world.publish(1, b"one")
    world.open(READER, *world.published(), to=9)
    assert world.read(READER, to=9) == [b"one"]
