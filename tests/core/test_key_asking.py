"""A subscriber and those between it and the publisher: they can delay it, and nothing more."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from anabranch.core import frames, key_asking, key_routes
from anabranch.core.encryption import GroupKey, key_id
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId, chain_key, number_of, part_key
from anabranch.core.key_answering import UNPERMITTED
from anabranch.core.key_asking import ANSWER_S, NO_KEY, REFUSED_S
from anabranch.core.key_records import (
    make_answer,
    make_refusal,
    read_request,
)
from anabranch.core.machine import Draft
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.messages.data import Body
from key_world import NET, READ, KeyWorld, as_it_is, diamond, line, losing
from machines import KEYS, NODES, PART, SIGNERS, data

EVE = SIGNERS[7]
KEY = GroupKey(key_id(b"e" * 32), b"e" * 32)

Spoil = Callable[[KeyAnswer, KeyRequest], list[KeyAnswer]]


def spoiled(world: KeyWorld, spoil: Spoil, *by: int) -> None:
    """Let nodes do what they like with the answers that they pass on to 4."""
    asked: dict[bytes, KeyRequest] = {}

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Any]:
        if type(message) is KeyRequest:
            asked[message.ticket] = message
        if type(message) is KeyAnswer and to == NODES[4] and NODES.index(sender) in by:
            return spoil(message, asked[message.ticket])
        return [message]

    world.fate = fate


def replaced(message: KeyAnswer, answer: bytes) -> list[KeyAnswer]:
    return [msgspec.structs.replace(message, answer=answer)]


def false_keys(message: KeyAnswer, asked: KeyRequest) -> list[KeyAnswer]:
    """Give a key of one's own under the name of the one that was asked for."""
    question = read_request(asked.request, NET, KEYS)
    false = GroupKey(question.key_ids[0], b"e" * 32)
    entropy = random.Random(1).randbytes
    answer = make_answer(EVE, KEYS, entropy, asked.request, question, [false])
    return replaced(message, answer)


def false_refusal(message: KeyAnswer, asked: KeyRequest) -> list[KeyAnswer]:
    question = read_request(asked.request, NET, KEYS)
    return replaced(message, make_refusal(EVE, asked.request, question, "unpermitted"))


SPOILT: dict[str, Spoil] = {
    "false keys": false_keys,
    "false refusal": false_refusal,
    "touched": lambda message, _: replaced(message, message.answer[:-1] + b"x"),
    "junk": lambda message, _: replaced(message, b"junk" * 50),
    "nothing": lambda message, _: replaced(message, b""),
}


# --- Answers that are not the publisher's ---------------------------------------------------


@pytest.mark.parametrize("how", SPOILT)
def test_an_answer_that_was_spoiled_is_asked_for_by_another_way_at_once(how: str) -> None:
    world = diamond()
    spoiled(world, SPOILT[how], 2)
    world.publish(1, b"one")
    assert world.read(4) == [b"one"]
    assert (len(world.requests(sender=4, to=2)), len(world.requests(sender=4, to=3))) == (1, 1)
    assert world.kept[NODES[4]] == world.kept[NODES[1]]
    assert world.ended(4) == []  # who passed it on may be innocent


@pytest.mark.parametrize("how", SPOILT)
def test_where_all_spoil_answers_each_is_asked_once_and_then_in_its_time(how: str) -> None:
    world = diamond()
    spoiled(world, SPOILT[how], 2, 3)
    world.publish(1, b"one")
    assert len(world.requests(sender=4)) == 2
    assert (world.read(4), world.kept[NODES[4]], world.dropped(4)) == ([], [], [])
    world.wait(HOLD_S / 2)
    assert len(world.requests(sender=4)) < 8
    world.fate = as_it_is
    world.wait(HOLD_S / 2 - 0.01)
    assert world.read(4) == [b"one"]


def test_only_who_was_asked_is_believed() -> None:
    world = diamond()
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    (request,) = world.requests(sender=4)
    question = read_request(request.request, NET, KEYS)
    good = make_refusal(SIGNERS[1], request.request, question, "unpermitted")
    world.say(3, 4, KeyAnswer(PART, request.ticket, good))
    assert world.dropped(4) == []
    world.say(2, 4, KeyAnswer(PART, request.ticket, good))
    assert world.dropped(4) == [NO_KEY]


def test_an_answer_that_comes_twice_or_to_nothing_does_nothing() -> None:
    world = line(2, 2)
    world.publish(1, b"one")
    (answer,) = world.answers()
    before = len(world.effects[NODES[2]])
    world.say(1, 2, answer)
    world.say(1, 2, KeyAnswer(PART, b"t" * 16, answer.answer))
    assert len(world.effects[NODES[2]]) == before


def test_an_answer_to_a_request_that_was_given_up_does_nothing() -> None:
    world = line(2, 2)
    late: list[KeyAnswer] = []

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        late.append(message)
        return []

    world.fate = fate
    world.publish(1, b"one")
    world.wait(HOLD_S)
    world.say(1, 2, late[0])
    assert (world.read(2), world.kept[NODES[2]]) == ([], [])


def test_a_key_that_nobody_asked_for_is_not_learned() -> None:
    world = line(2, 2)

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        (request,) = world.requests()
        question = read_request(request.request, NET, KEYS)
        entropy = random.Random(1).randbytes
        answer = make_answer(SIGNERS[1], KEYS, entropy, request.request, question, [KEY])
        return list(replaced(message, answer))

    world.fate = fate
    world.publish(1, b"one")
    assert (world.kept[NODES[2]], world.dropped(2)) == ([], [NO_KEY])


def test_a_publisher_that_seals_to_somebody_else_has_refused() -> None:
    world = line(2, 2)

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        (request,) = world.requests()
        question = read_request(request.request, NET, KEYS)
        other = msgspec.structs.replace(question, public=EVE.public)
        entropy = random.Random(1).randbytes
        answer = make_answer(SIGNERS[1], KEYS, entropy, request.request, other, [KEY])
        return list(replaced(message, answer))

    world.fate = fate
    world.publish(1, b"one")
    assert world.dropped(2) == [NO_KEY]
    assert len(world.notices(2, NO_KEY)) == 1


def test_a_publisher_that_gives_a_key_which_does_not_fit_its_id_has_refused() -> None:
    world = line(2, 2)

    def fate(sender: NodeId, to: NodeId, message: Control) -> list[Control]:
        if type(message) is not KeyAnswer:
            return [message]
        request = world.requests()[-1].request
        question = read_request(request, NET, KEYS)
        false = GroupKey(question.key_ids[0], b"f" * 32)
        entropy = random.Random(1).randbytes
        answer = make_answer(SIGNERS[1], KEYS, entropy, request, question, [false])
        return list(replaced(message, answer))

    world.fate = fate
    world.publish(1, b"one", b"two")
    assert (world.kept[NODES[2]], world.dropped(2)) == ([], [NO_KEY, NO_KEY])
    assert len(world.requests()) == 1


def test_a_key_that_no_request_can_name_is_not_asked_for() -> None:
    world = line(2, 2)
    chain, number = chain_key(NODES[1], 5), number_of(int(world.now * 1000), 0)
    frame = frames.build(
        part_key(PART),
        chain,
        0,
        [(number, Draft(b"x"))],
        SIGNERS[1].sign,
        lambda head, items: Body(items, 1, b"short"),
    )
    world.do(2, data(NODES[1], frame))
    assert (world.dropped(2), world.requests()) == ([NO_KEY], [])


def test_we_ask_a_neighbour_no_more_than_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_routes, "REQUESTS_AT_ONCE", 0.5)
    world = line(2, 2)
    world.publish(1, b"one")
    assert world.requests() == []
    monkeypatch.setattr(key_routes, "REQUESTS_AT_ONCE", 1.0)
    world.wait(ANSWER_S)
    assert world.read(2) == [b"one"]


# --- Refusals -------------------------------------------------------------------------------


def removed() -> KeyWorld:
    """Let 2 be removed from the readers, and not know it."""
    world = line(2, 2)
    world.publish(1, b"one")
    world.let(2, 0)
    world.announce(1)
    world.wire.clear()
    return world


def test_who_was_refused_does_not_ask_again_for_a_while() -> None:
    world = removed()
    world.publish(1, b"two", b"three")
    world.wait(REFUSED_S - 1)
    world.publish(1, b"four")
    assert len(world.requests()) == 1
    assert world.dropped(2) == [NO_KEY] * 3
    assert world.notices(2, NO_KEY) == ["unpermitted"]
    world.wait(1)
    world.publish(1, b"five")
    assert len(world.requests()) == 2


def test_when_the_registry_has_spoken_it_does() -> None:
    world = removed()
    world.publish(1, b"two")
    world.let(2, READ)
    world.announce()
    world.publish(1, b"three")
    assert world.read(2) == [b"one", b"three"]


def test_what_was_refused_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_asking, "MAX_REFUSED", 1)
    world = removed()
    world.publish(1, b"two")
    world.let(3, READ)
    world.announce(1)
    world.let(3, 0)
    world.announce(1)  # which is a reason for another key
    world.publish(1, b"three")
    assert world.peers[NODES[2]].sizes()["keys refused"] == (1, 1)


def test_the_keys_of_who_may_publish_no_more_open_nothing_that_comes_live() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.let(1, 0)
    world.announce(2)
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert (world.read(2), world.dropped(2)) == ([], [UNPERMITTED])
    assert world.kept[NODES[2]] == world.kept[NODES[1]]  # they open what is stored


def test_the_keys_of_who_never_could_publish_are_not_taken() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.state.writers.clear()
    world.announce(2)
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert (world.read(2), world.kept[NODES[2]], world.dropped(2)) == ([], [], [NO_KEY])
