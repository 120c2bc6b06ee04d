"""Keys that all processes of a user make alike: whoever may read no more knows none that follow."""

import random

import pytest

from anabranch.core import frames
from anabranch.core.changes import PUBLIC, CreateStream, Right
from anabranch.core.encryption import decrypt
from anabranch.core.group_keys import KeyRing, Locks
from anabranch.core.ids import FrameHead, chain_key, number_of, part_key
from anabranch.core.machine import Draft, KeepKey, PublishNumbered
from anabranch.core.messages.data import Body
from anabranch.core.registry import Permission, StreamState
from anabranch.core.standing_keys import DAY_MS, StandingKeys, StandingLock
from key_world import READ, WRITE, KeyWorld
from machines import NODES, PART, SIGNERS, START, of

ME, ALICE = SIGNERS[1], NODES[2]
STREAM = PART.stream
FIRST = number_of(int(START * 1000), 0)
HEAD = FrameHead(part_key(PART), chain_key(ME.node, 7), 4, FIRST, FIRST + 1, 2)


class Process:
    """One of a user's processes, and what it knows of the registry."""

    def __init__(self, state: StreamState, seed: int = 1, place: int = 1) -> None:
        signer = SIGNERS[place]
        self.ring = KeyRing(signer.node)
        entropy = random.Random(seed).randbytes
        self.locks = Locks(self.ring, lambda _: state, entropy, StandingKeys(signer))

    def body(self, now: float = START, first: int = FIRST, items: bytes = b"items") -> Body:
        lock, _ = self.locks.next(STREAM, now, first)
        assert type(lock) is StandingLock
        return lock(HEAD, items)


@pytest.fixture
def state() -> StreamState:
    made = StreamState(STREAM, bytes(32))
    made.created = CreateStream()
    return made


def test_two_processes_make_the_same_bytes_and_both_can_give_the_key(state: StreamState) -> None:
    one, two = Process(state, 1), Process(state, 2)
    assert one.body() == two.body()
    body = one.body()
    secret = two.ring.own(STREAM, body.key_id)
    assert secret is not None
    assert decrypt(secret, HEAD, body.items) == b"items"


def test_nobody_else_makes_them(state: StreamState) -> None:
    assert Process(state).body().key_id != Process(state, place=2).body().key_id


def test_another_content_or_place_has_another_nonce(state: StreamState) -> None:
    process = Process(state)
    lock, _ = process.locks.next(STREAM, START, FIRST)
    assert lock is not None
    heads = [HEAD, FrameHead(HEAD.part, HEAD.chain, 5, FIRST, FIRST + 1, 2)]
    heads.append(FrameHead(HEAD.part, HEAD.chain, 4, FIRST, FIRST + 2, 2))
    nonces = {lock(head, items).items[:12] for head in heads for items in (b"items", b"other")}
    assert len(nonces) == 6


def test_every_change_of_the_stream_every_lapse_and_every_day_has_a_key_of_its_own(
    state: StreamState,
) -> None:
    process, ids = Process(state), list[bytes]()
    ids.append(process.body().key_id)
    state.permissions[ALICE] = Permission(READ, int((START + 10) * 1000))
    state.changes += 1
    process.locks.learned(STREAM)
    ids.append(process.body().key_id)
    ids.append(process.body(START + 10).key_id)  # Alice may read no more
    state.permissions[ALICE] = Permission(WRITE)  # which takes nothing from her
    state.changes += 1
    process.locks.learned(STREAM)
    ids.append(process.body(START + 11).key_id)
    state.removals += 1
    process.locks.learned(STREAM)
    ids.append(process.body(START + 12).key_id)
    tomorrow = number_of(int(START * 1000) + DAY_MS, 0)
    ids.append(process.body(START + 12, first=tomorrow).key_id)
    assert len(set(ids)) == len(ids)


def test_a_key_counts_the_removals_that_its_maker_knew_of(state: StreamState) -> None:
    state.removals = 3
    process = Process(state)
    (kept,) = of(KeepKey, process.locks.next(STREAM, START, FIRST)[1])
    assert int.from_bytes(kept.secret[:4]) == 3


def test_what_everybody_may_read_is_in_the_clear(state: StreamState) -> None:
    state.permissions[PUBLIC] = Permission(Right.SUBSCRIBE)
    assert Process(state).locks.next(STREAM, START, FIRST) == (None, [])


def test_another_process_finds_the_key_without_asking(state: StreamState) -> None:
    one, two = Process(state, 1), Process(state, 2)
    body = one.body()
    name = (STREAM, ME.node, body.key_id)
    secret = one.ring.own(STREAM, body.key_id)
    assert secret is not None
    # It is kept, since it could not be made again after the next change.
    assert two.locks.find(name, FIRST, START) == (secret, [KeepKey(*name, secret)])
    assert two.locks.find(name, FIRST, START) == (secret, [])
    assert two.locks.find((STREAM, ALICE, body.key_id), FIRST, START) == (None, [])
    assert two.locks.find((STREAM, ME.node, bytes(16)), FIRST, START) == (None, [])


def test_readers_get_the_key_from_who_publishes() -> None:
    world = KeyWorld((1, 2), (2, 3))
    world.let(1, WRITE | READ)
    world.let(2, WRITE)
    world.let(3, READ)
    world.start(1, 2, 3)
    given = [(FIRST, Draft(b"one")), (FIRST + 1, Draft(b"two"))]
    world.do(1, PublishNumbered(PART, 9, 0, given, 5))
    world.wait(5)
    (frame,) = world.published()
    assert frames.lock_of(frame).encryption
    assert world.read(3) == [b"one", b"two"]
    assert world.read(2) == []
