"""Disputes: both ends are treated alike, and many disputes with different users cost slots."""

import pytest

from anabranch.core import disputes as module
from anabranch.core.disputes import (
    APART_S,
    MANY_USERS,
    MAX_APART,
    REMEMBERED_S,
    WAIT_FIRST_S,
    WAIT_MOST_S,
    Disputes,
)
from anabranch.core.ids import NodeId
from machines import NODES

LIAR, A, B, C, D = NODES[1:6]
NOW = 1_000.0


def dispute(disputes: Disputes, *pairs: tuple[NodeId, NodeId], now: float = NOW) -> None:
    """Record disputes of nodes that are users of their own."""
    for a, b in pairs:
        disputes.record((a, a), (b, b), now)


def test_pair_in_dispute_is_apart_in_both_orders_until_its_time_is_over() -> None:
    disputes = Disputes()
    dispute(disputes, (LIAR, A))
    assert disputes.are_apart(LIAR, A)
    assert disputes.are_apart(A, LIAR)
    assert not disputes.are_apart(LIAR, B)
    disputes.forgive(NOW + APART_S - 0.1)
    assert disputes.are_apart(A, LIAR)
    disputes.forgive(NOW + APART_S)
    assert not disputes.are_apart(A, LIAR)


def test_dispute_counts_for_both_ends_whichever_reports_it() -> None:
    for ends in ((LIAR, A), (A, LIAR)):
        disputes = Disputes()
        dispute(disputes, ends)
        assert (disputes.users(LIAR), disputes.users(A)) == (1, 1)


def test_repeated_dispute_of_one_pair_counts_once() -> None:
    disputes = Disputes()
    dispute(disputes, (LIAR, A), (A, LIAR), (LIAR, A))
    assert (disputes.users(LIAR), disputes.users(A)) == (1, 1)


def test_disputes_with_many_nodes_of_one_user_count_once() -> None:
    disputes = Disputes()
    for node in (A, B, C, D):
        disputes.record((LIAR, LIAR), (node, NODES[9]), NOW)
    assert disputes.users(LIAR) == 1
    assert disputes.judge(LIAR, 50, NOW) is None
    assert [disputes.users(node) for node in (A, B, C, D)] == [1] * 4


def test_node_in_dispute_with_many_users_waits_and_the_others_do_not() -> None:
    disputes = Disputes()
    dispute(disputes, *((LIAR, node) for node in NODES[2 : 2 + MANY_USERS]))
    assert disputes.judge(LIAR, 50, NOW) == NOW + WAIT_FIRST_S
    assert disputes.waits(LIAR)
    for node in NODES[2 : 2 + MANY_USERS]:
        assert disputes.judge(node, 50, NOW) is None
        assert not disputes.waits(node)


def test_one_dispute_fewer_than_many_costs_nothing() -> None:
    disputes = Disputes()
    dispute(disputes, *((LIAR, node) for node in NODES[2 : 1 + MANY_USERS]))
    assert disputes.judge(LIAR, 50, NOW) is None


def test_every_further_user_doubles_the_wait_up_to_a_bound() -> None:
    disputes, waits = Disputes(), []
    for node in NODES[2:12]:
        dispute(disputes, (LIAR, node))
        until = disputes.judge(LIAR, 1_000, NOW)
        waits.append(0.0 if until is None else until - NOW)
    doubled = [WAIT_FIRST_S * 2**n for n in range(9)]
    assert waits == [0.0, *(min(WAIT_MOST_S, wait) for wait in doubled)]


def test_nodes_that_are_all_in_dispute_with_many_are_not_placed_last() -> None:
    """A network that is cut in two has disputes everywhere, and no node is at fault."""
    disputes = Disputes()
    some, others = NODES[1:7], NODES[7:13]
    dispute(disputes, *((a, b) for a in some for b in others))
    assert disputes.users(A) == len(others)
    assert all(disputes.judge(node, 12, NOW) is None for node in (*some, *others))


def test_disputes_are_forgotten_in_time() -> None:
    disputes = Disputes()
    dispute(disputes, (LIAR, A))
    dispute(disputes, (LIAR, B), now=NOW + 60)
    disputes.forgive(NOW + REMEMBERED_S)
    assert disputes.users(LIAR) == 1
    dispute(disputes, (LIAR, B), now=NOW + REMEMBERED_S)  # it counts from the last time on
    disputes.forgive(NOW + REMEMBERED_S + 60)
    assert disputes.users(LIAR) == 1
    disputes.forgive(NOW + 2 * REMEMBERED_S)
    assert [size for size, _ in disputes.sizes().values()] == [0] * 4


def test_node_that_restarts_is_still_in_dispute_and_the_others_are_not() -> None:
    disputes = Disputes()
    dispute(disputes, (LIAR, A), (LIAR, B))
    disputes.judge(LIAR, 50, NOW)
    disputes.annul(LIAR)
    assert not disputes.are_apart(LIAR, A)
    assert disputes.users(LIAR) == 2
    assert disputes.waits(LIAR)
    assert disputes.users(A) == disputes.users(B) == 0


def test_node_in_dispute_with_nodes_that_turn_out_to_be_gone_waits_no_more() -> None:
    disputes = Disputes()
    dispute(disputes, (A, B), (A, C), (A, D))
    disputes.judge(A, 50, NOW)
    assert disputes.waits(A)
    disputes.annul(B)
    assert disputes.waits(A)
    disputes.annul(C)
    assert not disputes.waits(A)
    assert disputes.users(A) == 1


def test_next_time_something_is_forgiven_is_known() -> None:
    disputes = Disputes()
    assert disputes.due_at is None
    dispute(disputes, (LIAR, A), (LIAR, B))
    disputes.judge(LIAR, 50, NOW)
    assert disputes.due_at == NOW + APART_S
    disputes.forgive(NOW + APART_S)
    assert disputes.due_at == NOW + WAIT_FIRST_S
    disputes.forgive(NOW + WAIT_FIRST_S)
    assert disputes.due_at is None
    assert not disputes.waits(LIAR)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DISPUTES", 6)
    monkeypatch.setattr(module, "MAX_APART", 3)
    disputes = Disputes()
    dispute(disputes, *((LIAR, node) for node in NODES[2:12]))
    assert disputes.sizes()["disputes"] == (6, 6)
    assert disputes.sizes()["pairs apart"] == (3, 3)
    assert disputes.users(LIAR) == 3
    assert not disputes.are_apart(LIAR, NODES[2])
    assert disputes.are_apart(LIAR, NODES[11])
    assert MAX_APART > 3


def test_node_that_turns_out_to_be_undialable_is_excused_once_an_hour() -> None:
    disputes = Disputes()
    for at, is_excused in ((NOW, True), (NOW + 60, False), (NOW + REMEMBERED_S, True)):
        dispute(disputes, (LIAR, A), (LIAR, B), now=at)
        disputes.judge(LIAR, 50, at)
        assert disputes.excuse(LIAR, at) is is_excused
        assert disputes.waits(LIAR) is not is_excused
        assert disputes.users(A) == (0 if is_excused else 1)
        disputes.forgive(at)
    assert not disputes.excuse(C, NOW)  # it is in no dispute


def test_disputes_with_a_node_that_had_fallen_silent_before_end_for_both() -> None:
    disputes = Disputes()
    dispute(disputes, (LIAR, D))
    dispute(disputes, (LIAR, A), (A, B), now=NOW + 5)
    for node in (LIAR, A):
        disputes.judge(node, 50, NOW + 5)
        assert disputes.waits(node)
    disputes.end_since(A, NOW + 1)
    assert disputes.users(A) == disputes.users(B) == 0
    assert disputes.users(LIAR) == 1
    assert not disputes.waits(A)
    assert not disputes.waits(LIAR)
