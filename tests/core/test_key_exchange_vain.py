"""Keys that nobody gives: they are waited for once, and hold up only what they must."""

from anabranch.core import frames
from anabranch.core.held_frames import HOLD_S
from anabranch.core.key_asking import NO_KEY, REFUSED_S
from anabranch.core.machine import Missed
from anabranch.core.messages import KeyAnswer
from core.test_key_exchange_readers import READER, follow, order, silent
from key_world import KeyWorld, as_it_is, losing
from machines import PART


def given_up(*contents: bytes) -> tuple[KeyWorld, list[bytes]]:
    """Let the first frame of a past wait until it is given up; return the others."""
    world = silent(*contents)
    world.fate = losing(KeyAnswer)
    first, *others = world.published()
    world.open(READER, first)
    world.wait(HOLD_S)
    assert order(world) == ["Missed"]
    return world, others


# --- What was waited for already ------------------------------------------------------------


def test_the_next_pages_do_not_wait_again_for_a_key_that_did_not_come() -> None:
    world, others = given_up(b"one", b"two", b"three")
    asked = len(world.requests())
    world.open(READER, *others)
    assert order(world) == ["Missed"] * 3
    assert world.dropped(READER) == [NO_KEY] * 3
    assert len(world.requests()) == asked


def test_after_a_while_it_is_asked_for_again() -> None:
    world, (second,) = given_up(b"one", b"two")
    world.fate = as_it_is
    world.wait(REFUSED_S)
    world.open(READER, second)
    assert world.read(READER, to=9) == [b"two"]


def test_and_at_once_when_the_registry_has_spoken() -> None:
    world, (second,) = given_up(b"one", b"two")
    world.fate = as_it_is
    world.announce(READER)
    world.open(READER, second)
    assert world.read(READER, to=9) == [b"two"]


def test_what_waits_already_waits_on_and_when_the_key_comes_nobody_waits() -> None:
    world = silent(b"one", b"two")
    world.fate = losing(KeyAnswer)
    first, second = world.published()
    world.open(READER, first)
    world.wait(HOLD_S / 2)
    world.open(READER, second)
    world.wait(HOLD_S / 2)
    world.open(READER, second, to=8)
    assert (order(world), order(world, to=8)) == (["Missed"], ["Missed"])
    world.fate = as_it_is
    world.wait(HOLD_S / 4)
    assert world.read(READER, to=9) == [b"two"]
    world.open(READER, first, to=8)
    assert world.read(READER, to=8) == [b"one"]


def test_what_waited_only_behind_others_is_delivered_when_they_are_given_up() -> None:
    world = silent(b"old")
    world.state.removals += 1  # a reason for another key
    world.announce()
    world.publish(1, b"new")
    old, new = world.published()
    world.open(READER, new, to=8)
    world.fate = losing(KeyAnswer)
    world.open(READER, old, new)
    world.wait(HOLD_S)
    assert order(world) == ["Missed", "Deliver"]
    assert world.read(READER, to=9) == [b"new"]


# --- Gaps among frames that wait ------------------------------------------------------------


def missed(frame: bytes, after: int = 0, before: int = 0) -> Missed:
    """Make a gap next to a frame."""
    head = frames.peek(frame)
    return Missed(9, PART, head.chain, head.last + after, head.last + before, "not-found")


def test_a_gap_is_told_where_it_is_among_frames_that_wait() -> None:
    world = silent(b"one", b"two", b"three")
    first, second, third = world.published()
    world.fate = losing(KeyAnswer)
    world.open(READER, first, second)
    follow(world, 9, missed(second))
    world.open(READER, third)
    assert order(world) == []
    world.fate = as_it_is
    world.wait(HOLD_S / 4)
    assert order(world) == ["Deliver", "Deliver", "Missed", "Deliver"]


def test_a_gap_of_another_chain_need_not_wait() -> None:
    world = silent(b"one")
    world.fate = losing(KeyAnswer)
    world.open(READER, *world.published())
    other = Missed(9, PART, frames.peek(world.published()[0]).chain[:-1] + b"x", 1, 2, "not-found")
    follow(world, 9, other)
    assert world._of(READER, Missed) == [other]


def test_any_number_of_gaps_behind_a_frame_is_one() -> None:
    world = silent(b"one")
    (frame,) = world.published()
    world.fate = losing(KeyAnswer)
    world.open(READER, frame)
    for number in range(100):
        follow(world, 9, missed(frame, after=number, before=number + 5))
    world.wait(HOLD_S)
    lost, gap = world._of(READER, Missed)
    assert lost.reason == NO_KEY
    assert gap == missed(frame, after=0, before=104)
