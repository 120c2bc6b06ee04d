"""The node side: carrying out the newest instruction, reporting it once, and flooding."""

import pytest

from anabranch.core.machine import Effect, Forward, Hold, Notice, Release, Send
from anabranch.core.messages import Bye, Contact, Instruction, Leave, Meet, Status
from anabranch.core.messages.tracker import MAX_RTT_US
from anabranch.core.overlay import Carried
from anabranch.overlays.membership import MAX_HOPS, MAX_LEAP
from anabranch.overlays.random_regular import (
    ATTEMPT_EVERY_S,
    FEW,
    SETTLE_S,
    STATUS_EVERY_S,
    RandomRegular,
)
from machines import NODES, OTHER, PART, SIGNERS, Chain, Member, head, of, sent

TRACKER = Contact(NODES[0], "tracker:1")
A, B, C, D, E, F, G = NODES[2:9]


def told(counter: int, *peers: bytes, dial: bool = False) -> Instruction:
    """Make an instruction to dial these peers, or to accept them."""
    if dial:
        return Instruction(PART, counter, tuple(Contact(p, f"{p.hex()}:1") for p in peers), ())
    return Instruction(PART, counter, (), peers)


def member(degree: int = 3) -> Member:
    """Make a node that has joined and reached its tracker."""
    node = Member(RandomRegular, 1, [TRACKER], degree)
    node.join()
    node.up(TRACKER.node)
    return node


def settled(*peers: bytes, degree: int = 3) -> Member:
    """Make a node that has had these neighbours for a while."""
    node = member(degree)
    node.hear(TRACKER.node, told(1, *peers))
    node.up(*peers)
    for peer in peers:
        node.hear(peer, Meet(PART))
    node.wait(4 * STATUS_EVERY_S)
    assert node.neighbours == sorted(peers)
    return node


def holds_of(effects: list[Effect]) -> list[bytes]:
    return [hold.peer for hold in of(Hold, effects)]


def statuses(effects: list[Effect]) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(status.counter, status.neighbours) for _, status in sent(Status, effects)]


def test_joining_holds_the_tracker_and_reports_to_it() -> None:
    node = Member(RandomRegular, 1, [TRACKER])
    assert node.join() == [Hold(TRACKER.node, "tracker:1")]
    report = Send(TRACKER.node, Status(PART, 0, (), (), "1:1"))
    assert node.up(TRACKER.node) == [report]
    assert node.up(A) == []
    assert node.wait(ATTEMPT_EVERY_S) == [report]  # again and again, until it is answered
    assert node.join(OTHER) == [
        Hold(TRACKER.node, "tracker:1"),
        Send(TRACKER.node, Status(OTHER, 0, (), (), "1:1")),
    ]


def test_a_stream_without_a_tracker_is_said_to_have_none() -> None:
    node = Member(RandomRegular, 1, [])
    (notice,) = node.join()
    assert isinstance(notice, Notice)
    assert notice.kind == "no-tracker"
    assert node.hear(A, told(1, B)) == []
    assert node.overlay.leave(PART, node.now) == []


def test_an_instruction_says_whom_to_dial_and_whom_to_accept() -> None:
    node = settled(D, degree=4)
    node.up(C)
    both = (Contact(A, "a:1"), Contact(C, "c:1"))
    assert node.hear(TRACKER.node, Instruction(PART, 2, both, (B, D, node.me.node))) == [
        Hold(A, "a:1", True),
        Hold(C, "c:1", True),
        Send(C, Meet(PART, False, 0)),
        Hold(B, "", False),
    ]


def test_one_status_follows_when_all_have_met() -> None:
    node = member()
    node.hear(TRACKER.node, told(1, A, B))
    effects = node.up(A, B)
    assert [to for to, _ in sent(Meet, effects)] == [A, B]
    effects = node.hear(A, Meet(PART))
    assert statuses(effects) == []
    effects = node.hear(B, Meet(PART))
    assert statuses(effects) == [(1, (A, B))]
    assert statuses(node.wait(STATUS_EVERY_S - 0.1)) == []
    assert statuses(node.wait(0.1)) == [(1, (A, B))]


def test_an_instruction_to_have_nobody_is_carried_out_at_once() -> None:
    assert statuses(member().hear(TRACKER.node, told(1))) == [(1, ())]


def test_what_fails_is_reported_without_delay() -> None:
    node = member()
    node.hear(TRACKER.node, told(1, A, B))
    node.up(A)
    assert statuses(node.hear(A, Meet(PART))) == []
    assert statuses(node.down(B)) == [(1, (A,))]


def test_what_neither_stands_nor_fails_is_reported_in_the_end() -> None:
    node = member()
    node.hear(TRACKER.node, told(1, A, B))
    node.up(A)
    node.hear(A, Meet(PART))
    assert statuses(node.wait(SETTLE_S - 0.1)) == []
    assert statuses(node.wait(0.1)) == [(1, (A,))]


def test_the_newest_instruction_wins_and_is_answered_once() -> None:
    node = member()
    node.up(A, B)
    node.hear(TRACKER.node, told(1, A))
    node.hear(TRACKER.node, told(4, B))
    for stale in (told(3, C), told(4, C), told(0, C)):
        assert node.hear(TRACKER.node, stale) == []
    assert statuses(node.hear(A, Meet(PART))) == []
    assert statuses(node.hear(B, Meet(PART))) == [(4, (B,))]
    assert statuses(node.wait(SETTLE_S)) == []


@pytest.mark.parametrize("sender", [A, NODES[20]])
def test_only_the_tracker_instructs(sender: bytes) -> None:
    node = settled(A)
    node.up(sender)
    assert node.hear(sender, told(9, B)) == []
    assert node.neighbours == [A]


def test_more_neighbours_than_the_degree_are_refused() -> None:
    node = settled(A, B)
    (notice,) = node.hear(TRACKER.node, told(2, A, C, D, E))
    assert isinstance(notice, Notice)
    assert notice.kind == "bad-instruction"
    assert node.neighbours == [A, B]
    assert of(Hold, node.hear(TRACKER.node, told(2, A, C, D))) == [
        Hold(C, "", False),
        Hold(D, "", False),
    ]


def test_a_status_has_the_round_trips() -> None:
    node = member()
    node.hear(TRACKER.node, told(1, A, B, C))
    node.up(A, B, C)
    for peer, seconds in ((A, 0.0123), (B, 1e9), (C, 0.5), (D, 0.1)):
        node.overlay.rtt(peer, seconds, 0.0)
    node.down(C)
    assert set(node.overlay._rtts_us) == {A, B, D}
    effects = [effect for peer in (A, B) for effect in node.hear(peer, Meet(PART))]
    ((_, status),) = sent(Status, effects)
    assert (status.neighbours, status.rtts_us) == ((A, B), (12_300, MAX_RTT_US))
    node.up(C)
    node.hear(C, Meet(PART))
    ((_, status),) = sent(Status, node.wait(STATUS_EVERY_S))
    assert status.rtts_us == (12_300, MAX_RTT_US, 0)


# --- Changing neighbours --------------------------------------------------------------------


def test_old_neighbours_are_kept_until_the_new_ones_stand() -> None:
    node = settled(A, B)
    node.up(C)
    effects = node.hear(TRACKER.node, told(2, B, C))
    assert effects == [Hold(C, "", False), Send(C, Meet(PART, False, 0))]
    assert node.neighbours == [A, B]
    assert node.overlay.accepts(PART, A)
    assert node.hear(C, Meet(PART, True)) == [
        Send(A, Bye(PART)),
        Release(A),
        Send(TRACKER.node, Status(PART, 2, (B, C), (0, 0), "1:1")),
    ]
    assert node.neighbours == [B, C]
    assert not node.overlay.accepts(PART, A)


def test_old_neighbours_are_kept_until_the_new_ones_have_failed() -> None:
    node = settled(A)
    node.hear(TRACKER.node, told(2, B))
    assert node.neighbours == [A]
    assert node.wait(SETTLE_S) == [
        Send(A, Bye(PART)),
        Release(A),
        Send(TRACKER.node, Status(PART, 2, (), (), "1:1")),
    ]
    assert node.neighbours == []


def test_an_old_neighbour_that_is_told_again_was_never_let_go() -> None:
    node = settled(A)
    node.hear(TRACKER.node, told(2, B))
    effects = node.hear(TRACKER.node, told(3, A))
    assert effects == [
        Send(A, Meet(PART, False, 0)),
        Release(B),
        Send(TRACKER.node, Status(PART, 3, (A,), (0,), "1:1")),
    ]
    assert node.neighbours == [A]


def test_an_old_neighbour_that_goes_first_is_released() -> None:
    node = settled(A, B)
    node.hear(TRACKER.node, told(2, C))
    assert node.hear(A, Bye(PART)) == [Release(A)]
    assert node.down(B) == [Release(B)]
    assert node.neighbours == []
    assert of(Release, node.wait(SETTLE_S)) == []


def test_instructions_that_come_faster_than_links_leave_no_heap_of_neighbours() -> None:
    node = settled(A, B, C)
    holds = {A: 1, B: 1, C: 1}
    for counter in range(2, 60):
        peers = [NODES[2 + (3 * counter + i) % 30] for i in range(3)]
        for effect in node.hear(TRACKER.node, told(counter, *peers)):
            if type(effect) in (Hold, Release):
                change = 1 if type(effect) is Hold else -1
                holds[effect.peer] = holds.get(effect.peer, 0) + change
        assert sum(holds.values()) <= 6
        assert set(holds.values()) <= {0, 1}
        assert all(size <= bound for size, bound in node.overlay.sizes().values())
        node.wait(SETTLE_S / 2)


def test_of_many_old_neighbours_the_latest_are_kept() -> None:
    node = settled(A, B, degree=2)
    for counter, peer in ((2, C), (3, D), (4, E)):
        node.hear(TRACKER.node, told(counter, peer, F))
        assert len(node.neighbours) == 2
        node.up(peer)
        node.hear(peer, Meet(PART))
    assert node.neighbours == [C, D, E]
    assert statuses(node.wait(SETTLE_S)) == [(4, (E,))]
    assert node.neighbours == [E]


def test_a_counter_that_would_leave_no_room_is_refused() -> None:
    node = settled(A)
    (notice,) = node.hear(TRACKER.node, told(2 + MAX_LEAP, B))
    assert isinstance(notice, Notice)
    assert notice.kind == "bad-instruction"
    assert holds_of(node.hear(TRACKER.node, told(1 + MAX_LEAP, B))) == [B]


def test_a_neighbour_with_a_new_address_is_dialled_there() -> None:
    node = member()
    node.hear(TRACKER.node, told(1, A, B, dial=True))
    node.up(B)
    moved = Instruction(PART, 2, (Contact(A, "moved:2"), Contact(B, "moved:2")), ())
    assert node.hear(TRACKER.node, moved) == [Hold(A, "moved:2"), Release(A)]


def test_a_neighbour_that_is_lost_meanwhile_is_not_reported_before_the_rest_is_done() -> None:
    node = settled(A, B)
    node.hear(TRACKER.node, told(2, A, B, C))
    node.down(B)
    assert statuses(node.wait(SETTLE_S - 0.1)) == []
    assert statuses(node.wait(0.1)) == [(2, (A,))]


# --- Leaving --------------------------------------------------------------------------------


def test_leaving_says_so_and_lets_go_of_all() -> None:
    node = settled(A, B)
    node.down(B)
    node.hear(TRACKER.node, told(2, B, C))
    assert node.overlay.leave(PART, node.now) == [
        Send(TRACKER.node, Leave(PART)),
        Release(TRACKER.node),
        Release(B),
        Release(C),
        Send(A, Bye(PART)),
        Release(A),
    ]
    assert node.overlay.wakeup_at is None
    assert node.overlay.neighbours(PART) == ()
    assert node.wait(60) == []


def test_two_parts_have_nothing_to_do_with_each_other() -> None:
    node = settled(A, B)
    node.join(OTHER)
    instruction = Instruction(OTHER, 1, (), (B, C))
    assert [hold.peer for hold in of(Hold, node.hear(TRACKER.node, instruction))] == [B, C]
    node.hear(B, Meet(OTHER))
    node.hear(B, Bye(PART))
    assert node.neighbours == [A]
    assert list(node.overlay.neighbours(OTHER)) == [B]
    node.overlay.leave(PART, node.now)
    assert list(node.overlay.neighbours(OTHER)) == [B]
    assert node.overlay.wakeup_at is not None


# --- Flooding -------------------------------------------------------------------------------


def carried(frame: bytes, hops: int = 1) -> Carried:
    return Carried(head(frame), bytes([hops]), frame)


def test_a_frame_goes_to_all_but_where_it_came_from() -> None:
    node, frame = settled(C, A, B), Chain(SIGNERS[9]).frame()
    (forward,) = node.overlay.carry(PART, carried(frame, 3), B, True, node.now)
    assert forward == Forward(1, head(frame), [(A, b"\4"), (C, b"\4")], frame)
    (forward,) = node.overlay.publish(PART, carried(frame), node.now)
    everybody = [(A, b"\1"), (B, b"\1"), (C, b"\1")]
    assert forward == Forward(1, head(frame), everybody, frame)


def test_what_comes_from_who_made_it_goes_on_first_hand() -> None:
    node, chain = settled(C, A, B), Chain(SIGNERS[9])
    for hops, is_first_hand in ((1, True), (2, False), (MAX_HOPS, False)):
        (forward,) = node.overlay.carry(PART, carried(chain.frame(), hops), B, True, node.now)
        assert forward.is_first_hand == is_first_hand


@pytest.mark.parametrize(("others", "is_first_hand"), [(FEW, True), (FEW + 1, False)])
def test_among_many_neighbours_some_are_likely_to_have_it(others: int, is_first_hand: bool) -> None:
    peers = [bytes([number]) * 20 for number in range(1, others + 2)]
    node, frame = settled(*peers, degree=others + 1), Chain(SIGNERS[9]).frame()
    (forward,) = node.overlay.carry(PART, carried(frame), peers[0], True, node.now)
    assert len(forward.branches) == others
    assert forward.is_first_hand == is_first_hand


def test_hops_do_not_overflow() -> None:
    node, frame = settled(A, B), Chain(SIGNERS[9]).frame()
    (forward,) = node.overlay.carry(PART, carried(frame, MAX_HOPS), B, True, node.now)
    assert forward.branches == [(A, bytes([MAX_HOPS]))]
    assert node.overlay.hops(b"\7\1\2") == 7
    assert node.overlay.hops(b"") == 0


def test_with_nobody_there_nothing_goes_anywhere() -> None:
    node, frame = settled(A), Chain(SIGNERS[9]).frame()
    assert node.overlay.carry(PART, carried(frame), A, True, node.now) == []
    node.down(A)
    assert node.overlay.publish(PART, carried(frame), node.now) == []


def test_what_does_not_concern_it_is_ignored() -> None:
    node = settled(A)
    for message in (Leave(PART), Status(PART, 7)):
        assert node.hear(A, message) == []


def test_node_that_nobody_can_dial_reports_it_at_once_and_without_an_address() -> None:
    node = Member(RandomRegular, 1, [TRACKER], 3)
    node.join()
    node.up(TRACKER.node)
    effects = node.overlay.advertise("", False, node.now)
    assert sent(Status, effects) == [(TRACKER.node, Status(PART, 0, dialable=False))]
    effects = node.overlay.advertise("ws://home:1", True, node.now)
    assert sent(Status, effects) == [(TRACKER.node, Status(PART, 0, address="ws://home:1"))]
