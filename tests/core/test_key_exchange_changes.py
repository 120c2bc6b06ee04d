"""Keys that change, and nodes that come back: who may read reads on, and who may not does not."""

import random

import pytest

from anabranch.core import frames, group_keys, key_exchange
from anabranch.core.encryption import GroupKey, new_key
from anabranch.core.group_keys import ROTATE_S, FrameLock
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId, chain_key, next_number, part_key
from anabranch.core.key_asking import ANSWER_S, NO_KEY
from anabranch.core.key_records import read_request
from anabranch.core.machine import Draft, KeepKey, Outcome, Publish, Received, Retire, Subscribe
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from key_world import NET, READ, WRITE, KeyWorld, as_it_is, line, losing
from machines import KEYS, NODES, PART, SIGNERS, data, drafts, leftovers

ENTROPY = random.Random(7).randbytes

# --- Keys that change -----------------------------------------------------------------------


def test_who_reads_follows_a_rotation_without_asking() -> None:
    world = line(3, 2, 3)
    world.publish(1, b"one")
    asked = len(world.requests())
    for content in (b"two", b"three", b"four"):
        world.wait(ROTATE_S)
        world.publish(1, content, content)
    assert len(world.requests()) == asked
    assert world.read(3) == [b"one", b"two", b"two", b"three", b"three", b"four", b"four"]
    assert len(world.kept[NODES[3]]) == 4
    ids = [frames.lock_of(frame).key_id for frame in world.published()]
    assert len(set(ids)) == 4


def test_who_missed_the_frame_that_carried_the_next_key_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "ROTATE_FRAMES", 2)
    world = line(3, 2)
    world.publish(1, b"one", b"two")
    world.let(3, READ)
    world.announce()
    world.do(3, Subscribe(PART))
    asked = len(world.requests())
    world.publish(1, b"three")
    assert world.read(3)[-1:] == [b"three"]
    assert len(world.requests()) == asked + 2  # from 3 to 2, and from 2 to 1
    assert world.read(2) == [b"one", b"two", b"three"]


def test_a_next_key_that_waited_with_its_frame_is_learned_when_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "ROTATE_FRAMES", 2)
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, *[b"%d" % i for i in range(5)])
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert world.read(2) == [b"%d" % i for i in range(5)]
    assert len(world.kept[NODES[2]]) == 3


def test_a_reader_who_is_removed_reads_no_more_and_the_others_do() -> None:
    world = line(3, 2, 3)
    world.publish(1, b"one")
    world.let(2, 0)
    world.announce(1, 3)  # the removed one does not want to know
    world.publish(1, b"two")
    assert world.read(3) == [b"one", b"two"]
    assert world.read(2) == [b"one"]
    assert world.dropped(2) == [NO_KEY]
    assert world.notices(2, NO_KEY) == ["unpermitted"]
    assert world.opened_by(2, *world.published()) == [b"one"]
    assert world.opened_by(3, *world.published()) == [b"one", b"two"]


def test_a_reader_whose_time_is_over_reads_no_more_though_nobody_says_so() -> None:
    world = line(2, 2)
    world.let(2, READ, world.now + 10)
    world.announce()
    world.publish(1, b"one")
    world.wait(10)
    world.publish(1, b"two")
    assert world.opened_by(2, *world.published()) == [b"one"]
    assert world.read(2) == [b"one"]


def test_a_node_that_knows_that_its_user_may_not_read_delivers_nothing() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    world.let(2, 0)
    world.announce(2)  # the publisher does not know yet, and goes on with the key
    world.publish(1, b"two")
    assert world.opened_by(2, *world.published()) == [b"one", b"two"]
    assert (world.read(2), world.dropped(2)) == ([b"one"], [key_exchange.UNREADABLE])


def test_our_own_right_to_read_is_looked_up_again_every_second() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    world.let(2, READ, world.now + 10)
    world.announce(2)  # the publisher has not heard that it ends, and goes on with the key
    world.wait(9.9)
    world.publish(1, b"two")
    world.wait(1.1)
    world.publish(1, b"three")
    assert world.opened_by(2, *world.published()) == [b"one", b"two", b"three"]
    assert (world.read(2), world.dropped(2)) == ([b"one", b"two"], [key_exchange.UNREADABLE])


def test_frames_whose_key_the_answer_does_not_hold_are_asked_for_in_turn() -> None:
    world = line(2, 2)
    world.let(3, READ)
    world.announce()
    late: list[KeyAnswer] = []

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        late.append(message)
        return []

    world.fate = fate
    world.publish(1, b"one")
    world.let(3, 0)
    world.announce()
    world.publish(1, b"two")  # with another key
    world.fate = as_it_is
    world.say(1, 2, late[0])
    assert world.read(2) == [b"one", b"two"]
    assert len(world.requests()) == 2


def given(by: int, chain: int, now: float, key: GroupKey, following: GroupKey | None) -> Received:
    """Let the first frame of a chain come from its publisher, perhaps with the next key in it."""
    numbered = [(next_number(0, int(now * 1000)), Draft(b"in %d" % chain))]
    name, lock = chain_key(NODES[by], chain), FrameLock(key, following, ENTROPY)
    frame = frames.build(part_key(PART), name, 0, numbered, SIGNERS[by].sign, lock)
    return data(NODES[by], frame)


def test_a_next_key_lets_frames_go_that_waited_for_it_in_other_chains() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    (kept,) = world.kept[NODES[2]]
    keys = [GroupKey(kept.key_id, kept.secret), *(new_key(ENTROPY) for _ in range(3))]
    world.fate = losing(KeyAnswer)
    for number in (3, 2):  # each overtakes the frame that brings its key, which itself waits
        following = keys[number + 1] if number < 3 else None
        world.do(2, given(1, number, world.now, keys[number], following))
    asked = len(world.requests())
    world.do(2, given(1, 1, world.now, keys[1], keys[2]))
    assert world.read(2) == [b"one"]
    world.do(2, given(1, 9, world.now, keys[0], keys[1]))
    assert world.read(2) == [b"one", b"in 9", b"in 1", b"in 2", b"in 3"]
    world.wait(HOLD_S)
    assert len(world.requests()) == asked + 1  # for the first of them, before it had come
    assert (world.dropped(2), leftovers(world.peers[NODES[2]]).get("keys asked for")) == ([], None)


def test_a_key_that_an_answer_brings_lets_the_frames_of_all_chains_go() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    (kept,) = world.kept[NODES[2]]
    keys = [GroupKey(kept.key_id, kept.secret), new_key(ENTROPY), new_key(ENTROPY)]
    world.fate = losing(KeyAnswer)
    for chain, key in ((1, 2), (2, 1), (3, 2)):
        following = keys[2] if key == 1 else None
        world.do(2, given(1, chain, world.now, keys[key], following))
    world.peers[NODES[1]]._keys._ring.use(PART.stream, keys[1])
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert sorted(world.read(2)) == [b"in 1", b"in 2", b"in 3", b"one"]
    assert all(read_request(r.request, NET, KEYS).key_ids for r in world.requests())


def test_nobody_makes_a_publisher_forget_its_own_key_by_giving_it_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "MAX_KEYS", 20)
    monkeypatch.setattr(group_keys, "MAX_KEYS_EACH", 5)
    world = KeyWorld((1, 2), (1, 3))
    for place, rights in ((1, READ | WRITE), (2, READ | WRITE), (3, READ)):
        world.let(place, rights)
    world.start(1, 2)
    world.publish(1, b"hello")
    world.publish(2, b"mine")
    kept = next(key for key in world.kept[NODES[1]] if key.publisher == NODES[2])
    key = GroupKey(kept.key_id, kept.secret)
    for chain in range(50):
        world.do(1, given(2, chain, world.now, key, new_key(ENTROPY)))
    assert world.read(1)[-1] == b"in 49"
    assert world.peers[NODES[1]].sizes()["group keys"] == (5, 20)
    world.start(3)
    world.publish(1, b"for all who may read")
    assert world.read(3) == [b"for all who may read"]


# --- Restarts -------------------------------------------------------------------------------


def test_a_subscriber_that_is_back_has_its_keys() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    world.stop(2)
    world.start(2)
    world.publish(1, b"two")
    assert world.read(2) == [b"one", b"two"]
    assert len(world.requests()) == 1


def test_a_publisher_that_is_back_has_a_new_key_and_gives_its_old_ones() -> None:
    world = line(3, 3)
    world.publish(2, b"mine")
    world.fate = losing(KeyRequest)
    world.publish(1, b"one")
    world.stop(1)
    world.start(1, subscribe=False)
    world.publish(1, b"two")
    world.fate = as_it_is
    world.wait(HOLD_S / 2)
    assert sorted(world.read(3)) == [b"mine", b"one", b"two"]
    assert len({frames.lock_of(frame).key_id for frame in world.published()}) == 2


def test_a_publisher_that_retired_still_gives_its_keys_while_it_is_there() -> None:
    world = line(2, 2)
    world.let(1, READ | WRITE)
    world.announce()
    world.do(1, Subscribe(PART))
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.do(1, Retire(PART))
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert world.read(2) == [b"one"]


def test_frames_of_one_publication_are_confirmed_as_ever() -> None:
    world = line(2, 2)
    world.do(1, Publish(PART, drafts(1, 2, 3)))
    outcomes = [e for e in world.effects[NODES[1]] if type(e) is Outcome]
    assert [(o.ticket, o.result) for o in outcomes] == [(1, "sent"), (2, "sent"), (3, "sent")]
    assert [type(e) for e in world.effects[NODES[2]]].count(KeepKey) == 1
