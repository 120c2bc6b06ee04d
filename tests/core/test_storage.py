"""A storage node's business: which logs it keeps, with whom, and what it takes from whom."""

import pytest

from anabranch.core.chain_order import WAIT_S
from anabranch.core.changes import CreateStream, Right
from anabranch.core.errors import RemoteError
from anabranch.core.ids import StreamPart
from anabranch.core.machine import Hold, Notice, Release, Send
from anabranch.core.messages import AskStored, Fetch, Hand, Lead, Resend, Vote, Voted
from anabranch.core.messages.registry import NETWORK, NO_HASH
from anabranch.core.messages.storage import Selection
from anabranch.core.storage import MAX_LOGS
from anabranch.core.store import Delete, Keep
from machines import NODES, OTHER, PART, SIGNERS, START, Chain, beyond, forged, of, sent
from storage_desk import PUBLISHERS, READER, STRANGER, Desk, name_of

ONE, TWO, NEW = NODES[1], NODES[2], NODES[9]


def alone() -> Desk:
    """A storage node that is the only one of its stream, and leads."""
    desk = Desk(size=1)
    desk.wait(0.0)
    desk.settle()
    return desk


# --- Which logs there are -------------------------------------------------------------------


def test_it_keeps_all_partitions_of_a_stream_that_names_it_and_holds_the_others() -> None:
    desk = Desk(links=False)
    assert of(Hold, desk.first) == [Hold(ONE, "1:1"), Hold(TWO, "2:1")]
    desk.registry.name(range(3), partitions=3)
    assert desk.learn() == []
    assert desk.machine.parts() == [StreamPart(PART.stream, n) for n in range(3)]
    assert desk.status.primary is None


def test_a_stream_that_does_not_name_it_is_nothing_to_it() -> None:
    desk = Desk(place=5)
    assert desk.first == []
    assert (desk.machine.parts(), desk.machine.status(PART)) == ([], None)
    assert desk.take(Chain(PUBLISHERS[0]).frame()) == []
    assert desk.wait(60) == []
    assert desk.writes == []


def test_holds_are_balanced_whatever_becomes_of_the_list() -> None:
    desk = Desk()
    held = {effect.peer: 1 for effect in of(Hold, desk.first)}
    for places in ((0, 1, 9), (0,), (9, 0), (1, 2), (0, 1, 2), ()):
        desk.registry.name(places)
        for effect in desk.learn() + desk.learn(NETWORK):
            if type(effect) in (Hold, Release):
                held[effect.peer] = held.get(effect.peer, 0) + (1 if type(effect) is Hold else -1)
        expected = {NODES[place] for place in places if place} if 0 in places else set()
        assert {node for node, count in held.items() if count} == expected
        assert all(count in (0, 1) for count in held.values())


def test_a_new_address_is_held_before_the_old_one_is_let_go() -> None:
    desk = Desk()
    entries = list(desk.registry.storage)
    entries[1] = type(entries[1])(ONE, "elsewhere:1")
    desk.registry.storage = tuple(entries)
    assert desk.learn(NETWORK) == [Hold(ONE, "elsewhere:1"), Release(ONE)]


def test_who_is_named_no_more_stops_and_keeps_its_data() -> None:
    desk = alone()
    desk.take(Chain(PUBLISHERS[0]).frame())
    desk.save()
    desk.registry.name((1, 2))
    desk.learn()
    assert (desk.machine.parts(), desk.machine.status(PART)) == ([], None)
    assert desk.take(Chain(PUBLISHERS[0]).frame(at=START + 1)) == []
    assert desk.hear(ONE, Vote(PART, 9, 9, 9, True)) == []
    assert desk.wait(60) == []
    assert (desk.writes, len(desk.log)) == ([], 1)
    desk.registry.name((0,))
    desk.learn()
    desk.wait(0.0)
    desk.settle()
    assert (desk.status.epoch, desk.status.high) == (2, 1)


def test_a_primary_counts_those_who_are_named_now() -> None:
    desk = Desk()
    desk.wait(3.0)
    desk.hear(ONE, Voted(PART, 1, True, False), Voted(PART, 1, True, True))
    desk.settle()
    desk.take(Chain(PUBLISHERS[0]).frame())
    desk.save()
    assert (desk.status.primary, desk.status.high) == (NODES[0], 0)
    desk.registry.name((0, 9))
    desk.learn()
    assert Send(NEW, Lead(PART, 1, 0)) in desk.link(NEW) + desk.wait(1.0)
    doubts = desk.registry.doubts
    assert desk.hear(ONE, Fetch(PART, 1, 1, desk.state.hash, 0, 1)) == []
    assert (desk.status.high, desk.registry.doubts) == (0, doubts + 1)
    desk.hear(NEW, Fetch(PART, 1, 1, desk.state.hash, 0, 1))
    assert desk.status.high == 1
    desk.registry.name((0,))
    desk.learn()
    desk.take(Chain(PUBLISHERS[1]).frame())
    desk.save()
    assert desk.status.high == 2


def test_a_deleted_stream_is_deleted_once_the_registry_has_said_so_again() -> None:
    desk = alone()
    desk.take(Chain(PUBLISHERS[0]).frame())
    desk.save()
    desk.registry.state.created = None
    released = desk.learn()
    assert (released, desk.registry.doubts, desk.machine.parts()) == ([], 1, [])
    assert desk.take(Chain(PUBLISHERS[0]).frame(at=START + 1)) == []
    desk.wait(25)
    assert (desk.registry.doubts, desk.writes) == (3, [])
    desk.registry.confirmed = desk.now
    desk.learn()
    assert desk.written == [Delete(PART)]
    desk.save("no")
    desk.wait(1.0)
    desk.save()
    assert (desk.store.states(), desk.machine.parts()) == ([], [])
    desk.registry.state.created = CreateStream(storage=(NODES[0],))
    desk.learn()
    desk.wait(0.0)
    desk.settle()
    assert desk.status.primary == NODES[0]


def test_a_deletion_waits_for_the_write_that_is_under_way() -> None:
    desk = alone()
    desk.take(Chain(PUBLISHERS[0]).frame())
    desk.registry.state.created = None
    desk.learn()
    desk.now += 1
    desk.registry.confirmed = desk.now
    desk.learn()
    assert len(desk.writes) == 1
    desk.save()
    assert desk.written == [Delete(PART)]
    desk.save()
    assert desk.store.states() == []
    assert desk.machine.sizes()["unsaved bytes"][0] == 0


def test_a_stream_that_is_created_anew_while_it_is_being_deleted_is_kept_from_then_on() -> None:
    desk = alone()
    desk.take(Chain(PUBLISHERS[0]).frame())
    desk.save()
    desk.hear(READER, Resend(1, PART, Selection()))  # whose answer comes late
    desk.registry.state.created = None
    desk.learn()
    desk.now += 1
    desk.registry.confirmed = desk.now
    desk.learn()
    desk.registry.state.created = CreateStream(storage=(NODES[0],))
    desk.learn()
    frame = Chain(PUBLISHERS[0]).frame(at=START + 1)
    desk.take(frame)
    assert desk.written == [Delete(PART)]
    desk.save()
    assert desk.machine.sizes()["unsaved bytes"][0] == 0
    assert desk.machine.parts() == [PART]
    desk.take(frame)
    desk.wait(0.0)
    desk.settle()
    assert (desk.status.primary, desk.log) == (NODES[0], [frame])


def test_what_is_looked_up_for_a_log_that_is_deleted_does_not_delete_the_next_one() -> None:
    desk = alone()
    desk.hear(PUBLISHERS[0].node, AskStored(PART, (name_of(Chain(PUBLISHERS[0]).frame()),)))
    desk.registry.state.created = None
    desk.learn()
    desk.now += 1
    desk.registry.confirmed = desk.now
    desk.learn()
    desk.save()
    assert desk.store.states() == []
    desk.look()
    assert desk.writes == []


def test_there_is_a_bound_on_logs() -> None:
    desk = Desk(size=1)
    notices = []
    for number in range(11):
        desk.registry.state.chain = f"{PART.stream}/{number}"
        desk.registry.name((0,), partitions=100)
        notices += of(Notice, desk.learn(desk.registry.state.chain))
    assert len(desk.machine.parts()) == MAX_LOGS
    assert [notice.kind for notice in notices] == ["too-many-parts"] * 2
    assert not beyond(desk.machine)


def test_what_a_stranger_says_of_a_log_changes_nothing() -> None:
    desk = Desk()
    before = desk.status
    messages = (Vote(PART, 7, 7, 7, True), Lead(PART, 7, 0), Voted(PART, 7, False, True))
    assert desk.hear(STRANGER, *messages) == []
    assert desk.hear(ONE, Lead(OTHER, 7, 0)) == []
    assert (desk.status, desk.writes) == (before, [])
    assert desk.registry.doubts == 4, "it may be newer than what we know"


# --- What is handed over --------------------------------------------------------------------


def test_frames_are_taken_from_who_published_them_and_from_other_storage_nodes() -> None:
    desk = Desk()
    own, past = Chain(PUBLISHERS[0]).frame(), Chain(PUBLISHERS[1]).frame()
    desk.registry.let(PUBLISHERS[1].node, 0)  # who published before may do so no more
    desk.users[STRANGER] = PUBLISHERS[0].node
    desk.hear(STRANGER, Hand(PART, (own, past)))
    assert [write.frames for write in desk.written if type(write) is Keep] == [(own,)]
    desk.save()
    desk.hear(ONE, Hand(PART, (past,)))
    assert [write.frames for write in desk.written if type(write) is Keep] == [(past,)]


def test_frames_of_others_of_the_future_and_of_nobody_are_not_taken() -> None:
    desk = Desk()
    frame = Chain(PUBLISHERS[0]).frame()
    desk.hear(STRANGER, Hand(PART, (frame,)))
    desk.hear(ONE, Hand(PART, (Chain(PUBLISHERS[0]).frame(at=START + 400),)))
    desk.hear(ONE, Hand(PART, (Chain(SIGNERS[20]).frame(),)))
    desk.hear(ONE, Hand(OTHER, (frame,)))
    assert desk.writes == []


def test_own_frames_are_taken_late_but_not_when_retention_would_delete_them() -> None:
    desk = Desk(keep_s=86_400.0)
    old, late = (Chain(PUBLISHERS[0]).frame(at=START - age_s) for age_s in (86_401, 86_399))
    desk.hear(PUBLISHERS[0].node, Hand(PART, (old, late)))
    assert [write.frames for write in desk.written if type(write) is Keep] == [(late,)]
    desk.save()
    desk.hear(ONE, Hand(PART, (old,)))
    assert [write.frames for write in desk.written if type(write) is Keep] == [(old,)]


def test_a_forgery_and_a_frame_of_another_part_cost_the_link() -> None:
    desk = Desk()
    frame = Chain(PUBLISHERS[0]).frame()
    for bad in (forged(frame), Chain(PUBLISHERS[0], OTHER).frame(), b"x" * 200):
        with pytest.raises(RemoteError):
            desk.hear(ONE, Hand(PART, (bad,)))
    assert desk.writes == []


def test_a_forgery_after_a_good_frame_does_not_stop_the_log() -> None:
    desk, chain = Desk(size=1), Chain(PUBLISHERS[0])
    for _ in range(10):
        desk.wait(1.0)
        desk.settle()
    good, bad, later = chain.frame(at=desk.now), chain.frame(at=desk.now), chain.frame(at=desk.now)
    with pytest.raises(RemoteError, match="forged"):
        desk.hear(PUBLISHERS[0].node, Hand(PART, (good, forged(bad))))
    desk.take(later)
    desk.settle()
    assert desk.log == [], "its chain waits for what is missing"
    desk.wait(WAIT_S)
    desk.settle()
    assert desk.log == [later]


def test_a_link_that_stood_before_the_registry_told_of_it_counts() -> None:
    desk = Desk(place=2, links=False)
    desk.registry.name((0, 1))
    desk.learn()
    desk.link(ONE)
    desk.registry.name((0, 1, 2))
    desk.learn()
    assert desk.hear(ONE, Lead(PART, 1, 0)) == [Send(ONE, Fetch(PART, 1, 0, NO_HASH, 0, 0))]


def test_a_dial_that_failed_is_no_news() -> None:
    desk = Desk(links=False)
    assert desk.link(ONE, up=False) == []
    assert sent(Vote, desk.wait(4.0)) == []


def test_rights_of_readers_are_none_of_publishers() -> None:
    desk = Desk()
    desk.registry.let(STRANGER, Right.SUBSCRIBE)
    desk.hear(STRANGER, Hand(PART, (Chain(SIGNERS[33]).frame(),)))
    assert desk.writes == []
