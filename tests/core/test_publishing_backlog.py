"""The backlog: what is owed to neighbours leaves little by little, and has one outcome."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.ids import NodeId, chain_key, part_key
from anabranch.core.machine import Draft, Effect, Outcome
from anabranch.core.publishing import (
    CONFIRM_S,
    MAX_FLYING_BYTES,
    OFFER_BYTES,
    Flight,
    Publishing,
    Unconfirmed,
)
from machines import NODES, PART, SIGNERS, START, drafts, of

ME = SIGNERS[0]
A, B, C = NODES[1:4]
KEY, CHAIN = part_key(PART), chain_key(ME.node, 7)


def publishing() -> Publishing:
    return Publishing(KEY, CHAIN, ME.sign)


def large(mine: Publishing, *tickets: int) -> list[Unconfirmed]:
    """Make frames of which two are on the way at once, while nobody is there."""
    mine.waiting.add(drafts(*tickets, content=bytes(500_000)))
    frames = [mine.next_frame(START) for _ in tickets]
    return [frame for frame in frames if frame is not None]


def fly(mine: Publishing) -> list[tuple[Unconfirmed, frozenset[NodeId] | None]]:
    """Offer what there is room for."""
    left = []
    while (owed := mine.take_off(START)) is not None:
        mine.tried(owed[0], True, START)
        left.append(owed)
    return left


def test_of_what_a_newcomer_is_owed_no_more_leaves_than_is_confirmed() -> None:
    mine = publishing()
    one, two, three, four = large(mine, 1, 2, 3, 4)
    assert mine.meet((A,))
    assert fly(mine) == [(one, None), (two, None)]
    assert mine.sizes()["flying bytes"] == (one.size + two.size, OFFER_BYTES)
    mine.confirm(CHAIN, two.head.last)
    assert fly(mine) == [(three, None)]
    assert not mine.meet((A,))
    assert mine.meet((A, B))  # A has been offered three of them, and B none
    assert fly(mine) == [(one, frozenset([B])), (three, frozenset([B]))]
    mine.confirm(CHAIN, one.head.last)
    assert fly(mine) == [(four, None)]
    assert not mine.behind


def test_who_was_owed_and_left_is_owed_nothing() -> None:
    mine = publishing()
    one, two, three = large(mine, 1, 2, 3)
    for frame in (one, two, three):
        mine.tried(frame, True, START)
    mine.meet((A,))
    assert fly(mine) == [(one, frozenset([A])), (two, frozenset([A]))]
    mine.meet((A, B))
    mine.meet((B, C))
    mine.confirm(CHAIN, one.head.last)
    assert fly(mine) == [(two, frozenset([B, C])), (three, frozenset([B, C]))]
    assert not mine.meet(())
    assert (mine.behind, mine.sizes()["flying bytes"][0]) == (False, 0)


def test_what_no_neighbour_was_sent_makes_room_at_once() -> None:
    mine = publishing()
    frames = large(mine, *range(9))
    mine.meet((A,))
    for frame in frames:
        assert mine.take_off(START) == (frame, None)
        mine.tried(frame, False, START)
    assert mine.sizes()["flying bytes"][0] == 0


def test_all_parts_share_what_is_on_the_way() -> None:
    flight = Flight()
    parts = [Publishing(KEY, CHAIN, ME.sign, flight=flight) for _ in range(9)]
    for mine in parts:
        large(mine, 1, 2, 3)
        mine.meet((A,))
    left = [len(fly(mine)) for mine in parts]
    assert left == [2, 2, 2, 2, 0, 0, 0, 0, 0]
    assert flight.full
    assert flight.bytes <= MAX_FLYING_BYTES
    assert parts[8].waits_for_others
    assert parts[8].wakeup_at == START + CONFIRM_S  # should the others never make room
    parts[0].close()
    assert [len(fly(mine)) for mine in parts[1:]] == [0, 0, 0, 2, 0, 0, 0, 0]
    for mine in parts:
        mine.close()
    assert flight.bytes == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from([0, 1, 40_000, 600_000]), max_size=4)),
        st.tuples(st.sampled_from(["make", "pause", "doubt", "trust"]), st.none()),
        st.tuples(st.sampled_from(["offer", "got"]), st.integers(0, 9)),
        st.tuples(st.just("meet"), st.lists(st.sampled_from([A, B, C]), unique=True)),
        st.tuples(st.just("wait"), st.sampled_from([0.05, 1.0, 30.0])),
    ),
    max_size=30,
)


@given(STEPS)
def test_every_draft_has_exactly_one_outcome(steps: list[tuple[str, Any]]) -> None:
    flight = Flight()
    mine, now, ticket = Publishing(KEY, CHAIN, ME.sign, flight=flight), START, 0
    effects: list[Effect] = []
    for word, what in steps:
        waiting = mine.unconfirmed()
        if word == "add":
            for size in what:
                ticket += 1
                effects += mine.waiting.add([Draft(bytes(size), 0, ticket)])
        elif word == "wait":
            now += what
            effects += mine.expire(now)
            mine.owe(mine.due_again(now))
            fly(mine)
        elif word == "meet":
            mine.meet(tuple(what))
            fly(mine)
        elif word == "pause":
            mine.pause(0.1, now)
        elif word in ("doubt", "trust"):
            mine.doubted_until = now + 2 if word == "doubt" else None
        elif word == "make":
            mine.next_frame(now)
        elif waiting and word == "offer":
            mine.tried(waiting[what % len(waiting)], what % 3 > 0, now)
        elif waiting:
            effects += mine.confirm(CHAIN, waiting[what % len(waiting)].head.last)
        flying = sum(frame.size for frame in mine.unconfirmed() if frame.flying)
        assert flying == flight.bytes == mine.sizes()["flying bytes"][0] <= OFFER_BYTES
    effects += mine.close()
    assert flight.bytes == 0
    assert sorted(o.ticket for o in of(Outcome, effects)) == list(range(1, ticket + 1))
