"""Questions under way: their turns, their links, their one answer; and what a good answer is."""

from typing import Any

import pytest

from anabranch.core import resends as module
from anabranch.core.errors import RemoteError
from anabranch.core.frames import peek
from anabranch.core.ids import NodeId, part_key
from anabranch.core.machine import Effect, Hold, Release, Send
from anabranch.core.messages import Contact, Resend, Resent
from anabranch.core.messages.storage import MAX_NUMBER, Selection
from anabranch.core.resends import (
    BUSY,
    DOWN,
    IDLE_S,
    LATE,
    PAUSE_S,
    Inspector,
    Resends,
    leads_on,
)
from anabranch.core.turns import MAX_PER_NODE
from machines import KEYS, NODES, OTHER, PART, SIGNERS, START, Chain, forged

A, B = Contact(NODES[1], "a:1"), Contact(NODES[2], "b:1")
ALL = Selection()


class Asking:
    """Questions, and what was heard of them."""

    def __init__(self) -> None:
        self.resends = Resends()
        self.heard: list[tuple[NodeId, Any]] = []
        self.now = START

    def ask(self, to: Contact = A, dials: bool = True, within_s: float = 3.0) -> list[Effect]:
        self.resends.ask(to, dials, PART, ALL, within_s, self._hear)
        return self.resends.pump(self.now)

    def link(self, contact: Contact, up: bool) -> list[Effect]:
        return self.resends.link(contact.node, up, self.now)

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.resends.wake(self.now)

    def _hear(self, sender: NodeId, answer: Resent | str, now: float) -> list[Effect]:
        assert now == self.now
        self.heard.append((sender, answer))
        return []


def question(to: Contact, ticket: int) -> Send:
    return Send(to.node, Resend(ticket, PART, ALL))


def test_a_question_waits_for_its_link_and_is_answered_once() -> None:
    asking = Asking()
    assert asking.ask() == [Hold(A.node, "a:1")]
    assert asking.link(A, True) == [question(A, 1)]
    answer = Resent(1, high=5)
    asking.resends.receive(A.node, answer, START)
    assert asking.heard == [(A.node, answer)]
    asking.resends.receive(A.node, answer, START)
    asking.wait(IDLE_S - 1)
    assert asking.heard == [(A.node, answer)]


def test_over_a_link_that_stands_it_goes_at_once() -> None:
    asking = Asking()
    asking.link(A, True)
    asking.link(B, True)
    assert asking.ask() == [Hold(A.node, "a:1"), question(A, 1)]
    assert asking.ask() == [question(A, 2)]
    assert asking.ask(B, dials=False) == [question(B, 3)]


def test_a_neighbour_to_whom_no_link_stands_is_not_asked() -> None:
    asking = Asking()
    assert asking.ask(dials=False) == []
    assert asking.heard == [(A.node, DOWN)]


def test_an_answer_in_somebody_elses_name_costs_its_link() -> None:
    asking = Asking()
    asking.link(A, True)
    asking.ask()
    with pytest.raises(RemoteError, match="unasked"):
        asking.resends.receive(B.node, Resent(1), START)
    assert asking.heard == []
    assert asking.resends.receive(B.node, Resent(9), START) == []


def test_no_answer_in_time_is_an_answer() -> None:
    asking = Asking()
    asking.link(A, True)
    asking.ask(within_s=3.0)
    asking.wait(2.9)
    assert asking.heard == []
    asking.wait(0.2)
    assert asking.heard == [(A.node, LATE)]
    asking.resends.receive(A.node, Resent(1), asking.now)
    assert len(asking.heard) == 1


def test_a_link_that_ends_or_cannot_be_made_is_an_answer() -> None:
    asking = Asking()
    asking.ask()
    asking.link(A, False)
    assert asking.heard == [(A.node, DOWN)]
    # While it is known to be down, nobody waits for it.
    asking.ask()
    assert asking.heard == [(A.node, DOWN)] * 2
    assert asking.link(A, True) == []
    assert asking.ask() == [question(A, 3)]
    asking.link(A, False)
    assert asking.heard == [(A.node, DOWN)] * 3


def test_a_link_is_let_go_of_a_while_after() -> None:
    asking = Asking()
    asking.link(A, True)
    asking.ask()
    asking.resends.receive(A.node, Resent(1), START)
    assert asking.wait(IDLE_S - 0.1) == []
    assert asking.ask() == [question(A, 2)]
    asking.resends.receive(A.node, Resent(2), asking.now)
    assert asking.wait(IDLE_S - 0.1) == []
    assert asking.wait(0.2) == [Release(A.node)]
    assert asking.resends.wakeup_at is None
    assert asking.ask() == [Hold(A.node, "a:1"), question(A, 3)]


def test_who_needs_a_link_keeps_it() -> None:
    asking = Asking()
    asking.link(A, True)
    assert asking.resends.need(A) == [Hold(A.node, "a:1")]
    asking.ask()
    asking.resends.receive(A.node, Resent(1), START)
    assert asking.wait(IDLE_S * 2) == []
    asking.resends.spare(A.node, asking.now)
    assert asking.wait(IDLE_S) == [Release(A.node)]


def test_only_so_many_are_under_way_and_the_others_follow_in_turn() -> None:
    asking = Asking()
    asking.link(A, True)
    for _ in range(MAX_PER_NODE + 2):
        asking.ask()
    assert asking.resends.sizes()["resends asked of one node"] == (MAX_PER_NODE, MAX_PER_NODE)
    asking.resends.receive(A.node, Resent(5), START)
    assert asking.resends.pump(START) == [question(A, MAX_PER_NODE + 1)]
    assert not asking.resends.has_turn
    asking.wait(3.0)  # those that have waited for their turn are not late
    assert len(asking.heard) == MAX_PER_NODE + 1
    assert asking.resends.pump(asking.now) == [question(A, MAX_PER_NODE + 2)]


def test_one_that_is_busy_is_left_alone_for_a_moment() -> None:
    asking = Asking()
    asking.link(A, True)
    asking.link(B, True)
    asking.ask()
    asking.resends.receive(A.node, Resent(1, problem=BUSY), START)
    assert asking.heard == [(A.node, BUSY)]
    assert asking.ask() == []
    assert asking.heard == [(A.node, BUSY)] * 2
    assert asking.ask(B)[-1] == question(B, 3)
    asking.wait(PAUSE_S)
    assert asking.ask() == [question(A, 4)]
    asking.resends.receive(A.node, Resent(4, problem=BUSY), asking.now)
    asking.link(A, False)  # a new link knows nothing of that
    asking.link(A, True)
    assert asking.ask() == [question(A, 5)]


def test_few_idle_links_are_held(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "MAX_IDLE", 1)
    asking = Asking()
    for ticket, contact in enumerate((A, B), 1):
        asking.link(contact, True)
        asking.ask(contact)
        asking.now += 1
        asking.resends.receive(contact.node, Resent(ticket), asking.now)
    assert asking.resends.pump(asking.now) == [Release(A.node)]
    assert asking.resends.sizes()["idle keepers"] == (1, 1)


# --- What a good answer is ------------------------------------------------------------------


class _Stream:
    def __init__(self) -> None:
        self.writers = {SIGNERS[9].node}

    def keepers(self, stream: str) -> tuple[Contact, ...]:
        return ()

    def wrote(self, stream: str, publisher: NodeId) -> bool:
        return stream == PART.stream and publisher in self.writers


def test_only_frames_that_were_asked_for_fit() -> None:
    inspector, key, chain = Inspector(_Stream(), KEYS.verify), part_key(PART), Chain(SIGNERS[9])
    chain.frame()
    frame = chain.frame(b"a", b"b", b"c", at=START + 1)
    head = peek(frame)
    fitting = [
        ALL,
        Selection(whose=bytes(chain.key)),
        Selection(whose=bytes(SIGNERS[9].node)),
        Selection(after=head.last - 1),
        Selection(upto=head.first),
    ]
    for wanted in fitting:
        assert inspector.fits(key, wanted, frame) == head
    strange = [
        Selection(whose=bytes(SIGNERS[8].node)),
        Selection(after=head.last),
        Selection(upto=head.first - 1),
    ]
    for wanted in strange:
        assert inspector.fits(key, wanted, frame) is None
    assert inspector.fits(part_key(OTHER), ALL, frame) is None
    assert inspector.fits(key, ALL, frame[:-1]) is None
    assert inspector.fits(key, ALL, b"") is None


def test_only_who_could_publish_proves_a_frame() -> None:
    inspector, chain = Inspector(_Stream(), KEYS.verify), Chain(SIGNERS[9])
    frame = chain.frame()
    assert inspector.proves(PART, peek(frame), frame)
    assert not inspector.proves(PART, peek(frame), forged(frame))
    assert not inspector.proves(OTHER, peek(frame), frame)
    theirs = Chain(SIGNERS[8]).frame()
    assert not inspector.proves(PART, peek(theirs), theirs)


@pytest.mark.parametrize(
    ("asked", "following", "leads"),
    [
        (ALL, Selection(start=1), True),
        (ALL, ALL, False),
        (Selection(start=5), Selection(start=4), False),
        (Selection(start=5, end=9), Selection(start=6, end=9), True),
        (Selection(start=5, end=9), Selection(start=6), False),
        (Selection(whose=b"x"), Selection(start=1), False),
        (Selection(by_number=True), Selection(by_number=True, cursor=b"b"), True),
        (
            Selection(by_number=True, cursor=b"b"),
            Selection(by_number=True, cursor=b"a"),
            False,
        ),
        # The last so many are looked for from the end.
        (Selection(last=5), Selection(last=5, cursor=b"b"), True),
        (Selection(last=5, cursor=b"b"), Selection(last=2, cursor=b"a"), True),
        (Selection(last=5, cursor=b"b"), Selection(last=2, cursor=b"b"), False),
        (Selection(last=2), Selection(last=5, cursor=b"b"), False),
        (ALL, Selection(last=5, cursor=b"b"), False),
        (Selection(last=5, cursor=b"b"), Selection(start=7), True),
        (Selection(start=8, last=5), Selection(start=7), False),
        (ALL, Selection(start=1, upto=MAX_NUMBER - 1), False),
    ],
)
def test_what_follows_is_a_rest_of_what_was_asked_for(
    asked: Selection, following: Selection, leads: bool
) -> None:
    assert leads_on(asked, following) is leads
