"""Group keys: the ring of those we know, and when our own are changed, and how."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core import group_keys
from anabranch.core.changes import PUBLIC, CreateStream, Right
from anabranch.core.encryption import GroupKey, decrypt, key_id, unwrap
from anabranch.core.group_keys import ROTATE_FRAMES, ROTATE_S, FrameLock, KeyRing, Locks
from anabranch.core.ids import FrameHead, NodeId, chain_key, part_key
from anabranch.core.machine import Effect, KeepKey
from anabranch.core.messages.data import Body
from anabranch.core.registry import Permission, StreamState
from machines import NODES, PART, START, of

ME, ALICE, BOB = NODES[1:4]
STREAM = PART.stream
HEAD = FrameHead(part_key(PART), chain_key(ME, 7), 4, 5, 9, 2)


def key(number: int) -> GroupKey:
    secret = number.to_bytes(32)
    return GroupKey(key_id(secret), secret)


# --- The ring -------------------------------------------------------------------------------


def entry(publisher: NodeId, number: int) -> list[Effect]:
    return [KeepKey(STREAM, publisher, key(number).id, key(number).secret)]


def test_a_key_is_found_by_stream_publisher_and_id_and_kept_once() -> None:
    ring = KeyRing(ME)
    assert ring.find(STREAM, ALICE, key(1).id) is None
    assert ring.learn(STREAM, ALICE, key(1)) == entry(ALICE, 1)
    assert ring.learn(STREAM, ALICE, key(1)) == []
    assert ring.find(STREAM, ALICE, key(1).id) == key(1).secret
    assert ring.find(STREAM, BOB, key(1).id) is None
    assert ring.find(STREAM + "x", ALICE, key(1).id) is None
    assert ring.own(STREAM, key(1).id) is None


@pytest.mark.parametrize("secret", [b"x" * 32, key(1).secret[:-1], b""])
def test_a_key_that_does_not_fit_its_id_is_not_learned(secret: bytes) -> None:
    ring = KeyRing(ME)
    for publisher in (ALICE, ME):
        assert ring.learn(STREAM, publisher, GroupKey(key(1).id, secret)) == []
        assert ring.find(STREAM, publisher, key(1).id) is None
    ring.learn(STREAM, ALICE, key(1))
    assert ring.learn(STREAM, ALICE, GroupKey(key(1).id, secret)) == []
    assert ring.find(STREAM, ALICE, key(1).id) == key(1).secret


def test_nor_is_one_that_was_kept() -> None:
    false = [KeepKey(STREAM, publisher, key(1).id, b"x" * 32) for publisher in (ALICE, ME)]
    ring = KeyRing(ME, [*false, *of(KeepKey, entry(ALICE, 2) + entry(ME, 3))])
    for publisher in (ALICE, ME):
        assert ring.find(STREAM, publisher, key(1).id) is None
    assert len(ring) == 2


def test_a_key_of_our_own_that_is_in_use_is_kept_once() -> None:
    ring = KeyRing(ME)
    assert (ring.use(STREAM, key(2)), ring.use(STREAM, key(2))) == (entry(ME, 2), [])
    assert ring.learn(STREAM, ME, key(2)) == []
    assert len(ring) == 1


def test_a_ring_begins_with_what_was_kept() -> None:
    ring = KeyRing(ME, of(KeepKey, entry(ALICE, 1) + entry(ME, 2)))
    assert ring.find(STREAM, ALICE, key(1).id) == key(1).secret
    assert ring.find(STREAM, ME, key(2).id) == ring.own(STREAM, key(2).id) == key(2).secret
    assert ring.sizes() == {
        "group keys": (1, 10_000),
        "group keys of a publisher": (1, 256),
        "group keys of our own": (1, 10_000),
    }


@pytest.mark.parametrize("which", ["MAX_KEYS", "MAX_KEYS_EACH"])
@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    bound=st.integers(1, 5),
)
def test_of_a_publishers_keys_the_ring_keeps_those_used_last(
    which: str, steps: list[tuple[bool, int]], bound: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_keys, which, bound)
        ring, twin = KeyRing(ME), list[int]()  # the twin holds the numbers, oldest use first
        for learn, number in steps:
            if learn:
                assert bool(ring.learn(STREAM, ALICE, key(number))) is (number not in twin)
            else:
                found = ring.find(STREAM, ALICE, key(number).id)
                assert found == (key(number).secret if number in twin else None)
            if learn or number in twin:
                twin = [*(each for each in twin if each != number), number][-bound:]
            assert len(ring) == len(twin)


def test_keys_of_others_drive_out_neither_our_own_nor_those_of_a_third(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "MAX_KEYS", 10)
    monkeypatch.setattr(group_keys, "MAX_KEYS_EACH", 4)
    ring = KeyRing(ME)
    ring.use(STREAM, key(1))
    ring.learn(STREAM, BOB, key(2))
    for number in range(10, 100):
        ring.learn(STREAM, ALICE, key(number))
    assert ring.own(STREAM, key(1).id) == key(1).secret
    assert ring.find(STREAM, BOB, key(2).id) == key(2).secret
    assert [n for n in range(10, 100) if ring.find(STREAM, ALICE, key(n).id)] == [96, 97, 98, 99]
    for stream in range(10):  # in all there are too many: those that were used longest ago go
        ring.learn(f"{STREAM}/{stream}", ALICE, key(stream))
    assert ring.sizes()["group keys"] == (10, 10)
    assert ring.find(STREAM, BOB, key(2).id) is None
    assert ring.own(STREAM, key(1).id) == key(1).secret


def test_of_our_own_keys_those_stay_that_were_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_keys, "MAX_OWN_KEYS", 2)
    ring = KeyRing(ME)
    for number in (1, 2):
        assert ring.use(STREAM, key(number)) == entry(ME, number)
    assert ring.use(STREAM, key(1)) == []
    ring.own(STREAM, key(2).id)  # that somebody asks for it is no use
    ring.use(STREAM, key(3))
    assert [n for n in (1, 2, 3) if ring.own(STREAM, key(n).id)] == [1, 3]


def test_a_key_that_another_process_of_ours_made_is_known_and_not_ours_to_give() -> None:
    ring = KeyRing(ME)
    assert ring.learn(STREAM, ME, key(2)) == []  # nor to keep
    assert ring.find(STREAM, ME, key(2).id) == key(2).secret
    assert ring.own(STREAM, key(2).id) is None


# --- Locks ----------------------------------------------------------------------------------


class World:
    """A publisher's locks and the registry that they look at."""

    def __init__(self) -> None:
        self.state = StreamState(STREAM, bytes(32))
        self.state.created = CreateStream()
        self.ring = KeyRing(ME)
        self.known = True
        self.looks = 0
        self.now = START
        self.locks = Locks(self.ring, self.look, random.Random(1).randbytes)

    def look(self, stream: str) -> Any:
        self.looks += 1
        return self.state if self.known and stream == STREAM else None

    def let(self, user: NodeId, rights: int, expires: float = 0.0) -> None:
        """Write a permission into the registry, of which the locks hear."""
        self.write(user, rights, expires)
        self.locks.learned(STREAM)

    def write(self, user: NodeId, rights: int, expires: float = 0.0) -> None:
        self.state.permissions.pop(user, None)
        if rights:
            self.state.permissions[user] = Permission(rights, int(expires * 1000))

    def next(self) -> tuple[FrameLock | None, list[Effect]]:
        return self.locks.next(STREAM, self.now)

    def body(self) -> Body:
        """Make the body of the next frame, which is encrypted, and check that it opens."""
        lock, kept = self.next()
        assert lock is not None
        body = lock(HEAD, b"items")
        assert body.encryption == 1
        secret = self.ring.own(STREAM, body.key_id)
        assert secret is not None
        assert decrypt(secret, HEAD, body.items) == b"items"
        self.kept = of(KeepKey, kept)
        return body


def test_a_stream_that_everybody_may_read_is_in_the_clear() -> None:
    world = World()
    world.let(PUBLIC, Right.SUBSCRIBE)
    assert world.next() == (None, [])
    world.let(PUBLIC, Right.PUBLISH)
    assert world.body().key_id


def test_a_private_stream_has_one_key_which_is_kept() -> None:
    world = World()
    one = world.body()
    assert [(k.stream, k.publisher, k.key_id) for k in world.kept] == [(STREAM, ME, one.key_id)]
    two = world.body()
    assert (two.key_id, world.kept) == (one.key_id, [])
    assert one.items != two.items  # two nonces
    assert (one.next_key, two.next_key) == (b"", b"")


def test_each_start_has_a_key_of_its_own() -> None:
    one, two = World(), World()
    two.locks = Locks(two.ring, two.look, random.Random(2).randbytes)
    assert one.body().key_id != two.body().key_id


def test_what_the_registry_does_not_know_is_kept_secret() -> None:
    world = World()
    world.known = False
    world.let(PUBLIC, Right.SUBSCRIBE)
    assert world.body().key_id


def test_after_an_hour_a_frame_carries_the_next_key() -> None:
    world = World()
    first = world.body()
    world.now += ROTATE_S - 1
    assert world.body().next_key == b""
    world.now += 1
    last = world.body()
    assert last.key_id == first.key_id
    (kept,) = world.kept
    following = GroupKey(kept.key_id, kept.secret)
    old = world.ring.find(STREAM, ME, first.key_id)
    assert old is not None
    assert unwrap(GroupKey(first.key_id, old), last.next_key, HEAD) == following
    after = world.body()
    assert (after.key_id, after.next_key) == (following.id, b"")
    world.now += ROTATE_S - 1
    assert world.body().next_key == b""


def test_after_many_frames_a_frame_carries_the_next_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROTATE_FRAMES <= 1 << 32  # random nonces are safe for so many
    monkeypatch.setattr(group_keys, "ROTATE_FRAMES", 3)
    world = World()
    bodies = [world.body() for _ in range(7)]
    assert [bool(body.next_key) for body in bodies] == [False, False, True] * 2 + [False]
    assert len({body.key_id for body in bodies}) == 3


def test_a_reader_who_is_removed_does_not_get_the_next_key() -> None:
    world = World()
    world.let(ALICE, Right.SUBSCRIBE)
    world.let(BOB, Right.SUBSCRIBE)
    before = world.body()
    world.let(ALICE, 0)
    after = world.body()
    assert after.key_id != before.key_id
    assert (before.next_key, after.next_key) == (b"", b"")
    assert world.body().key_id == after.key_id


def test_a_reader_who_comes_changes_nothing() -> None:
    world = World()
    before = world.body()
    world.let(ALICE, Right.SUBSCRIBE)
    assert world.body().key_id == before.key_id
    world.let(BOB, Right.PUBLISH)
    world.let(BOB, 0)  # who could not read
    assert world.body().key_id == before.key_id


def test_a_reader_whose_time_is_over_does_not_get_the_next_key() -> None:
    world = World()
    world.let(ALICE, Right.SUBSCRIBE, START + 10)
    before = world.body()
    world.now = START + 9.999
    assert world.body().key_id == before.key_id
    world.now = START + 10  # nobody says a word
    after = world.body()
    assert (after.key_id != before.key_id, after.next_key) == (True, b"")
    world.now += 100
    assert world.body().key_id == after.key_id


def test_who_is_removed_when_a_key_is_due_learns_nothing_of_the_next() -> None:
    world = World()
    world.let(ALICE, Right.SUBSCRIBE)
    before = world.body()
    world.now += ROTATE_S
    world.let(ALICE, 0)
    after = world.body()
    assert (after.key_id != before.key_id, after.next_key) == (True, b"")


def test_who_was_given_the_next_key_and_removed_before_its_first_frame_cannot_use_it() -> None:
    world = World()
    world.let(ALICE, Right.SUBSCRIBE)
    world.body()
    world.now += ROTATE_S
    given = world.body().next_key[:16]
    world.let(ALICE, 0)
    assert world.body().key_id != given


def test_who_was_let_in_given_the_key_and_removed_between_two_frames_cannot_use_it() -> None:
    world = World()
    before = world.body()
    world.write(ALICE, Right.SUBSCRIBE)
    world.locks.gave(STREAM, ALICE)
    world.let(ALICE, 0)
    assert world.body().key_id != before.key_id


def test_who_came_and_went_unseen_is_counted_as_a_reader() -> None:
    """Another process of the same user may have given him the key."""
    world = World()
    first = world.body().key_id
    world.state.removals += 1
    world.locks.learned(STREAM)
    second = world.body().key_id
    assert second != first
    world.write(ALICE, Right.SUBSCRIBE, world.now + 5)
    world.now += 10
    assert world.body().key_id == second  # nobody has spoken of it
    world.locks.learned(STREAM)
    assert world.body().key_id not in (first, second)


def test_a_key_says_how_many_removals_there_were_when_it_was_made() -> None:
    world = World()
    counted = []
    for removals in (3, 3, 5):
        world.state.removals = removals
        world.locks.learned(STREAM)
        world.now += ROTATE_S  # so that each frame brings another key
        for key_of in (world.body().key_id, world.kept[-1].key_id):
            secret = world.ring.own(STREAM, key_of)
            assert secret is not None
            counted.append(GroupKey(key_of, secret).removals)
    assert counted == [3, 3, 3, 3, 5, 5]


def test_a_stream_that_was_public_for_a_while_goes_on_with_another_key() -> None:
    world = World()
    before = world.body()
    world.let(PUBLIC, Right.SUBSCRIBE)
    assert world.next() == (None, [])
    world.let(PUBLIC, 0)
    assert world.body().key_id != before.key_id


def test_public_reading_that_expires_ends_in_secrecy() -> None:
    world = World()
    world.let(PUBLIC, Right.SUBSCRIBE, START + 10)
    assert world.next() == (None, [])
    world.now += 10
    assert world.body().key_id


def test_the_registry_is_looked_at_when_it_has_spoken_and_not_for_every_frame() -> None:
    world = World()
    world.let(ALICE, Right.SUBSCRIBE, START + 10)
    for _ in range(5):
        world.body()
    assert world.looks == 1
    world.locks.learned("another")
    world.body()
    assert world.looks == 1
    world.locks.learned(STREAM)
    world.body()
    assert world.looks == 2
    world.now += 10
    world.body()
    world.body()
    assert world.looks == 3


def test_the_streams_with_a_lock_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_keys, "MAX_LOCKS", 2)
    world = World()
    first = world.body()
    for name in ("a", "b"):
        world.locks.next(STREAM + name, START)
    assert world.locks.sizes() == {"streams with a lock": (2, 2)}
    assert world.body().key_id != first.key_id


def test_a_key_in_use_is_ours_to_give_whatever_else_we_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_keys, "MAX_OWN_KEYS", 2)
    world = World()
    first = world.body()
    for name in ("a", "b"):
        world.locks.next(STREAM + name, START)
    assert world.body().key_id == first.key_id  # which looks it up
