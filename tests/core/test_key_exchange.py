"""The key exchange between honest nodes: who may read, reads everything, in its order."""

import pytest

from anabranch.core import congestion, frames, held_frames
from anabranch.core.changes import PUBLIC
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId, chain_key
from anabranch.core.key_asking import ANSWER_S, NO_KEY
from anabranch.core.machine import (
    Deliver,
    LinkDown,
    LinkUp,
    Subscribe,
    Unsubscribe,
)
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.registry import Permission
from key_world import READ, WRITE, KeyWorld, as_it_is, diamond, line, losing
from machines import NODES, PART, leftovers

# --- Asking and answering -------------------------------------------------------------------


def test_a_subscriber_asks_once_and_reads_all() -> None:
    world = line(2, 2)
    world.publish(1, b"one", b"two", b"three")
    assert world.read(2) == [b"one", b"two", b"three"]
    assert (len(world.requests()), len(world.answers())) == (1, 1)
    (kept,) = world.kept[NODES[2]]
    assert kept == world.kept[NODES[1]][0]
    assert (kept.stream, kept.publisher) == (PART.stream, NODES[1])
    assert all(kept.secret not in frame for frame in world.published())
    assert not any(b"one" in frame for frame in world.published())


def test_requests_and_answers_go_hop_by_hop_towards_the_publisher_and_back() -> None:
    world = line(4, 4)
    for carrier in (2, 3):  # they are in the overlay, since they publish, and may not read
        world.publish(carrier, b"mine")
    world.wire.clear()
    world.publish(1, b"hello")
    assert world.read(4)[-1] == b"hello"
    way = [(NODES.index(a), NODES.index(b), m) for a, b, m in world.wire]
    asked = [(a, b, m.hops) for a, b, m in way if type(m) is KeyRequest]
    assert asked == [(4, 3, 1), (3, 2, 2), (2, 1, 3)]
    assert [(a, b) for a, b, m in way if type(m) is KeyAnswer] == [(1, 2), (2, 3), (3, 4)]
    for carrier in (2, 3):
        assert world.read(carrier) == []
        publishers = {key.publisher for key in world.kept[NODES[carrier]]}
        assert publishers == {NODES[carrier]}  # they never learned another's key
        assert leftovers(world.peers[NODES[carrier]])["neighbours asked for keys"] == 1


def test_everybody_on_the_way_who_may_read_asks_for_itself() -> None:
    world = line(5, 2, 3, 4, 5)
    world.publish(1, b"one", b"two")
    for place in (2, 3, 4, 5):
        assert world.read(place) == [b"one", b"two"]
    assert len(world.answers(sender=1)) == 4


def test_our_own_subscription_gets_the_key_with_the_frame() -> None:
    world = line(2, 2)
    world.let(1, READ | WRITE)
    world.announce()
    world.do(1, Subscribe(PART))
    world.publish(1, b"one")
    assert world.read(1) == [b"one"]
    assert len(world.requests(sender=1)) == 0


def test_a_public_stream_is_in_the_clear_and_nobody_asks() -> None:
    world = line(2, 2)
    world.state.permissions[PUBLIC] = Permission(int(READ))
    world.announce()
    world.publish(1, b"one")
    assert world.read(2) == [b"one"]
    (delivered,) = (e for e in world.effects[NODES[2]] if type(e) is Deliver)
    assert delivered.key == b""
    assert frames.lock_of(delivered.frame).encryption == 0
    assert world.requests() == []
    assert world.kept[NODES[1]] == []


def test_the_keys_of_two_publishers_are_two() -> None:
    world = KeyWorld((1, 2), (2, 3))
    for place, rights in ((1, WRITE), (2, READ), (3, WRITE)):
        world.let(place, rights)
    world.start(1, 3, subscribe=False)
    world.start(2)
    world.publish(1, b"one")
    world.publish(3, b"three")
    assert sorted(world.read(2)) == [b"one", b"three"]
    assert {key.publisher for key in world.kept[NODES[2]]} == {NODES[1], NODES[3]}
    assert (len(world.requests(to=1)), len(world.requests(to=3))) == (1, 1)


# --- Waiting --------------------------------------------------------------------------------


def test_frames_wait_for_the_key_and_none_overtakes_another() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one", b"two")
    world.state.permissions[PUBLIC] = Permission(int(READ))
    world.announce(1)
    world.publish(1, b"in the clear")
    assert world.read(2) == []
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert world.read(2) == [b"one", b"two", b"in the clear"]
    assert world.dropped(2) == []


def test_a_frame_whose_key_never_comes_is_dropped_in_the_end_and_counted() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.wait(HOLD_S - 0.01)
    assert world.dropped(2) == []
    world.wait(0.01)
    assert world.dropped(2) == [NO_KEY]
    asked = len(world.requests())
    assert asked == 9  # at once, and after 1, 3, 7, 11... seconds
    world.wait(100)
    assert len(world.requests()) == asked
    left = leftovers(world.peers[NODES[2]])
    assert not {"keys asked for", "frames without a key", "bytes without a key"} & set(left)
    world.fate = as_it_is
    world.publish(1, b"two")
    assert world.read(2) == [b"two"]


def test_who_reads_no_more_and_only_carries_waits_for_no_key() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    asked = len(world.requests())
    world.do(2, Subscribe(PART, reads=False))
    assert world.dropped(2) == [NO_KEY]
    world.wait(HOLD_S)
    world.publish(1, b"two")
    assert len(world.requests()) == asked
    world.fate = as_it_is
    world.do(2, Subscribe(PART))
    world.publish(1, b"three")
    carried, opened = world._of(2, Deliver)
    assert (carried.key, bool(opened.key)) == (b"", True)


def test_each_request_is_a_new_one() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.wait(HOLD_S)
    requests = world.requests()
    assert len({r.ticket for r in requests}) == len({r.request for r in requests}) == 9
    assert [r.ticket[0] for r in requests] == list(range(9))  # which try it is


def test_frames_behind_one_that_is_given_up_go_on() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.wait(HOLD_S / 2)
    world.state.permissions[PUBLIC] = Permission(int(READ))
    world.announce(1)
    world.publish(1, b"in the clear")
    world.wait(HOLD_S / 2)
    assert (world.dropped(2), world.read(2)) == ([NO_KEY], [b"in the clear"])


def test_frames_behind_one_that_makes_room_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_frames, "MAX_HELD_PER_CHAIN", 1)
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.state.permissions[PUBLIC] = Permission(int(READ))
    world.announce(1)
    world.publish(1, b"in the clear")
    assert (world.dropped(2), world.read(2)) == ([NO_KEY], [b"in the clear"])
    assert "keys asked for" not in leftovers(world.peers[NODES[2]])


def test_unsubscribing_ends_the_waiting_and_the_asking() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.do(2, Unsubscribe(PART))
    assert world.dropped(2) == [NO_KEY]
    assert "keys asked for" not in leftovers(world.peers[NODES[2]])
    asked = len(world.requests())
    world.fate = as_it_is
    world.wait(60)
    assert len(world.requests()) == asked
    assert world.read(2) == []


def test_who_publishes_still_carries_after_unsubscribing_and_delivers_nothing() -> None:
    world = line(2, 2)
    world.let(2, READ | WRITE)
    world.announce()
    world.publish(2, b"mine")
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.do(2, Unsubscribe(PART))
    world.fate = as_it_is
    world.publish(1, b"two")
    world.wait(60)
    assert world.read(2) == [b"mine"]


def test_a_frame_with_a_lock_that_nobody_can_read_is_left_to_who_opens_it() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    exchange = world.peers[NODES[2]]._keys
    frame = world.published()[0]
    nonsense = frame[:75] + b"\xff" * (len(frame) - 75)
    (delivered,) = exchange.deliver(PART, frames.peek(frame), nonsense, 1, NODES[1], world.now)
    assert (type(delivered), delivered.key) == (Deliver, b"")


# --- Another way ----------------------------------------------------------------------------


def test_what_is_not_answered_is_asked_through_another_neighbour() -> None:
    world = diamond()
    two, four = NODES[2], NODES[4]

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        lost = type(message) is KeyRequest and (sender, to) == (four, two)
        return [] if lost else [message]

    world.fate = fate
    world.publish(1, b"one")
    assert world.read(4) == []
    world.wait(ANSWER_S - 0.01)
    assert world.requests(sender=4) == []
    world.wait(0.01)
    assert len(world.requests(sender=4, to=3)) == 1
    assert world.read(4) == [b"one"]


def test_what_was_asked_over_a_link_that_ended_is_asked_again_at_once() -> None:
    world = diamond()
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    assert len(world.requests(sender=4, to=2)) == 1
    world.fate = as_it_is
    world.do(4, LinkDown(NODES[2], "reset"))
    world.wait(0)
    assert len(world.requests(sender=4, to=3)) == 1
    assert world.read(4) == [b"one"]


def test_without_a_neighbour_we_wait_for_one() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.do(2, LinkDown(NODES[1], "reset"))
    world.wait(1)
    world.fate = as_it_is
    world.do(2, LinkUp(NODES[1]))
    world.wait(ANSWER_S * 4)
    assert world.read(2) == [b"one"]


def test_who_does_not_know_the_way_tries_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "MAX_UPSTREAMS", 0)
    world = diamond()
    world.publish(1, b"one")
    world.wait(HOLD_S)
    assert world.read(4) == [b"one"]


def test_many_who_do_not_know_the_way_try_all_neighbours() -> None:
    world = KeyWorld((2, 3), (3, 4), (3, 5), (3, 6))
    for place in range(2, 7):
        world.let(place, READ)
    world.start(2, 3, 4, 5, 6)
    unheard_of = chain_key(NODES[1], 1)
    for number in range(6):
        ticket = bytes(15) + bytes([number])
        world.say(2, 3, KeyRequest(PART, unheard_of, ticket, 1, b"anything"))
    assert [len(world.requests(sender=3, to=place)) for place in (2, 4, 5, 6)] == [0, 2, 2, 2]
