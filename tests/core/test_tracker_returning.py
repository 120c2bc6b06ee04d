"""Nodes that were gone for a moment, and what a tracker makes of what is said of them."""

from anabranch.core.machine import LinkDown, LinkUp
from anabranch.core.messages import Contact, Leave, Status
from anabranch.core.tracker import AGAIN_S, QUIET_S
from machines import NODES, PART, Field

A, B, C = NODES[1:4]


def test_who_leaves_and_is_back_elsewhere_at_once_is_dialled_there() -> None:
    field = Field()
    field.settle(A, B, C)
    # Its neighbours have not heard that it left, and are its neighbours again.
    field.hand.hear(C, Leave(PART))
    field.hand.hear(C, Status(PART, 0, address="c:2"))
    told = field.take(field.hand.wait(QUIET_S))
    assert sorted(told) == [A, B, C]
    for node in (A, B):
        assert Contact(C, "c:2") in field.told[node].connect


def test_who_lost_us_is_not_parted_from_neighbours_it_lost_as_well() -> None:
    """A machine that changes networks loses all its links, and has them again in a second."""
    field = Field(degree=2)
    field.settle(*NODES[1:8])
    lost = field.neighbours(A)
    field.hand(LinkDown(A, "lost"), LinkUp(A))
    field.report(A, missing=lost)
    field.report(*lost, missing=[A])
    assert field.hand.wait(QUIET_S) == []
    assert field.hand.machine.neighbours(PART, A) == lost
    field.hand.wait(AGAIN_S)
    field.report(A, missing=lost[:1])  # in the end it is believed
    field.take(field.hand.wait(QUIET_S))
    assert lost[0] not in field.hand.machine.neighbours(PART, A)
