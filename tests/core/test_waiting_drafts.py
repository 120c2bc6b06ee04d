"""What waits to become frames: drafts without numbers, and those that came with theirs."""

import pytest

from anabranch.core.ids import MAX_SKEW_S, chain_key, number_of
from anabranch.core.machine import Draft, Outcome, PublishNumbered
from anabranch.core.messages.data import MAX_CONTENT_BYTES, MAX_FRAME_MESSAGES
from anabranch.core.waiting_drafts import (
    BAD_NUMBERS,
    MAX_WAITING_DRAFTS,
    NO_SUCH_TYPE,
    QUEUE_FULL,
    TOO_LARGE,
    WaitingDrafts,
)
from machines import NODES, PART, START, drafts

OWN = chain_key(NODES[0], 7)


def at(seconds: float = 0.0) -> int:
    return number_of(int((START + seconds) * 1000), 0)


FIRST = at()


SMALL = Draft(b"x")


def numbered(
    *numbers: int, previous: int = 0, chain: int = 9, draft: Draft = SMALL
) -> PublishNumbered:
    return PublishNumbered(PART, chain, previous, [(n, draft) for n in numbers], 5, 1)


def test_drafts_with_numbers_leave_as_they_came_and_before_the_others() -> None:
    waiting = WaitingDrafts(OWN)
    assert waiting.add(drafts(1, 2)) == []
    assert waiting.add_numbered(numbered(FIRST, FIRST + 7, previous=3), START) == []
    assert waiting.sizes()["waiting drafts"][0] == 4
    given = waiting.take(0, START)
    assert (given.chain, given.previous, given.is_given) == (chain_key(NODES[0], 9), 3, True)
    assert [number for number, _ in given.drafts] == [FIRST, FIRST + 7]
    assert (given.tickets, given.copies) == ([(5, FIRST)], [(5, 1)])
    own = waiting.take(0, START)
    assert (own.chain, own.is_given, own.tickets) == (OWN, False, [(1, FIRST), (2, FIRST + 1)])
    assert not waiting.count
    assert {size for size, _ in waiting.sizes().values()} == {0}


@pytest.mark.parametrize(
    "bad",
    [
        numbered(),
        numbered(FIRST, FIRST),
        numbered(FIRST + 1, FIRST),
        numbered(FIRST, previous=FIRST),
        numbered(FIRST, previous=-1),
        numbered(FIRST, chain=-1),
        numbered(FIRST, chain=1 << 64),
        numbered(at(-MAX_SKEW_S - 1), FIRST),
        numbered(FIRST, at(MAX_SKEW_S + 1)),
        numbered(*range(FIRST, FIRST + MAX_FRAME_MESSAGES + 1)),
    ],
)
def test_numbers_that_others_would_not_take_are_refused(bad: PublishNumbered) -> None:
    waiting = WaitingDrafts(OWN)
    assert waiting.add_numbered(bad, START) == [Outcome(5, BAD_NUMBERS)]
    assert not waiting.count


@pytest.mark.parametrize("seconds", [-MAX_SKEW_S, 0.0, MAX_SKEW_S])
def test_numbers_of_about_now_are_taken(seconds: float) -> None:
    assert WaitingDrafts(OWN).add_numbered(numbered(at(seconds)), START) == []


def test_what_is_too_much_is_refused_together() -> None:
    waiting = WaitingDrafts(OWN)
    half = Draft(bytes(MAX_CONTENT_BYTES // 2 + 1))
    for bad, why in (
        (numbered(FIRST, draft=Draft(bytes(MAX_CONTENT_BYTES + 1))), TOO_LARGE),
        (numbered(FIRST, FIRST + 1, draft=half), TOO_LARGE),
        (numbered(FIRST, draft=Draft(b"x", 256)), NO_SUCH_TYPE),
    ):
        assert waiting.add_numbered(bad, START) == [Outcome(5, why)]
    waiting.add(drafts(*range(MAX_WAITING_DRAFTS - 1)))
    assert waiting.add_numbered(numbered(FIRST, FIRST + 1), START) == [Outcome(5, QUEUE_FULL)]
    assert waiting.add_numbered(numbered(FIRST), START) == []


def test_what_is_refused_has_one_outcome_for_each_frame() -> None:
    waiting = WaitingDrafts(OWN)
    waiting.add(drafts(1))
    waiting.add_numbered(numbered(FIRST, FIRST + 1), START)
    assert waiting.refuse("why") == [Outcome(1, "why"), Outcome(5, "why")]
    assert not waiting.count
