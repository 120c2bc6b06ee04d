"""A publisher and those who ask for its keys: whom it answers, when, and what it never says."""

import random
from typing import Any

import msgspec
import pytest

from anabranch.core import key_answering
from anabranch.core.encryption import GroupKey, new_key
from anabranch.core.identity import Signer
from anabranch.core.ids import stream_part
from anabranch.core.key_answering import (
    ANSWERS_AT_ONCE,
    CONFIRM_WITHIN_S,
    LOOK_EVERY_S,
    MAX_REQUEST_AGE_S,
    NEXT_ANSWERS_S,
    UNKNOWN_KEY,
    UNPERMITTED,
)
from anabranch.core.key_records import KeyQuestion, make_request, open_keys, read_answer
from anabranch.core.links import PATIENCE, PATIENCE_PER_S
from anabranch.core.machine import KeepKey, LinkDown
from anabranch.core.messages import KeyRequest
from key_world import NET, READ, WRITE, KeyWorld, line
from machines import KEYS, NODES, OTHER, PART, SIGNERS

EVE = 5


class Publisher:
    """A publisher with a neighbour, and a hand that writes requests as it likes."""

    def __init__(self) -> None:
        self.world = line(2, 2)
        self.world.publish(1, b"one")
        self.world.wire.clear()
        self.world.wait(1)
        self.chain = self.world.peers[NODES[1]]._parts.find(PART).publishing.chain
        self.key: KeepKey = self.world.kept[NODES[1]][0]
        self.tickets = 0

    def question(self, place: int = 2, **others: Any) -> KeyQuestion:
        self.tickets += 1
        plain = KeyQuestion(
            NET,
            PART.stream,
            NODES[1],
            NODES[place],
            SIGNERS[place].public,
            (self.key.key_id,),
            int(self.world.now * 1000),
            self.tickets.to_bytes(16),
        )
        return msgspec.structs.replace(plain, **others)

    def request(self, signer: Signer = SIGNERS[2], **others: Any) -> bytes:
        place = next(at for at, each in enumerate(SIGNERS) if each is signer)
        return make_request(signer, self.question(place, **others))

    def ask(self, request: bytes, sender: int = 2, **others: Any) -> list[bytes]:
        """Send a request; return the answers that came of it at once."""
        before = len(self.world.answers(sender=1))
        plain = KeyRequest(PART, self.chain, self.tickets.to_bytes(16), 1, request)
        self.world.say(sender, 1, msgspec.structs.replace(plain, **others))
        return [answer.answer for answer in self.world.answers(sender=1)[before:]]

    def problem(self, request: bytes, sender: int = 2) -> str:
        """Return why the publisher refuses; it does so once, and signs it."""
        (answer,) = self.ask(request, sender)
        reply = read_answer(answer, request, NET, KEYS.verify)
        assert reply.sealed == b""
        assert self.key.secret not in answer
        return reply.problem


def test_who_may_read_gets_the_keys_that_it_asks_for() -> None:
    publisher = Publisher()
    request = publisher.request()
    (answer,) = publisher.ask(request)
    reply = read_answer(answer, request, NET, KEYS.verify)
    key = GroupKey(publisher.key.key_id, publisher.key.secret)
    assert open_keys(SIGNERS[2], request, reply) == [key]


# --- Whom it refuses ------------------------------------------------------------------------


def test_who_may_not_read_is_refused() -> None:
    publisher = Publisher()
    assert publisher.problem(publisher.request(SIGNERS[EVE])) == UNPERMITTED
    publisher.world.let(EVE, WRITE)
    assert publisher.problem(publisher.request(SIGNERS[EVE])) == UNPERMITTED
    publisher.world.let(EVE, READ)
    assert publisher.ask(publisher.request(SIGNERS[EVE]))


def test_keys_of_others_are_unknown() -> None:
    publisher = Publisher()
    ring = publisher.world.peers[NODES[1]]._keys._ring
    stranger, twin, elsewhere = (new_key(random.Random(i).randbytes) for i in range(3))
    assert ring.learn(PART.stream, NODES[7], stranger)
    ring.learn(PART.stream, NODES[1], twin)
    assert ring.find(PART.stream, NODES[1], twin.id)
    ring.use(OTHER.stream, elsewhere)
    for unknown in (stranger.id, twin.id, elsewhere.id, b"x" * 16):
        assert publisher.problem(publisher.request(key_ids=(unknown,))) == UNKNOWN_KEY


def test_of_many_keys_those_that_are_its_own_are_given() -> None:
    publisher = Publisher()
    request = publisher.request(key_ids=(b"x" * 16, publisher.key.key_id))
    (answer,) = publisher.ask(request)
    reply = read_answer(answer, request, NET, KEYS.verify)
    assert [k.id for k in open_keys(SIGNERS[2], request, reply)] == [publisher.key.key_id]


# --- What it does not answer ----------------------------------------------------------------


def bad_requests(publisher: Publisher) -> dict[str, bytes]:
    eve, victim = SIGNERS[EVE], SIGNERS[2]
    late = int((publisher.world.now - MAX_REQUEST_AGE_S) * 1000) - 1
    early = int((publisher.world.now + MAX_REQUEST_AGE_S) * 1000) + 1
    return {
        "nothing": b"",
        "junk": b"junk" * 100,
        "another's name": make_request(eve, publisher.question(2)),
        "another's name, one's own key": make_request(
            eve, publisher.question(2, public=eve.public)
        ),
        "one's own key, another's name": make_request(
            eve, publisher.question(EVE, user=victim.node)
        ),
        "a key that nobody has": make_request(eve, publisher.question(EVE, public=bytes(33))),
        "another network": publisher.request(network=b"x" * 32),
        "another stream": publisher.request(stream=OTHER.stream),
        "another publisher": publisher.request(publisher=NODES[7]),
        "too old": publisher.request(at_ms=late),
        "too early": publisher.request(at_ms=early),
        "touched": publisher.request()[:-1] + b"x",
    }


@pytest.mark.parametrize("name", bad_requests(Publisher()))
def test_what_is_wrong_with_a_request_is_not_the_fault_of_who_carried_it(name: str) -> None:
    publisher = Publisher()
    publisher.world.views[NODES[1]].doubts = 0
    assert publisher.ask(bad_requests(publisher)[name]) == []
    publisher.world.wait(10)
    assert publisher.world.answers() == []
    assert publisher.world.ended(1) == []
    assert publisher.world.views[NODES[1]].doubts == 0  # nor is the registry troubled
    assert publisher.ask(publisher.request())


@pytest.mark.parametrize("skew_s", [-MAX_REQUEST_AGE_S, MAX_REQUEST_AGE_S])
def test_clocks_may_differ_by_so_much(skew_s: float) -> None:
    publisher = Publisher()
    at_ms = int((publisher.world.now + skew_s) * 1000)
    assert publisher.ask(publisher.request(at_ms=at_ms))


def test_a_request_is_answered_once_whoever_repeats_it() -> None:
    publisher = Publisher()
    request = publisher.request()
    assert len(publisher.ask(request)) == 1
    assert publisher.ask(request) == []
    assert publisher.ask(request, ticket=b"t" * 16) == []
    assert len(publisher.ask(publisher.request())) == 1


def test_a_request_that_was_touched_does_not_use_up_the_real_one() -> None:
    publisher = Publisher()
    request = publisher.request()
    assert publisher.ask(request[:-1] + b"x") == []
    assert len(publisher.ask(request)) == 1


def test_a_request_of_who_is_no_neighbour_is_ignored() -> None:
    publisher = Publisher()
    assert publisher.ask(publisher.request(), sender=EVE) == []


def test_a_request_in_a_part_that_we_are_not_in_is_ignored() -> None:
    publisher = Publisher()
    part = stream_part(PART.stream, 7)
    assert publisher.ask(publisher.request(), part=part) == []


def test_requests_without_end_cost_the_link() -> None:
    publisher = Publisher()
    request = publisher.request()
    for _ in range(int(PATIENCE) + 1):
        publisher.ask(request)
    assert publisher.world.ended(1) == ["flood"]


def test_a_steady_trickle_of_requests_does_not() -> None:
    publisher = Publisher()
    request = publisher.request()
    for _ in range(int(PATIENCE) + 100):
        publisher.world.now += 1 / PATIENCE_PER_S
        publisher.ask(request)
    assert publisher.world.ended(1) == []


# --- By the registry's word as of now -------------------------------------------------------


def test_nobody_is_answered_before_the_registry_has_confirmed_it() -> None:
    publisher = Publisher()
    world = publisher.world
    world.reachable = False
    assert publisher.ask(publisher.request()) == []
    world.wait(CONFIRM_WITHIN_S / 2)
    assert world.answers() == []
    world.reachable = True
    world.wait(1)
    assert len(world.answers(sender=1)) == 1


def test_a_registry_that_did_not_answer_is_asked_again() -> None:
    publisher = Publisher()
    world, view = publisher.world, publisher.world.views[NODES[1]]
    world.reachable = False
    publisher.ask(publisher.request())
    view.in_doubt = False  # as if the question had been lost
    world.reachable = True
    world.wait(LOOK_EVERY_S - 0.01)
    assert world.answers() == []
    world.wait(LOOK_EVERY_S)
    assert len(world.answers(sender=1)) == 1


def test_who_was_removed_a_moment_ago_is_refused_though_we_had_not_heard_of_it() -> None:
    publisher = Publisher()
    publisher.world.let(2, 0)
    assert publisher.problem(publisher.request()) == UNPERMITTED


def test_a_registry_that_stays_silent_leaves_a_request_unanswered() -> None:
    publisher = Publisher()
    world = publisher.world
    world.reachable = False
    publisher.ask(publisher.request())
    world.wait(CONFIRM_WITHIN_S + 1)
    world.reachable = True
    world.announce()
    assert world.answers() == []
    assert world.peers[NODES[1]].sizes()["key requests pending"][0] == 0
    assert world.peers[NODES[1]].sizes()["key requests pending of a peer"][0] == 0


def test_who_was_given_a_key_and_removed_before_the_next_frame_cannot_read_that() -> None:
    publisher = Publisher()
    world = publisher.world
    world.let(EVE, READ)
    assert publisher.ask(publisher.request(SIGNERS[EVE]))
    world.let(EVE, 0)
    world.announce()
    world.publish(1, b"two")
    assert len(world.kept[NODES[1]]) == 2


# --- Many ask -------------------------------------------------------------------------------


def crowd(publisher: Publisher, size: int) -> KeyWorld:
    """Let many requests wait for the registry."""
    publisher.world.reachable = False
    for _ in range(size):
        publisher.ask(publisher.request())
    publisher.world.reachable = True
    return publisher.world


def test_a_crowd_is_answered_little_by_little_and_all_of_it() -> None:
    publisher = Publisher()
    world = crowd(publisher, 3 * ANSWERS_AT_ONCE)
    world.announce(1)
    assert len(world.answers(sender=1)) == ANSWERS_AT_ONCE
    world.wait(NEXT_ANSWERS_S)
    assert len(world.answers(sender=1)) == 2 * ANSWERS_AT_ONCE
    world.wait(1)
    assert len(world.answers(sender=1)) == 3 * ANSWERS_AT_ONCE


def test_what_waits_is_bounded_in_all_and_for_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_answering, "MAX_PENDING_PER_PEER", 3)
    publisher = Publisher()
    world = crowd(publisher, 5)
    world.announce(1)
    assert len(world.answers(sender=1)) == 3
    monkeypatch.setattr(key_answering, "MAX_PENDING_PER_PEER", 100)
    monkeypatch.setattr(key_answering, "MAX_PENDING", 2)
    crowd(publisher, 5)
    world.announce(1)
    assert len(world.answers(sender=1)) == 5


def test_the_requests_that_are_known_again_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_answering, "MAX_TAKEN", 2)
    publisher = Publisher()
    first = publisher.request()
    publisher.ask(first)
    for _ in range(2):
        publisher.ask(publisher.request())
    assert publisher.world.peers[NODES[1]].sizes()["key requests taken"][0] == 2
    assert len(publisher.ask(first)) == 1  # it harms nobody


def test_a_link_that_ended_is_owed_no_answer() -> None:
    publisher = Publisher()
    world = crowd(publisher, 3)
    world.reachable = False
    world.do(1, LinkDown(NODES[2], "reset"))
    world.announce(1)
    assert world.answers() == []
    assert world.peers[NODES[1]].sizes()["key requests pending"][0] == 0
