"""Changes made at the same time: revocation wins, and all who have them agree."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.core.changes import (
    PUBLIC,
    CreateStream,
    DeleteStream,
    EditStream,
    Right,
    SetPermission,
    SetTrackers,
)
from anabranch.core.errors import LocalError
from anabranch.core.history import make_change
from anabranch.core.ids import NodeId
from anabranch.core.messages.registry import NETWORK
from anabranch.core.registry import Permission
from chains import ENTRIES, OWNER, Writer
from machines import NODES, SIGNERS, START

ANN, BEN, CYN = SIGNERS[1:4]
DAN = NODES[9]
P, S, G = Right.PUBLISH, Right.SUBSCRIBE, Right.GRANT
NOW_MS = int(START * 1000)


def fork(*actions: Any) -> tuple[Writer, Writer]:
    """Return two who cannot see each other, and who know of a stream and these actions."""
    ours = Writer().add(CreateStream(), *actions)
    return ours, ours.fork()


def heal(ours: Writer, theirs: Writer) -> Any:
    """Let both have all changes; return what follows, of which they must not differ."""
    mine, yours = list(ours.changes), list(theirs.changes)
    ours.take(*yours)
    theirs.take(*mine)
    assert ours.history.head == theirs.history.head
    assert vars(ours.state) == vars(theirs.state)
    return ours.state


@pytest.mark.parametrize("held", [0, P, P | S])
def test_a_grant_and_a_concurrent_revocation_leave_nothing(held: int) -> None:
    ours, theirs = fork(*([SetPermission(DAN, held)] if held else []))
    ours.add(SetPermission(DAN, P | S | G))
    theirs.add(SetPermission(DAN, 0))
    assert DAN not in heal(ours, theirs).permissions


def test_what_is_left_by_a_revocation_stays() -> None:
    ours, theirs = fork(SetPermission(DAN, P | S))
    ours.add(SetPermission(DAN, P | S | G))
    theirs.add(SetPermission(DAN, S))
    assert heal(ours, theirs).permissions[DAN] == Permission(S)


def test_changes_are_counted_alike_by_all_who_have_them() -> None:
    ours, theirs = fork(SetPermission(DAN, S))
    before = ours.state.changes
    assert before > 0
    ours.add(EditStream(metadata="one"))
    ours.add(SetPermission(DAN, P))
    theirs.add(EditStream(metadata="two"))
    assert (ours.state.changes, theirs.state.changes) == (before + 2, before + 1)
    assert heal(ours, theirs).changes == before + 3


def test_grants_of_two_at_the_same_time_add_up() -> None:
    ours, theirs = fork()
    ours.add(SetPermission(DAN, P, NOW_MS + 9_000))
    theirs.add(SetPermission(DAN, S, NOW_MS + 5_000))
    assert heal(ours, theirs).permissions[DAN] == Permission(P | S, NOW_MS + 5_000)


def test_a_grant_that_was_made_in_knowledge_of_the_revocation_holds() -> None:
    ours, theirs = fork(SetPermission(DAN, P))
    ours.add(SetPermission(DAN, 0), SetPermission(DAN, S))
    theirs.add(EditStream(metadata="unrelated"))
    assert heal(ours, theirs).permissions[DAN] == Permission(S)


def test_after_the_branches_met_a_new_grant_holds() -> None:
    ours, theirs = fork(SetPermission(DAN, P))
    ours.add(SetPermission(DAN, P | S))
    theirs.add(SetPermission(DAN, 0))
    heal(ours, theirs)
    ours.add(SetPermission(DAN, P))
    assert heal(ours, theirs).permissions[DAN] == Permission(P)


def test_a_permission_is_extended_beside_something_unrelated() -> None:
    ours, theirs = fork(SetPermission(DAN, P, NOW_MS + 1_000))
    ours.add(SetPermission(DAN, P, NOW_MS + 9_000))
    theirs.add(SetPermission(CYN.node, P))
    assert heal(ours, theirs).permissions[DAN] == Permission(P, NOW_MS + 9_000)


def test_who_is_removed_gives_nothing_at_the_same_time() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G))
    ours.add(SetPermission(ANN.node, 0))
    theirs.add(SetPermission(DAN, P), SetPermission(ANN.node, G | P), signer=ANN)
    assert heal(ours, theirs).permissions == {}


def test_what_hangs_on_a_grant_that_came_to_nothing_comes_to_nothing() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G))
    ours.add(SetPermission(ANN.node, 0))
    theirs.add(SetPermission(BEN.node, G), signer=ANN)
    theirs.add(SetPermission(DAN, P), signer=BEN)
    assert heal(ours, theirs).permissions == {}


def test_who_is_removed_takes_away_all_the_same() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G), SetPermission(DAN, P))
    ours.add(SetPermission(ANN.node, 0))
    batch = [SetPermission(DAN, 0), SetPermission(CYN.node, P)]
    theirs.take(make_change(ANN, theirs.history, batch, START))
    assert heal(ours, theirs).permissions == {}


def test_two_who_remove_each_other_are_both_removed() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G), SetPermission(BEN.node, G))
    ours.add(SetPermission(BEN.node, 0), signer=ANN)
    theirs.add(SetPermission(ANN.node, 0), signer=BEN)
    assert heal(ours, theirs).permissions == {}


def test_nobody_removes_the_owner() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G))
    ours.add(SetPermission(OWNER.node, 0), SetPermission(PUBLIC, 0), signer=ANN)
    theirs.add(SetPermission(DAN, P))
    state = heal(ours, theirs)
    assert state.permissions[DAN] == Permission(P)
    assert all(state.may(OWNER.node, right, START) for right in Right)


def test_a_right_that_everybody_had_is_taken_from_who_relied_on_it() -> None:
    ours, theirs = fork(SetPermission(PUBLIC, G), SetPermission(BEN.node, G))
    ours.add(SetPermission(PUBLIC, 0))
    theirs.add(SetPermission(CYN.node, P), signer=ANN)
    theirs.add(SetPermission(DAN, P), signer=BEN)
    assert set(heal(ours, theirs).permissions) == {BEN.node, DAN}


def test_deleting_wins_over_everything() -> None:
    ours, theirs = fork(SetPermission(ANN.node, 31))
    ours.add(DeleteStream(), signer=ANN)
    theirs.add(SetPermission(DAN, P), EditStream(metadata="x"))
    state = heal(ours, theirs)
    assert (state.created, state.permissions) == (None, {})
    ours.add(CreateStream(3))
    assert heal(ours, theirs).created == CreateStream(3)


def test_stream_deleted_and_created_beside_another_deletion_stays_deleted() -> None:
    ours, theirs = fork(SetPermission(BEN.node, Right.DELETE))
    ours.add(DeleteStream())
    theirs.add(DeleteStream(), signer=BEN)
    theirs.add(CreateStream(public=S))
    state = heal(ours, theirs)
    assert (state.created, state.permissions) == (None, {})


def test_who_is_removed_deletes_nothing() -> None:
    ours, theirs = fork(SetPermission(ANN.node, G), SetPermission(BEN.node, Right.DELETE))
    ours.add(SetPermission(ANN.node, 0), SetPermission(BEN.node, 0), SetPermission(DAN, S))
    bomb = [SetPermission(ANN.node, 31), DeleteStream()]
    theirs.take(make_change(ANN, theirs.history, bomb, START))
    state = heal(ours, theirs)
    assert state.created is not None
    assert state.permissions == {DAN: Permission(S)}
    ours, theirs = fork(SetPermission(BEN.node, Right.DELETE))
    ours.add(SetPermission(BEN.node, 0), EditStream(metadata="kept"))
    theirs.add(DeleteStream(), signer=BEN)
    assert heal(ours, theirs).created == CreateStream(metadata="kept")


def test_a_stream_that_is_made_private_is_not_created_public_at_the_same_time() -> None:
    ours, theirs = fork(SetPermission(PUBLIC, S))
    ours.add(SetPermission(PUBLIC, 0))
    theirs.add(DeleteStream())
    theirs.add(CreateStream(public=S | P))
    state = heal(ours, theirs)
    assert state.created is not None
    assert PUBLIC not in state.permissions


def test_two_who_renew_what_had_expired_renew_it() -> None:
    ours, theirs = fork(SetPermission(DAN, P, NOW_MS + 1_000))
    for writer, ends_ms in ((ours, NOW_MS + 9_000), (theirs, NOW_MS + 8_000)):
        writer.add(SetPermission(DAN, P, ends_ms), at=START + 2)
    assert heal(ours, theirs).permissions[DAN] == Permission(P, NOW_MS + 8_000)


def test_a_fork_of_many_changes_is_resolved_in_one_go() -> None:
    ours, theirs = fork()
    for at in range(400):
        ours.add(SetPermission(NodeId(at.to_bytes(20)), P))
        theirs.add(SetPermission(NodeId((at + 1000).to_bytes(20)), P))
    assert len(heal(ours, theirs).permissions) == 800


def test_a_stream_created_on_both_sides_is_one_of_them() -> None:
    ours, theirs = Writer(), Writer()
    ours.add(CreateStream(3), SetPermission(DAN, P))
    theirs.add(CreateStream(5), SetPermission(CYN.node, S))
    state = heal(ours, theirs)
    assert state.created.partitions in (3, 5)
    assert set(state.permissions) == {DAN, CYN.node}


def test_of_two_lists_of_trackers_one_holds() -> None:
    ours = Writer(NETWORK).add(SetTrackers(ENTRIES))
    theirs = ours.fork()
    ours.add(SetTrackers(ENTRIES[:1]))
    theirs.add(SetTrackers(ENTRIES[1:]))
    assert heal(ours, theirs).trackers in (ENTRIES[:1], ENTRIES[1:])


PEOPLE = [OWNER, ANN, BEN, CYN]
ACTIONS = st.one_of(
    st.builds(
        SetPermission,
        st.sampled_from([ANN.node, BEN.node, CYN.node, PUBLIC]),
        st.sampled_from([0, 0, P, G, P | G, 31]),
    ),
    st.builds(EditStream, metadata=st.sampled_from("abc")),
    st.just(DeleteStream()),
    st.just(CreateStream()),
)
# Somebody acts at one of three trackers, or one tracker hears all that another has.
STEPS = st.one_of(
    st.tuples(st.integers(0, 2), st.integers(0, 3), ACTIONS),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
)


@settings(max_examples=200)
@given(st.lists(STEPS, max_size=30), st.permutations([0, 1, 2]))
def test_all_who_have_the_same_changes_agree(steps: list[Any], order: list[int]) -> None:
    base = Writer().add(CreateStream(), SetPermission(ANN.node, G), SetPermission(BEN.node, 31))
    trackers = [base.fork() for _ in range(3)]
    for step in steps:
        if len(step) == 2:
            trackers[step[0]].take(*trackers[step[1]].changes)
            continue
        at, who, action = step
        try:
            trackers[at].add(action, signer=PEOPLE[who])
        except LocalError:
            continue
    for at in (*order, *order):
        for other in trackers:
            trackers[at].take(*other.changes)
    assert len({tracker.history.head for tracker in trackers}) == 1
    states = [vars(tracker.state) for tracker in trackers]
    assert states[0] == states[1] == states[2]
    fresh = Writer().take(*trackers[0].changes)
    assert (fresh.history.head, vars(fresh.state)) == (trackers[0].history.head, states[0])


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), ACTIONS), max_size=12),
    st.sampled_from([ANN, BEN]),
)
def test_nothing_gives_back_what_was_taken_at_the_same_time(steps: list[Any], whom: Any) -> None:
    ours, theirs = fork(SetPermission(ANN.node, G | P), SetPermission(BEN.node, G | P))
    ours.add(SetPermission(whom.node, 0))  # the owner, once and for all on this side
    for on_ours, who, action in steps:
        writer = ours if on_ours else theirs
        gives = isinstance(action, SetPermission) and action.node in (whom.node, PUBLIC)
        if (on_ours and gives) or isinstance(action, DeleteStream):
            continue
        try:
            writer.add(action, signer=PEOPLE[who])
        except LocalError:
            continue
    state = heal(ours, theirs)
    assert whom.node not in state.permissions
