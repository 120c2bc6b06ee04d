"""What an application asks: sent to somebody, then to others, answered once, in bounded time."""

import pytest

from anabranch.core.changes import CreateStream
from anabranch.core.errors import RemoteError
from anabranch.core.machine import Answered, Request, Send
from anabranch.core.messages import ChainList, ListChains, ReadChain, WriteChange, Written
from anabranch.core.registry_requests import (
    MAX_REQUESTS,
    NEXT_S,
    NO_TICKET,
    REQUEST_S,
    Requests,
)
from chains import COPIER, STREAM, WRITER, Writer
from machines import NODES, START

CHANGE = Writer().next(CreateStream())
WRITE = WriteChange(40, CHANGE)
LIST = ListChains(50, "0x")


def asked(*messages: WriteChange | ListChains) -> Requests:
    """Return requests under way at one tracker."""
    requests = Requests()
    for ticket, message in enumerate(messages, 7):
        assert requests.add(Request(ticket, message), START) == []
    requests.send([WRITER], START)
    return requests


def test_a_question_goes_to_the_source() -> None:
    requests = Requests()
    requests.add(Request(7, WRITE), START)
    requests.add(Request(8, LIST), START)
    assert requests.send([], START) == []
    assert requests.send([WRITER, COPIER], START) == [
        Send(WRITER, WriteChange(1, CHANGE)),
        Send(WRITER, ListChains(2, "0x")),
    ]
    assert requests.send([WRITER, COPIER], START) == []


def test_the_answer_bears_the_tickets_of_the_question() -> None:
    requests = asked(WRITE)
    assert requests.answer(COPIER, Written(1, 3)) == ([], "")
    assert requests.answer(WRITER, Written(9, 3)) == ([], "")
    assert requests.answer(WRITER, Written(1, 3)) == ([Answered(7, Written(40, 3))], STREAM)
    assert requests.answer(WRITER, Written(1, 3)) == ([], "")
    assert (len(requests), requests.wakeup_at) == (0, None)


def test_an_answer_to_another_question_is_a_fault() -> None:
    requests = asked(WRITE)
    with pytest.raises(RemoteError, match="wrong-answer"):
        requests.answer(WRITER, ChainList(1))


def test_a_question_whose_link_ends_is_asked_again() -> None:
    requests = asked(LIST)
    requests.unsend(NODES[3])
    assert requests.send([WRITER], START) == []
    requests.unsend(WRITER)
    assert requests.send([COPIER], START) == [Send(COPIER, ListChains(1, "0x"))]
    assert requests.answer(WRITER, ChainList(1)) == ([], "")
    assert requests.answer(COPIER, ChainList(1)) == ([Answered(7, ChainList(50))], "")


def test_what_is_not_answered_is_put_to_others_who_may_all_answer() -> None:
    requests = asked(WRITE)
    assert requests.wakeup_at == START + NEXT_S
    assert requests.wake(START + NEXT_S) == []
    assert requests.send([WRITER], START + NEXT_S) == []  # it has been asked
    assert requests.send([WRITER, COPIER], START + NEXT_S) == [Send(COPIER, WriteChange(1, CHANGE))]
    assert requests.wakeup_at == START + 2 * NEXT_S
    assert requests.answer(WRITER, Written(1, 3))[0] == [Answered(7, Written(40, 3))]
    assert requests.answer(COPIER, Written(1, 3)) == ([], "")


def test_what_one_refuses_another_is_asked_and_the_first_of_two_refusals_counts() -> None:
    both, no, never = [WRITER, COPIER], Written(1, 0, "forbidden: no"), Written(1, 0, "never")
    requests = asked(WRITE)
    assert requests.answer(WRITER, no, both) == ([], STREAM)
    assert requests.answer(WRITER, no, both) == ([], "")  # once is enough
    assert requests.send(both, START) == [Send(COPIER, WriteChange(1, CHANGE))]
    assert requests.answer(COPIER, Written(1, 3), both)[0] == [Answered(7, Written(40, 3))]
    requests = asked(WRITE)
    requests.answer(WRITER, no, both)
    requests.send(both, START)
    assert requests.answer(COPIER, never, both)[0] == [Answered(7, Written(40, 0, no.problem))]
    stale = Written(1, 0, "stale: read it")
    for first, second in ((no, stale), (stale, no)):
        requests = asked(WRITE)
        requests.answer(WRITER, first, both)
        requests.send(both, START)
        [answered] = requests.answer(COPIER, second, both)[0]
        assert answered == Answered(7, Written(40, 0, stale.problem))  # one may try again
    assert (len(requests), requests.wakeup_at) == (0, None)


def test_a_refusal_is_believed_when_nobody_else_answers() -> None:
    no, refused = Written(1, 0, "no"), [Answered(7, Written(40, 0, "no"))]
    assert asked(WRITE).answer(WRITER, no, [WRITER]) == (refused, STREAM)
    requests = asked(WRITE)
    requests.answer(WRITER, no, [WRITER, COPIER])
    requests.send([WRITER, COPIER], START)
    assert requests.wake(START + NEXT_S) == refused
    assert (len(requests), requests.wakeup_at) == (0, None)


def test_what_one_has_written_the_others_are_shown() -> None:
    requests = asked(WRITE, LIST)
    shown = Send(COPIER, WriteChange(NO_TICKET, CHANGE))
    effects, _ = requests.answer(WRITER, Written(1, 3), [WRITER, COPIER])
    assert effects == [Answered(7, Written(40, 3)), shown]
    assert requests.answer(COPIER, Written(NO_TICKET, 3), [WRITER, COPIER]) == ([], "")
    listed, _ = requests.answer(WRITER, ChainList(2), [WRITER, COPIER])
    assert listed == [Answered(8, ChainList(50))]


def test_what_nobody_answers_is_answered_in_time() -> None:
    requests = Requests()
    requests.add(Request(7, WRITE), START)
    assert requests.wakeup_at == START + REQUEST_S
    assert requests.wake(START + REQUEST_S) == [Answered(7, None, "registry-unreachable")]
    requests = asked(LIST)
    assert requests.wake(START + REQUEST_S) == [Answered(7, None, "timeout")]
    assert (len(requests), requests.wakeup_at) == (0, None)
    assert requests.send([COPIER], START + REQUEST_S) == []


def test_what_cannot_be_asked_is_answered_at_once() -> None:
    requests = Requests()
    assert requests.add(Request(1, ReadChain(0, STREAM)), START) == [
        Answered(1, None, "not-a-question")
    ]
    [answer] = requests.add(Request(2, WriteChange(0, b"junk")), START)
    assert isinstance(answer, Answered)
    assert answer.problem.startswith("change-malformed")
    for ticket in range(MAX_REQUESTS):
        assert requests.add(Request(ticket, LIST), START) == []
    assert requests.add(Request(9, LIST), START) == [Answered(9, None, "busy")]
