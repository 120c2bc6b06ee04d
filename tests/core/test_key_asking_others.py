"""Keys that another than their publisher gives: they fit their ids, or they are none."""

import random
from collections.abc import Callable

import msgspec
import pytest

from anabranch.core.encryption import GroupKey, key_id
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId
from anabranch.core.key_asking import ANSWER_S
from anabranch.core.key_records import KeyQuestion, make_answer, make_refusal, read_request
from anabranch.core.machine import Missed
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from key_world import (
    GONE,
    HOLDER,
    NET,
    NEWCOMER,
    READ,
    WRITE,
    KeyWorld,
    as_it_is,
    bereaved,
    hear,
)
from machines import KEYS, NODES, SIGNERS

EVE = 7
ENTROPY = random.Random(3).randbytes

Spoil = Callable[[bytes, KeyQuestion, GroupKey], bytes]


def answer_of(place: int) -> Spoil:
    def spoil(request: bytes, question: KeyQuestion, key: GroupKey) -> bytes:
        return make_answer(SIGNERS[place], KEYS, ENTROPY, request, question, [key])

    return spoil


def false_key(request: bytes, question: KeyQuestion, key: GroupKey) -> bytes:
    false = GroupKey(key.id, b"f" * 32)
    return make_answer(SIGNERS[HOLDER], KEYS, ENTROPY, request, question, [false])


def another_key(request: bytes, question: KeyQuestion, key: GroupKey) -> bytes:
    other = GroupKey(key_id(b"o" * 32), b"o" * 32)
    return make_answer(SIGNERS[HOLDER], KEYS, ENTROPY, request, question, [other])


def refusal(request: bytes, question: KeyQuestion, key: GroupKey) -> bytes:
    return make_refusal(SIGNERS[HOLDER], request, question, "unpermitted")


def sealed_to_another(request: bytes, question: KeyQuestion, key: GroupKey) -> bytes:
    other = msgspec.structs.replace(question, public=SIGNERS[EVE].public)
    return make_answer(SIGNERS[HOLDER], KEYS, ENTROPY, request, other, [key])


def faithless(spoil: Spoil) -> KeyWorld:
    """Let the holder answer the newcomer as it likes; another one is honest."""
    world = bereaved((HOLDER, NEWCOMER), (HOLDER, 4), (4, NEWCOMER), readers=(HOLDER, NEWCOMER, 4))
    world.open(4, *world.published(GONE))
    world.wire.clear()
    asked: dict[bytes, bytes] = {}
    kept = world.kept[NODES[GONE]][0]

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is KeyRequest:
            asked[message.ticket] = message.request
        if type(message) is KeyAnswer and sender == NODES[HOLDER]:
            request = asked[message.ticket]
            question = read_request(request, NET, KEYS)
            answer = spoil(request, question, GroupKey(kept.key_id, kept.secret))
            return [msgspec.structs.replace(message, answer=answer)]
        return [message]

    world.fate = fate
    return world


@pytest.mark.parametrize(
    "spoil", [false_key, another_key, refusal, sealed_to_another, answer_of(EVE)]
)
def test_a_faithless_holder_only_delays(spoil: Spoil) -> None:
    world = faithless(spoil)
    assert hear(world) == [b"one", b"two"]
    assert world.requests(sender=NEWCOMER, to=HOLDER)
    assert len(world.requests(sender=NEWCOMER, to=4)) == 1
    assert world.kept[NODES[NEWCOMER]] == world.kept[NODES[GONE]]
    assert (world.ended(NEWCOMER), world._of(NEWCOMER, Missed)) == ([], [])


@pytest.mark.parametrize("rights", [READ, WRITE])
def test_whoever_has_a_part_in_the_stream_may_answer(rights: int) -> None:
    world = faithless(answer_of(EVE))
    world.let(EVE, rights)
    world.announce()
    assert hear(world) == [b"one", b"two"]
    assert world.requests(sender=NEWCOMER, to=4) == []


def test_a_holder_must_give_all_that_was_asked_for() -> None:
    world = KeyWorld((GONE, HOLDER), (HOLDER, NEWCOMER))
    for place, rights in ((GONE, WRITE), (HOLDER, READ), (NEWCOMER, READ)):
        world.let(place, rights)
    world.start(GONE, subscribe=False)
    world.start(HOLDER)
    world.publish(GONE, b"one")
    world.state.removals += 1
    world.announce()
    world.publish(GONE, b"two")
    world.stop(GONE)
    world.start(NEWCOMER)
    kept = [GroupKey(key.key_id, key.secret) for key in world.kept[NODES[GONE]]]

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        request = world.requests(sender=NEWCOMER)[-1].request
        question = read_request(request, NET, KEYS)
        some = make_answer(SIGNERS[HOLDER], KEYS, ENTROPY, request, question, kept[:1])
        return [msgspec.structs.replace(message, answer=some)]

    world.fate = lambda sender, to, message: []
    world.open(NEWCOMER, *world.published(GONE))
    world.fate = fate
    world.wait(ANSWER_S)
    assert len(read_request(world.requests()[-1].request, NET, KEYS).key_ids) == 2
    assert (world.read(NEWCOMER, to=9), world.kept[NODES[NEWCOMER]]) == ([], [])
    world.fate = as_it_is
    world.wait(HOLD_S / 2)
    assert world.read(NEWCOMER, to=9) == [b"one", b"two"]
