"""How nodes leave a tracker, in good order or not, and how a tracker leaves them."""

import random

import pytest

from anabranch.core import codec
from anabranch.core.disputes import MAX_APART
from anabranch.core.ids import StreamPart
from anabranch.core.machine import (
    Congested,
    Disconnect,
    LinkDown,
    LinkUp,
    Notice,
    Received,
    Send,
    Wakeup,
)
from anabranch.core.messages import Bye, Contact, Instruction, Leave, Meet, Status
from anabranch.core.messages.tracker import MAX_COUNTER
from anabranch.core.overlay import PartSettings
from anabranch.core.tracked import LEAP
from anabranch.core.tracker import (
    ABSENT_S,
    GATHER_AT_MOST_S,
    GATHER_S,
    MAX_PARTS,
    MAX_PARTS_PER_NODE,
    QUIET_S,
    SILENT_S,
)
from machines import NODES, OTHER, OWNER, PART, SIGNERS, Chain, Field, leftovers, packet, sent

A, B, C, D = NODES[1:5]


def ring(nodes: int = 8, degree: int = 2) -> Field:
    field = Field(degree)
    field.settle(*NODES[1 : nodes + 1])
    return field


def empty(field: Field) -> bool:
    machine = field.hand.machine
    return (
        leftovers(machine) == {}
        and machine.wakeup_at is None
        and machine._parts == machine._parts_of == {}
    )


def test_when_a_node_leaves_its_former_neighbours_get_fresh_instructions() -> None:
    field = ring()
    former = field.hand.machine.topology(PART)[A]
    field.hand.hear(A, Leave(PART))
    told = field.take(field.hand.wait(QUIET_S))
    assert sorted(told) == sorted(former)
    assert all(field.told[node].counter == 2 for node in told)
    assert A not in field.hand.machine.topology(PART)
    assert field.hand.hear(A, Leave(PART), Leave(OTHER)) == []


def test_when_the_last_node_leaves_nothing_remains() -> None:
    field = ring()
    field.hand.hear(B, Status(OTHER, 0))
    for node in NODES[1:9]:
        field.hand.hear(node, Leave(PART))
    assert not empty(field)
    field.hand.hear(B, Leave(OTHER))
    assert empty(field)


def test_a_node_that_comes_back_begins_anew() -> None:
    field = Field()
    field.settle(A, B)
    field.hand.hear(A, Leave(PART))
    field.settle()
    field.settle(A)
    assert field.told[A] == Instruction(PART, 1, (Contact(B),), ())


def test_a_link_may_be_lost_for_a_moment() -> None:
    field = ring()
    before = field.hand.machine.topology(PART)
    for back in (LinkUp(A), Received(A, codec.encode(Status(PART, 1, before[A])))):
        field.hand(LinkDown(A, "reset"))
        assert field.hand.wait(ABSENT_S - 0.1) == []
        field.hand(back)
        assert field.hand.wait(ABSENT_S) == []
    assert field.hand.machine.topology(PART) == before


def test_a_link_that_stays_lost_means_that_the_node_is_gone() -> None:
    field = ring()
    field.hand.hear(A, Status(OTHER, 0))
    former = field.hand.machine.topology(PART)[A]
    field.hand(LinkDown(A, "reset"))
    told = field.take(field.hand.wait(ABSENT_S + QUIET_S))
    assert sorted(told) == sorted(former)
    assert A not in field.hand.machine.topology(PART)
    assert field.hand.machine.topology(OTHER) == {}


def test_whom_both_the_tracker_and_a_neighbour_miss_is_gone_at_once() -> None:
    field = ring()
    former = field.hand.machine.topology(PART)[A]
    field.hand(LinkDown(A, "reset"))
    field.report(former[0], missing=[A])
    assert A not in field.hand.machine.topology(PART)
    assert sorted(field.take(field.hand.wait(QUIET_S))) == sorted(former)
    assert field.hand.machine.sizes()["pairs apart"][0] == 0


def test_a_node_that_says_nothing_for_long_is_gone() -> None:
    field = ring()
    others = NODES[2:9]
    for _ in range(4):
        field.hand.wait(SILENT_S / 5)
        field.report(*others)
    assert A in field.hand.machine.topology(PART)
    field.hand.wait(SILENT_S / 5)
    assert A not in field.hand.machine.topology(PART)
    assert sorted(field.hand.machine.topology(PART)) == sorted(others)


def test_who_is_silent_in_one_part_is_still_in_the_other() -> None:
    field = Field()
    field.hand.hear(A, Status(PART, 0), Status(OTHER, 0))
    field.hand.wait(SILENT_S / 2)
    field.hand.hear(A, Status(OTHER, 1))
    field.hand.wait(SILENT_S / 2)
    assert field.hand.machine.topology(PART) == {}
    assert field.hand.machine.topology(OTHER) == {A: ()}


def test_links_of_strangers_are_nobodys_business() -> None:
    field = Field()
    assert field.hand(LinkUp(A), LinkDown(A, "reset"), Congested(A), Wakeup()) == []
    assert empty(field)


# --- Faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "bad"),
    [
        ("protocol-version", b"garbage"),
        ("malformed", codec.DATA_HEAD[:1] + b"\0garbage"),
        ("packet-kind", packet(Chain(SIGNERS[9]).frame())),
        ("not-for-trackers", codec.encode(Meet(PART))),
        ("not-for-trackers", codec.encode(Bye(PART))),
        ("not-for-trackers", codec.encode(Instruction(PART, 5))),
        ("counter", codec.encode(Status(PART, MAX_COUNTER + 1))),
    ],
)
def test_a_fault_costs_the_link_and_every_membership(reason: str, bad: bytes) -> None:
    field = ring()
    field.hand.hear(A, Status(OTHER, 0))
    assert field.hand(Received(A, bad)) == [
        Notice(None, "fault", f"{reason} from {A.hex()}"),
        Disconnect(A, reason),
    ]
    assert A not in field.hand.machine.topology(PART)
    assert field.hand.machine.topology(OTHER) == {}
    assert A not in field.take(field.hand.wait(QUIET_S))


def test_the_highest_counter_there_is_can_be_answered() -> None:
    field = Field()
    assert field.hand.hear(A, Status(PART, MAX_COUNTER, (B,))) == []
    ((_, told),) = sent(Instruction, field.hand.wait(GATHER_AT_MOST_S + QUIET_S))
    assert codec.decode(codec.encode(told)) == told


def test_a_part_that_does_not_exist_is_not_tracked() -> None:
    field = Field()
    assert field.hand.hear(A, Status(StreamPart(f"{OWNER}/nowhere", 0), 0)) == []
    assert empty(field)


def test_the_parts_of_a_node_are_bounded() -> None:
    field = Field(directory=lambda part: PartSettings())
    many = [StreamPart(f"{OWNER}/{number}", 0) for number in range(MAX_PARTS_PER_NODE + 1)]
    field.hand.hear(A, *(Status(part, 0) for part in many[:-1]))
    field.hand.hear(B, Status(many[0], 0))
    assert field.hand.machine.sizes()["parts of a node"] == (MAX_PARTS_PER_NODE, MAX_PARTS_PER_NODE)
    notice, cut = field.hand.hear(A, Status(many[-1], 0))
    assert notice.kind == "fault"
    assert cut == Disconnect(A, "too-many")
    field.hand.hear(B, Leave(many[0]))
    field.hand.wait(SILENT_S)
    assert empty(field)


def test_the_parts_of_a_tracker_are_bounded() -> None:
    field = Field(directory=lambda part: PartSettings())
    for node in range(MAX_PARTS // MAX_PARTS_PER_NODE):
        parts = [StreamPart(f"{OWNER}/{node}/{n}", 0) for n in range(MAX_PARTS_PER_NODE)]
        field.hand.hear(NODES[node + 1], *(Status(part, 0) for part in parts))
    assert field.hand.machine.sizes()["tracked parts"] == (MAX_PARTS, MAX_PARTS)
    assert field.hand.hear(NODES[30], Status(PART, 0)) == []
    assert field.hand.machine.topology(PART) == {}
    assert field.hand.machine.sizes()["tracked parts"] == (MAX_PARTS, MAX_PARTS)


def test_the_pairs_set_apart_are_bounded_and_the_oldest_is_forgiven() -> None:
    field = ring()
    tracker, names = field.hand.machine, random.Random(1)
    state = tracker._parts[PART]
    pairs = [(names.randbytes(20), names.randbytes(20)) for _ in range(MAX_APART + 1)]
    for one, other in pairs:
        state.disputes.record((one, one), (other, other), field.hand.now)
    assert tracker.sizes()["pairs apart"] == (MAX_APART, MAX_APART)
    assert state.suitable(*pairs[0])
    assert not state.suitable(*pairs[1])


# --- A tracker that starts again ------------------------------------------------------------


def successor(field: Field) -> Field:
    """Start a tracker that knows nothing; the nodes are as they were."""
    fresh = Field(field.hand.machine._directory(PART).degree)
    fresh.hand.now = field.hand.now
    fresh.told = field.told.copy()
    return fresh


def test_a_new_tracker_takes_over_the_links_and_says_nothing() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    fresh.report(*NODES[1:21])
    assert fresh.hand.wait(GATHER_S + 1) == []
    assert fresh.hand.machine.topology(PART) == field.hand.machine.topology(PART)


def test_a_newcomer_that_is_first_at_a_new_tracker_disturbs_nobody() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    fresh.join(NODES[30])
    fresh.hand.wait(QUIET_S)
    fresh.report(*NODES[1:21])
    told = fresh.take(fresh.hand.wait(GATHER_S + 1))
    assert NODES[30] in told
    assert len(told) == 5  # the newcomer, and the ends of the two links it was put between
    assert len(fresh.hand.machine.topology(PART)[NODES[30]]) == 4


def test_those_who_do_not_come_to_the_new_tracker_are_replaced_after_a_while() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    fresh.report(*NODES[2:21])
    assert fresh.hand.wait(GATHER_AT_MOST_S * 0.9) == []
    told = fresh.take(fresh.hand.wait(GATHER_AT_MOST_S))
    assert set(told) <= set(field.hand.machine.topology(PART)[A])
    assert {len(n) for n in fresh.hand.machine.topology(PART).values()} == {4}


def test_who_is_spoken_of_is_waited_for_and_keeps_its_links() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    fresh.report(*NODES[2:21])
    assert fresh.hand.wait(GATHER_AT_MOST_S / 2) == []  # redialling, it may take that long
    fresh.report(A)
    assert fresh.hand.wait(GATHER_S) == []
    assert fresh.hand.machine.topology(PART) == field.hand.machine.topology(PART)


def test_nobody_waits_for_one_of_whom_nobody_speaks_any_more() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    lost = field.neighbours(A)
    fresh.report(*NODES[2:21])
    assert fresh.hand.wait(GATHER_S) == []
    for node in lost:
        fresh.report(node, missing=[A])
    told = fresh.take(fresh.hand.wait(GATHER_S))
    assert set(told) == set(lost)
    assert {len(n) for n in fresh.hand.machine.topology(PART).values()} == {4}


def test_who_comes_late_to_the_new_tracker_keeps_what_both_ends_report() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    late = NODES[20]
    fresh.report(*NODES[1:20])
    fresh.settle()
    fresh.hand.wait(GATHER_AT_MOST_S)
    fresh.settle()
    fresh.report(late)
    fresh.settle()
    assert {len(n) for n in fresh.hand.machine.topology(PART).values()} == {4}


def test_the_first_word_of_a_new_tracker_is_newer_than_the_last_of_the_old() -> None:
    field = Field()
    field.settle(A, B)
    fresh = successor(field)
    fresh.report(A)
    assert fresh.hand.wait(GATHER_AT_MOST_S + QUIET_S) == [
        Send(A, Instruction(PART, field.told[A].counter + LEAP))
    ]


def test_who_was_told_to_let_go_of_a_latecomer_is_told_to_keep_it() -> None:
    field = Field()
    field.settle(A, B)
    fresh = successor(field)
    fresh.report(B)
    assert fresh.take(fresh.hand.wait(GATHER_AT_MOST_S + QUIET_S)) == [B]
    assert fresh.neighbours(B) == ()
    fresh.report(A)
    assert B in fresh.take(fresh.hand.wait(QUIET_S))
    assert fresh.neighbours(B) == (A,)


def test_a_link_that_one_end_denies_is_made_anew() -> None:
    field = ring(20, 4)
    fresh = successor(field)
    peer = field.neighbours(A)[0]
    fresh.report(A)
    fresh.report(peer, missing=[A])
    fresh.report(*(node for node in NODES[2:21] if node != peer))
    told = [to for to, _ in sent(Instruction, fresh.hand.wait(GATHER_S + QUIET_S))]
    # Both have a slot open for the other: the link is made again, and the one that lacks it told.
    assert told == [peer]
    assert peer in fresh.hand.machine.topology(PART)[A]
