"""The tracker's word and the nodes' answers: counters, debounce, replacement (paper 001, 4.3)."""

import pytest

from anabranch.core.disputes import APART_S, pair
from anabranch.core.machine import LinkDown, LinkUp, Send
from anabranch.core.messages import Contact, Instruction, Leave, Status
from anabranch.core.tracked import LEAP
from anabranch.core.tracker import (
    AGAIN_S,
    AT_MOST_S,
    MEND_EVERY_S,
    QUIET_S,
    SILENT_S,
)
from machines import NODES, OTHER, PART, START, Field, sent

A, B, C, D, E, F, G = NODES[1:8]


def test_a_node_that_is_alone_is_told_so() -> None:
    field = Field()
    assert field.join(A) == []
    assert field.hand.wait(QUIET_S) == [Send(A, Instruction(PART, 1))]


def test_of_two_neighbours_the_lower_dials_and_the_other_accepts() -> None:
    field = Field()
    field.hand.hear(B, Status(PART, 0, address="b:1"))
    field.hand.hear(A, Status(PART, 0, address="a:1"))
    assert field.hand.wait(QUIET_S) == [
        Send(B, Instruction(PART, 1, (), (A,))),
        Send(A, Instruction(PART, 1, (Contact(B, "b:1"),), ())),
    ]


def test_never_do_both_dial() -> None:
    field = Field(degree=4)
    field.settle(*NODES[1:21])
    dialled = {(node, c.node) for node, told in field.told.items() for c in told.connect}
    accepted = {(peer, node) for node, told in field.told.items() for peer in told.accept}
    assert dialled == accepted
    assert len(dialled) == 20 * 4 / 2
    assert all(dialler < other for dialler, other in dialled)


def test_instructions_leave_when_nothing_has_changed_for_a_moment() -> None:
    field = Field()
    field.join(A)
    field.hand.wait(QUIET_S * 0.9)
    field.join(B)
    assert field.hand.wait(QUIET_S * 0.9) == []
    assert len(field.hand.wait(QUIET_S * 0.1)) == 2


def test_instructions_wait_no_longer_than_two_seconds() -> None:
    field, effects = Field(), []
    for node in NODES[1:31]:
        field.join(node)
        effects = field.hand.wait(QUIET_S * 0.9)
        if effects:
            break
    assert field.hand.now - START == pytest.approx(AT_MOST_S, abs=QUIET_S)
    assert len(effects) == len(field.hand.machine.topology(PART))
    assert len(effects) > 20


def test_counters_grow_by_one_for_each_node_and_part() -> None:
    field = Field()
    field.settle(A)
    field.settle(B)
    field.hand.hear(A, Status(OTHER, 0))
    told = [message for _, message in sent(Instruction, field.hand.wait(QUIET_S))]
    assert [(t.part, t.counter) for t in told] == [(OTHER, 1)]
    assert (field.told[A].counter, field.told[B].counter) == (2, 1)
    field.settle(C)
    assert [field.told[node].counter for node in (A, B, C)] == [3, 2, 1]


def test_who_need_not_change_hears_nothing() -> None:
    field = Field(degree=2)
    field.settle(A, B, C, D, E)
    before = field.told.copy()
    field.settle(F)
    changed = [node for node, told in before.items() if field.told[node] is not told]
    assert len(changed) == 2  # one link was cut, and its ends have the newcomer instead


def test_the_expected_status_is_not_answered() -> None:
    field = Field()
    field.settle(A, B, C)
    for _ in range(3):
        assert field.report(A, B, C) == []
        assert field.hand.wait(9) == []


def test_a_stale_status_is_ignored() -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:9])
    before = field.hand.machine.topology(PART)
    assert field.hand.hear(A, Status(PART, field.told[A].counter - 1, ())) == []
    field.join(NODES[9])
    field.hand.wait(QUIET_S)  # instructions of which A's answer to the last is still on its way
    after = field.hand.machine.topology(PART)
    changed = [n for n in before if before[n] != after[n]]
    assert field.hand.hear(changed[0], Status(PART, field.told[changed[0]].counter, ())) == []
    assert field.hand.wait(1) == []
    assert field.hand.machine.topology(PART) == after


def test_an_instruction_that_was_lost_is_sent_again() -> None:
    field = Field()
    field.settle(A)
    field.settle(B)
    field.hand.hear(A, Status(PART, field.told[A].counter - 1))
    assert field.hand.wait(1) == []  # too early to tell it from a stale one
    field.hand.wait(AGAIN_S)
    field.hand.hear(A, Status(PART, field.told[A].counter - 1))
    assert field.hand.wait(QUIET_S) == [
        Send(A, Instruction(PART, field.told[A].counter + 1, (Contact(B),), ()))
    ]


def test_what_was_said_while_the_link_was_down_is_said_again_at_once() -> None:
    field = Field()
    field.settle(A, B)
    field.hand(LinkDown(A, "reset"))
    field.join(C)
    field.hand.wait(QUIET_S)  # this is lost on the way to A
    field.hand(LinkUp(A))
    field.report(A)
    assert [to for to, _ in sent(Instruction, field.hand.wait(QUIET_S))] == [A]


def test_a_node_that_restarted_is_answered() -> None:
    field = Field()
    field.settle(A, B)
    counter = field.told[A].counter
    field.hand.hear(A, Status(PART, 0))
    assert field.hand.wait(QUIET_S) == [Send(A, Instruction(PART, counter + 1, (Contact(B),), ()))]
    assert field.hand.machine.topology(PART) == {A: (B,), B: (A,)}


def test_a_node_that_restarted_has_a_moment_to_meet_its_neighbours() -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:8])
    neighbours = field.hand.machine.topology(PART)[A]
    field.hand.hear(A, Status(PART, 0))
    field.settle()
    for peer in neighbours:  # who lost it, and say so
        field.report(peer, missing=[A])
    assert field.hand.wait(1) == []
    assert field.hand.machine.topology(PART)[A] == neighbours
    field.hand.wait(AGAIN_S)
    field.report(neighbours[0], missing=[A])
    assert neighbours[0] not in field.hand.machine.topology(PART)[A]


def test_a_node_that_moved_is_dialled_at_its_new_address() -> None:
    field = Field()
    for node in (A, B, C):
        field.hand.hear(node, Status(PART, 0, (), (), "home"))
    field.take(field.hand.wait(QUIET_S))
    field.hand.hear(B, Status(PART, field.told[B].counter, (A, C), (), "moved:2"))
    assert field.hand.wait(QUIET_S) == [
        Send(A, Instruction(PART, 2, (Contact(B, "moved:2"), Contact(C, "home")), ()))
    ]


def test_who_cannot_be_dialled_dials_the_others() -> None:
    field = Field()
    field.hand.hear(A, Status(PART, 0, (), (), "home"))
    field.join(B, C)  # these two have no address, and can only try what they always do
    field.take(field.hand.wait(QUIET_S))
    assert field.told[A] == Instruction(PART, 1, (), (B, C))
    assert field.told[B] == Instruction(PART, 1, (Contact(A, "home"), Contact(C)), ())
    assert field.told[C] == Instruction(PART, 1, (Contact(A, "home"),), (B,))
    field.hand.hear(C, Status(PART, 1, (A, B), (), "found"))
    field.take(field.hand.wait(QUIET_S))
    assert field.told[A] == Instruction(PART, 2, (Contact(C, "found"),), (B,))
    assert field.told[C] == Instruction(PART, 2, (), (A, B))


def test_a_counter_from_elsewhere_is_taken_over_and_left_behind() -> None:
    field = Field()
    field.settle(A, B)
    field.hand.hear(A, Status(PART, 40, (B,)))
    # It may be at work on number 41 of another tracker: ours must not be taken for that.
    assert field.hand.wait(QUIET_S) == [Send(A, Instruction(PART, 40 + LEAP, (Contact(B),), ()))]
    field.hand.hear(A, Status(PART, 40 + LEAP, (B,)))
    field.hand.hear(A, Status(PART, 0))
    ((_, message),) = sent(Instruction, field.hand.wait(QUIET_S))
    assert message.counter == 41 + LEAP


# --- Neighbours that could not connect ------------------------------------------------------


def test_a_missing_neighbour_is_replaced_and_the_pair_set_apart() -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:9])
    lost = field.hand.machine.topology(PART)[A][0]
    field.report(A, missing=[lost])
    told = [to for to, _ in sent(Instruction, field.hand.wait(QUIET_S))]
    assert {A, lost} <= set(told)
    graph = field.hand.machine.topology(PART)
    assert lost not in graph[A]
    assert A not in graph[lost]
    assert {len(neighbours) for neighbours in graph.values()} == {2}
    assert field.hand.machine.sizes()["pairs apart"][0] == 1


def test_a_pair_stays_apart_for_a_while_and_no_longer() -> None:
    field = Field(degree=2)
    field.settle(A, B, C, D)
    first = next(n for n in (B, C, D) if n in field.hand.machine.topology(PART)[A])
    field.report(A, missing=[first])
    field.settle()
    for node in (E, F, G):
        field.settle(node)
        field.hand.hear(node, Leave(PART))
        field.settle()
        assert first not in field.hand.machine.topology(PART)[A]
    field.hand.wait(APART_S + MEND_EVERY_S)
    assert field.hand.machine.sizes()["pairs apart"][0] == 0
    field.hand.hear(next(n for n in (B, C, D) if n != first), Leave(PART))
    field.settle()
    assert first in field.hand.machine.topology(PART)[A]


def test_both_ends_may_complain() -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:9])
    lost = field.hand.machine.topology(PART)[A][0]
    field.report(A, missing=[lost])
    field.report(lost, missing=[A])
    field.settle()
    assert field.hand.machine.sizes()["pairs apart"][0] == 1
    assert {len(n) for n in field.hand.machine.topology(PART).values()} == {2}


def test_among_few_nodes_nobody_is_set_apart() -> None:
    # Nobody could take the missing one's place, so the two go on trying.
    field = Field(degree=4)
    field.settle(A, B, C, D, E)
    field.report(A, missing=[B, C])
    assert field.hand.wait(30) == []
    assert field.hand.machine.topology(PART)[A] == (B, C, D, E)


def test_few_nodes_that_do_not_find_each_other_are_told_again_in_time() -> None:
    # One may have taken the same counter of another tracker for ours.
    field = Field(degree=4)
    field.settle(A, B, C)
    field.hand.wait(MEND_EVERY_S)
    field.report(A, missing=[B])
    assert field.hand.wait(QUIET_S) == [
        Send(A, Instruction(PART, 2, (Contact(B), Contact(C)), ())),
    ]
    field.report(B, C)
    assert field.hand.wait(1) == []


@pytest.mark.parametrize("message", [Status(PART, 0), Leave(PART)])
def test_a_node_that_left_or_restarted_is_forgiven(message: Status | Leave) -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:9])
    for lost in field.hand.machine.topology(PART)[A]:
        field.report(A, missing=[lost])
    field.settle()
    assert field.hand.machine.sizes()["pairs apart"][0] == 2
    field.hand.hear(A, message)
    assert field.hand.machine.sizes()["pairs apart"][0] == 0


def test_slots_that_stayed_open_are_filled_when_the_pairs_are_forgiven() -> None:
    field = Field(degree=2)
    field.settle(A, B, C, D)
    for lost in field.hand.machine.topology(PART)[A]:
        field.report(A, missing=[lost])
    field.settle()
    assert len(field.hand.machine.topology(PART)[A]) < 2
    assert A in field.take(field.hand.wait(APART_S + MEND_EVERY_S))
    assert len(field.neighbours(A)) == 2


def test_when_all_is_well_there_is_nothing_to_wake_for() -> None:
    field = Field()
    field.settle(A, B, C)
    assert field.hand.wait(MEND_EVERY_S + 1) == []
    field.report(A, B, C)
    assert field.hand.machine.wakeup_at == field.hand.now + SILENT_S


def test_a_neighbour_that_nobody_mentioned_is_answered_with_the_instruction() -> None:
    field = Field(degree=2)
    field.settle(*NODES[1:9])
    told = field.told[A]
    stranger = next(n for n in NODES[2:9] if n not in field.hand.machine.topology(PART)[A])
    field.hand.hear(A, Status(PART, told.counter, (*field.neighbours(A), stranger)))
    ((to, again),) = sent(Instruction, field.hand.wait(QUIET_S))
    assert to == A
    assert again == Instruction(PART, told.counter + 1, told.connect, told.accept)


# --- What others may ask --------------------------------------------------------------------


def test_round_trips_are_known_per_reporting_node() -> None:
    field = Field()
    field.settle(A, B, C)
    field.hand.hear(A, Status(PART, field.told[A].counter, (B, C), (1_500, 0)))
    field.hand.hear(B, Status(PART, field.told[B].counter, (A, C), (1_400,)))
    field.hand.hear(C, Status(PART, field.told[C].counter - 1, (A,), (9,)))  # stale
    assert field.hand.machine.rtts_us(PART) == {(A, B): 1_500, (B, A): 1_400}
    assert field.hand.machine.rtts_us(OTHER) == {}


def test_a_contact_holds_the_address_its_node_reported() -> None:
    field = Field()
    for node in NODES[1:6]:
        field.hand.hear(node, Status(PART, 0, address=f"{node.hex()}:1"))
    assert len(field.take(field.hand.wait(QUIET_S))) == 5
    for told in field.told.values():
        assert all(c == Contact(c.node, f"{c.node.hex()}:1") for c in told.connect)


def test_the_topology_is_sorted_and_symmetric() -> None:
    field = Field(degree=4)
    field.settle(*reversed(NODES[1:12]))
    graph = field.hand.machine.topology(PART)
    assert list(graph) == sorted(graph)
    for node, neighbours in graph.items():
        assert list(neighbours) == sorted(neighbours)
        assert all(node in graph[peer] for peer in neighbours)
    assert field.hand.machine.topology(OTHER) == {}


def test_a_pair_has_one_name() -> None:
    assert pair(A, B) == pair(B, A) == (A, B)
