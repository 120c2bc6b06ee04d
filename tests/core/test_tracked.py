"""Which of two neighbours dials, and what a node that nobody can dial changes."""

import random
from itertools import product

import pytest

from anabranch.core.dial_checks import FAILED_AFTER_S, DialChecks
from anabranch.core.ids import NodeId
from anabranch.core.machine import DialCheck, DialChecked, LinkUp, Send
from anabranch.core.messages import Contact, Instruction, Listening, Seen, Status
from anabranch.core.overlay import PartSettings
from anabranch.core.tracked import TrackedNode, dials
from anabranch.core.tracker import AGAIN_S, MOVE_EVERY_S, QUIET_S, Tracker
from anabranch.overlays import TOPOLOGIES
from machines import NODES, PART, Field, Hand, of, sent

A, B, C = NODES[1:4]


def known(dialable: bool, address: str = "") -> TrackedNode:
    return TrackedNode(1, address, A, (), dialable=dialable)


@pytest.mark.parametrize("low", [A, B])
@pytest.mark.parametrize(("one", "other"), [*product([True, False], repeat=2)])
def test_of_two_neighbours_exactly_one_dials_and_never_the_undialable_one_is_dialled(
    low: NodeId, one: bool, other: bool
) -> None:
    high = B if low == A else A
    first, second = known(one), known(other)
    assert dials(low, first, high, second) != dials(high, second, low, first)
    if one != other:
        assert dials(low, first, high, second) is other


def status(field: Field, node: NodeId, dialable: bool, counter: int = 0) -> None:
    neighbours = field.neighbours(node) if node in field.told else ()
    address = f"{NODES.index(node)}:1" if dialable else ""
    field.hand.hear(node, Status(PART, counter, neighbours, (), address, dialable))


def joined(field: Field, nodes: list[NodeId], undialable: list[NodeId]) -> None:
    for node in nodes:
        field.hand.link(node)
        status(field, node, node not in undialable)
    while told := field.take(field.hand.wait(QUIET_S)):
        for node in told:
            status(field, node, node not in undialable, field.told[node].counter)


@pytest.mark.parametrize("undialable", [A, B, C])
def test_undialable_node_is_told_to_dial_all_its_neighbours(undialable: NodeId) -> None:
    field = Field()
    joined(field, [A, B, C], [undialable])
    assert field.told[undialable].accept == ()
    others = [node for node in (A, B, C) if node != undialable]
    assert [c.node for c in field.told[undialable].connect] == others
    assert all(undialable in field.told[node].accept for node in others)


@pytest.mark.parametrize("degree", [2, 4])
def test_two_undialable_nodes_are_never_neighbours(degree: int) -> None:
    field = Field(degree)
    nodes, undialable = NODES[1:11], NODES[2:11:2]
    joined(field, nodes, undialable)
    topology = field.hand.machine.topology(PART)
    for node in undialable:
        assert topology[node]
        assert not set(topology[node]) & set(undialable)


def test_node_that_becomes_undialable_is_parted_from_those_it_cannot_reach() -> None:
    field = Field()
    joined(field, [A, B, C], [A])
    field.hand.wait(MOVE_EVERY_S)
    for _ in range(2):  # the link stands until one end reports that it does not
        field.hand.hear(B, Status(PART, field.told[B].counter, (C,), (), "", False))
        field.take(field.hand.wait(QUIET_S))
    topology = field.hand.machine.topology(PART)
    assert topology == {A: (C,), B: (C,), C: (A, B)}
    assert field.hand.machine._parts[PART].disputes.users(A) == 0


def test_link_that_both_ends_report_stands_although_neither_can_be_dialled() -> None:
    field = Field()
    joined(field, [A, B, C], [A])
    field.hand.wait(MOVE_EVERY_S)
    status(field, B, False, field.told[B].counter)
    field.take(field.hand.wait(QUIET_S))
    assert field.hand.machine.topology(PART) == {A: (B, C), B: (A, C), C: (A, B)}


# --- With checks ----------------------------------------------------------------------------


def checking(degree: int = 2) -> tuple[Field, Tracker]:
    field = Field(degree)
    settings = {PART: PartSettings(degree=degree)}
    tracker = Tracker(NODES[0], settings.get, random.Random(1), TOPOLOGIES, checks=DialChecks())
    field.hand = Hand(tracker)
    return field, tracker


def test_address_that_a_node_names_is_checked_and_the_result_told() -> None:
    field, _ = checking()
    field.hand(LinkUp(A, 0.1, "93.184.215.7"))
    address = "ws://93.184.215.7:1"
    assert field.hand.hear(A, Listening(address)) == [DialCheck(A, address, "93.184.215.7", True)]
    assert field.hand(DialChecked(A, address, True)) == [
        Send(A, Seen("93.184.215.7", address, True))
    ]


def ring(field: Field) -> NodeId:
    """Let eight nodes settle with two neighbours each; return the last in the order of ids."""
    field.settle(*NODES[1:9])
    field.hand.wait(AGAIN_S)
    return NODES[8]


def test_failed_dial_lets_the_dialled_node_be_checked_and_it_is_not_in_dispute_if_new() -> None:
    field, tracker = checking()
    last = ring(field)
    address = "ws://93.184.215.7:1"
    field.hand.hear(last, Listening(address))
    for peer in field.neighbours(last):
        field.report(peer, missing=[last])
    disputes = tracker._parts[PART].disputes
    assert disputes.users(last) == 0
    field.hand(DialChecked(last, address, False))
    (answer,) = [message for _, message in sent(Seen, field.hand.wait(FAILED_AFTER_S))]
    assert answer == Seen("", address, False)


def test_known_node_that_cannot_be_dialled_any_more_is_checked_and_excused() -> None:
    field, tracker = checking()
    last = ring(field)
    address = "ws://93.184.215.7:1"
    field.hand.hear(last, Listening(address))
    field.hand(DialChecked(last, address, True))
    for _ in range(3):
        field.hand.wait(20.0)
        field.report(*NODES[1:9])
    peers = field.neighbours(last)
    effects = [e for peer in peers for e in field.report(peer, missing=[last])]
    effects += field.hand.wait(0.05)
    assert of(DialCheck, effects) == [DialCheck(last, address)]
    disputes = tracker._parts[PART].disputes
    assert disputes.waits(last)
    field.hand(DialChecked(last, address, False))
    field.hand.hear(last, Status(PART, field.told[last].counter, (), (), "", False))
    assert not disputes.waits(last)
    field.take([e for e in field.hand.wait(QUIET_S) if type(e) is Send])
    assert len(field.hand.machine.neighbours(PART, last)) == 2
    assert field.told[last].accept == ()


def test_instruction_names_the_address_that_is_advertised_and_none_of_the_undialable() -> None:
    field = Field()
    joined(field, [A, B], [B])
    assert field.told[B] == Instruction(PART, field.told[B].counter, (Contact(A, "1:1"),), ())
    assert field.told[A] == Instruction(PART, field.told[A].counter, (), (B,))
