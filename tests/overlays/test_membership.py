"""A node's place in an overlay: the ways through it are remembered, within a bound."""

from anabranch.overlays.membership import HOPS, MAX_HOPS, MAX_ONWARD, Membership
from machines import NODES, PART

A, B, C = NODES[2:5]


def member() -> Membership:
    made = Membership(PART, 3, (), None)
    for peer in (A, B, C):
        made.wanted[peer] = made.met[peer] = None
    made.reflood(30.0, 0.0)
    return made


def test_a_frame_goes_on_to_all_but_who_brought_it() -> None:
    made = member()
    assert made.branches(B, HOPS[4]) == [(A, HOPS[5]), (C, HOPS[5])]
    assert made.branches(B, HOPS[4]) is made.branches(B, HOPS[4])
    assert made.branches(NODES[9], HOPS[MAX_HOPS]) == [(p, HOPS[MAX_HOPS]) for p in (A, B, C)]
    assert made.branches(A, b"") == [(B, HOPS[1]), (C, HOPS[1])]


def test_when_neighbours_change_so_do_the_ways() -> None:
    made = member()
    before = made.branches(A, HOPS[1])
    del made.met[C]
    made.reflood(30.0, 1.0)
    assert made.branches(A, HOPS[1]) == [(B, HOPS[2])] != before


def test_no_more_ways_are_remembered_than_there_is_room_for() -> None:
    made = member()
    for hops in range(MAX_HOPS):
        for peer in (A, B):
            made.branches(peer, HOPS[hops])
            assert len(made.onward) <= MAX_ONWARD
