"""A chain from several trackers: any interleaving of their pages ends in the same union."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.changes import CreateStream, SetPermission, pack_page
from anabranch.core.errors import RemoteError
from anabranch.core.followed_chain import (
    DONE,
    LAG_S,
    MAX_STEPS,
    MORE,
    TOO_OFTEN,
    FollowedChain,
)
from anabranch.core.history import roll
from anabranch.core.messages import ChainPage, ReadChain
from chains import COPIER, NET, STREAM, THIRD, WRITER, Writer, created, page_of
from machines import KEYS, NODES, START

TRACKERS = (WRITER, COPIER, THIRD)
PAGE = 3


def asked(followed: FollowedChain, tracker: bytes) -> ReadChain:
    view = followed.view(tracker)
    return ReadChain(1, STREAM, view.after, view.head)


def take(
    followed: FollowedChain, tracker: bytes, writer: Writer, now: float = START, size: int = 64
) -> str:
    """Let a tracker answer one question with a page of so many changes."""
    question = asked(followed, tracker)
    after = page_of(question, writer).after
    page = page_of(question, writer, upto=after + size)
    return followed.take(tracker, page, now, KEYS.verify, now)


def read(followed: FollowedChain, tracker: bytes, writer: Writer, now: float = START) -> None:
    while take(followed, tracker, writer, now) != DONE:
        pass


def grown(writer: Writer, rng: random.Random, most: int = 4) -> Writer:
    """Add a few changes."""
    for _ in range(rng.randint(0, most)):
        writer.add(SetPermission(rng.choice(NODES[5:9]), rng.randint(0, 7)))
    return writer


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_interleaving_of_pages_ends_in_the_same_head(rng: random.Random) -> None:
    """Trackers go their own ways and meet again, while they are read page by page."""
    base = grown(Writer().add(CreateStream()), rng)
    trackers = {node: grown(base.fork(), rng) for node in TRACKERS}
    followed = FollowedChain(STREAM, NET, START)
    for _ in range(rng.randint(0, 12)):
        node = rng.choice(TRACKERS)
        what = rng.randrange(5)
        if what == 0:
            grown(trackers[node], rng, 2)
        elif what == 1:
            trackers[node].take(*trackers[rng.choice(TRACKERS)].changes)
        elif what == 2:
            followed.forget(node)
        else:
            take(followed, node, trackers[node], size=rng.randint(1, PAGE))
    union = base.fork()
    for node in rng.sample(TRACKERS, len(TRACKERS)):
        union.take(*trackers[node].changes)
        while take(followed, node, trackers[node], size=PAGE) != DONE:
            pass
    assert followed.history.head == union.history.head
    assert followed.history.state.permissions == union.state.permissions  # type: ignore[attr-defined]
    for node in TRACKERS:
        is_behind = trackers[node].history.head != union.history.head
        assert followed.agrees(node) is not is_behind
        assert (followed.lacking_since(node) is not None) is is_behind


def test_a_new_tracker_is_asked_from_just_before_the_newest_change() -> None:
    writer = created(SetPermission(NODES[5], 1))
    followed = FollowedChain(STREAM, NET, START)
    assert asked(followed, WRITER) == ReadChain(1, STREAM, 0, NET)
    read(followed, WRITER, writer)
    assert asked(followed, WRITER) == ReadChain(1, STREAM, 2, writer.history.head)
    assert asked(followed, COPIER) == ReadChain(1, STREAM, 1, writer.history.head_at(1))
    followed.forget(WRITER)
    assert asked(followed, WRITER).after == 1


def test_since_when_a_tracker_lacks_something() -> None:
    early = created()
    late = early.fork().add(SetPermission(NODES[5], 1))
    latest = late.fork().add(SetPermission(NODES[6], 1))
    followed = FollowedChain(STREAM, NET, START)
    read(followed, COPIER, early, START)
    assert followed.lacking_since(COPIER) is None
    read(followed, WRITER, late, START + 1)
    read(followed, WRITER, latest, START + 2)
    assert followed.lacking_since(WRITER) is None
    assert followed.lacking_since(COPIER) == START + 1
    read(followed, COPIER, late, START + 3)
    assert followed.lacking_since(COPIER) == START + 2


def test_what_is_remembered_of_the_past_is_bounded_and_never_makes_anybody_look_later() -> None:
    writer = created()
    followed = FollowedChain(STREAM, NET, START)
    read(followed, COPIER, writer.fork())
    for at in range(3 * MAX_STEPS):
        writer.add(SetPermission(NODES[5], 1 + at % 2))
        read(followed, WRITER, writer, START + at / 100)
        assert len(followed._steps) <= MAX_STEPS
    assert followed.lacking_since(COPIER) == START
    newer = writer.fork()
    read(followed, WRITER, newer.add(SetPermission(NODES[6], 1)), START + 3 * LAG_S)
    assert len(followed._steps) == 2
    read(followed, COPIER, writer, START + 3 * LAG_S)
    assert followed.lacking_since(COPIER) == START + 3 * LAG_S


def test_who_has_told_us_all_it_has_and_when() -> None:
    followed = FollowedChain(STREAM, NET, START)
    assert followed.heard_by([]) == -1
    read(followed, WRITER, created(), START + 5)
    assert followed.heard_by([WRITER]) == START + 5
    assert followed.heard_by([WRITER, COPIER]) == -1
    read(followed, COPIER, created(), START + 7)
    assert followed.heard_by([WRITER, COPIER]) == START + 5


def test_a_read_begins_anew_only_so_often() -> None:
    one = created(*(SetPermission(NODES[5], 1 + at % 2) for at in range(9)))
    two = created(*(SetPermission(NODES[6], 1 + at % 2) for at in range(9)))
    followed = FollowedChain(STREAM, NET, START)
    results = [take(followed, WRITER, (one, two)[turn % 2], size=PAGE) for turn in range(10)]
    assert results[0] == MORE
    assert results[-1] == TOO_OFTEN
    read(followed, WRITER, one)
    assert followed.view(WRITER).restarts == 0


def test_a_sequence_that_is_not_in_the_canonical_order_is_found_out() -> None:
    writer = created(SetPermission(NODES[5], 1))
    writer.take(*created(SetPermission(NODES[6], 1)).changes)
    followed = FollowedChain(STREAM, NET, START)
    first, second, third = writer.changes
    head = NET
    for change in (first, third, second):
        head = roll(head, change)
    page = ChainPage(1, STREAM, 0, 3, head, pack_page([first, third, second], 0))
    with pytest.raises(RemoteError, match="contradiction"):
        followed.take(WRITER, page, START, KEYS.verify, START)
