"""What an application asks: sent to the right tracker, answered once, in bounded time."""

from typing import Any

import pytest

from anabranch.core.changes import CreateStream
from anabranch.core.errors import RemoteError
from anabranch.core.machine import Answered, Request, Send
from anabranch.core.messages import ChainList, ListChains, ReadChain, WriteChange, Written
from anabranch.core.registry_requests import MAX_REQUESTS, REQUEST_S, Requests
from chains import COPIER, STREAM, WRITER, Writer
from machines import NODES, START

CHANGE = Writer().next(CreateStream())
WRITE = WriteChange(40, CHANGE)
LIST = ListChains(50, "0x")


def up(*trackers: bytes) -> Any:
    return trackers.__contains__


def test_a_change_goes_to_the_writer_and_a_list_to_whom_we_read_from() -> None:
    requests = Requests()
    assert requests.add(Request(7, WRITE), START) == []
    assert requests.add(Request(8, LIST), START) == []
    assert requests.send(WRITER, COPIER, up(COPIER)) == [Send(COPIER, ListChains(2, "0x"))]
    assert requests.send(WRITER, COPIER, up(WRITER)) == [Send(WRITER, WriteChange(1, CHANGE))]
    assert requests.send(WRITER, COPIER, up(WRITER, COPIER)) == []


def test_the_answer_bears_the_tickets_of_the_question() -> None:
    requests = Requests()
    requests.add(Request(7, WRITE), START)
    requests.send(WRITER, None, up(WRITER))
    assert requests.answer(COPIER, Written(1, 3)) == ([], "")
    assert requests.answer(WRITER, Written(9, 3)) == ([], "")
    assert requests.answer(WRITER, Written(1, 3)) == ([Answered(7, Written(40, 3))], STREAM)
    assert requests.answer(WRITER, Written(1, 3)) == ([], "")
    assert (len(requests), requests.wakeup_at) == (0, None)


def test_an_answer_to_another_question_is_a_fault() -> None:
    requests = Requests()
    requests.add(Request(7, WRITE), START)
    requests.send(WRITER, None, up(WRITER))
    with pytest.raises(RemoteError, match="wrong-answer"):
        requests.answer(WRITER, ChainList(1))


def test_a_question_whose_link_ends_is_asked_again() -> None:
    requests = Requests()
    requests.add(Request(7, LIST), START)
    requests.send(WRITER, WRITER, up(WRITER))
    requests.unsend(NODES[3])
    assert requests.send(WRITER, WRITER, up(WRITER)) == []
    requests.unsend(WRITER)
    assert requests.send(WRITER, COPIER, up(COPIER)) == [Send(COPIER, ListChains(1, "0x"))]
    assert requests.answer(COPIER, ChainList(1)) == ([Answered(7, ChainList(50))], "")


def test_what_nobody_answers_is_answered_in_time() -> None:
    requests = Requests()
    requests.add(Request(7, WRITE), START)
    requests.add(Request(8, LIST), START + 1)
    requests.send(WRITER, COPIER, up(COPIER))
    assert requests.wakeup_at == START + REQUEST_S
    assert requests.expire(START + REQUEST_S) == [Answered(7, None, "registry-unreachable")]
    assert requests.expire(START + REQUEST_S + 1) == [Answered(8, None, "timeout")]
    assert len(requests) == 0


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
