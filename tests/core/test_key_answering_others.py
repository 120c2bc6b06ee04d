"""Keys of a publisher that is gone: who reads and has them gives them to those who may."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from anabranch.core import frames, key_answering
from anabranch.core.held_frames import HOLD_S
from anabranch.core.ids import chain_key
from anabranch.core.key_answering import CONFIRM_WITHIN_S
from anabranch.core.key_records import (
    KeyQuestion,
    make_request,
    open_keys,
    read_answer,
)
from anabranch.core.machine import KeepKey, Missed, Subscribe, Unsubscribe
from anabranch.core.messages import KeyAnswer, KeyRequest
from key_world import (
    GONE,
    HOLDER,
    NET,
    NEWCOMER,
    READ,
    WRITE,
    KeyWorld,
    bereaved,
    hear,
    line,
)
from machines import KEYS, NODES, OTHER, PART, SIGNERS

EVE = 7


class Question:
    """A holder, and a hand that writes requests to it as it likes."""

    def __init__(self, world: KeyWorld | None = None) -> None:
        self.world = world or bereaved()
        self.key: KeepKey = self.world.kept[NODES[GONE]][0]
        self.chain = frames.peek(self.world.published(GONE)[0]).chain
        self.asked = 0

    def request(self, place: int = NEWCOMER, **others: Any) -> bytes:
        self.asked += 1
        question = KeyQuestion(
            NET,
            PART.stream,
            NODES[GONE],
            NODES[place],
            SIGNERS[place].public,
            (self.key.key_id,),
            int(self.world.now * 1000),
            self.asked.to_bytes(16),
        )
        return make_request(SIGNERS[place], msgspec.structs.replace(question, **others))

    def ask(self, request: bytes, tries: int = 0, sender: int = NEWCOMER) -> list[KeyAnswer]:
        """Send a request to the holder; return its answers to that."""
        before = len(self.world.answers(sender=HOLDER))
        ticket = bytes([tries]) + self.asked.to_bytes(15)
        self.world.say(sender, HOLDER, KeyRequest(PART, self.chain, ticket, 1, request))
        return self.world.answers(sender=HOLDER)[before:]

    def live(self) -> None:
        """Let there be somebody from whom frames of the chain come to the holder."""
        self.world.start(GONE, subscribe=False)
        congestion = self.world.peers[NODES[HOLDER]]._congestion
        congestion.came(frames.peek(self.world.published(GONE)[0]).part, self.chain, NODES[GONE])


# --- The past of the dead -------------------------------------------------------------------


def test_a_newcomer_reads_the_past_of_a_publisher_that_is_gone() -> None:
    world = bereaved()
    assert hear(world) == [b"one", b"two"]
    (request,), (answer,) = world.requests(), world.answers()
    reply = read_answer(answer.answer, request.request, NET, KEYS.verify)
    assert reply.by == NODES[HOLDER]
    secret = world.kept[NODES[GONE]][0].secret
    assert secret not in answer.answer
    assert [key.secret for key in open_keys(SIGNERS[NEWCOMER], request.request, reply)] == [secret]
    assert world.kept[NODES[NEWCOMER]] == world.kept[NODES[GONE]]


def test_what_one_newcomer_has_got_it_gives_to_the_next() -> None:
    world = bereaved((HOLDER, NEWCOMER), (NEWCOMER, 4), readers=(HOLDER, NEWCOMER, 4))
    hear(world)
    world.stop(HOLDER)
    world.open(4, *world.published(GONE))
    assert world.read(4, to=9) == [b"one", b"two"]
    assert len(world.answers(sender=NEWCOMER, to=4)) == 1


def test_a_holder_is_found_behind_those_who_only_carry() -> None:
    world = bereaved((HOLDER, 4), (4, 5), (5, NEWCOMER))
    assert hear(world) == [b"one", b"two"]
    assert [len(world.answers(sender=place)) for place in (HOLDER, 4, 5)] == [1, 1, 1]
    assert all(not world.kept[NODES[place]] for place in (4, 5))


def test_all_neighbours_are_asked_until_one_has_the_keys() -> None:
    edges = ((NEWCOMER, 4), (NEWCOMER, 5), (NEWCOMER, 6), (HOLDER, 6))
    world = bereaved(*edges, readers=(HOLDER, NEWCOMER, 4, 5, 6))
    hear(world)
    world.wait(HOLD_S - 0.01)
    assert world.read(NEWCOMER, to=9) == [b"one", b"two"]
    assert world.requests(sender=NEWCOMER, to=4)
    assert world.requests(sender=NEWCOMER, to=5)


def test_where_nobody_has_them_the_reader_hears_what_it_misses() -> None:
    world = bereaved()
    world.stop(HOLDER)
    assert hear(world) == []
    world.wait(HOLD_S)
    assert len(world._of(NEWCOMER, Missed)) == 2


# --- Who answers, and when ------------------------------------------------------------------


@pytest.mark.parametrize(("tries", "answers"), [(0, 0), (1, 0), (2, 1), (255, 1)])
def test_while_frames_come_the_publisher_is_left_the_first_tries(tries: int, answers: int) -> None:
    question = Question()
    question.live()
    assert len(question.ask(question.request(), tries)) == answers
    assert len(question.world.requests(sender=HOLDER, to=GONE)) == 1 - answers


def test_a_publisher_that_is_there_answers_itself_and_knows_who_has_its_keys() -> None:
    world = line(4, 2, 3, 4)
    world.publish(1, b"one")
    assert len(world.answers(sender=1)) == 3
    world.wait(HOLD_S)
    assert len(world.answers(sender=1)) == 3


def test_a_holder_answers_when_the_link_by_which_frames_came_is_no_more() -> None:
    question = Question()
    question.live()
    question.world.stop(GONE)
    assert len(question.ask(question.request())) == 1


def test_a_request_from_there_where_frames_come_from_is_answered() -> None:
    question = Question()
    part = frames.peek(question.world.published(GONE)[0]).part
    congestion = question.world.peers[NODES[HOLDER]]._congestion
    congestion.came(part, question.chain, NODES[NEWCOMER])
    assert len(question.ask(question.request())) == 1


def no_reader(world: KeyWorld) -> None:
    world.do(HOLDER, Subscribe(PART, reads=False))


def not_subscribed(world: KeyWorld) -> None:
    world.let(HOLDER, READ | WRITE)
    world.announce()
    world.publish(HOLDER, b"mine")
    world.do(HOLDER, Unsubscribe(PART))


def not_permitted(world: KeyWorld) -> None:
    world.remove(HOLDER)
    world.announce()


def not_permitted_unheard(world: KeyWorld) -> None:
    world.remove(HOLDER)


@pytest.mark.parametrize("loss", [no_reader, not_subscribed, not_permitted, not_permitted_unheard])
def test_who_does_not_read_or_may_not_gives_no_keys(loss: Callable[[KeyWorld], None]) -> None:
    question = Question()
    loss(question.world)
    for tries in (0, 2):
        assert question.ask(question.request(), tries) == []


def test_who_has_not_all_the_keys_passes_the_request_on() -> None:
    world = bereaved((HOLDER, NEWCOMER), (HOLDER, 4), readers=(HOLDER, NEWCOMER, 4))
    question = Question(world)
    some = question.request(key_ids=(question.key.key_id, b"x" * 16))
    assert question.ask(some, tries=2) == []
    assert [request.request for request in world.requests(sender=HOLDER, to=4)] == [some]
    assert len(question.ask(question.request(), tries=2)) == 1


def test_who_may_not_give_them_passes_the_request_on() -> None:
    world = bereaved((HOLDER, NEWCOMER), (HOLDER, 4), readers=(HOLDER, NEWCOMER, 4))
    question = Question(world)
    not_permitted(world)
    request = question.request()
    assert question.ask(request, tries=2) == []
    assert [passed.request for passed in world.requests(sender=HOLDER, to=4)] == [request]


def test_keys_of_another_stream_or_publisher_are_not_given() -> None:
    question = Question()
    for others in ({"stream": OTHER.stream}, {"publisher": NODES[5]}):
        assert question.ask(question.request(**others), tries=2) == []
    question.chain = chain_key(NODES[5], 1)  # the outside says something else than the inside
    assert question.ask(question.request(), tries=2) == []


# --- To whom --------------------------------------------------------------------------------


def test_who_may_not_read_gets_nothing_and_is_refused_by_nobody() -> None:
    question = Question()
    world = question.world
    for rights in (0, WRITE):
        world.let(EVE, rights)
        assert question.ask(question.request(EVE), tries=2) == []
    world.let(EVE, READ)
    assert len(question.ask(question.request(EVE), tries=2)) == 1


def test_who_was_removed_a_moment_ago_gets_nothing_though_the_holder_had_not_heard_of_it() -> None:
    question = Question()
    question.world.remove(NEWCOMER)
    assert question.ask(question.request()) == []


def test_nobody_gets_anything_before_the_registry_has_confirmed_it() -> None:
    question = Question()
    world = question.world
    world.reachable = False
    assert question.ask(question.request()) == []
    world.wait(CONFIRM_WITHIN_S / 2)
    assert world.answers() == []
    world.reachable = True
    world.wait(1)
    assert len(world.answers(sender=HOLDER)) == 1


@pytest.mark.parametrize("false", ["signature", "name", "age"])
def test_requests_that_the_publisher_would_not_answer_are_not_answered_for_it(false: str) -> None:
    question = Question()
    request = {
        "signature": question.request()[:-1] + b"x",
        "name": question.request(EVE, user=NODES[NEWCOMER]),
        "age": question.request(at_ms=int((question.world.now - 301) * 1000)),
    }[false]
    assert question.ask(request, tries=2) == []
    assert len(question.ask(question.request(), tries=2)) == 1


def test_a_request_is_answered_once() -> None:
    question = Question()
    request = question.request()
    assert [len(question.ask(request)) for _ in range(3)] == [1, 0, 0]


def test_what_waits_is_bounded_as_it_is_for_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_answering, "MAX_PENDING_PER_PEER", 3)
    question = Question()
    world = question.world
    world.reachable = False
    for _ in range(5):
        question.ask(question.request())
    world.reachable = True
    world.announce(HOLDER)
    assert len(world.answers(sender=HOLDER)) == 3


def test_who_gives_the_keys_of_others_need_not_stay_for_it() -> None:
    question = Question()
    question.ask(question.request())
    assert question.world.peers[NODES[HOLDER]].lingers_until < question.world.now


# --- Removals -------------------------------------------------------------------------------


def removed_elsewhere() -> tuple[Question, KeyWorld]:
    """Let a publisher rekey since somebody was removed, and a holder have the key unknowing."""
    world = KeyWorld((GONE, HOLDER), (HOLDER, EVE))
    for place, rights in ((GONE, WRITE), (HOLDER, READ), (EVE, READ)):
        world.let(place, rights)
    world.start(GONE, subscribe=False)
    world.start(HOLDER, EVE)
    world.publish(GONE, b"before")
    world.remove(EVE)
    world.announce(GONE)
    world.publish(GONE, b"after")
    world.stop(GONE)
    question = Question(world)
    question.key = world.kept[NODES[GONE]][-1]
    assert world.read(HOLDER) == [b"before", b"after"]
    return question, world


def test_a_holder_that_is_shown_an_old_registry_does_not_give_what_was_made_to_exclude() -> None:
    question, world = removed_elsewhere()
    view = world.views[NODES[HOLDER]]
    old = world.state.copy()
    old.hold(NODES[EVE], world.state.permissions[NODES[HOLDER]])
    old.removals -= 1
    view._registry = old  # whoever shows it to the holder confirms it as of now
    world.announce(HOLDER)
    assert view.may(PART.stream, NODES[EVE], READ, world.now)
    assert question.ask(question.request(EVE), tries=2, sender=EVE) == []
    view._registry = world.state
    world.announce(HOLDER)
    assert question.ask(question.request(EVE), tries=2, sender=EVE) == []
    world.let(EVE, READ)  # he may read again
    assert len(question.ask(question.request(EVE), tries=2, sender=EVE)) == 1


def test_a_removal_rekeys_though_the_publisher_never_knew_who_had_the_key() -> None:
    world = KeyWorld((GONE, HOLDER), (HOLDER, NEWCOMER))
    for place, rights in ((GONE, WRITE), (HOLDER, READ), (NEWCOMER, 0)):
        world.let(place, rights)
    world.start(GONE, subscribe=False)
    world.start(HOLDER, NEWCOMER)
    world.publish(GONE, b"one")
    world.let(NEWCOMER, READ)
    world.announce(HOLDER, NEWCOMER)  # and the publisher hears nothing of it
    question = Question(world)
    request = question.request()
    (answer,) = question.ask(request, tries=2)
    reply = read_answer(answer.answer, request, NET, KEYS.verify)
    for key in open_keys(SIGNERS[NEWCOMER], request, reply):
        world.kept[NODES[NEWCOMER]].append(KeepKey(PART.stream, NODES[GONE], key.id, key.secret))
    assert len(world.answers(sender=GONE)) == 1  # to the holder
    world.remove(NEWCOMER)
    world.announce()
    world.publish(GONE, b"two")
    assert world.opened_by(NEWCOMER, *world.published(GONE)) == [b"one"]
    assert world.read(HOLDER) == [b"one", b"two"]
