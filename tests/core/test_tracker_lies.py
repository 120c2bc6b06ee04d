"""What a node can gain by lying to its tracker: nothing that costs others more than a neighbour."""

import random

import pytest

from anabranch.core import tracked
from anabranch.core.disputes import WAIT_FIRST_S, WAIT_MOST_S
from anabranch.core.ids import NodeId
from anabranch.core.machine import Disconnect, LinkDown, LinkUp
from anabranch.core.messages import Instruction, Leave, Status
from anabranch.core.messages.tracker import MAX_COUNTER, MAX_NEIGHBOURS, MAX_RTT_US
from anabranch.core.overlay import PartSettings
from anabranch.core.tracked import LEAP, RETURNS, RETURNS_FOR_S
from anabranch.core.tracker import (
    AGAIN_S,
    COMPLAINTS,
    COMPLAINTS_FOR_S,
    GATHER_AT_MOST_S,
    MEND_EVERY_S,
    MOVE_EVERY_S,
    QUIET_S,
    RESTARTS,
    Tracker,
)
from anabranch.overlays import TOPOLOGIES
from machines import NODES, OTHER, PART, Field, Hand, beyond, of, sent

LIAR = NODES[1]
HONEST = NODES[2:14]
DEGREE = 4


def field(degree: int = DEGREE) -> Field:
    made = Field(degree)
    made.settle(LIAR, *HONEST)
    made.hand.wait(COMPLAINTS_FOR_S)
    made.report(LIAR, *HONEST)
    return made


def places(made: Field) -> dict[NodeId, tuple[NodeId, ...]]:
    return made.hand.machine.topology(PART)


def lie(made: Field, *neighbours: NodeId, counter: int = -1, **fields: object) -> list[NodeId]:
    """Let the liar report; return who is told anything because of it."""
    counter = made.told[LIAR].counter if counter < 0 else counter
    effects = made.hand.hear(LIAR, Status(PART, counter, neighbours, **fields))  # type: ignore[arg-type]
    assert effects == []
    return made.take(made.hand.wait(QUIET_S))


def test_neighbours_that_it_does_not_have_get_it_none() -> None:
    made = field()
    before = places(made)
    assert lie(made, *HONEST) == [LIAR]  # it hears again whom it should have
    assert places(made) == before


def test_nor_do_those_that_are_no_members_or_itself() -> None:
    made = field()
    before = places(made)
    strangers = [bytes([255, i]) * 10 for i in range(MAX_NEIGHBOURS - 1 - DEGREE)]
    assert lie(made, LIAR, *before[LIAR], *map(NodeId, strangers)) == [LIAR]
    assert places(made) == before
    assert beyond(made.hand.machine) == {}


def test_a_link_that_only_one_end_reports_is_not_taken_over() -> None:
    made = Field(DEGREE)  # a tracker that has just started
    for node in HONEST:
        made.hand.hear(node, Status(PART, 5, tuple(peer for peer in HONEST[:3] if peer != node)))
    made.hand.hear(LIAR, Status(PART, 5, tuple(HONEST)))
    assert places(made)[LIAR] == ()


def test_a_tracker_that_has_just_started_does_not_wait_for_ever_for_those_who_do_not_exist() -> (
    None
):
    made = Field(DEGREE)
    made.hand.hear(LIAR, Status(PART, 5, (NODES[39],)))
    made.join(*HONEST)
    effects = made.hand.wait(GATHER_AT_MOST_S + 1)
    assert {to for to, _ in sent(Instruction, effects)} >= set(HONEST)


def test_round_trips_change_nobodys_place_and_stand_under_its_own_name() -> None:
    made = field()
    before = places(made)
    assert lie(made, *before[LIAR], rtts_us=(MAX_RTT_US,) * MAX_NEIGHBOURS) == []
    assert places(made) == before
    rtts = made.hand.machine.rtts_us(PART)
    assert set(rtts) == {(LIAR, peer) for peer in before[LIAR]}


def test_anothers_address_is_told_to_its_own_neighbours_only_and_not_too_often() -> None:
    made = field()
    own = places(made)[LIAR]
    victim = "the.victim:1"
    told = lie(made, *own, address=victim)
    assert set(told) == {LIAR, *own}  # who dials changes, now that it can be dialled
    before = dict(made.told)
    for place in range(20):  # what it says too soon counts when it says so later
        assert lie(made, *own, address=f"{victim}{place}") == []
    made.hand.wait(MOVE_EVERY_S)
    assert set(lie(made, *own, address="another:1")) <= {LIAR, *own}
    others = [node for node in HONEST if node not in own]
    assert [made.told[node] for node in others] == [before[node] for node in others]


@pytest.mark.parametrize("counter", [1 << 40, MAX_COUNTER])
def test_a_counter_far_ahead_concerns_itself_alone(counter: int) -> None:
    made = field()
    before = places(made)
    assert lie(made, *before[LIAR], counter=counter) == [LIAR]
    assert made.told[LIAR].counter == counter + LEAP
    assert places(made) == before


def test_a_counter_beyond_the_last_is_a_fault() -> None:
    made = field()
    effects = made.hand.hear(LIAR, Status(PART, MAX_COUNTER + 1))
    assert of(Disconnect, effects) == [Disconnect(LIAR, "counter")]
    assert LIAR not in places(made)


def test_who_restarts_again_and_again_is_not_spared_for_ever() -> None:
    """One that never meets anybody would keep its place in others' lists."""
    made = field()
    victim = places(made)[LIAR][0]
    for _ in range(RESTARTS + 2):
        lie(made, counter=0)
        made.report(victim, missing=[LIAR])
        made.report(*made.take(made.hand.wait(AGAIN_S)))
    assert victim not in places(made)[LIAR]


def test_nor_is_one_whose_link_comes_and_goes() -> None:
    made = field()
    victim = places(made)[LIAR][0]
    for _ in range(RESTARTS + 2):
        made.hand(LinkDown(LIAR, "reset"), LinkUp(LIAR))
        lie(made, *places(made)[LIAR])
        made.report(victim, missing=[LIAR])
        made.report(*made.take(made.hand.wait(AGAIN_S)))
    assert victim not in places(made)[LIAR]


def test_node_that_rejects_all_neighbours_has_none_for_a_while() -> None:
    made = Field(2)
    made.settle(*NODES[1:40])
    made.hand.wait(AGAIN_S)
    met: dict[NodeId, None] = {}
    for _ in range(int(COMPLAINTS_FOR_S / QUIET_S) - 1):
        met |= dict.fromkeys(places(made)[LIAR])
        lie(made)  # it could reach none of them
    assert len(met) <= 2 + COMPLAINTS * 2
    assert places(made)[LIAR] == ()
    rejected = [node for node in NODES[2:40] if node in met]
    assert sum(2 - len(places(made)[node]) for node in rejected) <= 1
    keep_alive(made, WAIT_FIRST_S - 40.0)
    assert places(made)[LIAR] == ()
    keep_alive(made, WAIT_MOST_S)
    assert len(places(made)[LIAR]) == 2


def keep_alive(made: Field, seconds: float) -> None:
    """Let time pass in which every node reports the neighbours that it was told."""
    until = made.hand.now + seconds
    while made.hand.now < until:
        made.report(*made.take(made.hand.wait(10.0)))
        made.report(*made.told)


def test_dispute_reported_by_one_end_treats_both_alike() -> None:
    for liar_reports in (True, False):
        made = field()
        peer = places(made)[LIAR][0]
        if liar_reports:
            made.report(LIAR, missing=[peer])
        else:  # the liar claims the link and refuses it
            made.report(peer, missing=[LIAR])
            made.report(LIAR)
        after = places(made)
        disputes = made.hand.machine._parts[PART].disputes
        assert peer not in after[LIAR]
        assert LIAR not in after[peer]
        assert [disputes.users(node) for node in (LIAR, peer)] == [1, 1]
        assert {len(neighbours) for neighbours in after.values()} == {DEGREE}


def test_node_that_rejects_two_users_is_placed_last_and_they_are_not() -> None:
    made = field()
    first, second, *kept = places(made)[LIAR]
    made.report(LIAR, missing=[first, second])
    after = places(made)
    assert len(after[LIAR]) <= DEGREE - 1  # it may have got one before the second dispute
    assert set(kept) <= set(after[LIAR])
    assert len(after[first]) + len(after[second]) >= 2 * DEGREE - 1
    made.report(LIAR, *made.take(made.hand.wait(QUIET_S)))
    keep_alive(made, 60.0)
    assert len(places(made)[LIAR]) <= DEGREE - 1


@pytest.mark.parametrize("again", [Status(PART, 0), Leave(PART)])
def test_node_placed_last_that_restarts_or_returns_stays_last(again: Status | Leave) -> None:
    made = field()
    *rejected, _ = places(made)[LIAR]
    made.report(LIAR, missing=rejected)
    made.hand.wait(QUIET_S)
    disputes = made.hand.machine._parts[PART].disputes
    before = disputes.users(LIAR)
    assert before >= 3
    assert len(places(made)[LIAR]) <= 2
    made.hand.hear(LIAR, again, Status(PART, 0))
    assert disputes.users(LIAR) == before
    assert disputes.waits(LIAR)
    if type(again) is Status:
        keep_alive(made, MEND_EVERY_S + 20.0)
        assert len(places(made)[LIAR]) <= 2


def test_node_placed_last_that_has_lost_all_neighbours_gets_some() -> None:
    """It may have been cut off for a moment; only one that rejects very many is left alone."""
    made = field()
    made.report(LIAR, missing=places(made)[LIAR])
    made.take(made.hand.wait(QUIET_S))
    assert made.hand.machine._parts[PART].disputes.waits(LIAR)
    assert places(made)[LIAR]


def test_nodes_of_one_user_in_dispute_with_a_node_do_not_place_it_last() -> None:
    """Colluders of one user cannot take the slots of a victim by their number."""
    known = {PART: PartSettings(degree=DEGREE)}
    owner = dict.fromkeys(NODES[10:30], NODES[39])
    tracker = Tracker(
        NODES[0], known.get, random.Random(1), TOPOLOGIES, users=lambda n, now: owner.get(n)
    )
    made = Field(DEGREE)
    made.hand = Hand(tracker)
    made.settle(*NODES[1:30])
    made.hand.wait(AGAIN_S)
    victim = LIAR
    of_one = [peer for peer in places(made)[victim] if peer in owner]
    assert of_one
    for _ in range(6):
        for node in [peer for peer in places(made)[victim] if peer in owner]:
            made.report(node, missing=[victim])
            made.report(*made.take(made.hand.wait(QUIET_S)))
    disputes = tracker._parts[PART].disputes
    assert disputes.users(victim) == 1
    assert not disputes.waits(victim)


def test_a_status_for_one_part_says_nothing_of_another() -> None:
    made = field()
    before = places(made)
    made.hand.hear(LIAR, Status(OTHER, 3, tuple(HONEST)), Leave(OTHER))
    made.hand.wait(1)
    assert places(made) == before


def test_who_comes_and_goes_all_the_time_has_to_wait() -> None:
    """Every leaving and every joining would give some of the others new neighbours."""
    made = field()
    changed: dict[NodeId, None] = {}
    for _ in range(200):
        before = places(made)
        made.hand.hear(LIAR, Leave(PART), Status(PART, 0))
        changed |= {node: None for node in HONEST if places(made)[node] != before[node]}
    assert len(changed) <= 2 * DEGREE * (RETURNS + 1)
    assert LIAR not in places(made)
    made.report(*made.take(made.hand.wait(RETURNS_FOR_S)))
    lie(made, counter=0)
    assert len(places(made)[LIAR]) == DEGREE
    assert beyond(made.hand.machine) == {}


def test_who_leaves_and_is_back_is_not_kept_waiting() -> None:
    made = field()
    for _ in range(RETURNS):
        made.hand.hear(LIAR, Leave(PART), Status(PART, 0))
        assert len(places(made)[LIAR]) == DEGREE


def test_those_who_left_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked, "MAX_LEFT", 2)
    made = field()
    for node in HONEST[:5]:
        made.hand.hear(node, Leave(PART))
    assert made.hand.machine.sizes()["nodes that left"] == (2, 2)
