"""A subscriber and those between it and the publisher: they can delay it, and nothing more."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from anabranch.core import frames, key_asking, key_routes
from anabranch.core.encryption import GroupKey
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import NodeId, chain_key, number_of, part_key
from anabranch.core.key_asking import ANSWER_S, NO_KEY, REFUSED_S, straying
from anabranch.core.key_records import (
    KeyQuestion,
    make_answer,
    make_refusal,
    make_request,
    read_request,
)
from anabranch.core.machine import Draft, LinkDown
from anabranch.core.messages import Control, KeyAnswer, KeyRequest
from anabranch.core.messages.data import Body
from anabranch.core.messages.links import MAX_KEY_HOPS
from key_world import NET, READ, WRITE, KeyWorld, as_it_is, line, losing
from machines import KEYS, NODES, PART, SIGNERS, data

EVE = SIGNERS[7]
KEY = GroupKey(b"e" * 16, b"e" * 32)

Spoil = Callable[[KeyAnswer, KeyRequest], list[KeyAnswer]]


def diamond() -> KeyWorld:
    """Let 4 hear of 1 through 2 and through 3; the first copies come from 2."""
    world = KeyWorld((1, 2), (2, 4), (1, 3), (3, 4))
    world.let(1, WRITE)
    for place in (2, 3, 4):
        world.let(place, READ)
    world.start(1, subscribe=False)
    world.start(2, 3, 4)
    return world


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


def test_the_keys_of_who_may_publish_no_more_are_not_taken() -> None:
    world = line(2, 2)
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    world.let(1, 0)
    world.announce(2)
    world.fate = as_it_is
    world.wait(ANSWER_S)
    assert (world.read(2), world.kept[NODES[2]], world.dropped(2)) == ([], [], [NO_KEY])


# --- Passing on -----------------------------------------------------------------------------


def request(ticket: bytes = b"t" * 16, hops: int = 1, chain: int = 1) -> KeyRequest:
    """Make a request of which nobody on the way looks at more than the outside."""
    return KeyRequest(PART, chain_key(NODES[1], chain), ticket, hops, b"anything")


def carriers() -> KeyWorld:
    """Make a row of nodes without a publisher who would answer."""
    world = KeyWorld((2, 3), (3, 4))
    for place in (2, 3, 4):
        world.let(place, READ)
    world.start(2, 3, 4)
    return world


def test_a_request_is_passed_on_once_and_never_back() -> None:
    world = carriers()
    world.say(2, 3, request())
    assert world.requests(sender=3) == [request(hops=2)]
    assert world.requests(sender=3, to=2) == []
    assert world.requests(sender=4) == []  # it has nobody else
    world.say(2, 3, request())
    world.say(4, 3, request())
    assert len(world.requests(sender=3)) == 1


def test_a_request_that_has_gone_too_far_ends() -> None:
    world = carriers()
    world.say(2, 3, request(hops=MAX_KEY_HOPS - 1))
    world.say(2, 3, request(b"u" * 16, MAX_KEY_HOPS))
    assert world.requests(sender=3) == [request(hops=MAX_KEY_HOPS)]


def test_who_is_no_neighbour_has_nothing_passed_on() -> None:
    world = carriers()
    world.say(7, 3, request())
    assert world.requests(sender=3) == []


def test_an_answer_is_passed_back_as_it_is_and_once() -> None:
    world = carriers()
    world.say(2, 3, request())
    answer = KeyAnswer(PART, b"t" * 16, b"whatever")
    world.say(2, 3, answer)  # not from who was asked
    assert world.answers() == []
    world.say(4, 3, answer)
    world.say(4, 3, answer)
    assert world.answers() == world.answers(sender=3, to=2) == [answer]


def test_a_request_that_is_made_again_gets_past_somebody_deaf_on_the_way() -> None:
    # 5 has two neighbours, and frames come to both of them through 2, who passes nothing on.
    world = KeyWorld((1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (1, 6), (3, 6), (4, 6))
    world.let(1, WRITE)
    for place in range(2, 7):
        world.let(place, READ)
    world.start(1, subscribe=False)
    world.start(2, 3, 4, 5, 6)
    deaf = NODES[2]
    world.fate = lambda sender, to, message: (
        [] if type(message) is KeyRequest and to == deaf else [message]
    )
    world.publish(1, b"one")
    world.wait(HOLD_S - 0.01)
    assert world.read(5) == [b"one"]


def test_a_first_request_strays_nowhere_and_a_later_one_here_and_there() -> None:
    first, later = bytes(16), b"\1" + bytes(range(1, 16))
    assert {straying(first[:1] + later[1:], hops) for hops in range(2, 65)} == {None}
    assert {straying(later, hops) for hops in range(2, 65)} == {None, *range(8)}


def test_who_is_gone_is_sent_no_answer() -> None:
    world = carriers()
    world.say(2, 3, request())
    world.do(3, LinkDown(NODES[2], "reset"))
    world.say(4, 3, KeyAnswer(PART, b"t" * 16, b"whatever"))
    assert world.answers() == []
    assert world.peers[NODES[3]].sizes()["key routes"][0] == 0


def test_a_neighbour_is_asked_no_more_than_it_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_routes, "REQUESTS_AT_ONCE", 6.0)
    world = carriers()
    for number in range(5):
        world.say(2, 3, request(bytes([number]) * 16))
    assert len(world.requests(sender=3)) == 3  # the other half is for other publishers


def test_a_request_that_comes_back_to_who_made_it_ends() -> None:
    world = diamond()
    world.fate = losing(KeyAnswer)
    world.publish(1, b"one")
    (mine,) = world.requests(sender=4)
    world.wire.clear()
    world.say(3, 4, msgspec.structs.replace(mine, hops=5))
    assert world.requests(sender=4) == []


def test_who_publishes_under_the_same_name_passes_on_what_only_the_other_can_answer() -> None:
    world = line(3, 3)
    world.publish(2, b"mine")
    twin = chain_key(NODES[2], 99)
    known = world.kept[NODES[2]][0].key_id
    for key_id, passed_on in ((b"x" * 16, 1), (known, 0)):
        world.wire.clear()
        question = KeyQuestion(
            NET,
            PART.stream,
            NODES[2],
            NODES[3],
            SIGNERS[3].public,
            (key_id,),
            int(world.now * 1000),
            b"n" * 16,
        )
        asked = KeyRequest(PART, twin, key_id, 1, make_request(SIGNERS[3], question))
        world.say(3, 2, asked)
        assert len(world.requests(sender=2, to=1)) == passed_on
        assert len(world.answers(sender=2, to=3)) == 1 - passed_on
